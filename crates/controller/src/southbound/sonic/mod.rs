//! A switch that runs SONiC: told through the tables of its configuration, in redis.
//!
//! **Rule.** What is written: `SCHEDULER|pen.PORT.QUEUE`, `SCHEDULER|pen.rest`, the field
//! `scheduler` of `QUEUE|PORT|QUEUE`, `DSCP_TO_TC_MAP|PENSTOCK`, `TC_TO_QUEUE_MAP|PENSTOCK` or
//! `TC_TO_QUEUE_MAP|PENSTOCK.PORT`, two fields of `PORT_QOS_MAP|PORT`, and the stamp. Nothing else
//! is, and where something else stands in a place of these the port is refused. The order is
//! `plan`'s; which classes code points have is `classes`'.
//!
//! **Stamp.** `PENSTOCK|stamp`, fields `epoch` and `generation`, in CONFIG_DB: saved and lost
//! together with what it is about. Everything that is read to decide is watched (WATCH), so each
//! transaction is done only if no other controller, and no operator, has changed it meanwhile.
//!
//! **Weights.** DWRR in bytes, 1 to 100. A queue without a weight has 1: SONiC's model has nothing
//! below, so beside queues of low weight the rest gets more than what they leave.
//!
//! Source: SONiC's CONFIG_DB manual and YANG models (`sonic-scheduler`, `sonic-queue`,
//! `sonic-dscp-tc-map`, `sonic-port-qos-map`); `sonic-swss` `qosorch`.

mod classes;
mod plan;
mod settings;
mod tables;
mod wire;

use async_trait::async_trait;
use std::collections::BTreeMap;
use tokio::time::timeout;

pub use settings::{Endpoint, MapMode, Reference, Settings};

use super::{
    Capabilities, Change, DriverError, PortInfo, QueueCounters, SwitchDriver, SwitchState, step,
};
use crate::Stamp;
use plan::{NoPlan, Op, plan};
use tables::{CLASSES_MAX, STAMP, Tables, Unfit};
use wire::{TIME_MAX, Wire, WireError};

/// Databases of SONiC by its `database_config.json`.
const COUNTERS_DB: i64 = 2;
const CONFIG_DB: i64 = 4;
/// How often a transaction is begun anew because somebody changed something meanwhile; four are
/// needed where nobody does.
const ATTEMPTS: usize = 12;
const NAME_MAX: usize = 32;

/// A switch that runs SONiC.
#[derive(Debug)]
pub struct SonicSwitch {
    name: String,
    endpoint: Endpoint,
    settings: Settings,
    ports: Vec<String>,
}

/// What the configuration says.
struct Seen {
    tables: Tables,
    /// Keys of table QUEUE.
    entries: Vec<String>,
    state: SwitchState,
}

impl SonicSwitch {
    /// The switch whose redis listens there.
    ///
    /// # Errors
    /// [`DriverError::Beyond`] when a port's name is none, or settings are out of range.
    pub fn new(
        name: &str,
        ports: &[PortInfo],
        settings: Settings,
        endpoint: Endpoint,
    ) -> Result<Self, DriverError> {
        let ports = ports.iter().map(|port| port.name.clone()).collect();
        let this = Self { name: name.to_owned(), endpoint, settings, ports };
        let Settings { mode, queues, classes, .. } = &this.settings;
        if !(2..=8).contains(queues) || !(2..=CLASSES_MAX).contains(classes) {
            let what = format!("{queues} queues and {classes} classes");
            let limit = format!("2 to 8 queues, 2 to {CLASSES_MAX} classes");
            return Err(this.beyond(what, limit, "change the switch's settings"));
        }
        if let MapMode::Static(map) = mode {
            let fits = |(dscp, queue): (&u8, &u8)| {
                (1..64).contains(dscp) && queue < queues && queue < classes
            };
            if !map.iter().all(fits) {
                let limit = format!("code points 1 to 63 in queues below {queues} and {classes}");
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
        Ok(this)
    }

    fn beyond(&self, what: String, limit: String, remedy: &'static str) -> DriverError {
        DriverError::Beyond { switch: self.name.clone(), what, limit, remedy }
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
                let limit = "its CONFIG_DB has no such port".to_owned();
                self.beyond(format!("port {port}"), limit, "name a port of the switch")
            }
            Unfit::Foreign(key, field, what) => {
                let limit = format!("{key} has {field} {what}, which is not ours");
                let remedy = "remove it (config qos clear), or leave the port out";
                self.beyond(format!("changing {key}"), limit, remedy)
            }
            Unfit::Rubbish(what, problem) => {
                DriverError::Rubbish { switch: self.name.clone(), what, problem }
            }
        }
    }

