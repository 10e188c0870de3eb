//! Messages of the host's API: the requests of clients to [`crate::host::Host`], and its answers.
//!
//! # Source
//! Only `proto/penstock/host/v1/host.proto` defines the messages. `build.rs` generates the Rust
//! types of this module from `host.proto`. The host creates the messages, gRPC transports the
//! messages, and the option `--json` prints the messages. The printed JSON keeps the order in which
//! a message declares its fields. In JSON, counters and delays are objects whose keys are the names
//! of the counters and delays. The program `penstock` implements the gRPC service, so this crate
//! needs no gRPC library.
//!
//! In requests and answers, a configuration object ([`crate::config`]) is TOML text, as in the
//! configuration file.

use std::collections::BTreeMap;

use penstock_qos::cost_model::FCS;
use penstock_qos::delay_scale;
use serde::{Serialize, Serializer};

pub use generated::*;

#[allow(missing_docs, clippy::pedantic, clippy::nursery, reason = "generated code")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/penstock.host.v1.rs"));
}

pub type Named = Vec<NamedCount>;

impl NamedCount {
    #[must_use]
    pub fn new(name: &str, value: u64) -> Self {
        Self { name: name.to_owned(), value }
    }
}

/// Writes counters as one object, `{"rx_frames": 7}`, in the host's order.
fn by_name<S: Serializer>(counters: &[NamedCount], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(counters.iter().map(|count| (&count.name, count.value)))
}

/// JSON form of [`Delays`]: one kind of delay of a port's frames, in nanoseconds.
#[derive(Serialize)]
struct Waits {
    frames: u64,
    p50: Option<u64>,
    p99: Option<u64>,
    p99_9: Option<u64>,
    /// Intervals of the delay histogram, without intervals that contain no frames. Each pair has
    /// the upper end of a delay interval in nanoseconds, and the number of frames in the interval.
    /// An upper end of `None` means that the last interval of the histogram has no limit.
    parts: Vec<(Option<u64>, u64)>,
}

/// Writes delays as one object by name, with percentiles.
fn waits_by_name<S: Serializer>(delays: &[Delays], serializer: S) -> Result<S::Ok, S::Error> {
    let part = |(at, count): (usize, &u64)| {
        (*count > 0).then_some((delay_scale::end_of(at).map(|end| end.0), *count))
    };
    let waits = |of: &Delays| Waits {
        frames: of.frames(),
        p50: of.percentile(50_000),
        p99: of.percentile(99_000),
        p99_9: of.percentile(99_900),
        parts: of.counts.iter().enumerate().filter_map(part).collect(),
    };
    let by_name: BTreeMap<&str, Waits> =
        delays.iter().map(|of| (of.name.as_str(), waits(of))).collect();
    by_name.serialize(serializer)
}

impl Delays {
    /// Returns the number of frames whose delay was counted.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the delay in nanoseconds that `milli_percent` thousandths of a percent of the frames
    /// do not exceed. `None` without frames.
    #[must_use]
    pub fn percentile(&self, milli_percent: u32) -> Option<u64> {
        delay_scale::percentile(&self.counts, milli_percent).map(|delay| delay.0)
    }

    /// Returns the number of frames in each delay interval since the reading `before`. If a count
    /// in `before` is higher than the present count, the daemon has restarted, and the function
    /// returns all counted frames.
    #[must_use]
    pub fn since(&self, before: Option<&Self>) -> Self {
        let old = |at: usize| before.and_then(|b| b.counts.get(at)).copied().unwrap_or(0);
        let grown = |(at, now): (usize, &u64)| now.checked_sub(old(at));
        let counts: Option<Vec<u64>> = self.counts.iter().enumerate().map(grown).collect();
        Self { name: self.name.clone(), counts: counts.unwrap_or_else(|| self.counts.clone()) }
    }
}

/// The cause that limits a port's rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The port cannot pass frames, because it has no driver or no link, or its worker is stalled.
    Attachment,
    OwnRate,
    /// The link of the named uplink limits the port.
    Link(String),
    /// The ring of the named receiver limits the port. The variant has the receiver's name, or an
    /// empty text if the receiver no longer exists.
    Destination(String),
    /// The port's purchased cycles limit its rate.
    Entitlement,
    /// Other ports on the port's core keep the port below its purchased cycles.
    Neighbours,
    /// The core of the port's worker has no spare cycles.
    Core,
    /// Nothing limits the port: the port sends less than its limits allow.
    Nothing,
}

