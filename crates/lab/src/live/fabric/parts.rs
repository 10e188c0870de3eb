//! The parts of a live fabric that an experiment breaks, and whether the fabric has recovered.
//!
//! # Approach
//!
//! An experiment breaks parts in a thread of its own, while the main thread measures rates. Both
//! threads share one [`Parts`].
//!
//! A fabric has recovered ([`Parts::is_current`]) if a controller leads and reports no host and no
//! switch that is out of date, and if the hosts and the core switch confirm it themselves. Each
//! host has saved a plan of this controller in its plan file, and the data path of the core switch
//! has the weights and maps that the controller decided.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context as _, bail};
use penstock_controller::store::{
    Etcd, EtcdConfig, Store, StoreError, Transaction, Write as StoreWrite,
};
use serde_json::Value;
use tokio::runtime::Builder;

use super::core_switch::{CoreSwitch, unmapped};
use super::operator::Operator;
use super::plan::Plan;
use super::process::{Process, lock};
use super::relay::Relays;
use crate::rig::etcd::EtcdServer;
use penstock_guest::bed::process::ask;
use penstock_guest::clock;

/// Time between two looks at the fabric.
const LOOK: Duration = Duration::from_millis(200);
/// Length of a value with which etcd is filled, in bytes.
const VALUE: usize = 900_000;
/// Maximum number of values with which etcd is filled.
const VALUES_MAX: usize = 200;
/// Prefix of the keys with which etcd is filled.
const FILLER: &str = "lab/";
/// Number of attempts to make etcd accept writes again, one second apart.
const RELIEFS: usize = 10;

/// The parts of a live fabric that an experiment may break.
#[derive(Debug)]
pub(super) struct Parts {
    pub controllers: Vec<Mutex<Process>>,
    pub operator: Operator,
    /// Address of each controller for agents.
    pub agents: Vec<SocketAddr>,
    /// `None` if the core switch is a Linux bridge.
    pub core: Option<CoreSwitch>,
    /// `None` if the agents connect to the controller directly.
    pub relays: Option<Relays>,
    /// `None` if the controller's store is a file.
    pub etcd: Option<EtcdServer>,
    /// Directory of the fabric.
    pub dir: PathBuf,
    /// Prefix of the names of all network namespaces.
    pub tag: String,
    pub plan: Plan,
}

/// Returns the epoch of the plan in a host's plan file, whose first line is a checksum.
fn epoch_in(text: &str) -> Option<u64> {
    let (_, json) = text.split_once('\n')?;
    let record: Value = serde_json::from_str(json).ok()?;
    let of = |stamp: &Value| stamp["epoch"].as_u64();
    of(&record["plan"]["stamp"]).or_else(|| of(&record["stamp"]))
}

impl Parts {
    /// Returns an error if a controller or the core switch has ended by itself.
    pub fn check(&self) -> anyhow::Result<()> {
        for controller in &self.controllers {
            lock(controller).check()?;
        }
        self.core.as_ref().map_or(Ok(()), CoreSwitch::check)
    }

    /// Returns the addresses at which the agent of a host reaches the controllers.
    pub fn agents_of(&self, host: usize) -> Vec<SocketAddr> {
        self.relays.as_ref().map_or_else(|| self.agents.clone(), |relays| relays.of(host))
    }

    /// Returns the core switch.
    ///
    /// # Errors
    /// Returns an error if the core switch is a Linux bridge.
    pub fn core(&self) -> anyhow::Result<&CoreSwitch> {
        self.core.as_ref().context("the core switch is a Linux bridge")
    }

    /// Kills the controller that leads. Returns its index and its epoch.
    pub fn kill_leader(&self) -> anyhow::Result<(usize, u64)> {
        let (nth, status) = self.operator.find_leader().context("no controller leads")?;
        let controller = self.controllers.get(nth).context("an unknown controller leads")?;
        lock(controller).kill()?;
        Ok((nth, status["stamp"]["epoch"].as_u64().unwrap_or(0)))
    }

    /// Starts a controller again that was killed.
    pub fn start_controller(&self, nth: usize) -> anyhow::Result<()> {
        lock(self.controllers.get(nth).context("no such controller")?).start_again()
    }

    /// Makes the agents of hosts silent, or lets them speak again. Their hosts forward frames.
    pub fn silence(&self, hosts: &[usize], silent: bool) -> anyhow::Result<()> {
        let relays = self.relays.as_ref().context("the agents have no relays")?;
        hosts.iter().for_each(|host| relays.cut(*host, silent));
        Ok(())
    }

    /// Takes the links of a host down or up: the link to its rack, and the management network.
    pub fn link(&self, host: usize, up: bool) -> anyhow::Result<()> {
        let rack = self.plan.rack_of(host);
        let nth = host - self.plan.hosts_of(rack).start;
        let (netns, port) = (format!("{}-r{rack}", self.tag), format!("h{nth}"));
        let state = if up { "up" } else { "down" };
        self.silence(&[host], !up)?;
        ask(Command::new("ip").args(["-n", &netns, "link", "set", &port, state])).map(drop)
    }

