//! Two network namespaces that a veth joins, with a queueing discipline of the kernel before the
//! veth, for comparison with Penstock.
//!
//! # Approach
//!
//! A veth has no rate. Therefore HTB paces both disciplines to the rate of the link: `Htb` with one
//! class for each tenant, and `Fifo` with a single class and one queue. A class of a tenant has the
//! tenant's part of the link as its rate, and the whole link as its ceiling. `overhead` adds FCS,
//! preamble and gap to each frame.
//!
//! All programs and the kernel's work for them are on the generator's core. A guard removes the
//! namespaces after the run, also after an error.
//!
//! # Departures
//!
//! HTB adds `overhead` once to a large segment (TSO), although each of its frames has the overhead
//! on a link. The classifier is `u32`, because many kernels lack the others.

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;

use super::traffic::{LINK, Road, TENANTS, WEIGHTS};
use super::wire::OVERHEAD;
use penstock_guest::bed::Bed;
use penstock_guest::bed::guard::{Ward, end_inside};
use penstock_guest::bed::process::{Daemon, ask};

/// Frames that may wait in a queue: the length of a veth's queue by default.
const QUEUE: u32 = 1_000;
/// Bytes that a class of weight 1 may borrow in a turn, two full frames. HTB divides only the rate
/// above the classes' own rates by this number.
const QUANTUM: u32 = 3_028;
const ENDS: [&str; 2] = ["from", "to"];

/// A queueing discipline before the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Discipline {
    Htb,
    Fifo,
}

impl Discipline {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Htb => "htb",
            Self::Fifo => "fifo",
        }
    }

    /// Returns the arguments of the `tc` commands that set the discipline up.
    fn commands(self) -> Vec<String> {
        let dev = ENDS[0];
        let class = |parent: &str, id: u32, rate: u32, weight: u32| {
            format!(
                "class add dev {dev} parent {parent} classid 1:{id} htb rate {rate}bit \
                 ceil {LINK}bit overhead {OVERHEAD} quantum {}",
                QUANTUM * weight
            )
        };
        let root = |more: &str| format!("qdisc add dev {dev} root handle 1: htb{more}");
        let leaf = |id: u32| format!("qdisc add dev {dev} parent 1:{id} pfifo limit {QUEUE}");
        if self == Self::Fifo {
            return vec![root(" default 9"), class("1:", 9, LINK, 1), leaf(9)];
        }
        let all: u32 = WEIGHTS.iter().sum();
        let mut commands = vec![root(""), class("1:", 9, LINK, 1)];
        for (tenant, (id, weight)) in (1..).zip(WEIGHTS).enumerate() {
            let to = address(tenant);
            commands.push(class("1:9", id, LINK / all * weight, weight));
            commands.push(leaf(id));
            commands.push(format!(
                "filter add dev {dev} parent 1: protocol ip prio 1 u32 match ip dst {to}/32 \
                 flowid 1:{id}"
            ));
        }
        commands
    }
}

/// Returns the address to which a tenant sends.
fn address(tenant: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 1, u8::try_from(tenant + 1).unwrap_or(u8::MAX))
}

/// The two namespaces with their programs.
#[derive(Debug)]
pub(super) struct KernelRoad<'a> {
    bed: &'a Bed,
    programs: Vec<Daemon>,
    dir: PathBuf,
    /// Names of the namespaces of the senders and of the receivers.
    namespaces: [String; 2],
}

impl<'a> KernelRoad<'a> {
    /// Creates the namespaces, the veth and the discipline. No other road may have the name `name`.
    pub fn start(bed: &'a Bed, name: &str, discipline: Discipline) -> anyhow::Result<Self> {
        let dir = bed.dir().join(name);
        std::fs::create_dir_all(&dir).context("making a directory")?;
        let namespaces = ENDS.map(|end| format!("pl{}-{name}-{end}", std::process::id()));
        for netns in &namespaces {
            bed.guard().take(&Ward::Netns(netns.clone()))?;
            ask(Command::new("ip").args(["netns", "add", netns]))?;
        }
        let road = Self { bed, programs: Vec::new(), dir, namespaces };
        let [from, to] = &road.namespaces;
        let [here, there] = ENDS;
        ip(from, &format!("link add {here} type veth peer name {there} netns {to}"))?;
        for (netns, end) in [(from, here), (to, there)] {
            // Without IPv6, only the measurement sends.
            let mut quiet = inside(netns, &["sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"]);
            ask(&mut quiet)?;
            ip(netns, "link set lo up")?;
            ip(netns, &format!("link set {end} up"))?;
        }
        ip(from, &format!("addr add 10.77.2.1/16 dev {here}"))?;
        for tenant in 0..TENANTS {
            ip(to, &format!("addr add {}/16 dev {there}", address(tenant)))?;
        }
        for command in discipline.commands() {
            let words = command.split_whitespace();
            ask(inside(from, &["tc"]).args(words)).context("setting a queueing discipline up")?;
        }
        Ok(road)
    }

