//! Tests that the code generates the committed schemas, and reads the committed example files.
//! Tests that the schemas refuse as many mistakes of configuration files as a schema can express.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use penstock_control::config::{SCHEMAS, parse, schema};
use penstock_testing::{committed, json_schema};
use penstock_vcpu::terms::{VcpuSection, VmTable};
use serde_json::{Value, json};

use crate::wrong;

/// Whether the schema of host configurations accepts `text`.
fn passes_the_schema(text: &str) -> bool {
    passes("host", text)
}

/// Whether the schema of configuration files of kind `kind` accepts `text`.
fn passes(kind: &str, text: &str) -> bool {
    let schema = of_kind(kind);
    let file: Value = toml_edit::de::from_str(text).expect("TOML");
    json_schema::is_valid(&schema, &schema, &file)
}

fn of_kind(kind: &str) -> Value {
    let (_, make) = SCHEMAS.iter().find(|(name, _)| *name == kind).expect("a kind of file");
    serde_json::from_str(&make()).expect("a schema")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_committed_schemas_are_fresh() {
    for (name, make) in SCHEMAS {
        let path = root().join(format!("docs/reference/{name}.schema.json"));
        committed::compare(&path, &make(), "-p penstock-control --test all schema");
    }
}

#[test]
fn the_schemas_are_strict() {
    for (name, _) in SCHEMAS {
        assert_eq!(json_schema::loose(&of_kind(name)), [""; 0], "{name}");
    }
    for wrong in [
        json!({ "pattern": "a" }),
        json!({ "type": ["string", "integer"] }),
        json!({ "type": "object", "required": ["a"] }),
        json!({ "type": "object", "properties": { "a": { "minimum": 1 } } }),
        json!({ "if": true }),
    ] {
        assert_eq!(json_schema::loose(&wrong).len(), 1, "{wrong}");
    }
    for unknown in ["format", "colour"] {
        let schema = json!({ "type": "integer", unknown: "uint32" });
        assert!(std::panic::catch_unwind(|| json_schema::loose(&schema)).is_err(), "{unknown}");
    }
}

/// Returns the kind of a configuration file, such as `host`, from the tables that the file
/// contains. Returns `None` for a file of the controller, because another test covers files of the
/// controller.
fn kind(file: &Value) -> Option<&'static str> {
    let has = |table: &str| file.get(table).is_some();
    match () {
        () if has("host") => Some("host"),
        () if has("controller") => None,
        () if has("vcpu") => Some("vcpu"),
        () if has("fabric") || has("tenant") => None,
        () => panic!("a file of no kind: {file}"),
    }
}

#[test]
fn every_example_is_right() {
    let mut kinds: BTreeMap<&str, u32> = BTreeMap::new();
    for folder in ["examples", "packaging", "packaging/debian"] {
        for entry in std::fs::read_dir(root().join(folder)).expect(folder) {
            let path = entry.expect("an entry").path();
            let name = path.display().to_string();
            let is_tested_elsewhere = path.is_dir()
                // Lanes of scripts/ use these files: packages, image and libvirt.
                || folder == "packaging/debian" && !name.ends_with(".toml")
                || ["Containerfile", "libvirt-hook-qemu"].iter().any(|file| name.ends_with(file));
            if is_tested_elsewhere {
                continue;
            }
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("toml") => {}
                // These files belong to systemd. `scripts/test-units.sh` checks them with systemd.
                Some("service" | "socket" | "conf" | "sysusers" | "md") => continue,
                _ => panic!("{name}: nothing looks at files of this kind"),
            }
            let text = std::fs::read_to_string(&path).expect("readable");
            let file = toml_edit::de::from_str(&text).expect("TOML");
            let Some(kind) = kind(&file) else { continue };
            // The scheduler's tests read the other kind, `vcpu`.
            let wrong = if kind == "host" { parse(&text, &name).err() } else { None };
            assert!(wrong.is_none(), "{wrong:?}");
            assert!(passes(kind, &text), "{name} is refused by the schema");
            *kinds.entry(kind).or_default() += 1;
        }
    }
    assert!(SCHEMAS.iter().all(|(kind, _)| kinds.contains_key(kind)), "{kinds:?}");
}

