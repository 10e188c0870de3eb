//! Configures SONiC switches through tables in the switch's redis.
//!
//! The driver writes only the following entries of the switch's databases:
//!
//! - `SCHEDULER|pen.PORT.QUEUE` and `SCHEDULER|pen.rest`
//! - the field `scheduler` in `QUEUE|PORT|QUEUE`, for queues of tenants
//! - `DSCP_TO_TC_MAP|PENSTOCK`, or `DSCP_TO_TC_MAP|PENSTOCK-OTHER`, which extends the map `OTHER`
//! - `TC_TO_QUEUE_MAP|PENSTOCK` or `TC_TO_QUEUE_MAP|PENSTOCK_PORT`, also with `-OTHER`
//! - the fields `dscp_to_tc_map` and `tc_to_queue_map` in `PORT_QOS_MAP|PORT`
//! - the stamp
//!
//! The module `layout` defines which queues, classes and ports belong to tenants. The module `plan`
//! defines the order of changes, and `southbound::classes` assigns classes to code points. The
//! module `asic` reads back whether the ASIC has the maps.
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
//! # Control traffic
//!
//! SONiC sends its own control packets through queue 7, and routing protocols use the code points
//! 48 and 56 ([`CONTROL`]). Tenants get this queue and these code points only if
//! [`Settings::control_queue`] permits their use.
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

mod asic;
mod layout;
mod plan;
mod settings;
mod tables;
mod unfit;
mod wire;

use async_trait::async_trait;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

pub use settings::{CONTROL, Endpoint, MapMode, Reference, SETTLE, Settings};
#[doc(hidden)]
pub use tables::Tables as Entries;

use super::{
    Capabilities, Change, DriverError, PortInfo, QueueCounters, SwitchDriver, SwitchState, step,
};
use crate::Stamp;
use asic::{ASIC_DB, Asic, Contents};
use layout::{CONTROL_QUEUE, Layout};
use plan::{CONFIG_DB, NoPlan, Op, STATE_DB, plan};
use tables::{BY_CLASS, BY_DSCP, CLASSES_MAX, NAME_MAX, STAMP, Tables};
use unfit::{Explanation, Unfit};
use wire::{TIME_MAX, Wire, WireError};

const COUNTERS_DB: i64 = 2;
/// Maximum number of attempts at a change. In each attempt, the SONiC driver reads the switch's
/// configuration and writes one transaction. A change needs at most four attempts if no other
/// client of redis interferes.
const ATTEMPTS: usize = 12;
/// Longest time that the driver waits until the ASIC has a transaction. The time is shorter in unit
/// tests, like [`TIME_MAX`].
const TAKEN_MAX: Duration = Duration::from_millis(if cfg!(test) { 500 } else { 5_000 });
/// First and longest time between two reads of the ASIC's state. The time doubles with each read.
const POLL: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(200)];

#[derive(Debug)]
pub struct SonicSwitch {
    name: String,
    endpoint: Endpoint,
    settings: Settings,
    ports: Vec<String>,
    /// Time until which a caller should wait for the ASIC. `None` if the driver does not wait for
    /// the ASIC.
    wait_until: Mutex<Option<Instant>>,
}

/// Mark that the driver waits for the ASIC. Dropping the mark removes it.
struct Waiting<'a>(&'a SonicSwitch);