    /// Returns a command in one of the two namespaces, on the generator's core.
    fn command(&self, netns: usize, program: &str, words: &[&str]) -> Command {
        let core = self.bed.generator_core().to_string();
        let mut command = inside(&self.namespaces[netns], &["taskset", "-c", &core, program]);
        command.args(words);
        command
    }

    fn start_program(
        &mut self,
        netns: usize,
        program: &str,
        words: &[&str],
    ) -> anyhow::Result<usize> {
        let number = self.programs.len();
        let mut command = self.command(netns, program, words);
        self.programs.push(Daemon::start(&mut command, self.log(number), self.bed.guard())?);
        Ok(number)
    }

    fn log(&self, program: usize) -> PathBuf {
        self.dir.join(format!("program-{program}.log"))
    }

    fn open(&self, netns: usize) -> anyhow::Result<File> {
        let path = format!("/run/netns/{}", self.namespaces[netns]);
        File::open(&path).with_context(|| path)
    }
}

fn inside(netns: &str, words: &[&str]) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{netns}")).arg("--").args(words);
    command
}

fn ip(netns: &str, words: &str) -> anyhow::Result<()> {
    ask(Command::new("ip").args(["-n", netns]).args(words.split_whitespace())).map(drop)
}

impl Road for KernelRoad<'_> {
    fn source(&self, _: usize) -> anyhow::Result<File> {
        self.open(0)
    }

    fn target(&self) -> anyhow::Result<File> {
        self.open(1)
    }

    fn address(&self, tenant: usize) -> Ipv4Addr {
        address(tenant)
    }

    fn send(&mut self, _: usize, program: &str, words: &[&str]) -> anyhow::Result<usize> {
        self.start_program(0, program, words)
    }

    fn serve(&mut self, program: &str, words: &[&str]) -> anyhow::Result<()> {
        self.start_program(1, program, words).map(drop)
    }

    fn ask(&self, program: &str, words: &[&str]) -> anyhow::Result<String> {
        ask(&mut self.command(1, program, words))
    }

    fn await_program(&mut self, program: usize, limit: Duration) -> anyhow::Result<String> {
        self.programs.get_mut(program).context("no such program")?.await_end(limit)?;
        std::fs::read_to_string(self.log(program)).context("reading a program's output")
    }
}

impl Drop for KernelRoad<'_> {
    fn drop(&mut self) {
        self.programs.clear();
        for netns in &self.namespaces {
            end_inside(netns);
            // If the namespace cannot be removed, the guard removes it at the end of the run.
            let _ = ask(Command::new("ip").args(["netns", "del", netns]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rates_of_all_classes_are_the_link() {
        let commands = Discipline::Htb.commands();
        let tenants = commands.iter().filter(|command| command.contains("parent 1:9 "));
        let rate = |command: &String| -> u32 {
            let at = command.split_whitespace().skip_while(|word| *word != "rate").nth(1);
            at.and_then(|rate| rate.strip_suffix("bit")).unwrap().parse().unwrap()
        };
        let rates: Vec<u32> = tenants.map(rate).collect();
        assert_eq!(rates.len(), TENANTS);
        let sum: u32 = rates.iter().sum();
        assert!(sum <= LINK && LINK - sum < 12, "{rates:?}");
        assert_eq!(rates[0], 3 * rates[1]);
    }

    #[test]
    fn a_fifo_has_one_queue() {
        let commands = Discipline::Fifo.commands();
        assert_eq!(commands.iter().filter(|command| command.contains("pfifo")).count(), 1);
        assert!(!commands.iter().any(|command| command.starts_with("filter")));
    }
}
