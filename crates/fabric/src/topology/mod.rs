//! Multi-rooted trees: servers, switches in layers above them, and links between neighbours.
//!
//! **Problem.** A tenant's traffic stays inside one tree, so that what its links must carry is
//! known (QShare §II-A); a datacenter has several trees over the same servers, and a hundred
//! thousand servers must fit beside each other in memory.
//!
//! **Source.** QShare §IV-A ("a layer-i TR option is a tree rooted at layer i; its leaves are all
//! servers reachable from the root using only downward paths"); Al-Fares et al., SIGCOMM 2008, for
//! fat-trees.
//!
//! **Quantities.** Layer 0 is servers, layer 1 the switches over them, and so on. A link joins a
//! *child* to a *parent* one layer above; its rate is bits per second *in each direction*, up and
//! down. A *slot* is room for one VM.
//!
//! **Rule.** Whatever node is taken as root, there is one way down to each server below it;
//! [`spec`] refuses a topology where that is not so. Nodes are numbered by layer, links by parent,
//! so that a node's links down are neighbours in memory.
//!
//! **Cost.** 32 bytes a link and 16 a node; a fat-tree of k = 74 (101,306 servers) takes 11 MB.

use core::fmt;
use core::ops::Range;

use penstock_units::BitsPerSecond;

pub mod build;
pub mod regular;
pub mod spec;

pub use regular::{Regular, RegularError, Tier};
pub use spec::{LinkSpec, NodeSpec, SpecError, TopologySpec};

/// Most layers of switches.
pub const TIERS_MAX: usize = 8;
/// Most nodes, and most links.
pub const ELEMENTS_MAX: usize = 1 << 26;
/// Most slots of a server.
pub const SLOTS_MAX: u32 = 1 << 20;

/// A server or a switch; servers come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// A link between a node and one a layer above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

impl NodeId {
    /// As an index into a table.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl LinkId {
    /// As an index into a table.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// An index as the number of an element.
///
/// # Panics
/// Above [`ELEMENTS_MAX`], which no topology has.
pub(crate) fn number(index: usize) -> u32 {
    u32::try_from(index).expect("a topology has fewer than 2^26 elements")
}

/// A validated multi-rooted tree. Immutable; what is reserved on it is [`crate::ledger`]'s.
#[derive(Clone, Debug)]
pub struct Topology {
    /// Ends of the layers' node numbers.
    layer_end: Vec<u32>,
    /// By server.
    slots: Vec<u32>,
    /// By link.
    child: Vec<u32>,
    parent: Vec<u32>,
    rate: Vec<u64>,
    /// By node, and one more: its first link down.
    first_down: Vec<u32>,
    /// By node, and one more: where its links up begin in `up`.
    first_up: Vec<u32>,
    up: Vec<u32>,
    names: Names,
}

/// What nodes are called.
#[derive(Clone, Debug)]
pub(crate) enum Names {
    /// By layer and place in it.
    Numbered,
    /// By node, and the nodes in the order of their names.
    Given(Vec<Box<str>>, Vec<u32>),
}

impl Names {
    /// By node. A tree of ten thousand nodes is asked for each of them once an interval, so the
    /// order of names is kept.
    pub(crate) fn given(names: Vec<Box<str>>) -> Self {
        let mut order: Vec<u32> = (0..names.len()).map(number).collect();
        order.sort_by(|a, b| names[*a as usize].cmp(&names[*b as usize]));
        Self::Given(names, order)
    }
}

/// Names of numbered nodes by layer, in a tree of three tiers.
const KINDS: [&str; 4] = ["server", "rack", "pod-switch", "core"];

impl Topology {
    /// How many layers there are, servers included.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.layer_end.len()
    }

    /// The nodes of a layer.
    ///
    /// # Panics
    /// Where there is no such layer.
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

    /// How many servers there are; they are the nodes from 0.
    #[must_use]
    pub fn servers(&self) -> usize {
        self.slots.len()
    }

    /// How many servers and switches there are.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.first_down.len() - 1
    }

    /// How many links there are.
    #[must_use]
    pub fn links(&self) -> usize {
        self.child.len()
    }

    /// Whether a node is a server.
    #[must_use]
    pub fn is_server(&self, node: NodeId) -> bool {
        node.index() < self.slots.len()
    }

    /// Slots of a server; a switch has none.
    #[must_use]
    pub fn slots(&self, node: NodeId) -> u32 {
        self.slots.get(node.index()).copied().unwrap_or(0)
    }

    /// Slots of all servers.
    #[must_use]
    pub fn slots_all(&self) -> u64 {
        self.slots.iter().map(|slots| u64::from(*slots)).sum()
    }

    /// The lower end of a link.
    #[must_use]
    pub fn child(&self, link: LinkId) -> NodeId {
        NodeId(self.child[link.index()])
    }

    /// The upper end of a link.
    #[must_use]
    pub fn parent(&self, link: LinkId) -> NodeId {
        NodeId(self.parent[link.index()])
    }

    /// A link's rate in each direction.
    #[must_use]
    pub fn rate(&self, link: LinkId) -> BitsPerSecond {
        BitsPerSecond(self.rate[link.index()])
    }

    /// The layer of a link: that of its upper end, from 1.
    #[must_use]
    pub fn link_layer(&self, link: LinkId) -> usize {
        self.layer_of(self.parent(link))
    }

    /// A node's links down; none of a server.
    pub fn down(&self, node: NodeId) -> impl DoubleEndedIterator<Item = LinkId> + Clone + use<> {
        self.down_range(node).map(LinkId)
    }

    pub(crate) fn down_range(&self, node: NodeId) -> Range<u32> {
        self.first_down[node.index()]..self.first_down[node.index() + 1]
    }

    /// A node's links up; none of the highest layer's.
    pub fn up(&self, node: NodeId) -> impl Iterator<Item = LinkId> + Clone + '_ {
        let range = self.first_up[node.index()] as usize..self.first_up[node.index() + 1] as usize;
        self.up[range].iter().map(|link| LinkId(*link))
    }

    /// A node's rate down over its rate up: 4 is 4:1. `None` for the highest layer.
    #[must_use]
    pub fn oversubscription(&self, node: NodeId) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "a ratio to be shown")]
        let sum = |links: &mut dyn Iterator<Item = LinkId>| -> f64 {
            links.map(|link| self.rate(link).0 as f64).sum()
        };
        let up = sum(&mut self.up(node));
        (up > 0.0 && !self.is_server(node)).then(|| sum(&mut self.down(node)) / up)
    }

    /// What a node is called.
    #[must_use]
    pub fn name(&self, node: NodeId) -> NodeName<'_> {
        NodeName { topology: self, node }
    }

    /// The node of a name.
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

    /// All nodes that can be reached from `root` going down, itself first.
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

    /// The links from `node` up to `root`, lowest first; `None` if it is not below it.
    #[must_use]
    pub fn path_up(&self, node: NodeId, root: NodeId) -> Option<Vec<LinkId>> {
        if node == root {
            return Some(Vec::new());
        }
        self.up(node).find_map(|link| {
            // Only the layers below the root can lead there.
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

/// A node's name, to be shown.
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
