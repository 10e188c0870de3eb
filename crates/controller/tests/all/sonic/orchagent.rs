//! Test double of SONiC's orchagent with an ASIC.
//!
//! The test double reads CONFIG_DB only now and then, so it sees several transactions together. It
//! then writes to the ASIC in the order that harms most: maps from code point to class, bindings of
//! ports, and last the maps from class to queue. A real orchagent may use any order.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use serde_json::json;
use tokio::task::JoinHandle;

use super::server::Redis;

/// Time between two reads of CONFIG_DB.
const PERIOD: Duration = Duration::from_millis(30);
const KINDS: [&str; 2] = ["DSCP_TO_TC_MAP", "TC_TO_QUEUE_MAP"];
const FIELDS: [&str; 2] = ["dscp_to_tc_map", "tc_to_queue_map"];
const ATTRIBUTES: [&str; 2] =
    ["SAI_PORT_ATTR_QOS_DSCP_TO_TC_MAP", "SAI_PORT_ATTR_QOS_TC_TO_QUEUE_MAP"];

type Hashes = BTreeMap<String, BTreeMap<String, String>>;

/// Maps of the ASIC by their keys in CONFIG_DB, and the keys of each port's maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AsicState {
    maps: BTreeMap<String, BTreeMap<String, String>>,
    ports: BTreeMap<String, [Option<String>; 2]>,
}

impl AsicState {
    /// Returns the queue of a frame with a code point that enters and leaves through a port.
    pub fn queue(&self, port: &str, dscp: u8) -> u8 {
        let look = |kind: usize, from: u8| {
            let name = self.ports.get(port).and_then(|maps| maps[kind].as_ref());
            let map = name.and_then(|name| self.maps.get(name));
            let to = map.and_then(|map| map.get(&from.to_string()));
            to.map_or(0, |to| to.parse().expect("a number"))
        };
        look(1, look(0, dscp))
    }
}

/// Running test double. Dropping the [`Orchagent`] ends the test double.
pub struct Orchagent {
    states: Arc<Mutex<Vec<AsicState>>>,
    task: JoinHandle<()>,
}

impl Drop for Orchagent {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Orchagent {
    /// Starts the test double. Its ASIC shows all ports, which have no maps yet.
    pub async fn start(redis: &Arc<Redis>) -> Self {
        show_ports(redis).await;
        let states = Arc::new(Mutex::new(Vec::new()));
        let (redis, log) = (Arc::clone(redis), Arc::clone(&states));
        let task = tokio::spawn(async move {
            let mut asic = redis.connect(1).await;
            let mut state = AsicState::default();
            let mut ticks = tokio::time::interval(PERIOD);
            loop {
                ticks.tick().await;
                let config = redis.all().await;
                for next in steps(&state, &config) {
                    // The driver may read the state as soon as it is written.
                    log.lock().expect("no panic").push(next.clone());
                    write(&mut asic, &next, &config).await;
                    state = next;
                }
            }
        });
        Self { states, task }
    }

    /// Returns the states of the ASIC since the last call.
    pub fn states(&self) -> Vec<AsicState> {
        std::mem::take(&mut *self.states.lock().expect("no panic"))
    }
}

/// Writes the objects of all ports, which have no maps.
pub async fn show_ports(redis: &Redis) {
    let (mut counters, mut asic) = (redis.connect(2).await, redis.connect(1).await);
    for (port, object) in port_objects(&redis.all().await) {
        let mut name = redis::cmd("HSET");
        name.arg("COUNTERS_PORT_NAME_MAP").arg(&port).arg(&object);
        name.query_async::<()>(&mut counters).await.expect("set");
        let key = format!("ASIC_STATE:SAI_OBJECT_TYPE_PORT:{object}");
        let mut port = redis::cmd("HSET");
        port.arg(key).arg("SAI_PORT_ATTR_ADMIN_STATE").arg("true");
        port.query_async::<()>(&mut asic).await.expect("set");
    }
}

fn port_objects(config: &Hashes) -> Vec<(String, String)> {
    let ports = config.keys().filter_map(|key| key.strip_prefix("PORT|"));
    ports.enumerate().map(|(n, port)| (port.to_owned(), format!("oid:0x1{n:012x}"))).collect()
}

fn map_object(key: &str) -> String {
    let number =
        key.bytes().fold(0u64, |sum, byte| sum.wrapping_mul(131).wrapping_add(u64::from(byte)));
    format!("oid:0x14{number:016x}")
}

/// Returns the states of the ASIC on the way from `is` to the configuration.
fn steps(is: &AsicState, config: &Hashes) -> Vec<AsicState> {
    let kind_of = |key: &str| KINDS.iter().position(|table| key.split('|').next() == Some(table));
    let mut next = is.clone();
    // New maps are not bound yet.
    for (key, fields) in config.iter().filter(|(key, _)| kind_of(key).is_some()) {
        next.maps.entry(key.clone()).or_insert_with(|| fields.clone());
    }
    let mut steps = vec![next.clone()];
    for kind in 0..KINDS.len() {
        for (key, fields) in config.iter().filter(|(key, _)| kind_of(key) == Some(kind)) {
            next.maps.insert(key.clone(), fields.clone());
            steps.push(next.clone());
        }
        if kind == 0 {
            bind(&mut next, config);
            steps.push(next.clone());
        }
    }
    steps.dedup();
    if steps.first() == Some(is) {
        steps.remove(0);
    }
    steps
}

/// Binds ports to maps as in the configuration.
fn bind(next: &mut AsicState, config: &Hashes) {
    for (key, fields) in config {
        let Some(port) = key.strip_prefix("PORT_QOS_MAP|") else { continue };
        let mut maps = [None, None];
        for (kind, map) in maps.iter_mut().enumerate() {
            let name = fields.get(FIELDS[kind]).map(|name| format!("{}|{name}", KINDS[kind]));
            *map = name.filter(|name| next.maps.contains_key(name));
        }
        next.ports.insert(port.to_owned(), maps);
    }
}

/// Writes a state of the ASIC to ASIC_DB.
async fn write(asic: &mut MultiplexedConnection, state: &AsicState, config: &Hashes) {
    let mut pipe = redis::pipe();
    for (key, fields) in &state.maps {
        let names = if key.starts_with(KINDS[0]) { ["dscp", "tc"] } else { ["tc", "qidx"] };
        let number = |text: &str| text.parse::<u8>().expect("a number");
        let field = |name: &str, text: &String| json!({ name: number(text) });
        let entry = |(from, to): (&String, &String)| {
            let (key, value) = (field(names[0], from), field(names[1], to));
            json!({ "key": key, "value": value })
        };
        let list: Vec<_> = fields.iter().map(entry).collect();
        let list = json!({ "count": list.len(), "list": list }).to_string();
        let object = format!("ASIC_STATE:SAI_OBJECT_TYPE_QOS_MAP:{}", map_object(key));
        pipe.cmd("HSET").arg(object).arg("SAI_QOS_MAP_ATTR_MAP_TO_VALUE_LIST").arg(list);
    }
    for (port, object) in port_objects(config) {
        let Some(maps) = state.ports.get(&port) else { continue };
        for (map, attribute) in maps.iter().zip(ATTRIBUTES) {
            let map = map.as_ref().map_or("oid:0x0".to_owned(), |map| map_object(map));
            let key = format!("ASIC_STATE:SAI_OBJECT_TYPE_PORT:{object}");
            pipe.cmd("HSET").arg(key).arg(attribute).arg(map);
        }
    }
    pipe.query_async::<()>(asic).await.expect("written");
}
