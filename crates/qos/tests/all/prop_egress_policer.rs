//! Tests the invariants of egress policing for any traffic. No tenant and no strict VM gets more
//! than depth + rate × time, and traffic within its limits loses no frame.

use penstock_qos::policer::Size;
use std::sync::Arc;

use penstock_qos::egress_policer::{EgressPolicer, Meter, Policed, Sharing, Terms};
use penstock_units::{BitsPerSecond, Nanos, PacketsPerSecond};
use proptest::prelude::*;

const VMS: usize = 3;

/// Returns random times between frames: mostly short, sometimes minutes, during which the buckets
/// are full.
fn gap() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..200_000_u64, 2 => 0..200_000_000_u64, 1 => 0..100_000_000_000_u64]
}

fn frame() -> impl Strategy<Value = Size> {
    prop_oneof![
        4 => (60..=1_514_u32).prop_map(|bytes| Size { bytes, frames: 1 }),
        1 => (2..=43_u32).prop_map(|frames| Size { bytes: frames * 1_514, frames }),
    ]
}

fn terms() -> impl Strategy<Value = Terms> {
    let bytes = (1_000_000..1_000_000_000_u64, 1..200_000_u32);
    let frames = (100..1_000_000_u64, 1..500_u32);
    let bytes = prop::option::of(bytes.prop_map(|(rate, depth)| (BitsPerSecond(rate), depth)));
    let frames = prop::option::of(frames.prop_map(|(rate, depth)| (PacketsPerSecond(rate), depth)));
    (bytes, frames).prop_map(|(bytes, frames)| Terms { bytes, frames, per_frame: 0, waits: false })
}

fn in_frames(rate: u64, depth: u32) -> Terms {
    Terms { frames: Some((PacketsPerSecond(rate), depth)), ..Terms::default() }
}

fn arrive(policer: &EgressPolicer, size: Size, nanos: u64) -> Policed {
    policer.refill(Nanos(nanos));
    policer.arrive(size)
}

type Passed = Vec<(u64, Size)>;

