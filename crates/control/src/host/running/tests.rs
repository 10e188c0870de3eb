//! Tests of the host without sockets. A fake switch records the calls of the host.

mod fabric;
mod fabric_switch;
mod learning;
mod links;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};

use penstock_dataplane::counters::{PortCounterSets, PortCounters, PortReading, WorkerReading};
use penstock_dataplane::port::{AttachState, AttachStatus};
use penstock_dataplane::snapshot::Snapshot;
use penstock_dataplane::worker::{FdbChunk, WorkerError};
use penstock_units::{MacAddr, PortId, TscRate, WorkerId};

use super::*;
use crate::config::{Action, Attachment, Tap};
use crate::host::data_path::{AttachError, Link};

/// Calls of the fake switch in order, and the attachments that the fake switch refuses.
#[derive(Default)]
struct Record {
    calls: Vec<String>,
    /// Interfaces and sockets that the fake switch refuses to attach.
    busy: BTreeSet<String>,
    attached: BTreeMap<u16, Arc<PortCounters>>,
    pinned: BTreeSet<(u16, MacAddr, u16)>,
    snapshot: Option<Arc<Snapshot>>,
    heartbeat: u64,
    /// The host. While it has one, the fake switch notes at each question for the TSC's rate
    /// whether the host's state is locked.
    host: Weak<Host>,
    locked: Vec<bool>,
    /// Features that the driver of each port negotiates when the port is attached.
    features: Vec<&'static str>,
    /// Number of VMs under limits of pairs when the last snapshot came.
    limited: usize,
    /// Whether the worker has ended.
    ended: bool,
}

#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Record>>);