impl Limit {
    /// Returns the limit's name, as [`Explanation::limit`] contains it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Attachment => "attachment",
            Self::OwnRate => "own-rate",
            Self::Link(_) => "link",
            Self::Destination(_) => "destination",
            Self::Entitlement => "entitlement",
            Self::Neighbours => "neighbours",
            Self::Core => "core",
            Self::Nothing => "nothing",
        }
    }

    /// Returns the name of the port in [`Explanation::limit_port`]. The name is empty if the limit
    /// names no port.
    #[must_use]
    pub fn port(&self) -> &str {
        match self {
            Self::Link(port) | Self::Destination(port) => port,
            _ => "",
        }
    }
}

impl Explanation {
    /// Cause that limits the port's rate. An unknown name of a limit, from a newer daemon, counts
    /// as [`Limit::Nothing`].
    #[must_use]
    pub fn found(&self) -> Limit {
        match self.limit.as_str() {
            "attachment" => Limit::Attachment,
            "own-rate" => Limit::OwnRate,
            "link" => Limit::Link(self.limit_port.clone()),
            "destination" => Limit::Destination(self.limit_port.clone()),
            "entitlement" => Limit::Entitlement,
            "neighbours" => Limit::Neighbours,
            "core" => Limit::Core,
            _ => Limit::Nothing,
        }
    }
}

/// Returns the size of `frames` frames in bits, with an FCS for each frame. The argument `bytes` is
/// the sum of the frames' bytes without FCS. All rates in bits per second (purchased, policed or
/// shown) include the FCS. Byte counters exclude the FCS, so a frame of 64 bytes counts as 60
/// bytes. A large TSO segment that is not cut into frames yet has one FCS.
#[must_use]
pub const fn bits_of(bytes: u64, frames: u64) -> u64 {
    bytes.saturating_add(frames.saturating_mul(FCS)).saturating_mul(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares a port's counters with the JSON form of `penstock stats --json` and `host show
    /// --json`.
    #[test]
    fn json_has_counters_by_name_and_leaves_out_what_is_absent() {
        let port = PortStats {
            port: "vm1".into(),
            counters: vec![NamedCount::new("rx_frames", 7), NamedCount::new("rx_bytes", 9)],
            drops: vec![NamedCount::new("rule", 2)],
            delays: vec![
                Delays { name: "waited".into(), counts: vec![0, 5] },
                Delays { name: "shaped".into(), counts: Vec::new() },
            ],
            ..PortStats::default()
        };
        let stats = Stats { time_ns: 1, ports: vec![port], ..Stats::default() };
        assert_eq!(
            serde_json::to_string(&stats).unwrap(),
            concat!(
                r#"{"time_ns":1,"exact":false,"ports":[{"port":"vm1","#,
                r#""counters":{"rx_frames":7,"rx_bytes":9},"drops":{"rule":2},"tx_drops":{},"#,
                r#""delays":{"shaped":{"frames":0,"p50":null,"p99":null,"p99_9":null,"parts":[]},"#,
                r#""waited":{"frames":5,"p50":1152,"p99":1152,"p99_9":1152,"parts":[[1280,5]]}},"#,
                r#""rtp":[]}],"workers":[],"links":[],"violations":[]}"#
            )
        );
        let status = HostStatus {
            name: "node7".into(),
            vcpu_dir: "/run/vcpu".into(),
            state_dir: "/state".into(),
            workers: vec![WorkerStatus { core: 3, ..WorkerStatus::default() }],
            switch: Some(SwitchStatus { told: "1.2".into(), ..SwitchStatus::default() }),
            ..HostStatus::default()
        };
        assert_eq!(
            serde_json::to_string(&status).unwrap(),
            concat!(
                r#"{"name":"node7","version":"","config":"","generation":0,"uptime_s":0,"#,
                r#""tsc_hz":0,"workers":[{"id":0,"core":3,"stalled":false,"heartbeat_age_ms":0,"#,
                r#""busy_share_e4":0,"schedule":"","counters":{}}],"switch":{"name":"","#,
                r#""told":"1.2","unkept":false,"last_error":"","counters":{}},"#,
                r#""state_dir":"/state"}"#
            )
        );
        let fabric = FabricStatus { stale_ms: Some(3), ..FabricStatus::default() };
        assert_eq!(
            serde_json::to_string(&fabric).unwrap(),
            concat!(
                r#"{"name":"","controller":"","told":"","applied":"","unkept":"","stale_ms":3,"#,
                r#""absent":[],"last_error":"","counters":{}}"#
            )
        );
    }

    #[test]
    fn a_limit_is_found_by_its_name() {
        let port = String::from("up");
        for limit in [
            Limit::Attachment,
            Limit::OwnRate,
            Limit::Link(port.clone()),
            Limit::Destination(port),
            Limit::Entitlement,
            Limit::Neighbours,
            Limit::Core,
            Limit::Nothing,
        ] {
            let (name, port) = (limit.name().to_owned(), limit.port().to_owned());
            let answer = Explanation { limit: name, limit_port: port, ..Explanation::default() };
            assert_eq!(answer.found(), limit);
        }
    }
}
