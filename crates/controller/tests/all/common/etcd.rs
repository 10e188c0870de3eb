//! Runs a cluster of three etcd members on the local machine for the duration of a test.
//!
//! Other crates include this file with `#[path = ".../controller/tests/all/common/etcd.rs"]`.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use penstock_controller::store::{Etcd, EtcdConfig, Store};
use penstock_testing::{TempDir, patience, scaled, temp_dir};
use tokio::time::{Instant, sleep};

/// Number of members of the cluster. A cluster of three members tolerates the failure of one
/// member.
pub const MEMBERS: usize = 3;
/// Maximum number of attempts to start the cluster. The start of the cluster fails if another
/// program uses one of the chosen TCP ports.
const STARTS_MAX: usize = 3;
/// Time between two checks while a test waits for the cluster.
const LOOK: Duration = Duration::from_millis(50);

/// PEM files with which the members of the cluster use TLS.
#[derive(Clone, Debug)]
pub struct Certificates {
    pub ca: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Running etcd cluster. Dropping the [`Cluster`] kills the cluster's processes and removes their
/// files.
#[derive(Debug)]
pub struct Cluster {
    members: Vec<Member>,
    certificates: Option<Certificates>,
    /// Maximum size of a member's file in bytes. `None` for etcd's default.
    quota: Option<u64>,
    dir: TempDir,
}

#[derive(Debug)]
struct Member {
    client: SocketAddr,
    peer: SocketAddr,
    child: Option<Child>,
}

impl Cluster {
    /// Starts a cluster and waits until it answers. If etcd is not installed, records a skip and
    /// returns `None`.
    pub async fn start() -> Option<Self> {
        Self::start_as(None, None).await
    }

    /// Starts a cluster like [`Self::start`], with TLS for clients.
    pub async fn start_with(certificates: Option<Certificates>) -> Option<Self> {
        Self::start_as(certificates, None).await
    }

    /// Starts a cluster like [`Self::start`], whose members refuse values when their file has
    /// `quota` bytes.
    pub async fn start_small(quota: u64) -> Option<Self> {
        Self::start_as(None, Some(quota)).await
    }

    async fn start_as(certificates: Option<Certificates>, quota: Option<u64>) -> Option<Self> {
        if program("etcd").is_none() {
            penstock_testing::skip(
                "etcd is not installed (Debian's etcd-server; scripts/setup.sh test)",
            );
            return None;
        }
        for _ in 0..STARTS_MAX {
            let mut cluster = Self::choose(certificates.clone(), quota);
            (0..MEMBERS).for_each(|member| cluster.launch(member));
            if cluster.leads().await.is_some() {
                return Some(cluster);
            }
        }
        panic!("no cluster after {STARTS_MAX} starts");
    }

    fn choose(certificates: Option<Certificates>, quota: Option<u64>) -> Self {
        // All listeners exist at the same time, so that their ports differ.
        let free = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let held: Vec<_> = (0..MEMBERS).map(|_| (free(), free())).collect();
        let member = |(client, peer): &(TcpListener, TcpListener)| Member {
            client: client.local_addr().unwrap(),
            peer: peer.local_addr().unwrap(),
            child: None,
        };
        let members = held.iter().map(member).collect();
        Self { members, certificates, quota, dir: temp_dir() }
    }

