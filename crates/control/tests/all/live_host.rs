//! Tests of the host with a real worker and real sockets. The tests of this module need no
//! privileges.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use penstock_control::config::{self, Port, VhostUser};
use penstock_control::host::{FdbFilter, Host};
use penstock_testing::{memory_dir, temp_dir};
use penstock_units::Nanos;

fn write_config(directory: &Path) -> PathBuf {
    let at = directory.display();
    let text = format!(
        "[host]\nname = \"live\"\nsocket = \"{at}/host.sock\"\n[worker]\nidle_backoff_us = 1000\n\
         [[tenant]]\nname = \"red\"\nvlans = [100] # one\n\
         [[port]]\nname = \"vm1\"\ntenant = \"red\"\n\
         vhost-user.socket = \"{at}/vm1.sock\"\nvhost-user.socket_mode = \"0660\"\nvlan = 100\n\
         [[fdb]]\nmac = \"52:54:00:00:00:01\"\nport = \"vm1\"\n"
    );
    let path = directory.join("host.toml");
    std::fs::write(&path, text).expect("a file");
    path
}

#[test]
fn a_host_runs_changes_and_ends() {
    let directory = temp_dir();
    let path = write_config(&directory);
    let before = std::fs::read_to_string(&path).expect("the file");
    let config = config::load(&path).expect("a right file");
    let host = Host::start(config, Some(path.clone())).expect("a worker");
    let socket = std::fs::metadata(directory.join("vm1.sock")).expect("the socket");
    assert!(socket.file_type().is_socket());
    assert_eq!(socket.permissions().mode() & 0o777, 0o660);
    assert_eq!(host.ports()[0].state, "waiting");
    let addresses = host.fdb(&FdbFilter::default()).expect("the addresses");
    assert_eq!(addresses.len(), 1, "{addresses:?}");
    assert!(addresses[0].is_static && addresses[0].vlan == 100 && addresses[0].port == "vm1");

    let vm2 = Port {
        tenant: Some("red".into()),
        vlan: "100".parse().ok(),
        ..Port::new("vm2", VhostUser::new(directory.join("vm2.sock")))
    };
    host.add_port(vm2, true).expect("a new port");
    assert_eq!(host.reload().expect("what was saved is right").changes, Vec::<String>::new());
    let key = ("queues".to_owned(), "2".to_owned());
    host.set_port("vm1", &[key], false).expect("a new attachment");
    assert_eq!(host.ports()[0].queues, 2);
    assert_eq!(host.fdb(&FdbFilter::default()).expect("the addresses").len(), 1);
    let stats = host.stats(true).expect("an exact reading");
    assert_eq!((stats.ports.len(), stats.violations), (2, Vec::new()));
    host.del_port("vm2", true).expect("a port less");
    assert!(!directory.join("vm2.sock").exists(), "a port takes its socket with it");
    assert_eq!(std::fs::read_to_string(&path).expect("the file"), before);

    // The host refuses a port if it cannot create the port's socket. Nothing changes.
    let lost = Port {
        tenant: Some("red".into()),
        vlan: "100".parse().ok(),
        ..Port::new("lost", VhostUser::new("/nowhere/at/all.sock"))
    };
    let error = host.add_port(lost, true).expect_err("no such directory");
    assert!(error.object.contains("lost"), "{error}");
    assert_eq!(host.ports().len(), 1);
    host.tick(Nanos::from_secs(1));
    assert!(!host.status().workers[0].stalled);
    host.shutdown().expect("an orderly end");
    assert!(host.stats(true).is_err());
}

