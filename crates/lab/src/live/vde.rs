//! The switch `vde_switch` with network namespaces behind its ports, for comparison with Penstock.
//!
//! # Approach
//!
//! The process of `vde_switch` runs on the core of Penstock's worker. Each VM is a network
//! namespace with a TAP device. `vde_plug2tap` connects the TAP to the switch. All programs except
//! the switch run on the generator's core. A guard removes all processes and namespaces after the
//! run.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::needs::needs;
use crate::rig::plan::Plan;
use penstock_guest::bed::Bed;
use penstock_guest::bed::guard::{Ward, end_inside};
use penstock_guest::bed::process::{Daemon, ask, await_ok, await_some};

/// Maximum time until packets pass through the switch.
const START_LIMIT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(super) struct VdeSwitch {
    programs: Vec<Daemon>,
    plugs: Vec<Daemon>,
    pid: i32,
    dir: PathBuf,
    namespaces: Vec<String>,
    core: String,
}

impl VdeSwitch {
    /// Starts `vde_switch` with `vms` network namespaces.
    pub(super) fn start(bed: &Bed, vms: usize) -> anyhow::Result<Self> {
        needs("vde_plug2tap", "vde2")?;
        let dir = bed.dir().join("vde");
        std::fs::create_dir_all(&dir).context("making a directory")?;
        let (socket, pid) = (dir.join("switch"), dir.join("switch.pid"));
        let (worker, core) = (bed.worker_core().to_string(), bed.generator_core().to_string());
        // Without `-d`, the switch uses its standard input as a console, and ends when that input
        // ends.
        let mut command = Command::new("taskset");
        command.args(["-c", &worker, "vde_switch", "-d", "-s"]).arg(&socket).arg("-p").arg(&pid);
        ask(&mut command).context("starting vde_switch")?;
        let pid = await_some("vde_switch", START_LIMIT, || {
            let told = std::fs::read_to_string(&pid).unwrap_or_default();
            Ok(told.trim().parse().ok().filter(|_| socket.join("ctl").exists()))
        })?;
        bed.guard().take(&Ward::process(pid)?)?;
        let socket = socket.display().to_string();
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
            await_ok("a TAP of vde_plug2tap", START_LIMIT, || {
                let mut look = inside(&["ip", "link", "show", "dev", "eth0"]);
                Ok(ask(&mut look).map(drop))
            })?;
            let address = format!("{}/8", Plan::ip(number));
            ask(&mut inside(&["ip", "addr", "add", &address, "dev", "eth0"]))?;
            ask(&mut inside(&["ip", "link", "set", "eth0", "up"]))?;
            namespaces.push(netns);
        }
        let pid = i32::try_from(pid)?;
        Ok(Self { programs: Vec::new(), plugs, pid, dir, namespaces, core })
    }

    fn inside(&self, vm: usize, program: &str, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.namespaces[vm]));
        command.args(["--", "taskset", "-c", &self.core, program]).args(words);
        command
    }

    /// Starts a program in the network namespace of VM number `vm`.
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

    /// Waits until VM number `from` can open a TCP connection to `port` of VM number `to`.
    pub(super) fn await_tcp(&self, from: usize, to: usize, port: &str) -> anyhow::Result<()> {
        let at = Plan::ip(to);
        await_ok(&format!("port {port} of {at}"), START_LIMIT, || {
            let probe = format!("exec 3<>/dev/tcp/{at}/{port}");
            let mut command = self.inside(from, "timeout", &["1", "bash", "-c", &probe]);
            Ok(ask(&mut command).map(drop))
        })
    }

    /// Waits until a program ends, and returns the program's output. Returns an error if the
    /// program still runs after the time `limit`.
    pub(super) fn await_end(&mut self, program: usize, limit: Duration) -> anyhow::Result<String> {
        self.programs.get_mut(program).context("no such program")?.await_end(limit)?;
        std::fs::read_to_string(self.log(program)).context("reading a program's output")
    }
}

impl Drop for VdeSwitch {
    fn drop(&mut self) {
        self.programs.clear();
        self.plugs.clear();
        self.namespaces.iter().for_each(|netns| end_inside(netns));
        // The switch may have ended already. If this signal does not end it, the guard does.
        let _ = kill(Pid::from_raw(self.pid), Signal::SIGTERM);
    }
}
