//! Tests of the plans that a fabric's controller sends to the host.

use std::collections::BTreeMap;

use penstock_qos::pair_table::{Answer, PERIOD, PairLimits, PairTable, Sending};
use penstock_qos::policer::Size;
use penstock_units::BitsPerSecond;

use super::*;
use crate::host::ledger::NetworkUse;
use crate::host::overlay::{FabricTerms, Held};

const FABRIC: &str = r#"
[[tenant]]
name = "blue"
vlans = [200]

[[port]]
name = "up"
packet.interface = "eth1"
trunk = [100, 101, 200]
egress = "wfq"
link = "10G"
wfq = { queues = 4 }

[fabric]
controllers = ["10.0.0.1:7000"]
uplink = "up"
"#;

fn terms(code_points: &[(&str, u8)], weights: &[u32], map: &[(u8, u8)]) -> FabricTerms {
    FabricTerms {
        code_points: code_points.iter().map(|(name, dscp)| ((*name).to_owned(), *dscp)).collect(),
        held: BTreeMap::new(),
        measured: BTreeMap::new(),
        weights: weights.to_vec(),
        map: map.iter().copied().collect(),
    }
}

/// Returns the fabric settings in the workers' snapshot: code points of vm1's port and of all
/// tenants, queue weights, and the queues of three code points.
fn in_force(host: &Host, fake: &Fake) -> (Option<u8>, Vec<Option<u8>>, Vec<u16>, [u8; 3]) {
    let snapshot = fake.snapshot();
    let up = snapshot.ports.iter().flatten().find(|port| port.queue.is_some()).unwrap();
    assert!(up.marks);
    let classes = up.queue.as_ref().unwrap().classes();
    let weights = classes.weights().iter().map(|weight| weight.get()).collect();
    let queues = [0, 8, 16].map(|dscp| classes.queue_of(dscp));
    let tenants = host.tenants().iter().map(|tenant| tenant.dscp).collect();
    (snapshot.port(0).unwrap().dscp, tenants, weights, queues)
}

#[test]
fn a_plan_is_in_force_until_the_next_whatever_happens_to_the_file() {
    let text = format!("{TEXT}{FABRIC}");
    let file = TempFile::new("fabric", &text);
    let (host, fake) = start(&file);
    let shared = (Some(0), vec![Some(0), Some(0)], vec![1, 1, 1, 1], [0, 0, 0]);
    assert_eq!(in_force(&host, &fake), shared, "until a plan comes");
    fake.calls();
    let plan = terms(&[("red", 8), ("green", 16)], &[1, 30, 0], &[(8, 1), (16, 2)]);
    let change = host.set_fabric(&plan).unwrap();
    assert_eq!(change.changes, ["tenant red changed", "port up changed"]);
    assert_eq!(change.absent, ["green"]);
    assert_eq!(fake.calls(), ["swap"], "in one change");
    let told = (Some(8), vec![Some(8), Some(0)], vec![1, 30, 1, 1], [0, 1, 2]);
    assert_eq!(in_force(&host, &fake), told);
    assert_eq!((file.text(), host.config_toml()), (text.clone(), text.clone()), "not written");
    assert_eq!(host.set_fabric(&plan).unwrap().changes, Vec::<String>::new());
    assert_eq!(fake.calls(), Vec::<String>::new(), "it is so already");
    // The plan stays in force when the file is read again, an object changes, and a tenant of the
    // plan is added.
    host.reload().unwrap();
    assert_eq!(in_force(&host, &fake), told);
    std::fs::write(&file.0, text.replace("queues = 4", "queues = 5")).unwrap();
    host.reload().unwrap();
    assert_eq!(in_force(&host, &fake).2, [1, 30, 1, 1, 1]);
    host.add_tenant(Tenant { vlans: "300".parse().unwrap(), ..Tenant::new("green") }, false)
        .unwrap();
    assert_eq!(in_force(&host, &fake).1, [Some(8), Some(0), Some(16)]);
    let error = host.set_tenant("red", &[("dscp".into(), "9".into())], false).unwrap_err();
    assert!(error.to_string().contains("with [fabric], the controller assigns DSCPs"), "{error}");
    // The next plan replaces the previous plan completely.
    host.set_fabric(&terms(&[("blue", 16)], &[1, 1, 1, 1, 1, 1, 1, 9], &[(16, 7)])).unwrap();
    let next = in_force(&host, &fake);
    assert_eq!((next.1, next.3), (vec![Some(0), Some(16), Some(0)], [0, 0, 7]));
    assert_eq!(next.2, [1, 1, 1, 1, 1, 1, 1, 9], "as many queues as it wants");
}

