//! The committed files are those that the code makes and reads, and the schema refuses what it can
//! of what the code refuses.

use std::path::{Path, PathBuf};

use penstock_control::config::{parse, schema};

use crate::json_schema;
use crate::wrong;

/// Whether an editor that goes by the schema marks nothing.
fn passes_the_schema(text: &str) -> bool {
    let schema: serde_json::Value = serde_json::from_str(&schema()).expect("a schema");
    let file: serde_json::Value = toml_edit::de::from_str(text).expect("TOML");
    json_schema::is_valid(&schema, &schema, &file)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_committed_schema_is_fresh() {
    let path = root().join("docs/host.schema.json");
    let made = schema();
    if std::env::var_os("PENSTOCK_WRITE_SCHEMA").is_some() {
        std::fs::write(&path, &made).expect("docs can be written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let remedy = "run PENSTOCK_WRITE_SCHEMA=1 cargo test -p penstock-control --test all schema";
    assert!(committed == made, "docs/host.schema.json is stale: {remedy}");
}

#[test]
fn every_example_is_right() {
    let mut count = 0;
    for entry in std::fs::read_dir(root().join("examples")).expect("examples") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let text = std::fs::read_to_string(&path).expect("readable");
            // A datacenter and its tenants are looked at in `fabric_files.rs`.
            if !text.contains("[host]") {
                continue;
            }
            if let Err(errors) = parse(&text, &path.display().to_string()) {
                panic!("{errors}");
            }
            assert!(passes_the_schema(&text), "{} is refused by the schema", path.display());
            count += 1;
        }
    }
    assert!(count >= 2);
}

#[test]
fn every_key_is_documented() {
    let documentation = std::fs::read_to_string(root().join("docs/configuration.md"))
        .expect("docs/configuration.md");
    let schema: serde_json::Value = serde_json::from_str(&schema()).expect("a schema");
    let mut tables = vec![&schema];
    tables.extend(schema["$defs"].as_object().into_iter().flat_map(|defs| defs.values()));
    let keys = tables.iter().filter_map(|table| table["properties"].as_object());
    let missing: Vec<&String> = keys
        .flat_map(|keys| keys.keys())
        .filter(|key| {
            !documentation.contains(&format!("`{key}`"))
                && !documentation.contains(&format!("[{key}]"))
        })
        .collect();
    assert!(missing.is_empty(), "not in docs/configuration.md: {missing:?}");
}

const VM: &str =
    "[[port]]\nname = \"x\"\ntype = \"vhost-user\"\nsocket = \"/x\"\ntenant = \"blue\"\n";
const TAP: &str = "[[port]]\nname = \"x\"\ntype = \"tap\"\ninterface = \"x\"\ntenant = \"blue\"\n";
const WIRE: &str = "[[port]]\nname = \"x\"\ntype = \"packet\"\ninterface = \"x\"\nvlan = 100\n";
const RULE: &str = "[[rule]]\nname = \"x\"\nactions = [\"drop\"]\n";

/// One mistake each, and one that a schema can say: what it is appended to, and the keys. Those of
/// the first list go into `[host]`.
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
            "[worker]\nidle_backoff_us = 5000",
            "[worker]\nschedule = \"fast\"",
            "[forwarding]\nfdb_ageing_s = 1",
            "[[tenant]]\nvlans = [1]",
            "[[tenant]]\nname = \"a b\"",
            "[[tenant]]\nname = \"\"",
            "[[tenant]]\nname = \"t\"\nfdb_limit = 0",
            "[[tenant]]\nname = \"t\"\nvlans = [4095]",
            "[[tenant]]\nname = \"t\"\ndscp = 64",
            "[[tenant]]\nname = \"t\"\nsend = { burst = 2000 }",
            "[[tenant]]\nname = \"t\"\nsend = { rate = \"1G\", sharing = \"strict\" }",
            "[[port]]\nname = \"x\"",
            "[[port]]\nname = \"x\"\ntype = \"dpdk\"",
            "[[port]]\nname = \"x\"\ntype = \"tap\"\ntenant = \"blue\"",
            "[[port]]\nname = \"x\"\ntype = \"vhost-user\"\ntenant = \"blue\"",
            "[[vm]]\nname = \"x\"\npid = 7",
            "[[fdb]]\nport = \"vm1\"",
            "[[fdb]]\nport = \"vm1\"\nmac = \"01:00:5e:00:00:01\"",
        ],
    ),
    (
        VM,
        &[
            "queuez = 3",
            "queues = 9",
            "queues = \"a\"",
            "interface = \"x\"",
            "mtu = 1500",
            "mode = \"serve\"",
            "mode = \"client\"\nsocket_group = \"kvm\"",
            "socket_mode = \"0888\"",
            "mac = [\"x\"]",
            "mac = [\"01:00:5e:00:00:01\"]",
            "ip = [\"10.0.0.256\"]",
            "ip = [\"host\"]",
            "slow_path = 5",
            "slow_path = { per_second = 0 }",
            "offloads = 3",
            "offloads = { csum = false }",
            "offloads = { csum = false, tso = true }",
            "priority = 9",
            "weight = 0",
            "depth = 10",
            "cycles = \"many\"",
            "contract = { size = 64 }",
            "contract = { rate = \"1G\", flows = \"some\" }",
            "police = \"2G\"",
            "police = { cbs = 1 }",
            "police = { cir = \"1G\", pps = \"1k\" }",
            "police = { cir = \"1G\", burst = 5 }",
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
            "wfq = { weights = [1] }",
            "trunk = []",
            "native = 5",
        ],
    ),
    (TAP, &["socket = \"/y\"", "zero_copy = \"never\"", "mtu = 20", "netns = \"a/b\""]),
    (
        WIRE,
        &[
            "queues = 2",
            "trunk = [100]",
            "receive = { rate = \"1G\" }",
            "rtp = [{ port = 5004 }]",
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

/// Whatever is appended to without a mistake is right by both.
#[test]
fn the_schema_accepts_what_is_right() {
    for right in [
        VM,
        TAP,
        WIRE,
        RULE,
        &format!("{VM}receive = {{ rate = \"1G\" }}\npolice = {{ pps = \"600k\" }}\n"),
        &format!("{VM}ingress_policy = \"pps\"\ncontract = {{ rate = \"1Mpps\" }}\n"),
        &format!("{VM}mode = \"client\"\nip = [\"10.0.0.1\", \"2001:db8::1\"]\n"),
        &format!("{TAP}mtu = 9000\noffloads = {{ csum = true, tso = false }}\n"),
        &format!("{WIRE}egress = \"wfq\"\nlink = \"10G\"\nwfq = {{ weights = [1, 2] }}\n"),
    ] {
        let text = format!("{}{right}", wrong::BASE);
        assert_eq!(wrong::errors(&text), [""; 0], "{right}");
        assert!(passes_the_schema(&text), "refused by the schema:\n{right}");
    }
}
