//! Tests the gNMI driver over TLS with a test double, which is a target with a tree in memory.

#[allow(dead_code, reason = "shared with other tests")]
#[path = "../../../tests/all/common/gnmi_target.rs"]
mod target;

mod published;

use super::*;
use crate::southbound::{PortState, diff};
use target::{Fault, Target};

fn stamp(generation: u64) -> Stamp {
    Stamp { epoch: 3, generation }
}

fn changes() -> Vec<Change> {
    let map = |port: &str| Change::Map { port: port.into(), dscp: 8, queue: 1 };
    let weights = vec![1, 3];
    vec![map("Ethernet1/1"), map("eth2"), Change::Weigh { port: "eth2".into(), weights }]
}

#[tokio::test]
async fn changes_are_read_back_and_are_idempotent() {
    let target = Target::start().await;
    let fresh = target.switch().read_back().await.expect("readable");
    assert_eq!((fresh.stamp, fresh.ports.len()), (Stamp::default(), 2));
    let words = target.switch().words(&changes()).await.expect("a dry run");
    let term = "update /qos/classifiers/classifier[name=pen-v6]/terms/term[id=q1] ";
    assert!(words.iter().any(|word| word.starts_with(term)), "{words:#?}");
    assert_eq!(target.sets(), 0, "nothing was done");

    target.switch().apply(stamp(1), &changes()).await.expect("told");
    let is = target.switch().read_back().await.expect("readable");
    let state = |weights: &[u32]| PortState { weights: weights.into(), map: [(8, 1)].into() };
    assert_eq!(is.stamp, stamp(1));
    assert_eq!((&is.ports["eth2"], &is.ports["Ethernet1/1"]), (&state(&[1, 3]), &state(&[])));
    target.switch().apply(stamp(1), &changes()).await.expect("again");
    assert_eq!(target.sets(), 1, "there was nothing to set");

    let mut wanted = is.clone();
    for port in wanted.ports.values_mut() {
        port.map = [(16, 2)].into();
        port.weights = vec![0, 5];
    }
    target.switch().apply(stamp(2), &diff(&is, &wanted)).await.expect("told");
    let is = target.switch().read_back().await.expect("readable");
    assert_eq!((is.ports, is.stamp), (wanted.ports, stamp(2)));
    let late = target.switch().apply(stamp(1), &[]).await;
    assert!(matches!(late, Err(DriverError::Fenced { .. })), "{late:?}");
}

#[tokio::test]
async fn a_controller_between_get_and_set_prevails() {
    let target = Target::start().await;
    target.set_fault(Fault::Overtake(stamp(9)));
    let late = target.switch().apply(stamp(1), &changes()).await;
    let fenced = DriverError::Fenced { switch: "leaf1".into(), has: stamp(9), told: stamp(1) };
    assert_eq!(late, Err(fenced));
    assert!(target.switch().read_back().await.expect("readable").ports["eth2"].map.is_empty());
}

#[tokio::test]
async fn one_map_for_all_ports() {
    let target = Target::start().await;
    let error = target.switch().apply(stamp(1), &changes()[..1]).await.expect_err("two maps");
    assert!(error.to_string().contains("one map for all ports"), "{error}");
}