#[test]
fn who_shares_a_queue_is_held_until_a_plan_says_otherwise() {
    let own = "send = { rate = \"90M\" }\n";
    let blue = "name = \"blue\"\nvlans = [200]\n";
    let text = format!("{TEXT}{FABRIC}").replace(blue, &format!("{blue}{own}"));
    let file = TempFile::new("fabric-held", &text);
    let (host, fake) = start(&file);
    let rates = |host: &Host| -> Vec<_> {
        let rate = |terms: Option<crate::config::EgressPolicer>| terms?.rate.map(|rate| rate.0.0);
        host.tenants().iter().map(|tenant| (rate(tenant.send), rate(tenant.receive))).collect()
    };
    let file_says = vec![(None, None), (Some(90_000_000), None)];
    assert_eq!(rates(&host), file_says);
    let both = [("red", 20_000_000, 0), ("blue", 40_000_000, 60_000_000)];
    let held = both.map(|(name, send, receive)| {
        (name.to_owned(), Held { send, receive, headroom_permille: 1_100 })
    });
    let plan = FabricTerms { held: held.into(), ..terms(&[], &[], &[]) };
    let ceilings = || -> Vec<_> {
        let snapshot = fake.snapshot();
        let up = snapshot.ports.iter().flatten().find(|port| port.queue.is_some()).unwrap();
        let classes = up.queue.as_ref().unwrap().classes();
        classes.held().map(|(lane, held)| (lane, held.tenant, held.rate.0)).collect()
    };
    assert_eq!(ceilings(), []);
    host.set_fabric(&plan).unwrap();
    // Frames that red sends wait in lane 4, after the four queues. Blue's configured limit takes
    // precedence. Received frames are policed at a quarter above the guarantee, but not below the
    // minimum rate of a meter.
    let laid = vec![(None, Some(8_000)), (Some(90_000_000), Some(75_000_000))];
    assert_eq!((rates(&host), ceilings()), (laid.clone(), vec![(4, 0, 27_500_000)]));
    host.reload().unwrap();
    assert_eq!((rates(&host), ceilings().len()), (laid, 1));
    assert_eq!(host.config_toml(), text, "not written");
    host.set_fabric(&terms(&[("red", 8)], &[], &[(8, 1)])).unwrap();
    assert_eq!((rates(&host), ceilings().len()), (file_says, 0));
}

#[test]
fn a_tenants_own_limits_stay_even_if_they_equal_those_of_a_plan() {
    let own = "send = { rate = \"45M\", burst = 281250 }\n\
               receive = { rate = \"75M\", burst = 468750 }\n";
    let blue = "name = \"blue\"\nvlans = [200]\n";
    let text = format!("{TEXT}{FABRIC}").replace(blue, &format!("{blue}{own}"));
    let file = TempFile::new("fabric-own", &text);
    let (host, _) = start(&file);
    let limits = |host: &Host, name: &str| {
        let tenant = host.tenants().into_iter().find(|tenant| tenant.name == name).unwrap();
        (tenant.send, tenant.receive)
    };
    let file_says = limits(&host, "blue");
    let held = |name: &str| {
        let held = Held { send: 40_000_000, receive: 60_000_000, headroom_permille: 1_100 };
        (name.to_owned(), held)
    };
    let both = [held("red"), held("blue")].into();
    host.set_fabric(&FabricTerms { held: both, ..terms(&[], &[], &[]) }).unwrap();
    assert_eq!(limits(&host, "red").1, file_says.1, "the plan's limit equals blue's own");
    host.set_fabric(&terms(&[], &[], &[])).unwrap();
    assert_eq!(limits(&host, "blue"), file_says);
    assert_eq!(limits(&host, "red"), (None, None));
}