#[test]
fn every_key_of_the_scheduler_is_documented() {
    let docs = "docs/reference/configuration.md";
    let text = std::fs::read_to_string(root().join(docs)).expect(docs);
    let missing = json_schema::undocumented(&of_kind("vcpu"), &text);
    assert!(missing.is_empty(), "not in {docs}: {missing:?}");
}

#[test]
fn every_key_is_documented() {
    let documentation = std::fs::read_to_string(root().join("docs/reference/configuration.md"))
        .expect("docs/reference/configuration.md");
    let schema: Value = serde_json::from_str(&schema()).expect("a schema");
    let missing: Vec<String> = json_schema::keys(&schema)
        .into_iter()
        .filter(|key| {
            !documentation.contains(&format!("`{key}`"))
                && !documentation.contains(&format!("[{key}]"))
        })
        .collect();
    assert!(missing.is_empty(), "not in docs/reference/configuration.md: {missing:?}");
}

const VM: &str = "[[port]]\nname = \"x\"\nvhost-user.socket = \"/x\"\ntenant = \"blue\"\n";
const TAP: &str = "[[port]]\nname = \"x\"\ntap.interface = \"x\"\ntenant = \"blue\"\n";
const WIRE: &str = "[[port]]\nname = \"x\"\npacket.interface = \"x\"\nvlan = 100\n";
const RULE: &str = "[[rule]]\nname = \"x\"\nactions = [\"drop\"]\n";