#[tokio::test]
async fn a_refusal_changes_nothing_and_is_told() {
    let target = Target::start().await;
    target.set_fault(Fault::Refuse);
    let error = target.switch().apply(stamp(1), &changes()).await.expect_err("refused");
    assert!(matches!(error, DriverError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("no such feature"), "{error}");
    assert_eq!(target.switch().read_back().await.expect("readable").stamp, Stamp::default());
}

#[tokio::test]
async fn other_configurations_are_left_alone() {
    let target = Target::start().await;
    target.put("/qos/classifiers/classifier[name=theirs]/config/name", "theirs");
    target.put("/qos/queues/queue[name=NC1]/config/name", "NC1");
    let other = "/qos/interfaces/interface[interface-id=eth9]/input/classifiers\
                 /classifier[type=IPV4]/config/name";
    target.put(other, "theirs");
    let before = target.leaves();
    target.switch().apply(stamp(1), &changes()).await.expect("told");
    let after = target.leaves();
    assert!(before.iter().all(|(path, text)| after.get(path) == Some(text)));

    // The driver leaves out a port that gets another configuration, but not the other ports.
    target.put(&other.replace("eth9", "eth2"), "theirs");
    let is = target.switch().read_back().await.expect("readable");
    let why = &is.left_out["eth2"];
    assert!(why.contains("interface-id=eth2") && why.contains("was not set by Penstock"), "{why}");
    let weigh = |port: &str| Change::Weigh { port: port.into(), weights: vec![4, 5] };
    let error = target.switch().apply(stamp(2), &[weigh("eth2")]).await.expect_err("theirs");
    assert!(error.to_string().contains("was not set by Penstock"), "{error}");
    target.switch().apply(stamp(2), &[weigh("Ethernet1/1")]).await.expect("told");
    let is = target.switch().read_back().await.expect("readable");
    assert_eq!((&*is.ports["Ethernet1/1"].weights, is.ports.len()), (&[4, 5][..], 1));
}

#[tokio::test]
async fn a_port_that_is_bound_by_an_entry_of_another_name_is_left_out() {
    let target = Target::start().await;
    let entry = "/qos/interfaces/interface[interface-id=uplink]";
    target.put(&format!("{entry}/interface-ref/config/interface"), "eth2");
    let is = target.switch().read_back().await.expect("readable");
    assert_eq!(is.ports.len(), 2, "nothing is bound to it");
    target.put(&format!("{entry}/output/scheduler-policy/config/name"), "theirs");
    let is = target.switch().read_back().await.expect("readable");
    let why = &is.left_out["eth2"];
    assert!(why.contains("interface-id=uplink") && why.contains("the value theirs"), "{why}");
    let weigh = Change::Weigh { port: "Ethernet1/1".into(), weights: vec![4, 5] };
    target.switch().apply(stamp(1), &[weigh]).await.expect("the other port");
    let is = target.switch().read_back().await.expect("readable");
    assert_eq!(is.ports["Ethernet1/1"].weights, [4, 5]);
}

#[tokio::test]
async fn targets_that_refuse_what_is_optional_are_told_without_it() {
    for fault in [Fault::OnlyAll, Fault::NotFound, Fault::NoRole, Fault::Scalars] {
        let target = Target::start().await;
        target.set_fault(fault);
        let switch = target.switch();
        assert_eq!(switch.read_back().await.expect("an empty tree").ports.len(), 2);
        switch.apply(stamp(1), &changes()).await.expect("told");
        // A Get of ALL also returns state leaves.
        let term = "/qos/classifiers/classifier[name=pen-v4]/terms/term[id=9]";
        target.put(&format!("{term}/state/id"), "9");
        let is = switch.read_back().await.expect("readable");
        assert_eq!((is.stamp, &is.ports["eth2"].map), (stamp(1), &[(8, 1)].into()));
        switch.apply(stamp(2), &changes()).await.expect("told again");
        assert_eq!(switch.counters().await.expect("counted").len(), 16);
        assert_eq!(target.sets(), 2);
    }
}

/// Returns the code points of all terms of a classifier, with the group of the term.
fn terms(leaves: &Leaves, classifier: &str, family: &str) -> Vec<(u8, String)> {
    let list = format!("/qos/classifiers/classifier[name={classifier}]/terms/term[id=");
    let of_term = |id: &str| {
        let set = &leaves[&format!("{list}{id}]/conditions/{family}/config/dscp-set")];
        let group = leaves[&format!("{list}{id}]/actions/config/target-group")].clone();
        let numbers = set.split(' ').map(|text| text.parse::<u8>().expect("a code point"));
        numbers.map(move |dscp| (dscp, group.clone())).collect::<Vec<_>>()
    };
    let mut all: Vec<_> = leaves::entries(leaves, &list).into_iter().flat_map(of_term).collect();
    all.sort();
    all
}

#[tokio::test]
async fn each_code_point_has_exactly_one_term() {
    let target = Target::start().await;
    // A classifier of an earlier release has a term for each mapped code point and a term for all
    // frames.
    let old = "/qos/classifiers/classifier[name=pen-v4]/terms/term";
    for (id, group) in [("8", "pen-q1"), ("rest", "pen-q0")] {
        target.put(&format!("{old}[id={id}]/config/id"), id);
        target.put(&format!("{old}[id={id}]/actions/config/target-group"), group);
    }
    target.put(&format!("{old}[id=8]/conditions/ipv4/config/dscp"), "8");
    let mut wanted = SwitchState::default();
    for map in [vec![(8, 1), (63, 2)], vec![(9, 1), (10, 1), (8, 7)], vec![]] {
        let port = PortState { weights: vec![1], map: map.iter().copied().collect() };
        wanted.ports = ["Ethernet1/1", "eth2"].map(|name| (name.to_owned(), port.clone())).into();
        let is = target.switch().read_back().await.expect("readable");
        target.switch().apply(stamp(1), &diff(&is, &wanted)).await.expect("told");
        let queue = |dscp: u8| port.map.get(&dscp).copied().unwrap_or(0);
        let each: Vec<_> = (0..64).map(|dscp| (dscp, format!("pen-q{}", queue(dscp)))).collect();
        let leaves = target.leaves();
        assert_eq!(terms(&leaves, "pen-v4", "ipv4"), each);
        assert_eq!(terms(&leaves, "pen-v6", "ipv6"), each);
    }
}

#[tokio::test]
async fn a_classifier_without_a_term_for_each_code_point_is_written_again() {
    let target = Target::start().await;
    target.switch().apply(stamp(1), &changes()).await.expect("told");
    let wanted = target.switch().read_back().await.expect("readable");
    let conditions = "/qos/classifiers/classifier[name=pen-v6]/terms/term[id=q0]/conditions";
    for (leaf, text) in [("dscp-set", "1 2 3"), ("dscp", "4")] {
        target.put(&format!("{conditions}/ipv6/config/{leaf}"), text);
        let is = target.switch().read_back().await.expect("readable");
        assert!(is.ports["eth2"].map.is_empty(), "the map is not what the controller wants");
        target.switch().apply(stamp(1), &diff(&is, &wanted)).await.expect("told");
        assert_eq!(target.switch().read_back().await.expect("readable"), wanted);
    }
}

#[tokio::test]
async fn a_first_set_that_takes_longer_than_its_caller_waits_is_done_all_the_same() {
    let target = Target::start().await;
    let end = std::sync::Arc::new(tokio::sync::Notify::new());
    target.set_fault(Fault::SlowSet(end.clone()));
    let (switch, changes) = (target.switch(), changes());
    assert_eq!(switch.patience(), None);
    let patience = async {
        target.setting().await;
        switch.patience()
    };
    let patience = tokio::select! {
        biased;
        _ = switch.apply(stamp(1), &changes) => panic!("it does not end"),
        patience = patience => patience.expect("the Set may take longer"),
    };
    assert!(patience <= target.settings().set_wait);
    assert_eq!(switch.patience(), None, "nobody waits for the Set any more");
    end.notify_one();
    switch.apply(stamp(1), &changes).await.expect("waits for the end, and has nothing to set");
    assert_eq!((target.asked(), target.sets()), (1, 1));
    assert_eq!(switch.read_back().await.expect("readable").stamp, stamp(1));
    assert_eq!(switch.patience(), None);
}

/// Returns a target that has a first decision, and the state after the next decision.
async fn told_once() -> (Target, SwitchState) {
    let target = Target::start().await;
    target.switch().apply(stamp(1), &changes()).await.expect("told");
    let mut wanted = target.switch().read_back().await.expect("readable");
    for port in wanted.ports.values_mut() {
        *port = PortState { weights: vec![2, 0, 9], map: [(8, 2), (16, 1)].into() };
    }
    wanted.stamp = stamp(2);
    (target, wanted)
}

#[tokio::test]
async fn a_change_is_done_when_the_target_reports_it_as_its_state() {
    let (target, wanted) = told_once().await;
    target.set_fault(Fault::Behind(3));
    let is = target.switch().read_back().await.expect("readable");
    assert_eq!(is.ports["eth2"].weights, [1, 3]);
    target.switch().apply(stamp(2), &diff(&is, &wanted)).await.expect("waits for the target");
    assert_eq!(target.switch().read_back().await.expect("readable"), wanted);
}

#[tokio::test]
async fn a_target_that_creates_its_state_late_is_not_taken_as_one_without_state() {
    let target = Target::start().await;
    // The first Get after the Set shows configuration without any state.
    target.set_fault(Fault::Behind(1));
    let switch = target.switch();
    switch.apply(stamp(1), &changes()).await.expect("waits for the state");
    assert!(target.has_state(), "the driver did not wait");
    assert_eq!(switch.read_back().await.expect("readable").ports["eth2"].weights, [1, 3]);
}

#[tokio::test]
async fn a_target_that_restarts_has_another_run_if_it_tells_its_boot_time() {
    let (target, path) = (Target::start().await, "/system/state/boot-time");
    let switch = target.switch();
    assert_eq!(switch.run_id().await, Ok(None), "it has no such leaf yet");
    target.put(path, "1700000000000000000");
    let first = switch.run_id().await.expect("readable");
    assert!(first.is_some());
    assert_eq!(switch.run_id().await.expect("readable"), first);
    target.put(path, "1700000000000000001");
    assert_ne!(switch.run_id().await.expect("readable"), first);
}

#[tokio::test]
async fn a_target_that_refused_its_boot_time_is_asked_again_after_a_pause() {
    let target = Target::start().await;
    target.set_fault(Fault::NoSystem);
    let switch = target.switch();
    assert_eq!(switch.run_id().await, Ok(None), "it does not have the model");
    // An upgrade adds the model.
    target.put(BOOT_TIME, "1700000000000000000");
    target.set_fault(Fault::OnlyAll);
    for _ in 0..BOOT_TIME_PAUSE {
        assert_eq!(switch.run_id().await, Ok(None), "it is not asked yet");
    }
    for _ in 0..2 {
        assert!(switch.run_id().await.expect("readable").is_some());
    }
}

#[tokio::test]
async fn a_target_that_does_not_apply_what_it_accepts_is_told() {
    let (target, wanted) = told_once().await;
    target.set_fault(Fault::Behind(u32::MAX));
    let is = target.switch().read_back().await.expect("readable");
    let error = target.switch().apply(stamp(2), &diff(&is, &wanted)).await.expect_err("no change");
    assert!(matches!(error, DriverError::Refused { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("the target accepted the Set, but does not report /qos/"), "{text}");
    assert!(text.contains("and 3 more") && text.len() < 600, "{text}");
    let is = target.switch().read_back().await.expect("readable");
    assert_ne!(is.ports["eth2"], wanted.ports["eth2"], "the configuration is not the state");
}

#[tokio::test]
async fn queues_are_counted() {
    let target = Target::start().await;
    let queue = "/qos/interfaces/interface[interface-id=eth2]/output/queues/queue[name=pen-q1]";
    for (leaf, count) in [("transmit-pkts", "7"), ("transmit-octets", "700"), ("dropped-pkts", "3")]
    {
        target.put(&format!("{queue}/state/{leaf}"), count);
    }
    let all = target.switch().counters().await.expect("counted");
    assert_eq!(all.len(), 16);
    let one = all.iter().find(|c| c.port == "eth2" && c.queue == 1).expect("there");
    assert_eq!((one.packets, one.bytes, one.dropped), (7, 700, 3));
    // For the other port, this target has no data.
    target.set_fault(Fault::NotFound);
    let some = target.switch().counters().await.expect("counted");
    assert_eq!(some, all);
    target.put(&format!("{queue}/state/dropped-pkts"), "many");
    let error = target.switch().counters().await.expect_err("rubbish").to_string();
    assert!(error.starts_with("switch leaf1: ") && error.contains("many"), "{error}");
}

#[tokio::test]
async fn a_wrong_password_and_a_wrong_authority_are_told() {
    let target = Target::start().await;
    let with = |change: fn(&mut Settings)| {
        let mut settings = target.settings();
        change(&mut settings);
        GnmiSwitch::new("leaf1", &[], settings)
    };
    let wrong = with(|s| s.login = Some(("admin".into(), "wrong".into()))).expect("possible");
    let error = wrong.read_back().await.expect_err("refused");
    assert!(matches!(error, DriverError::Unreachable { .. }), "{error}");
    assert!(!format!("{wrong:?}").contains("wrong"), "{wrong:?}");
    let stranger = with(|s| s.tls.as_mut().expect("set").authority = target::stranger());
    let error = stranger.expect("possible").read_back().await.expect_err("not trusted");
    assert!(matches!(error, DriverError::Unreachable { .. }), "{error}");
    assert!(with(|s| s.tls = None).is_err(), "a password in the clear");
    assert!(with(|s| s.address = "no address".into()).is_err());
    assert!(with(|s| s.queues = 1).is_err());
}

#[tokio::test]
async fn new_certificates_and_passwords_need_no_new_driver() {
    let target = Target::start().await;
    let settings = target.settings();
    let good: Result<Credentials, String> = Ok((settings.tls.clone(), settings.login.clone()));
    let login = |password: &str| Some(("admin".to_owned(), password.to_owned()));
    let files = Arc::new(std::sync::Mutex::new(good.clone()));
    let source = {
        let files = Arc::clone(&files);
        move || files.lock().expect("no panic").clone()
    };
    let old = Settings { login: login("old"), ..settings.clone() };
    let switch = GnmiSwitch::new("leaf1", &[], old).expect("possible");
    switch.read_back().await.expect_err("an old password");
    let switch = switch.with_source(Arc::new(source));
    switch.read_back().await.expect("the password of the file");

    let tls = |authority: &str| Tls { authority: authority.to_owned(), name: None, identity: None };
    let damaged = [
        Err("file password: not found".to_owned()),
        Ok((Some(tls("-----BEGIN CERT")), login("secret"))),
        Ok((settings.tls.clone(), login("se\u{7}cret"))),
    ];
    for damaged in damaged {
        *files.lock().expect("no panic") = damaged;
        switch.read_back().await.expect("the former credentials");
    }
    *files.lock().expect("no panic") = Ok((Some(tls(&target::stranger())), login("secret")));
    switch.read_back().await.expect_err("an authority that is valid, but not the target's");
    *files.lock().expect("no panic") = good;
    switch.read_back().await.expect("the first files again");
}

#[tokio::test]
async fn rubbish_is_told_with_the_switchs_name_within_bounds() {
    let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
    let term = br#"{"classifiers":{"classifier":[{"name":"pen-v4","terms":{"term":[
        {"id":"8","config":{"id":"8"}}]}}]}}"#;
    for answer in [
        b"not json".to_vec(),
        deep,
        br#"{"queues":{"queue":[{"no":"key"}]}}"#.to_vec(),
        term.to_vec(),
        vec![b' '; ANSWER_MAX + 1],
    ] {
        let target = Target::start().await;
        let shown = String::from_utf8_lossy(&answer[..answer.len().min(30)]).into_owned();
        target.set_fault(Fault::Answer(answer));
        let error = target.switch().read_back().await.expect_err(&shown);
        let text = error.to_string();
        assert!(text.starts_with("switch leaf1: "), "{shown}: {text}");
        assert!(matches!(error, DriverError::Rubbish { .. }), "{shown}: {text}");
    }
    let target = Target::start().await;
    target.set_fault(Fault::Hang);
    let error = target.switch().read_back().await.expect_err("no answer");
    assert!(matches!(error, DriverError::Unreachable { .. }), "{error}");
}