#[test]
fn the_host_warns_of_bursts_in_its_file_and_not_of_those_of_a_plan() {
    let blue = "name = \"blue\"\nvlans = [200]\n";
    let own = "receive = { rate = \"1G\", burst = 131072 }\n";
    let text = format!("{TEXT}{FABRIC}").replace(blue, &format!("{blue}{own}"));
    // Without a free lane, the plan's limit on what red sends is a policer, too.
    let file = TempFile::new("fabric-bursts", &text.replace("queues = 4", "queues = 64"));
    let (host, _) = start(&file);
    let warned = || -> Vec<String> {
        let plan = Arc::clone(&lock(&host.core.shared).pricing.plan);
        let all = plan.warnings.iter().map(ToString::to_string);
        all.filter(|warning| warning.contains("a burst of")).collect()
    };
    let of_file = warned();
    assert!(of_file.len() == 1 && of_file[0].starts_with("tenant blue: receive"), "{of_file:?}");
    let held = Held { send: 200_000_000, receive: 200_000_000, headroom_permille: 1_000 };
    let held = ["red", "blue"].map(|name| (name.to_owned(), held)).into();
    host.set_fabric(&FabricTerms { held, ..terms(&[], &[], &[]) }).unwrap();
    assert!(host.tenants().iter().all(|tenant| tenant.send.is_some() && tenant.receive.is_some()));
    assert_eq!(warned(), of_file);
    host.reload().unwrap();
    assert_eq!(warned(), of_file);
}

#[test]
fn who_has_a_queue_is_limited_in_it_while_a_plan_says_so() {
    let file = TempFile::new("fabric-limited", &format!("{TEXT}{FABRIC}"));
    let (host, fake) = start(&file);
    let ceilings = || -> Vec<_> {
        let snapshot = fake.snapshot();
        let up = snapshot.ports.iter().flatten().find(|port| port.queue.is_some()).unwrap();
        let classes = up.queue.as_ref().unwrap().classes();
        classes.ceilings().map(|(queue, rate)| (queue, rate.0)).collect()
    };
    let plan = terms(&[("red", 8)], &[1, 3], &[(8, 1)]);
    host.set_fabric(&plan).unwrap();
    assert_eq!(ceilings(), []);
    let held = Held { send: 20_000_000, receive: 40_000_000, headroom_permille: 1_000 };
    let limited = FabricTerms { held: [("red".to_owned(), held)].into(), ..plan.clone() };
    host.set_fabric(&limited).unwrap();
    // Red keeps its code point and its queue.
    assert_eq!(in_force(&host, &fake).3, [0, 1, 0]);
    assert_eq!(ceilings(), [(1, 25_000_000)]);
    let tenants = host.tenants();
    let red = tenants.iter().find(|tenant| tenant.name == "red").unwrap();
    assert_eq!((red.send, red.receive.unwrap().rate.unwrap().0.0), (None, 50_000_000));
    // Without the code point, red is limited in a lane of queue 0.
    host.set_fabric(&FabricTerms { code_points: BTreeMap::new(), ..limited }).unwrap();
    assert_eq!(ceilings(), [(4, 25_000_000)]);
    host.set_fabric(&plan).unwrap();
    assert_eq!((ceilings(), host.tenants()[0].receive), (vec![], None));
}

