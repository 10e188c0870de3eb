//! Checks that a tenant cannot raise its score by declaring a false guarantee.

use penstock_fabric::hose::{Hose, VmClass};
use penstock_fabric::score::{HostUsage, payment, score};
use penstock_units::BitsPerSecond;
use proptest::prelude::*;

fn hosts() -> impl Strategy<Value = Vec<HostUsage>> {
    let host = (1_u32..=5, 0_u64..1_000_000_000, 0_u64..1_000_000_000);
    prop::collection::vec(host, 1..8).prop_map(|hosts| {
        let usage = |(vms, sent, received)| HostUsage {
            vms,
            sent: BitsPerSecond(sent),
            received: BitsPerSecond(received),
        };
        hosts.into_iter().map(usage).collect()
    })
}

fn hose(vms: u32, rates: &[(u64, u64)]) -> Hose {
    // The VMs are divided into as many classes as there are rates.
    let kinds = u32::try_from(rates.len()).unwrap().min(vms);
    let class = |at: u32| VmClass {
        vms: vms / kinds + u32::from(at < vms % kinds),
        send: BitsPerSecond(rates[at as usize].0),
        recv: BitsPerSecond(rates[at as usize].1),
    };
    Hose::new((0..kinds).map(class).collect()).unwrap()
}

/// Usage factor by QShare eq. (1), 0 to 1, of a tenant with `vms` VMs that each have a guarantee of
/// `rate`.
#[expect(clippy::cast_precision_loss, reason = "a ratio may be rounded")]
fn usage_factor(vms: u32, rate: BitsPerSecond, hosts: &[HostUsage]) -> f64 {
    let share = |host: &HostUsage| {
        let guarantee = rate.0 * u64::from(host.vms.min(vms - host.vms));
        if guarantee == 0 { 0.0 } else { host.sent.max(host.received).0 as f64 / guarantee as f64 }
    };
    hosts.iter().map(share).fold(0.0, f64::max).min(1.0)
}

const RATE: core::ops::Range<u64> = 1..2_000_000_000;

proptest! {
    #[test]
    fn declaring_less_never_scores_more_and_declaring_more_than_is_used_neither(
        hosts in hosts(),
        rates in prop::collection::vec((RATE, RATE), 1..4),
        parts in prop::collection::vec((1_u64..=1000, 1_u64..=1000), 4),
    ) {
        let vms = hosts.iter().map(|host| host.vms).sum();
        let honest = hose(vms, &rates);
        let part = |rate: u64, part: u64| (rate / 1000 * part).max(1).min(rate);
        let less = rates.iter().zip(&parts).map(|(r, p)| (part(r.0, p.0), part(r.1, p.1)));
        let less = hose(vms, &less.collect::<Vec<_>>());
        prop_assert!(score(&less, &hosts) <= score(&honest, &hosts));
        prop_assert!(score(&honest, &hosts) <= payment(&honest));
        // If the honest guarantee is not fully used, a larger guarantee does not raise the score.
        if score(&honest, &hosts) < payment(&honest) {
            let more = rates.iter().zip(&parts).map(|(r, p)| (r.0 + p.0 * 1_000_000, r.1 + p.1));
            let more = hose(vms, &more.collect::<Vec<_>>());
            prop_assert_eq!(score(&more, &hosts), score(&honest, &hosts));
        }
    }

    #[test]
    fn with_equal_rates_it_is_payment_times_usage(hosts in hosts(), rate in RATE) {
        let vms: u32 = hosts.iter().map(|host| host.vms).sum();
        let rate = BitsPerSecond(rate);
        let hose = Hose::homogeneous(vms, rate).unwrap();
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let (ours, payment) = (score(&hose, &hosts) as f64, payment(&hose) as f64);
        let printed = payment * usage_factor(vms, rate, &hosts);
        prop_assert!((ours - printed).abs() <= 1.0 + printed * 1e-9, "{ours} {printed}");
    }

    #[test]
    fn more_traffic_never_scores_less(hosts in hosts(), rate in RATE, at: usize, more in RATE) {
        let vms = hosts.iter().map(|host| host.vms).sum();
        let hose = Hose::homogeneous(vms, BitsPerSecond(rate)).unwrap();
        let mut busier = hosts.clone();
        let at = at % busier.len();
        busier[at].sent.0 += more;
        prop_assert!(score(&hose, &busier) >= score(&hose, &hosts));
    }
}
