//! Requests of an operator to the controllers of a live fabric.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use anyhow::Context as _;
use serde_json::Value;

use crate::penstock::penstock;
use penstock_guest::bed::process::ask;

/// An operator of the controllers, who sends requests to the controller that led last. Several
/// threads may send requests at the same time. Clones know the same leader.
#[derive(Debug, Clone)]
pub(super) struct Operator {
    /// Socket of each controller.
    sockets: Arc<[PathBuf]>,
    /// Index of the controller that led last.
    leader: Arc<AtomicUsize>,
}

impl Operator {
    /// Creates an operator of the controllers with the sockets `sockets`. The first controller
    /// counts as the leader until [`Self::find_leader`] finds another leader.
    pub fn new(sockets: Vec<PathBuf>) -> Self {
        Self { sockets: sockets.into(), leader: Arc::default() }
    }

    /// Returns the number of controllers.
    pub fn controllers(&self) -> usize {
        self.sockets.len()
    }

    /// Runs `penstock controller` with the arguments `words`, and returns the leader's answer. The
    /// leader answers when it has carried out the request, and not while it carries out a plan.
    pub fn ask(&self, words: &[&str]) -> anyhow::Result<Value> {
        self.ask_one(self.leader.load(Relaxed), words)
    }

    /// Looks for a controller that leads, and sends requests to this controller from now on.
    /// Returns the controller's index and status. `None` if no controller leads.
    pub fn find_leader(&self) -> Option<(usize, Value)> {
        let leads = |nth: usize| {
            let status = self.ask_one(nth, &["status"]).ok()?;
            (status["leads"] == true).then_some((nth, status))
        };
        let last = self.leader.load(Relaxed);
        let mut others = (0..self.sockets.len()).filter(|nth| *nth != last);
        let found = leads(last).or_else(|| others.find_map(leads))?;
        self.leader.store(found.0, Relaxed);
        Some(found)
    }

    fn ask_one(&self, nth: usize, words: &[&str]) -> anyhow::Result<Value> {
        let socket = self.sockets.get(nth).context("no such controller")?;
        let mut command = penstock()?;
        command.arg("--socket").arg(socket).arg("controller");
        let said = ask(command.args(words).arg("--json"))?;
        let what = || format!("reading the controller's answer to `{}`", words.join(" "));
        serde_json::from_str(&said).with_context(what)
    }
}
