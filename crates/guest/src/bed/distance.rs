//! Measures how far two cores are apart: the time in which a cache line goes from one core to the
//! other and back.
//!
//! # Problem
//!
//! A frame that a VM on one core writes is read by the switch's worker on another core, so a frame
//! costs several times as much if the cores share no cache. On a virtual machine, the hypervisor
//! moves the processors, and the same two cores are near at one time and far at another.
//!
//! # Approach
//!
//! Two threads, one on each core, take turns at counting up a number. The core of the switch must
//! be idle, so the switch must be stopped.
//!
//! If a machine's processors move, windows can only be compared if all are measured at the same
//! distance. [`Kept`] waits until the processors are back at the more common distance.

use core::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::bail;

use super::pin;
use crate::clock;

/// Time between two looks while [`Kept::wait`] waits.
const PAUSE: Duration = Duration::from_millis(20);
/// Turns of each thread. A turn takes 50 to 500 ns.
const TURNS: u32 = 4_000;
/// Longest time of a measurement. If a thread loses its core for longer, nothing is measured.
const LONGEST: Duration = Duration::from_millis(100);
/// Number of looks at the number between two readings of the clock.
const LOOKS: u32 = 4_096;

/// Returns the nanoseconds in which a cache line goes from core `one` to core `other` and back.
/// Returns `None` if the cores are the same, or if a thread lost its core.
///
/// # Errors
/// Returns an error if a thread cannot be pinned.
pub fn round_trip_ns(one: u32, other: u32) -> anyhow::Result<Option<f64>> {
    if one == other {
        return Ok(None);
    }
    let number = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let answers = scope.spawn(|| {
            pin(other)?;
            Ok::<_, anyhow::Error>(count(&number, 1))
        });
        let asks = scope.spawn(|| {
            pin(one)?;
            // The first turns wait for the other thread.
            let warm = take_turns(&number, 0, TURNS / 4);
            let began = clock::now();
            let done = warm && take_turns(&number, TURNS / 4, TURNS);
            let took = began.elapsed().as_nanos();
            Ok::<_, anyhow::Error>(done.then_some(took))
        });
        let (Ok(answers), Ok(asks)) = (answers.join(), asks.join()) else {
            bail!("a thread that measures the distance of two cores panicked")
        };
        answers?;
        let turns = f64::from(TURNS - TURNS / 4);
        #[expect(clippy::cast_precision_loss, reason = "below a second")]
        let trip = |took: u128| took as f64 / turns;
        Ok(asks?.map(trip))
    })
}

/// Two distances of cores are the same but for noise if their ratio is at most this. Cores that
/// share a cache are four times as near as others.
const ALIKE: f64 = 1.6;
/// Number of looks at the distance, over [`LOOK_FOR`], from which the more common one follows.
const SAMPLES: u32 = 200;
const LOOK_FOR: Duration = Duration::from_secs(10);

/// Whether two distances of cores are the same but for noise.
#[must_use]
pub fn alike(one: f64, other: f64) -> bool {
    one.max(other) <= ALIKE * one.min(other)
}

/// The distance at which all windows are measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kept {
    nanos: f64,
    /// Time after which windows at other distances are accepted.
    until: Instant,
}

impl Kept {
    /// Looks at the distance of two cores for some seconds, and keeps the median for the time
    /// `lasts`. Returns `None` if the cores are the same.
    ///
    /// # Errors
    /// Returns an error if a thread cannot be pinned.
    pub fn find([one, other]: [u32; 2], lasts: Duration) -> anyhow::Result<Option<Self>> {
        let began = clock::now();
        let mut seen = Vec::new();
        while one != other && began.elapsed() < LOOK_FOR {
            seen.extend(round_trip_ns(one, other)?);
            let due = LOOK_FOR * u32::try_from(seen.len())? / SAMPLES;
            clock::wait_readable(None, due.saturating_sub(began.elapsed()));
        }
        seen.sort_by(f64::total_cmp);
        Ok(seen.get(seen.len() / 2).map(|nanos| Self::at(*nanos, lasts)))
    }

