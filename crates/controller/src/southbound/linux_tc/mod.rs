//! Configures Linux switches through netlink, with the qdisc HTB on each port.
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
//! (`program`). The driver first reads the switch's state in two exchanges with the kernel, and
//! then sends only the differences in a third exchange. The order of the requests ensures that the
//! map never selects a class that does not exist. The kernel replaces the map atomically.
//!
//! The driver uses HTB because HTB also limits the port to its rate, which ETS and DRR do not.
//! Because HTB limits the port's rate, frames wait in the qdisc's own queues and not at the next
//! hop. HTB also has priorities for spare bandwidth. A queue of weight 0 has the lower priority, so
//! it gets the bandwidth that other queues do not use.
//!
//! # Acknowledgements
//!
//! If a tenant sends in both directions at once, the acknowledgements of one direction share a
//! queue with the data of the other. In a single FIFO, both directions then have one round trip,
//! the sum of both waits. Only the direction with more bytes in flight fills its queue. The other
//! one has a rate in proportion to its smaller window, however long the queues are (Heusse et al.,
//! "Two-way TCP connections", CCR 2011). So each queue has two FIFOs that take turns, one for TCP's
//! pure acknowledgements and one for all other frames. RFC 3449 describes such a scheduling of
//! acknowledgements. The kernel's `prio` and `fq_codel` are optional modules, so the driver uses a
//! second HTB, whose classes have a rate above that of any port.
//!
//! # Stamp
//!
//! The driver stores the stamp in the alias of `lo`, as `penstock EPOCH.GENERATION`. Each network
//! namespace has exactly one interface `lo`. The alias of `lo` survives a restart of the
//! controller. When the machine restarts, the alias and the qdiscs disappear together.
//! [`Kernel::hold`] excludes other controllers between reading and writing the stamp.
//!
//! # Other configurations
//!
//! The driver does not change other configurations of a Linux switch. The driver leaves a port out,
//! and uses the other ports, in the following cases:
//!
//! - The port has a root qdisc with a handle other than `0:` (the kernel's default) and `9e50:`.
//! - The driver's root qdisc has a filter that the driver did not set.
//! - The interface does not exist.
//!
//! The driver refuses the switch if the alias of `lo` has a text that the driver did not write.
//!
//! # Source
//!
//! The driver follows `tc-htb(8)`, `tc-bpf(8)` and Linux `net/sched/sch_htb.c`. The module
//! `netlink` describes the messages.

mod answer;
mod class;
mod kernel;
mod layout;
mod netlink;
mod netns;
mod plan;
mod program;
mod read;
mod requests;
mod settings;
mod socket;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;

pub use kernel::{Hold, Kernel, KernelError, Message, Request};
pub use netns::Netns;
pub use settings::Settings;

use super::driver::FEWER_QUEUES;
use super::{
    Capabilities, Change, DriverError, ONE_STEP, PortInfo, PortState, QueueCounters, SwitchDriver,
    SwitchState, step,
};
use crate::Stamp;
use layout::{QUEUES_MAX, ROOT, inner_of};
use read::{Filters, Links, PortRead, Root};
use requests::Interface;

/// First word of the alias that the driver gives to `lo`. After this word, the alias contains the
/// stamp.
const STAMP_WORD: &str = "penstock ";
/// Maximum length of an interface's name in bytes (`IFNAMSIZ` - 1).
const NAME_MAX: usize = 15;
/// Maximum quantum of a queue with weight 1, in bytes. The kernel stores the quantum of a queue
/// with weight 100 as a signed number of 32 bits.
const QUANTUM_MAX: u32 = 16 << 20;

#[derive(Debug)]
pub struct TcSwitch {
    name: String,
    ports: Vec<PortInfo>,
    settings: Settings,
    kernel: Arc<dyn Kernel>,
}

/// State that the driver has read from a switch.
struct SwitchReading {
    stamp: Stamp,
    /// The kernel's numbers of the network interfaces.
    links: Links,
    /// State of each port, in the driver's order.
    ports: Vec<PortRead>,
    /// Ports that the driver does not use, with the reason.
    left_out: BTreeMap<String, String>,
}

