//! The command line of `penstock-lab bench`.

use std::path::PathBuf;
use std::str::FromStr;

use crate::rig::switch::Case;
use crate::rig::through::Through;
use penstock_guest::bed::BedArgs;
use penstock_guest::load::SizeMix;

/// Benchmarks of `penstock-lab bench`, one subcommand each.
#[derive(Debug, Clone, clap::Subcommand)]
#[non_exhaustive]
pub enum Benchmark {
    /// Send frames from one VM to another. Measure frames per second and cycles per frame
    V2v(Box<V2vArgs>),
    /// Send frames from many ports at once. Measure cycles per frame for each number of ports
    ///
    /// Every port sends to every other port, one frame to each in turn. With --uplink, every port
    /// sends to one AF_XDP uplink. The load runs on the generator's core. If no other core is free,
    /// the last worker shares the generator's core, and the output says so.
    Mesh(Box<MeshArgs>),
    /// Send TCP through the switch with iperf3, from one namespace to another
    Tcp(TcpArgs),
    /// Measure latency: send one frame at a time
    Rr(RrArgs),
    /// Search the highest rates without loss and with 0.5 % loss. With --soak, also count lost
    /// frames over a long time
    Loss(LossArgs),
}

/// A switch with which a benchmark compares Penstock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Peer {
    /// Open vSwitch with DPDK, as Debian packages it
    OvsDpdk,
}

/// Destination of a benchmark's report.
#[derive(Debug, Clone, clap::Args)]
pub struct OutputArgs {
    /// File for the JSON report, or `-` for standard output. Default: a text report on standard
    /// output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Frame sizes that a benchmark sends in one case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes {
    /// Frame sizes as the user wrote them, such as `64` or `imix`.
    pub name: String,
    /// Frame sizes in bytes, FCS included, with their weights.
    pub mix: SizeMix,
}

impl Sizes {
    #[must_use]
    pub fn fixed(size: u16) -> Self {
        Self { name: size.to_string(), mix: SizeMix::fixed(size) }
    }

    /// Returns a single frame size as a JSON number, and a mix of sizes as its name.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        match self.name.parse::<u16>() {
            Ok(size) => size.into(),
            Err(_) => self.name.clone().into(),
        }
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self { name: text.to_owned(), mix: text.parse()? })
    }
}

/// `penstock-lab bench v2v`.
#[derive(Debug, Clone, clap::Args)]
pub struct V2vArgs {
    /// Also measure another switch, in alternating runs. Exit status 1 if a ratio misses its
    /// required value
    #[arg(long)]
    pub peer: Option<Peer>,
    /// Frame sizes, FCS included: a number, `imix`, or a mix such as `64:7+1518:1`
    #[arg(long, value_delimiter = ',', default_value = "64,512,1518,imix")]
    pub sizes: Vec<Sizes>,
    /// Numbers of traffic flows to measure with (each 1 to 1000000)
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,1000,100000",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    pub flows: Vec<u32>,
    /// Cases to measure
    #[arg(long, value_delimiter = ',', default_value = "l3,simple-match")]
    pub cases: Vec<Case>,
    /// Number of runs of each switch (1 to 1000)
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Length of a run in seconds
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    pub secs: f64,
    /// Offered frames per second (`5M`) or bits per second (`2Gbit`). Default: the maximum
    #[arg(long, value_name = "RATE")]
    pub offered: Option<String>,
    /// Write only headers and do not read received frames. Default: write and read every cache line
    #[arg(long)]
    pub no_touch: bool,
    /// Number of descriptors in each ring
    #[arg(long, default_value_t = 256)]
    pub ring: u16,
    /// Use packed rings instead of split rings
    #[arg(long)]
    pub packed: bool,
    /// Schedule of Penstock's worker (`round-robin` or `hbs`)
    #[arg(long, default_value = "round-robin")]
    pub schedule: String,
    /// Ingress policy of Penstock's ports (`none`, `cycles-minmax` or `cycles-strict`)
    #[arg(long, default_value = "none")]
    pub policy: String,
    /// Send frames out through one uplink of the switch and back in through another
    #[arg(long, conflicts_with = "against_plain")]
    pub through: Option<Through>,
    /// Compare the output queues `fair-share` and `fifo`, in alternating runs. Exit status 1 if
    /// `fair-share` misses its required ratio
    #[arg(long, conflicts_with_all = ["against_plain", "through", "peer"])]
    pub shared: bool,
    /// Also measure Penstock with schedule `round-robin` and policy `none`, in alternating runs.
    /// Exit status 1 if --schedule and --policy lower the rate by more than 3 % (64-byte frames) or
    /// 1 % (1518-byte frames)
    #[arg(long, conflicts_with = "peer")]
    pub against_plain: bool,
    #[command(flatten)]
    pub bed: BedArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `penstock-lab bench mesh`.
#[derive(Debug, Clone, clap::Args)]
pub struct MeshArgs {
    /// Also measure another switch, in alternating runs. Needs root
    #[arg(long)]
    pub peer: Option<Peer>,
    /// Numbers of ports to measure (2 to 1024; with --uplink 1 to 1023). Default: 2,8,16,64; with
    /// --uplink 1,4,16
    #[arg(long, value_delimiter = ',', value_parser = port_count)]
    pub ports: Vec<usize>,
    /// Send to one AF_XDP uplink instead of the other ports. Needs root
    #[arg(long)]
    pub uplink: bool,
    /// Numbers of workers (1 to 16, and at most the CPUs that this process may use)
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,2",
        value_parser = clap::value_parser!(u32).range(1..=16)
    )]
    pub workers: Vec<u32>,
    /// Frame sizes, FCS included: a number, `imix`, or a mix such as `64:7+1518:1`
    #[arg(long, value_delimiter = ',', default_value = "64")]
    pub sizes: Vec<Sizes>,
    /// Number of runs of each switch (1 to 1000)
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Length of a run in seconds
    #[arg(long, default_value_t = 0.5, value_parser = seconds)]
    pub secs: f64,
    /// Write only headers and do not read received frames. Default: write and read every cache line
    #[arg(long)]
    pub no_touch: bool,
    /// Number of descriptors in each ring
    #[arg(long, default_value_t = 256)]
    pub ring: u16,
    #[command(flatten)]
    pub bed: BedArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `penstock-lab bench tcp`.
