//! Configures SONiC switches through tables in the switch's redis.
//!
//! The driver writes only the following entries of the switch's databases:
//!
//! - `SCHEDULER|pen.PORT.QUEUE` and `SCHEDULER|pen.rest`
//! - the field `scheduler` in `QUEUE|PORT|QUEUE`
//! - `DSCP_TO_TC_MAP|PENSTOCK`
//! - `TC_TO_QUEUE_MAP|PENSTOCK` or `TC_TO_QUEUE_MAP|PENSTOCK_PORT`
//! - the fields `dscp_to_tc_map` and `tc_to_queue_map` in `PORT_QOS_MAP|PORT`
//! - the stamp
//!
//! The driver does not change a port if another configuration has set one of the listed entries.
//! The driver also does not change a port if priority flow control makes a tenant's queue lossless.
//! The module `plan` defines the order of changes, and `southbound::classes` assigns classes to
//! code points.
//!
//! # Stamp
//!
//! The stamp is in the fields `epoch` and `generation` of `PENSTOCK_TABLE|stamp` in STATE_DB.
//! CONFIG_DB cannot store the stamp, because `config reload`, `replace` and `rollback` check
//! CONFIG_DB against YANG models. A check against YANG models fails if a table has no YANG model.
//! STATE_DB is empty after a restart of the switch, so the switch cannot refuse an old stamp until
//! the next change. The driver watches all keys in STATE_DB and CONFIG_DB on which a decision
//! depends (WATCH). A transaction therefore fails if another controller or an operator has changed
//! a watched key.
//!
//! # Queue 7
//!
//! SONiC sends its own control packets through queue 7. Tenants get queue 7 only if
//! [`Settings::control_queue`] permits its use.
//!
//! # Weights
//!
//! The driver sets DWRR weights in bytes, from 1 to 100. A queue of weight 0 gets DWRR weight 1,
//! because SONiC's model has no lower weight. If other queues have low weights, a queue of weight 0
//! gets more than the bandwidth that the other queues do not use.
//!
//! # Source
//!
//! The driver follows SONiC's CONFIG_DB manual, its YANG models (`sonic-scheduler`, `sonic-queue`,
//! `sonic-dscp-tc-map`, `sonic-port-qos-map`), and `qosorch` in `sonic-swss`.

mod plan;
mod settings;
mod tables;
mod wire;

use async_trait::async_trait;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use tokio::time::timeout;

pub use settings::{Endpoint, MapMode, Reference, Settings};
#[doc(hidden)]
pub use tables::Tables as Entries;

use super::{
    Capabilities, Change, DriverError, PortInfo, QueueCounters, SwitchDriver, SwitchState, step,
};
use crate::Stamp;
use plan::{CONFIG_DB, NoPlan, Op, STATE_DB, plan, quoted};
use tables::{CLASSES_MAX, STAMP, Tables, Unfit};
use wire::{TIME_MAX, Wire, WireError};

const COUNTERS_DB: i64 = 2;
/// Maximum number of attempts at a change. In each attempt, the SONiC driver reads the switch's
/// configuration and writes one transaction. A change needs at most four attempts if no other
/// client of redis interferes.
const ATTEMPTS: usize = 12;
const NAME_MAX: usize = 32;

#[derive(Debug)]
pub struct SonicSwitch {
    name: String,
    endpoint: Endpoint,
    settings: Settings,
    ports: Vec<String>,
    /// Ports that the driver did not use at its last read, with the reason.
    left_out: Mutex<BTreeMap<String, String>>,
}

/// Configuration and state that the driver has read from the switch.
struct SwitchReading {
    tables: Tables,
    state: SwitchState,
}

