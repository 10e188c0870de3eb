//! Validates the description of a topology, which lists all nodes and links, and builds the
//! topology.
//!
//! The description of a topology is accepted or refused as a whole. The checks stop at the first
//! kind of error, and return all errors of this kind. The layer of a switch is one above the layer
//! of the switch's highest child. A link must connect adjacent layers. Every switch must have
//! exactly one path down to each server below the switch.

use std::collections::HashMap;

use penstock_units::BitsPerSecond;
use thiserror::Error;

use super::build::{Parts, build};
use super::{ELEMENTS_MAX, Names, SLOTS_MAX, TIERS_MAX, Topology, number};

/// Description of a node of the topology, which is a server or a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// Name of the node, unique among servers and switches.
    pub name: String,
    /// Number of slots of a server, or `None` for a switch.
    pub slots: Option<u32>,
}

/// Description of a link between two nodes. Several cables between two nodes are one link with the
/// sum of the cables' rates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// Name of the node at the link's lower end.
    pub child: String,
    /// Name of the node at the link's upper end.
    pub parent: String,
    /// Rate of the link in each direction, above 0.
    pub rate: BitsPerSecond,
}

/// Description of all servers, switches and links of a datacenter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopologySpec {
    /// Servers and switches of the datacenter in any order.
    pub nodes: Vec<NodeSpec>,
    /// Links of the datacenter in any order.
    pub links: Vec<LinkSpec>,
}

/// An error in the description of a topology. The field `at` is an index into
/// [`TopologySpec::nodes`] or [`TopologySpec::links`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The description has no server.
    #[error("there is no server; describe at least one")]
    NoServer,
    /// The description has too many nodes or links.
    #[error("more than {ELEMENTS_MAX} nodes or links; describe a smaller topology")]
    Size,
    /// Two nodes of the description have the same name.
    #[error("the name `{name}` is used twice; give each server and switch a unique name")]
    DuplicateName {
        /// Index in [`TopologySpec::nodes`] of the second node with the duplicate name.
        at: usize,
        /// Name that two nodes of the description share.
        name: String,
    },
    /// A server has no slots or too many slots.
    #[error("`{name}` has {slots} slots; write 1 to {SLOTS_MAX}")]
    Slots {
        /// Index of the server in [`TopologySpec::nodes`].
        at: usize,
        /// Name of the server with the invalid number of slots.
        name: String,
        /// Number of slots of the server in the description.
        slots: u32,
    },
    /// A link refers to a node that the description does not have.
    #[error("no server or switch is named `{name}`; correct the name or describe the node")]
    Unknown {
        /// Index of the link in [`TopologySpec::links`].
        at: usize,
        /// Name to which the link refers, but that no node has.
        name: String,
    },
    /// A link of the description has rate 0.
    #[error("the link from `{child}` to `{parent}` has rate 0; write a rate above 0")]
    ZeroRate {
        /// Index of the link in [`TopologySpec::links`].
        at: usize,
        /// Name of the node at the link's lower end.
        child: String,
        /// Name of the node at the link's upper end.
        parent: String,
    },
    /// Two links of the description connect the same nodes.
    #[error("two links from `{child}` to `{parent}`; write one link with the sum of their rates")]
    DuplicateLink {
        /// Index of the second link in [`TopologySpec::links`].
        at: usize,
        /// Name of the node at the link's lower end.
        child: String,
        /// Name of the node at the link's upper end.
        parent: String,
    },
    /// The upper end of a link is a server instead of a switch.
    #[error("the upper end `{parent}` of a link is a server; name a switch")]
    AboveServer {
        /// Index of the link in [`TopologySpec::links`].
        at: usize,
        /// Name of the node at the link's upper end.
        parent: String,
    },
    /// Links form a cycle, because a path up from a node leads back to the node.
    #[error(
        "the uplinks of `{name}` lead back to it; as the upper end of a link, write the node \
         nearer to the core"
    )]
    Cycle {
        /// Index of a link of the cycle in [`TopologySpec::links`].
        at: usize,
        /// Name of the node at the link's lower end.
        name: String,
    },
    /// A link connects two layers that are not adjacent.
    #[error(
        "the link from `{child}` (layer {low}) to `{parent}` (layer {high}) skips a layer; \
         connect adjacent layers"
    )]
    Jump {
        /// Index of the link in [`TopologySpec::links`].
        at: usize,
        /// Name of the node at the link's lower end.
        child: String,
        /// Layer of the node at the link's lower end.
        low: usize,
        /// Name of the node at the link's upper end.
        parent: String,
        /// Layer of the node at the link's upper end.
        high: usize,
    },
    /// A switch of the description has no downlinks to other nodes.
    #[error("`{name}` has no server below it; add a link down to a server, or remove the switch")]
    Childless {
        /// Index of the switch in [`TopologySpec::nodes`].
        at: usize,
        /// Name of the switch without downlinks.
        name: String,
    },
    /// A switch has two paths down to one node.
    #[error(
        "two paths lead down from `{root}` to `{to}`; \
         remove links until each switch has one path down to each server"
    )]
    TwoWays {
        /// Index of the switch in [`TopologySpec::nodes`].
        at: usize,
        /// Name of the switch that has two paths down to one node.
        root: String,
        /// Name of the node to which the switch has two paths.
        to: String,
    },
    /// The number of layers of switches in the description is too large.
    #[error("{0} layers of switches; at most {TIERS_MAX} are possible")]
    Layers(usize),
}

