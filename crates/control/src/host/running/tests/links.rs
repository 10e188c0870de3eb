//! Two watched links: what one holds back is not the other's load.

use penstock_dataplane::batch::Batch;
use penstock_dataplane::offload::Offload;

use super::*;

const TEXT: &str = r#"[host]
name = "h"
socket = "/run/links.sock"
[[tenant]]
name = "red"
[[port]]
name = "left"
packet.interface = "eth1"
link = "100M"
[[port]]
name = "right"
packet.interface = "eth2"
link = "100M"
[[port]]
name = "vm1"
tap.interface = "t1"
tenant = "red"
"#;

/// A flood of the VM's in 100 ms: nearly all of it is held back by whatever limits are in.
fn flood(fake: &Fake, now: Nanos) {
    let snapshot = fake.snapshot();
    let limits = snapshot.port(2).unwrap().ingress_policer.as_ref().unwrap();
    for _ in 0..100 {
        let mut batch = Batch::new();
        (0..32).for_each(|_| batch.push(&[0; 1_514], Offload::NONE).unwrap());
        limits.police(&mut batch, now, &fake.counters(2));
    }
}

#[test]
fn what_one_link_holds_back_is_no_load_of_another() {
    let file = TempFile::new("links", TEXT);
    let (host, fake) = start(&file);
    let limited = || {
        let links = host.stats(false).unwrap().links;
        links.iter().map(|link| (link.limited, link.load_permille >= 970)).collect::<Vec<_>>()
    };
    let mut now = Nanos::ZERO;
    for _ in 0..20 {
        host.watch_links(now);
        now += Nanos::from_millis(100);
        // 100 ms of 100 Mbit/s are 1,250,000 bytes: `left` is full, `right` sends a tenth of that.
        fake.counters(0).tx_link.add(1_250_000);
        fake.counters(1).tx_link.add(125_000);
        flood(&fake, now);
    }
    assert_eq!(limited(), [(true, true), (false, false)], "the flood is held back by `left` alone");
}
