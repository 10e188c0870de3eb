//! Multi-rooted trees: servers, switches in layers above them, and links between adjacent layers.
//!
//! # Problem
//!
//! A tenant's traffic stays inside one tree, so that the load of the tree's links is known (QShare
//! §II-A). A datacenter has several trees over the same servers. The description must fit into
//! memory for a hundred thousand servers.
//!
//! # Source
//!
//! The definition of a tree is in QShare §IV-A: "a layer-i TR option is a tree rooted at layer i;
//! its leaves are all servers reachable from the root using only downward paths". Fat-trees are in
//! Al-Fares et al., SIGCOMM 2008.
//!
//! # Quantities
//!
//! Layer 0 has the servers, layer 1 has the switches above them, and so on. A link connects a
//! *child* to a *parent* one layer above. Its rate is in bits per second *in each direction*. A
//! *slot* is room for one VM.
//!
//! # Approach
//!
//! If any node is taken as a root, there is exactly one path down to each server below it. [`spec`]
//! refuses topologies that violate this rule. Nodes are numbered by layer and links by parent, so a
//! node's downlinks are adjacent in memory.
//!
//! # Cost
//!
//! A topology takes 32 bytes per link and 16 per node. A fat-tree of k = 74 (101,306 servers) takes
//! 11 MB.

use core::fmt;
use core::ops::Range;

use penstock_units::BitsPerSecond;

pub mod build;
pub mod regular;
pub mod spec;

pub use regular::{Regular, RegularError, Tier};
pub use spec::{LinkSpec, NodeSpec, SpecError, TopologySpec};

/// Maximum number of layers of switches.
pub const TIERS_MAX: usize = 8;
/// Maximum number of nodes, and maximum number of links.
pub const ELEMENTS_MAX: usize = 1 << 26;
/// Maximum number of slots of a server.
pub const SLOTS_MAX: u32 = 1 << 20;

/// A server or a switch. Servers have the lowest numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// A link between a node and one in the layer above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

impl NodeId {
    /// The number as an index into a table.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl LinkId {
    /// The number as an index into a table.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Converts an index to the number of an element.
///
/// # Panics
/// Panics if the index does not fit into 32 bits. [`ELEMENTS_MAX`] keeps all indices of a topology
/// below this limit.
pub(crate) fn number(index: usize) -> u32 {
    u32::try_from(index).expect("a topology has fewer than 2^26 elements")
}

/// A validated multi-rooted tree. It is immutable; [`crate::ledger`] has the reservations.
#[derive(Clone, Debug)]
pub struct Topology {
    /// End of each layer's range of node numbers.
    layer_end: Vec<u32>,
    /// Slots of each server.
    slots: Vec<u32>,
    /// Lower end of each link.
    child: Vec<u32>,
    parent: Vec<u32>,
    rate: Vec<u64>,
    /// First downlink of each node. One more entry marks the end.
    first_down: Vec<u32>,
    /// Index in `up` where each node's uplinks begin. One more entry marks the end.
    first_up: Vec<u32>,
    up: Vec<u32>,
    names: Names,
}

/// Names of all nodes, generated or given.
#[derive(Clone, Debug)]
pub(crate) enum Names {
    /// Names are generated from the layer and the position in the layer.
    Numbered,
    /// Names are given by node. The second list has the nodes ordered by name.
    Given(Vec<Box<str>>, Vec<u32>),
}

impl Names {
    /// Names by node. The names are indexed, because a controller with ten thousand nodes looks up
    /// each of them once per interval.
    pub(crate) fn given(names: Vec<Box<str>>) -> Self {
        let mut order: Vec<u32> = (0..names.len()).map(number).collect();
        order.sort_by(|a, b| names[*a as usize].cmp(&names[*b as usize]));
        Self::Given(names, order)
    }
}

/// Generated names by layer, for a tree with three tiers of switches.
const KINDS: [&str; 4] = ["server", "rack", "pod-switch", "core"];

impl Topology {
    /// Number of layers, including servers.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.layer_end.len()
    }

    /// The nodes of a layer.
    ///
    /// # Panics
    /// Panics if there is no such layer.
    pub fn layer(&self, layer: usize) -> impl DoubleEndedIterator<Item = NodeId> + Clone + use<> {
        self.layer_range(layer).map(NodeId)
    }

    pub(crate) fn layer_range(&self, layer: usize) -> Range<u32> {
        let start = if layer == 0 { 0 } else { self.layer_end[layer - 1] };
        start..self.layer_end[layer]
    }

    /// The layer of a node.
    #[must_use]
    pub fn layer_of(&self, node: NodeId) -> usize {
        self.layer_end.partition_point(|end| *end <= node.0)
    }

    /// Number of servers. They are the nodes with the lowest numbers.
    #[must_use]
    pub fn servers(&self) -> usize {
        self.slots.len()
    }