    /// An error of a conversation about `what`.
    fn wire(&self, what: &str, error: WireError) -> DriverError {
        let (switch, what) = (self.name.clone(), what.to_owned());
        match error {
            WireError::Unreachable(problem) => DriverError::Unreachable { switch, problem },
            WireError::Refused(problem) => DriverError::Refused { switch, change: what, problem },
            WireError::Rubbish(problem) => DriverError::Rubbish { switch, what, problem },
        }
    }

    /// All of a conversation has this long.
    async fn bounded<T>(
        &self,
        work: impl Future<Output = Result<T, DriverError>> + Send,
    ) -> Result<T, DriverError> {
        let problem = || format!("no end after {} s", TIME_MAX.as_secs());
        let late = |_| DriverError::Unreachable { switch: self.name.clone(), problem: problem() };
        timeout(TIME_MAX, work).await.map_err(late)?
    }

    async fn connect(&self, database: i64) -> Result<Wire, DriverError> {
        let wire = Wire::connect(&self.endpoint, &self.settings, database).await;
        wire.map_err(|error| self.wire("a connection", error))
    }

    /// Reads; what it reads is watched from before.
    async fn see(&self, wire: &mut Wire) -> Result<Seen, DriverError> {
        let keys = tables::keys(&self.settings, &self.ports);
        let failed = |error| self.wire("its configuration", error);
        wire.watch(&keys).await.map_err(failed)?;
        let tables = wire.hashes(&keys).await.map_err(failed)?;
        let entries = wire.names("QUEUE|*").await.map_err(failed)?;
        let state = tables::state(&self.settings, &self.ports, &tables);
        let state = state.map_err(|unfit| self.unfit(unfit))?;
        Ok(Seen { tables, entries, state })
    }

    /// What is still to be done.
    fn plan(&self, seen: &Seen, changes: &[Change]) -> Result<Vec<Vec<Op>>, DriverError> {
        let (can, mut target) = (self.can(), seen.state.clone());
        changes.iter().try_for_each(|change| step(&self.name, &can, &mut target, change))?;
        let stages = plan(&self.settings, &self.ports, &seen.tables, &seen.entries, &target);
        stages.map_err(|why| match why {
            NoPlan::Unfit(unfit) => self.unfit(unfit),
            NoPlan::Classes(wanted) => {
                let what = format!("{wanted} classes beside the shared one");
                let limit = format!("{} classes in all", self.settings.classes);
                let remedy = "bind fewer tenants on this switch, or to the same queue on all ports";
                self.beyond(what, limit, remedy)
            }
        })
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
                ops.push(stamp_op(&stamp.epoch.to_string(), &stamp.generation.to_string()));
            }
            let words = ops.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            let done = ops.is_empty() || {
                let done = wire.commit(&ops).await;
                done.map_err(|error| self.wire(&words, error))?
            };
            // What a transaction left is seen in the next round, as is who came between.
            if done && is_last {
                return Ok(());
            }
        }
        let problem = format!("its configuration changed {ATTEMPTS} times meanwhile");
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
                // A queue that the switch does not count is left out.
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

fn stamp_op(epoch: &str, generation: &str) -> Op {
    let fields = [("epoch", epoch), ("generation", generation)];
    Op::Set(STAMP.to_owned(), fields.map(|(f, v)| (f.to_owned(), v.to_owned())).into())
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
            ops.push(stamp_op("EPOCH", "GENERATION"));
            Ok(ops.iter().map(|op| format!("redis-cli -n {CONFIG_DB} {op}")).collect())
        })
        .await
    }

    async fn counters(&self) -> Result<Vec<QueueCounters>, DriverError> {
        self.bounded(self.count()).await
    }
}

#[cfg(test)]
mod tests;
