//! Test of the switch and the vCPU scheduler with the same file. Each frame for a busy VM is an
//! event, and reporting an event takes less than one system call on average. Busy processes
//! represent VMs with one vCPU. The test is skipped without the right to real-time policies and
//! namespaces, or with one processor.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use penstock_vcpu_host::policy::{self, Policy};
use serde_json::Value;

use crate::support;
use crate::support::{BINARY, Daemon, await_some};

/// A process that ends with the test.
struct Running(Child);

impl Running {
    fn hog() -> Self {
        Self(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the first and the last processor that the process may use. Returns `None` if the process
/// may use only one processor or may not set real-time policies.
fn processors() -> Option<(usize, usize)> {
    let may = std::thread::spawn(|| policy::set(0, Policy::Fifo { priority: 1 }).is_ok());
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let mut cpus = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap());
    let both = cpus.next().zip(cpus.next_back());
    if !may.join().unwrap() || both.is_none() {
        penstock_testing::skip("needs two processors and the right to real-time policies");
        return None;
    }
    both
}

/// Makes the kernel send 4,000 datagrams from one VM to the other.
const TRAFFIC: &str = "ip addr replace 10.9.0.1/24 dev tapsrc; ip link set tapsrc up; \
     ip link set tapweb up; \
     ip neigh replace 10.9.0.77 lladdr 52:54:00:00:00:77 dev tapsrc; \
     exec 3>/dev/udp/10.9.0.77/9; for i in $(seq 4000); do echo x >&3; done";

fn counter(daemon: &Daemon, name: &str) -> u64 {
    let stats = daemon.ask("stats --json").json();
    let ports = stats["ports"].as_array().unwrap();
    let web = ports.iter().find(|port| port["port"] == "web0").unwrap();
    web["counters"][name].as_u64().unwrap_or(0)
}

fn scheduled(dir: &Path, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    await_some(what, || {
        let mut show = Command::new(BINARY);
        show.args(["vcpu", "show", "--json", "--run-dir"]).arg(dir);
        let told: support::Told = show.output().unwrap().into();
        told.status.success().then(|| told.json()).filter(&is)
    })
}

#[test]
fn frames_for_a_vm_that_computes_are_events_and_no_system_call_each() {
    let Some((worker, cpu)) = processors() else { return };
    let dir = penstock_testing::memory_dir();
    let guests: Vec<Running> = (0..4).map(|_| Running::hog()).collect();
    let mut text = format!(
        "cores = [{worker}]\n[vcpu]\ncpus = [{cpu}]\nrun_dir = \"{}\"\n\
         [[tenant]]\nname = \"red\"\n\
         [[port]]\nname = \"src0\"\ntap.interface = \"tapsrc\"\ntenant = \"red\"\n\
         [[port]]\nname = \"web0\"\ntap.interface = \"tapweb\"\ntenant = \"red\"\n\
         vm = \"web\"\n\
         [[fdb]]\ntenant = \"red\"\nmac = \"52:54:00:00:00:77\"\nport = \"web0\"\n",
        dir.display()
    );
    for (at, guest) in guests.iter().enumerate() {
        let (id, name) = (guest.0.id(), if at == 0 { "web".into() } else { format!("vm{at}") });
        text += &format!("[[vm]]\nname = \"{name}\"\npid = {id}\nthreads = \"sh\"\n");
        if at == 0 {
            text += "vcpu_mode = \"aperiodic\"\ndeadline = \"3 ms\"\n";
        }
    }
    let Some(daemon) = Daemon::start(&text) else { return };
    let log = std::fs::File::create(daemon.scratch.join("vcpu.log")).unwrap();
    let mut run = Command::new(BINARY);
    run.args(["vcpu", "run", "--config"]).arg(daemon.config()).env_remove("RUST_LOG");
    let _scheduler = Running(run.stdin(Stdio::null()).stderr(log).spawn().unwrap());
    scheduled(&dir, "the VM", |state| state["vms"][0]["vcpus"][0]["waits"].as_u64() > Some(0));
    let told = || std::fs::read_to_string(daemon.scratch.join("vcpu.log")).unwrap();
    await_some("its bell", || {
        told().contains("receiving frame events from the switch").then_some(())
    });

    let before = counter(&daemon, "tx_frames");
    let state = await_some("events", || {
        daemon.inside(TRAFFIC).ok();
        let state = scheduled(&dir, "a state", |_| true);
        (state["vms"][0]["vcpus"][0]["events"].as_u64() > Some(20)).then_some(state)
    });
    assert_eq!(state["vms"][1]["vcpus"][0]["events"], 0, "nothing came for it");
    let (frames, wakes) = (counter(&daemon, "tx_frames") - before, counter(&daemon, "vcpu_wakes"));
    assert!(wakes > 0, "the scheduler sleeps between events");
    assert!(wakes * 4 < frames, "{wakes} system calls for {frames} frames");

    let answer = daemon.ask("explain web0");
    let answer = answer.ok();
    assert!(answer.contains("vCPUs of VM web: ") && answer.contains("aperiodic"), "{answer}");
    let answer = daemon.ask("explain web0 --json").json();
    assert_eq!(answer["vcpu"]["vm"]["name"], "web");
    assert!(answer["vcpu"]["verdict"].is_string());
    let answer = daemon.ask("explain src0 --json").json();
    assert!(answer["vcpu"].is_null(), "no VM is behind it");
    let top = daemon.ask("top --count 1 --interval 0.2").ok();
    assert!(top.contains("WAIT P50") && top.contains("web"), "{top}");
    let checked =
        Command::new(BINARY).args(["host", "check", "--config"]).arg(daemon.config()).output();
    let checked = support::Told::from(checked.unwrap()).ok();
    assert!(checked.contains("web 25.0 % 3 ms"), "{checked}");
}
