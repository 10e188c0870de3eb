//! Tests of TAP, AF_PACKET and AF_XDP ports with the kernel's network stack behind them. Each test
//! creates namespaces, and a veth pair as the uplink if needed. Each test sends pings and TCP
//! through a configured host. Without root, the tests print that they are skipped.

use std::process::{Child, Command, Stdio};

use penstock_control::api::PortStatus;
use penstock_control::config;
use penstock_control::host::Host;
use penstock_testing::{TempDir, temp_dir, wait_until};
use penstock_units::Nanos;

/// Namespaces and programs of one test. When the value is dropped, the namespaces and programs are
/// removed.
struct Lab {
    tag: String,
    dir: TempDir,
    children: Vec<Child>,
}

impl Lab {
    /// Creates the namespaces of a test. If the namespaces cannot be created, prints the reason and
    /// returns `None`.
    fn new(name: &str, namespaces: &[&str]) -> Option<Self> {
        let tag = format!("pk{}{name}", std::process::id());
        let lab = Self { tag, dir: temp_dir(), children: Vec::new() };
        for namespace in namespaces {
            let made = Command::new("ip").args(["netns", "add", &lab.netns(namespace)]).output();
            if !made.as_ref().is_ok_and(|o| o.status.success()) {
                penstock_testing::skip(format_args!(
                    "`ip netns add` needs root and iproute2: {made:?}"
                ));
                return None;
            }
        }
        Some(lab)
    }

    fn netns(&self, name: &str) -> String {
        format!("{}-{name}", self.tag)
    }

    /// Runs a command in a namespace. Returns the command's output, or the text of the error if the
    /// command failed.
    fn try_in(&self, namespace: &str, command: &str) -> Result<String, String> {
        let output = Command::new("ip")
            .args(["netns", "exec", &self.netns(namespace)])
            .args(command.split_whitespace())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        if output.status.success() { Ok(text) } else { Err(format!("{command}: {text}{errors}")) }
    }

    fn run_in(&self, namespace: &str, command: &str) -> String {
        self.try_in(namespace, command).unwrap_or_else(|e| panic!("{e}"))
    }

    fn spawn_in(&mut self, namespace: &str, command: &str) {
        let child = Command::new("ip")
            .args(["netns", "exec", &self.netns(namespace)])
            .args(command.split_whitespace())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.children.push(child);
    }

    /// Whether a ping from namespace a reaches namespace b.
    fn pings(&self) -> bool {
        self.try_in("a", "busybox ping -c 1 -W 1 10.1.0.2").is_ok()
    }

    /// Gives the interfaces of the namespaces a and b their addresses, and waits for a ping.
    fn connect(&self) {
        for (namespace, address) in [("a", "10.1.0.1/24"), ("b", "10.1.0.2/24")] {
            self.run_in(namespace, &format!("ip addr replace {address} dev eth0"));
            self.run_in(namespace, "ip link set eth0 up");
        }
        wait_until("a ping", || self.pings());
    }

    /// Starts a server of iperf3 in namespace b.
    fn serve(&mut self) {
        self.spawn_in("b", "iperf3 -s");
        let listening = || self.run_in("b", "ss -Hltn sport = :5201").contains("5201");
        wait_until("iperf3 listens", listening);
    }

    fn host(&self, text: &str) -> Host {
        self.host_named("one", text)
    }

    fn host_named(&self, name: &str, text: &str) -> Host {
        let dir = self.dir.join(name).display().to_string();
        std::fs::create_dir_all(&dir).unwrap();
        let text = format!(
            "[host]\nname = \"{name}\"\nsocket = \"{dir}/api\"\nstate_dir = \"{dir}/state\"\n\
             [worker]\ncores = [0]\n{}",
            text.replace("NS-", &self.netns(""))
        );
        let path = self.dir.join(name).join("host.toml");
        std::fs::write(&path, text).unwrap();
        let config = config::load(&path).unwrap_or_else(|errors| panic!("{errors}"));
        Host::start(config, Some(path)).unwrap()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        let list = Command::new("ip").args(["netns", "list"]).output();
        let list = list.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
        for line in list.unwrap_or_default().lines() {
            let name = line.split_whitespace().next().unwrap_or_default();
            if name.starts_with(&format!("{}-", self.tag)) {
                let _ = Command::new("ip").args(["netns", "del", name]).status();
            }
        }
    }
}

const RED: &str = "[[tenant]]\nname = \"red\"\n";

/// Returns the table of a port with the interface `eth0` in the namespace of the same name.
fn tap(name: &str) -> String {
    format!(
        "[[port]]\nname = \"{name}\"\ntenant = \"red\"\n\
         tap.interface = \"eth0\"\ntap.netns = \"NS-{name}\"\n"
    )
}

