//! Defines the keys of CONFIG_DB that the driver reads, and parses their values.

use std::collections::BTreeMap;

use super::settings::{MapMode, Reference, Settings};
use crate::Stamp;
use crate::southbound::{PortState, SwitchState};

/// Fields and values of each existing key in CONFIG_DB and STATE_DB.
pub type Tables = BTreeMap<String, BTreeMap<String, String>>;

/// Key of the stamp in STATE_DB.
pub(super) const STAMP: &str = "PENSTOCK_TABLE|stamp";
/// Key of the stamp up to Penstock 0.1. The old key of the stamp was in CONFIG_DB, where all tables
/// must have a YANG model.
pub(super) const OLD_STAMP: &str = "PENSTOCK|stamp";
/// CONFIG_DB key of the entry with the switch's type (field `switch_type`). The type `voq` means
/// virtual output queues.
const DEVICE: &str = "DEVICE_METADATA|localhost";
/// Name of the driver's maps for all ports, and prefix of the names of its maps for single ports.
pub(super) const MAP: &str = "PENSTOCK";
/// Name of the scheduler of queues of weight 0.
pub(super) const REST: &str = "pen.rest";
/// Maximum number of traffic classes in SONiC's YANG model.
pub(super) const CLASSES_MAX: u8 = 16;

/// Reason why the driver cannot use the switch's tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    /// The switch has no port with this name.
    NoPort(String),
    /// Another configuration uses a field that the driver needs. The variant contains the entry's
    /// key, the field, and the field's value.
    Foreign(String, &'static str, String),
    /// An entry of another configuration, such as a range of queues, includes a queue that the
    /// driver configures. The variant contains the keys of the foreign entry and of the driver's
    /// entry.
    Range(String, String),
    /// Priority flow control is on for a class or queue of tenants. The variant contains the port
    /// and the PFC priority.
    Lossless(String, u8),
    /// The switch has virtual output queues, for which SONiC uses different keys.
    Voq,
    /// A value in the tables is invalid. The variant contains the value's location and the problem.
    Rubbish(String, String),
}

pub(super) fn dscp_map() -> String {
    format!("DSCP_TO_TC_MAP|{MAP}")
}

/// Returns the name of a port's map from traffic class to queue.
pub(super) fn queue_map(mode: &MapMode, port: &str) -> String {
    match mode {
        MapMode::Static(_) => MAP.to_owned(),
        MapMode::PerPort => format!("{MAP}_{port}"),
    }
}

/// Returns the name of a port's map up to Penstock 0.1. SONiC's YANG model permits no `.` in the
/// name of a map.
pub(super) fn old_queue_map(port: &str) -> String {
    format!("{MAP}.{port}")
}

pub(super) fn scheduler(port: &str, queue: u8) -> String {
    format!("pen.{port}.{queue}")
}

/// Returns a reference to the entry `name` of `table`, in the form `reference`.
pub(super) fn refer(reference: Reference, table: &str, name: &str) -> String {
    match reference {
        Reference::Plain => name.to_owned(),
        Reference::Bracketed => format!("[{table}|{name}]"),
    }
}

/// Returns the entry's name in a reference of the form `[TABLE|name]` or `name`.
pub(super) fn name(reference: &str) -> &str {
    let inner = reference.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    inner.map_or(reference, |text| text.split_once('|').map_or(text, |(_, name)| name))
}

/// Returns all keys of CONFIG_DB that the driver needs for `ports`.
pub(super) fn keys(settings: &Settings, ports: &[String]) -> Vec<String> {
    let mut keys = vec![OLD_STAMP.to_owned(), DEVICE.to_owned(), dscp_map()];
    keys.extend([format!("TC_TO_QUEUE_MAP|{MAP}"), format!("SCHEDULER|{REST}")]);
    for port in ports {
        keys.extend([format!("PORT|{port}"), format!("PORT_QOS_MAP|{port}")]);
        for name in [queue_map(&MapMode::PerPort, port), old_queue_map(port)] {
            keys.push(format!("TC_TO_QUEUE_MAP|{name}"));
        }
        for queue in 0..settings.queues {
            keys.push(format!("QUEUE|{port}|{queue}"));
            keys.push(format!("SCHEDULER|{}", scheduler(port, queue)));
        }
    }
    keys
}

