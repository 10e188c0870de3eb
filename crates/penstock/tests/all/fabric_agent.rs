//! Test of a controller and two hosts as processes, with certificates. The hosts report traffic of
//! tenants. The tenants receive queues, and both hosts apply code points and weights. Without a
//! controller the settings stay in force, even after a restart and a reload. Without root the test
//! is skipped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use penstock_testing::{TempDir, temp_dir};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use serde_json::Value;

use crate::support::controller::client;
use crate::support::{BINARY, await_some, await_true, namespace_options, penstock};

const TOPOLOGY: &str = r#"[fabric]
name = "one rack"
queues = 4

[servers]
slots = 10

[[tier]]
fan_out = 2
rate = "1G"
"#;
const TENANT: &str = r#"[[tenant]]
name = "web"
vms = 2
rate = "300M"
most_per_server = 1

[[tenant]]
name = "mail"
vms = 2
rate = "100M"
most_per_server = 1
"#;

/// A process in the test's network namespace, killed with the test.
struct Process(Child);

impl Process {
    fn start(space: u32, log: &Path, words: &[&str]) -> Self {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={space}")).args(["--net", "--"]).args(words);
        command.env_remove("PENSTOCK_SOCKET").env_remove("RUST_LOG");
        let log = fs::File::create(log).unwrap();
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Bed {
    dir: TempDir,
    space: Process,
    port: u16,
}

impl Bed {
    /// Creates a network namespace. Returns `None` if this machine does not permit network
    /// namespaces.
    fn new() -> Option<Self> {
        if namespace_options()? != ["--net"] {
            penstock_testing::skip("run as root");
            return None;
        }
        let dir = temp_dir();
        let mut command = Command::new("unshare");
        command.args(["--net", "--", "sh", "-c", "ip link set lo up && echo && exec sleep 600"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        // This line reports that the namespace exists.
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        // No other process is in the namespace.
        let bed = Self { dir, space: Process(child), port: 7_000 };
        bed.certificates();
        bed.file("fabric.toml", TOPOLOGY);
        bed.file("tenants.toml", TENANT);
        Some(bed)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.join(name);
        fs::write(&path, text).unwrap();
        path
    }

    fn certificates(&self) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        self.file("ca.pem", &ca.pem());
        for name in ["controller", "server-0", "server-1"] {
            let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            params.extended_key_usages =
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
            let key = KeyPair::generate().unwrap();
            self.file(&format!("{name}.pem"), &params.signed_by(&key, &ca).unwrap().pem());
            self.file(&format!("{name}.key"), &key.serialize_pem());
        }
    }

    fn inside(&self, script: &str) -> bool {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.space.0.id())).args(["--net", "--", "sh", "-c"]);
        command.arg(script).stderr(Stdio::null()).status().unwrap().success()
    }

    fn run(&self, name: &str, words: &[&str]) -> Process {
        let log = self.dir.join(format!("{name}.log"));
        Process::start(self.space.0.id(), &log, words)
    }

    fn controller(&self) -> Process {
        let at = self.dir.display();
        let file = self.file(
            "controller.toml",
            &format!(
                "[controller]\ntopology = \"fabric.toml\"\nsocket = \"{at}/c.sock\"\n\
                 agents = \"127.0.0.1:{}\"\ninterval_ms = 500\nreport_ms = 100\n\n\
                 [store]\npath = \"{at}/store.redb\"\n\n\
                 [tls]\nca = \"{at}/ca.pem\"\ncert = \"{at}/controller.pem\"\n\
                 key = \"{at}/controller.key\"\n\n\
                 [[switch]]\nname = \"rack-0\"\ndriver = \"sim\"\n",
                self.port
            ),
        );
        self.run("controller", &[BINARY, "controller", "run", "--config", file.to_str().unwrap()])
    }

    fn ask_controller(&self, words: &[&str]) -> Option<Value> {
        let all: Vec<&str> =
            ["controller"].iter().chain(words).chain(&["--json"]).copied().collect();
        let socket = self.dir.join("c.sock");
        let done = client(&socket).args(all).output().unwrap();
        serde_json::from_slice(&done.stdout).ok()
    }

    fn host_file(&self, n: usize, remark: &str) -> PathBuf {
        let at = self.dir.display();
        self.file(
            &format!("host-{n}.toml"),
            &format!(
                "# {remark}\n[host]\nname = \"server-{n}\"\nsocket = \"{at}/{n}.sock\"\n\
                 state_dir = \"{at}/state-{n}\"\nmetrics = \"127.0.0.1:{}\"\n\n\
                 [worker]\nidle_backoff_us = 1000\n\n\
                 [fabric]\ncontrollers = [\"127.0.0.1:{}\"]\nuplink = \"up\"\n\
                 tls = {{ ca = \"ca.pem\", cert = \"server-{n}.pem\",
                 key = \"server-{n}.key\" }}\n\n\
                 [[tenant]]\nname = \"web\"\nvlans = [10]\n\n\
                 [[tenant]]\nname = \"mail\"\nvlans = [20]\n\n\
                 [[port]]\nname = \"vm\"\ntap.interface = \"vm{n}\"\n\
                 tenant = \"web\"\nvlan = 10\n\n\
                 [[port]]\nname = \"m\"\ntap.interface = \"m{n}\"\n\
                 tenant = \"mail\"\nvlan = 20\n\n\
                 [[port]]\nname = \"up\"\ntap.interface = \"up{n}\"\nlink = \"100M\"\n\
                 trunk = [10, 20]\negress = \"wfq\"\n",
                9_800 + n,
                self.port
            ),
        )
    }

    /// Starts a host. While the host runs, its VM sends a datagram to an unknown address every few
    /// milliseconds.
    fn host(&self, n: usize) -> (Process, Process) {
        let file = self.host_file(n, "as it was");
        let words = [BINARY, "host", "run", "--config", file.to_str().unwrap()];
        let host = self.run(&format!("host-{n}"), &words);
        await_true("its interfaces", || {
            self.inside(&format!(
                "ip link set up{n} up && ip link set vm{n} up && \
                 ip addr replace 10.1.{n}.1/24 dev vm{n} && \
                 ip neigh replace 10.1.{n}.2 lladdr 02:00:00:00:00:09 dev vm{n} && \
                 ip link set m{n} up && ip addr replace 10.2.{n}.1/24 dev m{n} && \
                 ip neigh replace 10.2.{n}.2 lladdr 02:00:00:00:00:09 dev m{n}"
            ))
        });
        let script = format!(
            "while true; do printf %01000d 0 > /dev/udp/10.1.{n}.2/9; \
             printf %01000d 0 > /dev/udp/10.2.{n}.2/9; sleep 0.005; done"
        );
        (host, self.run(&format!("vm-{n}"), &["bash", "-c", &script]))
    }

    fn ask(&self, n: usize, line: &str) -> Value {
        let socket = self.dir.join(format!("{n}.sock"));
        await_some("an answer of the host", || {
            let told = penstock(&socket, &line.split_whitespace().collect::<Vec<_>>());
            serde_json::from_str(&told.out).ok()
        })
    }

    fn fabric(&self, n: usize) -> Value {
        self.ask(n, "host show --json")["fabric"].clone()
    }

    fn weights(&self, n: usize) -> Vec<u64> {
        let stats = self.ask(n, "stats up --json");
        let queues = stats["ports"][0]["queues"].as_array().cloned().unwrap_or_default();
        queues.iter().map(|queue| queue["weight"].as_u64().unwrap()).collect()
    }

    fn code_points(&self, n: usize) -> [u64; 2] {
        let socket = self.dir.join(format!("{n}.sock"));
        let told = penstock(&socket, &["tenant", "list", "--json"]);
        let tenants: Value = serde_json::from_str(&told.out).unwrap_or_default();
        [0, 1].map(|tenant| tenants[tenant]["dscp"].as_u64().unwrap_or(0))
    }

    fn in_force(&self, n: usize) -> ([u64; 2], Vec<u64>) {
        (self.code_points(n), self.weights(n))
    }

    fn metrics(&self, n: usize) -> String {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.space.0.id())).args(["--net", "--", "bash", "-c"]);
        command.arg(format!(
            "exec 3<>/dev/tcp/127.0.0.1/{}; \
             printf 'GET /metrics HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n' >&3; \
             cat <&3",
            9_800 + n
        ));
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for log in ["controller.log", "host-0.log", "host-1.log"] {
                let text = fs::read_to_string(self.dir.join(log)).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                eprintln!("{log}:\n{}", lines[lines.len().saturating_sub(25)..].join("\n"));
            }
        }
    }
}

