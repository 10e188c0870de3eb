//! Tests the meaning of a datacenter's file and of a file of tenants, and the errors for mistakes
//! in these files.

use penstock_controller::files::{parse_tenants, parse_topology};
use penstock_fabric::ledger::Service;
use penstock_fabric::topology::Topology;
use penstock_units::BitsPerSecond;

const REGULAR: &str = "[fabric]\nname = \"dc\"\nheadroom_pct = 12.5\n\n[servers]\nslots = 4\n\n\
    [[tier]]\nfan_out = 4\nrate = \"10G\"\n\n[[tier]]\nfan_out = 2\nuplinks = 2\n\
    oversubscription = 4\n";
const LISTED: &str = "[fabric]\nname = \"lab\"\n\n[[server]]\nname = \"a\"\nslots = 4\n\n\
    [[server]]\nname = \"b\"\nslots = 4\n\n[[switch]]\nname = \"r\"\n\n[[switch]]\nname = \"c\"\n\n\
    [[link]]\nfrom = \"a\"\nto = \"r\"\nrate = \"1G\"\n\n[[link]]\nfrom = \"b\"\nto = \"r\"\n\
    rate = \"1G\"\n\n[[link]]\nfrom = \"r\"\nto = \"c\"\nrate = \"1G\"\n";

/// Returns the number of the first line that contains `text`, counted from 1.
fn line(file: &str, text: &str) -> usize {
    file.lines().position(|line| line.contains(text)).unwrap() + 1
}

fn refused(text: &str) -> String {
    parse_topology(text, "f.toml").unwrap_err().to_string()
}

fn tenants_refused(text: &str) -> String {
    parse_tenants(text, "t.toml", &topology(), &[]).unwrap_err().to_string()
}

fn topology() -> Topology {
    parse_topology(REGULAR, "f.toml").unwrap().topology
}

#[test]
fn a_regular_tree_and_a_listed_one_are_read() {
    let file = parse_topology(REGULAR, "f.toml").unwrap();
    assert_eq!((file.headroom_permille, file.topology.servers()), (125, 8));
    // A node with 40G below it has 10G upwards at 4:1. Each of its two links has 5G.
    assert_eq!(file.regular.unwrap().tiers[1].rate, BitsPerSecond(5_000_000_000));
    let out = "[[out]]\nnode = \"r\"\nstate = \"failed\"\n";
    let file = parse_topology(&format!("{LISTED}\n{out}"), "f.toml").unwrap();
    let rack = file.topology.find("r").unwrap();
    assert_eq!((file.topology.layers(), file.out), (3, vec![(rack, Service::Failed)]));
}

#[test]
fn the_examples_are_right() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let text = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
    let file = parse_topology(&text("fabric.toml"), "fabric.toml").unwrap();
    let tenants =
        parse_tenants(&text("tenants.toml"), "tenants.toml", &file.topology, &[]).unwrap();
    assert_eq!((file.topology.servers(), tenants.len()), (64, 5));
    assert_eq!((tenants[1].near.clone(), tenants[2].apart.clone()), (vec![(0, 2)], vec![(0, 0)]));
}