fn counter(host: &Host, port: &str, name: &str) -> u64 {
    let stats = host.stats(true).unwrap();
    assert_eq!(stats.violations, Vec::<String>::new());
    let port = stats.ports.iter().find(|p| p.port == port).unwrap();
    port.counters.iter().find(|counter| counter.name == name).unwrap().value
}

/// Starts two hosts. Each host has a TAP port for one VM in VLAN 100. Each host also has a trunk
/// port of type `kind` on `up0` or `up1`, the ends of a veth pair. The function starts both hosts
/// before it waits for the ports, because a veth's end has a carrier only if the other end is up.
fn two_hosts(lab: &Lab, kind: &str) -> (Host, Host) {
    let start = |name, vm, uplink| {
        lab.host_named(
            name,
            &format!(
                "[[tenant]]\nname = \"red\"\nvlans = [100]\n\
                 [[port]]\nname = \"vm\"\ntenant = \"red\"\ntap.interface = \"eth0\"\n\
                 tap.netns = \"NS-{vm}\"\nvlan = 100\n\
                 [[port]]\nname = \"uplink\"\ntype = \"{kind}\"\ninterface = \"{uplink}\"\n\
                 netns = \"NS-wire\"\ntrunk = [100]\n"
            ),
        )
    };
    let (one, two) = (start("one", "a", "up0"), start("two", "b", "up1"));
    for host in [&one, &two] {
        wait_until("all ports are up", || host.ports().iter().all(|port| port.state == "up"));
    }
    (one, two)
}

#[test]
fn two_hosts_carry_a_vlan_over_a_wire_with_its_large_segments_whole() {
    let Some(mut lab) = Lab::new("w", &["a", "b", "wire"]) else { return };
    lab.run_in("wire", "ip link add up0 type veth peer name up1");
    let (one, two) = two_hosts(&lab, "packet");
    lab.connect();
    lab.serve();
    for reverse in ["", "-R"] {
        // The iperf3 server may not have finished the previous test, so the client may have to
        // retry.
        let client = format!("iperf3 -c 10.1.0.2 -t 2 {reverse}");
        wait_until("a TCP stream", || lab.try_in("a", &client).is_ok());
    }
    for host in [&one, &two] {
        assert!(counter(host, "uplink", "tx_tso") > 0);
        assert!(counter(host, "uplink", "rx_tso") > 0);
        assert_eq!(counter(host, "uplink", "sw_tso"), 0);
        assert_eq!(counter(host, "uplink", "rx_errors"), 0);
    }
    // The frames on the wire are tagged. If the far host's trunk carries another VLAN, it drops all
    // of them.
    let trunk = [("trunk".to_owned(), "[200]".to_owned())];
    two.set_tenant("red", &[("vlans".to_owned(), "[100, 200]".to_owned())], false).unwrap();
    two.set_port("uplink", &trunk, false).unwrap();
    assert!(!lab.pings());
    let stats = two.stats(true).unwrap();
    let uplink = stats.ports.iter().find(|p| p.port == "uplink").unwrap();
    assert!(uplink.drops.iter().any(|drop| drop.name == "vlan-ingress" && drop.value > 0));
    one.shutdown().unwrap();
    two.shutdown().unwrap();
}

#[test]
fn taps_without_offloads_get_finished_frames_and_multiqueue_works() {
    let Some(mut lab) = Lab::new("t", &["a", "b"]) else { return };
    let host = lab.host(&format!(
        "{RED}{}tap.queues = 2\n{}tap.offloads = false\ntap.mtu = 1400\n",
        tap("a"),
        tap("b")
    ));
    lab.connect();
    assert!(lab.run_in("b", "ip link show dev eth0").contains("mtu 1400"));
    lab.serve();
    lab.run_in("a", "iperf3 -c 10.1.0.2 -t 2 -P 4");
    // The sender's stack sent large segments. The switch cut them for port b and completed the
    // checksums.
    assert!(counter(&host, "a", "rx_tso") > 0);
    assert!(counter(&host, "b", "sw_tso") > 0);
    assert_eq!(counter(&host, "b", "tx_tso"), 0);
    // The interface of a removed port disappears, and the other port stays.
    host.del_port("a", false).unwrap();
    assert!(lab.try_in("a", "ip link show dev eth0").is_err());
    assert!(lab.try_in("b", "ip link show dev eth0").is_ok());
    host.shutdown().unwrap();
}

/// Runs streams until one gets at least `enough` Mbit/s, at most five. On a busy machine, a stream
/// may get less than its limit because the programs get no processor time. A limit that costs TCP
/// its rate costs it in each run. Returns the highest rate in Mbit/s, and checks that no stream
/// exceeds `most`.
fn best_stream(lab: &Lab, enough: u64, most: u64) -> u64 {
    let mut best = 0;
    for _ in 0..5 {
        let rate = stream(lab);
        assert!(rate <= most, "{rate} Mbit/s in the bytes of TCP alone");
        best = best.max(rate);
        if best >= enough {
            break;
        }
    }
    best
}

