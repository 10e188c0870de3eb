//! The committed files are those that the code makes and reads, and the schemas refuse what they
//! can of what the code refuses.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use penstock_control::config::fabric::{
    load_controller, load_topology, parse_tenants, parse_topology,
};
use penstock_control::config::{SCHEMAS, parse, schema};
use penstock_vcpu::terms::{VcpuSection, VmTable};
use serde_json::{Value, json};

use crate::json_schema;
use crate::wrong;

/// Whether an editor that goes by the schema marks nothing in a host's file.
fn passes_the_schema(text: &str) -> bool {
    passes("host", text)
}

/// The same of a file of another kind.
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
        let made = make();
        if std::env::var_os("PENSTOCK_WRITE_SCHEMA").is_some() {
            std::fs::write(&path, &made).expect("docs can be written");
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        let remedy = "run PENSTOCK_WRITE_SCHEMA=1 cargo test -p penstock-control --test all schema";
        assert!(committed == made, "docs/reference/{name}.schema.json is stale: {remedy}");
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

/// The kind of a file by its tables.
fn kind(file: &Value) -> &'static str {
    let has = |table: &str| file.get(table).is_some();
    match () {
        () if has("host") => "host",
        () if has("controller") => "controller",
        () if has("vcpu") => "vcpu",
        () if has("fabric") => "fabric",
        () if has("tenant") => "tenants",
        () => panic!("a file of no kind: {file}"),
    }
}

#[test]
fn every_example_is_right() {
    let mut kinds: BTreeMap<&str, u32> = BTreeMap::new();
    for folder in ["examples", "packaging"] {
        for entry in std::fs::read_dir(root().join(folder)).expect(folder) {
            let path = entry.expect("an entry").path();
            let name = path.display().to_string();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("toml") => {}
                // Those of systemd; `scripts/test-units.sh` has it read them.
                Some("service" | "socket" | "conf" | "sysusers" | "md") => continue,
                _ => panic!("{name}: nothing looks at files of this kind"),
            }
            let text = std::fs::read_to_string(&path).expect("readable");
            let kind = kind(&toml_edit::de::from_str(&text).expect("TOML"));
            let wrong = match kind {
                "host" => parse(&text, &name).err(),
                "controller" => load_controller(&path).err(),
                "fabric" => load_topology(&path).err(),
                // Read with a datacenter, in `fabric_files.rs`; by the scheduler, in its tests.
                _ => None,
            };
            assert!(wrong.is_none(), "{wrong:?}");
            assert!(passes(kind, &text), "{name} is refused by the schema");
            *kinds.entry(kind).or_default() += 1;
        }
    }
    assert!(SCHEMAS.iter().all(|(kind, _)| kinds.contains_key(kind)), "{kinds:?}");
}

/// A key of a fabric's file is in backticks, mostly with its table.
#[test]
fn every_key_of_the_other_files_is_documented() {
    for (kind, docs) in [
        ("controller", "docs/reference/controller.md"),
        ("fabric", "docs/reference/fabric.md"),
        ("tenants", "docs/reference/fabric.md"),
        ("vcpu", "docs/reference/configuration.md"),
    ] {
        let text = std::fs::read_to_string(root().join(docs)).expect(docs);
        let code: Vec<&str> = text.split('`').skip(1).step_by(2).collect();
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        for key in keys(&of_kind(kind)) {
            let named = |code: &&str| code.split(|c| !is_word(c)).any(|word| word == key);
            assert!(code.iter().any(named), "{kind}: `{key}` is not in {docs}");
        }
    }
}

fn keys(schema: &Value) -> Vec<String> {
    let tables = schema["$defs"].as_object().into_iter().flat_map(|defs| defs.values());
    let tables = [schema].into_iter().chain(tables);
    let keys = tables.filter_map(|table| table["properties"].as_object());
    keys.flat_map(|keys| keys.keys().cloned()).collect()
}

#[test]
fn every_key_is_documented() {
    let documentation = std::fs::read_to_string(root().join("docs/reference/configuration.md"))
        .expect("docs/reference/configuration.md");
    let schema: Value = serde_json::from_str(&schema()).expect("a schema");
    let missing: Vec<String> = keys(&schema)
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
        &format!("{VM}vhost-user.mode = \"client\"\nip = [\"10.0.0.1\", \"2001:db8::1\"]\n"),
        &WIRE.replace("vlan = 100", "vlan = \"100\""),
        &WIRE.replace("vlan = 100", "trunk = [\"100\", \"102 - 104\"]\nnative = \"100\""),
        &format!("{RULE}match = {{ proto = \"6\", dscp = \"46\", vlan = \"7\" }}\n"),
        &format!("{RULE}match = {{ ethertype = \"2048\", dscp = \"0x2e\" }}\n"),
        &format!("{TAP}tap.mtu = 9000\ntap.offloads = {{ csum = true, tso = false }}\n"),
        &format!("{WIRE}egress = \"wfq\"\nlink = \"10G\"\nwfq = {{ weights = [1, 2] }}\n"),
    ] {
        let text = format!("{}{right}", wrong::BASE);
        assert_eq!(wrong::errors(&text), [""; 0], "{right}");
        assert!(passes_the_schema(&text), "refused by the schema:\n{right}");
    }
}

