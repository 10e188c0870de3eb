//! Tests of tenants, VLANs and address bindings, with frames through the vhost-user ports of a
//! configured host. A guest's frame must not reach a port of another network.

mod bed;

use bed::{Bed, arp, broadcast, nd_advertisement, tagged, udp, udp6};
use penstock_units::MacAddr;

const CONFIG: &str = r#"
[host]
name = "isolation"
[worker]
cores = [0]
[[tenant]]
name = "red"
vlans = [100, 200]
[[tenant]]
name = "blue"
vlans = [300]
[[tenant]]
name = "green"
[[port]]
name = "red1"
tenant = "red"
vhost-user.socket = "@/red1"
vlan = 100
mac = ["52:54:00:00:00:01"]
ip = ["10.0.0.1", "fd00::1"]
[[port]]
name = "red2"
tenant = "red"
vhost-user.socket = "@/red2"
vlan = 100
[[port]]
name = "red3"
tenant = "red"
vhost-user.socket = "@/red3"
vlan = 200
[[port]]
name = "blue1"
tenant = "blue"
vhost-user.socket = "@/blue1"
vlan = 300
[[port]]
name = "blue2"
tenant = "blue"
vhost-user.socket = "@/blue2"
vlan = 300
[[port]]
name = "uplink"
vhost-user.socket = "@/uplink"
trunk = [100, 300]
[[port]]
name = "green1"
tenant = "green"
vhost-user.socket = "@/green1"
[[port]]
name = "green2"
tenant = "green"
vhost-user.socket = "@/green2"
"#;

const RED1: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 1]);
const RED2: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 2]);
const OTHER: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 9]);
const ALL: [&str; 8] = ["red1", "red2", "red3", "blue1", "blue2", "uplink", "green1", "green2"];

#[test]
fn a_broadcast_stays_in_its_tenants_vlan() {
    let mut bed = Bed::start(CONFIG, &ALL);
    let f = broadcast(RED2);
    assert_eq!(bed.reach("red2", &f), [("red1", f.clone()), ("uplink", tagged(&f, 100))]);
    // VLAN 200 has only one port, and the trunk does not carry VLAN 200.
    assert_eq!(bed.reach("red3", &f), []);
    assert_eq!(bed.reach("blue1", &f), [("blue2", f.clone()), ("uplink", tagged(&f, 300))]);
    // A tenant without VLANs has a separate untagged network.
    assert_eq!(bed.reach("green1", &f), [("green2", f.clone())]);
    // A frame from the uplink reaches only the tenant that owns its VLAN.
    let from_out = broadcast(OTHER);
    assert_eq!(
        bed.reach("uplink", &tagged(&from_out, 300)),
        [("blue1", from_out.clone()), ("blue2", from_out)]
    );
    bed.check();
}

#[test]
fn a_unicast_frame_finds_nobody_in_another_network() {
    let mut bed = Bed::start(CONFIG, &ALL);
    // After this frame the switch knows all addresses of blue.
    bed.reach("blue1", &broadcast(OTHER));
    // The address is unknown in red's network. So a frame from red to this address is flooded
    // there, and nowhere else.
    let f = udp(RED2, OTHER, "10.0.0.2", "10.0.0.9");
    assert_eq!(bed.reach("red2", &f), [("red1", f.clone()), ("uplink", tagged(&f, 100))]);
    bed.check();
}

#[test]
fn foreign_vlans_are_dropped_at_the_door() {
    let mut bed = Bed::start(CONFIG, &ALL);
    let f = broadcast(RED2);
    for vid in [200, 300, 4094] {
        assert_eq!(bed.reach("red2", &tagged(&f, vid)), [], "VLAN {vid}");
    }
    // A guest may tag frames with its own VLAN.
    assert_eq!(bed.reach("red2", &tagged(&f, 100)).len(), 2);
    // A trunk without a native VLAN drops untagged frames, and frames of VLANs that it does not
    // carry.
    assert_eq!(bed.reach("uplink", &broadcast(OTHER)), []);
    assert_eq!(bed.reach("uplink", &tagged(&broadcast(OTHER), 200)), []);
    assert_eq!(bed.drops("red2", "vlan-ingress"), 3);
    assert_eq!(bed.drops("uplink", "vlan-ingress"), 2);
    bed.check();
}

#[test]
fn a_port_with_bound_addresses_cannot_use_others() {
    let mut bed = Bed::start(CONFIG, &ALL);
    let honest = [
        udp(RED1, RED2, "10.0.0.1", "10.0.0.2"),
        udp6(RED1, RED2, "fd00::1", "fd00::2"),
        arp(RED1, RED1, "10.0.0.1", "10.0.0.2"),
        nd_advertisement(RED1, "fd00::1"),
    ];
    for f in &honest {
        assert!(!bed.reach("red1", f).is_empty(), "an honest frame was dropped: {f:02x?}");
    }
    // Each frame is sent three times, because the flow cache must not change the decision.
    for _ in 0..3 {
        let lies = [
            udp(OTHER, RED2, "10.0.0.1", "10.0.0.2"),
            udp(RED1, RED2, "10.0.0.7", "10.0.0.2"),
            udp6(RED1, RED2, "fd00::7", "fd00::2"),
            arp(RED1, RED1, "10.0.0.7", "10.0.0.2"),
            arp(RED1, OTHER, "10.0.0.1", "10.0.0.2"),
            nd_advertisement(RED1, "fd00::7"),
        ];
        for f in &lies {
            assert_eq!(bed.reach("red1", f), [], "a lie went through: {f:02x?}");
        }
    }
    assert!(bed.drops("red1", "spoofed-mac") >= 3);
    assert!(bed.drops("red1", "spoofed-ip") >= 12);
    bed.check();
}

