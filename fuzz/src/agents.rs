//! The input is a list of messages from an agent to the controller's service, or a list of plans
//! from a controller to an agent.
//!
//! **Rule.** Messages of one host's session change no session, stamp or usage of another host. The
//! controller refuses an answer to a plan that it did not send. After a session ends, the registry
//! has no entry of the session. An agent either applies, stores and confirms a whole plan, or
//! refuses the plan. A refused plan changes neither the switch nor the stored file.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use penstock_controller::Stamp;
use penstock_controller::agent::{Agent, AgentSettings, Carried, HostSide, SideError};
use penstock_controller::agents::{AgentServer, Identity, Known, Leading, Registry};
use penstock_controller::hosts::HostPlan;
use penstock_controller::listen::Peer;
use penstock_controller::wire::v1::agent_message::Message as FromAgent;
use penstock_controller::wire::v1::agent_service_server::AgentService as _;
use penstock_controller::wire::v1::controller_message::Message as ToAgent;
use penstock_controller::wire::v1::{AgentMessage, ControllerMessage, Report, TenantUsage};
use penstock_controller::wire::{AGENT_BYTES_MAX, TENANTS_MAX};
use prost::Message as _;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_stream::StreamExt as _;
use tonic::codec::Codec as _;
use tonic::{Request, Streaming};

use crate::input::Input;

const MESSAGES_MAX: usize = 12;
/// Stamp of the controller's latest decision.
const OURS: Stamp = Stamp { epoch: 5, generation: 3 };
/// Name of the host that sends the messages of the input.
const HOST: &str = "server-0";
const OTHER: &str = "server-1";

/// Runs a future to completion on a runtime of the present thread.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime")
    });
    runtime.block_on(work)
}

/// Creates a directory that no other process uses, in memory if the machine has `/dev/shm`.
pub(crate) fn directory(name: &str) -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    let base = if memory.is_dir() { memory } else { std::env::temp_dir() };
    let path = base.join(format!("penstock-fuzz-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).expect("a directory");
    path
}

#[derive(Debug)]
struct Two;

impl Known for Two {
    fn is_host(&self, name: &str) -> bool {
        [HOST, OTHER].contains(&name)
    }

    fn count(&self) -> usize {
        2
    }
}

/// Runs the target on one input.
///
/// # Panics
/// Panics if a property of the target does not hold.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let to_agent = input.bool();
    let messages = messages(&mut input);
    if to_agent {
        block_on(plans(&messages));
    } else {
        block_on(session(&messages));
    }
}

/// Splits the input into messages; a length of two bytes precedes each message.
fn messages(input: &mut Input<'_>) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    while !input.is_empty() && messages.len() < MESSAGES_MAX {
        let length = usize::from(input.u16() % 1024);
        messages.push(input.slice(length).to_vec());
    }
    messages
}

/// Connects another host, which sends one report, and returns the session's number.
fn other(registry: &Registry) -> u64 {
    let (number, _) = registry.begin(OTHER, OURS).expect("a host");
    let tenants =
        vec![TenantUsage { name: "t".to_owned(), sent_bytes: 1_000, received_bytes: 2_000 }];
    let report = Report { number: 1, millis: 1_000, tenants };
    registry.report(OTHER, number, report).expect("a right report");
    number
}

