//! Tests that this program reads the files that earlier releases wrote (`fixtures/`).

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use penstock_testing::temp_dir;

use crate::support::{BINARY, Daemon, await_true, configuration, penstock};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/0.1").join(name)
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn configurations_of_release_0_1_are_valid_and_can_be_migrated() {
    let scratch = temp_dir();
    let file = scratch.join("host.toml");
    std::fs::copy(fixture("host/host.toml"), &file).unwrap();
    let file = file.display().to_string();
    let none = scratch.join("none.sock");
    let told = penstock(&none, &["host", "check", "--config", &file]);
    assert!(told.out.contains("valid (2 ports, 1 tenant, 0 rules)"), "{told:?}");
    assert!(told.ok().contains("valid"));
    penstock(&none, &["host", "config", "--migrate", &file]).ok();
    let told = penstock(&none, &["host", "check", "--config", &file]);
    assert!(!told.err.contains("is now"), "{told:?}");
    told.ok();
}

#[test]
fn minutes_of_release_0_1_are_reported() {
    let scratch = temp_dir();
    let text = std::fs::read_to_string(fixture("host/contracts-20787.tsv")).unwrap();
    // A report leaves out minutes in the future, so the minutes are from the year 2017 here.
    let past = text.replace("1796000", "1500000");
    std::fs::write(scratch.join("contracts-17361.tsv"), past).unwrap();
    let state = scratch.display().to_string();
    let none = PathBuf::from("/nonexistent.sock");
    let line = ["report", "--since", "9999d", "--state-dir", &state, "--json"];
    let report = penstock(&none, &line).json();
    let contracts = report["contracts"].as_array().unwrap();
    assert_eq!(contracts.len(), 2, "{report}");
    assert_eq!(contracts[0]["port"], "vm1");
    assert_eq!(contracts[0]["minutes_out_host"], 1);
    assert_eq!(contracts[1]["unit"], "pps");
}

#[test]
fn a_host_applies_the_plan_that_release_0_1_stored() {
    let scratch = temp_dir();
    std::fs::create_dir(scratch.join("state")).unwrap();
    std::fs::copy(fixture("host/fabric.plan"), scratch.join("state/fabric.plan")).unwrap();
    let objects = "[fabric]\nname = \"server-0\"\ncontrollers = [\"127.0.0.1:9\"]\n\
         uplink = \"up\"\n[[tenant]]\nname = \"web\"\nvlans = [100]\n\
         [[port]]\nname = \"up\"\ntap.interface = \"tapup\"\ntrunk = [100]\n\
         egress = \"wfq\"\nlink = \"10G\"\n";
    let text = configuration(&scratch, objects);
    std::fs::write(scratch.join("host.toml"), text).unwrap();
    let Some(daemon) = Daemon::start_in(scratch) else { return };
    // The agent applies the plan beside the daemon's first requests.
    await_true("the plan of release 0.1", || {
        daemon.ask("host show").ok().contains("plan           9.1")
    });
}

#[test]
fn a_controller_opens_the_store_of_release_0_1() {
    let scratch = temp_dir();
    let at = scratch.display().to_string();
    for file in ["controller.redb", "two-racks.toml"] {
        std::fs::copy(fixture("controller").join(file), scratch.join(file)).unwrap();
    }
    let switch = |name: &str| format!("[[switch]]\nname = \"{name}\"\ndriver = \"sim\"\n");
    let file = format!(
        "[controller]\nname = \"one\"\ntopology = \"two-racks.toml\"\nsocket = \"{at}/c.sock\"\n\
         [store]\npath = \"{at}/controller.redb\"\n[binding]\nmap = \"static-map\"\n{}",
        ["rack-0", "rack-1", "core-0"].map(switch).concat()
    );
    let path = scratch.join("controller.toml");
    std::fs::write(&path, file).unwrap();
    let mut controller = Command::new(BINARY);
    controller.args(["controller", "run", "--config"]).arg(path);
    let _running = Running(controller.stderr(Stdio::null()).spawn().unwrap());
    let socket = scratch.join("c.sock");
    let ask = || penstock(&socket, &["controller", "tenants", "--json"]);
    await_true("the controller's answer", || ask().status.success());
    let tenants = ask().ok();
    for tenant in ["build-farm", "reports", "web", "web-standby"] {
        assert!(tenants.contains(&format!("\"{tenant}\"")), "{tenants}");
    }
}
