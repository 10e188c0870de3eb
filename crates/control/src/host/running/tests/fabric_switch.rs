//! Tests of the queues that a fabric's controller sets on a host that is a switch.

use std::collections::BTreeMap;

use super::*;

const SWITCH: &str = r#"
[[port]]
name = "left"
packet.interface = "eth1"
trunk = [100, 101]
egress = "wfq"
link = "10G"
wfq = { queues = 4 }

[[port]]
name = "right"
packet.interface = "eth2"
trunk = [100, 101]
egress = "wfq"
link = "10G"

[switch]
name = "leaf1"
"#;

fn told(weights: &[u32], map: &[(u8, u8)]) -> PortQueues {
    PortQueues { weights: weights.to_vec(), map: map.iter().copied().collect() }
}

fn both(left: PortQueues, right: PortQueues) -> BTreeMap<String, PortQueues> {
    [("left".to_owned(), left), ("right".to_owned(), right)].into()
}

/// For each port: its name, the weights of its queues, and pairs of a code point and its queue
/// (without the shared queue 0).
type InForce = Vec<(String, Vec<u32>, Vec<(u32, u32)>)>;

fn in_force(host: &Host) -> InForce {
    let one = |port: crate::host::SwitchPort| {
        let weights = port.queues.iter().map(|queue| queue.weight).collect();
        let own = port.queues.iter().filter(|queue| queue.queue != 0);
        let map = own.flat_map(|q| q.dscps.iter().map(|dscp| (*dscp, q.queue))).collect();
        (port.name, weights, map)
    };
    host.switch_ports().unwrap().into_iter().map(one).collect()
}

#[test]
fn what_is_told_is_in_force_at_once_and_through_reloads() {
    let text = format!("{TEXT}{SWITCH}");
    let file = TempFile::new("switch", &text);
    let (host, fake) = start(&file);
    let fresh =
        vec![("left".to_owned(), vec![1; 4], vec![]), ("right".to_owned(), vec![1; 8], vec![])];
    assert_eq!(in_force(&host), fresh);
    fake.calls();
    let plan = both(told(&[1, 30, 0], &[(8, 1)]), told(&[5], &[(8, 7), (16, 2)]));
    assert_eq!(host.set_switch(&plan).unwrap(), ["port left changed", "port right changed"]);
    assert_eq!(fake.calls(), ["swap"], "in one change");
    let now = vec![
        ("left".to_owned(), vec![1, 30, 1, 1], vec![(8, 1)]),
        ("right".to_owned(), vec![5, 1, 1, 1, 1, 1, 1, 1], vec![(16, 2), (8, 7)]),
    ];
    assert_eq!(in_force(&host), now);
    assert_eq!((file.text(), host.config_toml()), (text.clone(), text.clone()), "not written");
    assert_eq!(host.set_switch(&plan).unwrap(), Vec::<String>::new());
    assert_eq!(fake.calls(), Vec::<String>::new(), "it is so already");
    host.reload().unwrap();
    assert_eq!(in_force(&host), now);
    let error = host
        .set_port("left", &[("wfq".into(), "{ weights = [9] }".into())], false)
        .unwrap_err()
        .to_string();
    assert!(error.contains("with [switch], the controller sets `weights`"), "{error}");
    // The next settings replace the previous settings completely.
    let next: BTreeMap<_, _> = [("left".to_owned(), told(&[], &[(8, 1)]))].into();
    host.set_switch(&next).unwrap();
    assert_eq!(in_force(&host)[0].2, [(8, 1)]);
    assert_eq!(in_force(&host)[1], fresh[1]);
}

#[test]
fn after_a_restart_the_queues_are_in_force_before_the_ports_attach() {
    let file = TempFile::new("switch-again", &format!("{TEXT}{SWITCH}"));
    let config = config::parse(&file.text(), "").unwrap();
    let mut plan = both(told(&[1, 30], &[(8, 1)]), told(&[10_001], &[]));
    plan.insert("gone".to_owned(), told(&[2], &[]));
    let fake = Fake::default();
    let (switch, overlay) = (Box::new(fake.clone()), Overlay::of_switch(&plan));
    let before = (Machine::default(), overlay);
    let path = Some(file.0.clone());
    let host = Host::start_with(config, path, before, |_| Ok(switch)).unwrap();
    let calls = fake.calls();
    assert_eq!(calls.iter().filter(|call| *call == "swap").count(), 1, "{calls:?}");
    let now = vec![
        ("left".to_owned(), vec![1, 30, 1, 1], vec![(8, 1)]),
        ("right".to_owned(), vec![1; 8], vec![]),
    ];
    assert_eq!(in_force(&host), now, "queues with a mistake are left out");
    // The switch restores the same decision later, which changes nothing.
    let again: BTreeMap<_, _> = [("left".to_owned(), told(&[1, 30], &[(8, 1)]))].into();
    assert_eq!(host.set_switch(&again).unwrap(), Vec::<String>::new());
}

#[test]
fn what_cannot_be_done_changes_nothing_and_says_why() {
    let file = TempFile::new("switch-wrong", &format!("{TEXT}{SWITCH}"));
    let (host, _) = start(&file);
    let before = in_force(&host);
    let wrong = |name: &str, queues| {
        let error = host.set_switch(&[(name.to_owned(), queues)].into()).unwrap_err();
        assert_eq!(in_force(&host), before);
        error.to_string()
    };
    assert!(wrong("vm1", told(&[], &[])).contains("may not set the queues of port \"vm1\""));
    assert!(wrong("none", told(&[], &[])).contains("may not set the queues of port \"none\""));
    assert!(wrong("left", told(&[10_001], &[])).contains("weight 10001 is above 10000"));
    assert!(wrong("left", told(&[], &[(64, 1)])).contains("64 is not a DSCP"));
    assert!(wrong("left", told(&[], &[(8, 64)])).contains("more than 64 queues"));
    let alone = TempFile::new("switch-none", TEXT);
    let (host, _) = start(&alone);
    assert_eq!(host.switch_ports().unwrap(), []);
    let error = host.set_switch(&BTreeMap::new()).unwrap_err().to_string();
    assert!(error.contains("not a switch of a fabric"), "{error}");
}
