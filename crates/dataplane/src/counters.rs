//! Counters that one worker writes with plain stores and any thread reads with relaxed loads.
//!
//! # Problem
//! Statistics must never cost the worker a locked operation or a shared cache line (datapath rule
//! 23).
//!
//! # Approach
//! Every set of counters belongs to one pair of worker and port, and the reader adds the sets. A
//! reading is exact only if the worker takes it between two batches
//! ([`crate::worker::Request::Checkpoint`]). In other readings two counters may differ by the
//! frames of one batch.
//!
//! # Invariant
//! For each port: `rx + replicated = forwarded + sum(drops) + queued`. Over all ports:
//! `sum(forwarded) = sum(tx)`.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use penstock_qos::delay_scale::PARTS;
use penstock_units::WorkerId;

use crate::drop::DropReason;

/// A counter with one writing thread.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the owning worker may call this, because a second writer would lose counts.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Subtracts `n`, modulo 2^64. The sum over all sets of a port is a gauge if one set adds and
    /// another subtracts.
    #[inline]
    pub fn sub(&self, n: u64) {
        self.add(n.wrapping_neg());
    }

    /// Overwrites the value of a gauge.
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

// After a field's meaning, `gauge` marks a present level, which is the sum over the workers. `peak`
// marks a maximum, which is the largest value of the workers.
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
     arrays { $($array:ident[$len:expr]: $aunit:literal, $ahelp:literal;)* }) => {
        $(#[$doc])*
        #[derive(Debug)]
        #[repr(align(128))]
        pub struct $set {
            $(#[doc = $help] pub $field: Counter,)*
            $(#[doc = $ahelp] pub $array: [Counter; $len],)*
        }

        #[doc = concat!("A reading of [`", stringify!($set), "`].")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $reading {
            $(#[doc = $help] pub $field: u64,)*
            $(#[doc = $ahelp] pub $array: [u64; $len],)*
        }

        // Not derived, because `derive(Default)` is limited to arrays of 32.
        impl Default for $set {
            fn default() -> Self {
                Self {
                    $($field: Counter::default(),)*
                    $($array: core::array::from_fn(|_| Counter::default()),)*
                }
            }
        }

        impl Default for $reading {
            fn default() -> Self {
                Self { $($field: 0,)* $($array: [0; $len],)* }
            }
        }

        impl $set {
            /// Reads the present values, one after the other.
            #[must_use]
            pub fn read(&self) -> $reading {
                $reading {
                    $($field: self.$field.get(),)*
                    $($array: core::array::from_fn(|i| self.$array[i].get()),)*
                }
            }
        }

        impl $reading {
            /// Name, unit and meaning of each plain field, for tables and metrics.
            pub const FIELDS: &'static [(&'static str, &'static str, &'static str)] =
                &[$((stringify!($field), $unit, $help),)*];

            /// Names of the fields that hold a present level instead of a count since the start.
            pub const GAUGES: &'static [&'static str] =
                &[$($(counters!(@name $field $level),)?)*];

            /// Values of the plain fields, in the order of [`Self::FIELDS`].
            #[must_use]
            pub fn values(&self) -> Vec<u64> {
                vec![$(self.$field),*]
            }

            /// Growth of each counter since `before`. A gauge keeps its present value.
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

            /// Adds the reading of another worker for the same object.
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
    /// Counters of one worker for one port.
    PortCounters / PortReading {
        rx_frames: "frames", "frames taken from the port, including those dropped afterwards";
        rx_bytes: "bytes", "bytes of frames taken from the port, without FCS";
        rx_errors: "chains", "descriptor chains or reads that held no usable frame";
        rx_batches: "batches", "batches taken from the port";
        rx_full: "batches", "batches that ended because they were full: more frames may wait";
        kept_waiting: "looks", "looks that found frames waiting while other ports had the turns";
        rx_empty: "polls", "polls that found no frame";
        rx_tso: "frames", "frames taken that carry a segmentation request (TSO)";
        rx_segments: "frames", "frames on a wire that segmentation requests taken become";
        rx_segment_headers: "bytes", "bytes of headers that cutting the segmentation requests adds";
        rx_csum: "frames", "frames taken whose checksum is not finished yet";
        forwarded: "frames", "frames from this port that were delivered";
        replicated: "frames", "extra copies made of this port's frames (floods, several outputs)";
        tx_frames: "frames", "frames delivered to the port";
        tx_bytes: "bytes", "bytes of frames delivered to the port, without FCS";
        tx_batches: "batches", "bursts delivered to the port";
        tx_tso: "frames", "frames delivered that carry a segmentation request (TSO)";
        net_sent_frames: "frames", "frames of this tenant's port delivered to shared ports";
        net_sent_bytes: "bytes", "bytes that this tenant's port sent to shared ports";
        net_received_frames: "frames", "frames from shared ports delivered to this tenant's port";
        net_received_bytes: "bytes", "bytes that this tenant's port received from shared ports";
        tx_kicks: "notifications", "interrupts sent to the port's driver";
        vcpu_wakes: "wakes", "times the scheduler of its VM's vCPUs was woken, a system call each";
        sw_csum: "frames", "checksums finished in software because this port cannot";
        sw_tso: "frames", "segmentation requests cut in software because this port cannot";
        cache_hits: "frames", "frames whose decision was in the exact-match cache";
        rule_lookups: "frames", "frames that went through the rules' tuple-space search";
        slow_path: "frames", "frames that took the slow path: learning or flooding";
        learned: "addresses", "MAC addresses learned or moved to this port";
        police_green: "frames", "frames that the port's policer found within the committed rate";
        police_yellow: "frames", "frames above the committed rate that pass (excess or peak)";
        police_red: "frames", "frames above all rates, dropped as `policed`";
        link_held: "bytes", "bytes of the port's frames that were dropped as `link-limit`";
        tx_link: "bytes", "bytes on the wire of frames delivered to a watched link";
        cycles: "cycles", "TSC cycles of the batches from this port, charged to it";
        stolen: "cycles", "TSC cycles in the port's batches in which the core was taken away";
        stopped: "times", "times the port was stopped because it made its worker sleep";
        sampled_frames: "frames", "frames in sampled batches, whose stages were timed";
        cycles_ingress: "cycles", "sampled batches: cycles to take the frames";
        cycles_classification: "cycles", "sampled batches: cycles to classify them";
        cycles_egress: "cycles", "sampled batches: cycles to deliver them and return the buffers";
        cycles_entitled: "cycles", "TSC cycles that the port was entitled to, used or not";
        throttled: "cycles", "TSC cycles in which frames waited and the cycle bucket was empty";
        tokens: "cycles", "level of the cycle bucket now; 0 while it is in debt", gauge;
        debt: "cycles", "debt of the cycle bucket now; 0 while it has tokens", gauge;
        delay: "nanoseconds", "sum over batches of the longest wait that their frames can have had";
        delay_max: "nanoseconds", "longest wait of a batch in this second and the last", peak;
        queued: "frames", "frames of this port waiting inside the switch now", gauge;
        held_back: "times", "times the port was not polled because of its backlog at an output";
        tx_queued: "frames", "frames waiting for this port in its queue now", gauge;
        tx_queue_p50: "nanoseconds", "median wait in this port's queue, over the last second", peak;
        tx_queue_p99: "nanoseconds", "99th percentile of waits in this port's queue", peak;
        tx_queue_max: "nanoseconds", "longest wait in this port's queue, last second", peak;
        tx_queue_variation: "nanoseconds", "99th percentile of the waits' variation", peak;
    }
    arrays {
        drops[DropReason::COUNT]: "frames", "frames from this port dropped, by reason";
        tx_drops[DropReason::COUNT]: "frames", "frames to this port dropped, by reason";
        waited[PARTS]: "frames", "frames of this port by how long they waited in the switch";
        varied[PARTS]: "frames", "frames of this port by delay variation (RFC 3393) in the switch";
        tx_waited[PARTS]: "frames", "frames to this port by how long they waited in its queue";
        shaped[PARTS]: "frames", "frames of this port by how long its shaper left them in its ring";
    }
}

counters! {
    /// Counters of a worker for itself.
    WorkerCounters / WorkerReading {
        turns: "turns", "turns of the worker's loop";
        busy_turns: "turns", "turns that moved a frame";
        cycles_charged: "cycles", "TSC cycles that were charged to ports";
        cycles_idle: "cycles", "TSC cycles of the turns that found nothing";
        cycles_stolen: "cycles", "TSC cycles during which the core was taken away";
        cycles_host: "cycles", "TSC cycles that no port caused: control requests, refills, aging";
        stolen_batches: "batches", "batches during which the core was taken away";
        requests: "requests", "control requests served";
        sleeps: "sleeps", "times the idle worker gave up the core";
        taken_over: "frames", "frames that other workers handed over to this one";
        resting: "queues", "queue pairs at rest now: not polled until their driver kicks", gauge;
        wakes: "wakes", "times a queue pair at rest was polled again";
        kicks: "kicks", "kicks of drivers that reached the worker";
        refills: "refills", "refills of the cycle buckets";
        cycles_generated: "cycles", "TSC cycles generated for ports with a cycle bucket";
        cycles_lent: "cycles", "TSC cycles of batches of ports without cycles, in spare time";
        lent_batches: "batches", "batches of ports without cycles, in spare time";
        cycles_discarded: "cycles", "TSC cycles generated that found every min-max bucket full";
        heartbeat: "cycles", "TSC value at the last loop turn", gauge;
    }
    arrays {}
}

/// Counters of a port: one set per worker, so that each set has one writer.
#[derive(Clone, Debug)]
pub struct PortCounterSets(Arc<[Arc<PortCounters>]>);

impl PortCounterSets {
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self((0..workers.max(1)).map(|_| Arc::default()).collect())
    }

    /// The set that `worker` writes. A number that is too large gets the last set.
    #[must_use]
    pub fn of(&self, worker: WorkerId) -> &Arc<PortCounters> {
        &self.0[worker.index().min(self.0.len() - 1)]
    }

    /// The sets in the order of the workers' numbers.
    pub fn each(&self) -> impl Iterator<Item = &PortCounters> {
        self.0.iter().map(|set| &**set)
    }

    /// Sum of all sets.
    #[must_use]
    pub fn read(&self) -> PortReading {
        let mut sum = PortReading::default();
        self.0.iter().for_each(|set| sum.merge(&set.read()));
        sum.settle()
    }
}

impl From<Arc<PortCounters>> for PortCounterSets {
    /// The counters of a port with a single worker.
    fn from(set: Arc<PortCounters>) -> Self {
        Self(Arc::new([set]))
    }
}

impl PortReading {
    /// Sets `queued` to zero if the sum of sets that were not read at one moment is negative.
    #[must_use]
    pub fn settle(mut self) -> Self {
        if self.queued > u64::MAX / 2 {
            self.queued = 0;
        }
        self
    }

    /// Frames taken from the port and their bytes without FCS, counted as on a wire. A segmentation
    /// request counts as the frames it becomes, each with its headers.
    #[must_use]
    pub fn on_wire(&self) -> [u64; 2] {
        // The sets may be written while they are read, so one count may be ahead of another.
        let whole = self.rx_frames.saturating_sub(self.rx_tso);
        [whole + self.rx_segments, self.rx_bytes + self.rx_segment_headers]
    }

    /// Dropped frames of this port, over all reasons.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Error of the identity `rx + replicated = forwarded + drops + queued`; 0 if it holds.
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

    /// The longest wait of a port is the maximum over its workers, not their sum.
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
