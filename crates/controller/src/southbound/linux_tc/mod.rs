//! Configures Linux switches with `tc`, with the qdisc HTB on each port.
//!
//! # Problem
//!
//! Hypervisors and whitebox switches forward frames with the Linux kernel. Linux's qdiscs can
//! implement queue weights and maps if they are configured correctly and in the right order.
//!
//! # Approach
//!
//! Each port has the qdisc HTB with a class for each queue. The module `plan` computes the rates
//! and quanta of the classes from queue weights. A BPF program maps code points to classes
//! (`program`). The driver first reads the switch's state, and then sends only the differences in a
//! single `tc -batch`. The order of the lines ensures that the map never selects a class that does
//! not exist. The kernel replaces the map atomically.
//!
//! The driver uses HTB because HTB also limits the port to its rate, which ETS and DRR do not.
//! Because HTB limits the port's rate, frames wait in the qdisc's own queues and not at the next
//! hop. HTB also has priorities for spare bandwidth. A queue of weight 0 has the lower priority, so
//! it gets the bandwidth that other queues do not use.
//!
//! # Stamp
//!
//! The driver stores the stamp in the alias of `lo`, as `penstock EPOCH.GENERATION`. Each network
//! namespace has exactly one interface `lo`. The alias of `lo` survives a restart of the
//! controller. When the machine restarts, the alias and the qdiscs disappear together.
//! [`Runner::hold`] excludes other controllers between reading and writing the stamp.
//!
//! # Other configurations
//!
//! The driver does not change other configurations of a Linux switch. The driver refuses the switch
//! in the following cases:
//!
//! - A port has a root qdisc with a handle other than `0:` (the kernel's default) and `9e50:`.
//! - The driver's root qdisc has a filter that the driver did not set.
//! - The alias of `lo` has a text that the driver did not write.
//!
//! # Source
//!
//! The driver follows `tc-htb(8)`, `tc-bpf(8)` and Linux `net/sched/sch_htb.c`.

mod layout;
mod netns;
mod plan;
mod program;
mod read;
mod runner;
mod settings;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;

pub use netns::Netns;
pub use runner::{Hold, Run, RunError, Runner};
pub use settings::{Leaf, Settings};

use super::{
    Capabilities, Change, DriverError, ONE_STEP, PortInfo, PortState, QueueCounters, SwitchDriver,
    SwitchState, step,
};
use crate::Stamp;
use layout::{QUEUES_MAX, ROOT};
use read::{PortRead, Root};

/// First word of the alias that the driver gives to `lo`. After this word, the alias contains the
/// stamp.
const STAMP_WORD: &str = "penstock ";
/// Maximum length of an interface's name in bytes (`IFNAMSIZ` - 1).
const NAME_MAX: usize = 15;

#[derive(Debug)]
pub struct TcSwitch {
    name: String,
    ports: Vec<PortInfo>,
    settings: Settings,
    runner: Arc<dyn Runner>,
}

/// State that the driver has read from a switch.
struct SwitchReading {
    stamp: Stamp,
    /// State of each port, in the driver's order.
    ports: Vec<PortRead>,
}

impl TcSwitch {
    /// Creates a driver of the network interfaces `ports`. The driver runs `tc` and `ip` through
    /// `runner`.
    ///
    /// # Errors
    /// Returns [`DriverError::Beyond`] if a port's name is not a valid interface name, a rate is
    /// too low, or settings are out of range.
    pub fn new(
        name: &str,
        ports: &[PortInfo],
        settings: Settings,
        runner: Arc<dyn Runner>,
    ) -> Result<Self, DriverError> {
        let this = Self { name: name.to_owned(), ports: ports.to_vec(), settings, runner };
        if !(2..=QUEUES_MAX).contains(&settings.queues) || settings.quantum == 0 {
            let what = format!("{} queues, quantum {}", settings.queues, settings.quantum);
            let limit = format!(
                "the driver needs 2 to {QUEUES_MAX} queues and a quantum of at least 1 byte"
            );
            return Err(this.beyond(what, limit, "change the switch's settings"));
        }
        for PortInfo { name, rate } in ports {
            // Names become words in the lines of a batch.
            let plain = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
            if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(plain) {
                let limit = format!("a port's name has 1 to {NAME_MAX} letters, digits or . _ - @");
                let what = format!("port {name:?}");
                return Err(this.beyond(what, limit, "name an interface of the switch"));
            }
            let least = u64::from(settings.queues) * 2 * plan::RATE_LEAST;
            if rate.0 < least {
                let (what, limit) = (format!("{} bit/s", rate.0), format!("{least} bit/s or more"));
                return Err(this.beyond(format!("port {name}: {what}"), limit, "set its rate"));
            }
        }
        Ok(this)
    }

