//! Regular trees, in which all nodes of a layer are alike. Fat-trees are regular.
//!
//! # Problem
//!
//! A datacenter of a hundred thousand servers is too large to describe server by server.
//!
//! # Source
//!
//! Al-Fares et al., SIGCOMM 2008, describe the fat-tree. QShare §VII-C uses k = 16, oversubscribed
//! "by disabling certain links and switches".
//!
//! # Approach
//!
//! A *group* of layer i consists of `fan_out` groups of layer i - 1 and the switches above these
//! groups. A group of layer 0 is a server. If a group below has R roots with u uplinks each, the
//! group has R·u switches. Switch (j, x) has a link to root j of each group below, so every switch
//! has one path down to each server below it. A fat-tree of k has fan-outs k/2, k/2, k and uplinks
//! 1, k/2, k/2.
//!
//! # Example
//!
//! In a test, fan-outs 8, 8, 16, uplinks 1, 1, 1 and rates 10G, 40G, 40G give 1,024 servers. A rack
//! has 80G down and 40G up. A pod's single switch has 320G down and 40G up. Both ratios together
//! are 16:1.

use penstock_units::BitsPerSecond;
use thiserror::Error;

use super::build::{Parts, build};
use super::{ELEMENTS_MAX, Names, SLOTS_MAX, TIERS_MAX, Topology};

/// A layer of switches and the links below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tier {
    /// Groups of the layer below in a group of this layer, at least 1.
    pub fan_out: u32,
    /// Uplinks of each node below into this layer, at least 1.
    pub uplinks: u32,
    /// Rate of each of these links in each direction, above 0.
    pub rate: BitsPerSecond,
}

/// A regular tree, described by its tiers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regular {
    /// Slots of each server, at least 1.
    pub slots: u32,
    /// Tiers from the servers up, at least one.
    pub tiers: Vec<Tier>,
}

/// Why a regular tree cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegularError {
    /// There is no tier, or there are too many.
    #[error("{0} tiers: a tree has 1 to {TIERS_MAX}")]
    Tiers(usize),
    /// Servers have no slots or too many.
    #[error("{0} slots a server: 1 to {SLOTS_MAX} are possible")]
    Slots(u32),
    /// A value of a tier is 0.
    #[error("tier {tier}: `{what}` is 0; write 1 or more")]
    Zero {
        /// Number of the tier from 1, lowest first.
        tier: usize,
        /// Name of the value.
        what: &'static str,
    },
    /// There are too many nodes or links.
    #[error("the tree has more than {ELEMENTS_MAX} nodes or links; take a smaller one")]
    Size,
    /// k of a fat-tree is odd or 0.
    #[error("a fat-tree's k is even and at least 2, and not {0}")]
    OddK(u32),
}

impl Regular {
    /// A fat-tree of k-port switches with `slots` slots per server. The rates are the rate of
    /// server links and the rate of all other links. `agg` is the number of aggregation switches
    /// per pod, and `core` is the number of uplinks of each. With k/2 and k/2 the tree is full.
    /// Smaller numbers give oversubscription as in QShare §VII-C.
    ///
    /// # Errors
    /// k is odd or 0, or `agg` or `core` is 0.
    pub fn fat_tree(
        k: u32,
        slots: u32,
        (server, switch): (BitsPerSecond, BitsPerSecond),
        (agg, core): (u32, u32),
    ) -> Result<Self, RegularError> {
        if k == 0 || !k.is_multiple_of(2) {
            return Err(RegularError::OddK(k));
        }
        let tiers = vec![
            Tier { fan_out: k / 2, uplinks: 1, rate: server },
            Tier { fan_out: k / 2, uplinks: agg.min(k / 2), rate: switch },
            Tier { fan_out: k, uplinks: core.min(k / 2), rate: switch },
        ];
        let tree = Self { slots, tiers };
        tree.check().map(|()| tree)
    }