impl SwitchReading {
    /// Returns the network interface of a port. A port without an interface has the number 0, which
    /// no interface has.
    fn interface<'a>(&self, port: &'a PortInfo) -> Interface<'a> {
        let index = self.links.indices.get(&port.name).copied().unwrap_or(0);
        Interface { name: &port.name, index }
    }
}

impl TcSwitch {
    /// Creates a driver of the network interfaces `ports`, which `kernel` has.
    ///
    /// # Errors
    /// Returns [`DriverError::Beyond`] if a port's name is not a valid interface name, a rate is
    /// too low, or settings are out of range.
    pub fn new(
        name: &str,
        ports: &[PortInfo],
        settings: Settings,
        kernel: Arc<dyn Kernel>,
    ) -> Result<Self, DriverError> {
        let this = Self { name: name.to_owned(), ports: ports.to_vec(), settings, kernel };
        if !(2..=QUEUES_MAX).contains(&settings.queues) {
            let what = format!("{} queues", settings.queues);
            return Err(this.beyond(what, format!("2 to {QUEUES_MAX} queues"), FEWER_QUEUES));
        }
        if !(1..=QUANTUM_MAX).contains(&settings.quantum) {
            let what = format!("a quantum of {} bytes", settings.quantum);
            let limit = format!("1 to {QUANTUM_MAX} bytes");
            return Err(this.beyond(what, limit, "change the quantum"));
        }
        let mut names = BTreeSet::new();
        for PortInfo { name, rate } in ports {
            // Names become words of command lines in errors and dry runs.
            let plain = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
            if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(plain) {
                let limit = format!("a port's name has 1 to {NAME_MAX} letters, digits or . _ - @");
                let what = format!("port {name:?}");
                return Err(this.beyond(what, limit, "name an interface of the switch"));
            }
            if !names.insert(name) {
                let limit = "each port has its own interface".to_owned();
                return Err(this.beyond(
                    format!("a second port {name}"),
                    limit,
                    "name another interface",
                ));
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
        Capabilities::new(self.settings.queues, ONE_STEP)
    }

    fn failed(&self, error: KernelError) -> DriverError {
        let switch = self.name.clone();
        match error {
            KernelError::Unreachable(problem) => DriverError::Unreachable { switch, problem },
            KernelError::Refused { words, problem } => {
                DriverError::Refused { switch, change: words, problem }
            }
            KernelError::Invalid { words, problem } => self.rubbish(&words, problem),
        }
    }

    /// Sends requests to the kernel in order, and returns an answer for each request.
    async fn ask(&self, requests: Vec<Request>) -> Result<Vec<Vec<Message>>, DriverError> {
        let count = requests.len();
        let answers = self.kernel.ask(requests).await.map_err(|error| self.failed(error))?;
        match answers.len() == count {
            true => Ok(answers),
            false => Err(self.rubbish("netlink", format!("{} of {count} answers", answers.len()))),
        }
    }

    /// Decodes the stamp in the alias of `lo`. If another configuration has set the alias, the
    /// error names the alias.
    fn stamp(&self, alias: &str) -> Result<Stamp, DriverError> {
        if alias.is_empty() {
            return Ok(Stamp::default());
        }
        let numbers = alias.strip_prefix(STAMP_WORD).and_then(|text| text.split_once('.'));
        let stamp = numbers.and_then(|(epoch, generation)| {
            Some(Stamp { epoch: epoch.parse().ok()?, generation: generation.parse().ok()? })
        });
        stamp.ok_or_else(|| {
            let what = format!("replacing lo's alias {alias:?} with the stamp");
            let limit = "the alias does not belong to Penstock".to_owned();
            self.beyond(what, limit, "remove the alias: ip link set dev lo alias \"\"")
        })
    }

    async fn see(&self) -> Result<SwitchReading, DriverError> {
        let (links, qdiscs) = (requests::links(), requests::qdiscs());
        let words = [links.words.clone(), qdiscs.words.clone()];
        let mut answers = self.ask(vec![links, qdiscs]).await?.into_iter();
        let [links, qdiscs] = [0; 2].map(|_| answers.next().unwrap_or_default());
        let links = read::links(&links).map_err(|error| self.rubbish(&words[0], error))?;
        let stamp = self.stamp(&links.alias)?;
        let mut all = read::qdiscs(&qdiscs).map_err(|error| self.rubbish(&words[1], error))?;
        let (mut ports, mut left_out) = (Vec::with_capacity(self.ports.len()), BTreeMap::new());
        for PortInfo { name, .. } in &self.ports {
            let read = links.indices.get(name).map(|index| all.remove(index).unwrap_or_default());
            let refusal = match read.as_ref().map(|read| &read.root) {
                None => {
                    let limit = "the switch has no such interface".to_owned();
                    let remedy = "make the interface, or correct the port name";
                    Some(self.beyond(format!("port {name}"), limit, remedy))
                }
                Some(Root::Foreign(qdisc)) => {
                    let what = format!("the root qdisc {qdisc} of port {name}");
                    let limit = "the qdisc does not belong to Penstock".to_owned();
                    let remedy =
                        "run `tc qdisc del dev PORT root`, or leave the port out of the topology";
                    Some(self.beyond(what, limit, remedy))
                }
                Some(Root::Default | Root::Ours) => None,
            };
            left_out.extend(refusal.map(|refusal| (name.clone(), refusal.to_string())));
            ports.push(read.unwrap_or_default());
        }
        let mut seen = SwitchReading { stamp, links, ports, left_out };
        self.see_queues(&mut seen).await?;
        Ok(seen)
    }

    /// Reads the filters and classes of the ports that the driver has already set up.
    async fn see_queues(&self, seen: &mut SwitchReading) -> Result<(), DriverError> {
        let mut asked = Vec::new();
        for (port, read) in self.ports.iter().zip(&seen.ports) {
            if read.root == Root::Ours {
                let interface = seen.interface(port);
                asked.extend([requests::filters(interface, ROOT), requests::classes(interface)]);
                let queues = read.pairs.keys();
                asked.extend(queues.map(|queue| requests::filters(interface, inner_of(*queue))));
            }
        }
        if asked.is_empty() {
            return Ok(());
        }
        let words: Vec<String> = asked.iter().map(|request| request.words.clone()).collect();
        let answers = self.ask(asked).await?;
        // There is an answer for each request.
        let mut answers = answers.iter().map(Vec::as_slice).zip(&words);
        let mut next = || answers.next().unwrap_or((&[][..], &words[0]));
        let ours = self.ports.iter().zip(&mut seen.ports);
        for (port, read) in ours.filter(|(_, read)| read.root == Root::Ours) {
            let (filters, words) = next();
            read.map = match read::filters(filters).map_err(|error| self.rubbish(words, error))? {
                Filters::None => None,
                Filters::Ours(map) => Some(map),
                Filters::Foreign(filter) => {
                    let what = format!("port {}: {filter}", port.name);
                    let limit = "the filter does not belong to Penstock".to_owned();
                    let remedy = "run `tc filter del dev PORT parent 9e50: pref N`";
                    let refusal = self.beyond(what, limit, remedy).to_string();
                    seen.left_out.insert(port.name.clone(), refusal);
                    None
                }
            };
            let (classes, words) = next();
            let classes = read::classes(classes);
            (read.top, read.classes) = classes.map_err(|error| self.rubbish(words, error))?;
            for queue in read.pairs.keys() {
                let (filters, words) = next();
                let found = read::finds_acks(filters, *queue);
                if found.map_err(|error| self.rubbish(words, error))? {
                    read.filtered.insert(*queue);
                }
            }
        }
        Ok(())
    }

    /// Returns the ports that the driver uses, each with its state.
    fn used<'a>(
        &'a self,
        seen: &'a SwitchReading,
    ) -> impl Iterator<Item = (&'a PortInfo, &'a PortRead)> {
        let all = self.ports.iter().zip(&seen.ports);
        all.filter(move |(port, _)| !seen.left_out.contains_key(&port.name))
    }

    fn state(&self, seen: &SwitchReading) -> SwitchState {
        let state = |(port, read): (&PortInfo, &PortRead)| {
            let weights = plan::weights(&self.settings, port.rate, read);
            let map = read.map.clone().unwrap_or_default();
            (port.name.clone(), PortState { weights, map }.canonical())
        };
        let ports = self.used(seen).map(state).collect();
        SwitchState { stamp: seen.stamp, ports, left_out: seen.left_out.clone() }
    }

    /// Returns the requests that make `changes`. For a port without the qdisc HTB, the requests
    /// also set up HTB.
    fn steps(&self, seen: &SwitchReading, changes: &[Change]) -> Result<Vec<Request>, DriverError> {
        let (can, mut target) = (self.can(), self.state(seen));
        changes.iter().try_for_each(|change| step(&self.name, &can, &mut target, change))?;
        let each = self.used(seen).flat_map(|(port, read)| {
            let (interface, target) = (seen.interface(port), &target.ports[&port.name]);
            plan::steps(&self.settings, interface, port.rate, read, target)
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

    /// Identifies the network namespace and the interfaces. The kernel forgets the queues of an
    /// interface that is deleted.
    async fn run_id(&self) -> Result<Option<String>, DriverError> {
        let namespace = self.kernel.namespace().await.map_err(|error| self.failed(error))?;
        let request = requests::links();
        let words = request.words.clone();
        let answers = self.ask(vec![request]).await?;
        let links = read::links(answers.first().map_or(&[][..], Vec::as_slice));
        let links = links.map_err(|error| self.rubbish(&words, error))?;
        let index = |port: &PortInfo| links.indices.get(&port.name).copied().unwrap_or(0);
        let indices: Vec<String> = self.ports.iter().map(|port| index(port).to_string()).collect();
        Ok(Some(format!("{namespace} {}", indices.join(" "))))
    }

    async fn read_back(&self) -> Result<SwitchState, DriverError> {
        Ok(self.state(&self.see().await?))
    }

    async fn apply(&self, stamp: Stamp, changes: &[Change]) -> Result<(), DriverError> {
        let _held = self.kernel.hold().await.map_err(|error| {
            let (switch, problem) = (self.name.clone(), error.to_string());
            DriverError::Unreachable { switch, problem }
        })?;
        // The caller has usually read the switch just before, but without the exclusive right.
        // Since then, another controller or an operator with `tc` may have changed the switch, or
        // an interface may be a new one. The kernel has no number that changes with its qdiscs, and
        // a change that failed halfway has changed queues but not the stamp. So only a second read
        // is safe.
        let seen = self.see().await?;
        DriverError::fence(&self.name, seen.stamp, stamp)?;
        let mut steps = self.steps(&seen, changes)?;
        if stamp != seen.stamp {
            // The stamp is the last request, which the kernel does not receive after a refusal.
            steps.push(requests::alias(seen.links.lo, &format!("{STAMP_WORD}{stamp}")));
        }
        if !steps.is_empty() {
            self.ask(steps).await?;
        }
        Ok(())
    }

    async fn words(&self, changes: &[Change]) -> Result<Vec<String>, DriverError> {
        let steps = self.steps(&self.see().await?, changes)?;
        let mut words: Vec<String> = steps.into_iter().map(|request| request.words).collect();
        words.push(requests::alias_words(&format!("{STAMP_WORD}EPOCH.GENERATION")));
        Ok(words)
    }

    async fn counters(&self) -> Result<Vec<QueueCounters>, DriverError> {
        let seen = self.see().await?;
        let all = self.used(&seen).flat_map(|(port, read)| {
            read.classes.iter().map(|(queue, class)| QueueCounters {
                port: port.name.clone(),
                queue: *queue,
                packets: class.packets,
                bytes: class.bytes,
                dropped: class.dropped,
                waiting: Some(class.waiting),
            })
        });
        Ok(all.collect())
    }
}

#[cfg(test)]
mod tests;
