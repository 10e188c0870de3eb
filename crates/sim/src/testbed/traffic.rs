//! Traffic that a VM sends, by phase.

use penstock_units::Nanos;

/// Sending rate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Pace {
    /// The VM sends nothing.
    #[default]
    Off,
    /// The VM sends this number of frames per second, evenly spaced. Frames that find the ring full
    /// are dropped in the guest.
    FramesPerSecond(f64),
    /// The VM sends bursts. The values are the frames per second and the frames in a burst.
    Bursts(f64, u64),
    /// The VM keeps the ring full, as a sender at its maximum that obeys back-pressure.
    Greedy,
}

/// Number of flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flows {
    #[default]
    Single,
    /// Addresses and ports are drawn for each frame.
    Multiple,
}

/// Traffic that a VM sends from some time on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Traffic {
    pub pace: Pace,
    /// Frame sizes in bytes with FCS, and their weights.
    pub sizes: Vec<(usize, u32)>,
    pub flows: Flows,
}

impl Traffic {
    /// No traffic.
    #[must_use]
    pub fn off() -> Self {
        Self { sizes: vec![(64, 1)], ..Self::default() }
    }

    /// Frames of one size and one flow, at the maximum rate.
    #[must_use]
    pub fn greedy(size: usize) -> Self {
        Self { pace: Pace::Greedy, sizes: vec![(size, 1)], flows: Flows::Single }
    }

    /// Frames of one size and one flow, at a fixed rate.
    #[must_use]
    pub fn paced(size: usize, frames_per_second: f64) -> Self {
        let pace = Pace::FramesPerSecond(frames_per_second);
        Self { pace, sizes: vec![(size, 1)], flows: Flows::Single }
    }

    /// The same traffic with many flows.
    #[must_use]
    pub fn with_many_flows(mut self) -> Self {
        self.flows = Flows::Multiple;
        self
    }

    /// The same traffic with other sizes.
    #[must_use]
    pub fn with_sizes(mut self, sizes: &[(usize, u32)]) -> Self {
        self.sizes = sizes.to_vec();
        self
    }
}

/// A request-response probe like `qperf tcp_lat`: one small message is outstanding at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Time at which the first message leaves.
    pub from: Nanos,
    /// No message leaves from this time on.
    pub until: Nanos,
    /// Mean time from the link through the server's program back to the link. Actual times vary
    /// from half to one and a half times the mean.
    pub server: Nanos,
    /// Mean time in the guest from the reply in its ring to the next message in its ring. Actual
    /// times vary like those of `server`.
    pub guest: Nanos,
}

/// Clients on the far side of the uplink that send requests to a VM.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Requests {
    pub from: Nanos,
    pub until: Nanos,
    /// Bursts per second, at random times (exponential gaps).
    pub bursts_per_second: f64,
    /// Requests of a burst, which arrive back to back.
    pub burst: u32,
    /// Number of frames in a response.
    pub response_frames: u32,
    /// Mean time in the guest between a request and its response. This time varies like
    /// [`Probe::server`].
    pub service: Nanos,
    /// Time of a response outside of the switch: wires and the client.
    pub outside: Nanos,
    /// Bytes of a response frame, with FCS.
    pub size: usize,
}