#[test]
fn pairs_take_the_place_of_limits_in_the_shared_queue() {
    let text = format!("{TEXT}{FABRIC}rate_allocation = \"spare\"\n");
    let file = TempFile::new("fabric-pairs", &text);
    let (host, fake) = start(&file);
    assert!(host.limits_pairs());
    let up =
        || fake.snapshot().ports.iter().flatten().find(|p| p.queue.is_some()).cloned().unwrap();
    let limits = |host: &Host| {
        let tenants = host.tenants();
        let red = tenants.iter().find(|tenant| tenant.name == "red").unwrap();
        let up = up();
        let classes = up.queue.as_ref().unwrap().classes();
        (red.send, red.receive, classes.held().count(), classes.ceilings().count())
    };
    let table = up().pairs.clone().unwrap();
    let limited = || table.limited().map(|(port, ..)| port).collect::<Vec<_>>();
    let mut now = Nanos::ZERO;
    let mut period = || {
        now += PERIOD;
        host.allocate_rates(now);
    };
    period();
    assert!(limited().is_empty(), "before the first plan");
    let held = Held { send: 20_000_000, receive: 40_000_000, headroom_permille: 1_000 };
    let shared = FabricTerms { held: [("red".to_owned(), held)].into(), ..terms(&[], &[], &[]) };
    host.set_fabric(&shared).unwrap();
    assert_eq!(limits(&host), (None, None, 0, 0));
    let ids: Vec<u16> = fake
        .snapshot()
        .ports
        .iter()
        .flatten()
        .filter(|p| p.tenant == Some(0))
        .map(|p| p.id)
        .collect();
    assert!(!ids.is_empty());
    assert_eq!(limited(), ids, "before the first period of the plan ends");
    period();
    assert_eq!(host.pair_use().guaranteed, 20_000_000, "of both ports together");
    // The table stays from one snapshot to the next.
    host.reload().unwrap();
    assert!(Arc::ptr_eq(&table, up().pairs.as_ref().unwrap()));
    // A tenant with its own queue has the limits of a plan, and its pairs have none.
    let queue =
        FabricTerms { held: shared.held.clone(), ..terms(&[("red", 8)], &[1, 3], &[(8, 1)]) };
    host.set_fabric(&queue).unwrap();
    period();
    assert!(limited().is_empty());
    let (_, receive, lanes, ceilings) = limits(&host);
    assert_eq!((receive.is_some(), lanes, ceilings), (true, 0, 1));
    // A limit in the configuration takes precedence.
    host.set_fabric(&shared).unwrap();
    period();
    assert_eq!(limited(), ids);
    let own = "vlans = [100, 101]\nsend = { rate = \"90M\" }\n";
    std::fs::write(&file.0, text.replace("vlans = [100, 101]\n", own)).unwrap();
    host.reload().unwrap();
    period();
    assert!(limited().is_empty());
}

/// Lets the VM of port `vm` send more than it may for some periods, while another host answers that
/// all frames arrived. Returns the sum of the rates of all pairs.
fn rate_after(host: &Host, table: &PairTable, vm: u16, now: &mut Nanos, periods: u32) -> u64 {
    const FAR: u64 = 0x5254_0000_0099;
    for _ in 0..periods {
        *now += PERIOD;
        for _ in 0..500 {
            let sent = table.send(vm, FAR, Size { bytes: 1_250, frames: 1 }, *now);
            let Sending::Ask(slot) = sent else { continue };
            let question = table.question(slot).unwrap();
            let answer = Answer {
                number: question.number,
                epoch: question.epoch,
                sent: question.sent,
                receive_epoch: 1,
                received: question.sent,
                marked: 0,
                part: BitsPerSecond(100_000_000),
            };
            assert!(table.answered(vm, FAR, &answer));
        }
        host.allocate_rates(*now);
    }
    host.pair_use().rate
}

#[test]
fn pairs_keep_to_their_guarantees_for_some_periods_after_each_changed_plan() {
    let text = format!("{TEXT}{FABRIC}rate_allocation = \"spare\"\n");
    let file = TempFile::new("fabric-settling", &text);
    let (host, fake) = start(&file);
    let snapshot = fake.snapshot();
    let table = snapshot.ports.iter().flatten().find_map(|port| port.pairs.clone()).unwrap();
    let mut now = Nanos::ZERO;
    for headroom_permille in [1_000, 1_100] {
        let held = Held { send: 20_000_000, receive: 40_000_000, headroom_permille };
        let plan = FabricTerms { held: [("red".to_owned(), held)].into(), ..terms(&[], &[], &[]) };
        host.set_fabric(&plan).unwrap();
        // One of red's two ports sends.
        assert_eq!(rate_after(&host, &table, 0, &mut now, 10), 10_000_000);
        let rate = rate_after(&host, &table, 0, &mut now, 20);
        assert!(rate > 50_000_000, "{rate}");
        host.set_fabric(&plan).unwrap();
        let same = rate_after(&host, &table, 0, &mut now, 1);
        assert!(same >= rate, "the same plan changes nothing: {same}");
    }
}