impl TopologySpec {
    /// Validates the description and builds the topology.
    ///
    /// # Errors
    /// Returns all errors that the first failing check finds. Single nodes and links are checked
    /// before the whole topology.
    pub fn build(&self) -> Result<Topology, Vec<SpecError>> {
        if self.nodes.len() > ELEMENTS_MAX || self.links.len() > ELEMENTS_MAX {
            return Err(vec![SpecError::Size]);
        }
        let ends = self.ends()?;
        let layers = self.layers(&ends)?;
        self.check_shape(&ends, &layers)?;
        let topology = self.lay_out(&ends, &layers);
        let errors = self.two_ways(&topology);
        if errors.is_empty() { Ok(topology) } else { Err(errors) }
    }

    /// Returns, for each link, the indices of the link's lower and upper end in `nodes`.
    fn ends(&self) -> Result<Vec<(usize, usize)>, Vec<SpecError>> {
        let mut errors = Vec::new();
        let mut names = HashMap::new();
        for (at, node) in self.nodes.iter().enumerate() {
            let name = node.name.clone();
            if names.insert(node.name.as_str(), at).is_some() {
                errors.push(SpecError::DuplicateName { at, name });
            } else if let Some(slots) = node.slots.filter(|s| *s == 0 || *s > SLOTS_MAX) {
                errors.push(SpecError::Slots { at, name, slots });
            }
        }
        if self.nodes.iter().all(|node| node.slots.is_none()) {
            errors.push(SpecError::NoServer);
        }
        let mut seen = HashMap::new();
        let mut ends = Vec::with_capacity(self.links.len());
        for (at, link) in self.links.iter().enumerate() {
            let (child, parent) = (link.child.clone(), link.parent.clone());
            let mut find = |name: &str| {
                let found = names.get(name).copied();
                if found.is_none() {
                    errors.push(SpecError::Unknown { at, name: name.to_owned() });
                }
                found
            };
            let (Some(low), Some(high)) = (find(&link.child), find(&link.parent)) else { continue };
            if link.rate.0 == 0 {
                errors.push(SpecError::ZeroRate { at, child, parent });
            } else if self.nodes[high].slots.is_some() {
                errors.push(SpecError::AboveServer { at, parent });
            } else if seen.insert((low, high), at).is_some() {
                errors.push(SpecError::DuplicateLink { at, child, parent });
            }
            ends.push((low, high));
        }
        if errors.is_empty() { Ok(ends) } else { Err(errors) }
    }

