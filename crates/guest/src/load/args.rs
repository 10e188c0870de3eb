//! Parses the command line of `penstock-lab load`.

use std::str::FromStr;

use super::spec::{Destination, LoadSpec, Phase, Rate, SizeMix, VmSpec};
use crate::driver::{Features, SocketMode};
use crate::keys::{KeyError, Keys};

/// Drives VMs on vhost-user ports from one polling loop.
#[derive(Debug, Clone, clap::Args)]
pub struct LoadArgs {
    /// Add a VM: `name=a,socket=PATH,mac=MAC,ip=IP[,mode=client|server][,to=NAME]`
    /// `[,size=64|imix|64:7+1518:1][,rate=0|100k|1Gbit|stop][,flows=N][,vlan=N][,ring=256][,sink]`
    /// `[,interrupts]`
    /// `[,features=event_idx+offloads][,without=in_order]`. `rate` is frames per second (`100k`) or
    /// bits per second (`1Gbit`); 0 sends as many frames as possible
    #[arg(long = "vm", required = true)]
    pub vms: Vec<VmSpec>,
    /// Change a VM's traffic during the run: `NAME@SECONDS:rate=...,size=...,flows=...`
    #[arg(long = "at")]
    pub at: Vec<PhaseArg>,
    /// Seconds for which the VMs send and frames are counted
    #[arg(long, default_value_t = 5.0)]
    pub secs: f64,
    /// Seconds for which the VMs send before counting starts
    #[arg(long, default_value_t = 0.0)]
    pub warmup: f64,
    /// Seconds between two reports, 0 for no reports
    #[arg(long, default_value_t = 1.0)]
    pub interval: f64,
    /// CPU to which the loop is pinned. Default: any
    #[arg(long)]
    pub core: Option<usize>,
    /// Write and verify every byte of every frame
    #[arg(long)]
    pub touch: bool,
    /// Use packed rings for every VM. For one VM, write `features=ring_packed`
    #[arg(long)]
    pub packed: bool,
    /// Maximum number of frames that a VM sends in a turn
    #[arg(long, default_value_t = 32)]
    pub burst: usize,
    /// Seconds to wait until the switch is reachable
    #[arg(long, default_value_t = 5.0)]
    pub wait: f64,
    /// Print JSON lines instead of text
    #[arg(long)]
    pub json: bool,
}

/// Reason why the command line of a load run is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// A `key=value` list has a missing, unknown or wrong key.
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// A change of a VM's traffic has no time, or its time is not a number.
    #[error("--at `{0}`: not a change of traffic; write a change such as a@2.5:rate=100k")]
    Phase(String),
    /// A change of traffic names an unknown VM.
    #[error("--at: there is no VM `{0}`; name one of --vm")]
    NoSuchVm(String),
}

/// A change of a VM's traffic, with the name of the VM.
#[derive(Debug, Clone, PartialEq)]
pub struct PhaseArg {
    vm: String,
    phase: Phase,
}

impl LoadArgs {
    /// Converts the arguments to the parameters of a load run.
    ///
    /// # Errors
    /// Returns an error if a change of traffic names a VM that does not exist.
    pub fn spec(&self) -> Result<LoadSpec, SpecError> {
        let mut vms = self.vms.clone();
        for change in &self.at {
            let vm = vms.iter_mut().find(|vm| vm.name == change.vm);
            let vm = vm.ok_or_else(|| SpecError::NoSuchVm(change.vm.clone()))?;
            vm.phases.push(change.phase.clone());
        }
        for vm in &mut vms {
            if self.packed {
                vm.wanted = vm.wanted | Features::RING_PACKED;
            }
            vm.phases.sort_by(|a, b| a.at_secs.total_cmp(&b.at_secs));
        }
        let mut spec = LoadSpec::new(vms, self.secs);
        spec.warmup_secs = self.warmup;
        spec.interval_secs = Some(self.interval).filter(|s| *s > 0.0);
        spec.core = self.core;
        spec.touch = self.touch;
        spec.burst = self.burst.max(1);
        spec.wait_secs = self.wait;
        Ok(spec)
    }
}

impl FromStr for VmSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut keys = Keys::parse(text, &["sink", "interrupts"])?;
        let name: String = keys.required("name")?;
        let socket: String = keys.required("socket")?;
        let mut vm = Self::new(&name, socket, keys.required("mac")?, keys.required("ip")?);
        vm.to = keys.optional("to")?.map(Destination::Vm);
        let sink = keys.flag("sink");
        if sink && vm.to.is_some() {
            return Err(KeyError::Conflict { text: text.to_owned(), a: "sink", b: "to" }.into());
        }
        vm.interrupts = keys.flag("interrupts");
        vm.mode = keys.optional("mode")?.unwrap_or(SocketMode::Client);
        vm.sizes = keys.optional("size")?.unwrap_or(vm.sizes);
        vm.rate = keys.optional("rate")?.unwrap_or(vm.rate);
        vm.flows = keys.optional("flows")?.unwrap_or(1);
        vm.vlan = keys.optional("vlan")?;
        vm.ring_size = keys.optional("ring")?.unwrap_or(vm.ring_size);
        if let Some(FeatureList(more)) = keys.optional("features")? {
            vm.wanted = vm.wanted | more;
        }
        if let Some(FeatureList(fewer)) = keys.optional("without")? {
            vm.wanted = vm.wanted.without(fewer);
        }
        keys.finish()?;
        Ok(vm)
    }
}

