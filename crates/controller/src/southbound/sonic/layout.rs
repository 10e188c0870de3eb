//! Decides which queues and traffic classes of a SONiC switch belong to tenants.
//!
//! # Problem
//!
//! An operator's QoS configuration may already have maps, lossless classes and schedulers on a
//! port, for example for storage with RoCE and for routing protocols. The frames of this other
//! traffic must keep their classes and queues, and tenants must not become lossless.
//!
//! # Approach
//!
//! The operator says which queues belong to tenants ([`Settings::tenant_queues`]). The driver never
//! changes a map of another configuration. Instead, the driver binds a port to a map of its own,
//! which contains all entries of the other map (the *base*), and the code points of tenants. The
//! name of the driver's map contains the name of the base, so the driver finds the base again after
//! a restart of the switch or of the controller.
//!
//! A code point of the base keeps its class if its queue is not one of the tenants' queues. A code
//! point of the base with a queue of tenants moves to the shared queue, because the operator has
//! given this queue to tenants.
//!
//! Tenants get only traffic classes that no code point keeps, and that are not lossless on any
//! port. A port that does not fit to the ports before it is left out by itself.
//!
//! The class of a frame depends on the port by which the frame enters, and its queue on the port by
//! which it leaves. Frames that enter by ports of others therefore leave by the driver's ports with
//! the classes of the other maps. The most frequent code point of these frames is 0. Tenants get
//! its classes only if there are too few others.
//!
//! # Cost
//!
//! A layout takes O(ports · (maps + code points + entries of the table QUEUE)).

use std::collections::{BTreeMap, BTreeSet};

use super::settings::{MapMode, Settings};
use super::tables::{
    BY_CLASS, BY_DSCP, CLASSES_MAX, MAP, REST, Tables, bound, check_platform, covers, dscp_map,
    foreign_maps, get, map, own_queue_maps, scheduler, scheduler_of,
};
use super::unfit::{Conflict, Unfit};

/// Queue and traffic class of SONiC's own control packets.
pub(super) const CONTROL_QUEUE: u8 = 7;

/// Maps of another configuration that a port's maps extend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Base {
    /// Name of the map from code point to traffic class.
    pub(super) dscp: Option<String>,
    /// Name of the map from traffic class to queue.
    pub(super) class: Option<String>,
    class_of: BTreeMap<u8, u8>,
    queue_of: BTreeMap<u8, u8>,
}

impl Base {
    /// Returns the queue of a code point in the other configuration. Without an entry, SONiC uses
    /// class 0 and queue 0.
    fn queue(&self, dscp: u8) -> u8 {
        let class = self.class_of.get(&dscp).unwrap_or(&0);
        *self.queue_of.get(class).unwrap_or(&0)
    }

    /// Returns the traffic class that a code point keeps, because its queue is not one of the
    /// tenants' `queues`. Returns `None` for all other code points.
    pub(super) fn keeps(&self, dscp: u8, queues: &[u8]) -> Option<u8> {
        let keeps = self.dscp.is_some() && !queues.contains(&self.queue(dscp));
        keeps.then(|| *self.class_of.get(&dscp).unwrap_or(&0))
    }

    /// Whether the map of the other configuration has an entry for a traffic class.
    pub(super) fn lists(&self, class: u8) -> bool {
        self.queue_of.contains_key(&class)
    }

    /// Returns the queue of a traffic class that belongs to the other configuration.
    pub(super) fn queue_of_class(&self, class: u8) -> Option<u8> {
        self.class.as_ref()?;
        Some(*self.queue_of.get(&class).unwrap_or(&0))
    }
}

/// Queues, traffic classes and ports that the driver uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// SONiC's queue for each of the controller's queues. The first is the shared queue.
    pub(super) queues: Vec<u8>,
    /// Traffic classes for tenants, best first. The first is the class of the shared queue. There
    /// is at least one class for each queue.
    pub(super) classes: Vec<u8>,
    /// Traffic classes of frames for the shared queue that enter by ports that the driver does not
    /// use. Of `classes`, tenants get these last.
    pub(super) others: BTreeSet<u8>,
    /// Ports that the driver uses, with the maps that the driver extends.
    pub(super) ports: BTreeMap<String, Base>,
    pub(super) left_out: BTreeMap<String, Unfit>,
}

