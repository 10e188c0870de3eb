//! Defines the keys of CONFIG_DB that the driver reads, and parses their values.

use std::collections::BTreeMap;

use super::layout::Layout;
use super::settings::{MapMode, Reference, Settings};
use super::unfit::Unfit;
use crate::Stamp;
use crate::fnv::fnv1a;
use crate::southbound::{PortState, SwitchState};

/// Fields and values of each existing key in CONFIG_DB and STATE_DB.
pub type Tables = BTreeMap<String, BTreeMap<String, String>>;

/// Key of the stamp in STATE_DB.
pub(super) const STAMP: &str = "PENSTOCK_TABLE|stamp";
/// Key of the stamp up to Penstock 0.1. The old key of the stamp was in CONFIG_DB, where all tables
/// must have a YANG model.
pub(super) const OLD_STAMP: &str = "PENSTOCK|stamp";
/// CONFIG_DB key of the entry with the switch's type.
const DEVICE: &str = "DEVICE_METADATA|localhost";
/// Start of the names of all maps of the driver.
pub(super) const MAP: &str = "PENSTOCK";
/// Name of the scheduler of queues of weight 0.
pub(super) const REST: &str = "pen.rest";
/// Maximum number of traffic classes in SONiC's YANG model.
pub(super) const CLASSES_MAX: u8 = 16;
/// Maximum length of a map's name in SONiC's YANG model.
pub(super) const NAME_MAX: usize = 32;
/// CONFIG_DB table of the maps from code point to traffic class, and the field of `PORT_QOS_MAP`
/// that refers to the table.
pub(super) const BY_DSCP: (&str, &str) = ("DSCP_TO_TC_MAP", "dscp_to_tc_map");
/// CONFIG_DB table of the maps from traffic class to queue, and the field of `PORT_QOS_MAP` that
/// refers to the table.
pub(super) const BY_CLASS: (&str, &str) = ("TC_TO_QUEUE_MAP", "tc_to_queue_map");

/// Returns the name of a map, which extends the map `base` of another configuration. A map with a
/// `port` is only for this port. SONiC's model permits 32 letters, digits, `-` and `_`. The name is
/// a hash if the port's and the base's names do not fit, or if the parts of the name would be
/// ambiguous.
fn map_name(port: Option<&str>, base: Option<&str>) -> String {
    let (port, base) = (port.unwrap_or_default(), base.unwrap_or_default());
    let part = |mark: &str, name: &str| match name {
        "" => String::new(),
        name => format!("{mark}{name}"),
    };
    let name = format!("{MAP}{}{}", part("_", port), part("-", base));
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if name.len() <= NAME_MAX && name.chars().all(plain) && !port.contains('-') {
        return name;
    }
    format!("{MAP}--{:016x}", fnv1a(format!("{port}|{base}").as_bytes()))
}

/// Returns the name of a map from code point to traffic class.
pub(super) fn dscp_map(base: Option<&str>) -> String {
    map_name(None, base)
}

/// Returns the name of a port's map from traffic class to queue.
pub(super) fn queue_map(mode: &MapMode, port: &str, base: Option<&str>) -> String {
    match mode {
        MapMode::Static(_) => map_name(None, base),
        MapMode::PerPort => map_name(Some(port), base),
    }
}

/// Returns the name of a port's map up to Penstock 0.1. SONiC's YANG model permits no `.` in the
/// name of a map.
fn old_queue_map(port: &str) -> String {
    format!("{MAP}.{port}")
}

/// Returns the names of a table's maps that belong to other configurations.
pub(super) fn foreign_maps<'a>(
    keys: impl Iterator<Item = &'a String>,
    table: &str,
) -> impl Iterator<Item = &'a str> {
    let name = move |key: &'a String| key.strip_prefix(table)?.strip_prefix('|');
    keys.filter_map(name).filter(|name| !name.is_empty() && !name.starts_with(MAP))
}

/// Returns the names that the driver may have given to a port's map from traffic class to queue,
/// each with the map that it extends.
pub(super) fn own_queue_maps<'a>(tables: &'a Tables, port: &str) -> Vec<(String, Option<&'a str>)> {
    let bases = foreign_maps(tables.keys(), BY_CLASS.0).map(Some);
    let all = std::iter::once(None).chain(bases);
    let mut names: Vec<_> = all.map(|base| (map_name(Some(port), base), base)).collect();
    names.push((old_queue_map(port), None));
    names
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

/// Returns all keys of CONFIG_DB that the driver needs for `ports`. `maps` has the keys of all maps
/// on the switch, and of the entries that bind ports to maps.
pub(super) fn keys(settings: &Settings, ports: &[String], maps: &[String]) -> Vec<String> {
    let mut keys = vec![OLD_STAMP.to_owned(), DEVICE.to_owned(), format!("SCHEDULER|{REST}")];
    let bases = |table| std::iter::once(None).chain(foreign_maps(maps.iter(), table).map(Some));
    keys.extend(bases(BY_DSCP.0).map(|base| format!("{}|{}", BY_DSCP.0, dscp_map(base))));
    for port in ports {
        keys.extend([format!("PORT|{port}"), format!("PORT_QOS_MAP|{port}")]);
        let names = bases(BY_CLASS.0).map(|base| queue_map(&settings.mode, port, base));
        keys.extend(names.map(|name| format!("{}|{name}", BY_CLASS.0)));
        for queue in settings.sonic_queues() {
            keys.push(format!("QUEUE|{port}|{queue}"));
            keys.push(format!("SCHEDULER|{}", scheduler(port, queue)));
        }
    }
    keys.extend_from_slice(maps);
    keys.sort();
    keys.dedup();
    keys
}

pub(super) fn get<'a>(tables: &'a Tables, key: &str, field: &str) -> Option<&'a str> {
    tables.get(key)?.get(field).map(String::as_str)
}

