//! The input is a file that a program reads at its start: the last plan of a host or switch, the
//! vCPU scheduler's table of leases, or the controller's store.
//!
//! **Rule.** A damaged file causes an error that names the file, or counts as empty, but is never
//! read in part. A plan that was read equals the plan that is written again. An entry of a table is
//! either a whole written entry or absent. A store that opens without error can be read and
//! written.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use penstock_controller::agent::{Agent, AgentSettings, Carried, HostSide, SideError};
use penstock_controller::hosts::HostPlan;
use penstock_controller::southbound::PortState;
use penstock_controller::store::{Embedded, Store as _, StoreError, Transaction, Write};
use penstock_controller::switch::{FabricSwitch, PortReading, SwitchSide};
use penstock_units::Nanos;
use penstock_vcpu_host::lease::{Entry, Identity, LeaseTable, MAX_ENTRIES};
use penstock_vcpu_host::policy::Policy;

use crate::agents::{block_on, directory};
use crate::input::Input;

/// Maximum number of changes to a file with a fixed layout.
const CHANGES_MAX: usize = 16;
const OWNER: Identity = Identity { pid: 7, tid: 7, started: 99 };

/// Runs the target on one input.
///
/// # Panics
/// Panics if a property of the target does not hold.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let directory = directory("saved");
    let file = directory.join("file");
    let _ = std::fs::remove_file(&file);
    match input.below(6) {
        0 => plan(&file, input.rest().to_vec()),
        1 | 2 => plan(&file, sealed(input.rest())),
        3 | 4 => table(&file, &mut input),
        _ => store(&file, &mut input),
    }
    std::fs::remove_dir_all(directory).expect("a directory");
}

/// Puts a valid checksum before `json`, so that the program also parses the JSON.
fn sealed(json: &[u8]) -> Vec<u8> {
    let sum = json.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    [format!("{sum:016x}\n").as_bytes(), json].concat()
}

/// Returns the bytes after the first line.
fn after_line(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
    &bytes[end..]
}

/// A data path with one port, `p`.
#[derive(Debug)]
struct Side;

#[tonic::async_trait]
impl HostSide for Side {
    async fn usage(&self) -> Result<BTreeMap<String, Carried>, SideError> {
        Ok(BTreeMap::new())
    }

    async fn apply(&self, _plan: &HostPlan) -> Result<(), SideError> {
        Ok(())
    }
}

#[tonic::async_trait]
impl SwitchSide for Side {
    async fn read(&self) -> Result<BTreeMap<String, PortReading>, SideError> {
        Ok([("p".to_owned(), PortReading::default())].into())
    }

    async fn apply(&self, ports: &BTreeMap<String, PortState>) -> Result<(), SideError> {
        assert!(ports.keys().all(|port| port == "p"), "a plan names an unknown port: {ports:?}");
        Ok(())
    }
}

/// Lets an agent and a switch each read the file as a stored plan.
fn plan(file: &Path, bytes: Vec<u8>) {
    std::fs::write(file, &bytes).expect("memory");
    let name = file.display().to_string();
    block_on(async {
        let settings = AgentSettings::new("h", vec!["localhost:1".to_owned()], None, file);
        let mut agent = Agent::new(settings, Arc::new(Side)).expect("right settings");
        agent.take_up().await;
        let state = agent.state().borrow().clone();
        // If the file has only a stamp, the error text does not name the file.
        match state.last_error {
            None => {
                assert_eq!(bytes, sealed(after_line(&bytes)), "a damaged file without an error")
            }
            Some(error) => {
                let is_told = error.contains(&name) || error.contains("did not store the");
                assert!(is_told, "{error:?} does not name {name}");
            }
        }
        let switch = FabricSwitch::new("s", file, Arc::new(Side));
        let taken = switch.take_up().await.expect("a data path without errors");
        let status = switch.status().borrow().clone();
        let error = status.last_error.unwrap_or_default();
        match taken {
            Some(stamp) => assert_eq!(status.stamp, stamp),
            None => {
                assert!(error.contains(&name) || error.contains("did not store the"), "{error}")
            }
        }
    });
    assert_eq!(std::fs::read(file).expect("the plan's file"), bytes, "reading changed the file");
}