/// Lines with a mistake in `[host]` that a schema can find. The test adds each of the lines to the
/// table `[host]`. Mistakes in other tables are in [`APPENDED`].
const OF_THE_HOST: [&str; 11] = [
    "socket = \"host.sock\"",
    "state_dir = \"var\"",
    "metrics = \"0.0.0.0:9753\"",
    "metrics = \"localhost:9753\"",
    "metrics = 9753",
    "log = \"loud\"",
    "log = \"info,\"",
    "colour = \"red\"",
    "metrics_any = \"yes\"",
    "memory_gib = 0",
    "memory_per_port_gib = 131073",
];
const APPENDED: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "[hosts]",
            "[worker]\ncores = [1, 1]",
            "[worker]\ncontrol_cores = [1, 1]",
            "[fabric]\ncontrollers = [\"c:1\", \"c:1\"]\nuplink = \"tap1\"",
            "[switch]\nports = [\"tap1\", \"tap1\"]",
            "[worker]\nidle_backoff_us = 5000",
            "[worker]\nschedule = \"fast\"",
            "[forwarding]\nfdb_ageing_s = 1",
            "[[tenant]]\nvlans = [1]",
            "[[tenant]]\nname = \"a b\"",
            "[[tenant]]\nname = \"\"",
            "[[tenant]]\nname = \"ffffffffffffffffffffffffffffffffffffffff\
             fffffffffffffffffffffffff\"",
            "[[tenant]]\nname = \"t\"\nfdb_limit = 0",
            "[[tenant]]\nname = \"t\"\nvlans = [4095]",
            "[[tenant]]\nname = \"t\"\ndscp = 64",
            "[[tenant]]\nname = \"t\"\nsend = { burst = 2000 }",
            "[[tenant]]\nname = \"t\"\nsend = { rate = \"1G\", sharing = \"strict\" }",
            "[[port]]\nname = \"x\"",
            "[[port]]\nname = \"x\"\ntype = \"dpdk\"",
            "[[port]]\nname = \"x\"\ntenant = \"blue\"",
            "[[port]]\nname = \"x\"\ntenant = \"blue\"\ntap = {}",
            "[[port]]\nname = \"x\"\ntenant = \"blue\"\nvhost-user = 5",
            "[[vm]]\nname = \"x\"\npid = 7",
            "[[port]]\nname = \"x\"\npacket.interface = \"x\"\nvlan = \"4095\"",
            "[[fdb]]\nport = \"vm1\"",
            "[[fdb]]\nport = \"vm1\"\nmac = \"01:00:5e:00:00:01\"",
        ],
    ),
    (
        VM,
        &[
            "queuez = 3",
            "vhost-user.queues = 9",
            "vhost-user.queues = \"a\"",
            "vhost-user.interface = \"x\"",
            "vhost-user.mtu = 1500",
            "vhost-user.mode = \"serve\"",
            "vhost-user.mode = \"client\"\nvhost-user.socket_group = \"kvm\"",
            "vhost-user.socket_mode = \"0888\"",
            "mac = [\"x\"]",
            "mac = [\"01:00:5e:00:00:01\"]",
            "ip = [\"10.0.0.256\"]",
            "ip = [\"host\"]",
            "ip = [\"10.0.0.1\", \"10.0.0.1\"]",
            "slow_path = 5",
            "slow_path = { per_second = 0 }",
            "vhost-user.offloads = 3",
            "vhost-user.offloads = { csum = false }",
            "vhost-user.offloads = { csum = false, tso = true }",
            "priority = 9",
            "cycle_weight = 0",
            "weight = 5\ncycle_weight = 5",
            "type = \"vhost-user\"",
            "queues = 2",
            "tap = { interface = \"x\" }",
            "depth = 10",
            "cycles = \"many\"",
            "contract = { size = 64 }",
            "contract = { rate = \"1G\", flows = \"some\" }",
            "police = \"2G\"",
            "police = { cbs = 1 }",
            "police = { cir = \"1G\", burst = 5 }",
            "police = { pps = \"1k\", cbs = 5 }",
            "police = { cir = \"1G\", pbs = 50000 }",
            "ingress_policy = \"fast\"",
            "ingress_policy = \"pps\"",
            "receive = { burst = 2000 }",
            "receive = { rate = \"1G\", frames = 5 }",
            "receive = { rate = \"1G\", sharing = \"strict\" }",
            "rtp = [{ port = 0 }]",
            "rtp = [{ port = 5, clock_hz = 0 }]",
            "egress = \"drr\"",
            "queue = { bytes = 100 }",
            "shape = { period_ms = 5 }",
            "shape = { send = \"4M\", window_us = 0 }",
            "shape = { send = \"4M\", shaper = \"token-bucket\", interval_ms = 500 }",
            "wfq = { weights = [1] }",
            "inbound = { rate = \"1G\" }",
            "trunk = []",
            "native = 5",
        ],
    ),
    (
        TAP,
        &[
            "tap.socket = \"/y\"",
            "tap.zero_copy = \"never\"",
            "tap.mtu = 20",
            "tap.netns = \"a/b\"",
            "xdp.interface = \"y\"",
        ],
    ),
    (
        WIRE,
        &[
            "packet.queues = 2",
            "trunk = [100]",
            "receive = { rate = \"1G\" }",
            "rtp = [{ port = 5004 }]",
            "inbound = {}",
            "inbound = { rates = \"1G\" }",
            "egress = \"wfq\"\nwfq = { queues = 1 }",
            "egress = \"wfq\"\nwfq = { map = { 64 = 0 } }",
        ],
    ),
    (
        RULE,
        &[
            "port = \"vm1\"\ntenant = \"red\"",
            "match = 80",
            "match = { dst_port = 80 }",
            "match = { proto = \"tcp\", dst_port = \"80-\" }",
            "match = { proto = \"256\" }",
            "match = { dscp = \"64\" }",
            "match = { ethertype = \"80\" }",
            "match = { vlan = \"0\" }",
            "match = { src = \"10.0.0.0.0/x\" }",
        ],
    ),
    ("[[rule]]\nname = \"x\"\n", &["actions = []", "actions = [\"jump\"]"]),
];

#[test]
fn the_schema_refuses_what_it_can_say() {
    assert!(passes_the_schema(wrong::BASE));
    let of_the_host = OF_THE_HOST
        .iter()
        .map(|mistake| wrong::BASE.replacen("[host]\n", &format!("[host]\n{mistake}\n"), 1));
    let appended = APPENDED.iter().flat_map(|(to, mistakes)| {
        mistakes.iter().map(move |mistake| format!("{}{to}{mistake}\n", wrong::BASE))
    });
    let mut accepted = Vec::new();
    for text in of_the_host.chain(appended) {
        assert_ne!(wrong::errors(&text), [""; 0], "this is right:\n{text}");
        if passes_the_schema(&text) {
            accepted.push(text.replace(wrong::BASE, ""));
        }
    }
    assert!(accepted.is_empty(), "accepted by the schema:\n{}", accepted.join("\n"));
}