    /// Returns the layer of each node. A node without children is in layer 0. A node with children
    /// is one layer above its highest child.
    fn layers(&self, ends: &[(usize, usize)]) -> Result<Vec<usize>, Vec<SpecError>> {
        let mut layers = vec![0; self.nodes.len()];
        let mut waiting = vec![0_u32; self.nodes.len()];
        let mut above = vec![Vec::new(); self.nodes.len()];
        for (child, parent) in ends {
            waiting[*parent] += 1;
            above[*child].push(*parent);
        }
        let mut ready: Vec<usize> = (0..self.nodes.len()).filter(|n| waiting[*n] == 0).collect();
        while let Some(node) = ready.pop() {
            for parent in &above[node] {
                layers[*parent] = layers[*parent].max(layers[node] + 1);
                waiting[*parent] -= 1;
                if waiting[*parent] == 0 {
                    ready.push(*parent);
                }
            }
        }
        if let Some(at) = self.circle(ends, &waiting) {
            return Err(vec![SpecError::Cycle { at, name: self.links[at].child.clone() }]);
        }
        let highest = layers.iter().copied().max().unwrap_or(0);
        if highest > TIERS_MAX { Err(vec![SpecError::Layers(highest)]) } else { Ok(layers) }
    }

    /// Finds a link of a cycle. A node has no layer if the node's element in `waiting` is above 0.
    /// The search follows downlinks between nodes without a layer until a node is reached a second
    /// time. The last downlink that the search follows is part of a cycle.
    fn circle(&self, ends: &[(usize, usize)], waiting: &[u32]) -> Option<usize> {
        let mut below = vec![None; self.nodes.len()];
        for (at, (child, parent)) in ends.iter().enumerate().rev() {
            if waiting[*child] > 0 && waiting[*parent] > 0 {
                below[*parent] = Some(at);
            }
        }
        let mut node = waiting.iter().position(|n| *n > 0)?;
        let mut seen = vec![false; self.nodes.len()];
        loop {
            seen[node] = true;
            let link: usize = below[node]?;
            node = ends[link].0;
            if seen[node] {
                return Some(link);
            }
        }
    }

