//! `vde_switch` with namespaces behind it, to be measured beside ours.
//!
//! **Rule.** One switch process on the worker's core; for each VM a namespace with a TAP that
//! `vde_plug2tap` joins to it, on the generator's core, as all programs. The guard takes all down.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;

use super::plan::Plan;
use crate::bench::bed::Bed;
use crate::bench::guard::Ward;
use crate::bench::process::{Daemon, ask, await_some};

/// How long until packets pass.
const START_LIMIT: Duration = Duration::from_secs(20);

/// See the module's text.
#[derive(Debug)]
pub(super) struct VdeSwitch {
    // What is behind the switch ends before it.
    programs: Vec<Daemon>,
    _plugs: Vec<Daemon>,
    _switch: Daemon,
    dir: PathBuf,
    namespaces: Vec<String>,
    core: String,
}

impl VdeSwitch {
    /// Starts it with so many namespaces.
    pub(super) fn start(bed: &Bed, vms: usize) -> anyhow::Result<Self> {
        super::needs("vde_plug2tap", "vde2")?;
        let dir = bed.dir().join("vde");
        std::fs::create_dir_all(&dir).context("making a directory")?;
        let socket = dir.join("switch").display().to_string();
        let core = bed.generator_core().to_string();
        let mut command = Command::new("taskset");
        // `-x`: all ports hear all; without it is a learning switch. `-d` would leave us.
        let worker = bed.worker_core().to_string();
        command.args(["-c", &worker, "sh", "-c", "sleep infinity | vde_switch -s \"$0\"", &socket]);
        let mut switch = Daemon::start(&mut command, dir.join("switch.log"), bed.guard())?;
        await_some("vde_switch", START_LIMIT, || {
            switch.check()?;
            Ok(dir.join("switch/ctl").exists().then_some(()))
        })?;
        let (mut plugs, mut namespaces) = (Vec::new(), Vec::new());
        for number in 0..vms {
            let netns = format!("pl{}-vde-{number}", std::process::id());
            bed.guard().take(&Ward::Netns(netns.clone()))?;
            ask(Command::new("ip").args(["netns", "add", &netns]))?;
            let inside = |words: &[&str]| {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net=/run/netns/{netns}")).arg("--").args(words);
                command
            };
            let mut plug = inside(&["taskset", "-c", &core, "vde_plug2tap", "-s", &socket, "eth0"]);
            let log = dir.join(format!("plug-{number}.log"));
            plugs.push(Daemon::start(&mut plug, log, bed.guard())?);
            await_some("a TAP of vde_plug2tap", START_LIMIT, || {
                let mut look = inside(&["ip", "link", "show", "dev", "eth0"]);
                Ok(ask(&mut look).ok().map(drop))
            })?;
            let address = format!("{}/8", Plan::ip(number));
            ask(&mut inside(&["ip", "addr", "add", &address, "dev", "eth0"]))?;
            ask(&mut inside(&["ip", "link", "set", "eth0", "up"]))?;
            namespaces.push(netns);
        }
        Ok(Self { programs: Vec::new(), _plugs: plugs, _switch: switch, dir, namespaces, core })
    }

    fn inside(&self, vm: usize, program: &str, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.namespaces[vm]));
        command.args(["--", "taskset", "-c", &self.core, program]).args(words);
        command
    }

    /// Starts a program in the namespace of VM number `vm`.
    pub(super) fn start_program(
        &mut self,
        bed: &Bed,
        vm: usize,
        program: &str,
        words: &[&str],
    ) -> anyhow::Result<usize> {
        let number = self.programs.len();
        let mut command = self.inside(vm, program, words);
        self.programs.push(Daemon::start(&mut command, self.log(number), bed.guard())?);
        Ok(number)
    }

    fn log(&self, program: usize) -> PathBuf {
        self.dir.join(format!("program-{program}.log"))
    }

    /// Waits until VM `from` reaches `port` of VM `to`.
    pub(super) fn await_tcp(&self, from: usize, to: usize, port: &str) -> anyhow::Result<()> {
        let at = Plan::ip(to);
        await_some(&format!("port {port} of {at}"), START_LIMIT, || {
            // A connection would be the server's one client: only that the host answers.
            let address = at.to_string();
            let mut command = self.inside(from, "ping", &["-c", "1", "-W", "1", &address]);
            Ok(ask(&mut command).ok().map(drop))
        })
    }

    /// Waits for the end of a program and returns what it said.
    pub(super) fn await_end(&mut self, program: usize, limit: Duration) -> anyhow::Result<String> {
        self.programs.get_mut(program).context("no such program")?.await_end(limit)?;
        std::fs::read_to_string(self.log(program)).context("reading what a program said")
    }
}
