//! One worker writes a counter with plain stores, and any thread reads the counter with relaxed
//! loads.
//!
//! # Problem
//! Statistics must never cost the worker a locked operation or a shared cache line (datapath rule
//! 23).
//!
//! # Approach
//! Every set of counters belongs to one pair of worker and port. To read a port's counters, control
//! adds up the sets of all workers. The sum over all workers is exact only if each worker itself
//! reads its counters between two batches ([`crate::worker::Request::Checkpoint`]). If another
//! thread reads the counters, two counters may differ by the frames of one batch.
//!
//! # Invariant
//! Each port has `rx + replicated = forwarded + sum(drops) + queued`. All ports together have
//! `sum(forwarded) = sum(tx)`.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use penstock_qos::delay_scale::PARTS;
use penstock_units::WorkerId;

use crate::drop::DropReason;

/// A counter that exactly one thread writes.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n` to the counter. Only the owning worker may add, because a second writer would lose
    /// counts.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Subtracts `n` from the counter, modulo 2^64. One worker's counter may be increased and
    /// another worker's decreased, so that their sum over a port is a gauge.
    #[inline]
    pub fn sub(&self, n: u64) {
        self.add(n.wrapping_neg());
    }

    /// Overwrites the value of a gauge with `n`.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    #[inline]
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

