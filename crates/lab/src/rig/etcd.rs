//! An etcd with one member on this machine, and what etcd says about its size.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use penstock_guest::bed::Guard;
use penstock_guest::bed::process::{Daemon, await_some};

/// Time limit for the start of etcd.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Time limit for one page of metrics.
const PAGE_LIMIT: Duration = Duration::from_secs(5);

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
            .args(["--initial-cluster", &format!("lab={peer}")]);
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
}

/// Reads etcd's page of metrics. With HTTP/1.0, the answer is not divided into chunks.
fn metrics(address: SocketAddr) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PAGE_LIMIT)?;
    stream.set_read_timeout(Some(PAGE_LIMIT))?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: etcd\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page).context("reading etcd's metrics")?;
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
