//! Tests the limit of connections per certificate, and changes of a controller's own certificate.

use std::sync::Arc;
use std::time::Duration;

use penstock_controller::agent::AgentSettings;
use penstock_controller::agents::{Limits, PemFiles, ServerTls};
use tokio::time::Instant;

use crate::agent::bed::{Authority, Bed, CONTROLLER, FakeSide, Running, leads};

#[tokio::test]
async fn a_certificate_has_so_many_connections_and_the_next_is_told() {
    let bed = Bed::new();
    let limits = Limits { per_certificate: 1, ..Limits::default() };
    let controller = bed.controller_with(None, leads(), limits).await;
    let side = Arc::new(FakeSide::default());
    let settings = bed.settings("server-0", &bed.authority, "server-0");
    let mut first = Running::start(settings.clone(), &[controller.endpoint()], &side);
    first.until("in", |state| state.connected.is_some()).await;
    // Another connection uses the same certificate.
    let plan_file = bed.dir.join("copy.plan");
    let copy = AgentSettings { plan_file, ..settings };
    let began = Instant::now();
    let mut second = Running::start(copy.clone(), &[controller.endpoint()], &side);
    let told = |error: &String| {
        error.contains("server-0: the certificate has the maximum of 1 connections")
            && error.contains("raise `connections_per_certificate`")
    };
    second.until("told", |state| state.last_error.as_ref().is_some_and(told)).await;
    controller.counts("counted", |counts| counts.crowded > 0).await;
    second.end().await;
    assert!(began.elapsed() < penstock_testing::patience());
    // Another certificate is admitted, and the first session continues.
    let other = bed.settings("server-1", &bed.authority, "server-1");
    let mut other = Running::start(other, &[controller.endpoint()], &side);
    other.until("in", |state| state.connected.is_some()).await;
    let counts = controller.registry.counts();
    assert_eq!((counts.sessions, counts.ended, counts.refused), (2, 0, 0), "{counts:?}");
    // The place is free once the connection ends.
    first.end().await;
    let mut again = Running::start(copy, &[controller.endpoint()], &side);
    again.until("in", |state| state.connected.is_some()).await;
    again.end().await;
    other.end().await;
    controller.end().await;
}

#[tokio::test]
async fn a_connection_beyond_the_limit_ends_soon_in_any_case() {
    let bed = Bed::new();
    let limits = Limits { per_certificate: 1, ..Limits::default() };
    let controller = bed.controller_with(None, leads(), limits).await;
    let side = Arc::new(FakeSide::default());
    let settings = bed.settings("server-0", &bed.authority, "server-0");
    let mut first = Running::start(settings.clone(), &[controller.endpoint()], &side);
    first.until("in", |state| state.connected.is_some()).await;
    let own = settings.tls.as_ref().unwrap();
    let pem = |path| std::fs::read(path).unwrap();
    let identity = tonic::transport::Identity::from_pem(pem(&own.certificate), pem(&own.key));
    let ca = tonic::transport::Certificate::from_pem(bed.authority.pem());
    let tls = tonic::transport::ClientTlsConfig::new().ca_certificate(ca);
    let tls = tls.domain_name(CONTROLLER).identity(identity);
    let endpoint = format!("https://{}", controller.endpoint());
    let endpoint = tonic::transport::Endpoint::from_shared(endpoint).unwrap();
    let silent = endpoint.tls_config(tls).unwrap().connect().await.unwrap();
    controller.counts("one too many", |counts| counts.crowded == 1).await;
    // This connection is silent. Without a time limit, it would keep the only place.
    first.end().await;
    let mut next = Running::start(settings, &[controller.endpoint()], &side);
    next.until("in", |state| state.connected.is_some()).await;
    drop(silent);
    next.end().await;
    controller.end().await;
}

#[tokio::test]
async fn new_certificates_are_in_force_for_who_comes_and_sessions_go_on() {
    let bed = Bed::new();
    let files = |by: &Authority| {
        let (certificate, key) = by.sign(CONTROLLER);
        PemFiles {
            ca: bed.file("roots.pem", &by.pem()),
            certificate: bed.file("c.pem", &certificate),
            key: bed.file("c.key", &key),
            crl: None,
        }
    };
    let tls = ServerTls::open(files(&bed.authority)).unwrap();
    let controller = bed.controller_by(tls.clone()).await;
    let side = Arc::new(FakeSide::default());
    let settings = bed.settings("server-0", &bed.authority, "server-0");
    let mut first = Running::start(settings, &[controller.endpoint()], &side);
    first.until("in", |state| state.connected.is_some()).await;
    assert!(!tls.reload().unwrap(), "nothing has changed");

    // The change is incomplete, because the key is still the old key. Only the log shows this.
    let next = Authority::new();
    bed.file("c.pem", &next.sign(CONTROLLER).0);
    let error = tls.reload().unwrap_err().to_string();
    assert!(error.contains("the certificate"), "{error}");
    assert!(!tls.reload().unwrap(), "told once");
    std::fs::remove_file(bed.dir.join("c.key")).unwrap();
    assert!(tls.reload().unwrap_err().to_string().contains("c.key"));
    let settings = bed.settings("server-1", &bed.authority, "server-1");
    let mut second = Running::start(settings, &[controller.endpoint()], &side);
    second.until("still let in", |state| state.connected.is_some()).await;

    // The change is complete: both ends use another CA.
    files(&next);
    assert!(tls.reload().unwrap());
    let old = bed.settings("server-2", &bed.authority, "server-2");
    let mut refused = Running::start(old, &[controller.endpoint()], &side);
    refused.until("not believed", |state| state.last_error.is_some()).await;
    refused.end().await;
    let mut new = bed.settings("server-2", &next, "server-2");
    new.tls.as_mut().unwrap().ca = bed.file("new-ca.pem", &next.pem());
    let mut new = Running::start(new, &[controller.endpoint()], &side);
    new.until("by the new ones", |state| state.connected.is_some()).await;

    // Admitted sessions stay and continue to report.
    let counts = controller.registry.counts();
    assert_eq!((counts.sessions, counts.ended), (3, 0), "{counts:?}");
    let before = first.state.borrow().counts.reports;
    let after = first.until("reports", |state| state.counts.reports > before + 2).await;
    assert_eq!(after.counts.sessions, 1);
    for agent in [first, second, new] {
        agent.end().await;
    }
    controller.end().await;
}

