//! Tests that the committed schemas of the controller's files equal the schemas that the code
//! generates. The schemas must also refuse the files that the code refuses, if a schema can express
//! the rule.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use penstock_controller::files::{
    SCHEMAS, load_controller, load_topology, parse_tenants, parse_topology,
};
use penstock_testing::{committed, json_schema, temp_dir};
use serde_json::Value;

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
        committed::compare(&path, &make(), "-p penstock-controller --test all schema");
    }
}

#[test]
fn the_schemas_are_strict() {
    for (name, _) in SCHEMAS {
        assert_eq!(json_schema::loose(&of_kind(name)), [""; 0], "{name}");
    }
}

/// Returns the kind of an example file according to its TOML tables. Returns `None` for a host's
/// file, because another test checks hosts' files.
fn kind(file: &Value) -> Option<&'static str> {
    let has = |table: &str| file.get(table).is_some();
    match () {
        () if has("host") || has("vcpu") => None,
        () if has("controller") => Some("controller"),
        () if has("fabric") => Some("fabric"),
        () => Some("tenants"),
    }
}

#[test]
fn every_example_is_right() {
    let mut kinds: BTreeMap<&str, u32> = BTreeMap::new();
    for entry in std::fs::read_dir(root().join("examples")).expect("examples") {
        let path = entry.expect("an entry").path();
        let name = path.display().to_string();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("readable");
        let file: Value = toml_edit::de::from_str(&text).expect("TOML");
        let Some(kind) = kind(&file) else { continue };
        let wrong = match kind {
            "controller" => load_controller(&path).err(),
            "fabric" => load_topology(&path).err(),
            // `fabric_files.rs` reads these files together with a datacenter.
            _ => None,
        };
        assert!(wrong.is_none(), "{wrong:?}");
        let schema = of_kind(kind);
        assert!(json_schema::is_valid(&schema, &schema, &file), "{name} is refused by the schema");
        *kinds.entry(kind).or_default() += 1;
    }
    assert!(SCHEMAS.iter().all(|(kind, _)| kinds.contains_key(kind)), "{kinds:?}");
}