impl<'a> Waiting<'a> {
    fn new(switch: &'a SonicSwitch) -> Self {
        let until = Some(Instant::now() + TAKEN_MAX);
        *switch.wait_until.lock().unwrap_or_else(PoisonError::into_inner) = until;
        Self(switch)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        *self.0.wait_until.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Configuration and state that the driver has read from the switch.
struct SwitchReading {
    tables: Tables,
    layout: Layout,
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
        let (name, wait_until) = (name.to_owned(), Mutex::default());
        let this = Self { name, endpoint, settings, ports, wait_until };
        this.check()?;
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

    /// Checks that the settings are in range and agree with each other.
    fn check(&self) -> Result<(), DriverError> {
        let Settings { mode, queues, classes, control_queue, .. } = &self.settings;
        if !(2..=8).contains(queues) || !(*queues..=CLASSES_MAX).contains(classes) {
            let what = format!("a switch with {queues} queues and {classes} traffic classes");
            let limit = format!("2 to 8 queues, and {queues} to {CLASSES_MAX} classes");
            let remedy = "change `classes` of the switch, or `reserved_queues` of the fabric";
            return Err(self.beyond(what, limit, remedy));
        }
        let own = self.settings.sonic_queues();
        let distinct: BTreeSet<u8> = own.iter().copied().filter(|queue| *queue < 8).collect();
        if own.len() != usize::from(*queues) || distinct.len() != own.len() {
            let what = format!("`tenant_queues` = {own:?}");
            let limit = format!("the fabric has {queues} queues for tenants");
            let remedy = format!("write {queues} different queues from 0 to 7");
            return Err(self.beyond(what, limit, remedy));
        }
        if own.contains(&CONTROL_QUEUE) && !control_queue {
            let limit = "SONiC sends its own control packets by queue 7".to_owned();
            let remedy = "raise `reserved_queues` in the fabric's file, or give tenants queue 7 \
                          too with `control_queue = true`";
            return Err(self.beyond(format!("queues {own:?}"), limit, remedy));
        }
        if let MapMode::Static(map) = mode {
            let fits = |(dscp, queue): (&u8, &u8)| {
                (1..64).contains(dscp) && !self.settings.is_control(*dscp) && queue < queues
            };
            if !map.iter().all(fits) {
                let limit = format!(
                    "a map has code points 1 to 63 without {CONTROL:?}, and queues below {queues}"
                );
                return Err(self.beyond(format!("map {map:?}"), limit, "change the static map"));
            }
        }
        Ok(())
    }

    fn beyond(&self, what: String, limit: String, remedy: impl Into<String>) -> DriverError {
        DriverError::Beyond { switch: self.name.clone(), what, limit, remedy: remedy.into() }
    }

    /// Returns the capabilities of a switch with the layout. Classes of other traffic do not count.
    fn can(&self, layout: &Layout) -> Capabilities {
        let (remap, fixed_map) = match &self.settings.mode {
            MapMode::Static(map) => (false, map.clone()),
            MapMode::PerPort => (true, BTreeMap::new()),
        };
        let classes = u8::try_from(layout.classes.len()).unwrap_or(CLASSES_MAX);
        let can = Capabilities::new(self.settings.queues, classes);
        Capabilities { remap, fixed_map, map_per_port: remap, ..can }
    }

    fn unfit(&self, unfit: &Unfit) -> DriverError {
        let Explanation { what, limit, remedy } = unfit.explain();
        if matches!(unfit, Unfit::Rubbish(..)) {
            return DriverError::Rubbish { switch: self.name.clone(), what, problem: limit };
        }
        self.beyond(what, limit, remedy)
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
    /// key. CONFIG_DB stays selected.
    async fn see(&self, wire: &mut Wire) -> Result<SwitchReading, DriverError> {
        let failed = |error| self.wire("its configuration", error);
        wire.select(CONFIG_DB).await.map_err(failed)?;
        let mut maps = Vec::new();
        for table in [BY_DSCP.0, BY_CLASS.0, "PORT_QOS_MAP"] {
            maps.extend(wire.names(&format!("{table}|*")).await.map_err(failed)?);
        }
        let keys = tables::keys(&self.settings, &self.ports, &maps);
        let mut tables = Tables::new();
        for (database, keys) in [(STATE_DB, &[STAMP.to_owned()][..]), (CONFIG_DB, &keys)] {
            wire.select(database).await.map_err(failed)?;
            wire.watch(keys).await.map_err(failed)?;
            tables.extend(wire.hashes(keys).await.map_err(failed)?);
        }
        let entries = wire.names("QUEUE|*").await.map_err(failed)?;
        self.reading(tables, &entries)
    }

    /// Interprets tables of the switch. `entries` contains the keys of the table QUEUE.
    fn reading(&self, tables: Tables, entries: &[String]) -> Result<SwitchReading, DriverError> {
        let failed = |unfit: Unfit| self.unfit(&unfit);
        let layout = Layout::new(&self.settings, &self.ports, &tables, entries).map_err(failed)?;
        let refusal = |unfit: &Unfit| self.unfit(unfit).to_string();
        let state = tables::state(&tables, &layout, refusal).map_err(failed)?;
        Ok(SwitchReading { tables, layout, state })
    }

    /// Compares the ASIC's maps with the maps `wanted`.
    async fn compare(
        &self,
        wire: &mut Wire,
        wanted: &BTreeMap<String, Contents>,
    ) -> Result<Asic, DriverError> {
        let failed = |error| self.wire("the state of its ASIC", error);
        if wanted.is_empty() {
            return Ok(Asic::Agrees);
        }
        wire.select(COUNTERS_DB).await.map_err(failed)?;
        let names: Vec<&str> = wanted.keys().map(String::as_str).collect();
        let objects = wire.values(&[asic::PORT_NAMES.to_owned()], &names).await.map_err(failed)?;
        let objects = names.iter().zip(objects.into_iter().flatten());
        let known: BTreeMap<String, &str> =
            objects.filter_map(|(port, object)| Some((asic::port_key(&object?), *port))).collect();
        wire.select(ASIC_DB).await.map_err(failed)?;
        let keys = wire.existing(known.keys().cloned().collect()).await.map_err(failed)?;
        let maps_of = wire.values(&keys, &asic::MAPS_OF_PORT).await.map_err(failed)?;
        let maps: BTreeSet<String> =
            maps_of.iter().flatten().flatten().map(|object| asic::map_key(object)).collect();
        let maps = Vec::from_iter(maps);
        let contents = wire.values(&maps, &[asic::CONTENT]).await.map_err(failed)?;
        let contents: BTreeMap<String, Option<String>> =
            maps.into_iter().zip(contents.into_iter().flatten()).collect();
        let mut ports = BTreeMap::new();
        for (key, objects) in keys.iter().zip(&maps_of) {
            let Some(port) = known.get(key) else { continue };
            let mut has: Contents = [None, None];
            for (kind, (has, object)) in has.iter_mut().zip(objects).enumerate() {
                let key = object.as_deref().map(asic::map_key);
                let text = key.and_then(|key| contents.get(&key)?.as_deref());
                *has = text.and_then(|text| asic::parse(kind, text));
            }
            ports.insert((*port).to_owned(), has);
        }
        Ok(asic::compare(wanted, &ports))
    }

    /// Waits until the ASIC has the maps of `tables`. If the switch does not show its ASIC's maps,
    /// waits for [`Settings::settle`] after a change.
    async fn taken(
        &self,
        tables: &Tables,
        layout: &Layout,
        is_changed: bool,
    ) -> Result<(), DriverError> {
        let wanted = asic::configured(tables, layout).map_err(|unfit| self.unfit(&unfit))?;
        let mut differs = BTreeSet::new();
        let _waiting = Waiting::new(self);
        let poll = async {
            let [mut pause, longest] = POLL;
            loop {
                // The limit on the bytes of answers is for one connection.
                let mut wire = self.connect(COUNTERS_DB).await?;
                match self.compare(&mut wire, &wanted).await? {
                    Asic::Agrees => return Ok::<(), DriverError>(()),
                    Asic::Hidden if is_changed => {
                        sleep(self.settings.settle).await;
                        return Ok(());
                    }
                    Asic::Hidden => return Ok(()),
                    Asic::Differs(ports) => differs = ports,
                }
                sleep(pause).await;
                pause = (pause * 2).min(longest);
            }
        };
        if let Ok(result) = timeout(TAKEN_MAX, poll).await {
            return result;
        }
        let change = format!("the maps of {}", Vec::from_iter(differs).join(", "));
        let problem = format!(
            "CONFIG_DB has the maps, but the ASIC does not have them after {} ms; read the \
             messages of orchagent in the switch's /var/log/syslog",
            TAKEN_MAX.as_millis()
        );
        Err(DriverError::Refused { switch: self.name.clone(), change, problem })
    }

    /// Returns the state of the switch, with the maps that the ASIC really has.
    async fn actual(
        &self,
        wire: &mut Wire,
        seen: SwitchReading,
    ) -> Result<SwitchState, DriverError> {
        let SwitchReading { tables, layout, mut state } = seen;
        let wanted = asic::configured(&tables, &layout).map_err(|unfit| self.unfit(&unfit))?;
        if let Asic::Differs(ports) = self.compare(wire, &wanted).await? {
            // The map in CONFIG_DB is not the map of the port.
            let states = state.ports.iter_mut().filter(|(port, _)| ports.contains(*port));
            states.for_each(|(_, state)| state.map.clear());
        }
        Ok(state)
    }

    /// Returns the remaining transactions that apply `changes` to the switch.
    fn plan(&self, seen: &SwitchReading, changes: &[Change]) -> Result<Vec<Vec<Op>>, DriverError> {
        let (can, mut target) = (self.can(&seen.layout), seen.state.clone());
        for change in changes {
            if let Change::Map { dscp, queue: 1.., .. } = change
                && self.settings.is_control(*dscp)
            {
                let limit = format!("network control uses the code points {CONTROL:?}");
                let remedy = "add the code point to `reserved_code_points` in the fabric's file";
                return Err(self.beyond(change.to_string(), limit, remedy));
            }
            step(&self.name, &can, &mut target, change)?;
        }
        let stages = plan(&self.settings, &seen.tables, &seen.layout, &target);
        stages.map_err(|why| match why {
            NoPlan::Unfit(unfit) => self.unfit(&unfit),
            NoPlan::Classes(wanted) => {
                let what = format!("the use of {wanted} classes besides the shared class");
                let limit = format!("tenants have the classes {:?}", seen.layout.classes);
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
            self.reading(tables.clone(), &names.collect::<Vec<_>>())
        };
        let before = seen(&now)?.state;
        DriverError::fence(&self.name, before.stamp, stamp)?;
        for round in 0..ATTEMPTS {
            let stages = self.plan(&seen(&now)?, changes)?;
            let is_last = stages.len() <= 1;
            let ops = stages.into_iter().next().unwrap_or_default();
            let ops = ops.into_iter().chain((round == 0).then(|| Op::stamp(stamp)));
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
            // The stamp goes with the first transaction, so that an earlier controller that writes
            // at the same time is refused in its next round.
            if seen.state.stamp != stamp {
                ops.push(Op::stamp(stamp));
            }
            let words = ops.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            let done = ops.is_empty() || {
                let done = wire.commit(&ops).await;
                done.map_err(|error| self.wire(&words, error))?
            };
            if done {
                let SwitchReading { mut tables, layout, .. } = seen;
                let is_changed = ops.iter().any(|op| op.database() == CONFIG_DB);
                ops.into_iter().for_each(|op| op.apply(&mut tables));
                self.taken(&tables, &layout, is_changed).await?;
            }
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
            for (number, queue) in (0..).zip(self.settings.sonic_queues()) {
                // A queue without counters is left out.
                if let Some(oid) = tables::get(&names, &map, &format!("{port}:{queue}")) {
                    queues.push((port, number, format!("COUNTERS:{oid}")));
                }
            }
        }
        let keys: Vec<String> = queues.iter().map(|(_, _, key)| key.clone()).collect();
        let tables = wire.hashes(&keys).await.map_err(failed)?;
        let count = |key: &str, statistic: &str| {
            let field = format!("SAI_QUEUE_STAT_{statistic}");
            let text = tables::get(&tables, key, &field).unwrap_or("0");
            let problem = || Unfit::Rubbish(format!("{key} {field}"), format!("{text:?}"));
            text.parse().map_err(|_| self.unfit(&problem()))
        };
        let counters = |(port, queue, key): (&String, u8, String)| {
            let (packets, bytes) = (count(&key, "PACKETS")?, count(&key, "BYTES")?);
            let dropped = count(&key, "DROPPED_PACKETS")?;
            let port = port.clone();
            Ok(QueueCounters { port, queue, packets, bytes, dropped, waiting: None })
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
        self.bounded(async {
            let mut wire = self.connect(CONFIG_DB).await?;
            Ok(self.can(&self.see(&mut wire).await?.layout))
        })
        .await
    }

    /// Identifies the run of the switch's redis, which starts with the switch.
    async fn run_id(&self) -> Result<Option<String>, DriverError> {
        self.bounded(async {
            let mut wire = self.connect(CONFIG_DB).await?;
            match wire.run().await {
                // A redis may permit only some commands.
                Err(WireError::Refused(_) | WireError::Rubbish(_)) => Ok(None),
                run => run.map_err(|error| self.wire("the run of its redis", error)),
            }
        })
        .await
    }

    async fn look(&self) -> Result<(Capabilities, SwitchState), DriverError> {
        self.bounded(async {
            let mut wire = self.connect(CONFIG_DB).await?;
            let seen = self.see(&mut wire).await?;
            let can = self.can(&seen.layout);
            Ok((can, self.actual(&mut wire, seen).await?))
        })
        .await
    }

    async fn read_back(&self) -> Result<SwitchState, DriverError> {
        self.bounded(async {
            let mut wire = self.connect(CONFIG_DB).await?;
            let seen = self.see(&mut wire).await?;
            self.actual(&mut wire, seen).await
        })
        .await
    }

    async fn apply(&self, stamp: Stamp, changes: &[Change]) -> Result<(), DriverError> {
        self.bounded(self.carry_out(stamp, changes)).await
    }

    fn patience(&self) -> Option<Duration> {
        let until = *self.wait_until.lock().unwrap_or_else(PoisonError::into_inner);
        until?.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
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