#[tokio::test]
async fn a_watch_finds_new_files_by_itself() {
    let bed = Bed::new();
    let (certificate, key) = bed.authority.sign(CONTROLLER);
    let files = PemFiles {
        ca: bed.file("roots.pem", &bed.authority.pem()),
        certificate: bed.file("c.pem", &certificate),
        key: bed.file("c.key", &key),
        crl: None,
    };
    let tls = ServerTls::open(files).unwrap();
    let before = tls.current();
    let watch = tokio::spawn(tls.clone().watch(Duration::from_millis(20)));
    let (certificate, key) = bed.authority.sign(CONTROLLER);
    bed.file("c.key", &key);
    bed.file("c.pem", &certificate);
    let patience = Instant::now() + penstock_testing::patience();
    while Arc::ptr_eq(&tls.current(), &before) {
        assert!(Instant::now() < patience, "not found");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    watch.abort();
}

#[tokio::test]
async fn a_revoked_certificate_loses_its_session_and_is_refused() {
    let bed = Bed::new();
    let (certificate, key) = bed.authority.sign_numbered(CONTROLLER, 7);
    let crl = bed.file("hosts.crl", &bed.authority.revokes(&[], 2100));
    let files = PemFiles {
        ca: bed.file("roots.pem", &bed.authority.pem()),
        certificate: bed.file("c.pem", &certificate),
        key: bed.file("c.key", &key),
        crl: Some(crl.clone()),
    };
    let tls = ServerTls::open(files).unwrap();
    let controller = bed.controller_by(tls.clone()).await;
    let side = Arc::new(FakeSide::default());
    let agent = |host: &str, serial: u64| {
        let settings = bed.settings(host, &bed.authority, host);
        let (certificate, key) = bed.authority.sign_numbered(host, serial);
        bed.file(&format!("{host}.pem"), &certificate);
        bed.file(&format!("{host}.key"), &key);
        Running::start(settings, &[controller.endpoint()], &side)
    };
    let (mut stolen, mut good) = (agent("server-0", 10), agent("server-1", 11));
    for agent in [&mut stolen, &mut good] {
        agent.until("in", |state| state.connected.is_some()).await;
    }

    // An unreadable list changes nothing, and the error names the file.
    bed.file("hosts.crl", "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n");
    let error = tls.reload().unwrap_err().to_string();
    assert!(error.contains("hosts.crl") && error.contains("revocation lists"), "{error}");
    bed.file("hosts.crl", "nothing");
    let error = tls.reload().unwrap_err().to_string();
    assert!(error.contains("hosts.crl: the file contains no revocation list"), "{error}");
    assert_eq!(controller.registry.counts().ended, 0);

    // The session of the revoked certificate ends, and its agent is not admitted again. The other
    // session continues.
    bed.file("hosts.crl", &bed.authority.revokes(&[10], 2100));
    assert!(tls.reload().unwrap());
    controller.counts("its session ends", |counts| counts.ended == 1).await;
    controller.counts("refused", |counts| counts.refused > 2).await;
    let state = stolen.until("told", |state| state.connected.is_none()).await;
    assert_eq!(state.counts.sessions, 1, "{state:?}");

    // After a list has expired, the port still refuses its certificates and admits others.
    bed.file("hosts.crl", &bed.authority.revokes(&[10], 2021));
    assert!(tls.reload().unwrap());
    let mut third = agent("server-2", 12);
    third.until("in", |state| state.connected.is_some()).await;
    let refused = controller.registry.counts().refused;
    controller.counts("refused still", |counts| counts.refused > refused + 1).await;
    let reports = good.state.borrow().counts.reports;
    let state = good.until("goes on", |state| state.counts.reports > reports + 2).await;
    assert_eq!((state.counts.sessions, controller.registry.counts().sessions), (1, 3));
    for agent in [stolen, good, third] {
        agent.end().await;
    }
    controller.end().await;
}

#[tokio::test]
async fn an_agent_does_not_believe_a_controller_with_a_revoked_certificate() {
    let bed = Bed::new();
    let (certificate, key) = bed.authority.sign_numbered(CONTROLLER, 7);
    let ca = bed.authority.pem();
    let tls = ServerTls::new(ca.as_bytes(), certificate.as_bytes(), key.as_bytes()).unwrap();
    let controller = bed.controller_by(tls).await;
    let side = Arc::new(FakeSide::default());
    let mut settings = bed.settings("server-0", &bed.authority, "server-0");
    settings.tls.as_mut().unwrap().crl =
        Some(bed.file("controllers.crl", &bed.authority.revokes(&[7], 2100)));
    let mut agent = Running::start(settings, &[controller.endpoint()], &side);
    let revoked = |error: &String| error.contains("Revoked");
    agent.until("refuses", |state| state.last_error.as_ref().is_some_and(revoked)).await;
    assert_eq!(controller.registry.counts().sessions, 0);
    // The file is read again for each connection.
    bed.file("controllers.crl", &bed.authority.revokes(&[8], 2100));
    agent.until("in", |state| state.connected.is_some()).await;
    agent.end().await;
    controller.end().await;
}
