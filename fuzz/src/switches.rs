//! The input is the answer of a gNMI target, or tables of SONiC's databases.
//!
//! **Rule.** The controller reads a switch's answer as a state, or refuses the answer with an error
//! that names the switch. Planned changes lead to exactly the requested state and to the decision's
//! stamp on all ports of the plan. The same plan applied again changes nothing. A refused change
//! has no effect, and a change of an older decision is refused.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_controller::Stamp;
use penstock_controller::southbound::gnmi::proto::{
    GetResponse, Notification, Path, TypedValue, Update, typed_value::Value as Typed,
};
use penstock_controller::southbound::gnmi::{self, GnmiSwitch};
use penstock_controller::southbound::sonic::{self, Endpoint, Entries, MapMode, SonicSwitch};
use penstock_controller::southbound::{
    Capabilities, Change, DriverError, ONE_STEP, PortInfo, SwitchState, step,
};
use penstock_units::BitsPerSecond;
use prost::Message as _;

use crate::input::Input;

const QUEUES: u8 = 4;
const PORTS: [&str; 2] = ["Ethernet0", "Ethernet4"];
const CHANGES_MAX: usize = 8;
const FIELDS: [&str; 16] = [
    "dscp_to_tc_map",
    "tc_to_queue_map",
    "pfc_enable",
    "scheduler",
    "type",
    "weight",
    "meter_type",
    "switch_type",
    "epoch",
    "generation",
    "0",
    "1",
    "2",
    "8",
    "16",
    "63",
];

fn ports() -> Vec<PortInfo> {
    let rate = BitsPerSecond(1_000_000_000);
    PORTS.map(|name| PortInfo { name: name.to_owned(), rate }).into()
}

/// Reads a decision and its changes from the input. About a third of the changes are impossible.
fn changes(input: &mut Input<'_>) -> (Stamp, Vec<Change>) {
    let stamp = Stamp { epoch: u64::from(input.u8() % 8), generation: u64::from(input.u8() % 8) };
    let change = |input: &mut Input<'_>| {
        let port = ["Ethernet0", "Ethernet4", "Ethernet0", "none"][input.below(4)].to_owned();
        let (dscp, queue) = (input.u8() % 66, input.u8() % (QUEUES + 1));
        match input.below(3) {
            0 => Change::Map { port, dscp, queue },
            1 => Change::Unmap { port, dscp },
            _ => {
                let weights = (0..input.below(6)).map(|_| u32::from(input.u8() % 104)).collect();
                Change::Weigh { port, weights }
            }
        }
    };
    (stamp, (0..input.below(CHANGES_MAX)).map(|_| change(input)).collect())
}

/// Checks the outcome of a plan, and returns whether the switch applied the plan.
fn check(
    name: &str,
    can: &Capabilities,
    (stamp, changes): (Stamp, &[Change]),
    outcome: Result<[SwitchState; 2], DriverError>,
) -> bool {
    let [before, after] = match outcome {
        Ok(states) => states,
        Err(error) => {
            let words = error.to_string();
            assert!(words.contains(name), "the error does not name the switch: {words}");
            return false;
        }
    };
    assert!(before.stamp <= stamp, "an older decision was carried out: {before:?} {stamp}");
    let mut wanted = before;
    for change in changes {
        step(name, can, &mut wanted, change).expect("a possible change");
    }
    wanted.stamp = stamp;
    if !can.remap {
        // A change always writes the whole map of code points.
        wanted.ports.values_mut().for_each(|port| port.map.clone_from(&can.fixed_map));
    }
    wanted.ports = wanted.ports.into_iter().map(|(port, s)| (port, s.canonical())).collect();
    assert_eq!(after, wanted, "after {changes:?}");
    true
}

fn map_of(queues: u8) -> BTreeMap<u8, u8> {
    (1..queues).map(|queue| (queue * 8, queue)).collect()
}