#[test]
fn a_neighbour_cannot_take_over_a_bound_address() {
    let mut bed = Bed::start(CONFIG, &ALL);
    bed.reach("red1", &arp(RED1, RED1, "10.0.0.1", "10.0.0.2"));
    // Port red2 has no address binding, and claims red1's MAC address.
    bed.reach("red2", &broadcast(RED1));
    // Frames to red1's address still reach red1 and no other port.
    let f = udp(OTHER, RED1, "10.0.0.9", "10.0.0.1");
    assert_eq!(bed.reach("uplink", &tagged(&f, 100)), [("red1", f)]);
    bed.check();
}

#[test]
fn malformed_frames_reach_nobody_and_are_counted() {
    let mut bed = Bed::start(CONFIG, &ALL);
    let good = udp(RED2, RED1, "10.0.0.2", "10.0.0.1");
    let mut long_header = good.clone();
    long_header[14] = 0x4f; // IHL 60 bytes in a frame of 60
    let mut long_total = good.clone();
    long_total[16..18].copy_from_slice(&2000_u16.to_be_bytes());
    let mut version = good.clone();
    version[14] = 0x65;
    for f in [&long_header, &long_total, &version] {
        assert_eq!(bed.reach("red2", f), []);
    }
    let mut group_source = good.clone();
    group_source[6] |= 1;
    assert_eq!(bed.reach("red2", &group_source), []);
    let mut reserved = broadcast(RED2);
    reserved[..6].copy_from_slice(&[1, 0x80, 0xc2, 0, 0, 0]);
    assert_eq!(bed.reach("red2", &reserved), []);
    bed.check();
}

#[test]
fn rules_drop_and_redirect_and_a_reload_with_an_error_changes_nothing() {
    let mut bed = Bed::start(CONFIG, &ALL);
    let f = udp(RED2, RED1, "10.0.0.2", "10.0.0.1");
    bed.reach("red1", &broadcast(RED1));
    assert_eq!(bed.reach("red2", &f), [("red1", f.clone())]);
    let rule = "[[rule]]\nname = \"no-udp\"\npriority = 10\nport = \"red2\"\n\
                match = { proto = \"udp\" }\nactions = [\"drop\"]\n";
    bed.reload(&format!("{CONFIG}{rule}")).unwrap();
    assert_eq!(bed.reach("red2", &f), []);
    assert_eq!(bed.drops("red2", "rule"), 1);
    // If a reload fails, the running configuration and its rule stay active.
    let errors = bed.reload(&format!("{CONFIG}{rule}[[port]]\nname = \"x\"\n")).unwrap_err();
    assert!(errors.contains("\"x\""), "{errors}");
    assert_eq!(bed.reach("red2", &f), []);
    let mirror = "[[rule]]\nname = \"mirror\"\npriority = 10\nport = \"red2\"\n\
                  match = { proto = \"udp\" }\nactions = [\"output:red1\", \"output:uplink\"]\n";
    bed.reload(&format!("{CONFIG}{mirror}")).unwrap();
    assert_eq!(bed.reach("red2", &f), [("red1", f.clone()), ("uplink", tagged(&f, 100))]);
    let dscp = "[[rule]]\nname = \"mark\"\npriority = 10\ntenant = \"red\"\n\
                match = { dst = \"10.0.0.0/24\" }\nactions = [\"set-dscp:46\", \"normal\"]\n";
    bed.reload(&format!("{CONFIG}{dscp}")).unwrap();
    let got = bed.reach("red2", &f);
    assert_eq!(got[0].1[15], 46 << 2);
    let sum = penstock_dataplane::finish::sum(&got[0].1[14..34], 0);
    assert_eq!(penstock_dataplane::finish::checksum(sum), 0, "header checksum");
    bed.check();
}

#[test]
fn a_flood_of_addresses_from_one_tenant_leaves_the_others_alone() {
    let mut bed = Bed::start(CONFIG, &ALL);
    let green = udp(RED1, RED2, "10.9.0.1", "10.9.0.2");
    bed.reach("green2", &broadcast(RED2));
    bed.reach("green1", &green);
    let mut noise = broadcast(RED2);
    for n in 0..5000_u32 {
        noise[8..12].copy_from_slice(&n.to_be_bytes());
        bed.send("blue1", &noise);
    }
    bed.settle();
    let learned = bed.fdb("blue");
    assert!(learned <= 1024, "{learned} addresses in blue's table of 1024");
    // Green's addresses and its path have not changed.
    assert_eq!(bed.reach("green1", &green), [("green2", green.clone())]);
    assert!(bed.drops("blue1", "slow-path-limit") > 0, "floods are metered");
    bed.check();
}