impl Layout {
    /// Returns the layout for `ports`. `entries` contains the keys of the CONFIG_DB table QUEUE.
    pub(super) fn new(
        settings: &Settings,
        ports: &[String],
        tables: &Tables,
        entries: &[String],
    ) -> Result<Self, Unfit> {
        check_platform(tables)?;
        let (queues, ports_in_order) = (settings.sonic_queues(), ports);
        let (ports, left_out, others) = Default::default();
        let mut layout = Self { queues, classes: Vec::new(), others, ports, left_out };
        let mut busy = BTreeSet::new();
        for port in ports_in_order {
            match layout.fit(settings, port, tables, entries, &busy) {
                Ok((base, now_busy)) => {
                    layout.ports.insert(port.clone(), base);
                    busy = now_busy;
                }
                Err(unfit) => drop(layout.left_out.insert(port.clone(), unfit)),
            }
        }
        let base = layout.ports.values().find(|base| base.dscp.is_some());
        let first = base.and_then(|base| base.class_of.get(&0)).copied().unwrap_or(0);
        layout.others = of_other_ports(tables, &layout.ports);
        layout.classes = free(settings, &busy);
        let others = &layout.others;
        layout.classes.sort_by_key(|class| (*class != first, others.contains(class)));
        Ok(layout)
    }

    /// Checks that the driver may use a port beside the ports of the layout. `busy` contains the
    /// traffic classes that tenants cannot have. Returns the port's base, and the classes that
    /// tenants cannot have together with this port.
    fn fit(
        &self,
        settings: &Settings,
        port: &str,
        tables: &Tables,
        entries: &[String],
        busy: &BTreeSet<u8>,
    ) -> Result<(Base, BTreeSet<u8>), Unfit> {
        if !tables.contains_key(&format!("PORT|{port}")) {
            return Err(Unfit::NoPort(port.to_owned()));
        }
        let conflict = |conflict| Unfit::Conflict(port.to_owned(), conflict);
        let base = base(settings, port, tables)?;
        let lossless = lossless(tables, port);
        if let Some(queue) = self.queues.iter().find(|queue| lossless.contains(queue)) {
            let free = (0..CONTROL_QUEUE).filter(|queue| !lossless.contains(queue));
            return Err(conflict(Conflict::Lossless(*queue, free.collect())));
        }
        self.beside(settings, port, &base)?;
        unobstructed(settings, port, &self.queues, tables, entries)?;
        let mut busy = busy.clone();
        busy.extend(lossless);
        busy.extend((0..64).filter_map(|dscp| base.keeps(dscp, &self.queues)));
        if base.dscp.is_some() && !settings.control_queue {
            busy.insert(CONTROL_QUEUE);
        }
        let free = free(settings, &busy);
        match free.len() < self.queues.len() {
            true => Err(conflict(Conflict::Classes(free))),
            false => Ok((base, busy)),
        }
    }

    /// Checks that tenants' code points and queues do not disturb the other traffic of a port.
    fn beside(&self, settings: &Settings, port: &str, base: &Base) -> Result<(), Unfit> {
        let conflict = |conflict| Unfit::Conflict(port.to_owned(), conflict);
        let before = self.ports.values().find(|before| before.class.is_some());
        if let (Some(name), Some(before)) = (&base.class, before)
            && (0..CLASSES_MAX).any(|c| base.queue_of_class(c) != before.queue_of_class(c))
        {
            return Err(conflict(Conflict::Differs(name.clone())));
        }
        if base.dscp.is_none() {
            return Ok(());
        }
        if base.queue(0) != self.queues[0] {
            return Err(conflict(Conflict::Shared(base.queue(0))));
        }
        // Code points of network control may be in the shared queue, but not in a tenant's queue.
        let of_tenants = |dscp: &u8| match &settings.mode {
            MapMode::Static(map) => map.get(dscp).is_some_and(|queue| *queue != 0),
            MapMode::PerPort => false,
        };
        let disturbed = (1..64).find(|dscp| {
            let is_kept = base.keeps(*dscp, &self.queues).is_some();
            let moves = self.queues[1..].contains(&base.queue(*dscp));
            (is_kept && of_tenants(dscp)) || (settings.is_control(*dscp) && moves)
        });
        match disturbed {
            Some(dscp) => Err(conflict(Conflict::CodePoint(dscp, base.queue(dscp)))),
            None => Ok(()),
        }
    }

