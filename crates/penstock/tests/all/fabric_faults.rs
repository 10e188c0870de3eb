//! Tests of faults in a fabric with a controller process: a switch that restarts without its state,
//! and a full disk of the store. Without root the tests are skipped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use penstock_testing::temp_dir;
use serde_json::Value;

use crate::support::controller;
use crate::support::controller::{Controller, SWITCHES, TAKE_OVER, until};

const RACK: &str = r#"[fabric]
name = "one rack"
queues = 4

[servers]
slots = 1000

[[tier]]
fan_out = 2
rate = "1G"
"#;
/// Time limit for the controller to repair a switch, on a busy machine.
const MENDED: Duration = Duration::from_secs(20);

fn root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        penstock_testing::skip("run as root");
    }
    root
}

fn run(words: &str) -> String {
    let words: Vec<&str> = words.split(' ').collect();
    let done = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// A switch with two ports in a network namespace.
struct Machine(String);

impl Machine {
    fn start(name: &str) -> Self {
        run(&format!("ip netns add {name}"));
        let machine = Self(name.to_owned());
        machine.boot();
        machine
    }

    fn boot(&self) {
        for port in ["p0", "p1"] {
            run(&format!("ip -n {} link add {port} type veth peer name {port}x", self.0));
            run(&format!("ip -n {} link set {port} up", self.0));
        }
    }

    /// Restarts the switch without its settings and without the number of its last decision.
    fn restart(&self) {
        run(&format!("ip netns del {}", self.0));
        run(&format!("ip netns add {}", self.0));
        self.boot();
    }

    fn queues(&self, port: &str) -> usize {
        let classes = run(&format!("ip netns exec {} tc class show dev {port}", self.0));
        // Each queue has classes of its own below, for acknowledgements and data.
        classes.lines().filter(|line| line.starts_with("class htb 9e50:")).count()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn tenant(controller: &Controller, folder: &Path, name: &str) -> Option<(bool, Value)> {
    let file = folder.join("tenant.toml");
    fs::write(&file, format!("[[tenant]]\nname = {name:?}\nvms = 1\nrate = \"1k\"\n")).unwrap();
    controller.ask(&["tenant", "add", file.to_str().unwrap()])
}

#[test]
fn a_switch_that_starts_anew_is_set_up_again() {
    if !root() {
        return;
    }
    let folder = temp_dir();
    let machine = Machine::start(&format!("penstock-f{}", std::process::id()));
    let switch = format!(
        "\n[[switch]]\nname = \"rack-0\"\ndriver = \"linux-tc\"\nnetns = \"{}\"\n\
         interfaces = {{ server-0 = [\"p0\"], server-1 = [\"p1\"] }}\n",
        machine.0
    );
    let store = format!("path = {:?}", folder.join("store.redb"));
    let controller = Controller::over(&folder, "one", &store, RACK, &switch);
    until(TAKE_OVER, "it leads", || controller.leads());
    until(MENDED, "queues of the switch", || machine.queues("p0") == 5);
    machine.restart();
    assert_eq!(machine.queues("p1"), 0);
    until(MENDED, "queues of the switch after its restart", || {
        machine.queues("p0") == 5 && machine.queues("p1") == 5
    });
    until(MENDED, "all is up to date", || {
        controller.ask(&["status"]).is_some_and(|(_, s)| s["out_of_date"] == Value::Array(vec![]))
    });
    let (_, events) = controller.ask(&["events"]).unwrap();
    let events = events.to_string();
    assert!(events.contains("mended") || events.contains("drift"), "{events}");
}

struct Disk(PathBuf);

impl Disk {
    fn mount(at: PathBuf) -> Self {
        fs::create_dir(&at).unwrap();
        let disk = Self(at);
        run(&format!("mount -t tmpfs -o size=6m tmpfs {}", disk.0.display()));
        disk
    }

    fn fill(&self) {
        let mut command = Command::new("dd");
        command.args(["if=/dev/zero", "bs=4k"]).arg(format!("of={}/filler", self.0.display()));
        assert!(!command.stderr(Stdio::null()).status().unwrap().success(), "the disk has room");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn with_a_full_disk_nothing_is_sold_and_what_was_sold_stays() {
    if !root() {
        return;
    }
    let folder = temp_dir();
    let disk = Disk::mount(folder.join("disk"));
    let store = format!("path = {:?}", disk.0.join("store.redb"));
    let start = || Controller::over(&folder, "one", &store, controller::FABRIC, SWITCHES);
    let controller = start();
    until(TAKE_OVER, "it leads", || controller.leads());
    disk.fill();
    let mut sold = Vec::new();
    let refused = (0..90).find_map(|nth| {
        let name = format!("tenant-{nth}-{}", "x".repeat(40));
        match tenant(&controller, &folder, &name) {
            Some((true, answer)) if answer["placed"][0]["name"] == *name => {
                sold.push(name);
                None
            }
            _ => Some(name),
        }
    });
    let refused = refused.expect("the store grew on a full disk");
    let why =
        controller.complains(&["tenant", "add", folder.join("tenant.toml").to_str().unwrap()]);
    assert!(why.contains("No space left") && why.contains("store"), "{why}");
    fs::remove_file(disk.0.join("filler")).unwrap();
    // The controller still leads, or leads again, with all confirmed tenants.
    let list = |controller: &Controller| {
        let mut names = sold.clone();
        names.sort();
        until(2 * TAKE_OVER, "it leads with what was sold", || {
            controller.leads() && {
                let mut has = controller.tenants();
                has.sort();
                has == names
            }
        })
    };
    list(&controller);
    controller.signal(Signal::SIGKILL);
    drop(controller);
    let controller = start();
    list(&controller);
    let (fine, _) = tenant(&controller, &folder, &refused).unwrap();
    assert!(fine, "there is room again");
}