/// Returns the rate of one TCP stream from namespace a to namespace b over four seconds, in Mbit/s.
fn stream(lab: &Lab) -> u64 {
    let mut bytes = 0;
    // The iperf3 server may not have finished the previous test. It then refuses the client or
    // resets its connection, and `iperf3 -J` reports this in its output and may still exit with 0.
    wait_until("a TCP stream", || {
        let report = lab.try_in("a", "iperf3 -c 10.1.0.2 -t 4 -J").unwrap_or_default();
        let report: serde_json::Value = serde_json::from_str(&report).unwrap_or_default();
        bytes = report["end"]["sum_received"]["bytes"].as_u64().unwrap_or(0);
        bytes > 0
    });
    bytes * 8 / 4_000_000
}

/// The rate limit is 200 Mbit/s, which every machine should reach. Above the limit `police`, frames
/// wait, so the stream loses no frame. With a policer that drops frames and a bucket of only two
/// large segments, a TCP stream reached only 5 to 50 Mbit/s.
#[test]
fn a_stream_of_large_segments_has_its_rate_behind_either_policer() {
    let Some(mut lab) = Lab::new("p", &["a", "b"]) else { return };
    let host = lab.host(&format!("{RED}{}{}", tap("a"), tap("b")));
    lab.connect();
    lab.serve();
    let set = |port: &str, keys: &[(&str, &str)]| {
        let keys: Vec<_> = keys.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let report = host.set_port(port, &keys, false).unwrap();
        assert_eq!(report.warnings, Vec::<String>::new());
    };
    set("a", &[("ingress_policy", "bps"), ("police", "{ cir = \"200M\" }")]);
    let policed = best_stream(&lab, 150, 204);
    let waits = counter(&host, "a", "police_waits");
    assert!(waits > 0, "the stream was never held: {policed} Mbit/s");
    assert_eq!(counter(&host, "a", "police_red"), 0);
    set("a", &[("ingress_policy", ""), ("police", "")]);
    set("b", &[("receive", "{ rate = \"200M\" }")]);
    let received = best_stream(&lab, 150, 204);
    assert!(counter(&host, "a", "rx_tso") > 0);
    assert!(policed >= 150 && received >= 150, "police {policed}, receive {received} Mbit/s");
    host.shutdown().unwrap();
}

/// Returns the status of a port, as `penstock port show` prints the status.
fn shown(host: &Host, port: &str) -> PortStatus {
    host.ports().into_iter().find(|p| p.name == port).unwrap()
}

#[test]
fn two_hosts_carry_a_vlan_over_af_xdp_with_finished_frames() {
    let Some(mut lab) = Lab::new("x", &["a", "b", "wire"]) else { return };
    lab.run_in("wire", "ip link add up0 type veth peer name up1");
    let (one, two) = two_hosts(&lab, "xdp");
    for host in [&one, &two] {
        let port = shown(host, "uplink");
        assert_eq!(
            (port.features.join(" ").as_str(), port.error.as_str()),
            ("copy native need-wakeup", "")
        );
    }
    lab.connect();
    lab.serve();
    for reverse in ["", "-R", "-u -b 50M -l 1400"] {
        let client = format!("iperf3 -c 10.1.0.2 -t 1 {reverse}");
        wait_until("a stream", || lab.try_in("a", &client).is_ok());
    }
    for host in [&one, &two] {
        // The stacks send large segments with partial checksums. The switch cuts the segments and
        // completes the checksums before the wire.
        assert!(counter(host, "uplink", "sw_tso") > 0);
        assert_eq!(counter(host, "uplink", "tx_tso"), 0);
        assert!(counter(host, "uplink", "rx_frames") > 0);
        assert_eq!(counter(host, "uplink", "rx_errors"), 0);
    }
    one.shutdown().unwrap();
    two.shutdown().unwrap();
    let link = lab.run_in("wire", "ip -d link show");
    assert!(!link.contains("prog/xdp"), "{link}");
}