    /// Returns the number of the controller's queue with SONiC's number `queue`.
    pub(super) fn number(&self, queue: u8) -> Option<u8> {
        let at = self.queues.iter().position(|own| *own == queue);
        at.and_then(|at| u8::try_from(at).ok())
    }

    /// Returns the name of each map from code point to traffic class that the ports need, with the
    /// base of the map.
    pub(super) fn dscp_maps(&self) -> BTreeMap<String, &Base> {
        self.ports.values().map(|base| (dscp_map(base.dscp.as_deref()), base)).collect()
    }

    /// Returns the traffic class of each code point that has the same class in all maps of the
    /// driver. Code points that keep their class of another configuration are missing.
    pub(super) fn classes_now(&self, tables: &Tables) -> Result<BTreeMap<u8, u8>, Unfit> {
        let mut all: Option<BTreeMap<u8, u8>> = None;
        for (name, base) in self.dscp_maps() {
            if !tables.contains_key(&format!("{}|{name}", BY_DSCP.0)) {
                continue;
            }
            let mut has = map(tables, BY_DSCP.0, &name)?;
            has.retain(|dscp, class| base.keeps(*dscp, &self.queues) != Some(*class));
            match &mut all {
                None => all = Some(has),
                Some(all) => all.retain(|dscp, class| has.get(dscp) == Some(class)),
            }
        }
        Ok(all.unwrap_or_default())
    }

    /// Returns a port whose other traffic keeps the class of a code point, with the queue of this
    /// traffic.
    pub(super) fn keeper(&self, dscp: u8) -> Option<(&str, u8)> {
        let keeps = |base: &&Base| base.keeps(dscp, &self.queues).is_some();
        let (port, base) = self.ports.iter().find(|(_, base)| keeps(base))?;
        Some((port.as_str(), base.queue(dscp)))
    }
}

/// Returns the traffic classes that tenants may have, in ascending order.
fn free(settings: &Settings, busy: &BTreeSet<u8>) -> Vec<u8> {
    (0..settings.classes).filter(|class| !busy.contains(class)).collect()
}

/// Returns the classes that frames for the shared queue have if they enter by ports that the driver
/// does not use. These are class 0, which frames without a code point have, and the classes of code
/// point 0. `used` contains the ports that the driver uses.
fn of_other_ports(tables: &Tables, used: &BTreeMap<String, Base>) -> BTreeSet<u8> {
    let mut classes = BTreeSet::from([0]);
    let ports = tables.keys().filter_map(|key| key.strip_prefix("PORT_QOS_MAP|"));
    for port in ports.filter(|port| !used.contains_key(*port)) {
        let map = bound(tables, port, BY_DSCP.1).filter(|name| !name.starts_with(MAP));
        let class = map.and_then(|name| get(tables, &format!("{}|{name}", BY_DSCP.0), "0"));
        classes.extend(class.and_then(|class| class.parse::<u8>().ok()));
    }
    classes
}