#[derive(Debug, Clone, clap::Args)]
pub struct TcpArgs {
    /// Also measure another switch, without and with `userspace-tso-enable`, in alternating runs.
    /// Exit status 1 if a ratio misses its required value
    #[arg(long)]
    pub peer: Option<Peer>,
    /// Numbers of parallel streams (1 to 128)
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,4,16",
        value_parser = clap::value_parser!(u32).range(1..=128)
    )]
    pub streams: Vec<u32>,
    /// Checksum and segmentation offload of the endpoints
    #[arg(long, value_delimiter = ',', default_value = "on,off")]
    pub offloads: Vec<OnOff>,
    /// Number of runs of each switch (1 to 1000)
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Length of a run in whole seconds (1 to 3600)
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub secs: u32,
    #[command(flatten)]
    pub bed: BedArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Whether an endpoint has checksum and segmentation offload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum OnOff {
    /// Enable the offloads
    On,
    /// Disable the offloads
    Off,
}

/// `penstock-lab bench rr`.
#[derive(Debug, Clone, clap::Args)]
pub struct RrArgs {
    /// Also measure another switch, in alternating runs. Exit status 1 if a ratio misses its
    /// required value
    #[arg(long)]
    pub peer: Option<Peer>,
    /// Frame sizes, FCS included: a number, `imix`, or a mix such as `64:7+1518:1`
    #[arg(long, value_delimiter = ',', default_value = "64")]
    pub sizes: Vec<Sizes>,
    /// Number of runs of each switch (1 to 1000)
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Length of a run in seconds
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    pub secs: f64,
    /// Number of descriptors in each ring
    #[arg(long, default_value_t = 256)]
    pub ring: u16,
    #[command(flatten)]
    pub bed: BedArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `penstock-lab bench loss`.
#[derive(Debug, Clone, clap::Args)]
pub struct LossArgs {
    /// Also find the highest rates of another switch without loss and with 0.5 % loss
    #[arg(long)]
    pub peer: Option<Peer>,
    /// Frame sizes, FCS included: a number, `imix`, or a mix such as `64:7+1518:1`
    #[arg(long, value_delimiter = ',', default_value = "64")]
    pub sizes: Vec<Sizes>,
    /// Send frames out through one uplink of the switch and back in through another
    #[arg(long)]
    pub through: Option<Through>,
    /// Number of flows (1 to 1000000)
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub flows: u32,
    /// Length of one search trial in seconds
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    pub trial: f64,
    /// Total seconds of the trials that confirm the result of the search
    #[arg(long, default_value_t = 21.0, value_parser = seconds)]
    pub confirm: f64,
    /// Maximum total seconds of the trials for one loss ratio. At the limit, the search ends with
    /// the best rate so far
    #[arg(long, value_name = "SECS", default_value_t = 180.0, value_parser = seconds)]
    pub search_limit: f64,
    /// Skip the search for the highest rates; only run the soak
    #[arg(long, requires = "soak")]
    pub no_search: bool,
    /// Soak: send at a fixed rate for SECS seconds after the search. Exit status 1 if a frame is
    /// lost
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub soak: Option<f64>,
    /// Rate of the soak, in percent of the measured maximum rate (1 to 100)
    #[arg(long, value_name = "PERCENT", default_value_t = 80)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    pub at: u32,
    /// Number of descriptors in each ring. Choose enough descriptors for the frames that arrive
    /// during a timer interrupt
    #[arg(long, default_value_t = 1024)]
    pub ring: u16,
    #[command(flatten)]
    pub bed: BedArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

pub(super) const PORTS_MAX: usize = 1_024;

fn port_count(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(ports) if (1..=PORTS_MAX).contains(&ports) => Ok(ports),
        _ => Err(format!("a whole number of ports from 1 to {PORTS_MAX} is wanted")),
    }
}

/// Parses the length of a run in seconds.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(secs) if (0.01..=86_400.0).contains(&secs) => Ok(secs),
        _ => Err("must be a number of seconds from 0.01 to 86400".to_owned()),
    }
}