#[test]
fn ports_are_dealt_to_two_workers_and_move_when_they_are_told_to() {
    let usable = penstock_control::config::Machine::here().cores.unwrap_or_default();
    let [first, second] = usable.into_iter().take(2).collect::<Vec<_>>()[..] else {
        penstock_testing::skip("needs two processors");
        return;
    };
    let directory = temp_dir();
    let path = write_config(&directory);
    let text = std::fs::read_to_string(&path).expect("the file");
    let cores = format!("[worker]\ncores = [{first}, {second}]\n");
    let text = text
        .replace("[worker]\n", &cores)
        .replace("vlan = 100\n", "vlan = 100\nvhost-user.queues = 2\n");
    std::fs::write(&path, text).expect("a file");
    let config = config::load(&path).expect("a right file");
    let host = Host::start(config, Some(path.clone())).expect("two workers");
    let workers = host.status().workers;
    assert_eq!(
        workers.iter().map(|w| (w.id, w.core)).collect::<Vec<_>>(),
        [(0, first), (1, second)]
    );
    assert_eq!(host.ports()[0].workers, [0, 1], "a queue pair each");
    let set = |value: &str| host.set_port("vm1", &[("worker".to_owned(), value.to_owned())], true);
    let report = set("1").expect("there is a worker 1");
    assert_eq!(report.changes, ["port vm1 changed"], "not attached again");
    assert_eq!(host.ports()[0].workers, [1, 1]);
    set("0").expect("there is a worker 0");
    assert_eq!(host.ports()[0].workers, [0, 0]);
    let error = set("2").expect_err("there is no worker 2");
    assert!(error.to_string().contains("write a number from 0 to 1"), "{error}");
    assert_eq!(host.ports()[0].workers, [0, 0]);
    set("").expect("back to the default");
    assert_eq!(host.ports()[0].workers, [0, 1]);
    let addresses = host.fdb(&FdbFilter::default()).expect("the addresses");
    assert_eq!(addresses.len(), 1, "told once, though both workers know it: {addresses:?}");
    let stats = host.stats(true).expect("an exact reading");
    assert_eq!((stats.workers.len(), stats.violations.len()), (2, 0));
    host.shutdown().expect("ends");
}

#[test]
fn a_port_rings_its_vms_bell_where_that_can_be_heard() {
    let cores = config::Machine::here().cores.unwrap_or_default();
    let (Some(first), Some(last)) = (cores.first(), cores.last().filter(|_| cores.len() > 1))
    else {
        penstock_testing::skip("needs two processors");
        return;
    };
    let (directory, run_dir) = (temp_dir(), memory_dir());
    let path = write_config(&directory);
    let of = |run_dir: &Path, weight: u32| {
        let text = std::fs::read_to_string(&path).expect("the file");
        let text = text.split("[vcpu]").next().unwrap_or_default().to_owned();
        let text = text.replace("[worker]\nidle", &format!("[worker]\ncores = [{last}]\nidle"));
        let vcpu = format!("[vcpu]\ncpus = [{first}]\nrun_dir = \"{}\"\n", run_dir.display());
        let vm = format!("[[vm]]\nname = \"web\"\npid = 1\nvcpu_weight = {weight}\n");
        std::fs::write(&path, format!("{text}{vcpu}{vm}")).expect("a file");
    };
    // `run_dir` is a file, so no bell can be opened. This causes only a warning.
    of(&directory.join("host.toml"), 1);
    let config = config::load(&path).expect("a right file");
    let host = Host::start(config, Some(path.clone())).expect("a worker");
    let set = |to: &str| host.set_port("vm1", &[("vm".to_owned(), to.to_owned())], false);
    let report = set("web").expect("a change");
    assert!(
        report.warnings[0].starts_with("vCPU schedulers receive no frame events"),
        "{:?}",
        report.warnings
    );
    let unknown = set("db").expect_err("there is no such VM").to_string();
    assert!(unknown.contains("VM \"db\" does not exist"), "{unknown}");
    of(&run_dir, 2);
    let report = host.reload().expect("a reload");
    let restart = "restart `penstock vcpu run`";
    assert!(report.warnings.iter().any(|told| told.contains(restart)), "{report:?}");
    let report = set("web").expect("a change");
    assert_eq!(report.warnings, Vec::<String>::new());
    let bells = std::fs::read(run_dir.join("bells")).expect("the bells");
    let rung = |name: &[u8]| bells.windows(name.len()).any(|bytes| bytes == name);
    assert!(rung(b"web\0") && !rung(b"db\0"));
}
