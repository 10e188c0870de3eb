//! An etcd with one member on this machine, what etcd says about its size, and an operator's work
//! after etcd was full.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use penstock_guest::bed::Guard;
use penstock_guest::bed::process::{Daemon, await_some};
use serde_json::{Value, json};

/// Time limit for the start of etcd.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Time limit for one page of metrics.
const PAGE_LIMIT: Duration = Duration::from_secs(5);
/// Time limit for an operator's command.
const COMMAND_LIMIT: Duration = Duration::from_secs(30);

/// Sizes of etcd in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EtcdSize {
    /// Size of etcd's file.
    pub(crate) file: f64,
    /// Part of the file that is in use.
    pub(crate) in_use: f64,
    /// Bytes that clients have sent so far.
    pub(crate) received: f64,
}

/// A running etcd, which ends when the value is dropped.
#[derive(Debug)]
pub(crate) struct EtcdServer {
    /// Stops etcd when the value is dropped.
    _daemon: Daemon,
    client: SocketAddr,
}

impl EtcdServer {
    /// Starts etcd on free TCP ports, with its data in `folder`, and waits until etcd leads itself.
    pub(crate) fn start(guard: &Guard, folder: &Path) -> anyhow::Result<Self> {
        Self::start_with(guard, folder, &[])
    }

    /// Starts etcd as [`Self::start`] does, with a limit on the size of etcd's file in bytes.
    pub(crate) fn with_quota(guard: &Guard, folder: &Path, quota: u64) -> anyhow::Result<Self> {
        Self::start_with(guard, folder, &["--quota-backend-bytes", &quota.to_string()])
    }

    fn start_with(guard: &Guard, folder: &Path, arguments: &[&str]) -> anyhow::Result<Self> {
        // Both listeners exist at the same time, so that the ports differ.
        let free = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let (first, second) = (free()?, free()?);
        let (client, peer) = (first.local_addr()?, second.local_addr()?);
        drop((first, second));
        let (url, peer) = (format!("http://{client}"), format!("http://{peer}"));
        let mut command = Command::new("etcd");
        command
            .args(["--name", "lab", "--data-dir"])
            .arg(folder.join("etcd"))
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("lab={peer}")])
            .args(arguments);
        let mut daemon = Daemon::start(&mut command, folder.join("etcd.log"), guard)
            .context("etcd does not start; install Debian's etcd-server")?;
        await_some("etcd", START_LIMIT, || {
            daemon.check()?;
            let leads = metrics(client).and_then(|page| value(&page, "etcd_server_is_leader"));
            Ok(leads.is_ok_and(|leads| leads > 0.0).then_some(()))
        })?;
        Ok(Self { _daemon: daemon, client })
    }

    /// Returns the address for clients.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.client)
    }

    /// Reads the present sizes.
    pub(crate) fn size(&self) -> anyhow::Result<EtcdSize> {
        let page = metrics(self.client)?;
        Ok(EtcdSize {
            file: value(&page, "etcd_mvcc_db_total_size_in_bytes")?,
            in_use: value(&page, "etcd_mvcc_db_total_size_in_use_in_bytes")?,
            received: value(&page, "etcd_network_client_grpc_received_bytes_total")?,
        })
    }

    /// Shrinks etcd's file, as `etcdctl defrag` does.
    pub(crate) fn defrag(&self) -> anyhow::Result<()> {
        self.post("/v3/maintenance/defragment", &json!({})).map(drop)
    }

    /// Ends all alarms, as `etcdctl alarm disarm` does.
    pub(crate) fn disarm(&self) -> anyhow::Result<()> {
        const ALARM: &str = "/v3/maintenance/alarm";
        let told = self.post(ALARM, &json!({ "action": "GET", "alarm": "NONE" }))?;
        for alarm in told["alarms"].as_array().into_iter().flatten() {
            let (member, alarm) = (&alarm["memberID"], &alarm["alarm"]);
            let end = json!({ "action": "DEACTIVATE", "memberID": member, "alarm": alarm });
            self.post(ALARM, &end)?;
        }
        Ok(())
    }

    /// Sends a request to etcd's JSON gateway, and returns the answer.
    fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let body = body.to_string();
        let request = format!(
            "POST {path} HTTP/1.0\r\nHost: etcd\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let page = exchange(self.client, &request, COMMAND_LIMIT)?;
        let (head, body) = page.split_once("\r\n\r\n").unwrap_or((page.as_str(), ""));
        let status = head.lines().next().unwrap_or_default();
        ensure!(status.split(' ').nth(1) == Some("200"), "etcd: {path}: {status}: {body}");
        serde_json::from_str(body).with_context(|| format!("etcd: {path}: reading the answer"))
    }
}

/// Reads etcd's page of metrics.
fn metrics(address: SocketAddr) -> anyhow::Result<String> {
    exchange(address, "GET /metrics HTTP/1.0\r\nHost: etcd\r\n\r\n", PAGE_LIMIT)
}

/// Sends a request to etcd, and returns the head and the body of the answer. With HTTP/1.0, the
/// answer is not divided into chunks.
fn exchange(address: SocketAddr, request: &str, limit: Duration) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(request.as_bytes())?;
    let mut page = String::new();
    stream.read_to_string(&mut page).context("reading etcd's answer")?;
    Ok(page)
}

/// Returns the value of a metric without labels.
fn value(page: &str, name: &str) -> anyhow::Result<f64> {
    let mut lines = page.lines();
    let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let text = found.with_context(|| format!("etcd has no metric {name}"))?;
    text.trim().parse().with_context(|| format!("metric {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let page = "HTTP/1.0 200 OK\r\n\r\n# TYPE size gauge\nsize_in_use 12\nsize 2.5e+07\n";
        assert!((value(page, "size").unwrap() - 25_000_000.0).abs() < 0.5);
        assert!((value(page, "size_in_use").unwrap() - 12.0).abs() < 0.5);
        assert!(value(page, "siz").unwrap_err().to_string().contains("no metric siz"));
    }
}
