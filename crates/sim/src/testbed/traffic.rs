//! What a VM sends, phase by phase.

use penstock_units::Nanos;

/// How fast.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Pace {
    /// Nothing.
    #[default]
    Off,
    /// So many frames a second, evenly; what finds the ring full is held back in the guest and
    /// made up for by nobody.
    FramesPerSecond(f64),
    /// So many frames a second, in bursts of so many.
    Bursts(f64, u64),
    /// The ring is always full: a sender at its maximum that feels back-pressure.
    Greedy,
}

/// How many flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flows {
    /// One.
    #[default]
    Single,
    /// Addresses and ports drawn anew for each frame.
    Multiple,
}

/// What a VM sends from some time on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Traffic {
    /// How fast.
    pub pace: Pace,
    /// Bytes of a frame with FCS, and how often each comes, as weights.
    pub sizes: Vec<(usize, u32)>,
    /// How many flows.
    pub flows: Flows,
}

impl Traffic {
    /// Nothing.
    #[must_use]
    pub fn off() -> Self {
        Self { sizes: vec![(64, 1)], ..Self::default() }
    }

    /// Frames of one size, one flow, at the maximum.
    #[must_use]
    pub fn greedy(size: usize) -> Self {
        Self { pace: Pace::Greedy, sizes: vec![(size, 1)], flows: Flows::Single }
    }

    /// Frames of one size, one flow, at a pace of so many frames a second.
    #[must_use]
    pub fn paced(size: usize, frames_per_second: f64) -> Self {
        let pace = Pace::FramesPerSecond(frames_per_second);
        Self { pace, sizes: vec![(size, 1)], flows: Flows::Single }
    }

    /// The same with many flows.
    #[must_use]
    pub fn with_many_flows(mut self) -> Self {
        self.flows = Flows::Multiple;
        self
    }

    /// The same in other sizes.
    #[must_use]
    pub fn with_sizes(mut self, sizes: &[(usize, u32)]) -> Self {
        self.sizes = sizes.to_vec();
        self
    }
}

/// A request-response probe as `qperf tcp_lat` is one: one message outstanding, of one small frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// When the first message leaves.
    pub from: Nanos,
    /// No new message from here on.
    pub until: Nanos,
    /// From the link to the server's program and back to the link, in the mean; each time is
    /// from half of it to one and a half times.
    pub server: Nanos,
    /// From the reply in the VM's ring to the next message in its ring, likewise.
    pub guest: Nanos,
}

/// Clients on the far side of the uplink that send requests to a VM.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Requests {
    /// When they begin.
    pub from: Nanos,
    /// When they end.
    pub until: Nanos,
    /// Bursts a second, at random times (exponential gaps).
    pub bursts_per_second: f64,
    /// Requests of a burst, that arrive back to back.
    pub burst: u32,
    /// Frames of a response.
    pub response_frames: u32,
    /// Time in the guest between a request and its response; likewise.
    pub service: Nanos,
    /// Time outside of the switch that a response has cost: wires and the client.
    pub outside: Nanos,
    /// Bytes of a frame of a response, with FCS.
    pub size: usize,
}