    fn check_shape(&self, ends: &[(usize, usize)], layers: &[usize]) -> Result<(), Vec<SpecError>> {
        let mut errors = Vec::new();
        for (at, node) in self.nodes.iter().enumerate() {
            if node.slots.is_none() && layers[at] == 0 {
                errors.push(SpecError::Childless { at, name: node.name.clone() });
            }
        }
        for (at, (low, high)) in ends.iter().enumerate() {
            if layers[*low] + 1 != layers[*high] {
                let (child, parent) = (self.links[at].child.clone(), self.links[at].parent.clone());
                let (low, high) = (layers[*low], layers[*high]);
                errors.push(SpecError::Jump { at, child, low, parent, high });
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    fn lay_out(&self, ends: &[(usize, usize)], layers: &[usize]) -> Topology {
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        order.sort_by_key(|at| layers[*at]);
        let mut place = vec![0_u32; self.nodes.len()];
        for (new, at) in order.iter().enumerate() {
            place[*at] = number(new);
        }
        let highest = layers.iter().copied().max().unwrap_or(0);
        let count = |layer| number(layers.iter().filter(|l| **l == layer).count());
        let links = ends.iter().zip(&self.links);
        let links = links.map(|((c, p), link)| (place[*c], place[*p], link.rate.0)).collect();
        let slots = order.iter().filter_map(|at| self.nodes[*at].slots).collect();
        let names = order.iter().map(|at| self.nodes[*at].name.clone().into_boxed_str()).collect();
        let names = Names::given(names);
        build(Parts { layers: (0..=highest).map(count).collect(), slots, links, names })
    }

    /// Returns an error for each switch that has two paths down to one node, in the lowest layer
    /// with errors. Errors of higher layers are not reported, because they would repeat the errors
    /// of the lowest layer.
    fn two_ways(&self, topology: &Topology) -> Vec<SpecError> {
        let mut seen = vec![u32::MAX; topology.nodes()];
        let mut errors = Vec::new();
        for layer in 2..topology.layers() {
            for root in topology.layer(layer) {
                let twice = topology.cone(root).into_iter().find(|node| {
                    let again = seen[node.index()] == root.0;
                    seen[node.index()] = root.0;
                    again
                });
                if let Some(to) = twice {
                    let (root, to) = (topology.name(root).to_string(), topology.name(to));
                    let at = self.nodes.iter().position(|node| node.name == root).unwrap_or(0);
                    errors.push(SpecError::TwoWays { at, root, to: to.to_string() });
                }
            }
            if !errors.is_empty() {
                break;
            }
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(servers: &[&str], switches: &[&str], links: &[(&str, &str)]) -> TopologySpec {
        let node = |name: &&str, slots| NodeSpec { name: (*name).to_owned(), slots };
        let rate = BitsPerSecond(1_000_000_000);
        let link = |(child, parent): &(&str, &str)| LinkSpec {
            child: (*child).to_owned(),
            parent: (*parent).to_owned(),
            rate,
        };
        let servers = servers.iter().map(|name| node(name, Some(10)));
        let switches = switches.iter().map(|name| node(name, None));
        let nodes = servers.chain(switches).collect();
        TopologySpec { nodes, links: links.iter().map(link).collect() }
    }

    fn two_racks() -> TopologySpec {
        let links = [("a", "r1"), ("b", "r1"), ("c", "r2"), ("r1", "core"), ("r2", "core")];
        spec(&["a", "b", "c"], &["r1", "core", "r2"], &links)
    }

    fn refused(spec: &TopologySpec) -> String {
        let errors = spec.build().unwrap_err();
        errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn nodes_are_numbered_by_layer_and_keep_their_names() {
        let topology = two_racks().build().unwrap();
        assert_eq!((topology.layers(), topology.servers(), topology.links()), (3, 3, 5));
        for name in ["a", "b", "c", "r1", "r2", "core"] {
            assert_eq!(topology.name(topology.find(name).unwrap()), name);
        }
        let core = topology.find("core").unwrap();
        assert_eq!((topology.layer_of(core), topology.down(core).count()), (2, 2));
        assert_eq!(topology.cone(core).len(), 6);
    }

    #[test]
    fn a_cycle_a_skipped_layer_and_two_paths_down_are_refused() {
        let mut circle = two_racks();
        circle.nodes.push(NodeSpec { name: "x".to_owned(), slots: None });
        for (child, parent) in [("core", "x"), ("x", "r1")] {
            let (child, parent) = (child.to_owned(), parent.to_owned());
            circle.links.push(LinkSpec { child, parent, rate: BitsPerSecond(1) });
        }
        let errors = circle.build().unwrap_err();
        let [SpecError::Cycle { at, .. }] = errors[..] else { panic!("{errors:?}") };
        assert!([3, 5, 6].contains(&at), "link {at} is on the circle");
        let jump = spec(&["a", "b"], &["r", "c"], &[("a", "r"), ("r", "c"), ("b", "c")]);
        assert!(refused(&jump).contains("`b` (layer 0) to `c` (layer 2) skips"));
        let links = [("a", "r1"), ("a", "r2"), ("r1", "c"), ("r2", "c")];
        let two = spec(&["a"], &["r1", "r2", "c"], &links);
        assert!(refused(&two).contains("two paths lead down from `c` to `a`"));
    }

    #[test]
    fn all_errors_of_single_objects_are_reported_at_once() {
        let mut wrong = two_racks();
        wrong.nodes[1].name = "a".to_owned();
        wrong.nodes[2].slots = Some(0);
        wrong.links[4].rate = BitsPerSecond(0);
        let text = refused(&wrong);
        for says in ["the name `a` is used twice", "`c` has 0 slots", "named `b`", "`r2` to `core`"]
        {
            assert!(text.contains(says), "{says}: {text}");
        }
        let mut wrong = two_racks();
        wrong.links.push(wrong.links[0].clone());
        wrong.links[1].parent = "c".to_owned();
        let text = refused(&wrong);
        assert!(text.contains("two links from `a` to `r1`") && text.contains("upper end `c`"));
        let lonely = spec(&["a"], &["r", "x"], &[("a", "r")]);
        assert!(refused(&lonely).contains("`x` has no server below it"));
        assert!(refused(&spec(&[], &["r"], &[])).contains("there is no server"));
    }
}
