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
//! 1. The first transaction moves some code points to the class that they have without a tenant.
//!    A code point moves to this class in the first transaction if it loses its tenant's class, or
//!    if its present class will select another queue.
//! 2. The second transaction maps traffic classes to queues on each port.
//! 3. The third transaction maps code points to their classes, and gives ports their maps.
//! 4. The fourth transaction gives queues their schedulers, and deletes unused schedulers and maps.
//!
//! The driver writes only entries that change, so code points without a change stay mapped.

use std::collections::BTreeMap;
use std::fmt;

use super::layout::{Base, Layout};
use super::settings::{MapMode, Settings};
use super::tables::{
    BY_CLASS, BY_DSCP, CLASSES_MAX, MAP, OLD_STAMP, REST, STAMP, Tables, bound, dscp_map, get, map,
    own_queue_maps, queue_map, refer, scheduler, scheduler_of,
};
use super::unfit::{Conflict, Unfit, quoted};
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

/// Reason why the driver cannot make a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoPlan {
    /// The driver cannot use the switch's present configuration.
    Unfit(Unfit),
    /// The switch has too few traffic classes. The variant contains the number of needed classes
    /// besides the shared queue's class.
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

/// Returns the traffic class of each tenant's code point, and SONiC's queue of each traffic class
/// on each port.
fn assignment(
    settings: &Settings,
    layout: &Layout,
    now: &BTreeMap<u8, u8>,
    target: &SwitchState,
) -> Result<Assignment, NoPlan> {
    let class_at = |at: u8| layout.classes[usize::from(at)];
    let queue_at = |at: u8| layout.queues[usize::from(at)];
    let mut found = match &settings.mode {
        MapMode::Static(map) => {
            let class = map.iter().filter(|(_, queue)| **queue != 0);
            let queues = (1..settings.queues).map(|at| (at, vec![at; layout.ports.len()]));
            let class = class.map(|(dscp, queue)| (*dscp, *queue)).collect();
            Assignment { class, queues: queues.collect() }
        }
        MapMode::PerPort => {
            let wanted: Vec<_> = layout.ports.keys().map(|port| &target.ports[port].map).collect();
            let own = wanted.iter().flat_map(|map| map.iter()).filter(|(_, queue)| **queue != 0);
            for (dscp, _) in own {
                if let Some((port, queue)) = layout.keeper(*dscp) {
                    let conflict = Conflict::CodePoint(*dscp, queue);
                    return Err(Unfit::Conflict(port.to_owned(), conflict).into());
                }
            }
            // Classes have the numbers of their places in the layout.
            let at = |class: &u8| layout.classes.iter().position(|own| own == class);
            let place = |class: &u8| at(class).and_then(|at| u8::try_from(at).ok());
            let now = now.iter().filter_map(|(dscp, class)| Some((*dscp, place(class)?)));
            let classes = u8::try_from(layout.classes.len()).unwrap_or(CLASSES_MAX);
            assign(&now.collect(), &wanted, classes).map_err(NoPlan::Classes)?
        }
    };
    found.class.values_mut().for_each(|class| *class = class_at(*class));
    let queues = std::mem::take(&mut found.queues).into_iter();
    found.queues = queues
        .map(|(class, at)| (class_at(class), at.into_iter().map(queue_at).collect()))
        .collect();
    Ok(found)
}

