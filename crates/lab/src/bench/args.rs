//! The command line of `penstock-lab bench`.

use std::path::PathBuf;
use std::str::FromStr;

use crate::rig::switch::Case;
use crate::rig::through::Through;
use penstock_guest::bed::BedArgs;
use penstock_guest::load::SizeMix;

/// What `penstock-lab bench` measures.
#[derive(Debug, Clone, clap::Subcommand)]
#[non_exhaustive]
pub enum Benchmark {
    /// Send frames from one VM to another: cycles per frame, frames per second
    V2v(Box<V2vArgs>),
    /// Send TCP through the switch with iperf3, from one namespace to another
    Tcp(TcpArgs),
    /// Measure latency: send one frame at a time
    Rr(RrArgs),
    /// Search the highest rates without loss and with 0.5 % loss, then soak
    Loss(LossArgs),
}

/// A switch to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Peer {
    /// Open vSwitch with DPDK, as Debian packages it
    OvsDpdk,
}

/// Where the result goes.
#[derive(Debug, Clone, clap::Args)]
pub struct OutputArgs {
    /// Write JSON to a file; `-`: to standard output. Default: text on standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Frame sizes of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes {
    /// Text as the user wrote it, such as `64` or `imix`.
    pub name: String,
    /// The sizes, FCS included.
    pub mix: SizeMix,
}

impl Sizes {
    #[must_use]
    pub fn fixed(size: u16) -> Self {
        Self { name: size.to_string(), mix: SizeMix::fixed(size) }
    }

    /// A single size as a number, a mix as its name.
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
    /// Also measure this switch, in turns with ours. Exit status 1 if a bar does not hold
    #[arg(long)]
    pub peer: Option<Peer>,
    /// Frame sizes, FCS included: a number, `imix`, or a mix such as `64:7+1518:1`
    #[arg(long, value_delimiter = ',', default_value = "64,512,1518,imix")]
    pub sizes: Vec<Sizes>,
    /// Numbers of flows (1 to 1000000)
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
    /// Seconds of a run
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    pub secs: f64,
    /// Offered frames per second (`5M`) or bits per second (`2Gbit`). Default: as many as fit
    #[arg(long, value_name = "RATE")]
    pub offered: Option<String>,
    /// Write only headers, and do not read received frames. Default: every cache line of each frame
    #[arg(long)]
    pub no_touch: bool,
    /// Descriptors of each ring
    #[arg(long, default_value_t = 256)]
    pub ring: u16,
    /// Use packed rings instead of split rings
    #[arg(long)]
    pub packed: bool,
    /// Schedule of Penstock: `round-robin` or `hbs`
    #[arg(long, default_value = "round-robin")]
    pub schedule: String,
    /// Ingress policy of Penstock's ports: `none`, `cycles-minmax`, `cycles-strict`
    #[arg(long, default_value = "none")]
    pub policy: String,
    /// Send frames out by one interface of the switch and back in by another: cost of uplinks
    #[arg(long, conflicts_with = "against_plain")]
    pub through: Option<Through>,
    /// Receive at an output with a queue, `fair-share` and `fifo` in turns. Exit status 1 if
    /// `fair-share` costs more than its bar
    #[arg(long, conflicts_with_all = ["against_plain", "through", "peer"])]
    pub shared: bool,
    /// Also measure Penstock with `round-robin` and `none`, in turns. Exit status 1 if --schedule
    /// and --policy cost more than their bar
    #[arg(long, conflicts_with = "peer")]
    pub against_plain: bool,
    /// Cores and priorities.
    #[command(flatten)]
    pub bed: BedArgs,
    /// Where the result goes.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `penstock-lab bench tcp`.
#[derive(Debug, Clone, clap::Args)]
pub struct TcpArgs {
    /// Also measure this switch, without and with `userspace-tso-enable`, in turns with ours. Exit
    /// status 1 if a bar does not hold
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
    /// Whole seconds of a run (1 to 3600)
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub secs: u32,
    /// Cores and priorities.
    #[command(flatten)]
    pub bed: BedArgs,
    /// Where the result goes.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Whether something is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum OnOff {
    /// It is.
    On,
    /// It is not.
    Off,
}

/// `penstock-lab bench rr`.
#[derive(Debug, Clone, clap::Args)]
pub struct RrArgs {
    /// Also measure this switch, in turns with ours. Exit status 1 if a bar does not hold
    #[arg(long)]
    pub peer: Option<Peer>,
    /// Frame sizes, FCS included: a number, `imix`, or a mix such as `64:7+1518:1`
    #[arg(long, value_delimiter = ',', default_value = "64")]
    pub sizes: Vec<Sizes>,
    /// Number of runs of each switch (1 to 1000)
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Seconds of a run
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    pub secs: f64,
    /// Descriptors of each ring
    #[arg(long, default_value_t = 256)]
    pub ring: u16,
    /// Cores and priorities.
    #[command(flatten)]
    pub bed: BedArgs,
    /// Where the result goes.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `penstock-lab bench loss`.
#[derive(Debug, Clone, clap::Args)]
pub struct LossArgs {
    /// Also search the rates of this other switch
    #[arg(long)]
    pub peer: Option<Peer>,
    /// Frame sizes, FCS included: a number, `imix`, or a mix such as `64:7+1518:1`
    #[arg(long, value_delimiter = ',', default_value = "64")]
    pub sizes: Vec<Sizes>,
    /// Send frames out by one interface of the switch and back in by another
    #[arg(long)]
    pub through: Option<Through>,
    /// Number of flows (1 to 1000000)
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub flows: u32,
    /// Seconds of one trial of the search
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    pub trial: f64,
    /// Total seconds of trials that confirm the rate found
    #[arg(long, default_value_t = 21.0, value_parser = seconds)]
    pub confirm: f64,
    /// Total seconds of trials for a goal. Its search then ends with the best rate so far
    #[arg(long, value_name = "SECS", default_value_t = 180.0, value_parser = seconds)]
    pub search_limit: f64,
    /// Skip the search and only soak
    #[arg(long, requires = "soak")]
    pub no_search: bool,
    /// Soak: send for SECS seconds after the search. Exit status 1 if a frame is lost
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub soak: Option<f64>,
    /// Rate of the soak, in percent of the maximum (1 to 100)
    #[arg(long, value_name = "PERCENT", default_value_t = 80)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    pub at: u32,
    /// Descriptors of each ring. A ring must hold the frames of one timer tick
    #[arg(long, default_value_t = 1024)]
    pub ring: u16,
    /// Cores and priorities.
    #[command(flatten)]
    pub bed: BedArgs,
    /// Where the result goes.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Parses the seconds of a run.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(secs) if (0.01..=86_400.0).contains(&secs) => Ok(secs),
        _ => Err("a number of seconds from 0.01 to 86400 is wanted".to_owned()),
    }
}
