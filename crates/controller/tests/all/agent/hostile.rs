//! Tests clients that the controller refuses, and agents that violate a rule and lose their
//! session. The controller must still serve other agents.

use std::sync::Arc;
use std::time::Duration;

use penstock_controller::agents::{
    AgentServer, Identity, Leading, Limits, Registry, ServeError, serve,
};
use penstock_controller::wire::v1::agent_message::Message;
use penstock_controller::wire::v1::agent_service_client::AgentServiceClient;
use penstock_controller::wire::v1::{
    AgentMessage, Applied, ControllerMessage, Hello, Report, TenantUsage,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use tonic::{Code, Status, Streaming};

use crate::agent::bed::{
    Authority, Bed, CONTROLLER, Controller, FakeSide, REPORT_MILLIS, Running, leads,
};

/// Session in which the test writes the agent's messages.
pub struct Raw {
    out: mpsc::Sender<AgentMessage>,
    pub from: Streaming<ControllerMessage>,
}

impl Raw {
    /// Opens a session of the host `server-0`, which the controller accepts.
    async fn begin(bed: &Bed, controller: &Controller) -> Self {
        let mut raw = Self::call(bed, controller, hello("server-0")).await;
        assert!(raw.from.message().await.unwrap().is_some(), "a welcome");
        raw
    }

    /// Calls a controller with the certificate of the host `server-0` and the first message
    /// `hello`.
    pub async fn call(bed: &Bed, controller: &Controller, hello: Hello) -> Self {
        let (certificate, key) = bed.authority.sign("server-0");
        let identity = tonic::transport::Identity::from_pem(certificate, key);
        let (out, messages) = mpsc::channel(64);
        let config = client(bed).identity(identity);
        let channel = endpoint(controller, config).connect().await.unwrap();
        let mut client = AgentServiceClient::new(channel);
        out.send(message(Message::Hello(hello))).await.unwrap();
        let session = client.session(ReceiverStream::new(messages)).await.unwrap();
        Self { out, from: session.into_inner() }
    }

    async fn say(&self, said: Message) {
        // If the server has disconnected the client, the client cannot send the remaining messages.
        let _ = self.out.send(message(said)).await;
    }

    /// Returns the status with which the session ended.
    async fn end(mut self) -> Status {
        loop {
            match self.from.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("it ended without a reason"),
                Err(status) => return status,
            }
        }
    }
}

fn client(bed: &Bed) -> ClientTlsConfig {
    let ca = Certificate::from_pem(bed.authority.pem());
    ClientTlsConfig::new().ca_certificate(ca).domain_name(CONTROLLER)
}

fn endpoint(controller: &Controller, tls: ClientTlsConfig) -> Endpoint {
    let uri = format!("https://{}", controller.endpoint());
    Endpoint::from_shared(uri).unwrap().tls_config(tls).unwrap()
}

fn message(message: Message) -> AgentMessage {
    AgentMessage { message: Some(message) }
}

fn hello(host: &str) -> Hello {
    Hello { host: host.to_owned(), ..Hello::default() }
}

fn report(number: u64) -> Message {
    Message::Report(Report { number, millis: 10, tenants: vec![] })
}

/// Checks that the controller still admits a legitimate agent.
async fn goes_on(bed: &Bed, controller: &Controller) {
    let side = Arc::new(FakeSide::default());
    let settings = bed.settings("server-1", &bed.authority, "server-1");
    let mut agent = Running::start(settings, &[controller.endpoint()], &side);
    agent.until("let in", |state| state.connected.is_some()).await;
    agent.end().await;
}

#[tokio::test]
async fn a_wrong_certificate_or_name_is_refused() {
    let bed = Bed::new();
    let controller = bed.controller(None, leads()).await;
    let stranger = Authority::new();
    let mut refused = 0;
    for (host, by, named, why) in [
        ("server-0", &bed.authority, "server-1", "the certificate is for"),
        ("server-7", &bed.authority, "server-7", "is not a server of the topology"),
        ("server-0", &stranger, "server-0", "received fatal alert"),
    ] {
        let side = Arc::new(FakeSide::default());
        let settings = bed.settings(host, by, named);
        let mut agent = Running::start(settings, &[controller.endpoint()], &side);
        agent.until(why, |state| state.last_error.as_ref().is_some_and(|e| e.contains(why))).await;
        agent.end().await;
        refused = controller.counts(why, |counts| counts.refused > refused).await.refused;
    }
    let without = endpoint(&controller, client(&bed)).connect().await;
    if let Ok(channel) = without {
        // In TLS 1.3, a client learns of its refusal only with the first answer.
        let (_out, messages) = mpsc::channel(1);
        let session = AgentServiceClient::new(channel).session(ReceiverStream::new(messages)).await;
        assert!(session.is_err());
    }
    controller.counts("without a certificate", |counts| counts.refused > refused).await;
    assert_eq!(controller.registry.counts().sessions, 0);
    goes_on(&bed, &controller).await;
    controller.end().await;
}

#[tokio::test]
async fn a_controller_of_another_authority_or_name_is_not_believed() {
    let (bed, other) = (Bed::new(), Bed::new());
    let impostor = other.controller(None, leads()).await;
    let side = Arc::new(FakeSide::default());
    let settings = bed.settings("server-0", &bed.authority, "server-0");
    let mut agent = Running::start(settings, &[impostor.endpoint()], &side);
    let untrusted = |e: &String| e.contains("UnknownIssuer") || e.contains("invalid peer cert");
    agent.until("refused", |state| state.last_error.as_ref().is_some_and(untrusted)).await;
    agent.end().await;
    impostor.end().await;
    let controller = bed.controller(None, leads()).await;
    let mut settings = bed.settings("server-0", &bed.authority, "server-0");
    settings.tls.as_mut().unwrap().server_name = "another.test".to_owned();
    let mut agent = Running::start(settings, &[controller.endpoint()], &side);
    let other = |e: &String| e.contains("not valid for name") || e.contains("NotValidForName");
    agent.until("refused", |state| state.last_error.as_ref().is_some_and(other)).await;
    agent.end().await;
    controller.end().await;
}