    /// Validates the tree.
    ///
    /// # Errors
    /// Returns an error if a value is 0 or the tree is too large; see [`RegularError`].
    pub fn check(&self) -> Result<(), RegularError> {
        if self.tiers.is_empty() || self.tiers.len() > TIERS_MAX {
            return Err(RegularError::Tiers(self.tiers.len()));
        }
        if self.slots == 0 || self.slots > SLOTS_MAX {
            return Err(RegularError::Slots(self.slots));
        }
        for (at, tier) in self.tiers.iter().enumerate() {
            let zero = |what| Err(RegularError::Zero { tier: at + 1, what });
            match (tier.fan_out, tier.uplinks, tier.rate.0) {
                (0, ..) => return zero("fan_out"),
                (_, 0, _) => return zero("uplinks"),
                (.., 0) => return zero("rate"),
                _ => {}
            }
        }
        let counted = self.counts().ok_or(RegularError::Size)?;
        let nodes = counted.iter().map(|(groups, roots)| groups * roots);
        let links = counted.iter().zip(&self.tiers);
        let links = links.map(|((groups, roots), tier)| groups * roots * u64::from(tier.uplinks));
        let most = ELEMENTS_MAX as u64;
        let fits = nodes.sum::<u64>() <= most && links.sum::<u64>() <= most;
        fits.then_some(()).ok_or(RegularError::Size)
    }

    /// Number of groups in each layer, and number of roots of each group. `None` if the numbers are
    /// far too large.
    fn counts(&self) -> Option<Vec<(u64, u64)>> {
        let most = ELEMENTS_MAX as u64;
        let within = |n: Option<u64>| n.filter(|n| *n <= most);
        let mut groups = 1_u64;
        for tier in &self.tiers {
            groups = within(groups.checked_mul(u64::from(tier.fan_out)))?;
        }
        let mut counts = vec![(groups, 1)];
        let mut roots = 1_u64;
        for tier in &self.tiers {
            groups /= u64::from(tier.fan_out);
            roots = within(roots.checked_mul(u64::from(tier.uplinks)))?;
            within(groups.checked_mul(roots))?;
            within(groups.checked_mul(roots)?.checked_mul(u64::from(tier.fan_out)))?;
            counts.push((groups, roots));
        }
        Some(counts)
    }

