//! Defines multi-rooted trees: servers, layers of switches above the servers, and links between
//! adjacent layers.
//!
//! # Problem
//!
//! A tenant's traffic stays in one tree, so that the load of each link is known (QShare §II-A).
//! Several trees of a datacenter may have the same servers and different switches. A topology of a
//! hundred thousand servers must fit into memory.
//!
//! # Source
//!
//! QShare §IV-A calls a tree a tenant routing (TR) option: "a layer-i TR option is a tree rooted at
//! layer i; its leaves are all servers reachable from the root using only downward paths". Al-Fares
//! et al., SIGCOMM 2008, describe fat-trees.
//!
//! # Quantities
//!
//! Layer 0 has the servers, layer 1 has the switches above the servers, and so on. A link connects
//! a *child* to a *parent* one layer above. A link's rate is in bits per second *in each
//! direction*. A *slot* is room for one VM.
//!
//! # Approach
//!
//! A node has exactly one path down to each server below it. [`spec`] refuses topologies in which a
//! node has several paths down to a server. Nodes are numbered by layer, and links by parent, so a
//! node's downlinks are adjacent in memory.
//!
//! # Cost
//!
//! A topology takes 32 bytes of memory per link. A node takes 36 bytes and its name. Copies of a
//! topology share the names.

use core::ops::Range;
use std::sync::Arc;

use penstock_units::BitsPerSecond;

pub mod build;
pub mod regular;
pub mod spec;

pub use regular::{Regular, RegularError, Tier};
pub use spec::{LinkSpec, NodeSpec, SpecError, TopologySpec};

/// Maximum number of layers of switches in a topology.
pub const TIERS_MAX: usize = 8;
/// Maximum number of nodes, and also maximum number of links, in a topology.
pub const ELEMENTS_MAX: usize = 1 << 26;
/// Maximum number of slots of a server.
pub const SLOTS_MAX: u32 = 1 << 20;

/// Number of a server or a switch. Servers have lower numbers than switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// Number of a link between a node and a node in the layer above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

impl NodeId {
    /// Returns the node's number as an index into a table of all nodes.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl LinkId {
    /// Returns the link's number as an index into a table of all links.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Converts an index into a table of nodes or links to a node or link number.
///
/// # Panics
/// Panics if the index of a node or link does not fit into 32 bits. [`ELEMENTS_MAX`] keeps all
/// indices of a topology below 2^32.
pub(crate) fn number(index: usize) -> u32 {
    u32::try_from(index).expect("a topology has fewer than 2^26 elements")
}

/// A validated multi-rooted tree, which never changes. Reservations on the tree's nodes and links
/// are in [`crate::ledger`].
#[derive(Clone, Debug)]
pub struct Topology {
    /// For each layer, the end of its range of node numbers.
    layer_end: Vec<u32>,
    /// Number of slots of each server.
    slots: Vec<u32>,
    /// For each link, the number of the node at the lower end. The field `parent` has the number of
    /// the node at the upper end of each link.
    child: Vec<u32>,
    parent: Vec<u32>,
    rate: Vec<u64>,
    /// For each node, the number of the first downlink, and as the last entry the number of links.
    first_down: Vec<u32>,
    /// For each node, the index in `up` at which the node's uplinks begin, and as the last entry
    /// the length of `up`.
    first_up: Vec<u32>,
    up: Vec<u32>,
    names: Arc<Names>,
}

/// Names of all nodes of a topology. A controller needs the names of all hosts and looks up all
/// hosts by name several times in each interval.
#[derive(Debug)]
pub(crate) struct Names {
    /// Names in the order of the nodes' numbers.
    names: Vec<Box<str>>,
    /// Numbers of the nodes in the order of their names.
    order: Vec<u32>,
}

impl Names {
    pub(crate) fn given(names: Vec<Box<str>>) -> Self {
        let mut order: Vec<u32> = (0..names.len()).map(number).collect();
        order.sort_unstable_by(|a, b| names[*a as usize].cmp(&names[*b as usize]));
        Self { names, order }
    }

    /// Generates the name of each node from its layer and its position in the layer. The argument
    /// `layers` has the number of nodes in each layer.
    pub(crate) fn numbered(layers: &[u32]) -> Self {
        let name = |(layer, count): (usize, &u32)| {
            let kind = kind(layers.len(), layer);
            (0..*count).map(move |at| format!("{kind}-{at}").into_boxed_str())
        };
        Self::given(layers.iter().enumerate().flat_map(name).collect())
    }
}

/// Prefixes of generated names by layer, for a tree with three tiers of switches.
const KINDS: [&str; 4] = ["server", "rack", "pod-switch", "core"];

/// Returns the prefix of the generated names of a layer, in a topology with `layers` layers.
fn kind(layers: usize, layer: usize) -> String {
    if layers <= KINDS.len() && (layer < 2 || layers == KINDS.len()) {
        return KINDS[layer].to_owned();
    }
    if layer + 1 == layers { KINDS[3].to_owned() } else { format!("layer{layer}") }
}

impl Topology {
    /// Number of layers, including the layer of servers.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.layer_end.len()
    }

    /// Returns the nodes of a layer in ascending order.
    ///
    /// # Panics
    /// Panics if the topology does not have the layer.
    pub fn layer(&self, layer: usize) -> impl DoubleEndedIterator<Item = NodeId> + Clone + use<> {
        self.layer_range(layer).map(NodeId)
    }

