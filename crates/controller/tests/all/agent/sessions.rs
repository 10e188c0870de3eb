//! Tests regular sessions, and controllers that start, stop and change leadership.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use penstock_controller::Stamp;
use penstock_controller::agent::Carried;
use penstock_controller::agents::Leading;
use penstock_controller::hosts::{HostError, Hosts};
use penstock_controller::wire::v1::controller_message::Message as ToAgent;
use penstock_controller::wire::v1::{Elsewhere, Hello};

use crate::agent::bed::{Bed, FakeSide, Running, leads, plan};
use crate::agent::hostile::Raw;

fn stamp(epoch: u64, generation: u64) -> Stamp {
    Stamp { epoch, generation }
}

#[tokio::test]
async fn a_host_reports_does_what_it_is_told_and_refuses_what_is_older() {
    let bed = Bed::new();
    let controller = bed.controller(None, leads()).await;
    let side = Arc::new(FakeSide::default());
    side.counters.lock().unwrap().insert("a".into(), Carried { sent: 1 << 40, received: 5 });
    let settings = bed.settings("server-0", &bed.authority, "server-0");
    let mut agent = Running::start(settings, &[controller.endpoint()], &side);
    controller.counts("reports", |counts| counts.reports >= 3).await;
    let usage = controller.registry.take_usage();
    let used = &usage["server-0"][0];
    assert_eq!(used.tenant, "a");
    assert!(used.sent.0 > 0 && used.sent.0 < 10_000_000_000, "not all since the start: {used:?}");
    assert_eq!(used.received.0, 0);

    let tell = |epoch, generation, dscp| {
        let registry = Arc::clone(&controller.registry);
        async move { registry.tell("server-0", plan(epoch, generation, dscp)).await }
    };
    assert_eq!(tell(1, 1, 7).await, Ok(()));
    assert_eq!(tell(1, 2, 8).await, Ok(()));
    assert_eq!(tell(1, 2, 9).await, Ok(()), "what is taken back has the same stamp");
    let fenced = tell(1, 1, 7).await;
    let (has, told) = (stamp(1, 2), stamp(1, 1));
    assert_eq!(fenced, Err(HostError::Fenced { host: "server-0".into(), has, told }));
    *side.fails.lock().unwrap() = Some("port uplink is gone; plug it in".to_owned());
    let problem = "port uplink is gone; plug it in".to_owned();
    assert_eq!(tell(1, 3, 8).await, Err(HostError::Failed { host: "server-0".into(), problem }));
    let dscps: Vec<u8> = side.plans.lock().unwrap().iter().map(|p| p.tenants[0].dscp).collect();
    assert_eq!(dscps, [7, 8, 9], "in order");
    let state = agent.until("all is counted", |state| state.counts.failed == 1).await;
    assert_eq!((state.counts.applied, state.counts.refused), (3, 1));
    assert_eq!((state.told, state.applied), (stamp(1, 3), None));
    assert!(state.connected.is_some() && state.stale_since.is_none(), "{state:?}");
    agent.end().await;
    controller.counts("the session is over", |counts| counts.ended == 1).await;
    controller.end().await;
}

#[tokio::test]
async fn without_a_controller_a_host_stays_as_it_is_and_says_so() {
    let bed = Bed::new();
    let controller = bed.controller(None, leads()).await;
    let (address, endpoint) = (controller.address, controller.endpoint());
    let side = Arc::new(FakeSide::default());
    let settings = bed.settings("server-0", &bed.authority, "server-0");
    let mut agent = Running::start(settings, &[endpoint], &side);
    agent.until("connected", |state| state.connected.is_some()).await;
    controller.registry.tell("server-0", plan(1, 1, 7)).await.unwrap();
    controller.end().await;
    let state = agent.until("stale", |state| state.stale_since.is_some()).await;
    assert_eq!(state.connected, None);
    assert_eq!(state.applied, Some(stamp(1, 1)), "nothing is dropped");
    agent.until("it asks on", |state| state.counts.problems >= 3).await;

    let controller = bed.controller(Some(address), leads()).await;
    agent.until("back", |state| state.connected.is_some() && state.counts.sessions == 2).await;
    controller.counts("reports of the new session", |counts| counts.reports > 1).await;
    let state = agent.until("heard again", |state| state.stale_since.is_none()).await;
    assert_eq!(state.applied, Some(stamp(1, 1)));
    assert_eq!(controller.registry.has("server-0"), Some(stamp(1, 1)), "hello says what it has");
    assert_eq!(side.stamps(), [stamp(1, 1)], "and it was not told anew to do what it does");
    agent.end().await;
    controller.end().await;
}