impl SonicSwitch {
    /// Creates a driver of the switch whose redis has the address `endpoint`.
    ///
    /// # Errors
    /// Returns [`DriverError::Beyond`] if a port's name is invalid, or settings are out of range.
    pub fn new(
        name: &str,
        ports: &[PortInfo],
        settings: Settings,
        endpoint: Endpoint,
    ) -> Result<Self, DriverError> {
        let ports = ports.iter().map(|port| port.name.clone()).collect();
        let left_out = Mutex::default();
        let this = Self { name: name.to_owned(), endpoint, settings, ports, left_out };
        let Settings { mode, queues, classes, .. } = &this.settings;
        if !(2..=8).contains(queues) || !(2..=CLASSES_MAX).contains(classes) {
            let what = format!("a switch with {queues} queues and {classes} traffic classes");
            let limit = format!("2 to 8 queues, 2 to {CLASSES_MAX} classes");
            return Err(this.beyond(what, limit, "change the switch's settings"));
        }
        if *queues == 8 && !this.settings.control_queue {
            let limit = "SONiC sends its own control packets by queue 7".to_owned();
            let remedy = "write `queues = 7` in the fabric's file, or give tenants queue 7 too \
                          with `control_queue = true`";
            return Err(this.beyond("8 queues".to_owned(), limit, remedy));
        }
        if let MapMode::Static(map) = mode {
            let fits = |(dscp, queue): (&u8, &u8)| {
                (1..64).contains(dscp) && queue < queues && queue < classes
            };
            if !map.iter().all(fits) {
                let limit = format!(
                    "a map has code points 1 to 63 and queues below {queues} and {classes}"
                );
                return Err(this.beyond(format!("map {map:?}"), limit, "change the static map"));
            }
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-/:".contains(c);
        let is_name =
            |name: &&String| !name.is_empty() && name.len() <= NAME_MAX && name.chars().all(plain);
        if let Some(wrong) = this.ports.iter().find(|name| !is_name(name)) {
            let limit = format!("1 to {NAME_MAX} letters, digits or . _ - / :");
            let what = format!("port {wrong:?}");
            return Err(this.beyond(what, limit, "name a port of the switch"));
        }
        // SONiC's model permits 32 letters, digits, - and _ in a map's name.
        let fits = |port: &String| {
            let map = tables::queue_map(&this.settings.mode, port);
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
            map.len() <= NAME_MAX && map.chars().all(plain)
        };
        if let Some(wrong) = this.ports.iter().find(|port| !fits(port)) {
            let what = format!("a separate code-point map for port {wrong}");
            let limit = "SONiC permits at most 32 letters, digits, - and _ in a map's name";
            return Err(this.beyond(what, limit.to_owned(), "write `map = \"static-map\"`"));
        }
        Ok(this)
    }

    fn beyond(&self, what: String, limit: String, remedy: impl Into<String>) -> DriverError {
        DriverError::Beyond { switch: self.name.clone(), what, limit, remedy: remedy.into() }
    }

    fn can(&self) -> Capabilities {
        let (remap, fixed_map) = match &self.settings.mode {
            MapMode::Static(map) => (false, map.clone()),
            MapMode::PerPort => (true, BTreeMap::new()),
        };
        Capabilities {
            queues: self.settings.queues,
            classes: self.settings.classes,
            weights: (1, 100),
            remap,
            fixed_map,
            map_per_port: remap,
        }
    }

    fn unfit(&self, unfit: Unfit) -> DriverError {
        match unfit {
            Unfit::NoPort(port) => {
                let limit = "the switch's CONFIG_DB has no such port".to_owned();
                self.beyond(format!("port {port}"), limit, "name a port of the switch")
            }
            Unfit::Foreign(key, field, what) => {
                let limit = format!("{key} has {field} {what}, which Penstock did not set");
                let quoted = quoted(&key);
                let command = format!("sonic-db-cli CONFIG_DB HDEL {quoted} {field}");
                let remedy = format!(
                    "remove the field with `{command}`, or leave the port out of the topology"
                );
                self.beyond(format!("changing {key}"), limit, remedy)
            }
            Unfit::Range(key, entry) => {
                let limit = format!("{key} is one entry for several queues");
                let remedy = "replace the entry by one entry for each queue, or leave the port out \
                              of the topology";
                self.beyond(format!("changing {entry}"), limit, remedy)
            }
            Unfit::Lossless(port, priority) => {
                let limit = format!(
                    "priority flow control of {priority} is on, so a tenant in queue or class \
                     {priority} would stop the links of other tenants"
                );
                let remedy = format!(
                    "turn it off with `config interface pfc priority {port} {priority} off`, use \
                     at most {priority} queues and classes, or leave the port out"
                );
                self.beyond(format!("port {port}"), limit, remedy)
            }
            Unfit::Voq => {
                let limit = "a switch with virtual output queues has keys with chassis and ASIC";
                let remedy = "leave the switch out of the fabric";
                self.beyond("switch_type voq".to_owned(), limit.to_owned(), remedy)
            }
            Unfit::Rubbish(what, problem) => {
                DriverError::Rubbish { switch: self.name.clone(), what, problem }
            }
        }
    }

    /// Converts an error of redis to a driver's error. The text `what` names the failed redis
    /// request in the error message.
    fn wire(&self, what: &str, error: WireError) -> DriverError {
        let (switch, what) = (self.name.clone(), what.to_owned());
        match error {
            WireError::Unreachable(problem) => DriverError::Unreachable { switch, problem },
            WireError::Refused(problem) => DriverError::Refused { switch, change: what, problem },
            WireError::Rubbish(problem) => DriverError::Rubbish { switch, what, problem },
        }
    }

    /// Runs all requests to redis of an operation within the time limit.
    async fn bounded<T>(
        &self,
        work: impl Future<Output = Result<T, DriverError>> + Send,
    ) -> Result<T, DriverError> {
        let problem = || format!("the operation did not end within {} s", TIME_MAX.as_secs());
        let late = |_| DriverError::Unreachable { switch: self.name.clone(), problem: problem() };
        timeout(TIME_MAX, work).await.map_err(late)?
    }

    async fn connect(&self, database: i64) -> Result<Wire, DriverError> {
        let wire = Wire::connect(&self.endpoint, &self.settings, database).await;
        wire.map_err(|error| self.wire("a connection", error))
    }

    /// Reads the switch's configuration and state. The driver watches every key before it reads the
    /// key.
    async fn see(&self, wire: &mut Wire) -> Result<SwitchReading, DriverError> {
        let keys = tables::keys(&self.settings, &self.ports);
        let failed = |error| self.wire("its configuration", error);
        let mut tables = Tables::new();
        for (database, keys) in [(STATE_DB, &[STAMP.to_owned()][..]), (CONFIG_DB, &keys)] {
            wire.select(database).await.map_err(failed)?;
            wire.watch(keys).await.map_err(failed)?;
            tables.extend(wire.hashes(keys).await.map_err(failed)?);
        }
        let entries = wire.names("QUEUE|*").await.map_err(failed)?;
        let refusal = |unfit| self.unfit(unfit).to_string();
        let state = tables::state(&self.settings, &self.ports, &tables, &entries, refusal);
        let state = state.map_err(|unfit| self.unfit(unfit))?;
        self.tell_left_out(&state.left_out);
        Ok(SwitchReading { tables, state })
    }

    /// Logs the ports that the driver does not use. The driver logs an unused port again only if
    /// the reason has changed.
    fn tell_left_out(&self, now: &BTreeMap<String, String>) {
        let mut before = self.left_out.lock().unwrap_or_else(PoisonError::into_inner);
        for (port, why) in now.iter().filter(|(port, why)| before.get(*port) != Some(why)) {
            tracing::warn!(port, "the driver does not use the port: {why}");
        }
        for port in before.keys().filter(|port| !now.contains_key(*port)) {
            tracing::info!(switch = self.name, port, "the driver uses the port again");
        }
        before.clone_from(now);
    }

    /// Returns the remaining transactions that apply `changes` to the switch.
    fn plan(&self, seen: &SwitchReading, changes: &[Change]) -> Result<Vec<Vec<Op>>, DriverError> {
        let (can, mut target) = (self.can(), seen.state.clone());
        changes.iter().try_for_each(|change| step(&self.name, &can, &mut target, change))?;
        // Ports that are left out do not change.
        let ports: Vec<String> = target.ports.keys().cloned().collect();
        let stages = plan(&self.settings, &ports, &seen.tables, &target);
        stages.map_err(|why| match why {
            NoPlan::Unfit(unfit) => self.unfit(unfit),
            NoPlan::Classes(wanted) => {
                let what = format!("the use of {wanted} classes besides the shared class");
                let limit = format!("{} classes in all", self.settings.classes);
                let remedy = "bind fewer tenants on this switch, or bind each tenant to the same \
                              queue on all ports";
                self.beyond(what, limit, remedy)
            }
        })
    }

    /// Applies changes to `tables` instead of a switch's databases. Returns the state of the switch
    /// before and after the changes. After an error, `tables` is unchanged.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`SwitchDriver::read_back`] and
    /// [`SwitchDriver::apply`].
    #[doc(hidden)]
    pub fn rehearse(
        &self,
        tables: &mut Entries,
        stamp: Stamp,
        changes: &[Change],
    ) -> Result<[SwitchState; 2], DriverError> {
        let mut now = tables.clone();
        let seen = |tables: &Tables| {
            let names = tables.keys().filter(|key| key.starts_with("QUEUE|")).cloned();
            let refusal = |unfit| self.unfit(unfit).to_string();
            let entries: Vec<String> = names.collect();
            let state = tables::state(&self.settings, &self.ports, tables, &entries, refusal);
            let state = state.map_err(|unfit| self.unfit(unfit))?;
            Ok(SwitchReading { tables: tables.clone(), state })
        };
        let before = seen(&now)?.state;
        DriverError::fence(&self.name, before.stamp, stamp)?;
        for _ in 0..ATTEMPTS {
            let stages = self.plan(&seen(&now)?, changes)?;
            let is_last = stages.len() <= 1;
            let ops = stages.into_iter().next().unwrap_or_default();
            let ops = ops.into_iter().chain(is_last.then(|| Op::stamp(stamp)));
            ops.for_each(|op| op.apply(&mut now));
            if is_last {
                let after = seen(&now)?.state;
                *tables = now;
                return Ok([before, after]);
            }
        }
        let problem = format!("the change is incomplete after {ATTEMPTS} transactions");
        Err(DriverError::Unreachable { switch: self.name.clone(), problem })
    }

    async fn carry_out(&self, stamp: Stamp, changes: &[Change]) -> Result<(), DriverError> {
        let mut wire = self.connect(CONFIG_DB).await?;
        for _ in 0..ATTEMPTS {
            let seen = self.see(&mut wire).await?;
            DriverError::fence(&self.name, seen.state.stamp, stamp)?;
            let stages = self.plan(&seen, changes)?;
            let is_last = stages.len() <= 1;
            let mut ops = stages.into_iter().next().unwrap_or_default();
            if is_last && seen.state.stamp != stamp {
                ops.push(Op::stamp(stamp));
            }
            let words = ops.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            let done = ops.is_empty() || {
                let done = wire.commit(&ops).await;
                done.map_err(|error| self.wire(&words, error))?
            };
            // The next round reads the result of the transaction, and any changes by other clients.
            if done && is_last {
                return Ok(());
            }
        }
        let problem =
            format!("the switch's configuration changed during each of {ATTEMPTS} writes");
        Err(DriverError::Unreachable { switch: self.name.clone(), problem })
    }

    async fn count(&self) -> Result<Vec<QueueCounters>, DriverError> {
        let mut wire = self.connect(COUNTERS_DB).await?;
        let failed = |error| self.wire("its counters", error);
        let map = "COUNTERS_QUEUE_NAME_MAP".to_owned();
        let names = wire.hashes(std::slice::from_ref(&map)).await.map_err(failed)?;
        let mut queues = Vec::new();
        for port in &self.ports {
            for queue in 0..self.settings.queues {
                // A queue without counters is left out.
                if let Some(oid) = tables::get(&names, &map, &format!("{port}:{queue}")) {
                    queues.push((port, queue, format!("COUNTERS:{oid}")));
                }
            }
        }
        let keys: Vec<String> = queues.iter().map(|(_, _, key)| key.clone()).collect();
        let tables = wire.hashes(&keys).await.map_err(failed)?;
        let count = |key: &str, statistic: &str| {
            let field = format!("SAI_QUEUE_STAT_{statistic}");
            let text = tables::get(&tables, key, &field).unwrap_or("0");
            let problem = || Unfit::Rubbish(format!("{key} {field}"), format!("{text:?}"));
            text.parse().map_err(|_| self.unfit(problem()))
        };
        let counters = |(port, queue, key): (&String, u8, String)| {
            let (packets, bytes) = (count(&key, "PACKETS")?, count(&key, "BYTES")?);
            let dropped = count(&key, "DROPPED_PACKETS")?;
            Ok(QueueCounters { port: port.clone(), queue, packets, bytes, dropped })
        };
        queues.into_iter().map(counters).collect()
    }
}

#[async_trait]
impl SwitchDriver for SonicSwitch {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static str {
        "sonic-configdb"
    }

    async fn capabilities(&self) -> Result<Capabilities, DriverError> {
        Ok(self.can())
    }

    async fn read_back(&self) -> Result<SwitchState, DriverError> {
        self.bounded(async {
            let mut wire = self.connect(CONFIG_DB).await?;
            Ok(self.see(&mut wire).await?.state)
        })
        .await
    }

    async fn apply(&self, stamp: Stamp, changes: &[Change]) -> Result<(), DriverError> {
        self.bounded(self.carry_out(stamp, changes)).await
    }

    async fn words(&self, changes: &[Change]) -> Result<Vec<String>, DriverError> {
        self.bounded(async {
            let mut wire = self.connect(CONFIG_DB).await?;
            let seen = self.see(&mut wire).await?;
            let mut ops: Vec<Op> = self.plan(&seen, changes)?.into_iter().flatten().collect();
            ops.push(Op::Stamp("EPOCH".to_owned(), "GENERATION".to_owned()));
            Ok(ops.iter().map(ToString::to_string).collect())
        })
        .await
    }

    async fn counters(&self) -> Result<Vec<QueueCounters>, DriverError> {
        self.bounded(self.count()).await
    }
}

#[cfg(test)]
mod tests;