    /// Builds the topology.
    ///
    /// # Errors
    /// Returns the errors of [`Self::check`].
    pub fn build(&self) -> Result<Topology, RegularError> {
        self.check()?;
        let counts: Vec<(u32, u32)> = self
            .counts()
            .ok_or(RegularError::Size)?
            .iter()
            .map(|(groups, roots)| {
                let small = |n: u64| u32::try_from(n).map_err(|_| RegularError::Size);
                Ok((small(*groups)?, small(*roots)?))
            })
            .collect::<Result<_, RegularError>>()?;
        let mut links = Vec::new();
        let mut below = 0_u32;
        for (tier, pair) in self.tiers.iter().zip(counts.windows(2)) {
            let ((groups_below, roots_below), (groups, roots)) = (pair[0], pair[1]);
            let here = below + groups_below * roots_below;
            for group in 0..groups {
                for root in 0..roots {
                    let parent = here + group * roots + root;
                    let below_root = root / tier.uplinks;
                    for member in 0..tier.fan_out {
                        let child_group = group * tier.fan_out + member;
                        let child = below + child_group * roots_below + below_root;
                        links.push((child, parent, tier.rate.0));
                    }
                }
            }
            below = here;
        }
        let layers: Vec<u32> = counts.iter().map(|(groups, roots)| groups * roots).collect();
        let slots = vec![self.slots; layers[0] as usize];
        Ok(build(Parts { layers, slots, links, names: Names::Numbered }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{NodeId, number};

    const G: u64 = 1_000_000_000;

    fn fat_tree(k: u32, agg: u32, core: u32) -> Topology {
        let rates = (BitsPerSecond(10 * G), BitsPerSecond(40 * G));
        Regular::fat_tree(k, 100, rates, (agg, core)).unwrap().build().unwrap()
    }

    #[test]
    fn a_full_fat_tree_has_the_published_numbers_of_nodes() {
        for k in [2_u32, 4, 16, 48] {
            let tree = fat_tree(k, k / 2, k / 2);
            assert_eq!(number(tree.servers()), k * k * k / 4);
            let by_layer = (0..4).map(|l| number(tree.layer(l).count()));
            let want = [k * k * k / 4, k * k / 2, k * k / 2, k * k / 4];
            assert!(by_layer.eq(want), "k = {k}");
            assert_eq!(number(tree.links()), 3 * k * k * k / 4);
            assert_eq!(number(tree.cone(tree.layer(3).next().unwrap()).len()), {
                // The tree has one aggregation switch and all k/2 racks in each of k pods.
                1 + k * (1 + k / 2 * (1 + k / 2))
            });
        }
    }

    #[test]
    fn the_papers_over_subscriptions_are_reached_by_leaving_switches_out() {
        for (agg, core, rack, pod, servers) in
            [(2, 8, 1.0, 1.0, 1024), (1, 4, 2.0, 2.0, 1024), (1, 1, 2.0, 8.0, 1024)]
        {
            let tree = fat_tree(16, agg, core);
            assert_eq!(tree.servers(), servers);
            let ratio = |layer| tree.oversubscription(tree.layer(layer).next().unwrap()).unwrap();
            assert!((ratio(1) - rack).abs() < 1e-9 && (ratio(2) - pod).abs() < 1e-9);
        }
        let tree = fat_tree(4, 2, 2);
        assert_eq!(tree.oversubscription(tree.layer(3).next().unwrap()), None);
        assert_eq!(tree.oversubscription(NodeId(0)), None);
    }

    #[test]
    fn every_node_is_found_by_its_name_and_every_path_up_ends_at_its_root() {
        let tree = fat_tree(4, 2, 2);
        for node in (0..tree.nodes()).map(|n| NodeId(u32::try_from(n).unwrap())) {
            assert_eq!(tree.find(&tree.name(node).to_string()), Some(node));
        }
        assert_eq!(tree.name(NodeId(16)).to_string(), "rack-0");
        assert_eq!((tree.find("rack-8"), tree.find("core-4"), tree.find("x")), (None, None, None));
        let root = tree.layer(3).next_back().unwrap();
        for server in tree.layer(0) {
            let path = tree.path_up(server, root).unwrap();
            assert_eq!((path.len(), tree.parent(path[2])), (3, root));
        }
        let rack = tree.layer(1).next().unwrap();
        assert_eq!(tree.path_up(NodeId(15), rack), None);
    }

    #[test]
    fn an_invalid_tree_is_refused_with_the_reason() {
        let rates = (BitsPerSecond(G), BitsPerSecond(G));
        assert_eq!(Regular::fat_tree(3, 1, rates, (1, 1)), Err(RegularError::OddK(3)));
        assert_eq!(
            Regular::fat_tree(4, 1, rates, (1, 0)),
            Err(RegularError::Zero { tier: 3, what: "uplinks" })
        );
        let zero = (BitsPerSecond(0), BitsPerSecond(G));
        assert_eq!(
            Regular::fat_tree(4, 1, zero, (1, 1)),
            Err(RegularError::Zero { tier: 1, what: "rate" })
        );
        assert_eq!(Regular::fat_tree(4, 0, rates, (1, 1)), Err(RegularError::Slots(0)));
        assert_eq!(Regular::fat_tree(4000, 1, rates, (9, 9)), Err(RegularError::Size));
        assert_eq!(Regular { slots: 1, tiers: vec![] }.check(), Err(RegularError::Tiers(0)));
    }
}
