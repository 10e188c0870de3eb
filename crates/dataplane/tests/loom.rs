//! What threads share without a lock, under every order of events that the memory model allows
//! (up to a number of preemptions, so that the tests end). The sources are compiled a second time
//! here, against `loom`'s primitives.

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
}

#[path = "../src/worker/doorbell.rs"]
mod doorbell;

use std::sync::Arc;

use doorbell::Doorbell;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;

/// Explores `model` with up to this many preemptions: three find all that is known to be there.
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
fn numbers_out_of_range_ring_nobodys_bell() {
    explore(|| {
        let bell = Doorbell::new(64);
        bell.ring(64);
        bell.ring(usize::MAX);
        assert_eq!(answers(&bell), Vec::<usize>::new());
        bell.ring(63);
        assert_eq!(answers(&bell), [63]);
    });
}