/// Returns the maps of another configuration to which a port is bound now, or which the port's maps
/// extend already.
fn base(settings: &Settings, port: &str, tables: &Tables) -> Result<Base, Unfit> {
    let key = format!("PORT_QOS_MAP|{port}");
    // A port with the first map writes other code points into frames. The second one gives classes
    // to frames without a code point.
    for field in ["tc_to_dscp_map", "dot1p_to_tc_map"] {
        if let Some(other) = get(tables, &key, field) {
            return Err(Unfit::Foreign(key, field, other.to_owned()));
        }
    }
    let dscp = bases(tables, BY_DSCP.0, dscp_map);
    let dscp = original(settings, port, tables, BY_DSCP, &dscp)?;
    let mut class = bases(tables, BY_CLASS.0, dscp_map);
    class.extend(own_queue_maps(tables, port));
    let class = original(settings, port, tables, BY_CLASS, &class)?;
    if dscp.is_some() && class.is_none() {
        // Without the second map, other traffic has no queue that it could keep.
        return Err(Unfit::NoMap(key, BY_CLASS.1, "none".to_owned()));
    }
    let mut base = Base { dscp, class, ..Base::default() };
    let content = |(table, field): (&str, &'static str), name: Option<&String>| {
        let Some(name) = name else { return Ok(BTreeMap::new()) };
        map(tables, table, name).map_err(|_| Unfit::NoMap(key.clone(), field, name.clone()))
    };
    base.class_of = content(BY_DSCP, base.dscp.as_ref())?;
    base.queue_of = content(BY_CLASS, base.class.as_ref())?;
    Ok(base)
}

/// Returns the name of the driver's common map for each map of a table, with the map's name.
fn bases<'a>(
    tables: &'a Tables,
    table: &str,
    name: impl Fn(Option<&str>) -> String,
) -> Vec<(String, Option<&'a str>)> {
    let others = foreign_maps(tables.keys(), table).map(Some);
    std::iter::once(None).chain(others).map(|base| (name(base), base)).collect()
}

/// Returns the name of the map that a field of a port means without the driver. With
/// [`Settings::tenant_queues`], a port without the field has the map of the whole switch. `ours`
/// contains the names of the driver's maps, each with its base.
fn original(
    settings: &Settings,
    port: &str,
    tables: &Tables,
    (table, field): (&'static str, &'static str),
    ours: &[(String, Option<&str>)],
) -> Result<Option<String>, Unfit> {
    let key = format!("PORT_QOS_MAP|{port}");
    let of_switch = || bound(tables, "global", field).filter(|_| settings.tenant_queues.is_some());
    let Some(bound) = bound(tables, port, field).or_else(of_switch) else { return Ok(None) };
    let base = match ours.iter().find(|(name, _)| name == bound) {
        Some((_, None)) => return Ok(None),
        Some((_, Some(base))) => *base,
        None => bound,
    };
    if settings.tenant_queues.is_none() {
        return Err(Unfit::Foreign(key, field, base.to_owned()));
    }
    let is_named = !base.is_empty() && !base.starts_with(MAP);
    if !is_named || !tables.contains_key(&format!("{table}|{base}")) {
        return Err(Unfit::NoMap(key, field, base.to_owned()));
    }
    Ok(Some(base.to_owned()))
}

/// Returns the PFC priorities of a port whose frames the port never drops, but stops the sender.
fn lossless(tables: &Tables, port: &str) -> BTreeSet<u8> {
    let key = format!("PORT_QOS_MAP|{port}");
    let list = get(tables, &key, "pfc_enable").unwrap_or_default();
    list.split(',').filter_map(|text| text.trim().parse().ok()).collect()
}

/// Checks that the driver may set the schedulers of tenants' queues on a port.
fn unobstructed(
    settings: &Settings,
    port: &str,
    queues: &[u8],
    tables: &Tables,
    entries: &[String],
) -> Result<(), Unfit> {
    for queue in queues {
        let (entry, ours) = (format!("QUEUE|{port}|{queue}"), scheduler(port, *queue));
        if settings.tenant_queues.is_none()
            && let Some(other) = scheduler_of(tables, port, *queue)
            && other != ours
            && other != REST
        {
            return Err(Unfit::Foreign(entry, "scheduler", other.to_owned()));
        }
        if let Some(other) = entries.iter().find(|key| covers(key, port, *queue)) {
            return Err(Unfit::Range(other.clone(), entry));
        }
    }
    Ok(())
}
