//! Bytes that a tenant writes after its own VLAN tag never become a tag on an uplink (VLAN
//! hopping).

use std::sync::Arc;

use penstock_dataplane::batch::{Batch, Verdict};
use penstock_dataplane::drop::DropReason;
use penstock_dataplane::offload::{Offload, OffloadCaps};
use penstock_dataplane::snapshot::{Domain, DomainMap, PortPolicy, Snapshot, VidSet};
use penstock_units::Vid;

use crate::common::deliver;

const UPLINK: u16 = 1;

fn vid(n: u16) -> Vid {
    Vid::new(u32::from(n)).unwrap()
}

/// How the uplink of the test carries VLAN 100: tagged or untagged, alone or with other VLANs.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// VLAN 100 is untagged, and the uplink also carries VLAN 200 of another tenant.
    Native,
    /// VLAN 100 is tagged, and the uplink also carries VLAN 200.
    Tagged,
    /// VLAN 100 is the uplink's only VLAN.
    Access,
    /// VLAN 100 is the uplink's only VLAN, and the uplink allows tenants' own tags.
    QinQ,
}

/// Returns a snapshot with a port of `tenant` in VLAN 100 and an uplink.
fn snapshot(form: Form, tenant: Option<u16>) -> Snapshot {
    let mut allowed = VidSet::default();
    allowed.insert(vid(100));
    allowed.insert(vid(200));
    let domains = DomainMap::trunk([(vid(100), 0), (vid(200), 1)]);
    let guest = PortPolicy::access(0, tenant, vid(100), 0).finish();
    let native = (form == Form::Native).then(|| vid(100));
    let mut uplink = match form {
        Form::Native | Form::Tagged => PortPolicy::trunk(UPLINK, None, native, allowed, domains),
        Form::Access | Form::QinQ => PortPolicy::access(UPLINK, None, vid(100), 0),
    };
    uplink.qinq = form == Form::QinQ;
    let uplink = uplink.finish();
    let domain = |tenant, vid, members: &[u16]| Domain {
        tenant: Some(tenant),
        vid,
        members: members.into(),
        fdb_limit: 16,
    };
    let policies = vec![Some(Arc::new(guest)), Some(Arc::new(uplink))];
    let domains = vec![domain(1, 100, &[0, UPLINK]), domain(2, 200, &[UPLINK])];
    Snapshot::new(1, policies, domains, Vec::new(), 300)
}

/// Sends a frame of VLAN 100 with EtherType `ethertype` after its MAC addresses to the uplink.
/// Returns the frame that the uplink received, or the number of drops.
fn sent(form: Form, tenant: Option<u16>, ethertype: u16) -> Result<Vec<u8>, u64> {
    let mut bytes = vec![2; 12];
    bytes.extend(ethertype.to_be_bytes());
    bytes.extend([0, 200, 8, 0]);
    bytes.resize(60, 0);
    let mut batch = Batch::new();
    batch.push(&bytes, Offload::NONE).unwrap();
    batch.frame_mut(0).tci = 100;
    batch.frame_mut(0).verdict = Verdict::Output(UPLINK);
    let (reading, driver) = deliver(&mut batch, &snapshot(form, tenant), OffloadCaps::ALL);
    let dropped = reading.drops[DropReason::VlanEgress as usize];
    driver.receive().map(|frame| frame.bytes).ok_or(dropped)
}

#[test]
fn an_inner_tag_does_not_surface_on_a_trunks_native_vlan() {
    for tag in [0x8100_u16, 0x88a8, 0x9100] {
        assert_eq!(sent(Form::Native, Some(1), tag), Err(1), "{tag:#x}");
        // After the VLAN's own tag, the tenant's tag is payload.
        let whole = sent(Form::Tagged, Some(1), tag).unwrap();
        assert_eq!(whole[12..18], [0x81, 0, 0, 100, tag.to_be_bytes()[0], tag.to_be_bytes()[1]]);
    }
    assert_eq!(sent(Form::Native, Some(1), 0x0800).unwrap().len(), 60);
}

#[test]
fn a_tenants_tag_does_not_surface_on_an_uplink_that_sends_none() {
    for tag in [0x8100_u16, 0x88a8, 0x9100] {
        assert_eq!(sent(Form::Access, Some(1), tag), Err(1), "{tag:#x}");
        assert_eq!(sent(Form::Access, None, tag).unwrap().len(), 60, "the operator's own");
        assert_eq!(sent(Form::QinQ, Some(1), tag).unwrap().len(), 60);
    }
    assert_eq!(sent(Form::Access, Some(1), 0x0800).unwrap().len(), 60);
}
