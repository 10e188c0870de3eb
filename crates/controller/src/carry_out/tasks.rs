//! Sends requests to several switches and hosts at once.

use std::collections::HashMap;

use penstock_fabric::topology::NodeId;
use tokio::task::JoinSet;

use super::answer::Said;
use super::trouble::Trouble;

/// Number of new requests after which requests begin.
const NEW_MAX: usize = 16;

/// Requests that run for several switches and hosts at once.
pub(super) struct Tasks<T> {
    set: JoinSet<Result<T, Said>>,
    nodes: HashMap<tokio::task::Id, NodeId>,
}

impl<T> Default for Tasks<T> {
    fn default() -> Self {
        Self { set: JoinSet::new(), nodes: HashMap::new() }
    }
}

impl<T: Send + 'static> Tasks<T> {
    pub(super) fn spawn(
        &mut self,
        node: NodeId,
        task: impl Future<Output = Result<T, Said>> + Send + 'static,
    ) {
        self.nodes.insert(self.set.spawn(task).id(), node);
    }

    /// Lets requests begin each time a number of them is new, so that the plans of ten thousand
    /// hosts are not in memory at the same time.
    pub(super) async fn begin_some(&mut self) {
        if self.nodes.len().is_multiple_of(NEW_MAX) {
            tokio::task::yield_now().await;
        }
    }

    /// Waits for the answers of all switches and hosts. If the task for a switch or host panicked,
    /// the switch or host counts as failed.
    pub(super) async fn all(mut self) -> (Vec<(NodeId, T)>, Vec<Trouble>) {
        let (mut done, mut trouble) = (Vec::new(), Vec::new());
        while let Some(next) = self.set.join_next_with_id().await {
            let (id, result) = match next {
                Ok((id, result)) => (id, result),
                Err(error) => (error.id(), Err(Said::failed(&format!("internal error: {error}")))),
            };
            let Some(node) = self.nodes.get(&id).copied() else { continue };
            match result {
                Ok(value) => done.push((node, value)),
                Err(Said { problem, refused }) => trouble.push(Trouble { node, problem, refused }),
            }
        }
        done.sort_by_key(|(node, _)| *node);
        trouble.sort_by_key(|t| t.node);
        (done, trouble)
    }
}
