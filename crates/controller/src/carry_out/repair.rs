//! Reads and repairs the state of switches and hosts that are out of date.
//!
//! # Approach
//!
//! The controller reads a switch, computes the changes that the switch still needs, and sends them.
//! Hosts get their whole plans. All requests run at once. A switch that did not answer before does
//! not delay the repair of the others ([`super::silent`]).

use std::collections::BTreeSet;
use std::sync::Arc;

use penstock_fabric::topology::NodeId;

use super::Crew;
use super::answer::within;
use super::tasks::Tasks;
use super::trouble::{Mended, Trouble};
use crate::Stamp;
use crate::fabric_state::Fabric;
use crate::southbound::{Survey, SwitchDriver, survey};

/// Changes with which a switch was repaired, as its driver describes them, and the answer of the
/// switch before the repair.
pub(super) struct Repair {
    words: Vec<String>,
    survey: Survey,
    /// Run of the switch before the repair ([`SwitchDriver::run_id`]).
    run: Option<String>,
}

impl Crew {
    /// Returns true if [`Crew::mend`] has something to do.
    #[must_use]
    pub fn needs_mending(&self) -> bool {
        !self.out_of_date.is_empty() || self.moving().next().is_some()
    }

    /// Begins to read and repair the state of switches that are out of date, without the switches
    /// that do not answer.
    pub(super) fn begin_mending(&mut self, stamp: Stamp) -> Tasks<Repair> {
        let (limit, silent) = (self.limit, self.silent_switches());
        self.silent.probe(silent, limit);
        let nodes: Vec<NodeId> = self.out_of_date.iter().copied().collect();
        self.repair(nodes.into_iter().filter(|node| !self.silent.contains(*node)), stamp)
    }

    /// Returns the drivers of the switches that are out of date and did not answer.
    fn silent_switches(&self) -> Vec<(NodeId, Arc<dyn SwitchDriver>)> {
        let silent = self.out_of_date.iter().filter(|node| self.silent.contains(**node));
        let silent = silent.filter(|node| !self.refusals.pause(**node));
        let driver = |node: &NodeId| Some((*node, Arc::clone(&self.switches.get(node)?.driver)));
        silent.filter_map(driver).collect()
    }

    fn repair(&self, nodes: impl Iterator<Item = NodeId>, stamp: Stamp) -> Tasks<Repair> {
        let mut tasks = Tasks::default();
        let limit = self.limit;
        for node in nodes.filter(|node| !self.refusals.pause(*node)) {
            let Some(switch) = self.switches.get(&node) else { continue };
            let (driver, wanted) = (Arc::clone(&switch.driver), self.wanted(switch));
            tasks.spawn(node, async move {
                let mended = async {
                    // If the switch restarts during the repair, its run differs from this one.
                    let run = driver.run_id().await?;
                    let survey = survey(&*driver, &wanted).await?;
                    let words = match survey.changes.is_empty() {
                        true => Vec::new(),
                        false => driver.words(&survey.changes).await.unwrap_or_default(),
                    };
                    driver.apply(stamp, &survey.changes).await?;
                    Ok(Repair { words, survey, run })
                };
                within(limit, driver.name(), mended, || driver.patience()).await
            });
        }
        tasks
    }

    /// Waits for the repair of switches, and repairs the silent switches that answer again.
    /// Unreachable switches stay out of date. Returns the repaired switches with the changes, and
    /// the failed switches.
    pub(super) async fn end_mending(&mut self, tasks: Tasks<Repair>, stamp: Stamp) -> Mended {
        let limit = self.limit;
        let (answering, (mut done, mut failed)) =
            tokio::join!(self.silent.answering(limit), tasks.all());
        if !answering.is_empty() {
            let (more, failures) = self.repair(answering.into_iter(), stamp).all().await;
            done.extend(more);
            failed.extend(failures);
        }
        let (mut mended, mut answers) = (Vec::new(), Vec::new());
        for (node, repair) in done {
            self.out_of_date.remove(&node);
            self.runs.note(node, repair.run);
            mended.push((node, repair.words));
            answers.push((node, repair.survey));
        }
        self.note_answers(answers);
        self.note_silent(&failed);
        failed.iter().filter(|t| t.refused).for_each(|t| self.refusals.refused(t.node));
        (mended, failed)
    }

    /// Sends their whole plans to the hosts that are out of date and connected. Returns the failed
    /// hosts.
    pub(super) async fn mend_hosts(&mut self, fabric: &Fabric, stamp: Stamp) -> Vec<Trouble> {
        let hosts = self.out_of_date.iter().copied();
        let hosts: BTreeSet<NodeId> = hosts
            .filter(|node| !self.switches.contains_key(node) && self.connected(fabric, *node))
            .collect();
        let trouble = self.tell(fabric, &hosts, stamp).await;
        for node in hosts.iter().filter(|node| trouble.iter().all(|t| t.node != **node)) {
            self.out_of_date.remove(node);
        }
        trouble
    }

    /// Notes the switches that did not answer.
    pub(super) fn note_silent(&mut self, troubles: &[Trouble]) {
        let silent = troubles.iter().filter(|t| !t.refused && self.switches.contains_key(&t.node));
        let silent: Vec<NodeId> = silent.map(|trouble| trouble.node).collect();
        silent.into_iter().for_each(|node| self.silent.add(node));
    }

    /// Notes how many queues of each switch plans may use, and which ports its driver leaves out.
    pub(super) fn note_answers(&mut self, answers: Vec<(NodeId, Survey)>) {
        for (node, Survey { queues, left_out, .. }) in answers {
            self.queues.insert(node, queues);
            if let Some(switch) = self.switches.get(&node) {
                self.left_out.note(node, left_out, |name| switch.has(name));
            }
        }
    }

    /// Compares the state of all switches with the last state that the controller sent. A switch
    /// counts as out of date if its state differs from the state that the controller sent.
    pub async fn verify(&mut self) -> Vec<Trouble> {
        let known: BTreeSet<NodeId> = self.switches.keys().copied().collect();
        let trouble = self.compare(&known.difference(&self.out_of_date).copied().collect()).await;
        self.out_of_date.extend(trouble.iter().map(|t| t.node));
        trouble
    }
}