#[test]
fn a_wrong_topology_is_refused_whole_with_line_and_reason() {
    let cycle = format!(
        "{LISTED}\n[[switch]]\nname = \"x\"\n\n[[link]]\nfrom = \"c\"\nto = \"x\"\n\
         rate = \"1G\"\n\n[[link]]\nfrom = \"x\"\nto = \"r\"\nrate = \"2G\"\n"
    );
    let text = refused(&cycle);
    assert!(text.contains("lead back to it") && text.starts_with("f.toml:"), "{text}");
    for (base, from, to, says) in [
        (LISTED, "rate = \"1G\"", "rate = 0", "has rate 0; write a rate above 0"),
        (LISTED, "rate = \"1G\"", "rate = nan", "`rate`: NaN is not valid"),
        (LISTED, "rate = \"1G\"", "rate = \"fast\"", "not a rate"),
        (LISTED, "name = \"b\"", "name = \"a\"", "the name `a` is used twice"),
        (LISTED, "name = \"b\"", "name = \"b b\"", "\"b b\" is not a name of a server or switch"),
        (LISTED, "name = \"r\"", "name = \"\"", "write 1 to 63 characters without blanks"),
        (LISTED, "slots = 4", "slots = 0", "`a` has 0 slots"),
        (LISTED, "to = \"c\"", "to = \"d\"", "no server or switch is named `d`"),
        (REGULAR, "rate = \"10G\"", "rate = 0", "`rate` is 0"),
        (REGULAR, "oversubscription = 4", "oversubscription = nan", "NaN is not a ratio above 0"),
        (REGULAR, "headroom_pct = 12.5", "headroom_pct = nan", "NaN is out of range"),
        (REGULAR, "headroom_pct = 12.5", "queues = 1", "`queues` 1 is out of range"),
        (REGULAR, "headroom_pct = 12.5", "queue_weight = inf", "the weight of queues is inf"),
        (REGULAR, "slots = 4", "slots = 0", "0 slots per server"),
        (REGULAR, "fan_out = 2", "fan_out = 0", "`fan_out` is 0"),
        (REGULAR, "uplinks = 2", "uplink = 2", "did you mean `uplinks`?"),
    ] {
        let wrong = base.replacen(from, to, 1);
        let at = line(base, from) + to.lines().count() - 1;
        let text = refused(&wrong);
        assert!(text.contains(says), "{to}: {text}");
        let place = format!("f.toml:{at}:");
        assert!(text.lines().any(|line| line.starts_with(&place)), "{place} {text}");
    }
    assert!(refused("[fabric]\nname = \"x\"\n").contains("there is no topology"));
    let both = format!("{REGULAR}\n[[switch]]\nname = \"s\"\n");
    assert!(refused(&both).contains("a regular tree and also single"));
    assert!(refused("[fabric\n").contains("syntax"));
}

#[test]
fn a_node_is_out_once() {
    let out = |state: &str| format!("\n[[out]]\nnode = \"server-0\"\nstate = \"{state}\"\n");
    let text = format!("{REGULAR}{}{}", out("drained"), out("failed"));
    let line = text.lines().count() - 1;
    let says = "[[out]] number 2: two [[out]] tables for `server-0`; remove one of the two";
    assert_eq!(refused(&text).trim_end(), format!("f.toml:{line}:8: {says}"));
}

#[test]
fn rates_of_a_tenant_beside_its_classes_are_refused() {
    let text = "[[tenant]]\nname = \"red\"\nsend = \"1M\"\nrecv = \"1M\"\n\n[[tenant.class]]\n\
                vms = 1\nrate = \"1M\"\n";
    let says = "conflict with [[tenant.class]]; write them in each [[tenant.class]] only";
    assert!(tenants_refused(text).contains(says), "{}", tenants_refused(text));
}