    fn launch(&mut self, number: usize) {
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        let peer = |n: usize| format!("m{n}=http://{}", self.members[n].peer);
        let all = (0..MEMBERS).map(peer).collect::<Vec<_>>().join(",");
        let member = &self.members[number];
        let client = format!("{scheme}://{}", member.client);
        let own = format!("http://{}", member.peer);
        let home = self.dir.join(format!("m{number}"));
        let log = self.dir.join(format!("m{number}.log"));
        let log = File::options().create(true).append(true).open(log).unwrap();
        // A member must not survive a killed test.
        let mut command = match program("setpriv") {
            Some(setpriv) => {
                let mut command = Command::new(setpriv);
                command.args(["--pdeathsig", "KILL", "etcd"]);
                command
            }
            None => Command::new("etcd"),
        };
        command
            .args(["--name", &format!("m{number}"), "--data-dir"])
            .arg(home)
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &own, "--initial-advertise-peer-urls", &own])
            .args(["--initial-cluster", &all, "--initial-cluster-state", "new"])
            // Traffic between members is not encrypted, even if clients use TLS.
            .args(["--listen-metrics-urls", &format!("http://{}", metrics(member))])
            .args(["--heartbeat-interval", "50", "--election-timeout"])
            .arg(scaled(Duration::from_millis(500)).as_millis().to_string())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        if let Some(quota) = self.quota {
            command.arg("--quota-backend-bytes").arg(quota.to_string());
        }
        if let Some(Certificates { ca, certificate, key }) = &self.certificates {
            command.arg("--cert-file").arg(certificate).arg("--key-file").arg(key);
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(ca);
        }
        self.members[number].child = Some(command.spawn().unwrap());
    }

    /// Returns the addresses of all members in the form that [`EtcdConfig`] accepts.
    pub fn endpoints(&self) -> Vec<String> {
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        self.members.iter().map(|member| format!("{scheme}://{}", member.client)).collect()
    }

    /// Returns a client of the cluster with the time limit `limit` per call.
    pub fn store(&self, limit: Duration) -> Etcd {
        Etcd::new(&EtcdConfig { limit, ..EtcdConfig::new(self.endpoints()) }).unwrap()
    }

    /// Waits until the cluster has a leading member, and returns the leader's number. Returns
    /// `None` if a member's process ends by itself, or if the cluster has no leader in time.
    pub async fn leads(&mut self) -> Option<usize> {
        let end = Instant::now() + patience();
        while Instant::now() < end {
            for number in 0..MEMBERS {
                let member = &mut self.members[number];
                let child = member.child.as_mut();
                if child.is_some_and(|child| child.try_wait().unwrap().is_some()) {
                    return None;
                }
                let address = metrics(member);
                let page = http(address, "GET", "/metrics", "").unwrap_or_default();
                if page.lines().any(|line| line == "etcd_server_is_leader 1") {
                    return Some(number);
                }
            }
            sleep(LOOK).await;
        }
        None
    }

    /// Kills a member of the cluster at once, like a power failure.
    pub fn kill(&mut self, number: usize) {
        if let Some(mut child) = self.members[number].child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Restarts a killed member of the cluster with the member's data.
    pub fn restart(&mut self, number: usize) {
        assert!(self.members[number].child.is_none(), "member {number} is running");
        self.launch(number);
    }

    /// Copies all members' data to `copy`. The function stops the members before it copies the
    /// data, and restarts the members afterwards.
    pub async fn save(&mut self, copy: &str) {
        let names: Vec<_> = (0..MEMBERS).map(|n| format!("m{n}")).collect();
        let pairs = names.iter().map(|name| (name.clone(), format!("{name}.{copy}")));
        self.replace(pairs.collect()).await;
    }

    /// Replaces all members' data with a copy that [`Self::save`] has made. The function stops the
    /// members before it replaces the data, and restarts the members afterwards.
    pub async fn restore(&mut self, copy: &str) {
        let names: Vec<_> = (0..MEMBERS).map(|n| format!("m{n}")).collect();
        let pairs = names.iter().map(|name| (format!("{name}.{copy}"), name.clone()));
        self.replace(pairs.collect()).await;
    }

    async fn replace(&mut self, pairs: Vec<(String, String)>) {
        (0..MEMBERS).for_each(|number| self.kill(number));
        for (from, to) in pairs {
            let (from, to) = (self.dir.join(from), self.dir.join(to));
            let _ = std::fs::remove_dir_all(&to);
            let done = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
            assert!(done.success());
        }
        (0..MEMBERS).for_each(|number| self.launch(number));
        assert!(self.leads().await.is_some(), "the members start again");
    }

    /// Suspends a member of the cluster. A suspended member neither receives nor sends, and its
    /// connections stay open.
    pub fn stop(&self, number: usize) {
        self.signal(number, Signal::SIGSTOP);
    }

    /// Resumes a suspended member of the cluster.
    pub fn resume(&self, number: usize) {
        self.signal(number, Signal::SIGCONT);
    }

    fn signal(&self, number: usize, signal: Signal) {
        let child = self.members[number].child.as_ref().unwrap();
        kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
    }

    /// Compacts etcd's history before a revision.
    pub fn compact(&self, revision: u64) {
        let asked = format!(r#"{{"revision":"{revision}","physical":true}}"#);
        let answer = http(self.members[0].client, "POST", "/v3/kv/compaction", &asked).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    /// Shrinks the files of all members, and ends the alarms of members that are full. This does
    /// what `etcdctl defrag --cluster` and `etcdctl alarm disarm` do.
    pub fn defragment(&self) {
        let ask = |member: &Member, path: &str, asked: &str| {
            let answer = http(member.client, "POST", path, asked).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            answer
        };
        for member in &self.members {
            ask(member, "/v3/maintenance/defragment", "{}");
        }
        let alarms = ask(&self.members[0], "/v3/maintenance/alarm", r#"{"action":"GET"}"#);
        for alarm in alarms.split(r#""memberID":""#).skip(1) {
            let id = alarm.split('"').next().unwrap();
            let asked = format!(r#"{{"action":"DEACTIVATE","memberID":"{id}","alarm":"NOSPACE"}}"#);
            ask(&self.members[0], "/v3/maintenance/alarm", &asked);
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        (0..MEMBERS).for_each(|number| self.kill(number));
    }
}

/// Waits until a store answers a request.
pub async fn answers(store: &dyn Store) {
    let end = Instant::now() + patience();
    while let Err(error) = store.get("is it there").await {
        assert!(Instant::now() < end, "{error}");
        sleep(LOOK).await;
    }
}

/// Returns the address at which a member serves metrics. A member has the same TCP port for metrics
/// on 127.0.0.2 and for clients on 127.0.0.1.
fn metrics(member: &Member) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(127, 0, 0, 2), member.client.port()))
}

fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut found = std::env::split_paths(&path).map(|dir: PathBuf| dir.join(name));
    found.find(|file: &PathBuf| Path::is_file(file))
}

/// Sends an unencrypted HTTP request and reads the whole answer.
fn http(address: SocketAddr, method: &str, path: &str, body: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let length = body.len();
    let close = "Host: etcd\r\nConnection: close";
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\n{close}\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