#[test]
fn a_new_port_has_no_pairs_of_a_port_that_had_its_number() {
    let file = TempFile::new("fabric-number", &format!("{TEXT}{FABRIC}"));
    let (host, fake) = start(&file);
    let table = fake.snapshot().ports.iter().flatten().find_map(|port| port.pairs.clone()).unwrap();
    let held = Held { send: 20_000_000, receive: 40_000_000, headroom_permille: 1_000 };
    let plan = FabricTerms { held: [("red".to_owned(), held)].into(), ..terms(&[], &[], &[]) };
    host.set_fabric(&plan).unwrap();
    host.add_port(tap("t1"), false).unwrap();
    host.allocate_rates(PERIOD);
    assert_eq!(measured(&table), [0, 1, 3]);
    for vm in [0, 3] {
        table.send(vm, 0x5254_0000_0099, Size { bytes: 1_250, frames: 1 }, PERIOD);
    }
    host.del_port("t1", false).unwrap();
    host.add_port(tap("t2"), false).unwrap();
    assert_eq!(measured(&table), [0, 1], "before the next period");
    let senders: Vec<u16> = table.sending().map(|read| read.pair.key.port()).collect();
    assert_eq!(senders, [0]);
    host.allocate_rates(PERIOD + PERIOD);
    assert_eq!(measured(&table), [0, 1, 3], "the new port has the same number");
}

#[test]
fn outside_a_fabric_no_port_has_pairs() {
    let file = TempFile::new("no-fabric", TEXT);
    let (host, fake) = start(&file);
    assert!(!host.limits_pairs());
    assert!(fake.snapshot().ports.iter().flatten().all(|port| port.pairs.is_none()));
    host.allocate_rates(Nanos::ZERO);
    assert_eq!(host.pair_use(), crate::pair_control::PairUse::default());
}

/// Returns the ports of the VMs whose pairs are measured.
fn measured(table: &PairTable) -> Vec<u16> {
    table.arrivals().map(|(port, _)| port).collect()
}

#[test]
fn with_guarantees_the_tenants_limits_stay_and_pairs_have_the_receivers_parts() {
    let text = format!("{TEXT}{FABRIC}");
    let file = TempFile::new("fabric-guarantees", &text);
    let (host, fake) = start(&file);
    let uplink = fake.snapshot().ports.iter().flatten().find_map(|port| port.pairs.clone());
    let table = uplink.unwrap();
    assert_eq!(table.limits(), PairLimits::Guarantees);
    let limited = || table.limited().map(|(port, ..)| port).collect::<Vec<_>>();
    let held = Held { send: 20_000_000, receive: 40_000_000, headroom_permille: 1_000 };
    let plan = FabricTerms { held: [("red".to_owned(), held)].into(), ..terms(&[], &[], &[]) };
    let mut now = Nanos::ZERO;
    let mut period = || {
        now += PERIOD;
        host.allocate_rates(now);
    };
    host.set_fabric(&plan).unwrap();
    assert!(host.tenants()[0].receive.is_some(), "the receiver's policer stays");
    period();
    let ids = limited();
    assert_eq!(ids.len(), 2, "both ports of red");
    assert_eq!(host.pair_use().guaranteed, 20_000_000, "of both ports together");
    // One of red's ports may use what the other does not use.
    let (vm, far) = (ids[0], 0x5254_0000_0099);
    let size = Size { bytes: 1_250, frames: 1 };
    let ask = |ms| match table.send(vm, far, size, Nanos::from_millis(ms)) {
        Sending::Ask(slot) => table.question(slot).unwrap(),
        other => panic!("{other:?}"),
    };
    assert_eq!(ask(60).rate.0, 10_100_000, "half of the guarantee, and the headroom of a bucket");
    period();
    let question = ask(110);
    assert_eq!((question.rate.0, question.part.0), (10_000_000, 20_000_000));
    // The answer limits the pair, and leaves the other port alone.
    let answer = Answer {
        number: question.number,
        epoch: question.epoch,
        sent: question.sent,
        receive_epoch: 1,
        part: BitsPerSecond(5_000_000),
        ..Answer::default()
    };
    assert!(table.answered(vm, far, &answer));
    period();
    let use_now = host.pair_use();
    assert_eq!((use_now.sending, use_now.rate), (1, 5_000_000));
    // A limit in the configuration takes precedence.
    let own = "vlans = [100, 101]\nreceive = { rate = \"90M\" }\n";
    std::fs::write(&file.0, text.replace("vlans = [100, 101]\n", own)).unwrap();
    host.reload().unwrap();
    period();
    assert!(limited().is_empty());
    std::fs::write(&file.0, &text).unwrap();
    host.reload().unwrap();
    period();
    assert_eq!(limited(), ids);
    // A tenant with a queue has limits while queues change hands, and none later.
    let queue = terms(&[("red", 8)], &[1, 3], &[(8, 1)]);
    host.set_fabric(&FabricTerms { held: plan.held.clone(), ..queue.clone() }).unwrap();
    period();
    assert_eq!(limited(), ids);
    host.set_fabric(&FabricTerms { measured: plan.held, ..queue.clone() }).unwrap();
    assert!(limited().is_empty(), "without a period");
    period();
    assert_eq!((limited(), measured(&table)), (vec![], ids));
    assert_eq!(host.pair_use().guaranteed, 0, "no limit is in force");
    // Without guarantees, no pair is measured.
    host.set_fabric(&queue).unwrap();
    period();
    assert!(measured(&table).is_empty());
}

