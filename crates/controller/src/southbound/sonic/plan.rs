//! Computes the transactions that change the switch's tables to the wanted state.
//!
//! # Problem
//!
//! A transaction is atomic for redis, but the switch applies the entries of a transaction one by
//! one. During a transaction, the switch may classify a frame with a mix of new and old maps.
//!
//! # Approach
//!
//! The driver makes up to four transactions in this order:
//!
//! 1. The first transaction moves some code points to class 0, the class of the shared queue. A
//!    code point moves to class 0 in the first transaction if it loses its class, or if its class
//!    will select another queue.
//! 2. The second transaction maps traffic classes to queues on each port.
//! 3. The third transaction maps code points to their classes, and gives ports their maps.
//! 4. The fourth transaction gives queues their schedulers, and deletes unused schedulers.
//!
//! The driver writes only entries that change, so code points without a change stay mapped.

use std::collections::BTreeMap;
use std::fmt;

use super::settings::{MapMode, Settings};
use super::tables::{
    MAP, OLD_STAMP, REST, STAMP, Tables, Unfit, classes, dscp_map, get, old_queue_map, queue_map,
    queues, refer, scheduler, scheduler_of,
};
use crate::Stamp;
use crate::southbound::classes::{Assignment, assign};
use crate::southbound::{PortState, SwitchState};

/// Number of the database CONFIG_DB in SONiC's `database_config.json`.
pub(super) const CONFIG_DB: i64 = 4;
pub(super) const STATE_DB: i64 = 6;

/// Redis command of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// `HSET`, which sets fields of a key.
    Set(String, Vec<(String, String)>),
    /// `DEL`, which deletes a key.
    Delete(String),
    /// `HSET`, which sets the epoch and generation of the stamp in STATE_DB.
    Stamp(String, String),
}

impl Op {
    pub(super) fn stamp(stamp: Stamp) -> Self {
        Self::Stamp(stamp.epoch.to_string(), stamp.generation.to_string())
    }

    /// Applies the command to `tables` in the same way as redis.
    pub(super) fn apply(self, tables: &mut Tables) {
        match self {
            Self::Set(key, fields) => tables.entry(key).or_default().extend(fields),
            Self::Delete(key) => drop(tables.remove(&key)),
            Self::Stamp(epoch, generation) => {
                let fields = [("epoch".to_owned(), epoch), ("generation".to_owned(), generation)];
                tables.insert(STAMP.to_owned(), fields.into());
            }
        }
    }

    pub(super) fn database(&self) -> i64 {
        match self {
            Self::Set(..) | Self::Delete(_) => CONFIG_DB,
            Self::Stamp(..) => STATE_DB,
        }
    }

    /// Returns the redis command's name and arguments.
    pub(super) fn arguments(&self) -> Vec<&str> {
        match self {
            Self::Set(key, fields) => {
                let fields = fields.iter().flat_map(|(field, value)| [field, value]);
                let fields = fields.map(String::as_str);
                ["HSET", key].into_iter().chain(fields).collect()
            }
            Self::Delete(key) => vec!["DEL", key],
            Self::Stamp(epoch, generation) => {
                vec!["HSET", STAMP, "epoch", epoch, "generation", generation]
            }
        }
    }
}

impl fmt::Display for Op {
    /// Formats the redis command as a line for a shell.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "redis-cli -n {}", self.database())?;
        self.arguments().iter().try_for_each(|text| write!(f, " {}", quoted(text)))
    }
}

/// Quotes a word for a shell. Without quotes, a shell would read `|` in a key as a pipe, and `[` as
/// a pattern.
pub(super) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/:,".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// Reason why the driver cannot make a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoPlan {
    /// The driver cannot use the switch's present configuration.
    Unfit(Unfit),
    /// The switch has too few traffic classes. The variant contains the number of needed classes
    /// besides class 0.
    Classes(usize),
}

impl From<Unfit> for NoPlan {
    fn from(unfit: Unfit) -> Self {
        Self::Unfit(unfit)
    }
}

/// Returns a command that sets the differing fields of the redis key `key`, or `None` if all fields
/// are already correct.
fn set(tables: &Tables, key: &str, fields: Vec<(String, String)>) -> Option<Op> {
    let differs = |(field, value): &(String, String)| get(tables, key, field) != Some(value);
    let fields: Vec<_> = fields.into_iter().filter(differs).collect();
    (!fields.is_empty()).then(|| Op::Set(key.to_owned(), fields))
}

fn pair(field: impl ToString, value: impl ToString) -> (String, String) {
    (field.to_string(), value.to_string())
}

