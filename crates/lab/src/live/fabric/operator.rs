//! Requests of an operator to the controller of a live fabric.

use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::Value;

use crate::penstock::penstock;
use penstock_guest::bed::process::ask;

/// An operator of the controller that listens on a socket. Several threads may send requests at the
/// same time.
#[derive(Debug, Clone)]
pub(super) struct Operator {
    socket: PathBuf,
}

impl Operator {
    pub fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// Runs `penstock controller` with the arguments `words`, and returns the controller's answer.
    /// The controller answers when it has carried out the request, and not while it carries out a
    /// plan.
    pub fn ask(&self, words: &[&str]) -> anyhow::Result<Value> {
        let mut command = penstock()?;
        command.arg("--socket").arg(&self.socket).arg("controller");
        let said = ask(command.args(words).arg("--json"))?;
        let what = || format!("reading the controller's answer to `{}`", words.join(" "));
        serde_json::from_str(&said).with_context(what)
    }
}
