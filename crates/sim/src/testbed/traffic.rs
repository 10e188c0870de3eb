//! Traffic that a VM of the testbed sends in each phase of a run.

use penstock_units::Nanos;

use super::VmId;

/// Rate at which a VM sends bulk traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Pace {
    /// The VM sends no bulk traffic.
    #[default]
    Off,
    /// The VM sends the given number of frames per second, evenly spaced. If the ring is full, the
    /// guest drops frames.
    FramesPerSecond(f64),
    /// The VM sends bursts, with the given mean number of frames per second and the given number of
    /// frames in a burst.
    Bursts(f64, u64),
    /// The VM keeps its ring full, like a sender that sends at its maximum rate and obeys
    /// back-pressure.
    Greedy,
}

/// Number of flows in a VM's traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flows {
    #[default]
    Single,
    /// Each frame of the traffic has random addresses and ports.
    Multiple,
}

/// Traffic that a VM sends in one phase.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Traffic {
    pub pace: Pace,
    /// Frame sizes in bytes, FCS included, and their weights.
    pub sizes: Vec<(usize, u32)>,
    pub flows: Flows,
    /// The VM to which a part of the frames goes; all other frames go to the second server.
    pub to: Option<ToVm>,
    /// Number of frames of each large segment (TSO) that the VM sends instead of single frames; 0
    /// and 1 mean single frames.
    pub segments: u16,
}

/// A VM on the same host as the destination of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToVm {
    pub vm: VmId,
    /// Part of the frames in thousandths.
    pub permille: u16,
}

impl Traffic {
    /// Creates a phase in which the VM sends nothing.
    #[must_use]
    pub fn off() -> Self {
        Self { sizes: vec![(64, 1)], ..Self::default() }
    }

    /// Creates traffic of one frame size and one flow, at the maximum rate.
    #[must_use]
    pub fn greedy(size: usize) -> Self {
        Self { pace: Pace::Greedy, sizes: vec![(size, 1)], ..Self::default() }
    }

    /// Creates traffic of one frame size and one flow, at a fixed rate.
    #[must_use]
    pub fn paced(size: usize, frames_per_second: f64) -> Self {
        let pace = Pace::FramesPerSecond(frames_per_second);
        Self { pace, sizes: vec![(size, 1)], ..Self::default() }
    }

    /// Returns the traffic, with frames that belong to many flows.
    #[must_use]
    pub fn with_many_flows(mut self) -> Self {
        self.flows = Flows::Multiple;
        self
    }

    /// Returns the traffic, with `permille` thousandths of the frames to the VM `vm`.
    #[must_use]
    pub fn to_vm(mut self, vm: VmId, permille: u16) -> Self {
        self.to = Some(ToVm { vm, permille });
        self
    }

    /// Returns the traffic as large segments (TSO) of `segments` frames each, at most 44.
    #[must_use]
    pub fn in_segments(mut self, segments: u16) -> Self {
        self.segments = segments.min(44);
        self
    }

    /// Returns the traffic with the given frame sizes in bytes, each with a weight.
    #[must_use]
    pub fn with_sizes(mut self, sizes: &[(usize, u32)]) -> Self {
        self.sizes = sizes.to_vec();
        self
    }
}

/// A request-response probe like `qperf tcp_lat`, with one small message in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Time of the probe's first message.
    pub from: Nanos,
    /// Time from which the probe sends no more messages.
    pub until: Nanos,
    /// Mean time of a message from the link through the server's program back to the link. The time
    /// of each message varies from half to one and a half times the mean.
    pub server: Nanos,
    /// Mean time in the guest from the reply in its ring to the next message in its ring. The
    /// actual times in the guest vary from half to one and a half times the mean.
    pub guest: Nanos,
}

/// Clients on the far side of the uplink that send requests to a VM.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Requests {
    pub from: Nanos,
    pub until: Nanos,
    /// Mean number of bursts per second. The gaps between bursts have an exponential distribution.
    pub bursts_per_second: f64,
    /// Number of requests in a burst. The requests of a burst arrive back to back.
    pub burst: u32,
    /// Number of frames in a response.
    pub response_frames: u32,
    /// Mean time in the guest between a request and its response. The actual times between request
    /// and response vary from half to one and a half times the mean.
    pub service: Nanos,
    /// Time that a response spends outside the switch, on wires and in the client.
    pub outside: Nanos,
    /// Size of a response frame in bytes, FCS included.
    pub size: usize,
}