    /// Returns true if the fabric has recovered under a leader with an epoch above `above`.
    pub fn is_current(&self, above: u64) -> bool {
        let Some((_, status)) = self.operator.find_leader() else { return false };
        let epoch = status["stamp"]["epoch"].as_u64().unwrap_or(0);
        let late = status["out_of_date"].as_array().is_none_or(|late| !late.is_empty());
        if epoch <= above || late || status["hosts_connected"] != self.plan.hosts() {
            return false;
        }
        let of_it = |host: usize| {
            let text =
                std::fs::read_to_string(self.dir.join(format!("host{host}/state/fabric.plan")));
            text.is_ok_and(|text| epoch_in(&text) == Some(epoch))
        };
        if !(0..self.plan.hosts()).all(of_it) {
            return false;
        }
        let bindings = || self.operator.ask(&["bindings"]).ok();
        self.core.as_ref().is_none_or(|core| bindings().is_some_and(|told| core.has(&told)))
    }

    /// Waits until `done` is true. Returns false if `limit` has passed.
    pub fn until(&self, limit: Duration, mut done: impl FnMut() -> bool) -> anyhow::Result<bool> {
        let since = clock::now();
        while !done() {
            self.check()?;
            if since.elapsed() >= limit {
                return Ok(false);
            }
            clock::wait_readable(None, LOOK);
        }
        Ok(true)
    }

    /// Fills etcd until it accepts no more values. Returns the number of values.
    pub fn fill_etcd(&self) -> anyhow::Result<usize> {
        self.on_etcd(async |store| {
            for nth in 0..VALUES_MAX {
                let (key, value) = (format!("{FILLER}{nth}"), vec![b'x'; VALUE]);
                match put(&store, key, value).await {
                    Ok(()) => {}
                    Err(StoreError::Full { .. }) => return Ok(nth),
                    Err(error) => return Err(error.into()),
                }
            }
            bail!("etcd is not full after {VALUES_MAX} values")
        })
    }

    /// Does an operator's work after etcd was full: removes the filling, compacts the history,
    /// shrinks the file and ends the alarm. Returns when etcd accepts a value.
    pub fn relieve_etcd(&self) -> anyhow::Result<()> {
        let server = self.etcd.as_ref().context("the store is not etcd")?;
        self.on_etcd(async |store| {
            let fillers = (0..VALUES_MAX).map(|nth| StoreWrite::Delete(format!("{FILLER}{nth}")));
            let fillers: Vec<StoreWrite> = fillers.collect();
            for writes in fillers.chunks(100) {
                let (compare, writes) = (Vec::new(), writes.to_vec());
                store.commit(Transaction { compare, writes }).await?;
            }
            let last = store.list(FILLER).await?.revision;
            store.compact(last).await.map_err(anyhow::Error::from)
        })?;
        for _ in 0..RELIEFS {
            server.defrag()?;
            server.disarm()?;
            let key = format!("{FILLER}probe");
            let fits = self.on_etcd(async |store| Ok(put(&store, key, vec![1]).await.is_ok()))?;
            if fits {
                return Ok(());
            }
            // etcd compacts in the background.
            clock::wait_readable(None, Duration::from_secs(1));
        }
        bail!("etcd is still full after {RELIEFS} attempts to defragment it")
    }

    /// Runs `work` with a client of etcd.
    fn on_etcd<T>(&self, work: impl AsyncFnOnce(Etcd) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let server = self.etcd.as_ref().context("the store is not etcd")?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime
            .block_on(async { work(Etcd::new(&EtcdConfig::new(vec![server.endpoint()]))?).await })
    }

    /// Returns the number of frames that met an unmapped code point at the uplinks of all hosts.
    pub fn unmapped_at_hosts(&self) -> anyhow::Result<u64> {
        let socket = |host: usize| self.dir.join(format!("host{host}/host.sock"));
        let mut all = 0;
        for host in 0..self.plan.hosts() {
            all += unmapped(&socket(host))?;
        }
        Ok(all)
    }
}

async fn put(store: &Etcd, key: String, value: Vec<u8>) -> Result<(), StoreError> {
    let writes = vec![StoreWrite::Put { key, value, lease: None }];
    store.commit(Transaction { compare: Vec::new(), writes }).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_epoch_of_a_plan_file_is_that_of_its_plan_or_of_its_stamp() {
        let whole = r#"{"version":1,"host":"a","plan":{"stamp":{"epoch":7,"generation":2}}}"#;
        let stamp = r#"{"version":1,"host":"a","plan":null,"stamp":{"epoch":8,"generation":2}}"#;
        assert_eq!(epoch_in(&format!("00ff\n{whole}")), Some(7));
        assert_eq!(epoch_in(&format!("00ff\n{stamp}")), Some(8));
        assert_eq!(epoch_in("00ff\n{}"), None);
        assert_eq!(epoch_in("00ff"), None);
    }
}