pub(super) fn get<'a>(tables: &'a Tables, key: &str, field: &str) -> Option<&'a str> {
    tables.get(key)?.get(field).map(String::as_str)
}

fn number<T: std::str::FromStr>(tables: &Tables, key: &str, field: &str) -> Result<T, Unfit> {
    let value = get(tables, key, field).unwrap_or("0");
    value.parse().map_err(|_| Unfit::Rubbish(format!("{key} {field}"), format!("{value:?}")))
}

/// Reads the map in the entry `key`, which maps numbers to numbers. The result omits numbers that
/// are mapped to 0.
fn map(tables: &Tables, key: &str) -> Result<BTreeMap<u8, u8>, Unfit> {
    let mut all = BTreeMap::new();
    for (field, value) in tables.get(key).into_iter().flatten() {
        let pair = (field.parse::<u8>(), value.parse::<u8>());
        match pair {
            (Ok(from @ 0..64), Ok(to)) if to < CLASSES_MAX => all.insert(from, to),
            _ => return Err(Unfit::Rubbish(key.to_owned(), format!("{field:?} is {value:?}"))),
        };
    }
    all.retain(|_, to| *to != 0);
    Ok(all)
}

/// Returns the traffic class of each code point that has a class.
pub(super) fn classes(tables: &Tables) -> Result<BTreeMap<u8, u8>, Unfit> {
    map(tables, &dscp_map())
}

/// Returns the queue of each traffic class in the map `name`.
pub(super) fn queues(tables: &Tables, name: &str) -> Result<BTreeMap<u8, u8>, Unfit> {
    map(tables, &format!("TC_TO_QUEUE_MAP|{name}"))
}

/// Reads the stamp of the last decision from the switch's redis tables.
fn stamp(tables: &Tables) -> Result<Stamp, Unfit> {
    let at = |key| {
        let number = |field| number(tables, key, field);
        Ok(Stamp { epoch: number("epoch")?, generation: number("generation")? })
    };
    Ok(at(STAMP)?.max(at(OLD_STAMP)?))
}

/// Returns the scheduler of a port's queue, or `None` if the queue has no scheduler.
pub(super) fn scheduler_of<'a>(tables: &'a Tables, port: &str, queue: u8) -> Option<&'a str> {
    get(tables, &format!("QUEUE|{port}|{queue}"), "scheduler").map(name)
}

fn weight(tables: &Tables, port: &str, queue: u8) -> Result<u32, Unfit> {
    let ours = scheduler(port, queue);
    let key = format!("SCHEDULER|{ours}");
    let holds = scheduler_of(tables, port, queue) == Some(&ours);
    match holds && get(tables, &key, "type") == Some("DWRR") {
        true => number(tables, &key, "weight"),
        false => Ok(0),
    }
}

/// Returns the state of the switch's ports. `entries` contains the keys of the switch's CONFIG_DB
/// table QUEUE.
pub(super) fn state(
    settings: &Settings,
    ports: &[String],
    tables: &Tables,
    entries: &[String],
    refusal: impl Fn(Unfit) -> String,
) -> Result<SwitchState, Unfit> {
    if get(tables, DEVICE, "switch_type") == Some("voq") {
        return Err(Unfit::Voq);
    }
    let class = classes(tables)?;
    let mut state = SwitchState { stamp: stamp(tables)?, ..SwitchState::default() };
    for port in ports {
        match port_state(settings, port, tables, entries, &class) {
            Ok(is) => drop(state.ports.insert(port.clone(), is)),
            Err(rubbish @ Unfit::Rubbish(..)) => return Err(rubbish),
            Err(unfit) => drop(state.left_out.insert(port.clone(), refusal(unfit))),
        }
    }
    Ok(state)
}