    fn beyond(&self, what: String, limit: String, remedy: &'static str) -> DriverError {
        let remedy = remedy.to_owned();
        DriverError::Beyond { switch: self.name.clone(), what, limit, remedy }
    }

    fn rubbish(&self, what: &str, problem: String) -> DriverError {
        DriverError::Rubbish { switch: self.name.clone(), what: what.to_owned(), problem }
    }

    fn can(&self) -> Capabilities {
        Capabilities {
            queues: self.settings.queues,
            classes: ONE_STEP,
            weights: (1, 100),
            remap: true,
            fixed_map: BTreeMap::new(),
            map_per_port: true,
        }
    }

    /// Runs a program. If the program fails, its output is the error's text.
    async fn ask(
        &self,
        program: &'static str,
        args: &str,
        stdin: &str,
    ) -> Result<String, DriverError> {
        let words = args.split(' ').map(str::to_owned).collect();
        let run = Run { program, args: words, stdin: stdin.to_owned() };
        let switch = self.name.clone();
        self.runner.run(&run).await.map_err(|error| match error {
            RunError::Unreachable(problem) => DriverError::Unreachable { switch, problem },
            RunError::TooLong(_) => self.rubbish(&format!("{program} {args}"), error.to_string()),
            RunError::Failed(problem) => {
                // `Command failed -:3` contains the number of the line, from 1.
                let number = problem.rsplit_once("Command failed -:").map(|(_, n)| n.trim());
                let line = number.and_then(|n| n.parse::<usize>().ok()?.checked_sub(1));
                let line = line.and_then(|n| stdin.lines().nth(n)).unwrap_or(args);
                DriverError::Refused { switch, change: format!("{program} {line}"), problem }
            }
        })
    }

    /// Reads the stamp from the alias of `lo`. If another configuration has set the alias, the
    /// error names the alias.
    async fn stamp(&self) -> Result<Stamp, DriverError> {
        #[derive(serde::Deserialize)]
        struct Link {
            #[serde(default)]
            ifalias: String,
        }
        let text = self.ask("ip", "-j link show dev lo", "").await?;
        let links: Vec<Link> = serde_json::from_str(&text)
            .map_err(|error| self.rubbish("the alias of lo", error.to_string()))?;
        let [Link { ifalias }] = links.as_slice() else {
            return Err(self.rubbish("the alias of lo", format!("{} interfaces", links.len())));
        };
        if ifalias.is_empty() {
            return Ok(Stamp::default());
        }
        let numbers = ifalias.strip_prefix(STAMP_WORD).and_then(|text| text.split_once('.'));
        let stamp = numbers.and_then(|(epoch, generation)| {
            Some(Stamp { epoch: epoch.parse().ok()?, generation: generation.parse().ok()? })
        });
        stamp.ok_or_else(|| {
            let what = format!("replacing lo's alias {ifalias:?} with the stamp");
            let limit = "the alias does not belong to Penstock".to_owned();
            self.beyond(what, limit, "remove the alias: ip link set dev lo alias \"\"")
        })
    }

