//! The core switch of a fabric as a Penstock process, which an experiment reboots and changes.
//!
//! # Approach
//!
//! The process has a port with queues for each rack's switch. The lab reads the state of the
//! switch's data path through the switch's own API, with the driver of the controller. So the lab
//! does not depend on what a controller says about the switch.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use penstock_controller::southbound::penstock::{Address, PenstockSwitch};
use penstock_controller::southbound::{
    Change, PortInfo, PortState, SwitchDriver as _, SwitchState,
};
use penstock_units::BitsPerSecond;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use super::plan::Plan;
use super::process::{Process, lock};
use crate::penstock::penstock;
use penstock_guest::bed::Guard;
use penstock_guest::bed::process::{ask, await_some};
use penstock_guest::clock;

/// Name of the switch in the topology.
const NAME: &str = "core-0";
/// Bytes that may wait in each queue of a port, about as many as in a queue of a bridge.
const QUEUE_BYTES: u32 = 131_072;
/// Maximum time until a switch that was started answers.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Place of the switch on this machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct CorePlace<'a> {
    /// Directory of the switch, which must exist.
    pub dir: &'a Path,
    /// Network namespace with the switch's interfaces.
    pub netns: &'a str,
    /// CPU of the worker.
    pub worker: u32,
    /// First and last VLAN that the switch carries.
    pub vlans: [usize; 2],
}

/// A core switch that is a Penstock process.
#[derive(Debug)]
pub(super) struct CoreSwitch {
    process: Mutex<Process>,
    dir: PathBuf,
    driver: PenstockSwitch,
    runtime: Runtime,
    /// Unmapped frames that the process counted before its last kill. The frames between the last
    /// reading of its counters and the kill are missing.
    unmapped: Mutex<u64>,
}

/// Returns the name of the core switch's port to a rack, which is also the name of its interface.
fn port_to(rack: usize) -> String {
    format!("r{rack}")
}

/// Returns the text of the switch's configuration file.
pub(super) fn text(plan: &Plan, place: CorePlace<'_>) -> String {
    let CorePlace { dir, netns, worker, vlans: [first, last] } = place;
    let (dir, link, queues) = (dir.display(), plan.link / 1_000_000, plan.queues);
    let mut text = format!(
        "[host]\nname = \"{NAME}\"\nsocket = \"{dir}/host.sock\"\nstate_dir = \"{dir}/state\"\n\n\
         [worker]\ncores = [{worker}]\nidle_backoff_us = 1000\nidle_turns = 1\n\n\
         [switch]\nname = \"{NAME}\"\n\n\
         [[tenant]]\nname = \"fabric\"\nvlans = [\"{first}-{last}\"]\n\n"
    );
    for rack in 0..plan.racks.len() {
        let port = port_to(rack);
        let _ = write!(
            text,
            "[[port]]\nname = \"{port}\"\npacket.interface = \"{port}\"\n\
             packet.netns = \"{netns}\"\npacket.offloads = false\ntrunk = [\"{first}-{last}\"]\n\
             link = \"{link}M\"\negress = \"wfq\"\nwfq = {{ queues = {queues} }}\n\
             queue = {{ bytes = {QUEUE_BYTES} }}\n\n"
        );
    }
    text
}

/// Returns the state of the core switch's ports that the controller decided, from the controller's
/// answer to `bindings`.
fn decided(bindings: &Value) -> BTreeMap<String, PortState> {
    let number = |value: &Value| value.as_u64();
    let one = |port: &Value| {
        let rack = port["to"].as_str()?.strip_prefix("rack-")?.parse().ok()?;
        let mut state = PortState::default();
        for queue in port["queues"].as_array()? {
            state.weights.push(u32::try_from(number(&queue["weight"])?).ok()?);
            if let Some(dscp) = number(&queue["dscp"]) {
                let place = u8::try_from(number(&queue["queue"])?).ok()?;
                state.map.insert(u8::try_from(dscp).ok()?, place);
            }
        }
        Some((port_to(rack), state.canonical()))
    };
    let all = bindings.as_array().into_iter().flatten();
    all.filter(|port| port["node"] == NAME).filter_map(one).collect()
}

/// Returns what another program does to a port with the state `is`: other weights, and the code
/// point of one tenant in the queue of another tenant. No code point loses its queue.
fn foreign(port: &str, is: &PortState) -> Vec<Change> {
    let mut weights = vec![1; is.weights.len().max(2)];
    weights[0] = if is.weights.first() == Some(&1) { 50 } else { 1 };
    let mut changes = vec![Change::Weigh { port: port.to_owned(), weights }];
    let mut map = is.map.iter();
    if let (Some((dscp, _)), Some((_, queue))) = (map.next(), map.next()) {
        let (port, dscp, queue) = (port.to_owned(), *dscp, *queue);
        changes.push(Change::Map { port, dscp, queue });
    }
    changes
}

impl CoreSwitch {
    /// Starts the switch, and waits until it answers.
    pub fn start(plan: &Plan, place: CorePlace<'_>, guard: &Guard) -> anyhow::Result<Self> {
        let (dir, file) = (place.dir.to_owned(), place.dir.join("host.toml"));
        std::fs::write(&file, text(plan, place))?;
        let file = file.to_string_lossy().into_owned();
        let arguments = ["host", "run", "--config", &file].map(str::to_owned).to_vec();
        let rate = BitsPerSecond(plan.link);
        let port = |rack: usize| PortInfo { name: port_to(rack), rate };
        let ports: Vec<PortInfo> = (0..plan.racks.len()).map(port).collect();
        let (queues, address) =
            (u8::try_from(plan.queues)?, Address::Socket(dir.join("host.sock")));
        let driver = PenstockSwitch::new(NAME, &ports, queues, address)?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let process = Mutex::new(Process::start(NAME, &dir, arguments, guard)?);
        let switch = Self { process, dir, driver, runtime, unmapped: Mutex::default() };
        switch.await_answer()?;
        Ok(switch)
    }