/// Sends `count` frames of the VM at port `vm` at the time `now`. Another host answers that the
/// pair may have 5 Mbit/s. Returns how many frames pass.
fn passing(table: &PairTable, vm: u16, count: u32, now: Nanos) -> u32 {
    const FAR: u64 = 0x5254_0000_0099;
    let mut passing = 0;
    for _ in 0..count {
        match table.send(vm, FAR, Size { bytes: 1_250, frames: 1 }, now) {
            Sending::Wait(_) | Sending::Refuse => continue,
            Sending::Ask(slot) => {
                let question = table.question(slot).unwrap();
                let answer = Answer {
                    number: question.number,
                    epoch: question.epoch,
                    sent: question.sent,
                    receive_epoch: 1,
                    part: BitsPerSecond(5_000_000),
                    ..Answer::default()
                };
                assert!(table.answered(vm, FAR, &answer));
            }
            Sending::Free | Sending::Pass | Sending::Signal(_) => {}
        }
        passing += 1;
    }
    passing
}

#[test]
fn who_loses_its_queue_has_its_pairs_limits_with_the_plan_and_loses_them_with_a_plan() {
    let file = TempFile::new("fabric-loses-queue", &format!("{TEXT}{FABRIC}"));
    let (host, fake) = start(&file);
    let table = fake.snapshot().ports.iter().flatten().find_map(|port| port.pairs.clone()).unwrap();
    let held = Held { send: 20_000_000, receive: 40_000_000, headroom_permille: 1_000 };
    let red = BTreeMap::from([("red".to_owned(), held)]);
    let queue = terms(&[("red", 8)], &[1, 3], &[(8, 1)]);
    let alone = FabricTerms { measured: red.clone(), ..queue.clone() };
    let mut now = Nanos::ZERO;
    let mut period = || {
        now += PERIOD;
        host.allocate_rates(now);
        now
    };
    host.set_fabric(&alone).unwrap();
    let at = period();
    assert_eq!(passing(&table, 0, 1, at), 1);
    // 2,000 frames in 50 ms are 400 Mbit/s, and all pass.
    for _ in 0..5 {
        let at = period();
        assert_eq!(passing(&table, 0, 2_000, at), 2_000);
    }
    let at = period();
    assert_eq!(host.pair_use().rate, 0, "no limit is in force");
    // The limit is in force while red still has its queue, and when it shares queue 0. The pair's
    // bucket begins with a quarter of 31,875 bytes, and frames beyond it wait in the pair's line.
    let limited = FabricTerms { held: red.clone(), ..queue };
    let shared = FabricTerms { held: red, ..terms(&[], &[], &[]) };
    for (plan, seconds) in [(&limited, 1), (&shared, 2)] {
        host.set_fabric(plan).unwrap();
        assert_eq!(lock(&fake.0).limited, 2, "both ports, before the mark changes");
        let at = at + Nanos::from_secs(seconds);
        assert_eq!(passing(&table, 0, 2_000, at), 7, "without a period");
        host.set_fabric(&alone).unwrap();
        assert_eq!(passing(&table, 0, 2_000, at), 2_000, "without a period");
    }
    // A plan that the host cannot apply changes nothing.
    lock(&fake.0).ended = true;
    host.set_fabric(&shared).unwrap_err();
    assert_eq!(passing(&table, 0, 2_000, at + Nanos::from_secs(3)), 2_000);
}

