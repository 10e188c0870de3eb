//! `count CASE ROUNDS` runs the benchmark `turn` under a program that counts instructions.
//! `scripts/instructions.sh` subtracts two runs with different ROUNDS, which removes the cost of
//! starting the program. Unlike times, instruction counts hardly differ between runs or machines.
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark")]

mod rig;

use penstock_dataplane::batch::{BATCH_FRAMES, Batch};
use penstock_dataplane::offload::Offload;
use penstock_dataplane::port::TxOutcome;
use penstock_dataplane::tsc::{CycleCounter, Tsc};

fn take(len: usize, rounds: u32) {
    let mut guest = rig::Guest::new(Some(&rig::udp(len)));
    let (mut ring, mut batch) = (guest.ring(), Batch::new());
    for _ in 0..rounds {
        guest.offer_batch();
        batch.clear();
        ring.take(&mut batch);
        ring.complete_taken();
        ring.publish();
    }
}

fn give(len: usize, rounds: u32) {
    let mut guest = rig::Guest::new(None);
    let (mut ring, mut batch) = (guest.ring(), Batch::new());
    let all: [u8; BATCH_FRAMES] = core::array::from_fn(|i| u8::try_from(i).unwrap());
    for _ in all {
        batch.push(&rig::udp(len), Offload::NONE).unwrap();
    }
    for _ in 0..rounds {
        guest.offer_batch();
        let mut outcome = TxOutcome::default();
        ring.give(&batch, &all, &mut outcome);
        ring.publish();
    }
}

fn turn(len: usize, flows: u32, case: &str, rounds: u32) {
    let (ports, metered) = (case.ends_with("ports"), case.ends_with("hbs"));
    let mut switch = rig::Switch::scheduled(len, flows, ports, metered);
    let mut cycles: Vec<u64> = Vec::with_capacity(rounds as usize);
    for _ in 0..rounds {
        switch.prepare();
        let start = Tsc.now();
        switch.turn();
        cycles.push(Tsc.now().saturating_sub(start).0);
    }
    cycles.sort_unstable();
    let per_frame = |i: usize| cycles.get(i).copied().unwrap_or(0) as f64 / BATCH_FRAMES as f64;
    let n = cycles.len();
    eprintln!(
        "cycles per frame: {:.1} at the 10th percentile, {:.1} median",
        per_frame(n / 10),
        per_frame(n / 2)
    );
}

fn main() {
    let mut args = std::env::args().skip(1).filter(|a| a != "--bench");
    let (Some(case), Some(rounds)) = (args.next(), args.next().and_then(|n| n.parse().ok())) else {
        // `cargo bench` also calls this program, which has nothing to time then.
        println!("count take-LEN|give-LEN|turn-LEN-FLOWS[-ports|-hbs]|cross-LEN ROUNDS");
        return;
    };
    let number = |at: usize| case.split('-').nth(at).and_then(|n| n.parse().ok());
    let len = number(1).unwrap_or(60_u32);
    let len = usize::try_from(len).unwrap();
    match case.split('-').next() {
        Some("take") => take(len, rounds),
        Some("give") => give(len, rounds),
        Some("turn") => turn(len, number(2).unwrap_or(1), &case, rounds),
        Some("cross") => {
            let switch = rig::Switch::new(len, number(2).unwrap_or(1), false);
            eprintln!("cycles a frame: {:.1}", switch.across_cores(len, rounds));
        }
        _ => panic!("no case {case}"),
    }
}