async fn session(messages: &[Vec<u8>]) {
    let registry = Arc::new(Registry::new(Box::new(Two)));
    other(&registry);
    let (_leads, leading) = watch::channel(Leading::Here(OURS));
    let server = AgentServer::new(Arc::clone(&registry), leading, Identity::Certificate, 1_000);
    let mut frames = Vec::new();
    for message in messages {
        frames.push(0);
        frames.extend(u32::try_from(message.len()).unwrap_or(0).to_be_bytes());
        frames.extend(message);
    }
    let decoder = tonic_prost::ProstCodec::<AgentMessage, AgentMessage>::default().decoder();
    let body = axum::body::Body::from(frames);
    let from = Streaming::new_request(decoder, body, None, Some(AGENT_BYTES_MAX));
    let mut request = Request::new(from);
    let names = Some(Arc::new(BTreeSet::from([HOST.to_owned()])));
    request.extensions_mut().insert(Peer { names, crowded: None });
    let mut ended = None;
    let answered = server.session(request).await;
    let is_welcome = answered.is_ok();
    match answered {
        Ok(answer) => {
            let mut out = answer.into_inner();
            while let Some(message) = out.next().await {
                ended = message.err().or(ended);
            }
        }
        Err(status) => ended = Some(status),
    }
    if let Some(status) = &ended {
        assert!(!status.message().is_empty(), "session ended with an empty reason: {status:?}");
    }
    let hello = messages.first().and_then(|first| AgentMessage::decode(&first[..]).ok());
    let hello = match hello.and_then(|first| first.message) {
        Some(FromAgent::Hello(hello)) => Some(hello),
        _ => None,
    };
    let has = hello.as_ref().and_then(|hello| hello.has).map_or(0, |has| has.epoch);
    let right = hello.is_some_and(|hello| hello.host == HOST);
    assert_eq!(is_welcome, right && has <= OURS.epoch, "hosts that the controller accepts");
    // The registry lists a host as later only if the host has a later decision.
    let later: Vec<String> = registry.later().into_keys().collect();
    assert_eq!(later.is_empty(), !(right && has > OURS.epoch), "{later:?}");
    assert!(later.iter().all(|host| host == HOST), "{later:?}");
    // The session is gone, and the session of the other host is unchanged.
    let counts = registry.counts();
    assert_eq!(registry.has(HOST), None);
    assert_eq!((registry.connected_count(), registry.has(OTHER)), (1, Some(OURS)));
    assert_eq!(counts.sessions, 1 + u64::from(is_welcome), "{counts:?}");
    assert_eq!((counts.applied, counts.failed), (0, 0), "no plan was sent: {counts:?}");
    assert!(counts.refused <= 1 && counts.reports <= 1 + messages.len() as u64, "{counts:?}");
    assert!(is_welcome || counts.refused == 1, "{counts:?} {ended:?}");
    let usage = registry.take_usage();
    assert!(usage.keys().eq([OTHER]), "{usage:?}");
    let used = &usage[OTHER][0];
    assert_eq!((used.sent.0, used.received.0), (8_000, 16_000));
}

/// A host's switch that keeps its plan in memory.
#[derive(Debug, Default)]
struct Side(Mutex<Option<HostPlan>>);

#[tonic::async_trait]
impl HostSide for Side {
    async fn usage(&self) -> Result<std::collections::BTreeMap<String, Carried>, SideError> {
        Ok(std::collections::BTreeMap::new())
    }

    async fn apply(&self, plan: &HostPlan) -> Result<(), SideError> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(plan.clone());
        Ok(())
    }
}

async fn plans(messages: &[Vec<u8>]) {
    let directory = directory("agents");
    let kept = directory.join("plan");
    let _ = std::fs::remove_file(&kept);
    let side = Arc::new(Side::default());
    let new = || {
        let settings = AgentSettings::new(HOST, vec!["localhost:1".to_owned()], None, &kept);
        Agent::new(settings, Arc::clone(&side) as Arc<dyn HostSide>).expect("right settings")
    };
    let mut agent = new();
    let mut has = Stamp::default();
    for message in messages {
        let Ok(message) = ControllerMessage::decode(&message[..]) else { continue };
        let Some(ToAgent::Plan(told)) = message.message else { continue };
        let stamp: Stamp = told.stamp.unwrap_or_default().into();
        let before = (side.0.lock().expect("whole").clone(), std::fs::read(&kept).ok());
        let answer = agent.hear(told.clone(), 2).await.message;
        let Some(FromAgent::Applied(done)) = answer else {
            panic!("no answer to a plan: {answer:?}")
        };
        assert_eq!(done.stamp.unwrap_or_default(), stamp.into(), "stamp of the answer");
        let after = (side.0.lock().expect("whole").clone(), std::fs::read(&kept).ok());
        if !done.problem.is_empty() || done.has.is_some() {
            assert_eq!(before, after, "a refused plan changed something: {done:?}");
            assert_eq!(agent.state().borrow().told, has, "{done:?}");
            continue;
        }
        assert!(stamp >= has && stamp.epoch >= 2, "{stamp} after {has}");
        has = stamp;
        let plan = HostPlan::try_from(told).expect("the plan was applied");
        assert!(plan.tenants.len() <= TENANTS_MAX && plan.tenants.iter().all(|t| t.dscp < 64));
        assert_eq!(after.0.as_ref(), Some(&plan), "the switch has the sent plan");
        // A restarted agent finds the stored plan.
        let mut next = new();
        next.take_up().await;
        let state = next.state().borrow().clone();
        assert_eq!((state.told, state.last_error), (stamp, None));
    }
    std::fs::remove_dir_all(directory).expect("a directory");
}