const TREE: &str = "[fabric]\nname = \"dc\"\n[servers]\nslots = 4\n[[tier]]\nfan_out = 2\n";
const TIER: &str = "[fabric]\n[servers]\nslots = 4\n[[tier]]\nfan_out = 2\nrate = \"1G\"\n";
const STORE: &str = "[controller]\ntopology = \"fabric.toml\"\n[store]\npath = \"s\"\n";
const SWITCH: &str = "[controller]\ntopology = \"fabric.toml\"\n[store]\npath = \"s\"\n[[switch]]\n\
    name = \"rack-0\"\ninterfaces = { server-0 = [\"a\"], server-1 = [\"b\"] }\n";
const CONTROLLER: &str = "[store]\npath = \"s\"\n[[switch]]\nname = \"rack-0\"\ndriver = \"sim\"\n\
    [controller]\ntopology = \"fabric.toml\"\n";
const TENANT: &str = "[[tenant]]\nname = \"t\"\n";
const CPUS: &str = "[vcpu]\ncpus = [1]\n";
const CLOCK: &str = "[vcpu]\ncpus = [1]\n[[vm]]\nname = \"a\"\n";

/// Of files of other kinds: what is right, and one mistake each, each after the text before it.
type Cases = (&'static str, &'static str, &'static [&'static str], &'static [&'static str]);
const OTHERS: &[Cases] = &[
    (
        "fabric",
        TREE,
        &["rate = \"10G\"", "uplinks = 2\nrate = 5"],
        &[
            "uplinks = 2",
            "rate = \"1G\"\noversubscription = 2",
            "rate = \"fast\"",
            "rate = \"1G\"\nuplinks = 0",
            "rate = \"1G\"\n[[server]]\nname = \"a\"\nslots = 1",
            "rate = \"1G\"\ncolour = 1",
        ],
    ),
    (
        "fabric",
        TIER,
        &[
            "[[tier]]\nfan_out = 2\noversubscription = 2.5",
            "[[out]]\nnode = \"server-0\"\nstate = \"failed\"",
        ],
        &[
            "[[tier]]\nfan_out = 2\noversubscription = 0",
            "[[tier]]\nfan_out = 0\nrate = \"1G\"",
            "[[out]]\nnode = \"server-0\"\nstate = \"gone\"",
            "[tenant]",
        ],
    ),
    (
        "fabric",
        "[servers]\nslots = 4\n[[tier]]\nfan_out = 2\nrate = \"1G\"\n[fabric]\n",
        &["headroom_pct = 12.5", "headroom_pct = 10\nqueue_weight = 1", "reserved_queues = 2"],
        &["queues = 1", "queues = 65", "headroom_pct = 101", "queue_weight = 1.5", "name = 5"],
    ),
    (
        "tenants",
        TENANT,
        &[
            "vms = 4\nrate = \"1M\"",
            "vms = 4\nsend = \"1M\"\nrecv = \"2M\"\nmost_per_rack = 2\nnear_in = \"pod\"",
            "[[tenant.class]]\nvms = 1\nrate = \"1M\"",
        ],
        &[
            "vms = 4",
            "rate = \"1M\"",
            "vms = 0\nrate = \"1M\"",
            "vms = 4\nsend = \"1M\"",
            "vms = 4\nrate = \"1M\"\nsend = \"1M\"",
            "vms = 4\nrate = \"1M\"\nleast_racks = 0",
            "vms = 4\nrate = \"1M\"\napart_in = \"row\"",
            "vms = 4\n[[tenant.class]]\nvms = 1\nrate = \"1M\"",
            "[[tenant.class]]\nvms = 1\nrecv = \"1M\"",
        ],
    ),
    (
        "controller",
        CONTROLLER,
        &["agents = \"127.0.0.1:7443\"\npage = \"[::1]:80\"", "verify_every = 0"],
        &[
            "interval_ms = 99",
            "answer_ms = 60001",
            "report_ms = 49",
            "agents = \"localhost:7443\"",
            "page = 80",
            "connections_per_certificate = 0",
            "[tls]\nca = \"a\"",
            "[binding]\nmap = \"other\"",
            "[binding]\ndrain_ms = 10001",
            "[binding]\nreserved_code_points = [64]",
        ],
    ),
    (
        "controller",
        "[controller]\ntopology = \"fabric.toml\"\n[[switch]]\nname = \"rack-0\"\n\
        driver = \"sim\"\n",
        &["[store]\npath = \"s\"", "[store]\nendpoints = [\"http://[::1]:2379\"]"],
        &[
            "",
            "[store]",
            "[store]\npath = \"s\"\nendpoints = [\"e\"]",
            "[store]\nendpoints = [\"e\"]\n\
             tls = { ca = \"a\", cert = \"b\", key = \"c\", crl = \"d\" }",
        ],
    ),
    ("controller", STORE, &[], &["[switch]", "[[switch]]\nname = \"rack-0\""]),
    (
        "controller",
        SWITCH,
        &[
            "driver = \"sim\"",
            "driver = \"linux-tc\"\nnetns = \"n\"",
            "driver = \"sonic-configdb\"\naddress = \"redis://[::1]:1\"\nclasses = 8\n\
             references = \"bracketed\"\npassword_file = \"p\"",
            "driver = \"penstock\"\naddress = \"unix:///run/a.sock\"",
            "driver = \"penstock\"\naddress = \"h:1\"\n\
             tls = { ca = \"a\", cert = \"b\", key = \"c\" }",
            "driver = \"gnmi\"\naddress = \"h:1\"\ntls = { ca = \"a\" }\nuser = \"u\"\n\
             password_file = \"p\"",
        ],
        &[
            "driver = \"other\"",
            "driver = \"sim\"\nnetns = \"n\"",
            "driver = \"linux-tc\"\naddress = \"h:1\"",
            "driver = \"sonic-configdb\"",
            "driver = \"sonic-configdb\"\naddress = \"redis://[::1]:1\"\nclasses = 1",
            "driver = \"sonic-configdb\"\naddress = \"redis://[::1]:1\"\nuser = \"u\"",
            "driver = \"penstock\"\naddress = \"h:1\"",
            "driver = \"penstock\"\naddress = \"h:1\"\ntls = { ca = \"a\" }",
            "driver = \"penstock\"\naddress = \"unix://run/a.sock\"",
            "driver = \"penstock\"\naddress = \"unix:///run/a.sock\"\n\
             tls = { ca = \"a\", cert = \"b\", key = \"c\" }",
            "driver = \"gnmi\"\naddress = \"h\"",
            "driver = \"gnmi\"\naddress = \"h:1\"\nuser = \"u\"",
            "driver = \"gnmi\"\naddress = \"h:1\"\nuser = \"u\"\npassword_file = \"p\"",
            "driver = \"gnmi\"\naddress = \"h:1\"\ntls = { ca = \"a\", cert = \"b\" }",
        ],
    ),
    (
        "vcpu",
        CPUS,
        &["run_dir = \"/run/v\"\ndeadlines_max = 70"],
        &["run_dir = \"v\"", "deadlines_max = 101", "cpu = 1", "[[vm]]\nname = \"a\"", "[host]"],
    ),
    (
        "vcpu",
        CLOCK,
        &[
            "pid = 1",
            "cgroup = \"/a\"\nvcpu_mode = \"periodic\"\ndeadline = \"3 ms\"",
            "domain = \"a\"\nvcpu_mode = \"reserved\"\ndeadline = \"3ms\"\n\
             runtime = \"0.6 ms\"\nreclaim = true",
        ],
        &[
            "pid = 1\ndomain = \"a\"",
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

/// What the program says of a file of this kind; nothing if it takes it. `folder` has a datacenter,
/// `fabric.toml`.
fn refuses(kind: &str, text: &str, folder: &Path) -> Option<String> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Vcpus {
        vcpu: VcpuSection,
        #[serde(default)]
        vm: Vec<VmTable>,
    }
    match kind {
        "fabric" => parse_topology(text, "f").err().map(|errors| errors.to_string()),
        "tenants" => {
            let fabric = load_topology(&folder.join("fabric.toml")).expect("a datacenter");
            let tenants = parse_tenants(text, "t", &fabric.topology, &[]);
            tenants.err().map(|errors| errors.to_string())
        }
        "controller" => {
            let path = folder.join("controller.toml");
            std::fs::write(&path, text).expect("writable");
            load_controller(&path).err().map(|errors| errors.to_string())
        }
        _ => match toml_edit::de::from_str::<Vcpus>(text) {
            Ok(file) => {
                let vms = file.vm.iter().flat_map(VmTable::mistakes);
                let mut all = file.vcpu.mistakes().into_iter().chain(vms);
                all.next().map(|mistake| mistake.to_string())
            }
            Err(error) => Some(error.to_string()),
        },
    }
}

#[test]
fn the_other_schemas_agree_with_the_program() {
    let folder = std::env::temp_dir().join(format!("penstock-schema-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("fabric.toml"), TIER).expect("writable");
    let mut differ = Vec::new();
    for (kind, base, right, wrong) in OTHERS {
        for text in right.iter().map(|more| format!("{base}{more}\n")) {
            let said = refuses(kind, &text, &folder);
            if said.is_some() || !passes(kind, &text) {
                differ.push(format!("right, {said:?}:\n{text}"));
            }
        }
        for text in wrong.iter().map(|more| format!("{base}{more}\n")) {
            let said = refuses(kind, &text, &folder);
            if said.as_deref().is_none_or(str::is_empty) || passes(kind, &text) {
                differ.push(format!("wrong, {said:?}:\n{text}"));
            }
        }
    }
    let _ = std::fs::remove_dir_all(&folder);
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}