impl FromStr for PhaseArg {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let bad = || SpecError::Phase(text.to_owned());
        let (vm, rest) = text.split_once('@').ok_or_else(bad)?;
        let (at, rest) = rest.split_once(':').ok_or_else(bad)?;
        let at_secs = at.parse().map_err(|_| bad())?;
        let mut keys = Keys::parse(rest, &[])?;
        let phase = Phase {
            at_secs,
            rate: keys.optional("rate")?,
            sizes: keys.optional("size")?,
            flows: keys.optional("flows")?,
        };
        keys.finish()?;
        Ok(Self { vm: vm.to_owned(), phase })
    }
}

/// List of feature names that are joined by `+`.
#[derive(Debug)]
pub(crate) struct FeatureList(pub Features);

impl FromStr for FeatureList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split('+').try_fold(Self(Features::NONE), |all, name| {
            let bit = Features::by_name(name).ok_or(format!("no feature `{name}`"))?;
            Ok(Self(all.0 | bit))
        })
    }
}

impl FromStr for SocketMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "client" => Ok(Self::Client),
            "server" => Ok(Self::Server),
            _ => Err("write `client` or `server`".to_owned()),
        }
    }
}

impl FromStr for Rate {
    type Err = String;

    /// Parses a rate. `0` means as fast as possible, `stop` means no frames, `100k` means frames
    /// per second, and `1.5Gbit` means bits per second.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "stop" {
            return Ok(Self::Stop);
        }
        let (number, bits) = match text.strip_suffix("bit") {
            Some(number) => (number, true),
            None => (text, false),
        };
        let (number, factor) = match number.chars().last() {
            Some('k') => (&number[..number.len() - 1], 1e3),
            Some('M') => (&number[..number.len() - 1], 1e6),
            Some('G') => (&number[..number.len() - 1], 1e9),
            _ => (number, 1.0),
        };
        match number.parse::<f64>() {
            Ok(0.0) => Ok(Self::Max),
            Ok(n) if n > 0.0 && n.is_finite() && bits => Ok(Self::Bits(n * factor)),
            Ok(n) if n > 0.0 && n.is_finite() => Ok(Self::Frames(n * factor)),
            _ => {
                Err("a rate such as 0, 100k, 1.5M (frames/s), 1Gbit or stop is expected".to_owned())
            }
        }
    }
}

impl FromStr for SizeMix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "imix" {
            return Ok(Self::imix());
        }
        let bad = || "a size such as 64, imix or 64:7+1518:1 is expected".to_owned();
        let entry = |part: &str| {
            let (size, weight) = part.split_once(':').unwrap_or((part, "1"));
            let size = size.parse().map_err(|_| bad())?;
            if !super::spec::SIZES.contains(&size) {
                return Err("a frame size is 64 to 9018 bytes, FCS included".to_owned());
            }
            let weight: u16 = weight.parse().map_err(|_| bad())?;
            if weight == 0 { Err("weights begin at 1".to_owned()) } else { Ok((size, weight)) }
        };
        text.split('+').map(entry).collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "name=a,socket=/p/a.sock,mac=52:54:00:00:00:01,ip=10.0.0.1";

    fn error(text: &str) -> String {
        text.parse::<VmSpec>().unwrap_err().to_string()
    }

    #[test]
    fn a_whole_vm_is_read() {
        let text = format!("{A},to=b,size=64:7+1518:1,flows=1000,rate=1.5Gbit,vlan=7,ring=1024");
        let vm: VmSpec = text.parse().unwrap();
        assert_eq!(
            (vm.to.as_ref().and_then(Destination::vm), vm.flows, vm.vlan),
            (Some("b"), 1000, Some(7))
        );
        assert_eq!(vm.rate, Rate::Bits(1.5e9));
        assert_eq!(vm.sizes, SizeMix(vec![(64, 7), (1518, 1)]));
        assert_eq!("0".parse(), Ok(Rate::Max));
        assert_eq!("100k".parse(), Ok(Rate::Frames(1e5)));
    }

    #[test]
    fn errors_name_the_key_and_the_remedy() {
        assert_eq!(error("name=a"), "`name=a`: socket is missing");
        assert!(
            error(&format!("{A},size=20"))
                .ends_with("size=20: a frame size is 64 to 9018 bytes, FCS included")
        );
        assert!(error(&format!("{A},rate=fast")).contains("rate=fast: a rate such as"));
        assert!(error(&format!("{A},colour=red")).ends_with("unknown key colour"));
        assert!(error(&format!("{A},sink,to=b")).ends_with("sink and to exclude each other"));
        assert!(error(&A.replace("52:54", "zz:54")).contains("is not a MAC address"));
    }

    #[test]
    fn a_vm_requests_interrupts_only_if_told_to() {
        let interrupts = |more: &str| format!("{A}{more}").parse::<VmSpec>().unwrap().interrupts;
        assert!(interrupts(",interrupts") && !interrupts(""));
    }

    #[test]
    fn changes_are_sorted_into_their_vm() {
        let change: PhaseArg = "a@2.5:rate=stop,size=imix".parse().unwrap();
        assert_eq!(change.phase.rate, Some(Rate::Stop));
        assert!("a:rate=0".parse::<PhaseArg>().is_err());
    }
}