    /// Keeps the distance `nanos` for the time `lasts`.
    #[must_use]
    pub fn at(nanos: f64, lasts: Duration) -> Self {
        Self { nanos, until: clock::now() + lasts }
    }

    /// Returns the kept distance in nanoseconds.
    #[must_use]
    pub const fn nanos(&self) -> f64 {
        self.nanos
    }

    /// Whether windows at other distances are still to be repeated.
    #[must_use]
    pub fn lasts(&self) -> bool {
        clock::now() < self.until
    }

    /// Whether a distance is the kept one. An unknown distance is not.
    #[must_use]
    pub fn is(&self, nanos: Option<f64>) -> bool {
        nanos.is_some_and(|nanos| alike(nanos, self.nanos))
    }

    /// Waits until two cores are at the kept distance, or the time is over. Returns the distance.
    ///
    /// # Errors
    /// Returns an error if a thread cannot be pinned.
    pub fn wait(&self, [one, other]: [u32; 2]) -> anyhow::Result<Option<f64>> {
        loop {
            let nanos = round_trip_ns(one, other)?;
            if self.is(nanos) || !self.lasts() {
                return Ok(nanos);
            }
            clock::wait_readable(None, PAUSE);
        }
    }
}

/// Takes all turns of the second thread.
fn count(number: &AtomicU32, first: u32) -> bool {
    (0..TURNS).all(|turn| wait_for(number, 2 * turn + first))
}

/// Takes the turns from `from` to `to` of the first thread. Returns false if the other thread does
/// not take its turns.
fn take_turns(number: &AtomicU32, from: u32, to: u32) -> bool {
    (from..to).all(|turn| wait_for(number, 2 * turn))
}

/// Waits until the number is `due`, and counts it up. Returns false if this takes too long.
fn wait_for(number: &AtomicU32, due: u32) -> bool {
    let began = clock::now();
    while began.elapsed() < LONGEST {
        for _ in 0..LOOKS {
            if number.load(Ordering::Acquire) == due {
                number.store(due + 1, Ordering::Release);
                return true;
            }
            core::hint::spin_loop();
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_of_two_cores_is_a_time_and_of_one_core_nothing() {
        let cores = super::super::allowed_cores().unwrap();
        assert_eq!(round_trip_ns(cores[0], cores[0]).unwrap(), None);
        let Some(other) = cores.get(1) else {
            penstock_testing::skip("this process may use only one core");
            return;
        };
        // Beside other tests, a thread may lose its core.
        let some = (0..50).find_map(|_| round_trip_ns(cores[0], *other).unwrap());
        let nanos = some.unwrap();
        assert!((1.0..1e6).contains(&nanos), "{nanos}");
        assert!(round_trip_ns(u32::MAX, cores[0]).is_err());
    }

    #[test]
    fn a_kept_distance_is_waited_for_until_its_time_is_over() {
        let kept = Kept::at(500.0, Duration::from_secs(60));
        assert!(kept.lasts() && kept.is(Some(620.0)) && kept.is(Some(330.0)));
        assert!(!kept.is(Some(110.0)) && !kept.is(None));
        // Nothing is measured that takes a second.
        let never = Kept::at(1e9, Duration::from_millis(30));
        let cores = super::super::allowed_cores().unwrap();
        let two = [cores[0], *cores.last().unwrap()];
        assert!(!never.is(never.wait(two).unwrap()) && !never.lasts());
        assert_eq!(Kept::find([two[0]; 2], Duration::ZERO).unwrap(), None);
    }

    #[test]
    fn a_thread_whose_partner_is_gone_gives_up() {
        assert!(!take_turns(&AtomicU32::new(0), 0, TURNS));
    }
}