#[test]
fn an_xdp_port_falls_back_to_packet_and_comes_back_with_its_interface() {
    let Some(lab) = Lab::new("f", &["wire"]) else { return };
    let two = "numrxqueues 2 numtxqueues 2";
    let veth = |mtu: u32| format!("ip link add up0 mtu {mtu} {two} type veth peer name up1 {two}");
    lab.run_in("wire", &veth(9000));
    let host = lab.host(
        "[[tenant]]\nname = \"red\"\n\
         [[port]]\nname = \"up\"\ntenant = \"red\"\nxdp.interface = \"up0\"\n\
         xdp.netns = \"NS-wire\"\nxdp.queues = 3\n",
    );
    // Frames of 9,000 bytes do not fit into the buffers. The veth has two queues, but three are
    // required.
    let port = shown(&host, "up");
    assert_eq!(port.state, "error");
    assert!(port.error.contains("number of queues (limit 2)"), "{}", port.error);
    let set = |key: &str, value: &str| {
        host.set_port("up", &[(key.to_owned(), value.to_owned())], false).unwrap();
    };
    set("queues", "2");
    let port = shown(&host, "up");
    assert_eq!((port.queues, port.queues_up, port.features[0].as_str()), (2, 1, "packet"));
    assert!(port.error.contains("XDP was refused") && port.error.contains("MTU"), "{}", port.error);
    set("worker", "0");
    assert_eq!(shown(&host, "up").workers, [0]);
    // When the port is attached again, the switch retries XDP, which the kernel refused before.
    lab.run_in("wire", "ip link set up0 mtu 1500");
    set("zero_copy", "never");
    let port = shown(&host, "up");
    assert_eq!((port.features.contains(&"native".to_owned()), port.error), (true, String::new()));
    assert_eq!(port.workers, [0, 0]);
    lab.run_in("wire", "ip link del up0");
    let mut now = 0;
    let mut state = || {
        now += 1_000_000_000;
        host.tick(Nanos(now));
        shown(&host, "up").state
    };
    wait_until("the loss is seen", || state() == "error");
    lab.run_in("wire", &veth(1500));
    lab.run_in("wire", "ip link set up1 up");
    wait_until("it is attached again", || state() == "up");
    host.shutdown().unwrap();
}

#[test]
fn tap_and_packet_ports_come_back_with_their_interfaces() {
    let Some(lab) = Lab::new("g", &["a", "b", "wire"]) else { return };
    let veth = format!("ip link add up0 type veth peer name eth0 netns {}", lab.netns("b"));
    lab.run_in("wire", &veth);
    let host = lab.host(&format!(
        "{RED}{}[[port]]\nname = \"b\"\ntenant = \"red\"\n\
         packet.interface = \"up0\"\npacket.netns = \"NS-wire\"\n",
        tap("a")
    ));
    // An interface loses its address when it is deleted, so each part of the test connects again.
    lab.connect();
    let mut now = 0;
    let mut attached_again = |port: &str| {
        assert_eq!(shown(&host, port).state, "error", "{port}");
        now += 1_000_000_000;
        host.tick(Nanos(now));
        let port = shown(&host, port);
        assert_eq!((port.state.as_str(), port.error.as_str()), ("up", ""));
    };
    // The socket of a deleted interface does not bind to a new interface of the same name.
    lab.run_in("wire", "ip link del up0");
    lab.run_in("wire", &veth);
    attached_again("b");
    lab.connect();
    // The switch makes its own interface again.
    lab.run_in("a", "ip link del eth0");
    attached_again("a");
    lab.connect();
    // The open port keeps a namespace that was deleted, but follows its name to the next one.
    for verb in ["del", "add"] {
        let done = Command::new("ip").args(["netns", verb, &lab.netns("a")]).status().unwrap();
        assert!(done.success(), "{verb}");
    }
    attached_again("a");
    lab.connect();
    // An interface that only moves keeps its port.
    lab.run_in("a", &format!("ip link set eth0 netns {}", lab.netns("wire")));
    host.tick(Nanos(10_000_000_000));
    lab.run_in("wire", "ip link show eth0");
    host.shutdown().unwrap();
}

#[test]
fn a_namespace_behind_a_veth_speaks_tcp_through_an_xdp_port() {
    let Some(mut lab) = Lab::new("v", &["a", "b", "wire"]) else { return };
    let peer = lab.netns("b");
    lab.run_in("wire", &format!("ip link add up0 type veth peer name eth0 netns {peer}"));
    let host = lab.host(&format!(
        "{RED}{}[[port]]\nname = \"b\"\ntenant = \"red\"\n\
         xdp.interface = \"up0\"\nxdp.netns = \"NS-wire\"\n",
        tap("a")
    ));
    lab.connect();
    lab.serve();
    // The stack behind the veth leaves checksums partial. Without an XDP program, it also leaves
    // segments large.
    for reverse in ["", "-R"] {
        let client = format!("iperf3 -c 10.1.0.2 -t 1 {reverse}");
        wait_until("a TCP stream", || lab.try_in("a", &client).is_ok());
    }
    assert_eq!(counter(&host, "b", "rx_errors"), 0);
    assert!(counter(&host, "b", "rx_bytes") > 10_000_000);
    host.shutdown().unwrap();
}