struct FakeLink(Vec<&'static str>);

impl Link for FakeLink {
    fn status(&self) -> AttachStatus {
        AttachStatus {
            state: AttachState::Up,
            error: None,
            features: self.0.clone(),
            ring_sizes: Vec::new(),
            queues_up: 1,
        }
    }
}

impl Fake {
    fn calls(&self) -> Vec<String> {
        core::mem::take(&mut lock(&self.0).calls)
    }

    fn busy(&self, target: &str, busy: bool) {
        let mut record = lock(&self.0);
        if busy {
            record.busy.insert(target.to_owned());
        } else {
            record.busy.remove(target);
        }
    }

    fn counters(&self, id: u16) -> Arc<PortCounters> {
        Arc::clone(&lock(&self.0).attached[&id])
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        lock(&self.0).snapshot.clone().unwrap()
    }
}

impl DataPath for Fake {
    fn attach(
        &self,
        id: PortId,
        name: &str,
        attachment: &Attachment,
        _: Option<u16>,
        counters: &PortCounterSets,
    ) -> Result<Arc<dyn Link>, AttachError> {
        let mut record = lock(&self.0);
        if record.busy.contains(&attachment.target()) {
            record.calls.push(format!("attach {name}: busy"));
            let problem = format!("{}: it is in use", attachment.target());
            return Err(AttachError { problem, remedy: "end the other".to_owned() });
        }
        record.calls.push(format!("attach {name} {id}"));
        let counters = Arc::clone(counters.of(WorkerId(0)));
        assert!(record.attached.insert(id.0, counters).is_none(), "slot {id} is taken");
        Ok(Arc::new(FakeLink(record.features.clone())))
    }

    fn detach(&self, id: PortId, _: Arc<dyn Link>) -> Result<(), WorkerError> {
        let mut record = lock(&self.0);
        record.calls.push(format!("detach {id}"));
        record.pinned.retain(|(_, _, port)| *port != id.0);
        assert!(record.attached.remove(&id.0).is_some(), "slot {id} is empty");
        Ok(())
    }

    fn swap_snapshot(&self, snapshot: Arc<Snapshot>) -> Result<(), WorkerError> {
        let mut record = lock(&self.0);
        record.calls.push("swap".to_owned());
        if record.ended {
            return Err(WorkerError::Gone(WorkerId(0)));
        }
        let table = snapshot.ports.iter().flatten().find_map(|port| port.pairs.as_ref());
        record.limited = table.map_or(0, |table| table.limited().count());
        // No port may be treated by another port's policy. The policy of an attached port exists
        // and does not change.
        for id in record.attached.keys() {
            assert!(snapshot.port(*id).is_some(), "port {id} is attached without a policy");
        }
        record.snapshot = Some(snapshot);
        Ok(())
    }

    fn checkpoint(&self) -> Result<Vec<(PortId, PortReading)>, WorkerError> {
        let record = lock(&self.0);
        Ok(record.attached.iter().map(|(id, c)| (PortId(*id), c.read())).collect())
    }

    fn fdb_chunk(&self, from: usize, max: usize) -> Result<FdbChunk, WorkerError> {
        assert!(from == 0 && max > 0);
        Ok(FdbChunk::default())
    }

    fn fdb_flush(&self, port: Option<PortId>, domain: Option<u16>) -> Result<usize, WorkerError> {
        lock(&self.0).calls.push(format!("flush {:?} {domain:?}", port.map(|p| p.0)));
        Ok(1)
    }

    fn fdb_static(
        &self,
        domain: u16,
        mac: MacAddr,
        port: PortId,
        add: bool,
    ) -> Result<(), WorkerError> {
        let mut record = lock(&self.0);
        if add {
            record.pinned.insert((domain, mac, port.0));
        } else {
            record.pinned.remove(&(domain, mac, port.0));
        }
        Ok(())
    }

    fn place(&self, id: PortId, queues: u16, worker: Option<u16>) -> Result<usize, WorkerError> {
        lock(&self.0).calls.push(format!("place {id} {queues} {worker:?}"));
        Ok(queues.into())
    }

    fn owners(&self, _: PortId, queues: u16) -> Vec<u16> {
        vec![0; queues.into()]
    }

    fn workers(&self) -> Vec<(WorkerReading, Option<u32>)> {
        let heartbeat = lock(&self.0).heartbeat;
        let reading = WorkerReading { heartbeat, ..WorkerReading::default() };
        vec![(reading, Some(1)), (reading, Some(2))]
    }

    fn tsc(&self) -> TscRate {
        let mut record = lock(&self.0);
        if let Some(host) = record.host.upgrade() {
            record.locked.push(host.core.shared.try_lock().is_err());
        }
        TscRate::from_hz(1_000_000_000)
    }

    fn uptime(&self) -> Nanos {
        Nanos::from_secs(7)
    }

    fn stop(&self) -> Result<(), WorkerError> {
        lock(&self.0).calls.push("stop".to_owned());
        Ok(())
    }
}

const TEXT: &str = r#"# a host
[host]
name = "h"

[[tenant]]
name = "red" # the first
vlans = [100, 101]

[[port]]
name = "vm1"
tenant = "red"
vhost-user.socket = "/run/vm1.sock"
vlan = 100 # like vm2

[[port]]
name = "vm2"
tenant = "red"
vhost-user.socket = "/run/vm2.sock"
vlan = 100

[[fdb]]
mac = "52:54:00:00:00:02"
port = "vm2"

[[rule]]
name = "web"
port = "vm1"
match = { proto = "tcp", dst_port = 80 }
actions = ["output:vm2"]
"#;

/// A configuration file that is deleted at the end of a test.
struct TempFile(PathBuf);

impl TempFile {
    fn new(test: &str, text: &str) -> Self {
        let name = format!("penstock-control-{}-{test}.toml", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.0).unwrap()
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn start(file: &TempFile) -> (Host, Fake) {
    start_on(file, Fake::default())
}

fn start_on(file: &TempFile, fake: Fake) -> (Host, Fake) {
    let config = config::parse(&file.text(), "").unwrap();
    let switch = Box::new(fake.clone());
    let host =
        Host::start_with(config, Some(file.0.clone()), <_>::default(), |_| Ok(switch)).unwrap();
    (host, fake)
}

fn tap(name: &str) -> Port {
    Port {
        tenant: Some("red".into()),
        vlan: Some("101".parse().unwrap()),
        ..Port::new(name, Tap::new(name))
    }
}

#[test]
fn a_start_swaps_first_and_attaches_then() {
    let file = TempFile::new("start", TEXT);
    let (host, fake) = start(&file);
    assert_eq!(fake.calls(), ["swap", "attach vm1 0", "attach vm2 1"]);
    assert_eq!(lock(&fake.0).pinned.len(), 1);
    assert_eq!(host.status().generation, 1);
    assert_eq!(host.ports()[0].state, "up");
    assert_eq!(host.flows()[0].matching, "proto=tcp dst_port=80");
    assert_eq!(host.config_toml(), TEXT);
    host.shutdown().unwrap();
    assert_eq!(fake.calls(), ["detach 0", "detach 1", "stop"]);
    assert_eq!(host.add_port(tap("t"), false).unwrap_err().kind, ErrorKind::Failed);
}

#[test]
fn a_saved_change_keeps_the_comments_and_a_transient_one_leaves_the_file() {
    let file = TempFile::new("save", TEXT);
    let (host, fake) = start(&file);
    fake.calls();
    let report = host.add_port(tap("t1"), true).unwrap();
    assert_eq!((report.generation, report.changes), (2, vec!["port t1 added".to_owned()]));
    assert_eq!(fake.calls(), ["swap", "attach t1 2"]);
    let saved = file.text();
    // The new table follows the last table of its kind.
    assert!(saved.contains("vlan = 100\n\n[[port]]\nname = \"t1\"\n"), "{saved}");
    let mut left = saved.lines();
    assert!(TEXT.lines().all(|line| left.any(|l| l == line)), "every line is still there: {saved}");
    host.add_port(tap("t2"), false).unwrap();
    assert_eq!(file.text(), saved);
    assert!(host.config_toml().contains("t2"));
    host.del_port("t2", true).unwrap();
    host.del_port("t1", true).unwrap();
    assert_eq!(file.text(), TEXT);
    assert_eq!(host.config_toml(), TEXT);
    assert_eq!(host.config().ports.len(), 2);
}

#[test]
fn setting_a_vlan_swaps_and_setting_a_socket_attaches_anew() {
    let file = TempFile::new("set", TEXT);
    let (host, fake) = start(&file);
    fake.calls();
    let set =
        |key: &str, value: &str| host.set_port("vm2", &[(key.to_owned(), value.to_owned())], true);
    set("vlan", "101").unwrap();
    assert_eq!(fake.calls(), ["swap"]);
    set("worker", "0").unwrap();
    assert_eq!(fake.calls(), ["swap", "place 1 1 Some(0)"], "moved, not attached again");
    set("worker", "").unwrap();
    assert_eq!(fake.calls(), ["swap", "place 1 1 None"]);
    assert_eq!(set("worker", "1").unwrap_err().kind, ErrorKind::Invalid, "there is one worker");
    let report = set("socket", "/run/new.sock").unwrap();
    assert_eq!(report.changes, ["port vm2 changed", "port vm2 attached again"]);
    assert_eq!(fake.calls(), ["detach 1", "swap", "attach vm2 1"]);
    assert_eq!(lock(&fake.0).pinned.len(), 1, "a port attached again gets its addresses again");
    assert!(file.text().contains("vlan = 101") && file.text().contains("/run/new.sock"));
    let error = set("vlan", "7").unwrap_err();
    assert_eq!((error.kind, error.object.as_str()), (ErrorKind::Invalid, "port \"vm2\""));
    assert_eq!(fake.calls(), Vec::<String>::new());
}

#[test]
fn ports_that_do_not_change_keep_their_policies() {
    let file = TempFile::new("policies", TEXT);
    let (host, fake) = start(&file);
    let before = fake.snapshot();
    host.set_port("vm2", &[("cycle_weight".to_owned(), "3".to_owned())], false).unwrap();
    let after = fake.snapshot();
    let kept = |id| Arc::ptr_eq(before.port(id).unwrap(), after.port(id).unwrap());
    assert_eq!((kept(0), kept(1)), (true, false));
}

#[test]
fn an_attachment_that_fails_is_rolled_back() {
    let file = TempFile::new("rollback", TEXT);
    let (host, fake) = start(&file);
    fake.busy("t1", true);
    let before = fake.snapshot();
    let error = host.add_port(tap("t1"), true).unwrap_err();
    assert_eq!(error.to_string(), "port \"t1\": t1: it is in use; end the other");
    assert_eq!(error.kind, ErrorKind::Failed);
    assert_eq!((file.text(), host.config_toml()), (TEXT.to_owned(), TEXT.to_owned()));
    assert_eq!(fake.snapshot().ports.len(), before.ports.len());
    assert_eq!(host.ports().len(), 2);
    fake.calls();
    fake.busy("/run/b.sock", true);
    let change = [("socket".to_owned(), "/run/b.sock".to_owned())];
    host.set_port("vm1", &change, true).unwrap_err();
    // The host attaches the old socket again.
    assert_eq!(fake.calls(), ["detach 0", "swap", "attach vm1: busy", "swap", "attach vm1 0"]);
    assert_eq!(host.ports()[0].state, "up");
}

#[test]
fn a_port_that_goes_before_those_who_bought_is_told_when_it_is_set() {
    let text = TEXT.replacen("[[tenant]]", "[worker]\nschedule = \"hbs\"\n\n[[tenant]]", 1);
    let bought = "ingress_policy = \"cycles-strict\"\ncycles = \"100M\"\npriority = 2\n\
                  vhost-user.queues = 2\n";
    let text = text.replacen("vlan = 100\n\n[[fdb]]", &format!("vlan = 100\n{bought}\n[[fdb]]"), 1);
    let file = TempFile::new("before", &text);
    let (host, _) = start(&file);
    let set = |class: &str| {
        host.set_port("vm1", &[("priority".to_owned(), class.to_owned())], true).unwrap().warnings
    };
    let warnings = set("1");
    assert!(warnings[0].contains("is served before class 2 of port vm2"), "{warnings:?}");
    assert_eq!(set("3"), [""; 0]);
}

#[test]
fn what_a_connected_driver_has_negotiated_is_not_taken_from_it() {
    let file = TempFile::new("negotiated", TEXT);
    let fake = Fake::default();
    lock(&fake.0).features = vec!["csum", "guest-tso4", "mrg-rxbuf"];
    let (host, fake) = start_on(&file, fake);
    fake.calls();
    let set =
        |value: &str| host.set_port("vm1", &[("offloads".to_owned(), value.to_owned())], true);
    for (value, lost) in
        [("false", "csum, guest-tso4"), ("{ csum = true, tso = false }", "guest-tso4")]
    {
        let error = set(value).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Conflict);
        let told = format!(
            "port \"vm1\": the VM's driver is connected and uses {lost}, which the new `offloads` \
             disables; shut the VM down first"
        );
        assert!(error.to_string().starts_with(&told), "{error}");
    }
    let narrow = TEXT.replacen("name = \"vm1\"", "name = \"vm1\"\nvhost-user.offloads = false", 1);
    std::fs::write(&file.0, narrow).unwrap();
    let error = host.reload().unwrap_err();
    assert!(error.0[0].problem.starts_with("the VM's driver is connected"), "{error}");
    std::fs::write(&file.0, TEXT).unwrap();
    assert_eq!(fake.calls(), [""; 0], "nothing was changed");
    // Another socket belongs to another driver. A driver that uses none of the features loses
    // nothing.
    lock(&fake.0).features = vec!["mrg-rxbuf"];
    let moved = [("socket", "/run/other.sock"), ("offloads", "false")];
    let moved = moved.map(|(key, value)| (key.to_owned(), value.to_owned()));
    host.set_port("vm1", &moved, true).unwrap();
    set("{ csum = true, tso = false }").unwrap();
    set("true").unwrap();
}

#[test]
fn refused_requests_say_why_and_change_nothing() {
    let file = TempFile::new("refused", TEXT);
    let (host, fake) = start(&file);
    fake.calls();
    let kind = |result: Result<ChangeReport, ApiError>| result.unwrap_err().kind;
    assert_eq!(kind(host.del_port("nobody", true)), ErrorKind::NotFound);
    assert_eq!(
        kind(host.add_port(Port { name: "vm1".into(), ..tap("t") }, true)),
        ErrorKind::Conflict
    );
    // A rule refers to the port.
    let error = host.del_port("vm2", true).unwrap_err();
    assert_eq!(
        error.to_string(),
        "port \"vm2\": fdb 52:54:00:00:00:02 and rule \"web\" need it; first delete or change the \
         objects that need this object"
    );
    let error = host.del_tenant("red", true).unwrap_err();
    assert_eq!(error.object, "tenant \"red\"");
    assert_eq!(error.problem, "port \"vm1\" and port \"vm2\" need it");
    let rule = Rule::new("web", vec![Action::Drop]);
    assert_eq!(kind(host.add_rule(rule, true)), ErrorKind::Conflict);
    // A saved object must not refer to an object that is not saved.
    host.add_tenant(Tenant::new("blue"), false).unwrap();
    let port = Port { tenant: Some("blue".into()), vlan: None, ..tap("t") };
    let error = host.add_port(port.clone(), true).unwrap_err();
    assert!(error.problem.contains("there is no tenant \"blue\""), "{error}");
    host.add_port(port, false).unwrap();
    let filter = FdbFilter { tenant: Some("green".into()), ..FdbFilter::default() };
    assert_eq!(host.fdb(&filter).unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(file.text(), TEXT);
}

#[test]
fn a_file_that_someone_else_changed_is_not_overwritten() {
    let file = TempFile::new("conflict", TEXT);
    let (host, _) = start(&file);
    std::fs::write(&file.0, format!("{TEXT}# mine\n")).unwrap();
    assert_eq!(host.add_port(tap("t1"), true).unwrap_err().kind, ErrorKind::Conflict);
    host.reload().unwrap();
    host.add_port(tap("t1"), true).unwrap();
    assert!(file.text().contains("# mine") && file.text().contains("t1"));
    // The error about a file that is gone names the file.
    std::fs::remove_file(&file.0).unwrap();
    let error = host.add_port(tap("t2"), true).unwrap_err();
    assert_eq!(
        (error.kind, error.object),
        (ErrorKind::Failed, format!("file {}", file.0.display()))
    );
    assert!(error.problem.contains("cannot be opened"), "{}", error.problem);
}

#[test]
fn a_reload_touches_only_what_changed() {
    let file = TempFile::new("reload", TEXT);
    let (host, fake) = start(&file);
    fake.calls();
    assert_eq!(host.reload().unwrap().changes, Vec::<String>::new());
    assert_eq!(fake.calls(), Vec::<String>::new());

    let vm3 = "\n[[port]]\nname = \"vm3\"\ntenant = \"red\"\n\
               vhost-user.socket = \"/run/vm3.sock\"\nvlan = 101\n";
    let without_vm1 = TEXT
        .replace("name = \"vm1\"", "name = \"vm9\"")
        .replace("port = \"vm1\"", "port = \"vm9\"");
    std::fs::write(&file.0, format!("{without_vm1}{vm3}")).unwrap();
    fake.busy("/run/vm3.sock", true);
    let report = host.reload().unwrap();
    assert_eq!(
        report.changes,
        ["port vm1 removed", "port vm3 added", "port vm9 added", "rule web changed"]
    );
    assert_eq!(report.warnings, ["port vm3: /run/vm3.sock: it is in use; end the other"]);
    // vm2 keeps its number and stays attached. Each new port gets an unused number.
    assert_eq!(fake.calls(), ["detach 0", "swap", "attach vm3: busy", "attach vm9 2"]);
    let state = |name: &str| host.ports().into_iter().find(|p| p.name == name).unwrap().state;
    assert_eq!((state("vm3"), state("vm2")), ("error".to_owned(), "up".to_owned()));

    // A tick retries the attachment at most once a second.
    host.tick(Nanos::from_millis(1));
    host.tick(Nanos::from_millis(500));
    assert_eq!(fake.calls(), ["attach vm3: busy"]);
    fake.busy("/run/vm3.sock", false);
    host.tick(Nanos::from_millis(1_500));
    assert_eq!(fake.calls(), ["attach vm3 3"]);
    assert_eq!(state("vm3"), "up");
}

#[test]
fn a_reload_of_a_wrong_file_changes_nothing() {
    let file = TempFile::new("wrong", TEXT);
    let (host, fake) = start(&file);
    fake.calls();
    std::fs::write(&file.0, TEXT.replace("vlan = 100\n", "vlan = 300\n")).unwrap();
    let errors = host.reload().unwrap_err();
    assert_eq!(errors.0.len(), 1);
    assert_eq!((errors.0[0].line, errors.0[0].column), (19, 8));
    assert_eq!((fake.calls(), host.config_toml()), (Vec::new(), TEXT.to_owned()));
    std::fs::write(&file.0, TEXT.replace("name = \"h\"", "name = \"other\"")).unwrap();
    let report = host.reload().unwrap();
    assert_eq!(report.warnings, ["[host]: takes effect when the daemon is started again"]);
    assert_eq!(host.status().name, "h");
    let moved = TEXT.replace("name = \"h\"\n", "name = \"h\"\nstate_dir = \"/moved\"\n");
    std::fs::write(&file.0, moved).unwrap();
    let report = host.reload().unwrap();
    assert_eq!(report.warnings, ["[host]: takes effect when the daemon is started again"]);
    let (text, used) = (host.config_toml(), host.status().state_dir);
    assert!(text.contains("/moved") && used != "/moved", "{used}");
    assert_eq!(used, host.config().host.state_dir.display().to_string());
}

#[test]
fn sums_go_on_holding_when_a_port_is_deleted() {
    let file = TempFile::new("sums", TEXT.split("[[fdb]]").next().unwrap());
    let (host, fake) = start(&file);
    let (one, two) = (fake.counters(0), fake.counters(1));
    one.rx_frames.add(10);
    one.forwarded.add(10);
    two.tx_frames.add(10);
    assert_eq!(host.stats(true).unwrap().violations, Vec::<String>::new());
    host.del_port("vm2", true).unwrap();
    let stats = host.stats(true).unwrap();
    assert_eq!(stats.violations, Vec::<String>::new());
    let names: Vec<&str> = stats.ports.iter().map(|port| port.port.as_str()).collect();
    assert_eq!(names, ["vm1", "(deleted)"]);
    two.tx_frames.add(1);
    one.rx_frames.add(1);
    let stats = host.stats(true).unwrap();
    assert_eq!(stats.violations.len(), 1, "{:?}", stats.violations);
    assert!(stats.violations[0].starts_with("port vm1: rx 11 "));
    assert_eq!(host.stats(false).unwrap().violations, Vec::<String>::new());
}

#[test]
fn a_stalled_worker_is_seen_while_a_change_waits() {
    let file = TempFile::new("stall", TEXT);
    let (host, _) = start(&file);
    host.tick(Nanos::from_secs(1));
    let busy = lock(&host.changing);
    host.tick(Nanos::from_secs(3));
    assert!(host.status().workers[0].stalled);
    assert_eq!(host.status().workers[0].heartbeat_age_ms, 2_000);
    assert_eq!(host.status().workers[1].core, 2, "each worker has its line");
    drop(busy);
}

#[test]
fn a_host_without_a_file_lives_in_memory() {
    let config = config::parse(TEXT, "").unwrap();
    let fake = Fake::default();
    let switch = Box::new(fake.clone());
    let host = Host::start_with(config, None, <_>::default(), |_| Ok(switch)).unwrap();
    host.add_port(tap("t1"), true).unwrap();
    assert_eq!(host.port_configs().len(), 3);
    assert!(config::parse(&host.config_toml(), "").is_ok());
    assert!(host.reload().is_err());
}

#[test]
fn the_socket_of_the_command_line_survives_changes() {
    let file = TempFile::new("override", TEXT);
    let mut config = config::parse(TEXT, "").unwrap();
    config.host.socket = PathBuf::from("/run/other.sock");
    let switch = Box::new(Fake::default());
    let host =
        Host::start_with(config, Some(file.0.clone()), <_>::default(), |_| Ok(switch)).unwrap();
    host.add_port(tap("t1"), true).unwrap();
    assert_eq!(host.reload().unwrap().warnings, Vec::<String>::new());
    assert_eq!(host.config().host.socket, PathBuf::from("/run/other.sock"));
}

/// Starts a host with a contract for one million frames per second, of 1,064 bytes each. By the
/// cost model of this test, the frames of the contract cost 200 million cycles per second.
const SOLD: &str = r#"[host]
name = "h"
socket = "/run/sold.sock"
[worker]
cores = [1, 2]
[model]
file = "MODEL"
[[tenant]]
name = "red"
[[port]]
name = "vm1"
tap.interface = "t1"
tenant = "red"
ingress_policy = "cycles-strict"
contract = { rate = "1Mpps", size = 1064 }
"#;

fn sold(name: &str) -> (TempFile, TempFile, Host, Fake) {
    let model = TempFile::new(&format!("{name}-model"), &crate::plan::tests::model_toml());
    let file = TempFile::new(name, &SOLD.replace("MODEL", &model.0.display().to_string()));
    let (host, fake) = start(&file);
    (model, file, host, fake)
}

fn entitlement(fake: &Fake) -> u64 {
    fake.snapshot().port(0).unwrap().qos.entitlement.0
}

#[test]
fn a_contract_becomes_an_entitlement_and_what_does_not_fit_changes_nothing() {
    let (_model, _file, host, fake) = sold("sold");
    assert_eq!(entitlement(&fake), 200_000_000);
    assert!(fake.snapshot().port(0).unwrap().qos.price.is_some());
    fake.calls();
    let more = [("contract".to_owned(), "{ rate = \"90Mpps\", size = 1064 }".to_owned())];
    let error = host.set_port("vm1", &more, true).unwrap_err();
    assert!(error.problem.contains("cycles per second are sold"), "{error}");
    assert_eq!((fake.calls(), entitlement(&fake)), (Vec::new(), 200_000_000));
    let less = [("cycles".to_owned(), "150M".to_owned())];
    let report = host.set_port("vm1", &less, true).unwrap();
    assert!(report.warnings[0].contains("`cycles` is used"), "{:?}", report.warnings);
    assert_eq!(entitlement(&fake), 150_000_000);
}

#[test]
fn a_reload_with_a_wrong_model_changes_nothing() {
    let (model, _file, host, fake) = sold("spoilt");
    fake.calls();
    std::fs::write(&model.0, "[about]\nversion = 9\n").unwrap();
    let errors = host.reload().unwrap_err();
    assert!(errors.to_string().contains("[batch] is missing"), "{errors}");
    assert_eq!((fake.calls(), entitlement(&fake)), (Vec::new(), 200_000_000));
}

#[test]
fn a_vm_that_is_held_back_gets_what_it_bought_although_its_frames_cost_more() {
    let (_model, _file, host, fake) = sold("learn");
    let hz = host.status().tsc_hz;
    let generation = fake.snapshot().generation;
    let counters = fake.counters(0);
    host.tick(Nanos::from_secs(1));
    for second in 2..8 {
        // A frame costs 220 cycles, but the model says 200.
        let frames = entitlement(&fake) / 220;
        counters.rx_frames.add(frames);
        counters.rx_bytes.add(frames * 1_060);
        counters.cache_hits.add(frames);
        counters.cycles.add(frames * 220);
        counters.throttled.add(hz / 2);
        host.tick(Nanos::from_secs(second));
    }
    assert!(entitlement(&fake).abs_diff(220_000_000) < 2_000_000, "{}", entitlement(&fake));
    assert_eq!(fake.snapshot().generation, generation, "what was cached holds");
    let (name, state) = host.learning().remove(0);
    assert_eq!(name, "vm1");
    assert!((state.model_error.unwrap() - 0.1).abs() < 0.01, "{state:?}");
    // Another change keeps the learned corrections.
    host.add_port(Port { vlan: None, ..tap("t9") }, false).unwrap();
    assert!(entitlement(&fake).abs_diff(220_000_000) < 2_000_000);
}

fn bound_us(host: &Host, growth: &crate::explain::Growth) -> u64 {
    let mut answer =
        crate::api::Explanation { port: "vm1".to_owned(), ..crate::api::Explanation::default() };
    host.core.bound(&mut answer, growth);
    answer.bound_us.unwrap_or_else(|| panic!("{}", answer.latency))
}

/// Adds the traffic of one second to the counters: `frames` received frames, which each hit the
/// exact-match cache and cost `cost` cycles.
fn send(counters: &PortCounters, frames: u64, size: u64, cost: u64) {
    counters.rx_frames.add(frames);
    counters.rx_bytes.add(frames * (size - 4));
    counters.cache_hits.add(frames);
    counters.cycles.add(frames * cost);
}

#[test]
fn the_latency_bound_goes_by_what_full_batches_cost() {
    let (_model, _file, host, fake) = sold("calm");
    let (counters, growth) = (fake.counters(0), crate::explain::Growth::default());
    let before = bound_us(&host, &growth);
    host.tick(Nanos::from_secs(1));
    for second in 2..8 {
        // The port always had cycles, so its batches are small, and a frame costs 50 % more than in
        // the model.
        send(&counters, 10_000, 1_064, 300);
        host.tick(Nanos::from_secs(second));
    }
    let reported = host.learning()[0].1.model_error.unwrap();
    assert!((reported - 0.5).abs() < 0.01, "{reported}");
    assert_eq!(bound_us(&host, &growth), before, "small batches are no dearer batches");
    for second in 8..20 {
        send(&counters, entitlement(&fake) / 250, 1_064, 250);
        counters.throttled.add(host.status().tsc_hz / 2);
        host.tick(Nanos::from_secs(second));
    }
    assert!(bound_us(&host, &growth) > before, "full ones are");
}

#[test]
fn a_vm_whose_segments_become_what_it_declared_is_inside_its_profile() {
    let (_model, _file, host, fake) = sold("segments");
    let counters = fake.counters(0);
    host.tick(Nanos::from_secs(1));
    for second in 2..8 {
        // A request becomes 40 frames of 1,064 bytes: 54 bytes of headers, 1,006 of payload and the
        // FCS.
        let requests = 25_000;
        send(&counters, requests, 54 + 40 * 1_006 + 4, 4_000);
        counters.rx_tso.add(requests);
        counters.rx_segments.add(requests * 40);
        counters.rx_segment_headers.add(requests * 39 * 54);
        counters.throttled.add(host.status().tsc_hz / 2);
        host.tick(Nanos::from_secs(second));
    }
    let (_, state) = host.learning().remove(0);
    assert_eq!(state.breach, None);
    assert!((state.delivered.unwrap() - 1.0).abs() < 1e-9, "1 M frames a second: {state:?}");
    assert!((state.model_error.unwrap() + 0.5).abs() < 1e-9, "100 cycles of 200: {state:?}");
    // A batch of such requests costs more than a batch of plain frames, not half as much.
    let mut seen = crate::explain::PortGrowth { name: "vm1".to_owned(), ..Default::default() };
    seen.reading = counters.read();
    let growth = crate::explain::Growth { ports: vec![seen], ..Default::default() };
    assert!(bound_us(&host, &growth) > bound_us(&host, &crate::explain::Growth::default()));
}

#[test]
fn explain_bounds_a_class_by_what_is_in_force() {
    use crate::api::Explanation;
    use crate::explain::{Growth, PortGrowth};

    let bought = |cycles: &str, class: u8| {
        format!(
            "vlan = 100\ningress_policy = \"cycles-strict\"\ncycles = \"{cycles}\"\n\
             depth = 20000\npriority = {class}\n"
        )
    };
    let text = TEXT.replacen("vlan = 100 # like vm2\n", &bought("200M", 1), 1);
    let text = text.replacen("vlan = 100\n\n[[fdb]]", &(bought("100M", 2) + "\n[[fdb]]"), 1);
    let text = text.replacen("[[tenant]]", "[worker]\nschedule = \"hbs\"\n\n[[tenant]]", 1);
    let file = TempFile::new("bound", &text);
    let (host, fake) = start(&file);
    assert_eq!(fake.snapshot().port(1).unwrap().qos.depth.unwrap().0, 20_000);

    // A batch of 32 frames takes 10,000 cycles, which are 10 us. A batch of a lower class has 16
    // frames and takes 5 us.
    let mut seen = PortGrowth { name: "vm1".to_owned(), ..PortGrowth::default() };
    (seen.reading.rx_frames, seen.reading.cycles) = (1_000, 312_500);
    let growth = Growth { ports: vec![seen], ..Growth::default() };
    let ask = |port: &str, growth: &Growth| {
        let mut answer = Explanation { port: port.to_owned(), ..Explanation::default() };
        host.core.bound(&mut answer, growth);
        answer
    };
    // The port may put frames of 10,000 cycles into its ring at once. One batch may run before the
    // port's turn, and the port needs two rounds.
    let first = ask("vm1", &growth);
    assert_eq!(first.bound_us, Some(31), "{}", first.latency);
    // The bound is (5 begun + 4 rounds of 5 + 20 saved up + 10 into debt + 10 with a refill) / 0.8.
    let second = ask("vm2", &growth);
    assert_eq!(second.bound_us, Some(82), "{}", second.latency);
    let bound = second.bound.unwrap();
    assert_eq!((bound.port.as_str(), bound.rounds, bound.above), ("vm2", 4, 40_000));
    assert_eq!((bound.above_rate, bound.left_us), (200_000_000, Some(82)));

    let unknown = ask("vm2", &Growth::default());
    assert_eq!(unknown.bound_us, None);
    assert!(
        unknown.latency.starts_with("no bound: the cycles of a frame are not known"),
        "{}",
        unknown.latency
    );
    host.set_port("vm1", &[("ingress_policy".to_owned(), "none".to_owned())], false).unwrap();
    let free = ask("vm2", &growth);
    assert_eq!((free.bound_us, free.bound), (None, None));
    assert!(free.latency.contains("has no cycle bucket (vm1); give"), "{}", free.latency);
}