/// Tests that the schema and the code accept configurations without a mistake.
#[test]
fn the_schema_accepts_what_is_right() {
    for right in [
        VM,
        TAP,
        WIRE,
        RULE,
        &format!("{VM}receive = {{ rate = \"1G\" }}\npolice = {{ pps = \"600k\" }}\n"),
        &format!("{VM}ingress_policy = \"pps\"\ncontract = {{ rate = \"1Mpps\" }}\n"),
        &format!("{VM}vhost-user.mode = \"client\"\nip = [\"10.0.0.1\", \"2001:db8::1\"]\n"),
        &WIRE.replace("vlan = 100", "vlan = \"100\""),
        &WIRE.replace("vlan = 100", "trunk = [\"100\", \"102 - 104\"]\nnative = \"100\""),
        &format!("{RULE}match = {{ proto = \"6\", dscp = \"46\", vlan = \"7\" }}\n"),
        &format!("{RULE}match = {{ ethertype = \"2048\", dscp = \"0x2e\" }}\n"),
        &format!("{TAP}tap.mtu = 9000\ntap.offloads = {{ csum = true, tso = false }}\n"),
        &format!("{WIRE}egress = \"wfq\"\nlink = \"10G\"\nwfq = {{ weights = [1, 2] }}\n"),
        &format!("{WIRE}link = \"10G\"\ninbound = {{}}\n"),
        &format!("{WIRE}inbound = {{ rate = \"9500M\" }}\n"),
        // The ID of a container is a name.
        &format!("[[tenant]]\nname = \"{}\"\n", "f".repeat(64)),
    ] {
        let text = format!("{}{right}", wrong::BASE);
        assert_eq!(wrong::errors(&text), [""; 0], "{right}");
        assert!(passes_the_schema(&text), "refused by the schema:\n{right}");
    }
}

const CPUS: &str = "[vcpu]\ncpus = [1]\n";
const CLOCK: &str = "[vcpu]\ncpus = [1]\n[[vm]]\nname = \"a\"\n";

/// Test case: the start of a file, valid texts to append to the start, and texts to append that
/// contain a mistake.
type Cases = (&'static str, &'static [&'static str], &'static [&'static str]);
const VCPU: &[Cases] = &[
    (
        CPUS,
        &["run_dir = \"/run/v\"\ndeadlines_max = 70"],
        &["run_dir = \"v\"", "deadlines_max = 101", "cpu = 1", "[[vm]]\nname = \"a\"", "[host]"],
    ),
    (
        CLOCK,
        &[
            "pid = 1",
            "cgroup = \"/a\"\nvcpu_mode = \"periodic\"\ndeadline = \"3 ms\"",
            "domain = \"a\"\nvcpu_mode = \"reserved\"\ndeadline = \"3ms\"\n\
             runtime = \"0.6 ms\"\nreclaim = true",
        ],
        &[
            "pid = 1\ndomain = \"a\"",
            "cgroup = \"a\"",
            "process = \"\"",
            "domain = \" \"",
            "pid = 1\nthreads = \"\"",
            "pid = 1\nvcpu_mode = \"driver\"",
            "pid = 1\nvcpu_mode = \"periodic\"",
            "pid = 1\ndeadline = \"3 ms\"",
            "pid = 1\nvcpu_mode = \"aperiodic\"\ndeadline = \"3 h\"",
            "pid = 1\nvcpu_mode = \"aperiodic\"\ndeadline = \"3 ms\"\nruntime = \"1 ms\"",
            "pid = 1\nreclaim = true",
            "pid = 1\nvcpu_weight = 0",
            "pid = 1\nio_reserve = 51",
            "pid = 1\nvcpus = 65",
        ],
    ),
];

/// Returns the program's error about a configuration file of the vCPU scheduler; `None` if the file
/// is valid.
fn refuses(text: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Vcpus {
        vcpu: VcpuSection,
        #[serde(default)]
        vm: Vec<VmTable>,
    }
    match toml_edit::de::from_str::<Vcpus>(text) {
        Ok(file) => {
            let vms = file.vm.iter().flat_map(VmTable::mistakes);
            let mut all = file.vcpu.mistakes().into_iter().chain(vms);
            all.next().map(|mistake| mistake.to_string())
        }
        Err(error) => Some(error.to_string()),
    }
}

#[test]
fn the_schedulers_schema_agrees_with_the_program() {
    let schema = of_kind("vcpu");
    for (base, right, wrong) in VCPU {
        json_schema::compare(&schema, base, right, wrong, refuses);
    }
}