    pub(crate) fn layer_range(&self, layer: usize) -> Range<u32> {
        let start = if layer == 0 { 0 } else { self.layer_end[layer - 1] };
        start..self.layer_end[layer]
    }

    /// Returns the layer of a node, 0 for a server.
    #[must_use]
    pub fn layer_of(&self, node: NodeId) -> usize {
        self.layer_end.partition_point(|end| *end <= node.0)
    }

    /// Number of servers. Every node number below the number of servers belongs to a server.
    #[must_use]
    pub fn servers(&self) -> usize {
        self.slots.len()
    }

    /// Number of servers and switches in the topology.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.first_down.len() - 1
    }

    /// Number of links in the topology.
    #[must_use]
    pub fn links(&self) -> usize {
        self.child.len()
    }

    /// Whether a node is a server, which means that it is in layer 0.
    #[must_use]
    pub fn is_server(&self, node: NodeId) -> bool {
        node.index() < self.slots.len()
    }

    /// Number of slots of a server. 0 if the node is a switch.
    #[must_use]
    pub fn slots(&self, node: NodeId) -> u32 {
        self.slots.get(node.index()).copied().unwrap_or(0)
    }

    /// Sum of the slots of all servers.
    #[must_use]
    pub fn slots_all(&self) -> u64 {
        self.slots.iter().map(|slots| u64::from(*slots)).sum()
    }

    /// Returns the node at the lower end of a link.
    #[must_use]
    pub fn child(&self, link: LinkId) -> NodeId {
        NodeId(self.child[link.index()])
    }

    /// Returns the node at the upper end of a link.
    #[must_use]
    pub fn parent(&self, link: LinkId) -> NodeId {
        NodeId(self.parent[link.index()])
    }

    /// Rate of a link in each direction.
    #[must_use]
    pub fn rate(&self, link: LinkId) -> BitsPerSecond {
        BitsPerSecond(self.rate[link.index()])
    }

    /// Returns the same topology in which each link has only `permille` thousandths of its rate, at
    /// least 1 bit/s. A `permille` above 1000 counts as 1000.
    #[must_use]
    pub fn reduced(mut self, permille: u32) -> Self {
        for rate in &mut self.rate {
            let part = u128::from(*rate) * u128::from(permille.min(1_000)) / 1_000;
            *rate = u64::try_from(part).unwrap_or(u64::MAX).max(1);
        }
        self
    }

    /// Layer of a link, from 1. The layer of a link is the layer of the link's upper end.
    #[must_use]
    pub fn link_layer(&self, link: LinkId) -> usize {
        self.layer_of(self.parent(link))
    }

    /// Returns the downlinks of a node. A server has no downlinks.
    pub fn down(&self, node: NodeId) -> impl DoubleEndedIterator<Item = LinkId> + Clone + use<> {
        self.down_range(node).map(LinkId)
    }

    pub(crate) fn down_range(&self, node: NodeId) -> Range<u32> {
        self.first_down[node.index()]..self.first_down[node.index() + 1]
    }

    /// Returns the uplinks of a node. Nodes of the highest layer have no uplinks.
    pub fn up(&self, node: NodeId) -> impl Iterator<Item = LinkId> + Clone + '_ {
        let range = self.first_up[node.index()] as usize..self.first_up[node.index() + 1] as usize;
        self.up[range].iter().map(|link| LinkId(*link))
    }

    /// Returns the sum of the downlink rates of a switch divided by the sum of its uplink rates,
    /// for example 4 for an oversubscription of 4:1. `None` if the node is a server or in the
    /// highest layer.
    #[must_use]
    pub fn oversubscription(&self, node: NodeId) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "a ratio for display")]
        let sum = |links: &mut dyn Iterator<Item = LinkId>| -> f64 {
            links.map(|link| self.rate(link).0 as f64).sum()
        };
        let up = sum(&mut self.up(node));
        (up > 0.0 && !self.is_server(node)).then(|| sum(&mut self.down(node)) / up)
    }

    /// Returns the name of a node.
    #[must_use]
    pub fn name(&self, node: NodeId) -> &str {
        &self.names.names[node.index()]
    }

    /// Returns the node with the given name. `None` if no node has the name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<NodeId> {
        let Names { names, order } = &*self.names;
        let found = order.binary_search_by(|node| (*names[*node as usize]).cmp(name));
        found.ok().map(|at| NodeId(order[at]))
    }

    /// Returns all nodes that are reachable from `root` downwards, starting with `root` itself.
    #[must_use]
    pub fn cone(&self, root: NodeId) -> Vec<NodeId> {
        let mut cone = vec![root];
        let mut at = 0;
        while let Some(node) = cone.get(at).copied() {
            cone.extend(self.down(node).map(|link| self.child(link)));
            at += 1;
        }
        cone
    }

    /// Returns the links from `node` up to `root`, starting with the lowest link. `None` if `node`
    /// is not below `root`.
    #[must_use]
    pub fn path_up(&self, node: NodeId, root: NodeId) -> Option<Vec<LinkId>> {
        if node == root {
            return Some(Vec::new());
        }
        self.up(node).find_map(|link| {
            // A parent above the root's layer cannot lead to the root.
            let parent = self.parent(link);
            if parent.0 > root.0 {
                return None;
            }
            let mut path = vec![link];
            path.extend(self.path_up(parent, root)?);
            Some(path)
        })
    }
}
