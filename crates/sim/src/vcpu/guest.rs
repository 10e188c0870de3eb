//! The work of a simulated guest. A guest has urgent work for packets and timers, and background
//! work that can wait.
//!
//! A guest does urgent work before background work, in the order of arrival. Urgent work is like an
//! I/O-bound thread beside a compute-bound thread (VM jitter §II-B). A running guest handles its
//! timers immediately. A guest that is not running handles its timers when it runs again.

use std::collections::VecDeque;

use penstock_units::Nanos;

use crate::Rng;

/// A frame on its way to or from a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Frame {
    /// A request from outside, with its sending time.
    Ping(Nanos),
    /// A packet of a guest's stream, with its due time.
    Stream(Nanos),
}

/// Work of a guest that can wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    None,
    /// The guest always has background work.
    Hog,
    /// The background work is periodic, like the work of an encoder. The amount of work varies by
    /// up to `spread_pct` percent.
    Batches {
        period: Nanos,
        /// Mean processor time of the work in a period.
        work: Nanos,
        /// Largest difference in percent between the processor time of a period's work and `work`.
        spread_pct: u8,
    },
    /// The background work consists of bursts with pauses. Bursts and pauses have random lengths of
    /// up to twice the mean.
    OnOff {
        /// Mean processor time of a burst.
        burst: Nanos,
        pause: Nanos,
    },
}

/// Behaviour of a guest that has no work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// The guest blocks, and its own timers wake it.
    Blocks,
    /// The guest blocks. The scheduler activates the guest after the given time, regardless of the
    /// guest's timers.
    ActivatedAfter(Nanos),
    /// The guest yields, and the scheduler decides when the guest runs again.
    Yields,
}

/// Configuration of a simulated guest.
#[derive(Clone, Debug)]
pub struct GuestSpec {
    /// Background work of the guest, which can wait.
    pub background: Background,
    /// Due times of the stream's packets in ascending order, and the processor time of each packet.
    pub stream: (Vec<Nanos>, Nanos),
    /// Processor time that the guest needs to answer or forward a packet.
    pub answer: Nanos,
    pub idle: Idle,
}

impl GuestSpec {
    /// Creates a guest that always computes, and that answers a packet in 50 µs of processor time.
    #[must_use]
    pub const fn hog() -> Self {
        Self {
            background: Background::Hog,
            stream: (Vec::new(), Nanos(0)),
            answer: Nanos::from_micros(50),
            idle: Idle::Blocks,
        }
    }

    /// Creates a driver domain that forwards a frame in 10 µs of processor time.
    #[must_use]
    pub fn driver() -> Self {
        let answer = Nanos::from_micros(10);
        Self { background: Background::None, answer, ..Self::hog() }
    }
}

/// Processor time of a guest that is activated without work, and only checks for work.
const LOOK: Nanos = Nanos::from_micros(5);

#[derive(Clone, Copy, Debug)]
struct Task {
    left: Nanos,
    sends: Option<Frame>,
}

/// State of a simulated guest.
#[derive(Clone, Debug)]
pub struct Guest {
    spec: GuestSpec,
    rng: Rng,
    urgent: VecDeque<Task>,
    /// Processor time that the guest's remaining background work needs.
    left: Nanos,
    /// Index of the stream's next packet.
    next_packet: usize,
    next_batch: Option<Nanos>,
}

impl Guest {
    /// Creates a guest that starts at `now`.
    #[must_use]
    pub fn new(spec: GuestSpec, rng: Rng, now: Nanos) -> Self {
        let next_packet = spec.stream.0.partition_point(|due| *due < now);
        let next_batch = match spec.background {
            Background::Batches { .. } | Background::OnOff { .. } => Some(now),
            Background::None | Background::Hog => None,
        };
        let (urgent, left) = (VecDeque::new(), Nanos(0));
        Self { spec, rng, urgent, left, next_packet, next_batch }
    }

    #[must_use]
    pub const fn idle(&self) -> Idle {
        self.spec.idle
    }

    /// Returns the time at which the guest's next timer fires. Returns `None` if the guest has no
    /// timer.
    #[must_use]
    pub fn next_timer(&self) -> Option<Nanos> {
        let packet = self.spec.stream.0.get(self.next_packet).copied();
        packet.into_iter().chain(self.next_batch).min()
    }