/// Returns the transactions that change the tables to the state `target`. The state `target` must
/// contain every port of `layout`.
pub(super) fn plan(
    settings: &Settings,
    tables: &Tables,
    layout: &Layout,
    target: &SwitchState,
) -> Result<Vec<Vec<Op>>, NoPlan> {
    let now = layout.classes_now(tables)?;
    let assignment = assignment(settings, layout, &now, target)?;
    let (mut to_queues, mut bind, mut weigh, mut forget) = (vec![], vec![], vec![], vec![]);
    // Marks the classes that will select another queue on some port.
    let mut moves = [false; 256];
    for (n, (port, base)) in layout.ports.iter().enumerate() {
        let name = queue_map(&settings.mode, port, base.class.as_deref());
        let present = bound(tables, port, BY_CLASS.1);
        let is = present.map_or(Ok(BTreeMap::new()), |name| map(tables, BY_CLASS.0, name))?;
        let mut fields = Vec::new();
        for class in 0..CLASSES_MAX {
            let has = present.map(|_| *is.get(&class).unwrap_or(&0));
            let owner = assignment.queues.get(&class).map(|queues| queues[n]);
            let kept = has.filter(|_| present.is_some_and(|name| name.starts_with(MAP)));
            let queue = owner.or_else(|| unassigned(settings, layout, base, (class, kept)));
            let Some(queue) = queue else { continue };
            moves[usize::from(class)] |= has.is_some_and(|has| has != queue);
            fields.push(pair(class, queue));
        }
        let queues = set(tables, &format!("{}|{name}", BY_CLASS.0), fields);
        to_queues.extend(queues.filter(|op| !to_queues.contains(op)));
        let dscp = dscp_map(base.dscp.as_deref());
        let maps = [(BY_DSCP, &dscp), (BY_CLASS, &name)];
        let fields =
            maps.map(|((table, field), name)| pair(field, refer(settings.reference, table, name)));
        bind.extend(set(tables, &format!("PORT_QOS_MAP|{port}"), fields.into()));
        weights(settings, layout, port, tables, &target.ports[port], &mut weigh, &mut forget);
        let former = own_queue_maps(tables, port).into_iter().filter(|(former, _)| *former != name);
        let former = former.map(|(former, _)| format!("{}|{former}", BY_CLASS.0));
        forget.extend(former.filter(|key| tables.contains_key(key)).map(Op::Delete));
    }
    let (leave, mut map) = by_dscp(tables, layout, &assignment, &moves)?;
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

/// Returns the queue of a traffic class that no tenant has on a port, or `None` if the port's map
/// needs no entry for the class. `has` is the present queue of the class, if the port has a map of
/// the driver.
fn unassigned(
    settings: &Settings,
    layout: &Layout,
    base: &Base,
    (class, has): (u8, Option<u8>),
) -> Option<u8> {
    let shared = layout.queues[0];
    if class == layout.classes[0] {
        return Some(shared);
    }
    if layout.classes.contains(&class) {
        // Frames may still be in the class. A static map is the same on several ports.
        let is_kept = settings.mode == MapMode::PerPort && !layout.others.contains(&class);
        let has = has.filter(|_| is_kept);
        return has.filter(|queue| layout.queues.contains(queue)).or(Some(shared));
    }
    if class >= settings.classes && !base.lists(class) {
        // The platform may not have the class, and could refuse the whole map.
        return None;
    }
    // Frames that enter by other ports may be in the class, and must not be in a tenant's queue.
    base.queue_of_class(class).filter(|queue| !layout.queues.contains(queue)).or(Some(shared))
}

/// Returns the commands of the first transaction, and of the third transaction, that change maps
/// from code point to traffic class. `moves` marks the classes that will select another queue.
fn by_dscp(
    tables: &Tables,
    layout: &Layout,
    assignment: &Assignment,
    moves: &[bool; 256],
) -> Result<(Vec<Op>, Vec<Op>), Unfit> {
    let (mut leave, mut enter) = (Vec::new(), Vec::new());
    for (name, base) in layout.dscp_maps() {
        let key = format!("{}|{name}", BY_DSCP.0);
        let rest = |dscp: u8| base.keeps(dscp, &layout.queues).unwrap_or(layout.classes[0]);
        let leaves = |(dscp, has): &(&u8, &u8)| match assignment.class.get(*dscp) {
            None => **has != rest(**dscp),
            Some(wanted) => wanted != *has && moves[usize::from(**has)],
        };
        let is = map(tables, BY_DSCP.0, &name)?;
        let fields = is.iter().filter(leaves).map(|(dscp, _)| pair(dscp, rest(*dscp)));
        leave.extend(set(tables, &key, fields.collect()));
        let class = |dscp: u8| assignment.class.get(&dscp).copied().unwrap_or_else(|| rest(dscp));
        let fields = (0..64).map(|dscp| pair(dscp, class(dscp)));
        enter.extend(set(tables, &key, fields.collect()));
    }
    Ok((leave, enter))
}

/// Sets the schedulers of a port's queues. A queue with a weight above 0 has its own scheduler. If
/// a port has weights, its queues of weight 0 share a scheduler ([`REST`]).
fn weights(
    settings: &Settings,
    layout: &Layout,
    port: &str,
    tables: &Tables,
    state: &PortState,
    weigh: &mut Vec<Op>,
    forget: &mut Vec<Op>,
) {
    for (at, queue) in layout.queues.iter().enumerate() {
        let (ours, entry) = (scheduler(port, *queue), format!("QUEUE|{port}|{queue}"));
        let own = format!("SCHEDULER|{ours}");
        let to = |name: &str| vec![pair("scheduler", refer(settings.reference, "SCHEDULER", name))];
        match *state.weights.get(at).unwrap_or(&0) {
            0 => {
                // A port without weights keeps the schedulers of other configurations.
                let is_ours = |name: &str| name == ours || name == REST;
                let held = scheduler_of(tables, port, *queue).is_some_and(is_ours);
                if held || !state.weights.is_empty() {
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
