//! Builds regular trees. In a regular tree, all nodes of a layer have the same number of links.
//! Fat-trees are regular.
//!
//! # Problem
//!
//! A datacenter of a hundred thousand servers is too large to describe server by server.
//!
//! # Source
//!
//! Al-Fares et al., SIGCOMM 2008, describe the fat-tree. QShare §VII-C uses a fat-tree with k = 16,
//! which is oversubscribed "by disabling certain links and switches".
//!
//! # Approach
//!
//! - A *group* of layer 0 is a server.
//! - A group of layer i consists of `fan_out` groups of layer i - 1 and the switches above these
//!   groups.
//! - The *roots* of a group are the group's highest switches. A group of layer 0 is a server, which
//!   is the root of the group.
//! - If each group of layer i - 1 has R roots with u uplinks each, a group of layer i has R·u
//!   roots.
//! - Each root of a group of layer i has one link to each of its groups of layer i - 1. The first
//!   root of each group of layer i - 1 is linked to the first u roots of the group of layer i. The
//!   second root of each group of layer i - 1 is linked to the next u roots, and so on. Every root
//!   has exactly one path down to each server.
//!
//! A fat-tree of k-port switches has three tiers. From the servers up, the fan-outs of a fat-tree's
//! tiers are k/2, k/2 and k, and the numbers of uplinks are 1, k/2 and k/2.
//!
//! # Example
//!
//! A test builds a tree of 8 × 8 × 16 = 1,024 servers with three tiers:
//!
//! | Tier | Fan-out | Uplinks of each root below | Rate of the links below | Gbit/s down : up |
//! |---|---|---|---|---|
//! | rack | fan-out 8 | 1 uplink | links of 10 Gbit/s | oversubscription 80:40 = 2:1 |
//! | pod switch | fan-out 8 | 1 uplink | links of 40 Gbit/s | oversubscription 320:40 = 8:1 |
//! | core | fan-out 16 | 1 uplink | links of 40 Gbit/s | a core switch has no uplinks |
//!
//! The oversubscription of the tree with 1,024 servers is the product of 2:1 (racks) and 8:1
//! (pods), which is 16:1.

use penstock_units::BitsPerSecond;
use thiserror::Error;

use super::build::{Parts, build};
use super::{ELEMENTS_MAX, Names, SLOTS_MAX, TIERS_MAX, Topology};

/// Tier of a regular tree: a layer of switches and the links below the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tier {
    /// Number of groups of the next lower layer that form a group of the tier, at least 1.
    pub fan_out: u32,
    /// Number of links from each root of a group of the next lower layer up to the tier, at least
    /// 1.
    pub uplinks: u32,
    /// Rate of each link below the tier, in each direction, above 0.
    pub rate: BitsPerSecond,
}

/// Description of a regular tree by its tiers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regular {
    /// Number of slots of each server, at least 1.
    pub slots: u32,
    /// Tiers of switches from the servers up, at least one.
    pub tiers: Vec<Tier>,
}

/// Why a regular tree cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegularError {
    /// The number of tiers in the description of the tree is 0 or too large.
    #[error("{0} tiers; write 1 to {TIERS_MAX}")]
    Tiers(usize),
    /// The number of slots per server is 0 or too large.
    #[error("{0} slots per server; write 1 to {SLOTS_MAX}")]
    Slots(u32),
    /// A number in the description of a tier is 0.
    #[error("tier {tier}: `{what}` is 0; write 1 or more")]
    Zero {
        /// Number of the tier that has a field with the value 0. The lowest tier has number 1.
        tier: usize,
        /// Name of the field that is 0, such as `fan_out`.
        what: &'static str,
    },
    /// The tree has too many nodes or links.
    #[error("the tree has more than {ELEMENTS_MAX} nodes or links; describe a smaller tree")]
    Size,
    /// The parameter k of a fat-tree is odd or 0.
    #[error("k of a fat-tree is {0}; write an even number of at least 2")]
    OddK(u32),
}

impl Regular {
    /// Describes a fat-tree of k-port switches.
    ///
    /// - `slots` is the number of slots per server.
    /// - `server` is the rate of the links between servers and switches. `switch` is the rate of
    ///   the links between switches.
    /// - `agg` is the number of aggregation switches per pod.
    /// - `core` is the number of uplinks of each aggregation switch.
    ///
    /// If `agg` and `core` are k/2, the fat-tree has full bisection bandwidth. Smaller values of
    /// `agg` and `core` give oversubscription, as in QShare §VII-C.
    ///
    /// # Errors
    /// Returns an error if k is odd or 0, or if `agg` or `core` is 0.
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

    /// Checks that the description of the tree is valid.
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

    /// Returns, for each layer, the number of groups and the number of roots of each group. Returns
    /// `None` if a number exceeds [`ELEMENTS_MAX`].
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

    /// Builds the topology that the tiers describe.
    ///
    /// # Errors
    /// Returns a [`RegularError`] if [`Self::check`] finds that the description of the tree is
    /// invalid.
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
        let names = Names::numbered(&layers);
        Ok(build(Parts { layers, slots, links, names }))
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
            assert_eq!(tree.find(tree.name(node)), Some(node));
        }
        assert_eq!(tree.name(NodeId(16)), "rack-0");
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
