//! Tests of two watched links. If the limits of one link drop a frame, the frame does not count as
//! load of the other link.

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

/// In this test, the VM on port 2 sends a flood of frames for 100 ms. The limit on the VM's part of
/// the link drops nearly all frames of the VM's flood.
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
        // 1,250,000 bytes are 100 ms of 100 Mbit/s. `left` is full, and `right` has a load of a
        // tenth.
        fake.counters(0).tx_link.add(1_250_000);
        fake.counters(1).tx_link.add(125_000);
        flood(&fake, now);
    }
    assert_eq!(limited(), [(true, true), (false, false)], "the flood is held back by `left` alone");
}