#[test]
fn who_finds_no_lane_is_policed() {
    let many: String = (0..70).map(|n| format!("[[tenant]]\nname = \"t{n:02}\"\n")).collect();
    let text = format!("{TEXT}{FABRIC}{many}");
    let file = TempFile::new("fabric-lanes", &text);
    let (host, _) = start(&file);
    let one = |n: u32| {
        let held = Held { send: 80_000_000, receive: 80_000_000, headroom_permille: 0 };
        (format!("t{n:02}"), held)
    };
    let held = (0..70).map(one).collect();
    host.set_fabric(&FabricTerms { held, ..terms(&[], &[], &[]) }).unwrap();
    let send = |tenant: crate::config::Tenant| Some(tenant.send?.rate?.0.0);
    let policed: Vec<_> = host.tenants().into_iter().filter_map(send).collect();
    assert_eq!(policed, [90_000_000; 10], "64 less four queues have lanes");
}

#[test]
fn what_cannot_be_done_changes_nothing_and_says_why() {
    let file = TempFile::new("fabric-wrong", &format!("{TEXT}{FABRIC}"));
    let (host, fake) = start(&file);
    let before = in_force(&host, &fake);
    for (wrong, why) in [
        (terms(&[("red", 64)], &[], &[]), "64 is not a DSCP"),
        (terms(&[("red", 8)], &[1, 20_000], &[]), "weight 20000 is above 10000"),
        (terms(&[("red", 8)], &[], &[(8, 64)]), "more than 64 queues"),
    ] {
        let error = host.set_fabric(&wrong).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        assert_eq!(in_force(&host, &fake), before);
    }
    let alone = TempFile::new("fabric-none", TEXT);
    let (host, _) = start(&alone);
    let error = host.set_fabric(&FabricTerms::default()).unwrap_err().to_string();
    assert!(error.contains("not in a fabric"), "{error}");
}

#[test]
fn what_a_tenant_used_only_grows_though_ports_come_and_go() {
    let file = TempFile::new("network", &format!("{TEXT}{FABRIC}"));
    let (host, fake) = start(&file);
    let sent = |port: u16, bytes: u64| fake.counters(port).net_sent_bytes.add(bytes);
    sent(0, 1_000);
    fake.counters(1).net_received_bytes.add(70);
    let red = |host: &Host| host.network_use()["red"];
    let wanted = NetworkUse { sent_bytes: 1_000, received_bytes: 70, ..NetworkUse::default() };
    assert_eq!(red(&host), wanted);
    host.add_port(tap("t1"), false).unwrap();
    let id = host.ports().iter().find(|port| port.name == "t1").unwrap().id;
    sent(u16::try_from(id).unwrap(), 500);
    host.del_port("t1", false).unwrap();
    assert_eq!(red(&host).sent_bytes, 1_500, "of a port that went before anybody looked");
    sent(0, 1);
    let changes = [("tenant", "blue"), ("vlan", "200")].map(|(k, v)| (k.into(), v.into()));
    host.del_rule("web", false).unwrap();
    host.set_port("vm1", &changes, false).unwrap();
    sent(0, 10);
    let all = host.network_use();
    assert_eq!((all["red"].sent_bytes, all["blue"].sent_bytes), (1_501, 10), "hands change");
}