/// Checks that the frames that pass in every time window are within the limits. A bucket may be in
/// debt by at most one frame.
fn within(passed: &Passed, terms: &Terms) -> Result<(), TestCaseError> {
    let longest = passed.iter().map(|(_, size)| size.bytes).max().unwrap_or(0);
    let most = passed.iter().map(|(_, size)| size.frames).max().unwrap_or(0);
    for (first, (start, _)) in passed.iter().enumerate() {
        let (mut bytes, mut frames) = (0_u128, 0_u128);
        for (at, size) in &passed[first..] {
            bytes += u128::from(size.bytes);
            frames += u128::from(size.frames);
            let time = u128::from(at - start);
            if let Some((rate, depth)) = terms.bytes {
                let bound = u128::from(depth.max(longest)) * 8_000_000_000;
                prop_assert!(bytes * 8_000_000_000 <= bound + u128::from(rate.0) * time);
            }
            if let Some((rate, depth)) = terms.frames {
                let bound = u128::from(depth.max(most)) * 1_000_000_000;
                prop_assert!(frames * 1_000_000_000 <= bound + u128::from(rate.0) * time);
            }
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn no_window_passes_more_than_depth_and_rate(
        contract in terms(), parts in prop::collection::vec(terms(), VMS), borrow in any::<bool>(),
        arrivals in prop::collection::vec((gap(), 0..VMS, frame()), 1..150),
    ) {
        let sharing = if borrow { Sharing::Borrow } else { Sharing::Strict };
        let tenant = Arc::new(Meter::new(contract));
        let contract_of = || Some(Arc::clone(&tenant));
        let vm = |part: &Terms| EgressPolicer::new(Meter::new(*part), contract_of(), sharing);
        let vms: Vec<EgressPolicer> = parts.iter().map(vm).collect();
        let (mut all, mut of_vm) = (Passed::new(), vec![Passed::new(); VMS]);
        let mut now = 0;
        for (gap, vm, size) in arrivals {
            now += gap;
            if arrive(&vms[vm], size, now) == Policed::Pass {
                all.push((now, size));
                of_vm[vm].push((now, size));
            }
        }
        within(&all, &contract)?;
        if sharing == Sharing::Strict {
            for (passed, part) in of_vm.iter().zip(&parts) {
                within(passed, part)?;
            }
        }
    }

    /// Tests that a limit whose frames wait passes every frame, that no window has more than the
    /// limits permit, and that a backlogged tenant gets its rate.
    #[test]
    fn who_waits_gets_the_rate_and_no_more(
        rate in 1_000_000..1_000_000_000_u64, depth in 1_522..100_000_u32, borrow in any::<bool>(),
        sizes in prop::collection::vec((0..VMS, frame()), 1..100),
    ) {
        let limit = |rate, depth| {
            let bytes = Some((BitsPerSecond(rate), depth));
            Terms { bytes, waits: true, ..Terms::default() }
        };
        let sharing = if borrow { Sharing::Borrow } else { Sharing::Strict };
        let contract = limit(rate, depth);
        let tenant = Arc::new(Meter::new(contract));
        let vm = || {
            let part = Meter::new(limit(rate / VMS as u64, depth));
            EgressPolicer::new(part, Some(Arc::clone(&tenant)), sharing)
        };
        let vms: Vec<EgressPolicer> = (0..VMS).map(|_| vm()).collect();
        let (mut now, mut passed) = (1, Passed::new());
        for (vm, size) in sizes.iter().cycle().take(300) {
            loop {
                vms[*vm].refill(Nanos(now));
                let Some((wait, _)) = vms[*vm].wait() else { break };
                now += wait.0;
            }
            vms[*vm].charge(*size);
            passed.push((now, *size));
        }
        // A frame may put the bucket into debt, which the depth does not include.
        let longest = passed.iter().map(|(_, size)| size.bytes).max().unwrap_or(0);
        within(&passed, &limit(rate, depth + longest))?;
        let bytes: u64 = passed.iter().map(|(_, size)| u64::from(size.bytes)).sum();
        if borrow {
            // A VM that borrows leaves half of the bucket to the others.
            let least = bytes.saturating_sub(u64::from(depth + longest)) * 8_000_000_000 / rate;
            let most = (bytes + u64::from(depth)) * 8_000_000_000 / rate + 300;
            prop_assert!((least..=most).contains(&now), "{now} for {bytes} bytes");
        }
    }

    /// Tests that a flood after any idle time gets the depth plus the tokens that the rate yields,
    /// by the corrected Eq. (3).
    #[test]
    fn idle_time_earns_no_more_than_the_depth(
        rate in 100..100_000_u64, depth in 2..1_000_u32, idle in 1..1_000_u64,
    ) {
        let policer = EgressPolicer::new(Meter::new(in_frames(rate, depth)), None, Sharing::Strict);
        let (start, size) = (idle * 1_000_000_000, Size { bytes: 64, frames: 1 });
        // The flood lasts a second at ten times the rate.
        let gap = 100_000_000 / rate;
        let times = (0..10 * rate).map(|n| start + n * gap);
        let passed = times.filter(|now| arrive(&policer, size, *now) == Policed::Pass).count();
        let brought = rate * ((10 * rate - 1) * gap) / 1_000_000_000;
        let (passed, most) = (passed as u64, u64::from(depth) + brought);
        prop_assert!(passed <= most && passed + 1 >= most.min(10 * rate), "{passed} of {most}");
    }

    /// Tests that VMs within their own parts of the rate, with bursts up to their depth, lose no
    /// frame to a VM that borrows.
    #[test]
    fn a_vm_within_its_part_loses_nothing_to_a_borrower(
        rate in 1_000..100_000_u64, burst in 1..20_u32,
        rounds in prop::collection::vec((0..3_u64, 1..200_u64), 1..100),
    ) {
        // The lower half of the tenant's bucket covers the sibling's burst and one frame of the
        // borrower.
        let tenant = Arc::new(Meter::new(in_frames(2 * rate, 2 * burst + 2)));
        let vm = |depth| {
            let part = Meter::new(in_frames(rate, depth));
            EgressPolicer::new(part, Some(Arc::clone(&tenant)), Sharing::Borrow)
        };
        let (borrower, sibling) = (vm(1), vm(burst));
        let size = Size { bytes: 64, frames: 1 };
        let mut now = 0;
        for (idle, flood) in rounds {
            for n in 0..flood {
                let _ = arrive(&borrower, size, now + n);
            }
            // The pause is long enough for the sibling's own bucket to fill.
            now += (idle + u64::from(burst)) * 1_000_000_000 / rate + 1_000;
            let _ = arrive(&borrower, size, now);
            for _ in 0..burst {
                prop_assert_eq!(arrive(&sibling, size, now), Policed::Pass);
            }
        }
    }
}
