//! Tests the invariants of placement under any sequence of requests.

use penstock_fabric::ledger::{Entry, Service};
use penstock_fabric::tenant_placement::{
    Choice, Datacenter, Offer, Policy, QueueWeight, Reason, Request, TenantSlot,
};
use penstock_fabric::topology::NodeId;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::common;

#[derive(Clone, Debug)]
enum Act {
    Place(Request),
    Remove(Index),
    Grow(Index, Index, u32, bool),
    Evacuate(Index, bool),
    Return(Index),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => common::uniform(8).prop_map(Act::Place),
        3 => common::mixed().prop_map(Act::Place),
        2 => any::<Index>().prop_map(Act::Remove),
        1 => (any::<Index>(), any::<Index>(), 1_u32..=3, any::<bool>())
            .prop_map(|(tenant, class, more, may)| Act::Grow(tenant, class, more, may)),
        1 => (any::<Index>(), any::<bool>()).prop_map(|(node, fails)| Act::Evacuate(node, fails)),
        1 => any::<Index>().prop_map(Act::Return),
    ]
}

fn policy() -> impl Strategy<Value = Policy> {
    let choice = prop_oneof![Just(Choice::Balanced), Just(Choice::FirstFit)];
    let weight =
        prop_oneof![Just(QueueWeight::ByLoad), (0.0_f64..=1.0).prop_map(QueueWeight::Fixed)];
    (choice, weight, 2_u32..=4).prop_map(|(choice, queue_weight, queues)| Policy {
        queues,
        queue_weight,
        choice,
        ..Policy::default()
    })
}

fn node(datacenter: &Datacenter, index: &Index) -> NodeId {
    NodeId(u32::try_from(index.index(datacenter.topology().nodes())).unwrap())
}

fn tenant(datacenter: &Datacenter, index: &Index) -> Option<TenantSlot> {
    let slots: Vec<_> = datacenter.tenants().map(|(slot, _)| slot).collect();
    (!slots.is_empty()).then(|| *index.get(&slots))
}

fn run(datacenter: &mut Datacenter, act: &Act) {
    match act {
        Act::Place(request) => {
            let before = datacenter.ledger().clone();
            if datacenter.place(request).is_err() {
                assert!(before.same_books(datacenter.ledger()), "a refusal changes nothing");
            }
        }
        Act::Remove(index) => {
            let gone = tenant(datacenter, index).and_then(|slot| datacenter.remove(slot));
            assert_eq!(gone.is_none(), tenant(datacenter, index).is_none() && gone.is_none());
        }
        Act::Grow(index, class, more, may_move) => {
            let Some(slot) = tenant(datacenter, index) else { return };
            let old = datacenter.tenant(slot).unwrap().clone();
            let class = class.index(old.request.hose.classes().len());
            let grown = datacenter.grow(slot, class, *more, *may_move);
            let new = datacenter.tenant(slot).unwrap();
            match grown {
                Ok(_) => assert_eq!(new.request.hose.vms(), old.request.hose.vms() + more),
                Err(_) => assert_eq!(*new, old),
            }
        }
        Act::Evacuate(index, fails) => {
            let node = node(datacenter, index);
            let service = if *fails { Service::Failed } else { Service::Drained };
            for moved in datacenter.evacuate(node, service) {
                let placement = &datacenter.tenant(moved.tenant).unwrap().placement;
                assert!(moved.outcome.is_err() || placement.vms_on(node) == 0);
            }
        }
        Act::Return(index) => {
            let node = node(datacenter, index);
            datacenter.set_service(node, Service::In);
        }
    }
}

/// Returns all visible state of a datacenter: the placements and reservations of all tenants.
fn picture(datacenter: &Datacenter) -> Vec<(TenantSlot, NodeId, Entry)> {
    let tenants = datacenter.tenants();
    tenants.map(|(slot, t)| (slot, t.placement.root, t.placement.entry.clone())).collect()
}

proptest! {
    #[test]
    fn books_add_up_and_removing_all_restores_the_empty_state(
        tree in common::regular(),
        headroom in prop_oneof![Just(0_u32), Just(100)],
        policy in policy(),
        acts in prop::collection::vec(act(), 1..40),
    ) {
        let mut datacenter = common::datacenter(&tree, headroom, policy);
        let empty = datacenter.ledger().clone();
        for act in &acts {
            run(&mut datacenter, act);
            common::audit(&datacenter);
        }
        let mut replay = common::datacenter(&tree, headroom, policy);
        acts.iter().for_each(|act| run(&mut replay, act));
        prop_assert_eq!(picture(&replay), picture(&datacenter));
        let slots: Vec<_> = datacenter.tenants().map(|(slot, _)| slot).collect();
        for slot in slots {
            prop_assert!(datacenter.remove(slot).is_some());
        }
        for node in (0..datacenter.topology().nodes()).map(|n| NodeId(u32::try_from(n).unwrap())) {
            datacenter.set_service(node, Service::In);
        }
        prop_assert!(datacenter.ledger().same_books(&empty));
    }

    #[test]
    fn the_offers_of_a_refusal_fit(
        tree in common::regular(),
        others in prop::collection::vec(common::uniform(6), 0..6),
        request in common::uniform(20),
    ) {
        let mut datacenter = common::datacenter(&tree, 0, Policy::default());
        others.iter().for_each(|other| { let _ = datacenter.place(other); });
        let Err(refusal) = datacenter.place(&request) else { return Ok(()) };
        if let Reason::Slots { fit, wanted } = refusal.reason {
            prop_assert!(fit < wanted && wanted == request.hose.vms());
        }
        for offer in refusal.fits {
            let rate = request.hose.uniform().unwrap();
            let hose = match offer {
                Offer::Vms(vms) => request.hose.with_vms(0, vms),
                Offer::Rate(rate) => penstock_fabric::hose::Hose::homogeneous(
                    request.hose.vms(), rate),
                _ => panic!("{offer:?} of a tenant with one rate {rate}"),
            };
            let smaller = Request { hose: hose.unwrap(), ..request.clone() };
            prop_assert!(datacenter.find(&smaller).is_some(), "{:?}", offer);
        }
    }
}