fn number<T: std::str::FromStr>(tables: &Tables, key: &str, field: &str) -> Result<T, Unfit> {
    let value = get(tables, key, field).unwrap_or("0");
    value.parse().map_err(|_| Unfit::Rubbish(format!("{key} {field}"), format!("{value:?}")))
}

/// Reads the map `name` of a table, which maps numbers to numbers. The result is empty if the map
/// does not exist.
pub(super) fn map(tables: &Tables, table: &str, name: &str) -> Result<BTreeMap<u8, u8>, Unfit> {
    let key = format!("{table}|{name}");
    let mut all = BTreeMap::new();
    for (field, value) in tables.get(&key).into_iter().flatten() {
        match (field.parse::<u8>(), value.parse::<u8>()) {
            (Ok(from @ 0..64), Ok(to)) if to < CLASSES_MAX => all.insert(from, to),
            _ => return Err(Unfit::Rubbish(key, format!("{field:?} is {value:?}"))),
        };
    }
    Ok(all)
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

/// Checks that the device has one ASIC without virtual output queues. Other devices use other keys
/// for queues, and a separate database for each ASIC.
pub(super) fn check_platform(tables: &Tables) -> Result<(), Unfit> {
    for field in ["switch_type", "sub_role", "asic_name"] {
        let value = get(tables, DEVICE, field).filter(|value| *value != "npu");
        if let Some(value) = value {
            return Err(Unfit::Platform(field, value.to_owned()));
        }
    }
    Ok(())
}

/// Returns the state of the switch's ports.
pub(super) fn state(
    tables: &Tables,
    layout: &Layout,
    refusal: impl Fn(&Unfit) -> String,
) -> Result<SwitchState, Unfit> {
    let class = layout.classes_now(tables)?;
    let mut state = SwitchState { stamp: stamp(tables)?, ..SwitchState::default() };
    for port in layout.ports.keys() {
        state.ports.insert(port.clone(), port_state(port, tables, layout, &class)?);
    }
    let left_out = layout.left_out.iter();
    state.left_out = left_out.map(|(port, unfit)| (port.clone(), refusal(unfit))).collect();
    Ok(state)
}

/// Returns the name of the map to which a field of `PORT_QOS_MAP` refers.
pub(super) fn bound<'a>(tables: &'a Tables, port: &str, field: &str) -> Option<&'a str> {
    get(tables, &format!("PORT_QOS_MAP|{port}"), field).map(name)
}

fn port_state(
    port: &str,
    tables: &Tables,
    layout: &Layout,
    class: &BTreeMap<u8, u8>,
) -> Result<PortState, Unfit> {
    let ours = |field| bound(tables, port, field).filter(|name| name.starts_with(MAP));
    let map = match (ours(BY_DSCP.1), ours(BY_CLASS.1)) {
        (Some(_), Some(name)) => {
            let queue = map(tables, BY_CLASS.0, name)?;
            let at = |class: &u8| layout.number(*queue.get(class).unwrap_or(&0));
            class.iter().filter_map(|(dscp, class)| Some((*dscp, at(class)?))).collect()
        }
        _ => BTreeMap::new(),
    };
    let weights = layout.queues.iter().map(|queue| weight(tables, port, *queue));
    let weights = weights.collect::<Result<_, _>>()?;
    Ok(PortState { weights, map }.canonical())
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
    fn names_of_maps_fit_sonics_model_and_do_not_collide() {
        let plain = |name: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
            name.len() <= 32 && name.chars().all(plain)
        };
        let (long, longer) = ("a_port_of_twenty_four_ch", "a_port_of_twenty_four_chx");
        let ports = ["Ethernet0", "Ethernet1/1", "Ethernet1_1", long, longer, "a-b", "a"];
        let bases = [None, Some("AZURE"), Some("b"), Some("AZURE_with_a_very_long_name_too_x")];
        let mut names = std::collections::BTreeSet::new();
        for (port, base) in ports.iter().flat_map(|port| bases.map(|base| (port, base))) {
            let name = queue_map(&MapMode::PerPort, port, base);
            assert!(plain(&name), "{name}");
            assert!(names.insert(name), "{port} {base:?}: the name is taken");
        }
        for base in bases {
            assert!(plain(&dscp_map(base)) && names.insert(dscp_map(base)), "{base:?}");
        }
        assert_eq!(dscp_map(Some("AZURE")), "PENSTOCK-AZURE");
        assert_eq!(queue_map(&MapMode::PerPort, "Ethernet0", None), "PENSTOCK_Ethernet0");
    }

    #[test]
    fn devices_with_other_keys_or_several_databases_are_refused() {
        let device = |field: &str, value: &str| {
            let fields = [(field.to_owned(), value.to_owned())].into();
            check_platform(&[(DEVICE.to_owned(), fields)].into())
        };
        assert_eq!(check_platform(&Tables::new()), Ok(()));
        assert_eq!(device("switch_type", "npu"), Ok(()));
        assert_eq!(device("hwsku", "ACS"), Ok(()));
        for (field, value) in [
            ("switch_type", "voq"),
            ("switch_type", "chassis-packet"),
            ("sub_role", "FrontEnd"),
            ("asic_name", "asic0"),
        ] {
            assert_eq!(device(field, value), Err(Unfit::Platform(field, value.to_owned())));
        }
    }

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
