//! The command line of `penstock bench`.

use std::path::PathBuf;
use std::str::FromStr;

use super::bed::BedArgs;
use super::subject::Case;
use crate::load::SizeMix;

/// A subcommand of `penstock bench`.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum BenchCommand {
    /// A benchmark.
    #[command(flatten)]
    Run(Benchmark),
    /// Takes down what a benchmark has made, when its end of the pipe closes
    #[command(hide = true)]
    Guard,
}

/// A benchmark.
#[derive(Debug, Clone, clap::Subcommand)]
#[non_exhaustive]
pub enum Benchmark {
    /// Frames from one VM to another: cycles per frame, frames per second
    V2v(V2vArgs),
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
    /// Write JSON to a file, `-` for standard output; default: text on standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Frame sizes of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes {
    /// As it was written: `64`, `imix`.
    pub name: String,
    /// The sizes, FCS included.
    pub mix: SizeMix,
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self { name: text.to_owned(), mix: text.parse()? })
    }
}

/// `penstock bench v2v`.
#[derive(Debug, Clone, clap::Args)]
pub struct V2vArgs {
    /// Measure this switch too, in turns with ours; exit status 1 if a bar does not hold
    #[arg(long)]
    pub peer: Option<Peer>,
    /// Frame sizes, FCS included: a number, `imix`, or a mix such as `64:7+1518:1`
    #[arg(long, value_delimiter = ',', default_value = "64,512,1518,imix")]
    pub sizes: Vec<Sizes>,
    /// Numbers of flows
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,1000,100000",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    pub flows: Vec<u32>,
    /// Cases
    #[arg(long, value_delimiter = ',', default_value = "l3,simple-match")]
    pub cases: Vec<Case>,
    /// Runs of each switch
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Seconds of a run
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    pub secs: f64,
    /// Frames a second (`5M`) or bits (`2Gbit`) to offer; default: as many as the ring takes
    #[arg(long, value_name = "RATE")]
    pub offered: Option<String>,
    /// Write only headers and leave what arrives unread; default: every line of every frame
    #[arg(long)]
    pub no_touch: bool,
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

/// Seconds of a run.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(secs) if (0.01..=86_400.0).contains(&secs) => Ok(secs),
        _ => Err("a number of seconds from 0.01 to 86400 is wanted".to_owned()),
    }
}