#[tokio::test]
async fn a_violation_ends_the_session_and_is_counted() {
    let bed = Bed::new();
    let controller = bed.controller(None, leads()).await;
    let long = "x".repeat(2 << 20);
    let oversized = TenantUsage { name: long, sent_bytes: 0, received_bytes: 0 };
    let oversized = Report { number: 1, millis: 10, tenants: vec![oversized] };
    let cases: Vec<(&str, Vec<Message>, Code, &str)> = vec![
        ("a replay", vec![report(1), report(1)], Code::InvalidArgument, "report number 1 where 2"),
        ("a gap", vec![report(1), report(3)], Code::InvalidArgument, "report number 3 where 2"),
        (
            "a second hello",
            vec![Message::Hello(hello("server-0"))],
            Code::InvalidArgument,
            "a second `hello`",
        ),
        (
            "an answer to nothing",
            vec![Message::Applied(Applied::default())],
            Code::InvalidArgument,
            "more answers than",
        ),
        ("a flood", (1..=50).map(report).collect(), Code::InvalidArgument, "more than 8 reports"),
        ("oversized", vec![Message::Report(oversized)], Code::OutOfRange, "too large"),
    ];
    for (what, said, code, text) in cases {
        let before = controller.registry.counts().refused;
        let raw = Raw::begin(&bed, &controller).await;
        for message in said {
            raw.say(message).await;
        }
        let status = raw.end().await;
        assert_eq!(status.code(), code, "{what}: {status}");
        assert!(status.message().contains(text), "{what}: {status}");
        let counts = controller.counts(what, |counts| counts.refused > before).await;
        assert_eq!(counts.refused, before + 1, "{what}");
        controller.counts(what, |counts| counts.ended == counts.sessions).await;
    }
    assert_eq!(controller.registry.connected_count(), 0);
    goes_on(&bed, &controller).await;
    controller.end().await;
}

#[tokio::test]
async fn garbage_and_silence_on_the_port_hurt_nobody() {
    let bed = Bed::new();
    let limits = Limits { handshake: Duration::from_millis(200), ..Limits::default() };
    let controller = bed.controller_with(None, leads(), limits).await;
    let mut garbage = TcpStream::connect(controller.address).await.unwrap();
    garbage.write_all(&[0xa5; 4_096]).await.unwrap();
    let mut silent = TcpStream::connect(controller.address).await.unwrap();
    controller.counts("both are sent away", |counts| counts.refused == 2).await;
    let mut rest = Vec::new();
    let ended = silent.read_to_end(&mut rest).await;
    assert!(ended.is_err() || rest.is_empty(), "closed without a word");
    goes_on(&bed, &controller).await;
    controller.end().await;
}

#[tokio::test]
async fn an_agent_that_vanished_is_noticed_by_both_sides() {
    let bed = Bed::new();
    let short = Duration::from_millis(150);
    let limits = Limits { ping_every: short, ping_limit: short, ..Limits::default() };
    let controller = bed.controller_with(None, leads(), limits).await;
    let wire = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let through = format!("localhost:{}", wire.local_addr().unwrap().port());
    let (cut, is_cut) = oneshot::channel::<()>();
    let address = controller.address;
    let wire = tokio::spawn(async move {
        let (mut near, _) = wire.accept().await.unwrap();
        let mut far = TcpStream::connect(address).await.unwrap();
        tokio::select! {
            _ = copy_bidirectional(&mut near, &mut far) => {}
            _ = is_cut => {}
        }
        // Both connections stay open, and no data arrives.
        std::future::pending::<()>().await;
    });
    let side = Arc::new(FakeSide::default());
    let settings = bed.settings("server-0", &bed.authority, "server-0");
    let mut agent = Running::start(settings, &[through], &side);
    agent.until("connected", |state| state.connected.is_some()).await;
    controller.counts("a report", |counts| counts.reports > 0).await;
    cut.send(()).unwrap();
    controller.counts("noticed", |counts| counts.ended == 1).await;
    assert_eq!(controller.registry.connected_count(), 0);
    agent.until("noticed by the agent", |state| state.connected.is_none()).await;
    wire.abort();
    agent.end().await;
    controller.end().await;
}

#[tokio::test]
async fn without_certificates_nobody_is_served_unless_that_is_said() {
    #[derive(Debug)]
    struct Any;
    impl penstock_controller::agents::Known for Any {
        fn is_host(&self, _: &str) -> bool {
            true
        }

        fn count(&self) -> usize {
            1
        }
    }
    let (_leading, leads) = watch::channel(Leading::Elsewhere(String::new()));
    let serve_as = async |identity| {
        let registry = Arc::new(Registry::new(Box::new(Any)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = AgentServer::new(registry, leads.clone(), identity, REPORT_MILLIS);
        serve(listener, server, None, Limits::default(), async {}).await
    };
    let refused = serve_as(Identity::Certificate).await;
    assert!(matches!(refused, Err(ServeError::NoCertificates)), "{refused:?}");
    assert!(serve_as(Identity::Trusted).await.is_ok());
}
