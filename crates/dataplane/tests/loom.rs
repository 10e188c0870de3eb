//! These tests check the structures that threads share without a lock, under every order of events
//! that the memory model allows. `loom` explores only a limited number of preemptions, because the
//! tests would otherwise not end in a reasonable time. The sources of the shared structures are
//! compiled a second time for these tests, against the primitives of `loom`.

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
}

#[path = "../src/wake/doorbell.rs"]
mod doorbell;
#[allow(dead_code, reason = "what an onlooker asks is not modelled")]
#[path = "../src/peers/positions.rs"]
mod positions;

use std::sync::Arc;

use doorbell::Doorbell;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;
use positions::positions;

/// Explores `model` with up to three preemptions, which suffice to find all known mistakes.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

fn answers(bell: &Doorbell) -> Vec<usize> {
    let mut heard = Vec::new();
    bell.answer(|n| heard.push(n));
    heard
}

#[test]
fn whoever_rings_while_the_worker_answers_is_heard() {
    explore(|| {
        let bell = Arc::new(Doorbell::new(130));
        let ringers: Vec<_> = [3, 4]
            .into_iter()
            .map(|n| {
                let bell = Arc::clone(&bell);
                thread::spawn(move || bell.ring(n))
            })
            .collect();
        let mut heard = answers(&bell);
        ringers.into_iter().for_each(|ringer| ringer.join().unwrap());
        heard.extend(answers(&bell));
        heard.sort_unstable();
        assert_eq!(heard, [3, 4], "each once, or the word was answered twice");
        assert!(!bell.has_rung());
    });
}

#[test]
fn no_frame_falls_between_the_last_look_and_the_kick() {
    explore(|| {
        // A ring's available index, and the flag by which the device says that it polls.
        let ring = Arc::new((AtomicU64::new(0), AtomicU64::new(1), Doorbell::new(1)));
        let driver = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                let (available, polls, bell) = &*ring;
                available.store(1, Ordering::Release);
                fence(Ordering::SeqCst);
                if polls.load(Ordering::Relaxed) == 0 {
                    bell.ring(0);
                }
            })
        };
        let (available, polls, bell) = &*ring;
        polls.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let seen = available.load(Ordering::Relaxed) == 1;
        driver.join().unwrap();
        assert!(seen || answers(bell) == [0]);
    });
}

#[test]
fn numbers_out_of_range_ring_no_bell() {
    explore(|| {
        let bell = Doorbell::new(64);
        bell.ring(64);
        bell.ring(usize::MAX);
        assert_eq!(answers(&bell), Vec::<usize>::new());
        bell.ring(63);
        assert_eq!(answers(&bell), [63]);
    });
}

/// Array of numbers for which loom checks that two threads never access the same element at the
/// same time.
struct Cells(Vec<UnsafeCell<usize>>);

// SAFETY: the positions under test ensure that one side at a time touches a cell, and loom reports
// where they do not. WHY: this is the claim under test.
#[allow(unsafe_code, reason = "what the test is about")]
unsafe impl Sync for Cells {}
// SAFETY: the cells hold numbers. WHY: as above.
#[allow(unsafe_code, reason = "what the test is about")]
unsafe impl Send for Cells {}

impl Cells {
    fn new(n: usize) -> Arc<Self> {
        Arc::new(Self((0..n).map(|_| UnsafeCell::new(0)).collect()))
    }

    fn put(&self, at: usize, value: usize) {
        self.0[at].with_mut(|cell| {
            // SAFETY: loom fails the test if another side accesses the cell. WHY: a raw cell.
            #[allow(unsafe_code, reason = "what the test is about")]
            unsafe {
                *cell = value;
            }
        });
    }

    fn get(&self, at: usize) -> usize {
        self.0[at].with(|cell| {
            // SAFETY: loom fails the test if another side writes the cell. WHY: a raw cell.
            #[allow(unsafe_code, reason = "what the test is about")]
            unsafe {
                *cell
            }
        })
    }
}

/// Base value of the cell that begins a skip: unused cells at the end of the ring, because the next
/// piece did not fit there. A piece of `n` cells in the test's ring begins with a cell that
/// contains `n`. A skip of `n` cells begins with a cell that contains `SKIP + n`.
const SKIP: usize = 100;

#[test]
fn pieces_cross_whole_and_in_order_over_the_ends_of_the_ring() {
    explore(|| {
        let cells = Cells::new(4);
        let (mut giver, mut taker) = positions(4);
        let other = Arc::clone(&cells);
        let gives = thread::spawn(move || {
            let mut refused = Vec::new();
            // The second piece does not fit before the end once the first is taken.
            for (n, len) in [(1, 3), (2, 2), (3, 1)] {
                let Some(claim) = giver.claim(len) else {
                    refused.push(n);
                    continue;
                };
                if let Some((at, skipped)) = claim.skipped {
                    other.put(at, SKIP + skipped);
                }
                other.put(claim.at, len);
                (1..len).for_each(|i| other.put(claim.at + i, n));
                giver.show();
            }
            refused
        });
        let mut seen = Vec::new();
        // The loop needs one step for each piece and each skip, and one step that finds nothing. It
        // has a limit, because loom cannot end an endless wait.
        let mut take = |seen: &mut Vec<usize>| {
            for _ in 0..5 {
                let Some(at) = taker.next_cell() else { break };
                match cells.get(at) {
                    skip if skip > SKIP => taker.pass(skip - SKIP),
                    len => {
                        let body: Vec<usize> = (1..len).map(|i| cells.get(at + i)).collect();
                        assert!(body.iter().all(|n| *n == body[0]), "torn: {body:?}");
                        seen.push(len);
                        taker.pass(len);
                    }
                }
                taker.release();
            }
        };
        take(&mut seen);
        let refused = gives.join().unwrap();
        take(&mut seen);
        let lens: Vec<usize> = [(1, 3), (2, 2), (3, 1)]
            .into_iter()
            .filter(|(n, _)| !refused.contains(n))
            .map(|(_, len)| len)
            .collect();
        assert_eq!(seen, lens, "refused: {refused:?}");
    });
}