// After a field's meaning, `gauge` marks a present level: the sum over the workers is shown. `peak`
// marks a maximum: the largest value of all workers is shown.
macro_rules! counters {
    (@name $field:ident $level:ident) => { stringify!($field) };
    (@since $now:expr, $before:expr) => { $now.wrapping_sub($before) };
    (@since $now:expr, $before:expr, $level:ident) => { $now };
    (@merge $mine:expr, $theirs:expr) => { $mine.wrapping_add($theirs) };
    (@merge $mine:expr, $theirs:expr, gauge) => { $mine.wrapping_add($theirs) };
    (@merge $mine:expr, $theirs:expr, peak) => { $mine.max($theirs) };
    ($(#[$doc:meta])* $set:ident / $reading:ident {
         $($field:ident: $unit:literal, $help:literal $(, $level:ident)?;)*
     }
     arrays { $($array:ident[$len:expr]: $aunit:literal, $ahelp:literal;)* }
     unread { $($unread:ident: $uhelp:literal;)* }) => {
        $(#[$doc])*
        #[derive(Debug)]
        #[repr(align(128))]
        pub struct $set {
            $(#[doc = $help] pub $field: Counter,)*
            $(#[doc = $ahelp] pub $array: [Counter; $len],)*
            $(#[doc = $uhelp] pub $unread: Counter,)*
        }

        #[doc = concat!("A reading of [`", stringify!($set), "`].")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $reading {
            $(#[doc = $help] pub $field: u64,)*
            $(#[doc = $ahelp] pub $array: [u64; $len],)*
        }

        // `Default` is not derived, because `derive(Default)` supports arrays of at most 32
        // elements.
        impl Default for $set {
            fn default() -> Self {
                Self {
                    $($field: Counter::default(),)*
                    $($array: core::array::from_fn(|_| Counter::default()),)*
                    $($unread: Counter::default(),)*
                }
            }
        }

        impl Default for $reading {
            fn default() -> Self {
                Self { $($field: 0,)* $($array: [0; $len],)* }
            }
        }

        impl $set {
            #[must_use]
            pub fn read(&self) -> $reading {
                $reading {
                    $($field: self.$field.get(),)*
                    $($array: core::array::from_fn(|i| self.$array[i].get()),)*
                }
            }
        }

        impl $reading {
            /// Name, unit and meaning of each plain counter field, for tables and metrics.
            pub const FIELDS: &'static [(&'static str, &'static str, &'static str)] =
                &[$((stringify!($field), $unit, $help),)*];

            /// Names of the gauges: fields that contain a current level, and not a count since the
            /// start.
            pub const GAUGES: &'static [&'static str] =
                &[$($(counters!(@name $field $level),)?)*];

            /// Returns the values of the plain fields, in the order of [`Self::FIELDS`].
            #[must_use]
            pub fn values(&self) -> Vec<u64> {
                vec![$(self.$field),*]
            }

            /// Returns the growth of each counter since the reading `before`. A gauge is not
            /// subtracted: the result has the later reading's value.
            #[must_use]
            pub fn since(&self, before: &Self) -> Self {
                let mut grown = *self;
                $(grown.$field =
                    counters!(@since self.$field, before.$field $(, $level)?);)*
                $(for (now, old) in grown.$array.iter_mut().zip(before.$array) {
                    *now = now.wrapping_sub(old);
                })*
                grown
            }

            /// Combines the counter reading with another worker's reading of the same counters.
            pub fn merge(&mut self, other: &Self) {
                $(self.$field =
                    counters!(@merge self.$field, other.$field $(, $level)?);)*
                $(for (mine, theirs) in self.$array.iter_mut().zip(other.$array) {
                    *mine = mine.wrapping_add(theirs);
                })*
            }
        }
    };
}

counters! {
    /// Counters that one worker keeps for one port.
    PortCounters / PortReading {
        rx_frames: "frames", "frames taken from the port, including those dropped afterwards";
        rx_bytes: "bytes", "bytes of frames taken from the port, without FCS";
        rx_errors: "chains", "descriptor chains or reads without a usable frame";
        rx_batches: "batches", "batches taken from the port";
        rx_full: "batches", "batches that ended because the batch was full; more frames may wait";
        kept_waiting: "looks", "checks that found frames waiting while other ports were served";
        rx_empty: "polls", "polls that found no frame";
        rx_tso: "frames", "frames taken that carry a segmentation request (TSO or USO)";
        rx_segments: "frames", "wire frames made from the port's segmentation requests";
        rx_segment_headers: "bytes", "header bytes added by segmenting the port's requests";
        rx_cut: "frames", "large segments (TSO) cut because of the port's shaper or a slow limit";
        rx_marked: "frames", "frames of this port marked (ECN) because a limit makes them wait";
        rx_trimmed: "frames", "large segments of this port without their first part, as a signal";
        rx_csum: "frames", "frames taken from the port with an unfinished checksum";
        forwarded: "frames", "frames from this port that were delivered";
        replicated: "frames", "extra copies made of this port's frames (floods, several outputs)";
        tx_frames: "frames", "frames delivered to the port";
        tx_bytes: "bytes", "bytes of frames delivered to the port, without FCS";
        tx_batches: "batches", "bursts delivered to the port";
        tx_tso: "frames", "frames delivered that carry a segmentation request (TSO or USO)";
        net_sent_frames: "frames", "frames of this tenant's port delivered to shared ports";
        net_sent_bytes: "bytes", "bytes that this tenant's port sent to shared ports";
        net_received_frames: "frames", "frames from shared ports delivered to this tenant's port";
        net_received_bytes: "bytes", "bytes that this tenant's port received from shared ports";
        tx_kicks: "notifications", "interrupts sent to the port's driver";
        vcpu_wakes: "wakes", "wake-ups of the VM's vCPU scheduler, one system call each";
        sw_csum: "frames", "checksums computed in software, because this port cannot compute them";
        sw_tso: "frames", "large segments cut in software, as this port cannot or is slow";
        cache_hits: "frames", "frames with a decision in the exact-match cache";
        rule_lookups: "frames", "frames that went through the rules' tuple-space search";
        slow_path: "frames", "frames that took the slow path: learning or flooding";
        learned: "addresses", "MAC addresses learned or moved to this port";
        police_green: "frames", "frames that the port's policer found within the committed rate";
        police_yellow: "frames", "frames above the committed rate that pass (excess or peak)";
        police_red: "frames", "frames above all rates, dropped as `policed`";
        police_waits: "times", "times the port's frames waited for its limit in bits/s";
        police_pps_waits: "times", "times the port's frames waited for its limit in frames/s";
        send_waits: "times", "times the port's frames waited for `send` or the pairs' rates";
        receive_waits: "times", "times frames to the port waited for `receive` or a ceiling";
        tx_trimmed: "frames", "large segments to the port without their first part, as a signal";
        tx_marked: "frames", "frames to the port marked \"congestion experienced\" (ECN)";
        link_waits: "times", "times the port's frames waited for the port's part of a full link";
        tx_link: "bytes", "bytes on the wire of frames delivered to a watched link";
        cycles: "cycles", "TSC cycles that the port was charged for its batches";
        stolen: "cycles", "TSC cycles for which the worker lost its core during the port's batches";
        stopped: "times", "times the switch stopped the port for making the worker sleep";
        sampled_frames: "frames", "frames in sampled batches, whose stages were timed";
        cycles_ingress: "cycles", "sampled batches: cycles to take the frames";
        cycles_classification: "cycles", "sampled batches: cycles to classify the frames";
        cycles_egress: "cycles", "sampled batches: cycles to deliver the frames and return buffers";
        cycles_entitled: "cycles", "TSC cycles that the port was entitled to, used or not";
        throttled: "cycles", "TSC cycles in which frames waited and the cycle bucket was empty";
        tokens: "cycles", "level of the port's cycle bucket now; 0 if the bucket is in debt", gauge;
        debt: "cycles", "cycles by which the port's cycle bucket is overdrawn now, or 0", gauge;
        delay: "nanoseconds", "sum of the longest possible waits of batches in the port's ring";
        delay_max: "nanoseconds", "longest wait of a batch in this or the previous second", peak;
        queued: "frames", "frames of this port now waiting in a queue or as parts", gauge;
        held_back: "times", "skipped polls of the port because of the port's backlog at an output";
        tx_queued: "frames", "frames waiting for this port in its queue now", gauge;
        tx_queue_p50: "nanoseconds", "median wait in this port's queue, over the last second", peak;
        tx_queue_p99: "nanoseconds", "99th percentile of waits in this port's queue", peak;
        tx_queue_max: "nanoseconds", "longest wait in this port's queue, last second", peak;
        tx_queue_variation: "nanoseconds", "99th percentile of the variation of queue waits", peak;
    }
    arrays {
        drops[DropReason::COUNT]: "frames", "frames from this port that were dropped, by reason";
        tx_drops[DropReason::COUNT]: "frames", "frames to this port that were dropped, by reason";
        waited[PARTS]: "frames", "frames of this port by waiting time in the switch";
        varied[PARTS]: "frames", "frames of this port by delay variation (RFC 3393) in the switch";
        tx_waited[PARTS]: "frames", "frames to this port by waiting time in the port's queue";
        shaped[PARTS]: "frames", "frames of this port by the delay of the port's shaper";
        refused_at[1]: "numbers", "sum, over refused frames of this port, of the receiver's number";
    }
    unread {
        number: "Number of the port. A worker sets it when the port joins.";
    }
}

counters! {
    /// Counters that a worker keeps about its own loop.
    WorkerCounters / WorkerReading {
        turns: "turns", "turns of the worker's loop";
        busy_turns: "turns", "turns of the worker's loop that moved a frame";
        cycles_charged: "cycles", "TSC cycles that were charged to ports";
        cycles_idle: "cycles", "TSC cycles of turns of the worker's loop that found no work";
        cycles_stolen: "cycles", "TSC cycles for which the worker lost its core";
        cycles_host: "cycles", "TSC cycles that no port caused: control requests, refills, aging";
        stolen_batches: "batches", "batches during which the worker lost its core";
        requests: "requests", "control requests served";
        sleeps: "sleeps", "times the idle worker gave up the core";
        taken_over: "frames", "frames that other workers handed over to this worker";
        resting: "queues", "queue pairs at rest now: not polled until their driver kicks", gauge;
        wakes: "wakes", "times that polling of a resting queue pair began again";
        kicks: "kicks", "driver kicks that reached the worker";
        refills: "refills", "refills of the cycle buckets";
        cycles_generated: "cycles", "TSC cycles generated for ports with a cycle bucket";
        cycles_lent: "cycles", "TSC cycles of spare time that ports without tokens used";
        lent_batches: "batches", "batches that ports with an empty cycle bucket ran in spare time";
        cycles_discarded: "cycles", "TSC cycles discarded because every min-max bucket was full";
        heartbeat: "cycles", "TSC value at the last loop turn", gauge;
        share_choices: "choices", "times a fair-share output chose who uses the turn of a port";
        share_looks: "looks", "looks at rings of other ports before a fair-share output chose";
        unchosen_batches: "batches", "batches of ports with a known fair-share output that waited";
        cycles_queued: "cycles", "TSC cycles to send batches from the queues of shared outputs";
        cycles_notified: "cycles", "TSC cycles to notify the ports' drivers";
        taken_notifications: "notifications", "interrupts because frames were taken from a port";
    }
    arrays {}
    unread {}
}

/// Counters of a port, with one set per worker, so that each set has one writer.
#[derive(Clone, Debug)]
pub struct PortCounterSets(Arc<[Arc<PortCounters>]>);

impl PortCounterSets {
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self((0..workers.max(1)).map(|_| Arc::default()).collect())
    }

    /// Returns the set of counters that `worker` writes. If the worker's number is too large, `of`
    /// returns the last worker's set of counters.
    #[must_use]
    pub fn of(&self, worker: WorkerId) -> &Arc<PortCounters> {
        &self.0[worker.index().min(self.0.len() - 1)]
    }

    /// Returns the port's counter sets in the order of the workers' numbers.
    pub fn each(&self) -> impl Iterator<Item = &PortCounters> {
        self.0.iter().map(|set| &**set)
    }

    /// Returns the sum of the port's counter sets.
    #[must_use]
    pub fn read(&self) -> PortReading {
        let mut sum = PortReading::default();
        self.0.iter().for_each(|set| sum.merge(&set.read()));
        sum.settle()
    }
}

impl From<Arc<PortCounters>> for PortCounterSets {
    /// Creates the counters of a port with a single worker.
    fn from(set: Arc<PortCounters>) -> Self {
        Self(Arc::new([set]))
    }
}

/// Reasons for which frames are dropped because the receiver has no room, is too slow, or exceeds
/// its own limits.
pub const REFUSED: [DropReason; 8] = [
    DropReason::RingFull,
    DropReason::HandoverFull,
    DropReason::QueueFull,
    DropReason::QueueLate,
    DropReason::ReceiveLimit,
    DropReason::TenantLimit,
    DropReason::InboundShare,
    DropReason::PairReceiveLimit,
];

impl PortCounters {
    /// Counts frames of this port that the port `target` did not take.
    pub fn count_refused(&self, target: Option<&Self>, reason: DropReason, frames: u64) {
        self.drops[reason as usize].add(frames);
        if let Some(target) = target {
            self.count_refused_by(target, reason, frames);
        }
    }

    /// Counts which port did not take frames of this port. The caller counts the drops of this port
    /// itself.
    pub(crate) fn count_refused_by(&self, target: &Self, reason: DropReason, frames: u64) {
        target.tx_drops[reason as usize].add(frames);
        if REFUSED.contains(&reason) {
            self.refused_at[0].add(target.number.get().saturating_mul(frames));
        }
    }
}

impl PortReading {
    /// Sets `queued` and `tx_queued` to zero if their sums over all workers are negative. A sum can
    /// be negative if the workers' counters were not read at the same moment, or in the middle of a
    /// batch.
    #[must_use]
    pub fn settle(mut self) -> Self {
        for waiting in [&mut self.queued, &mut self.tx_queued] {
            if *waiting > u64::MAX / 2 {
                *waiting = 0;
            }
        }
        self
    }

    /// Returns the number of frames taken from the port and their bytes without FCS, counted as on
    /// a wire. A segmentation request counts as the frames that the request becomes, each with its
    /// headers.
    #[must_use]
    pub fn on_wire(&self) -> [u64; 2] {
        // The sets may be written while they are read, so one count may be ahead of another.
        let whole = self.rx_frames.saturating_sub(self.rx_tso);
        [whole + self.rx_segments, self.rx_bytes + self.rx_segment_headers]
    }

    /// Number of frames from the port that a receiver refused, and the number of the receiver, if
    /// one receiver refused nearly all of them.
    #[must_use]
    pub fn refused(&self) -> (u64, Option<u16>) {
        let refused = REFUSED.iter().map(|reason| self.drops[*reason as usize]).sum::<u64>();
        let [sum] = self.refused_at;
        let number = (sum + refused / 2).checked_div(refused).unwrap_or(0);
        let apart = sum.abs_diff(number * refused);
        let one = refused > 0 && apart.saturating_mul(50) <= refused;
        (refused, u16::try_from(number).ok().filter(|_| one))
    }

    /// Number of frames from the port that were dropped, over all reasons.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Returns the left side minus the right side of `rx + replicated = forwarded + drops +
    /// queued`. 0 means that the counters account for all frames.
    #[must_use]
    pub fn unaccounted(&self) -> i128 {
        i128::from(self.rx_frames) + i128::from(self.replicated)
            - i128::from(self.forwarded)
            - i128::from(self.dropped())
            - i128::from(self.queued)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_says_what_is_unaccounted() {
        let set = PortCounters::default();
        set.rx_frames.add(10);
        set.replicated.add(2);
        set.forwarded.add(9);
        set.drops[DropReason::RingFull as usize].add(1);
        set.queued.set(1);
        assert_eq!(set.read().unaccounted(), 1);
        assert_eq!(PortReading::FIELDS.len(), set.read().values().len());
    }

    #[test]
    fn a_port_knows_the_receiver_that_refused_its_frames() {
        let port = |number| {
            let set = PortCounters::default();
            set.number.set(number);
            set
        };
        let (source, near, far) = (port(1), port(2), port(9));
        assert_eq!(source.read().refused(), (0, None));
        source.count_refused(Some(&far), DropReason::RingFull, 990);
        source.count_refused(Some(&near), DropReason::QueueFull, 2);
        source.count_refused(Some(&near), DropReason::PortDown, 500);
        source.count_refused(None, DropReason::NoPort, 500);
        assert_eq!(source.read().refused(), (992, Some(9)), "other reasons do not count");
        assert_eq!(far.read().tx_drops[DropReason::RingFull as usize], 990);
        source.count_refused(Some(&near), DropReason::RingFull, 400);
        assert_eq!(source.read().refused(), (1_392, None), "two receivers");
        let zero = port(0);
        let other = port(1);
        other.count_refused(Some(&zero), DropReason::RingFull, 5);
        assert_eq!(other.read().refused(), (5, Some(0)));
    }

    #[test]
    fn since_a_reading_counters_grew_and_gauges_are_what_they_are() {
        let before =
            PortReading { rx_frames: 10, tokens: 900, tx_queue_p99: 70, ..Default::default() };
        let now =
            PortReading { rx_frames: 14, tokens: 300, tx_queue_p99: 50, ..Default::default() };
        let grown = now.since(&before);
        assert_eq!((grown.rx_frames, grown.tokens, grown.tx_queue_p99), (4, 300, 50));
        let worker = |turns, resting| WorkerReading { turns, resting, ..Default::default() };
        assert_eq!(worker(9, 2).since(&worker(4, 3)), worker(5, 2));
        assert_eq!(WorkerReading::GAUGES, ["resting", "heartbeat"]);
    }

    /// Checks that a port's longest wait is the maximum over its workers, and not the sum over its
    /// workers.
    #[test]
    fn of_two_workers_levels_add_up_and_peaks_do_not() {
        let sets = PortCounterSets::new(2);
        for (worker, peak, level) in [(0, 40, 3), (1, 25, 4)] {
            let set = sets.of(WorkerId(worker));
            set.delay_max.set(peak);
            set.tx_queue_max.set(peak);
            set.tokens.set(level);
        }
        let sum = sets.read();
        assert_eq!((sum.delay_max, sum.tx_queue_max, sum.tokens), (40, 40, 7));
    }
}
