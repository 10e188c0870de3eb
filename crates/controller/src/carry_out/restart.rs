//! Notices switches that restarted.
//!
//! # Problem
//!
//! A switch that restarts may lose its queues. A comparison of the whole state of all switches is
//! expensive, and takes place only in some intervals.
//!
//! # Approach
//!
//! In each interval, the controller asks each switch for the text that identifies its present run
//! ([`SwitchDriver::run_id`](crate::southbound::SwitchDriver::run_id)). If the text has changed,
//! the switch is out of date, so the controller reads and repairs it in the same interval. Not all
//! drivers can tell one run from another.

use std::sync::Arc;

use penstock_fabric::topology::NodeId;

use super::answer::{Said, within};
use super::tasks::Tasks;
use super::{Crew, Trouble};

impl Crew {
    /// Marks switches as out of date that restarted since the last call or repair, or that do not
    /// answer. Returns these switches.
    pub async fn notice_restarts(&mut self) -> Vec<Trouble> {
        let mut tasks = Tasks::default();
        let limit = self.limit;
        let up_to_date = |node: &NodeId| !self.out_of_date.contains(node);
        for (node, switch) in self.switches.iter().filter(|(node, _)| up_to_date(node)) {
            let driver = Arc::clone(&switch.driver);
            tasks.spawn(*node, async move {
                let run = async { driver.run_id().await.map_err(Said::from) };
                within(limit, driver.name(), run, || None).await
            });
        }
        let (done, mut trouble) = tasks.all().await;
        self.note_silent(&trouble);
        for (node, run) in done {
            if self.runs.note(node, run) {
                let name = self.switches.get(&node).map_or("", |switch| switch.driver.name());
                let problem = format!("switch {name}: restarted, so its state is read again");
                trouble.push(Trouble { node, problem, refused: false });
            }
        }
        self.out_of_date.extend(trouble.iter().map(|t| t.node));
        trouble
    }
}