#[test]
fn a_plan_reaches_the_data_path_and_outlives_the_controller() {
    let Some(bed) = Bed::new() else { return };
    let controller = bed.controller();
    let (mut first, _vm0) = bed.host(0);
    let (_second, _vm1) = bed.host(1);
    await_true("the controller", || {
        let file = bed.dir.join("tenants.toml");
        bed.ask_controller(&["tenant", "add", file.to_str().unwrap()])
            .is_some_and(|added| added["placed"][0]["name"] == "web")
    });
    // Reports arrive, tenants receive queues, and both hosts apply the queues. The map is static,
    // so code points 1 and 2 are queues 1 and 2. The tenant with the larger guarantee has more
    // weight.
    await_true("queues for both tenants", || {
        (0..2).all(|n| bed.code_points(n).iter().all(|dscp| *dscp != 0))
    });
    let told = [0, 1].map(|n| bed.in_force(n));
    assert_eq!(told[0], told[1], "one code point each on both hosts, and queues alike");
    let [web, mail] = told[0].0.map(|dscp| told[0].1[usize::try_from(dscp).unwrap()]);
    assert!(web > mail, "{told:?}");
    for n in 0..2 {
        let fabric = bed.fabric(n);
        assert_eq!((&fabric["stale_ms"], &fabric["told"]), (&Value::Null, &fabric["applied"]));
        assert!(fabric["counters"]["reports"].as_u64().unwrap() > 0, "{fabric}");
        let page = bed.metrics(n);
        let told = page.lines().filter(|line| line.starts_with("penstock_fabric_connected"));
        assert_eq!(told.collect::<Vec<_>>(), ["penstock_fabric_connected{} 1.0"]);
    }
    let marked = || {
        let stats = bed.ask(0, "stats up --json");
        let queues = stats["ports"][0]["queues"].as_array().unwrap().clone();
        queues[1..].iter().map(|queue| queue["frames"].as_u64().unwrap()).sum::<u64>()
    };
    await_true("frames in the tenant's queue", || marked() > 0);
    // Without a leader, the status shows the loss, and the settings stay.
    drop(controller);
    await_true("stale", || (0..2).all(|n| bed.fabric(n)["stale_ms"].is_u64()));
    assert!(bed.metrics(0).contains("penstock_fabric_stale{} 1.0"));
    assert_eq!([0, 1].map(|n| bed.in_force(n)), told);
    let before = marked();
    await_true("more frames in it", || marked() > before);
    // The host reads its file again after an unrelated change.
    bed.host_file(0, "with another remark");
    let socket = bed.dir.join("0.sock");
    penstock(&socket, &["host", "reload"]).ok();
    assert_eq!(bed.in_force(0), told[0]);
    // The host restarts without a controller.
    first.0.kill().unwrap();
    first.0.wait().unwrap();
    let (_first, _vm0) = bed.host(0);
    await_true("the plan of before", || bed.in_force(0) == told[0]);
    assert_eq!(bed.fabric(0)["counters"]["resumed"], 1);
    // A controller returns.
    let _controller = bed.controller();
    await_true("not stale", || {
        (0..2).all(|n| {
            let fabric = bed.fabric(n);
            fabric["stale_ms"].is_null() && fabric["controller"] != ""
        })
    });
    await_true("the same code points", || (0..2).all(|n| bed.code_points(n) == told[0].0));
}
