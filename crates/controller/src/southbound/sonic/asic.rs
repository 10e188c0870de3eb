//! Reads back which maps the ports of a SONiC switch have in the ASIC.
//!
//! # Problem
//!
//! SONiC's orchagent reads CONFIG_DB, and writes to the ASIC. If two transactions follow within
//! milliseconds, orchagent may see only the result of both transactions, and write the entries in
//! any order. The order of the driver's transactions then has no effect on the ASIC.
//!
//! # Approach
//!
//! After each transaction, the driver waits until the ASIC's maps of all ports have the content
//! that the transaction wrote. The path from a port to the content of its map is:
//!
//! 1. `COUNTERS_PORT_NAME_MAP` in COUNTERS_DB has the object of a port.
//! 2. `ASIC_STATE:SAI_OBJECT_TYPE_PORT:OBJECT` in ASIC_DB has the objects of the port's maps.
//! 3. `ASIC_STATE:SAI_OBJECT_TYPE_QOS_MAP:OBJECT` has the content of a map as JSON.
//!
//! If a switch does not have these entries, the driver waits for a fixed time
//! ([`Settings::settle`](super::Settings::settle)).
//!
//! # Departures
//!
//! The driver does not read the ASIC's schedulers, because ASIC_DB has no path from a queue to its
//! scheduler. The order of transactions does not depend on schedulers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::layout::Layout;
use super::tables::{BY_CLASS, BY_DSCP, MAP, Tables, bound, map};
use super::unfit::Unfit;

pub(super) const ASIC_DB: i64 = 1;
/// Key in COUNTERS_DB with the object of each port.
pub(super) const PORT_NAMES: &str = "COUNTERS_PORT_NAME_MAP";
/// Attribute with the content of a map.
pub(super) const CONTENT: &str = "SAI_QOS_MAP_ATTR_MAP_TO_VALUE_LIST";
/// Attributes of a port with the objects of its maps, in the order of [`KINDS`].
pub(super) const MAPS_OF_PORT: [&str; 2] =
    ["SAI_PORT_ATTR_QOS_DSCP_TO_TC_MAP", "SAI_PORT_ATTR_QOS_TC_TO_QUEUE_MAP"];
/// Table and field of each kind of map in CONFIG_DB, with the names of an entry's two numbers in
/// ASIC_DB.
const KINDS: [((&str, &str), [&str; 2]); 2] =
    [(BY_DSCP, ["dscp", "tc"]), (BY_CLASS, ["tc", "qidx"])];

/// Contents of a port's maps in the order of [`KINDS`]. A port may have no map of a kind.
pub(super) type Contents = [Option<BTreeMap<u8, u8>>; 2];

/// Result of a comparison of the ASIC with the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asic {
    /// The maps of all ports have the configured content.
    Agrees,
    /// The switch does not show the maps of some ports, and the other ports agree.
    Hidden,
    /// The ports whose maps differ from the configuration.
    Differs(BTreeSet<String>),
}

/// Returns the contents of the driver's maps to which the ports of `layout` are bound in CONFIG_DB.
pub(super) fn configured(
    tables: &Tables,
    layout: &Layout,
) -> Result<BTreeMap<String, Contents>, Unfit> {
    let mut all = BTreeMap::new();
    for port in layout.ports.keys() {
        let mut contents: Contents = [None, None];
        for (content, ((table, field), _)) in contents.iter_mut().zip(KINDS) {
            if let Some(name) = bound(tables, port, field).filter(|name| name.starts_with(MAP)) {
                *content = Some(map(tables, table, name)?);
            }
        }
        all.insert(port.clone(), contents);
    }
    Ok(all)
}

pub(super) fn port_key(object: &str) -> String {
    format!("ASIC_STATE:SAI_OBJECT_TYPE_PORT:{object}")
}

pub(super) fn map_key(object: &str) -> String {
    format!("ASIC_STATE:SAI_OBJECT_TYPE_QOS_MAP:{object}")
}

/// Parses the content of a map of the kind with the number `kind`. Returns `None` if the content
/// has another form.
pub(super) fn parse(kind: usize, text: &str) -> Option<BTreeMap<u8, u8>> {
    let value: Value = serde_json::from_str(text).ok()?;
    let (_, [from, to]) = KINDS.get(kind)?;
    let number = |part: &Value, name: &str| u8::try_from(part.get(name)?.as_u64()?).ok();
    let entry = |entry: &Value| {
        let (key, value) = (entry.get("key")?, entry.get("value")?);
        Some((number(key, from)?, number(value, to)?))
    };
    value.get("list")?.as_array()?.iter().map(entry).collect()
}

/// Compares the contents of maps in the ASIC with the configured contents. `ports` contains the
/// ASIC's contents of each port that the switch shows.
pub(super) fn compare(
    wanted: &BTreeMap<String, Contents>,
    ports: &BTreeMap<String, Contents>,
) -> Asic {
    let (mut differs, mut is_hidden) = (BTreeSet::new(), false);
    for (port, wanted) in wanted.iter().filter(|(_, wanted)| wanted.iter().any(Option::is_some)) {
        let Some(has) = ports.get(port) else {
            is_hidden = true;
            continue;
        };
        if wanted.iter().zip(has).any(|(wanted, has)| wanted.is_some() && wanted != has) {
            differs.insert(port.clone());
        }
    }
    match (differs.is_empty(), is_hidden) {
        (false, _) => Asic::Differs(differs),
        (true, true) => Asic::Hidden,
        (true, false) => Asic::Agrees,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_of_a_map_is_read_as_sonic_writes_it() {
        let entry = |dscp: u8, tc: u8| {
            format!(
                r#"{{"key":{{"color":"SAI_PACKET_COLOR_GREEN","dot1p":0,"dscp":{dscp},"prio":0,
                "qidx":0,"tc":0}},"value":{{"color":"SAI_PACKET_COLOR_GREEN","dscp":0,"qidx":0,
                "tc":{tc}}}}}"#
            )
        };
        let text = format!(r#"{{"count":2,"list":[{},{}]}}"#, entry(8, 1), entry(63, 0));
        assert_eq!(parse(0, &text), Some([(8, 1), (63, 0)].into()));
        for rubbish in ["", "{}", r#"{"list":7}"#, r#"{"list":[{"key":{"dscp":900}}]}"#] {
            assert_eq!(parse(0, rubbish), None, "{rubbish}");
        }
    }

    #[test]
    fn a_port_differs_is_hidden_or_agrees() {
        let contents =
            |queue: u8| -> Contents { [Some([(8, 1)].into()), Some([(1, queue)].into())] };
        let all = |ports: &[(&str, u8)]| {
            let one = |(port, queue): &(&str, u8)| ((*port).to_owned(), contents(*queue));
            ports.iter().map(one).collect::<BTreeMap<String, Contents>>()
        };
        let wanted = all(&[("a", 1), ("b", 2)]);
        assert_eq!(compare(&wanted, &wanted), Asic::Agrees);
        assert_eq!(compare(&wanted, &all(&[("a", 1)])), Asic::Hidden);
        let differs = Asic::Differs(["b".to_owned()].into());
        assert_eq!(compare(&wanted, &all(&[("b", 1)])), differs);
        let unbound = [("a".to_owned(), [None, None])].into();
        assert_eq!(compare(&unbound, &BTreeMap::new()), Asic::Agrees, "no map is expected");
        let none = [("a".to_owned(), [None, None])].into();
        assert!(matches!(compare(&all(&[("a", 1)]), &none), Asic::Differs(_)));
    }
}