#[test]
fn every_key_is_documented() {
    for (kind, docs) in [
        ("controller", "docs/reference/controller.md"),
        ("fabric", "docs/reference/fabric.md"),
        ("tenants", "docs/reference/fabric.md"),
    ] {
        let text = std::fs::read_to_string(root().join(docs)).expect(docs);
        let missing = json_schema::undocumented(&of_kind(kind), &text);
        assert!(missing.is_empty(), "{kind}: not in {docs}: {missing:?}");
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

/// Kind of a configuration file, an example of the file, valid additions to the example, and
/// additions with one mistake each.
type Cases = (&'static str, &'static str, &'static [&'static str], &'static [&'static str]);
const CASES: &[Cases] = &[
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
        &[
            "headroom_pct = 12.5",
            "headroom_pct = 10\nqueue_weight = 1",
            "reserved_queues = 2",
            "reserved_code_points = [26, 48]",
            "reserved_code_points = [3, 63]",
        ],
        &[
            "queues = 1",
            "queues = 65",
            "headroom_pct = 101",
            "queue_weight = 1.5",
            "name = 5",
            "reserved_code_points = [64]",
            "reserved_code_points = [0]",
            "reserved_code_points = [3, 3]",
        ],
    ),
    (
        "tenants",
        TENANT,
        &[
            "vms = 4\nrate = \"1M\"",
            "vms = 4\nsend = \"1M\"\nrecv = \"2M\"\nmost_per_rack = 2",
            "vms = 4\nrate = \"1M\"\nwithin = [\"rack-0\", \"server-1\"]\n[[tenant]]\n\
             name = \"u\"\nvms = 1\nrate = \"1M\"\nnear = [\"t\"]\nnear_in = \"rack\"",
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
            "vms = 4\nrate = \"1M\"\napart_in = \"rack\"",
            "vms = 4\nrate = \"1M\"\nnear_in = \"pod\"",
            "vms = 4\nrate = \"1M\"\nwithin = []",
            "vms = 4\nrate = \"1M\"\nnear = []",
            "vms = 4\nrate = \"1M\"\nwithin = [\"rack-0\", \"rack-0\"]",
            "vms = 4\nrate = \"1M\"\nclass = []",
            "vms = 4\n[[tenant.class]]\nvms = 1\nrate = \"1M\"",
            "send = \"1M\"\nrecv = \"1M\"\n[[tenant.class]]\nvms = 1\nrate = \"1M\"",
            "[[tenant.class]]\nvms = 1\nrecv = \"1M\"",
        ],
    ),
    (
        "controller",
        CONTROLLER,
        &[
            "agents = \"127.0.0.1:7443\"\npage = \"[::1]:80\"",
            "verify_every = 0",
            "agents = \"127.0.0.1:7443\"\nconnections_per_certificate = 9\n[tls]\nca = \"a\"\n\
             cert = \"b\"\nkey = \"c\"",
        ],
        &[
            "interval_ms = 99",
            "answer_ms = 60001",
            "report_ms = 49",
            "agents = \"localhost:7443\"",
            "page = 80",
            "connections_per_certificate = 0",
            "connections_per_certificate = 9",
            "agents = \"127.0.0.1:7443\"\nconnections_per_certificate = 9",
            "[tls]\nca = \"a\"",
            "[tls]\nca = \"a\"\ncert = \"b\"\nkey = \"c\"",
            "[binding]\nmap = \"other\"",
            "[binding]\ndrain_ms = 10001",
            "[binding]\nreserved_code_points = [64]",
            "[binding]\nreserved_code_points = [0]",
            "[binding]\nreserved_code_points = [5, 5]",
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
            "[store]\npath = \"s\"\nendpoints = []",
            "[store]\nendpoints = []",
            "[store]\nendpoints = [\"e\", \"e\"]",
            "[store]\npath = \"s\"\ntls = { ca = \"a\", cert = \"b\", key = \"c\" }",
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
            "driver = \"sonic-configdb\"\naddress = \"redis://[::1]:1\"\n\
             tenant_queues = [1, 0, 2, 5]\nsettle_ms = 0",
            "driver = \"penstock\"\naddress = \"unix:///run/a.sock\"",
            "driver = \"penstock\"\naddress = \"h:1\"\n\
             tls = { ca = \"a\", cert = \"b\", key = \"c\" }",
            "driver = \"gnmi\"\naddress = \"h:1\"\ntls = { ca = \"a\" }\nuser = \"u\"\n\
             password_file = \"p\"\nset_ms = 60000",
        ],
        &[
            "driver = \"other\"",
            "driver = \"sim\"\nnetns = \"n\"",
            "driver = \"linux-tc\"\naddress = \"h:1\"",
            "driver = \"sonic-configdb\"",
            "driver = \"sonic-configdb\"\naddress = \"redis://[::1]:1\"\nclasses = 1",
            "driver = \"sonic-configdb\"\naddress = \"redis://[::1]:1\"\nuser = \"u\"",
            "driver = \"sonic-configdb\"\naddress = \"redis://[::1]:1\"\ntenant_queues = [1]",
            "driver = \"sonic-configdb\"\naddress = \"redis://[::1]:1\"\ntenant_queues = [1, 1]",
            "driver = \"sonic-configdb\"\naddress = \"redis://[::1]:1\"\ntenant_queues = [1, 8]",
            "driver = \"sonic-configdb\"\naddress = \"redis://[::1]:1\"\nsettle_ms = 1001",
            "driver = \"sim\"\ntenant_queues = [1, 0]",
            "driver = \"penstock\"\naddress = \"h:1\"",
            "driver = \"penstock\"\naddress = \"h:1\"\ntls = { ca = \"a\" }",
            "driver = \"penstock\"\naddress = \"unix://run/a.sock\"",
            "driver = \"penstock\"\naddress = \"unix:///run/a.sock\"\n\
             tls = { ca = \"a\", cert = \"b\", key = \"c\" }",
            "driver = \"gnmi\"\naddress = \"h\"",
            "driver = \"gnmi\"\naddress = \"h:1\"\nset_ms = 60001",
            "driver = \"sim\"\nset_ms = 2000",
            "driver = \"gnmi\"\naddress = \"h:1\"\nuser = \"u\"",
            "driver = \"gnmi\"\naddress = \"h:1\"\nuser = \"u\"\npassword_file = \"p\"",
            "driver = \"gnmi\"\naddress = \"h:1\"\ntls = { ca = \"a\", cert = \"b\" }",
        ],
    ),
];

/// Returns the controller's errors for a file of a kind, or `None` if the controller accepts the
/// file. `folder` contains the datacenter's file `fabric.toml`.
fn refuses(kind: &str, text: &str, folder: &Path) -> Option<String> {
    let errors = match kind {
        "fabric" => parse_topology(text, "f").err(),
        "tenants" => {
            let fabric = load_topology(&folder.join("fabric.toml")).expect("a datacenter");
            parse_tenants(text, "t", &fabric.topology, &[]).err()
        }
        _ => {
            let path = folder.join("controller.toml");
            std::fs::write(&path, text).expect("writable");
            load_controller(&path).err()
        }
    };
    errors.map(|errors| errors.to_string())
}

#[test]
fn the_schemas_agree_with_the_program() {
    let folder = temp_dir();
    std::fs::write(folder.join("fabric.toml"), TIER).expect("writable");
    for (kind, base, right, wrong) in CASES {
        let refuses = |text: &str| refuses(kind, text, &folder);
        json_schema::compare(&of_kind(kind), base, right, wrong, refuses);
    }
}