    /// Handles all timers of the guest that are due.
    pub fn see(&mut self, now: Nanos) {
        while let Some(due) = self.spec.stream.0.get(self.next_packet).filter(|due| **due <= now) {
            let sends = Some(Frame::Stream(*due));
            self.urgent.push_back(Task { left: self.spec.stream.1, sends });
            self.next_packet += 1;
        }
        while let Some(at) = self.next_batch.filter(|at| *at <= now) {
            self.next_batch = match self.spec.background {
                Background::Batches { period, work, spread_pct } => {
                    let spread = work.0 / 100 * u64::from(spread_pct);
                    let drawn = work.0 - spread.min(work.0) + self.rng.below(2 * spread + 1);
                    self.left += Nanos(drawn);
                    Some(at + period)
                }
                // The pause begins at the end of the burst.
                Background::OnOff { burst, .. } => {
                    self.left = Nanos(1 + self.rng.below(2 * burst.0));
                    None
                }
                Background::None | Background::Hog => None,
            };
        }
    }

    /// Receives a frame. The guest answers or forwards the frame after the processor time `answer`.
    pub fn receive(&mut self, frame: Frame) {
        self.urgent.push_back(Task { left: self.spec.answer, sends: Some(frame) });
    }

    /// Activates the guest. A guest without work only checks for work, which takes a short time.
    pub fn activate(&mut self) {
        if self.work().is_none() {
            self.urgent.push_back(Task { left: LOOK, sends: None });
        }
    }

    /// Returns the remaining processor time of the guest's current work, or `None` if the guest is
    /// idle.
    #[must_use]
    pub fn work(&self) -> Option<Nanos> {
        if let Some(task) = self.urgent.front() {
            return Some(task.left);
        }
        match self.spec.background {
            Background::Hog => Some(Nanos(u64::MAX)),
            _ => Some(self.left).filter(|left| left.0 > 0),
        }
    }

    /// Subtracts the processor time `ran`, which ended at `now`, from the current work. If the
    /// current work is complete, returns the frame that the guest sends.
    pub fn run(&mut self, now: Nanos, ran: Nanos) -> Option<Frame> {
        if let Some(task) = self.urgent.front_mut() {
            task.left = task.left.saturating_sub(ran);
            if task.left.0 > 0 {
                return None;
            }
            return self.urgent.pop_front().and_then(|task| task.sends);
        }
        if let Background::OnOff { pause, .. } = self.spec.background
            && self.left.0 > 0
            && self.left <= ran
        {
            self.next_batch = Some(now + Nanos(1 + self.rng.below(2 * pause.0)));
        }
        self.left = self.left.saturating_sub(ran);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Nanos = Nanos::from_millis;

    #[test]
    fn urgent_work_goes_before_background_work() {
        let stream = (vec![MS(1), MS(2)], MS(1));
        let spec = GuestSpec { stream, ..GuestSpec::hog() };
        let mut guest = Guest::new(spec, Rng::new(1), Nanos(0));
        assert_eq!((guest.work(), guest.next_timer()), (Some(Nanos(u64::MAX)), Some(MS(1))));
        assert_eq!(guest.run(MS(1), MS(1)), None);
        guest.see(MS(2));
        assert_eq!((guest.work(), guest.next_timer()), (Some(MS(1)), None));
        assert_eq!(guest.run(MS(3), MS(1)), Some(Frame::Stream(MS(1))));
        assert_eq!(guest.run(MS(4), MS(1)), Some(Frame::Stream(MS(2))));
        guest.receive(Frame::Ping(MS(4)));
        assert_eq!(guest.work(), Some(Nanos::from_micros(50)));
    }

    #[test]
    fn batches_and_bursts_come_by_the_seed_within_their_bounds() {
        let background = Background::Batches { period: MS(100), work: MS(50), spread_pct: 20 };
        let mut guest =
            Guest::new(GuestSpec { background, ..GuestSpec::hog() }, Rng::new(1), Nanos(0));
        guest.see(MS(900));
        let sum = guest.work().unwrap();
        assert!((MS(400)..=MS(600)).contains(&sum), "{sum:?}");
        let background = Background::OnOff { burst: MS(5), pause: MS(5) };
        let mut guest =
            Guest::new(GuestSpec { background, ..GuestSpec::hog() }, Rng::new(1), Nanos(0));
        guest.see(Nanos(0));
        let burst = guest.work().unwrap();
        assert_eq!(guest.next_timer(), None);
        guest.run(burst, burst);
        assert_eq!(guest.work(), None);
        assert!(guest.next_timer().unwrap() > burst);
        guest.activate();
        assert_eq!(guest.work(), Some(LOOK));
    }
}