/// Returns the traffic class of each code point, and the queue of each traffic class on each port.
fn assignment(
    settings: &Settings,
    ports: &[String],
    now: &BTreeMap<u8, u8>,
    target: &SwitchState,
) -> Result<Assignment, NoPlan> {
    match &settings.mode {
        MapMode::Static(map) => {
            let class = map.iter().filter(|(_, queue)| **queue != 0);
            let queues = (1..settings.queues).map(|queue| (queue, vec![queue; ports.len()]));
            let class = class.map(|(dscp, queue)| (*dscp, *queue)).collect();
            Ok(Assignment { class, queues: queues.collect() })
        }
        MapMode::PerPort => {
            let wanted: Vec<_> = ports.iter().map(|port| &target.ports[port].map).collect();
            assign(now, &wanted, settings.classes).map_err(NoPlan::Classes)
        }
    }
}

/// Returns the transactions that change the tables to the state `target`. The state `target` must
/// contain every port of `ports`.
pub(super) fn plan(
    settings: &Settings,
    ports: &[String],
    tables: &Tables,
    target: &SwitchState,
) -> Result<Vec<Vec<Op>>, NoPlan> {
    let now = classes(tables)?;
    let Assignment { class, queues: of_class } = assignment(settings, ports, &now, target)?;
    let (mut to_queues, mut bind, mut weigh, mut forget) = (vec![], vec![], vec![], vec![]);
    // Marks the classes that will select another queue on some port.
    let mut moves = [false; 256];
    for (n, port) in ports.iter().enumerate() {
        let name = queue_map(&settings.mode, port);
        let is = queues(tables, &name)?;
        let fields = (0..settings.classes).map(|class| {
            let has = *is.get(&class).unwrap_or(&0);
            let queue = of_class.get(&class).map_or(has, |queues| queues[n]);
            moves[usize::from(class)] |= queue != has;
            pair(class, queue)
        });
        to_queues.extend(set(tables, &format!("TC_TO_QUEUE_MAP|{name}"), fields.collect()));
        let maps = [
            ("dscp_to_tc_map", "DSCP_TO_TC_MAP", MAP),
            ("tc_to_queue_map", "TC_TO_QUEUE_MAP", &name),
        ];
        let fields =
            maps.map(|(field, table, name)| pair(field, refer(settings.reference, table, name)));
        bind.extend(set(tables, &format!("PORT_QOS_MAP|{port}"), fields.into()));
        let state = &target.ports[port];
        weights(settings, port, tables, state, &mut weigh, &mut forget);
        let old = format!("TC_TO_QUEUE_MAP|{}", old_queue_map(port));
        forget.extend(tables.contains_key(&old).then_some(Op::Delete(old)));
    }
    // A static map is a single entry for all ports.
    to_queues.dedup();
    let leaves = now.iter().filter(|(dscp, has)| match class.get(dscp) {
        None => true,
        Some(wanted) => wanted != *has && moves[usize::from(**has)],
    });
    let leave = leaves.map(|(dscp, _)| pair(dscp, 0)).collect();
    let all = (0..64).map(|dscp| pair(dscp, class.get(&dscp).unwrap_or(&0))).collect();
    let leave = Vec::from_iter(set(tables, &dscp_map(), leave));
    let mut map = Vec::from_iter(set(tables, &dscp_map(), all));
    map.append(&mut bind);
    let rest = pair("scheduler", refer(settings.reference, "SCHEDULER", REST));
    if weigh.iter().any(|op| matches!(op, Op::Set(_, fields) if fields.contains(&rest))) {
        let fields = [("type", "DWRR"), ("weight", "1"), ("meter_type", "bytes")];
        let fields = fields.map(|(field, value)| pair(field, value));
        weigh.splice(0..0, set(tables, &format!("SCHEDULER|{REST}"), fields.into()));
    }
    weigh.append(&mut forget);
    let old = OLD_STAMP.to_owned();
    if tables.contains_key(&old) {
        weigh.extend([Op::stamp(target.stamp), Op::Delete(old)]);
    }
    Ok([leave, to_queues, map, weigh].into_iter().filter(|ops| !ops.is_empty()).collect())
}

/// Sets the schedulers of a port's queues. A queue with a weight above 0 has its own scheduler. If
/// a port has weights, its queues of weight 0 share a scheduler ([`REST`]).
fn weights(
    settings: &Settings,
    port: &str,
    tables: &Tables,
    state: &PortState,
    weigh: &mut Vec<Op>,
    forget: &mut Vec<Op>,
) {
    for queue in 0..settings.queues {
        let (ours, entry) = (scheduler(port, queue), format!("QUEUE|{port}|{queue}"));
        let own = format!("SCHEDULER|{ours}");
        let to = |name: &str| vec![pair("scheduler", refer(settings.reference, "SCHEDULER", name))];
        match *state.weights.get(usize::from(queue)).unwrap_or(&0) {
            0 => {
                if scheduler_of(tables, port, queue).is_some() || !state.weights.is_empty() {
                    weigh.extend(set(tables, &entry, to(REST)));
                }
                forget.extend(tables.contains_key(&own).then_some(Op::Delete(own)));
            }
            weight => {
                let fields =
                    vec![pair("type", "DWRR"), pair("weight", weight), pair("meter_type", "bytes")];
                weigh.extend(set(tables, &own, fields));
                weigh.extend(set(tables, &entry, to(&ours)));
            }
        }
    }
}