fn entry(number: u32) -> Entry {
    Entry {
        thread: Identity { pid: 5, tid: number, started: u64::from(number) * 3 },
        saved: Policy::Fair { nice: -3, slice: Nanos(0) },
        by: 1,
        until: Nanos(u64::from(number)),
    }
}

/// Overwrites some nonzero bytes of the file with bytes of the input, or shortens the file.
fn damage(bytes: &mut Vec<u8>, input: &mut Input<'_>) {
    let used: Vec<usize> =
        bytes.iter().enumerate().filter_map(|(at, byte)| (*byte != 0).then_some(at)).collect();
    for _ in 0..CHANGES_MAX {
        if input.is_empty() {
            return;
        }
        let at = usize::try_from(input.u32()).unwrap_or(0) % used.len().max(1);
        let at = used.get(at).copied().unwrap_or(0);
        if input.below(16) == 0 {
            bytes.truncate(at);
            continue;
        }
        let length = input.below(16);
        for (to, from) in bytes.iter_mut().skip(at).zip(input.slice(length)) {
            *to = *from;
        }
    }
}

/// Damages a table of leases and reads the table.
fn table(file: &Path, input: &mut Input<'_>) {
    {
        let table = LeaseTable::create(file, OWNER).expect("memory");
        for number in 1..=4_u32 {
            table.put(usize::try_from(number).unwrap_or(0), &entry(number)).expect("room");
        }
    }
    let mut bytes = std::fs::read(file).expect("a new file");
    damage(&mut bytes, input);
    std::fs::write(file, &bytes).expect("memory");
    let table = match LeaseTable::open(file) {
        Ok(table) => table,
        Err(error) => {
            let words = error.to_string();
            assert!(words.contains(&file.display().to_string()), "{words}");
            return;
        }
    };
    let all = table.entries().expect("whole");
    assert!(all.len() <= MAX_ENTRIES);
    for (slot, found) in all {
        assert!(found == entry(found.thread.tid), "a damaged entry at {slot}: {found:?}");
        assert_eq!(table.get(slot).expect("whole"), Some(found));
    }
    let (_, _) = (table.owner().expect("whole"), table.beats().expect("whole"));
}

fn put(key: &str) -> Transaction {
    let value = b"5".to_vec();
    let writes = vec![Write::Put { key: key.to_owned(), value, lease: None }];
    Transaction { compare: Vec::new(), writes }
}

/// Returns the file content of a store with a few keys.
fn whole_store() -> &'static Vec<u8> {
    static WHOLE: OnceLock<Vec<u8>> = OnceLock::new();
    WHOLE.get_or_init(|| {
        let directory = directory("whole");
        let file = directory.join("store");
        block_on(async {
            let store = Embedded::open(&file).await.expect("memory");
            for key in ["penstock/mode", "penstock/tenants/a", "penstock/tenants/b"] {
                store.commit(put(key)).await.expect("memory");
            }
        });
        let bytes = std::fs::read(&file).expect("a new file");
        std::fs::remove_dir_all(directory).expect("a directory");
        bytes
    })
}

/// Damages the file of a controller's store and opens the store.
fn store(file: &Path, input: &mut Input<'_>) {
    let mut bytes = whole_store().clone();
    damage(&mut bytes, input);
    std::fs::write(file, &bytes).expect("memory");
    block_on(async {
        let store = match Embedded::open(file).await {
            Ok(store) => store,
            Err(error) => {
                let words = error.to_string();
                assert!(words.contains(&file.display().to_string()), "{words}");
                // A release build would abort at a panic, but the test build catches the panic.
                assert!(!words.contains("panic"), "{words}");
                let is_told =
                    matches!(error, StoreError::Damaged { .. } | StoreError::Unavailable { .. });
                assert!(is_told, "{words}");
                return;
            }
        };
        let before = store.list("penstock/").await.expect("a readable store");
        for found in &before.entries {
            assert_eq!(found.value, b"5", "a damaged value of key {}", found.key);
        }
        store.commit(put("penstock/new")).await.expect("a writable store");
        let after = store.list("penstock/").await.expect("a readable store");
        assert_eq!(after.entries.len(), before.entries.len() + 1);
    });
}
