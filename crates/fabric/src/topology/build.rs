//! Lays a tree's parts out in memory, by layer and by parent.

use super::{Names, Topology, number};

/// Nodes in the order of their layers, and links between them in any order.
#[derive(Debug)]
pub(super) struct Parts {
    /// How many nodes each layer has, servers first.
    pub(super) layers: Vec<u32>,
    /// By server.
    pub(super) slots: Vec<u32>,
    /// Child, parent and rate.
    pub(super) links: Vec<(u32, u32, u64)>,
    pub(super) names: Names,
}

/// The topology of parts that have been checked.
pub(super) fn build(mut parts: Parts) -> Topology {
    parts.links.sort_unstable_by_key(|(child, parent, _)| (*parent, *child));
    let layer_end: Vec<u32> = parts
        .layers
        .iter()
        .scan(0, |end, count| {
            *end += *count;
            Some(*end)
        })
        .collect();
    let nodes = layer_end.last().copied().unwrap_or(0) as usize;
    let child: Vec<u32> = parts.links.iter().map(|link| link.0).collect();
    let parent: Vec<u32> = parts.links.iter().map(|link| link.1).collect();
    let rate = parts.links.iter().map(|link| link.2).collect();
    let first_down = starts(nodes, &parent);
    let first_up = starts(nodes, &child);
    let mut next = first_up.clone();
    let mut up = vec![0; child.len()];
    for (link, child) in child.iter().enumerate() {
        let place = &mut next[*child as usize];
        up[*place as usize] = number(link);
        *place += 1;
    }
    let (slots, names) = (parts.slots, parts.names);
    Topology { layer_end, slots, child, parent, rate, first_down, first_up, up, names }
}

/// Where each node's links begin when they are sorted by it, and where the last one's end.
fn starts(nodes: usize, of: &[u32]) -> Vec<u32> {
    let mut starts = vec![0_u32; nodes + 1];
    for node in of {
        starts[*node as usize + 1] += 1;
    }
    for at in 0..nodes {
        starts[at + 1] += starts[at];
    }
    starts
}