#[tokio::test]
async fn a_host_goes_where_the_leader_is() {
    let bed = Bed::new();
    let second = bed.controller(None, leads()).await;
    let first = bed.controller(None, Leading::Elsewhere(second.endpoint())).await;
    let side = Arc::new(FakeSide::default());
    let settings = bed.settings("server-0", &bed.authority, "server-0");
    // The agent knows only the first controller.
    let mut agent = Running::start(settings, &[first.endpoint()], &side);
    let at = |controller: String| move |state: &_| connected_to(state, &controller);
    agent.until("at the second", at(second.endpoint())).await;
    second.counts("a session", |counts| counts.reports > 0).await;
    assert_eq!(first.registry.counts().sessions, 0);

    first.leading.send_replace(Leading::Here(stamp(2, 0)));
    second.leading.send_replace(Leading::Elsewhere(first.endpoint()));
    agent.until("at the first", at(first.endpoint())).await;
    second.counts("it is gone", |counts| counts.ended == 1).await;
    first.registry.tell("server-0", plan(2, 1, 7)).await.unwrap();

    // During an election, both controllers redirect to each other, then to no controller. Then the
    // second controller leads.
    first.leading.send_replace(Leading::Elsewhere(second.endpoint()));
    agent.until("sent in a circle", |state| problem(state, "does not lead and reports")).await;
    first.leading.send_replace(Leading::Elsewhere(String::new()));
    agent.until("nobody is known", |state| problem(state, "knows no leader")).await;
    // The agent refuses a controller of an earlier term.
    second.leading.send_replace(Leading::Here(stamp(1, 9)));
    first.leading.send_replace(Leading::Elsewhere(second.endpoint()));
    agent.until("the old one", |state| problem(state, "later than this controller's")).await;
    second.leading.send_replace(Leading::Here(stamp(3, 0)));
    agent.until("at the second again", at(second.endpoint())).await;
    agent.end().await;
    first.end().await;
    second.end().await;
}

#[tokio::test]
async fn a_host_that_waits_for_a_leader_is_served_when_the_controller_leads() {
    let bed = Bed::new();
    let (dead, wait_millis) = ("localhost:1".to_owned(), 3_600_000);
    let controller = bed.controller(None, Leading::Elsewhere(dead.clone())).await;
    let hello = |unreachable: &str| {
        let (host, unreachable) = ("server-0".to_owned(), unreachable.to_owned());
        Hello { host, wait_millis, unreachable, ..Hello::default() }
    };
    // The host may be able to call this leader.
    let mut session = Raw::call(&bed, &controller, hello("")).await;
    let told = session.from.message().await.unwrap().unwrap().message;
    assert_eq!(told, Some(ToAgent::Elsewhere(Elsewhere { leader: dead.clone() })));
    let mut session = Raw::call(&bed, &controller, hello(&dead)).await;
    assert_eq!(controller.registry.counts().sessions, 0);
    controller.leading.send_replace(leads());
    let told = session.from.message().await.unwrap().unwrap().message;
    assert!(matches!(told, Some(ToAgent::Welcome(_))), "{told:?}");
    assert_eq!(controller.registry.counts().sessions, 1);
    drop(session);
    controller.counts("the session is over", |counts| counts.ended == 1).await;
    controller.end().await;
}

fn connected_to(state: &penstock_controller::agent::AgentState, controller: &str) -> bool {
    state.connected.as_deref() == Some(controller)
}

fn problem(state: &penstock_controller::agent::AgentState, text: &str) -> bool {
    state.last_error.as_ref().is_some_and(|error| error.contains(text))
}

#[tokio::test]
async fn a_host_that_starts_anew_does_what_it_was_told_before() {
    let bed = Bed::new();
    let controller = bed.controller(None, leads()).await;
    let endpoint = controller.endpoint();
    let settings = bed.settings("server-0", &bed.authority, "server-0");
    let side = Arc::new(FakeSide::default());
    let mut agent = Running::start(settings.clone(), std::slice::from_ref(&endpoint), &side);
    agent.until("connected", |state| state.connected.is_some()).await;
    controller.registry.tell("server-0", plan(1, 4, 7)).await.unwrap();
    agent.end().await;
    controller.end().await;

    // The switch is not ready at first.
    let side = Arc::new(FakeSide::default());
    *side.fails.lock().unwrap() = Some("not yet".to_owned());
    let mut agent = Running::start(settings.clone(), std::slice::from_ref(&endpoint), &side);
    agent.until("tried", |state| state.counts.problems >= 2).await;
    *side.fails.lock().unwrap() = None;
    let state = agent.until("done", |state| state.counts.resumed == 1).await;
    assert_eq!((state.told, state.applied), (stamp(1, 4), Some(stamp(1, 4))));
    assert_eq!(*side.plans.lock().unwrap(), [plan(1, 4, 7)]);
    agent.until("stale", |state| state.stale_since.is_some()).await;
    agent.end().await;

    let file = &settings.plan_file;
    let text = fs::read_to_string(file).unwrap();
    fs::write(file, text.replace("\"dscp\":7", "\"dscp\":6")).unwrap();
    let side = Arc::new(FakeSide::default());
    let mut agent = Running::start(settings.clone(), &[endpoint], &side);
    let state = agent.until("told", |state| state.counts.problems >= 1).await;
    let error = state.last_error.unwrap();
    assert!(error.contains("damaged") && error.contains("server-0.plan"), "{error}");
    assert_eq!(state.told, Stamp::default());
    agent.end().await;
    assert_eq!(*side.plans.lock().unwrap(), []);
    assert_eq!(*side.counters.lock().unwrap(), BTreeMap::new());
}