fn port_state(
    settings: &Settings,
    port: &str,
    tables: &Tables,
    entries: &[String],
    class: &BTreeMap<u8, u8>,
) -> Result<PortState, Unfit> {
    if !tables.contains_key(&format!("PORT|{port}")) {
        return Err(Unfit::NoPort(port.to_owned()));
    }
    let key = format!("PORT_QOS_MAP|{port}");
    let bound = |field| get(tables, &key, field).map(name);
    let foreign = |field, what: &str| Unfit::Foreign(key.clone(), field, what.to_owned());
    let by_dscp = match bound("dscp_to_tc_map") {
        Some(other) if other != MAP => return Err(foreign("dscp_to_tc_map", other)),
        bound => bound.is_some(),
    };
    let ours = [MAP.to_owned(), queue_map(&MapMode::PerPort, port), old_queue_map(port)];
    let by_class = match bound("tc_to_queue_map") {
        Some(name) if ours.iter().all(|ours| ours != name) => {
            return Err(foreign("tc_to_queue_map", name));
        }
        bound => bound.filter(|_| by_dscp),
    };
    unobstructed(settings, port, tables, entries)?;
    let queue = by_class.map_or(Ok(BTreeMap::new()), |name| queues(tables, name))?;
    let map = class.iter().map(|(dscp, class)| (*dscp, *queue.get(class).unwrap_or(&0)));
    let map = map.collect();
    let weights = (0..settings.queues).map(|queue| weight(tables, port, queue));
    let weights = weights.collect::<Result<_, _>>()?;
    Ok(PortState { weights, map }.canonical())
}

/// Checks that the driver may use a port's queues, and that the port's classes are lossy. In a
/// lossless class, a tenant that sends too much would block the links of all other tenants in the
/// class.
fn unobstructed(
    settings: &Settings,
    port: &str,
    tables: &Tables,
    entries: &[String],
) -> Result<(), Unfit> {
    let lossless = get(tables, &format!("PORT_QOS_MAP|{port}"), "pfc_enable").unwrap_or_default();
    let used = settings.queues.max(settings.classes_used());
    let mut lossless = lossless.split(',').filter_map(|text| text.trim().parse::<u8>().ok());
    if let Some(priority) = lossless.find(|priority| *priority < used) {
        return Err(Unfit::Lossless(port.to_owned(), priority));
    }
    for queue in 0..settings.queues {
        let (entry, ours) = (format!("QUEUE|{port}|{queue}"), scheduler(port, queue));
        match scheduler_of(tables, port, queue) {
            Some(other) if other != ours && other != REST => {
                return Err(Unfit::Foreign(entry, "scheduler", other.to_owned()));
            }
            _ => {}
        }
        if let Some(other) = entries.iter().find(|key| covers(key, port, queue)) {
            return Err(Unfit::Range(other.clone(), entry));
        }
    }
    Ok(())
}

/// Returns true if a key such as `QUEUE|Ethernet0|3-4` or `QUEUE|Ethernet0,Ethernet4|3` covers a
/// queue of a port. Returns false for the driver's own key, `QUEUE|PORT|QUEUE`.
pub(super) fn covers(key: &str, port: &str, queue: u8) -> bool {
    let mut parts = key.split('|').skip(1);
    let (Some(ports), Some(queues)) = (parts.next(), parts.next()) else { return false };
    let within = match queues.split_once('-') {
        Some((low, high)) => match (low.parse::<u8>(), high.parse::<u8>()) {
            (Ok(low), Ok(high)) => (low..=high).contains(&queue),
            _ => false,
        },
        None => queues.parse() == Ok(queue),
    };
    within && ports.split(',').any(|name| name == port) && key != format!("QUEUE|{port}|{queue}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_reference_mean_the_same() {
        assert_eq!(refer(Reference::Bracketed, "SCHEDULER", "a"), "[SCHEDULER|a]");
        assert_eq!((name("[SCHEDULER|a]"), name("a"), name("[a]")), ("a", "a", "a"));
    }

    #[test]
    fn ranges_and_lists_cover_queues() {
        for (key, covered) in [
            ("QUEUE|Ethernet0|3-4", true),
            ("QUEUE|Ethernet0,Ethernet4|3", true),
            ("QUEUE|Ethernet0|3", false),
            ("QUEUE|Ethernet0|4-5", false),
            ("QUEUE|Ethernet04|3-4", false),
            ("QUEUE|Ethernet0|x-y", false),
            ("QUEUE", false),
        ] {
            assert_eq!(covers(key, "Ethernet0", 3), covered, "{key}");
        }
    }
}
