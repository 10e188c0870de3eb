//! Tests that a port on several workers gets the cycles that it purchased, with an error of at most
//! 1 %. In the test, a port may send on any subset of its workers.

use penstock_qos::c2tb::{BucketSet, Mode, Terms};
use penstock_qos::share::{Owner, forecast, settle};
use penstock_units::{Cycles, CyclesPerSecond, TscRate, Weight};
use proptest::prelude::*;

const HZ: u64 = 2_200_000_000;
const INTERVAL: u64 = 110_000;

/// Bucket of a port on one worker, and the values that the worker and the port's home publish about
/// the bucket.
struct Side {
    set: BucketSet,
    /// Sum of the transfers that the port's home assigned to the worker. The field `booked` is the
    /// sum of the transfers that the worker has applied.
    told: i64,
    booked: i64,
    /// Bucket level that the worker published, and the sum of the transfers that the worker had
    /// applied by then.
    note: (i64, i64),
    /// Bucket level that the worker published last, and the time of the publication.
    noted: (i64, u64),
}

impl Side {
    fn new(terms: &Terms) -> Self {
        let mut set = BucketSet::new(1, TscRate::from_hz(HZ), CyclesPerSecond(HZ));
        set.join(0, terms, 0);
        Self { set, told: 0, booked: 0, note: (0, 0), noted: (0, 0) }
    }

    /// Advances one interval. Returns the cycles that the worker spent; 0 if the worker has no
    /// frames (`busy` is false).
    fn interval(&mut self, busy: bool, batch: u64) -> u64 {
        self.set.refill(Cycles(INTERVAL));
        let mut spent = 0;
        while busy && self.set.may_run(0) && spent < INTERVAL {
            self.set.charge(0, Cycles(batch), true);
            spent += batch;
        }
        spent
    }

    fn keep_books(&mut self, now: u64) {
        let generated = self.set.entitled(0, Cycles(now - self.noted.1)).0;
        let spent = self.noted.0 + generated.cast_signed() - self.set.tokens(0);
        self.set.transfer(0, self.told - self.booked);
        self.booked = self.told;
        self.noted = (self.set.tokens(0), now);
        self.note = (forecast(self.noted.0, spent), self.booked);
    }
}

fn settle_all(sides: &mut [Side], depth: u64) {
    let depth = depth.cast_signed();
    let level = |side: &Side| side.note.0 + side.told - side.note.1;
    let owner = |side: &Side| Owner { level: level(side), depth, cap: i64::MAX, moved: 0 };
    let mut owners: Vec<Owner> = sides.iter().map(owner).collect();
    settle(&mut owners);
    sides.iter_mut().zip(&owners).for_each(|(side, owner)| side.told += owner.moved);
}

proptest! {
    #[test]
    fn transfers_sum_to_zero(
        owners in proptest::collection::vec(
            (-1_000_000..1_000_000_i64, 1..1_000_000_i64, 0..500_000_i64),
            0..9,
        ),
    ) {
        let owner = |&(level, depth, cap)| Owner { level, depth, cap, moved: 0 };
        let mut owners: Vec<Owner> = owners.iter().map(owner).collect();
        settle(&mut owners);
        prop_assert_eq!(owners.iter().map(|o| o.moved).sum::<i64>(), 0);
        for o in &owners {
            prop_assert!(o.moved >= -o.cap.max(0) - 8, "{:?}", o);
            prop_assert!(o.moved <= 0 || o.level + o.moved <= o.depth + 8, "{:?}", o);
            prop_assert!(o.moved >= 0 || o.level + o.moved >= o.depth / 2 - 8, "{:?}", o);
        }
    }

    /// The argument `plan` lists the phases of the test: the workers at which frames wait, and the
    /// duration in milliseconds. In this test, workers publish levels and apply transfers only at
    /// every `lag`-th refill.
    #[test]
    fn a_port_on_several_workers_gets_what_it_bought(
        workers in 2..5_usize,
        percent in 2..40_u64,
        plan in proptest::collection::vec((1..16_u8, 20..200_u32), 1..6),
        lag in 1..16_u32,
        batch in 1_000..60_000_u64,
    ) {
        let entitlement = HZ / 100 * percent;
        let part = entitlement / workers as u64;
        // The depth is that of the real worker: some milliseconds of its part.
        let depth = part * 4 / 1_000 + HZ / 40_000;
        let (entitlement_here, weight) = (CyclesPerSecond(part), Weight::ONE);
        let depth_here = Cycles(depth);
        let terms = Terms {
            entitlement: entitlement_here, weight, mode: Mode::Strict, depth: depth_here,
        };
        let mut sides: Vec<Side> = (0..workers).map(|_| Side::new(&terms)).collect();
        let (mut charged, mut elapsed, mut tick) = (0, 0, 0_u32);
        for (mask, ms) in plan {
            let none = u32::from(mask) & ((1 << workers) - 1) == 0;
            for _ in 0..ms * 20 {
                tick += 1;
                elapsed += INTERVAL;
                for (w, side) in (0_u32..).zip(&mut sides) {
                    charged += side.interval(mask & 1 << w != 0 || (w == 0 && none), batch);
                }
                // Workers do their bookkeeping at different times.
                for (_, side) in (0..).zip(&mut sides).filter(|(w, _)| tick % lag == w % lag) {
                    side.keep_books(elapsed);
                }
                if tick.is_multiple_of(lag) {
                    settle_all(&mut sides, depth);
                }
            }
        }
        let due = u128::from(elapsed) * u128::from(entitlement) / u128::from(HZ);
        let due = u64::try_from(due).unwrap();
        // Buckets may be fuller or emptier at the end than at the start.
        let slack = workers as u64 * (depth + batch);
        prop_assert!(charged <= due + due / 100 + slack, "{charged} of {due}");
        prop_assert!(charged + due / 100 + slack >= due, "{charged} of {due}");
        prop_assert!(sides.iter().all(|side| side.set.ledger().unaccounted() == 0));
    }
}
