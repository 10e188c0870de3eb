//! Tests of the page over HTTP and in a browser, with a controller and simulated switches and
//! hosts.

mod browser;
mod world;

use super::*;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use world::World;

/// Sends bytes and returns everything that the server sends until the connection ends.
async fn raw(world: &World, request: &str) -> String {
    let mut stream = TcpStream::connect(world.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // A reset of the connection is not a failure, because the answer arrives before the reset.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

async fn get(world: &World, path: &str) -> (String, String) {
    let host = "Host: localhost:9752\r\nConnection: close";
    let answer = raw(world, &format!("GET {path} HTTP/1.1\r\n{host}\r\n\r\n")).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

async fn view(world: &World, path: &str) -> Value {
    let (head, body) = get(world, path).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}");
    serde_json::from_str(&body).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_shows_all_of_it_and_only_reads() {
    let world = World::start().await;
    world.intervals(4).await;
    assert_eq!(view(&world, "/api/status").await["leads"], true);
    let tenants = view(&world, "/api/tenants").await;
    assert_eq!(tenants.as_array().unwrap().len(), world::TENANTS.len());
    let history = view(&world, "/api/history/web").await;
    assert!(history["tenants"]["web"]["sent"].as_array().unwrap().len() >= 4, "{history}");
    assert!(view(&world, "/api/explain/web").await["why"].is_array());
    let (_, metrics) = get(&world, "/metrics").await;
    assert!(metrics.contains("penstock_controller_leads 1.0"), "{metrics}");
    assert!(metrics.contains("penstock_tenant_queue{tenant=\"web\"} 1.0"), "{metrics}");
    for (path, status) in [
        ("/api/explain/nobody", "404"),
        ("/api/history/nobody", "404"),
        ("/api/switch-counters", "404"),
        ("/api/explain", "404"),
        ("/api/status/web", "404"),
        ("/page/../Cargo.toml", "404"),
    ] {
        let (head, _) = get(&world, path).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {head}");
    }
    for (path, _, kind) in files::FILES {
        let (head, body) = get(&world, path).await;
        let head = head.to_ascii_lowercase();
        assert!(head.contains(kind) && !body.is_empty(), "{path}: {head}");
        for header in ["content-security-policy: default-src 'none'", "nosniff", "no-referrer"] {
            assert!(head.contains(header), "{path}: {header}: {head}");
        }
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_a_small_request_from_here_is_refused() {
    let world = World::start().await;
    let long = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(20_000));
    let post = "POST /api/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let body =
        "GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nConnection: close\r\n\r\nabcd";
    let foreign = "GET /api/status HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    let nameless = "GET /api/status HTTP/1.0\r\n\r\n";
    for (request, status) in [
        (long.as_str(), &["414", "431", "400"][..]),
        (post, &["405"]),
        (body, &["413"]),
        (foreign, &["421"]),
        (nameless, &["421"]),
    ] {
        let answer = raw(&world, request).await;
        let found = status.iter().any(|status| answer.contains(&format!(" {status} ")));
        let shown: String = answer.chars().take(200).collect();
        assert!(found, "{status:?} expected, got {shown}");
    }
    world.stop().await;
}

#[test]
fn loopback_names_are_known_with_and_without_a_port() {
    for name in ["localhost", "LocalHost:9752", "127.0.0.1:80", "[::1]", "[::1]:9752"] {
        assert!(is_loopback_name(name), "{name}");
    }
    for name in ["", "localhost.evil.example", "10.0.0.1", "[fe80::1]", "127.0.0.1.evil", "::1"] {
        assert!(!is_loopback_name(name), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_lead_says_who_does() {
    let world = World::start().await;
    let second = world.follower().await;
    let status = second.follows().await;
    assert_eq!(status["leader"], world::ADVERTISED, "{status}");
    let (head, body) = get(&second, "/api/tenants").await;
    assert!(head.starts_with("HTTP/1.1 503") && body.contains("does not lead"), "{head} {body}");
    let (_, metrics) = get(&second, "/metrics").await;
    assert!(metrics.contains("penstock_controller_leads 0.0"), "{metrics}");
    second.stop().await;
    world.stop().await;
}