    /// Returns an error if the switch has ended by itself.
    pub fn check(&self) -> anyhow::Result<()> {
        lock(&self.process).check()
    }

    /// Reads the state of the data path.
    pub fn state(&self) -> anyhow::Result<SwitchState> {
        self.runtime.block_on(self.driver.read_back()).context("reading the core switch")
    }

    /// Returns true if the data path has what a controller decided, by its answer to `bindings`.
    pub fn has(&self, bindings: &Value) -> bool {
        let decided = decided(bindings);
        !decided.is_empty() && self.state().is_ok_and(|state| state.ports == decided)
    }

    /// Reboots the switch: kills its process, waits for the time `off`, and starts the process
    /// again. All frames in its queues are lost. If `forgets` is true, the switch also loses its
    /// weights and maps. Returns the time of the first answer.
    pub fn reboot(&self, off: Duration, forgets: bool) -> anyhow::Result<Instant> {
        let counted = self.present_unmapped()?;
        lock(&self.process).kill()?;
        *lock(&self.unmapped) += counted;
        if forgets {
            std::fs::remove_dir_all(self.dir.join("state")).context("removing the state")?;
        }
        clock::wait_readable(None, off);
        lock(&self.process).start_again()?;
        self.await_answer()?;
        Ok(clock::now())
    }

    fn await_answer(&self) -> anyhow::Result<()> {
        await_some("an answer of the core switch", START_LIMIT, || {
            self.check()?;
            Ok(self.state().ok().map(drop))
        })
    }

    /// Changes a port through the switch's API without the knowledge of the controllers. `nth`
    /// selects the port. Returns the name of the port.
    pub fn change_foreign(&self, nth: usize) -> anyhow::Result<String> {
        let change = || -> anyhow::Result<String> {
            let state = self.state()?;
            let many = state.ports.len().max(1);
            let (port, is) = state.ports.iter().nth(nth % many).context("no ports")?;
            let changes = foreign(port, is);
            let changed = self.driver.apply(state.stamp, &changes);
            self.runtime.block_on(changed).context("changing a port")?;
            Ok(port.clone())
        };
        // If a plan ran meanwhile, the switch refuses the older stamp.
        let mut last = change();
        for _ in 0..4 {
            if last.is_ok() {
                break;
            }
            last = change();
        }
        last
    }

    /// Returns the number of frames that met an unmapped code point since the first start, on all
    /// ports.
    pub fn unmapped(&self) -> anyhow::Result<u64> {
        let before = *lock(&self.unmapped);
        Ok(before + self.present_unmapped()?)
    }

    fn present_unmapped(&self) -> anyhow::Result<u64> {
        unmapped(&self.dir.join("host.sock"))
    }
}

/// Returns the number of frames that met an unmapped code point on all ports of the Penstock
/// process with the socket `socket`, since the start of the process.
pub(super) fn unmapped(socket: &Path) -> anyhow::Result<u64> {
    let mut command = penstock()?;
    let said = ask(command.arg("--socket").arg(socket).args(["stats", "--json"]))?;
    let stats: Value = serde_json::from_str(&said).context("reading the counters of queues")?;
    let ports = stats["ports"].as_array().into_iter().flatten();
    let queues = ports.flat_map(|port| port["queues"].as_array().into_iter().flatten());
    Ok(queues.filter_map(|queue| queue["unmapped"].as_u64()).sum())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::guarantees::plan;
    use super::*;

    #[test]
    fn the_file_of_the_switch_is_valid() {
        let place = CorePlace {
            dir: Path::new("/tmp/core"),
            netns: "pf-core",
            worker: 0,
            vlans: [100, 109],
        };
        let read = penstock_control::config::parse(&text(&plan(&[8; 10]), place), "host.toml");
        let config = read.unwrap();
        assert_eq!(config.ports.len(), 2);
        assert!(config.switch.is_some() && config.fabric.is_none());
    }

    fn queue(queue: u64, weight: u64, dscp: Option<u64>) -> Value {
        json!({ "queue": queue, "weight": weight, "dscp": dscp })
    }

    fn bindings() -> Value {
        json!([
            { "node": "rack-0", "to": "core-0", "queues": [queue(0, 9, None)] },
            { "node": "core-0", "to": "rack-1", "queues": [
                queue(0, 30, None), queue(1, 0, None), queue(2, 70, Some(9)), queue(3, 0, None)
            ] },
        ])
    }

    #[test]
    fn what_was_decided_for_the_core_has_the_form_of_a_switchs_state() {
        let map = BTreeMap::from([(9, 2)]);
        let state = PortState { weights: vec![30, 0, 70], map };
        assert_eq!(decided(&bindings()), BTreeMap::from([("r1".to_owned(), state)]));
        assert!(decided(&json!([])).is_empty());
    }

    #[test]
    fn a_foreign_change_differs_and_leaves_each_code_point_a_queue() {
        for first in [1, 50] {
            let is =
                PortState { weights: vec![first, 1, 1], map: BTreeMap::from([(9, 1), (10, 2)]) };
            let changes = foreign("r0", &is);
            let [Change::Weigh { weights, .. }, Change::Map { dscp, queue, .. }] = &changes[..]
            else {
                panic!("{changes:?}");
            };
            assert!(*weights != is.weights && weights.iter().all(|weight| *weight > 0));
            assert_eq!((*dscp, *queue), (9, 2));
        }
        assert_eq!(foreign("r0", &PortState::default()).len(), 1);
    }
}
