//! Sends requests to several switches and hosts at once.

use penstock_fabric::topology::NodeId;
use tokio::task::JoinHandle;

use super::answer::Said;
use super::trouble::Trouble;

/// Number of new requests after which requests begin.
const NEW_MAX: usize = 16;

/// Requests that run for several switches and hosts at once. A request that is not finished ends
/// when the list is dropped.
pub(super) struct Tasks<T>(Vec<(NodeId, Running<Result<T, Said>>)>);

/// Task that ends when it is dropped.
struct Running<T>(JoinHandle<T>);

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<T> Default for Tasks<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Send + 'static> Tasks<T> {
    pub(super) fn spawn(
        &mut self,
        node: NodeId,
        task: impl Future<Output = Result<T, Said>> + Send + 'static,
    ) {
        self.0.push((node, Running(tokio::spawn(task))));
    }

    /// Lets requests begin each time a number of them is new, so that the plans of ten thousand
    /// hosts are not in memory at the same time.
    pub(super) async fn begin_some(&mut self) {
        if self.0.len().is_multiple_of(NEW_MAX) {
            tokio::task::yield_now().await;
        }
    }

    /// Waits for the answers of all switches and hosts. If the task for a switch or host panicked,
    /// the switch or host counts as failed.
    pub(super) async fn all(self) -> (Vec<(NodeId, T)>, Vec<Trouble>) {
        let (mut done, mut trouble) = (Vec::new(), Vec::new());
        for (node, mut running) in self.0 {
            let result = match (&mut running.0).await {
                Ok(result) => result,
                Err(error) => Err(Said::failed(&format!("internal error: {error}"))),
            };
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

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn answers_are_in_the_order_of_the_nodes_and_a_panic_is_a_failure() {
        let mut tasks = Tasks::default();
        for number in [2, 0, 1] {
            tasks.spawn(NodeId(number), async move {
                assert!(number != 1, "a defect");
                Ok(number)
            });
        }
        let (done, trouble) = tasks.all().await;
        assert_eq!(done, [(NodeId(0), 0), (NodeId(2), 2)]);
        assert_eq!((trouble.len(), trouble[0].node), (1, NodeId(1)));
        assert!(trouble[0].problem.starts_with("internal error: "), "{}", trouble[0].problem);
    }

    #[tokio::test]
    async fn a_dropped_request_ends() {
        let (held, ended) = oneshot::channel::<()>();
        let mut tasks = Tasks::default();
        tasks.spawn(NodeId(0), async move {
            let _held = held;
            std::future::pending::<Result<(), Said>>().await
        });
        drop(tasks);
        assert!(ended.await.is_err(), "the request still runs");
    }
}