/// Runs the target on one input: tables of SONiC's databases, and changes.
///
/// # Panics
/// Panics if a property of the target does not hold.
pub fn run_sonic(data: &[u8]) {
    let mut input = Input::new(data);
    let flags = input.u8();
    let fixed = flags & 1 == 1;
    let mode = if fixed { MapMode::Static(map_of(QUEUES)) } else { MapMode::PerPort };
    // With a list of queues, the driver extends maps of other configurations.
    let tenant_queues = (flags & 2 == 2).then(|| vec![1, 0, 2, 5]);
    let settings =
        sonic::Settings { mode, queues: QUEUES, tenant_queues, ..sonic::Settings::default() };
    let endpoint = Endpoint::Unix("/nowhere".into());
    let switch = SonicSwitch::new("leaf1", &ports(), settings, endpoint).expect("right settings");
    let fixed_map = if fixed { map_of(QUEUES) } else { BTreeMap::new() };
    let (remap, map_per_port) = (!fixed, !fixed);
    let can = Capabilities { remap, fixed_map, map_per_port, ..Capabilities::new(QUEUES, 8) };
    let (stamp, changes) = changes(&mut input);
    let mut tables = tables(input);
    let before = tables.clone();
    let outcome = switch.rehearse(&mut tables, stamp, &changes);
    if !check("leaf1", &can, (stamp, &changes), outcome) {
        assert_eq!(tables, before, "a refused plan changed a table");
        return;
    }
    let ours = ["SCHEDULER|pen.", "QUEUE|Ethernet", "DSCP_TO_TC_MAP|PENSTOCK", "PORT_QOS_MAP|"]
        .into_iter()
        .chain(["TC_TO_QUEUE_MAP|PENSTOCK", "PENSTOCK|stamp", "PENSTOCK_TABLE|stamp"]);
    let ours: Vec<&str> = ours.collect();
    let foreign = |key: &&String| !ours.iter().any(|ours| key.starts_with(ours));
    for key in before.keys().chain(tables.keys()).filter(foreign) {
        assert_eq!(tables.get(key), before.get(key), "{key} is not ours");
    }
    let done = tables.clone();
    switch.rehearse(&mut tables, stamp, &changes).expect("a plan that can be repeated");
    assert_eq!(tables, done, "a repeated plan changed a table");
}

/// Parses lines `KEY FIELD VALUE` into database tables. A FIELD below 16 is an index into
/// [`FIELDS`].
fn tables(input: Input<'_>) -> Entries {
    let text = String::from_utf8_lossy(input.rest()).into_owned();
    let mut tables = Entries::new();
    for line in text.lines() {
        let mut words = line.splitn(3, ' ');
        let key = words.next().unwrap_or_default().to_owned();
        let fields = tables.entry(key).or_default();
        if let (Some(field), Some(value)) = (words.next(), words.next()) {
            let known = field.strip_prefix('#').and_then(|at| at.parse::<usize>().ok());
            let field = known.and_then(|at| FIELDS.get(at)).copied().unwrap_or(field);
            fields.insert(field.to_owned(), value.to_owned());
        }
    }
    tables
}

/// Runs the target on one input: an answer of a gNMI target (encoded or as JSON), and changes.
///
/// # Panics
/// Panics if a property of the target does not hold.
pub fn run_gnmi(data: &[u8]) {
    let mut input = Input::new(data);
    let is_json = input.bool();
    let settings = gnmi::Settings {
        address: "localhost:9339".to_owned(),
        tls: None,
        login: None,
        queues: QUEUES,
        set_wait: Duration::from_secs(1),
    };
    let switch = GnmiSwitch::new("leaf1", &ports(), settings).expect("right settings");
    let can = Capabilities { map_per_port: false, ..Capabilities::new(QUEUES, QUEUES) };
    assert!(can.classes < ONE_STEP);
    let (stamp, changes) = changes(&mut input);
    let rest = input.rest();
    let answer = if is_json { Ok(answer(rest)) } else { GetResponse::decode(rest) };
    let Ok(answer) = answer else { return };
    check("leaf1", &can, (stamp, &changes), switch.rehearse(&answer, stamp, &changes));
}

/// Returns the whole gNMI tree below `/qos` as one value.
fn answer(json: &[u8]) -> GetResponse {
    let val = Some(TypedValue { value: Some(Typed::JsonIetfVal(json.to_vec())) });
    let path = Some(penstock_controller::southbound::gnmi::leaves::path("/qos"));
    let update = vec![Update { path, val, ..Update::default() }];
    let notification =
        vec![Notification { prefix: Some(Path::default()), update, ..<_>::default() }];
    GetResponse { notification, ..GetResponse::default() }
}
