//! Tests the invariants of inbound shares for any weights and any traffic. The shares pass no more
//! than the rate and the buckets allow, and they waste no tokens that a busy VM could use.

use penstock_qos::inbound_shares::{Admission, BatchLoad, InboundShares, Member, SHARE_TIME};
use penstock_qos::policer::SEGMENT;
use penstock_units::{BitsPerSecond, Nanos, Weight};
use proptest::prelude::*;

const STEP: Nanos = Nanos::from_micros(20);
const START: Nanos = Nanos::from_secs(1);

fn weight() -> impl Strategy<Value = Weight> {
    (1..=9_u64).prop_map(|weight| Weight::new(weight).unwrap())
}

/// Returns one to eight VMs of one to four tenants.
fn members() -> impl Strategy<Value = Vec<Member>> {
    let tenants = prop::collection::vec(weight(), 4);
    let vms = prop::collection::vec((0..4_u16, weight()), 1..=8);
    (tenants, vms).prop_map(|(weights, vms)| {
        let member = |(port, (tenant, vm_weight)): (u16, (u16, Weight))| Member {
            port,
            tenant,
            tenant_weight: weights[usize::from(tenant)],
            vm_weight,
        };
        (0..).zip(vms).map(member).collect()
    })
}

/// Offers `frames` frames of `bytes` bytes for each of `ports` in each step. Returns the bytes that
/// passed by port.
fn offer(
    shares: &InboundShares,
    ports: &[u16],
    (frames, bytes): (u32, u32),
    (from, steps): (Nanos, u64),
) -> Vec<u64> {
    let mut passed = vec![0; 8];
    for step in 1..=steps {
        shares.refill(from + Nanos(STEP.0 * step));
        for port in (0..frames).flat_map(|_| ports) {
            if shares.arrive(*port, bytes) != Admission::Refuse {
                passed[usize::from(*port)] += u64::from(bytes);
            }
        }
    }
    passed
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn no_more_passes_than_rate_and_buckets_allow(
        members in members(),
        mbits in 50..2_000_u64,
        bytes in 84..70_000_u32,
    ) {
        let rate = BitsPerSecond(mbits * 1_000_000);
        let shares = InboundShares::new(rate, &members);
        let ports: Vec<u16> = members.iter().map(|member| member.port).collect();
        let steps = 5_000;
        let passed: u64 = offer(&shares, &ports, (2, bytes), (START, steps)).iter().sum();
        let in_time = |time: u64| rate.0 * time / 8_000_000_000;
        // Each bucket holds its share of 4 ms or the least depth, and a debt of one frame.
        let least = u64::from(2 * SEGMENT.bytes).max(in_time(200_000));
        let depths = in_time(2 * SHARE_TIME.0) + (least + u64::from(bytes)) * 9;
        prop_assert!(passed <= in_time(STEP.0 * steps) + depths);
    }

    #[test]
    fn busy_vms_get_their_shares_and_waste_nothing(
        members in members(),
        idle in prop::collection::vec(any::<bool>(), 8),
    ) {
        let rate = BitsPerSecond(1_000_000_000);
        let shares = InboundShares::new(rate, &members);
        let busy: Vec<&Member> =
            members.iter().filter(|member| !idle[usize::from(member.port)]).collect();
        prop_assume!(!busy.is_empty());
        let ports: Vec<u16> = busy.iter().map(|member| member.port).collect();
        // 2 frames of 1,538 bytes in 20 us are more than the whole rate, for each VM.
        let warm = 10_000;
        offer(&shares, &ports, (2, 1_538), (START, warm));
        let steps = 25_000;
        let from = START + Nanos(STEP.0 * warm);
        let passed = offer(&shares, &ports, (2, 1_538), (from, steps));
        let mut tenants: Vec<(u16, u64)> =
            busy.iter().map(|m| (m.tenant, u64::from(m.tenant_weight.get()))).collect();
        tenants.sort_unstable();
        tenants.dedup();
        let of_tenants: u64 = tenants.iter().map(|(_, weight)| weight).sum();
        for member in &busy {
            let siblings = busy.iter().filter(|other| other.tenant == member.tenant);
            let of_vms: u64 = siblings.map(|other| u64::from(other.vm_weight.get())).sum();
            let weight =
                u64::from(member.tenant_weight.get()) * u64::from(member.vm_weight.get());
            let all = rate.0 / 8 / 2;
            let due = all * weight / (of_tenants * of_vms);
            let got = passed[usize::from(member.port)];
            // A bucket may differ by an interval's tokens and a frame between begin and end.
            let apart = got.abs_diff(due);
            prop_assert!(apart <= due / 200 + 20_000, "{member:?}: {got}, due {due}");
        }
    }

    #[test]
    fn the_rate_never_leaves_its_range(
        loads in prop::collection::vec((0..5_000_usize, 0..200_000_u32, 0..64_u32, 1..9_u64), 500),
    ) {
        let rate = BitsPerSecond(1_000_000_000);
        let member = Member {
            port: 0,
            tenant: 0,
            tenant_weight: Weight::ONE,
            vm_weight: Weight::ONE,
        };
        let shares = InboundShares::new(rate, &[member]);
        let mut now = START;
        for (backlog, bytes, refused, gap) in loads {
            now += Nanos(gap * 50_000);
            shares.refill(now);
            let passed = penstock_qos::policer::Size { bytes, frames: bytes / 1_538 };
            shares.note(0, backlog, BatchLoad { passed, refused });
            prop_assert!(shares.rate() <= rate && shares.rate().0 >= 8_000);
        }
    }
}
