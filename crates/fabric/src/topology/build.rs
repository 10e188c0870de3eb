//! Builds the arrays of a topology, ordered by layer and by parent.

use std::sync::Arc;

use super::{Names, Topology, number};

/// Parts of a topology: nodes ordered by layer, and links between the nodes in any order.
#[derive(Debug)]
pub(super) struct Parts {
    /// Number of nodes in each layer, starting with the servers.
    pub(super) layers: Vec<u32>,
    /// Number of slots of each server.
    pub(super) slots: Vec<u32>,
    /// Child, parent and rate in bit/s of each link.
    pub(super) links: Vec<(u32, u32, u64)>,
    pub(super) names: Names,
}

/// Builds a topology from validated parts.
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
    let (slots, names) = (parts.slots, Arc::new(parts.names));
    Topology { layer_end, slots, child, parent, rate, first_down, first_up, up, names }
}

/// Returns, for each node, the index of the node's first link in a list of links that is sorted by
/// node. The element `of[i]` is the index of the node to which link i belongs. The last entry of
/// the returned list is the number of links.
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
