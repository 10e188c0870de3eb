//! Shared code of the property tests: small random datacenters and requests, and an independent
//! check of the ledger.

use std::collections::BTreeMap;

use penstock_fabric::hose::{Hose, VmClass};
use penstock_fabric::ledger::Entry;
use penstock_fabric::tenant_placement::{Datacenter, Policy, Request, Spread};
use penstock_fabric::topology::{LinkId, NodeId, Regular, Tier, Topology};
use penstock_units::BitsPerSecond;
use proptest::prelude::*;

/// Generates regular trees with two or three tiers and at most 8 servers.
pub fn regular() -> impl Strategy<Value = Regular> {
    let tier = |fan_out: core::ops::RangeInclusive<u32>| {
        (fan_out, 1_u32..=2, 1_u64..=12).prop_map(|(fan_out, uplinks, rate)| Tier {
            fan_out,
            uplinks,
            rate: BitsPerSecond(rate),
        })
    };
    let two = (tier(1..=3), tier(1..=2)).prop_map(|(a, b)| vec![a, b]);
    let three = (tier(1..=2), tier(1..=2), tier(1..=2)).prop_map(|(a, b, c)| vec![a, b, c]);
    (1_u32..=4, prop_oneof![two, three]).prop_map(|(slots, mut tiers)| {
        // A server with two uplinks would be in two racks, each with its own tree.
        tiers[0].uplinks = 1;
        Regular { slots, tiers }
    })
}

/// Generates requests with equal guarantees and an optional maximum number of VMs per server or
/// rack.
pub fn uniform(most: u32) -> impl Strategy<Value = Request> {
    (1..=most, 1_u64..=4, prop::option::of((0_usize..=1, 1_u32..=4))).prop_map(
        |(vms, rate, bound)| {
            let hose = Hose::homogeneous(vms, BitsPerSecond(rate)).unwrap();
            let mut request = Request::new(hose);
            request.spread.extend(bound.map(|(layer, most)| Spread {
                layer,
                most_vms: Some(most),
                least_domains: None,
            }));
            request
        },
    )
}

/// Generates requests with two classes of VMs that may have different guaranteed rates.
pub fn mixed() -> impl Strategy<Value = Request> {
    let class = (1_u32..=3, 1_u64..=4, 1_u64..=4).prop_map(|(vms, send, recv)| VmClass {
        vms,
        send: BitsPerSecond(send),
        recv: BitsPerSecond(recv),
    });
    prop::collection::vec(class, 1..=2)
        .prop_map(|classes| Request::new(Hose::new(classes).unwrap()))
}

pub fn datacenter(tree: &Regular, headroom: u32, policy: Policy) -> Datacenter {
    Datacenter::new(tree.build().unwrap(), headroom, policy).unwrap()
}

/// Finds the links from a server up to a root by exhaustive search.
pub fn path(topology: &Topology, server: NodeId, root: NodeId) -> Vec<LinkId> {
    if server == root {
        return Vec::new();
    }
    let all: Vec<_> = topology
        .up(server)
        .filter_map(|link| {
            let parent = topology.parent(link);
            let below = topology.cone(root).contains(&parent);
            below.then(|| [vec![link], path(topology, parent, root)].concat())
        })
        .collect();
    assert_eq!(all.len(), 1, "one way up to the root");
    all.into_iter().next().unwrap()
}

/// Computes a tenant's correct reservations only from the tenant's VMs, without the ledger.
pub fn entry_of(
    topology: &Topology,
    request: &Request,
    shares: &[(NodeId, usize, u32)],
    root: NodeId,
) -> Entry {
    let kinds = request.hose.classes().len();
    let (mut slots, mut below) = (BTreeMap::new(), BTreeMap::new());
    for (server, class, vms) in shares {
        *slots.entry(*server).or_insert(0) += vms;
        for link in path(topology, *server, root) {
            below.entry(link).or_insert_with(|| vec![0; kinds])[*class] += vms;
        }
    }
    let links = below.iter().map(|(link, counts)| (*link, request.hose.need(counts)));
    let links = links.filter(|(_, need)| !need.is_zero()).collect();
    Entry { slots: slots.into_iter().collect(), links }
}

/// Panics if a tenant's reservations differ from the reservations that its VMs need. Panics if the
/// ledger differs from the sum of all tenants' reservations.
pub fn audit(datacenter: &Datacenter) {
    let (topology, ledger) = (datacenter.topology(), datacenter.ledger());
    let mut up = vec![0_u64; topology.links()];
    let mut down = vec![0_u64; topology.links()];
    let mut tenants = vec![0_u32; topology.links()];
    let mut slots = vec![0_u32; topology.servers()];
    for (_, tenant) in datacenter.tenants() {
        let (request, placement) = (&tenant.request, &tenant.placement);
        let shares: Vec<_> =
            placement.shares.iter().map(|s| (s.server, s.class as usize, s.vms)).collect();
        for (class, kind) in request.hose.classes().iter().enumerate() {
            let placed: u32 = shares.iter().filter(|s| s.1 == class).map(|s| s.2).sum();
            assert_eq!(placed, kind.vms, "all VMs have a place");
        }
        let entry = entry_of(topology, request, &shares, placement.root);
        assert_eq!(placement.entry, entry, "it has what it needs and no more");
        for spread in &request.spread {
            for node in topology.layer(spread.layer) {
                let cone = topology.cone(node);
                let vms: u32 = shares.iter().filter(|s| cone.contains(&s.0)).map(|s| s.2).sum();
                assert!(spread.most_vms.is_none_or(|most| vms <= most), "{spread:?}: {vms}");
            }
        }
        for (link, need) in &entry.links {
            up[link.index()] += need.up.0;
            down[link.index()] += need.down.0;
            tenants[link.index()] += 1;
        }
        entry.slots.iter().for_each(|(server, vms)| slots[server.index()] += vms);
    }
    for (at, (up, down)) in up.iter().zip(&down).enumerate() {
        let link = LinkId(u32::try_from(at).unwrap());
        let reserved = ledger.reserved(link);
        assert_eq!((reserved.up.0, reserved.down.0), (*up, *down));
        assert_eq!(ledger.tenants(link), tenants[at]);
        let ends = [topology.child(link), topology.parent(link)];
        if ends.iter().all(|end| ledger.in_service(*end)) {
            assert!(reserved.larger() <= ledger.limit(link), "reserved <= limit on {link:?}");
        }
    }
    for server in topology.layer(0) {
        let free = ledger.free_slots(server);
        assert_eq!(free + slots[server.index()], topology.slots(server));
    }
}