    /// Number of servers and switches.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.first_down.len() - 1
    }

    /// Number of links.
    #[must_use]
    pub fn links(&self) -> usize {
        self.child.len()
    }

    /// Whether a node is a server, i.e. in layer 0.
    #[must_use]
    pub fn is_server(&self, node: NodeId) -> bool {
        node.index() < self.slots.len()
    }

    /// Slots of a server. 0 for a switch.
    #[must_use]
    pub fn slots(&self, node: NodeId) -> u32 {
        self.slots.get(node.index()).copied().unwrap_or(0)
    }

    /// Sum of the slots of all servers.
    #[must_use]
    pub fn slots_all(&self) -> u64 {
        self.slots.iter().map(|slots| u64::from(*slots)).sum()
    }

    /// Lower end of a link.
    #[must_use]
    pub fn child(&self, link: LinkId) -> NodeId {
        NodeId(self.child[link.index()])
    }

    /// Upper end of a link.
    #[must_use]
    pub fn parent(&self, link: LinkId) -> NodeId {
        NodeId(self.parent[link.index()])
    }

    /// Rate of a link in each direction.
    #[must_use]
    pub fn rate(&self, link: LinkId) -> BitsPerSecond {
        BitsPerSecond(self.rate[link.index()])
    }

    /// Layer of a link, from 1. It is the layer of the link's upper end.
    #[must_use]
    pub fn link_layer(&self, link: LinkId) -> usize {
        self.layer_of(self.parent(link))
    }

    /// Downlinks of a node. A server has none.
    pub fn down(&self, node: NodeId) -> impl DoubleEndedIterator<Item = LinkId> + Clone + use<> {
        self.down_range(node).map(LinkId)
    }

    pub(crate) fn down_range(&self, node: NodeId) -> Range<u32> {
        self.first_down[node.index()]..self.first_down[node.index() + 1]
    }

    /// Uplinks of a node. Nodes of the highest layer have none.
    pub fn up(&self, node: NodeId) -> impl Iterator<Item = LinkId> + Clone + '_ {
        let range = self.first_up[node.index()] as usize..self.first_up[node.index() + 1] as usize;
        self.up[range].iter().map(|link| LinkId(*link))
    }

    /// Downlink rate of a switch divided by its uplink rate: 4 means 4:1. `None` for servers and
    /// for the highest layer.
    #[must_use]
    pub fn oversubscription(&self, node: NodeId) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "a ratio to be shown")]
        let sum = |links: &mut dyn Iterator<Item = LinkId>| -> f64 {
            links.map(|link| self.rate(link).0 as f64).sum()
        };
        let up = sum(&mut self.up(node));
        (up > 0.0 && !self.is_server(node)).then(|| sum(&mut self.down(node)) / up)
    }

    /// Name of a node.
    #[must_use]
    pub fn name(&self, node: NodeId) -> NodeName<'_> {
        NodeName { topology: self, node }
    }

    /// The node with a name. `None` if no node has it.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<NodeId> {
        match &self.names {
            Names::Given(names, order) => {
                let found = order.binary_search_by(|node| (*names[*node as usize]).cmp(name));
                found.ok().map(|at| NodeId(order[at]))
            }
            Names::Numbered => {
                let (kind, at) = name.rsplit_once('-')?;
                let at = at.parse::<u32>().ok()?;
                let layer = (0..self.layers()).find(|l| self.kind(*l) == kind)?;
                let node = self.layer_range(layer).start.checked_add(at)?;
                self.layer_range(layer).contains(&node).then_some(NodeId(node))
            }
        }
    }

    fn kind(&self, layer: usize) -> String {
        if self.layers() <= KINDS.len() && (layer < 2 || self.layers() == KINDS.len()) {
            return KINDS[layer].to_owned();
        }
        if layer + 1 == self.layers() { KINDS[3].to_owned() } else { format!("layer{layer}") }
    }

    /// All nodes reachable from `root` downwards, starting with `root`.
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

    /// Links from `node` up to `root`, the lowest first. `None` if `node` is not below `root`.
    #[must_use]
    pub fn path_up(&self, node: NodeId, root: NodeId) -> Option<Vec<LinkId>> {
        if node == root {
            return Some(Vec::new());
        }
        self.up(node).find_map(|link| {
            // Only links to layers up to the root's can lead to the root.
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

/// Displays a node's name.
#[derive(Clone, Copy, Debug)]
pub struct NodeName<'a> {
    topology: &'a Topology,
    node: NodeId,
}

impl fmt::Display for NodeName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.topology.names {
            Names::Given(names, _) => f.pad(&names[self.node.index()]),
            Names::Numbered => {
                let layer = self.topology.layer_of(self.node);
                let at = self.node.0 - self.topology.layer_range(layer).start;
                f.pad(&format!("{}-{at}", self.topology.kind(layer)))
            }
        }
    }
}