    async fn see(&self) -> Result<SwitchReading, DriverError> {
        let stamp = self.stamp().await?;
        let text = self.ask("tc", "-j qdisc show", "").await?;
        let mut all = read::qdiscs(&text).map_err(|error| self.rubbish("its qdiscs", error))?;
        let mut ports = Vec::with_capacity(self.ports.len());
        for PortInfo { name, .. } in &self.ports {
            let Some(read) = all.remove(name) else {
                let limit = "the switch has no such interface".to_owned();
                return Err(self.beyond(format!("port {name}"), limit, "correct the port name"));
            };
            if let Root::Foreign(qdisc) = &read.root {
                let what = format!("the root qdisc {qdisc} of port {name}");
                let limit = "the qdisc does not belong to Penstock".to_owned();
                return Err(self.beyond(
                    what,
                    limit,
                    "run `tc qdisc del dev PORT root`, or leave the port out of the topology",
                ));
            }
            ports.push(read);
        }
        let mut ours: Vec<(&str, &mut PortRead)> = self
            .ports
            .iter()
            .map(|port| port.name.as_str())
            .zip(&mut ports)
            .filter(|(_, read)| read.root == Root::Ours)
            .collect();
        if !ours.is_empty() {
            let line = |name| format!("filter show dev {name} parent {ROOT:x}:\n");
            let lines: String = ours.iter().map(|(name, _)| line(name)).collect();
            let text = self.ask("tc", "-j -batch -", &lines).await?;
            let maps = read::filters(&text, ours.len());
            let maps = maps.map_err(|error| self.rubbish("its filters", error))?;
            for ((name, read), map) in ours.iter_mut().zip(maps) {
                read.map = map.map_err(|filter| {
                    let what = format!("port {name}: {filter}");
                    let limit = "the filter does not belong to Penstock".into();
                    self.beyond(what, limit, "run `tc filter del dev PORT parent 9e50: pref N`")
                })?;
                let text = self.ask("tc", &format!("-s -d class show dev {name}"), "").await?;
                let classes = read::classes(&text);
                let what = || format!("the request for the classes of port {name}");
                (read.top, read.classes) = classes.map_err(|error| self.rubbish(&what(), error))?;
            }
        }
        Ok(SwitchReading { stamp, ports })
    }

    fn state(&self, seen: &SwitchReading) -> SwitchState {
        let state = |port: &PortInfo, read: &PortRead| {
            let weights = plan::weights(&self.settings, port.rate, read);
            let map = read.map.clone().unwrap_or_default();
            (port.name.clone(), PortState { weights, map }.canonical())
        };
        let ports = self.ports.iter().zip(&seen.ports).map(|(port, read)| state(port, read));
        SwitchState { stamp: seen.stamp, ports: ports.collect(), ..SwitchState::default() }
    }

    /// Returns the lines of `tc -batch` that make `changes`. For a port without the qdisc HTB, the
    /// lines also set up HTB.
    fn lines(&self, seen: &SwitchReading, changes: &[Change]) -> Result<Vec<String>, DriverError> {
        let (can, mut target) = (self.can(), self.state(seen));
        changes.iter().try_for_each(|change| step(&self.name, &can, &mut target, change))?;
        let each = self.ports.iter().zip(&seen.ports).flat_map(|(port, read)| {
            plan::lines(&self.settings, (&port.name, port.rate), read, &target.ports[&port.name])
        });
        Ok(each.collect())
    }
}

#[async_trait]
impl SwitchDriver for TcSwitch {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static str {
        "linux-tc"
    }

    async fn capabilities(&self) -> Result<Capabilities, DriverError> {
        Ok(self.can())
    }

    async fn read_back(&self) -> Result<SwitchState, DriverError> {
        Ok(self.state(&self.see().await?))
    }

    async fn apply(&self, stamp: Stamp, changes: &[Change]) -> Result<(), DriverError> {
        let _held = self.runner.hold().await.map_err(|error| {
            let (switch, problem) = (self.name.clone(), error.to_string());
            DriverError::Unreachable { switch, problem }
        })?;
        let seen = self.see().await?;
        DriverError::fence(&self.name, seen.stamp, stamp)?;
        let lines = self.lines(&seen, changes)?;
        if !lines.is_empty() {
            self.ask("tc", "-batch -", &(lines.join("\n") + "\n")).await?;
        }
        if stamp != seen.stamp {
            let line = format!("link set dev lo alias \"{STAMP_WORD}{stamp}\"\n");
            self.ask("ip", "-batch -", &line).await?;
        }
        Ok(())
    }

    async fn words(&self, changes: &[Change]) -> Result<Vec<String>, DriverError> {
        let mut lines = self.lines(&self.see().await?, changes)?;
        lines.iter_mut().for_each(|line| line.insert_str(0, "tc "));
        lines.push(format!("ip link set dev lo alias \"{STAMP_WORD}EPOCH.GENERATION\""));
        Ok(lines)
    }

    async fn counters(&self) -> Result<Vec<QueueCounters>, DriverError> {
        let seen = self.see().await?;
        let all = self.ports.iter().zip(&seen.ports).flat_map(|(port, read)| {
            read.classes.iter().map(|(queue, class)| QueueCounters {
                port: port.name.clone(),
                queue: *queue,
                packets: class.packets,
                bytes: class.bytes,
                dropped: class.dropped,
            })
        });
        Ok(all.collect())
    }
}

#[cfg(test)]
mod tests;