#[test]
fn wrong_tenants_are_refused_whole_with_line_and_reason() {
    let base = "[[tenant]]\nname = \"red\"\nvms = 3\nrate = \"10M\"\nwithin = [\"rack-0\"]\n\n\
        [[tenant]]\nname = \"blue\"\nvms = 2\nsend = \"1M\"\nrecv = \"2M\"\napart = [\"red\"]\n";
    let tenants = parse_tenants(base, "t.toml", &topology(), &[]).unwrap();
    assert_eq!((tenants[0].request.affinity.within.len(), tenants[1].apart.len()), (1, 1));
    for (from, to, says) in [
        ("name = \"blue\"", "name = \"red\"", "the name `red` is taken"),
        ("name = \"blue\"", "name = \"\"", "the name is empty; write 1 to 64 characters"),
        ("name = \"blue\"", "name = \"b e\"", "the name contains ' '; write 1 to 64 characters"),
        ("vms = 3", "vms = 33", "33 VMs do not fit into the 32 slots of the datacenter"),
        ("vms = 3", "vms = 0", "a class of VMs has 0 VMs; write 1 or more"),
        ("rate = \"10M\"", "rate = nan", "`rate`: NaN is not valid"),
        ("rate = \"10M\"", "rate = 0", "a guarantee of 0 bit/s"),
        ("within = [\"rack-0\"]", "within = [\"rack-9\"]", "has no server or switch `rack-9`"),
        ("apart = [\"red\"]", "apart = [\"green\"]", "no earlier tenant has the name `green`"),
        ("vms = 3", "vms = 3\nmost_per_server = 0", "the bound is 0"),
        ("vms = 3", "vms = 3\nleast_racks = 4", "more fault domains than VMs (3)"),
        ("vms = 3", "vms = 3\nmost_per_rak = 1", "did you mean `most_per_rack`?"),
        ("within = [\"rack-0\"]", "within = []", "`within` is an empty list and has no effect"),
        ("within = [\"rack-0\"]", "within = [\"rack-0\", \"rack-0\"]", "names `rack-0` twice"),
        ("apart = [\"red\"]", "near_in = \"rack\"", "`near_in` has no effect without `near`; add"),
        ("apart = [\"red\"]", "apart_in = \"rack\"", "no effect without `apart`; add `apart`, or"),
        ("apart = [\"red\"]", "apart = []", "`apart` is an empty list and has no effect"),
        ("vms = 3", "vms = 3\nclass = []", "`class` is an empty list and has no effect"),
    ] {
        let wrong = base.replacen(from, to, 1);
        let at = line(base, from) + to.lines().count() - 1;
        let text = tenants_refused(&wrong);
        assert!(text.contains(says), "{to}: {text}");
        let place = format!("t.toml:{at}:");
        assert!(text.lines().any(|line| line.starts_with(&place)), "{place} {text}");
    }
}

#[test]
fn a_mistake_in_a_class_has_the_line_of_the_class() {
    let base = "[[tenant]]\nname = \"red\"\n\n[[tenant.class]]\nvms = 1\nrate = \"1M\"\n\n\
        [[tenant.class]]\nvms = 2\nsend = \"1M\"\nrecv = \"2M\"\n";
    assert_eq!(parse_tenants(base, "t.toml", &topology(), &[]).unwrap().len(), 1);
    for (from, to, place, says) in [
        ("vms = 2", "vms = 0", "9:7", "a class of VMs has 0 VMs; write 1 or more"),
        ("rate = \"1M\"", "rate = 0", "6:8", "a guarantee of 0 bit/s is not allowed; write"),
        ("recv = \"2M\"", "recv = 0", "11:8", "a guarantee of 0 bit/s is not allowed; write"),
        ("recv = \"2M\"\n", "", "10:8", "a guarantee needs either `rate`, or both"),
        ("rate = \"1M\"\n", "", "4:1", "a guarantee needs either `rate`, or both"),
        ("vms = 2", "vms = 99", "4:1", "100 VMs do not fit into the 32 slots"),
        ("vms = 2\n", "", "8:1", "`vms` is missing; add `vms = ...`"),
        ("rate", "rat", "6:1", "unknown key `rat`; did you mean `rate`?"),
        (
            "vms = 1",
            "vms = -1",
            "5:7",
            "`class.vms`: -1 is out of range; write a whole number from 1 to 1048576",
        ),
    ] {
        let text = tenants_refused(&base.replacen(from, to, 1));
        assert!(text.starts_with(&format!("t.toml:{place}: tenant \"red\": {says}")), "{text}");
        assert_eq!(text.lines().count(), 1, "{to}: {text}");
    }
    let both = tenants_refused(&base.replace("vms = ", "vms = -"));
    let places: Vec<_> = both.lines().filter_map(|line| line.split(": ").next()).collect();
    assert_eq!(places, ["t.toml:5:7", "t.toml:9:7"], "{both}");
}
