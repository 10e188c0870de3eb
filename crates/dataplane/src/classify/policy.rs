//! The snapshot: what control compiles for the classifier. It is immutable, shared, and replaced
//! between batches.
//!
//! A *domain* is one VLAN of one tenant. Its members receive each other's broadcasts and share a
//! part of the FDB. Two tenants may use the same VLAN id, because their domains differ. Control
//! keeps the numbers of ports and domains stable from one snapshot to the next.

use std::sync::Arc;

use penstock_qos::egress_policer::EgressPolicer;
use penstock_units::{PortId, Vid};

use super::binding::Binding;
use super::fdb::{AGEING_DEFAULT_S, NO_DOMAIN};
use super::key::{FlowMask, KeyFields, MAC_MASK};
use super::matching::{Actions, Match, Then};
use super::tables::{RuleRef, RuleTables};
use crate::egress::rtp::RtpStreams;
use crate::ingress_policer::IngressPolicer;
use crate::port::vcpu_bells::VcpuBell;
use crate::queue::{QueueHome, ShapeTerms, ShareTerms};
use crate::schedule::PortQos;

/// The VLAN ids that a trunk carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VidSet(Box<[u64; 64]>);

impl Default for VidSet {
    fn default() -> Self {
        Self(Box::new([0; 64]))
    }
}

impl VidSet {
    pub fn insert(&mut self, vid: Vid) {
        let vid = usize::from(vid.get());
        self.0[vid / 64] |= 1 << (vid % 64);
    }

    /// Whether the low 12 bits of `vid` are in the set.
    #[inline]
    #[must_use]
    pub fn contains(&self, vid: u16) -> bool {
        let vid = usize::from(vid & 0xfff);
        self.0[vid / 64] >> (vid % 64) & 1 != 0
    }
}

impl FromIterator<Vid> for VidSet {
    fn from_iter<I: IntoIterator<Item = Vid>>(vids: I) -> Self {
        let mut set = Self::default();
        vids.into_iter().for_each(|vid| set.insert(vid));
        set
    }
}

/// How a port participates in VLANs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VlanPolicy {
    /// One VLAN, untagged on the wire. Frames with the VLAN's own tag are admitted too.
    Access {
        /// The VLAN; 0 is the untagged network.
        vid: Vid,
    },
    /// Several VLANs, distinguished by their tags.
    Trunk {
        /// VLAN of untagged frames; `None` refuses them.
        native: Option<Vid>,
        /// VLANs of tagged frames.
        allowed: VidSet,
    },
}

/// The domain of each VLAN of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DomainMap {
    /// The single domain of an access port.
    Access(u16),
    /// Domains by VLAN id; [`NO_DOMAIN`] if the port does not have the VLAN.
    Trunk(Box<[u16; 4096]>),
}

impl DomainMap {
    /// Builds a trunk's map from pairs of VLAN id and domain.
    #[must_use]
    pub fn trunk(pairs: impl IntoIterator<Item = (Vid, u16)>) -> Self {
        let mut map = Box::new([NO_DOMAIN; 4096]);
        for (vid, domain) in pairs {
            map[usize::from(vid.get())] = domain;
        }
        Self::Trunk(map)
    }
}

/// Limit on frames that take the slow path: a new or moved source address, or a flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowPathLimit {
    /// Long-term rate in frames per second; 0 refuses all.
    pub per_second: u32,
    /// Maximum burst in frames.
    pub burst: u32,
}

impl SlowPathLimit {
    /// Default for a VM. The rate suffices for ARP and a boot, and is too low to disturb other
    /// ports. The burst fits four times into the smallest ring that drivers use (256), so that a
    /// neighbour's own frames still find room.
    pub const DEFAULT: Self = Self { per_second: 1_000, burst: 64 };
    /// No limit; used for uplinks.
    pub const UNLIMITED: Self = Self { per_second: u32::MAX, burst: u32::MAX };
}

/// The single destination of all frames of a port. [`PortPolicy::finish`] determines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Patch {
    pub(super) port: u16,
    pub(super) vid: u16,
    pub(super) rule: RuleRef,
}

/// Permissions and parameters of a port. Build one with [`Self::access`] or [`Self::trunk`], set
/// the fields, and call [`Self::finish`] last.
#[derive(Clone, Debug)]
pub struct PortPolicy {
    pub id: u16,
    /// The tenant that owns the port; `None` if the operator does (an uplink).
    pub tenant: Option<u16>,
    pub vlan: VlanPolicy,
    pub domains: DomainMap,
    /// Source addresses that the port may use; `None` allows all.
    pub binding: Option<Binding>,
    /// The rules for frames from the port.
    pub rules: RuleTables,
    /// Limit on learning and flooding.
    pub slow_path: SlowPathLimit,
    /// Isolated ports cannot reach each other, but can reach all other ports (a private VLAN).
    pub isolated: bool,
    /// Whether the port may send frames with one VLAN tag more than its own. The switch does not
    /// read the headers behind that tag.
    pub qinq: bool,
    /// Whether the port is administratively up.
    pub up: bool,
    /// Entitlement, weight and latency class.
    pub qos: PortQos,
    /// Rate limits on what the port sends.
    pub ingress_policer: Option<Arc<IngressPolicer>>,
    /// Limit on what the port receives.
    pub egress_policer: Option<Arc<EgressPolicer>>,
    /// Limit on what the port's tenant sends over the network, shared by the tenant's ports.
    pub tenant_policer: Option<Arc<EgressPolicer>>,
    /// Queue for the frames that go out by this port.
    pub queue: Option<Arc<QueueHome>>,
    /// The port's share of outputs that have a queue.
    pub share: ShareTerms,
    /// Shaping of what the port sends.
    pub shape: Option<ShapeTerms>,
    /// Code point (DSCP, 0 to 63) for the port's frames that leave the host.
    pub dscp: Option<u8>,
    /// Whether frames to this port leave the host and some port has a code point for them.
    pub marks: bool,
    /// Measurement of the RTP streams to this port.
    pub rtp: Option<Arc<RtpStreams>>,
    /// Whether the load of the port's link is monitored. If it is, frames to the link are counted
    /// with their size on the link.
    pub watched: bool,
    /// Notification to the vCPU scheduler when frames arrive for the port's VM. `None` if no
    /// scheduler runs the VM's vCPUs.
    pub bell: Option<VcpuBell>,
    /// The single destination, if there is one. [`Self::finish`] sets this field.
    pub(super) patch: Option<Patch>,
    /// The key bits on which a decision about this port's frames can depend. [`Self::finish`] sets
    /// this field.
    pub(super) relevant: FlowMask,
}

impl PortPolicy {
    /// An access port of `vid`, whose domain is `domain`, without binding and rules.
    #[must_use]
    pub fn access(id: u16, tenant: Option<u16>, vid: Vid, domain: u16) -> Self {
        Self::new(id, tenant, VlanPolicy::Access { vid }, DomainMap::Access(domain))
    }

    /// A trunk port without binding and rules.
    #[must_use]
    pub fn trunk(
        id: u16,
        tenant: Option<u16>,
        native: Option<Vid>,
        allowed: VidSet,
        domains: DomainMap,
    ) -> Self {
        Self::new(id, tenant, VlanPolicy::Trunk { native, allowed }, domains)
    }

    fn new(id: u16, tenant: Option<u16>, vlan: VlanPolicy, domains: DomainMap) -> Self {
        Self {
            id,
            tenant,
            vlan,
            domains,
            binding: None,
            rules: RuleTables::default(),
            slow_path: SlowPathLimit::DEFAULT,
            isolated: false,
            qinq: false,
            up: true,
            qos: PortQos::default(),
            ingress_policer: None,
            egress_policer: None,
            tenant_policer: None,
            rtp: None,
            queue: None,
            share: ShareTerms::default(),
            shape: None,
            dscp: None,
            marks: false,
            watched: false,
            bell: None,
            patch: None,
            relevant: FlowMask::new(&KeyFields::ALL),
        }
    }

    /// Computes the derived fields. Must be called after the last change.
    #[must_use]
    pub fn finish(mut self) -> Self {
        self.patch = self.find_patch();
        self.relevant = self.find_relevant();
        self
    }

    /// The key bits on which a decision can depend. The bits of input port, VLAN, protocol and
    /// Ethernet addresses are always included. Other bits are included if a rule or the binding
    /// reads them. Flows that differ only in excluded bits share a decision.
    fn find_relevant(&self) -> FlowMask {
        let always = FlowMask::new(&KeyFields {
            in_port: u16::MAX,
            vid: u16::MAX,
            ethertype: u16::MAX,
            proto: u8::MAX,
            dst_mac: MAC_MASK,
            src_mac: MAC_MASK,
            ..KeyFields::default()
        });
        let bound = self.binding.as_ref().map_or(FlowMask::default(), Binding::mask);
        always.union(&bound).union(&self.rules.mask())
    }

    /// The single output of an access port without a binding, if its best rule matches every frame.
    fn find_patch(&self) -> Option<Patch> {
        let VlanPolicy::Access { vid } = self.vlan else { return None };
        // The code point must be written into all frames, also those whose headers must be parsed
        // first.
        if self.binding.is_some() || self.dscp.is_some() || !self.up {
            return None;
        }
        let (rule, best) = self.rules.top()?;
        let everything = Match {
            in_port: best.matching.in_port.filter(|&p| p == self.id),
            vlan: best.matching.vlan.filter(|&v| v == vid),
            ..Match::default()
        };
        match best.actions {
            Actions { set_vlan: None, set_dscp: None, then: Then::Output(port) }
                if best.matching == everything && port != self.id =>
            {
                Some(Patch { port, vid: vid.get(), rule })
            }
            _ => None,
        }
    }

    /// Whether the treatment of the port's frames depends on headers, so that no header may be
    /// hidden. This is so if the port has a binding, a code point, or a rule other than one that
    /// sends all frames to one port.
    #[inline]
    #[must_use]
    pub fn reads_headers(&self) -> bool {
        let by_rules = !self.rules.is_empty() && self.patch.is_none();
        self.binding.is_some() || self.dscp.is_some() || by_rules
    }

    /// Whether frames of `sender` with a second VLAN tag must not leave by this port. Without the
    /// sender's own tag, the network would obey the second one. A trunk always refuses such frames.
    /// A link that leaves the host accepts them only if the sender belongs to the operator or the
    /// link allows it ([`Self::qinq`]).
    #[inline]
    #[must_use]
    pub fn keeps_tags_in(&self, sender: Option<&Self>) -> bool {
        let tenants = self.tenant.is_none() && sender.is_some_and(|s| s.tenant.is_some());
        self.is_trunk() || tenants && !self.qinq
    }

    /// Whether every frame goes to one port without a look at its headers. A frame with a tag or
    /// offload metadata is parsed nevertheless.
    #[must_use]
    pub fn is_patch(&self) -> bool {
        self.patch.is_some()
    }

    /// VLAN and domain of a frame with this VLAN id in its tag (0: no tag). `None` if the port does
    /// not admit the frame.
    #[inline]
    #[must_use]
    pub fn admit(&self, tag: u16) -> Option<(u16, u16)> {
        let vid = match &self.vlan {
            VlanPolicy::Access { vid } if tag == 0 || tag == vid.get() => vid.get(),
            VlanPolicy::Trunk { native, .. } if tag == 0 => native.as_ref()?.get(),
            VlanPolicy::Trunk { allowed, .. } if allowed.contains(tag) => tag,
            _ => return None,
        };
        Some((vid, self.domain(vid)?))
    }

    /// The domain of one of the port's VLANs.
    #[inline]
    #[must_use]
    pub fn domain(&self, vid: u16) -> Option<u16> {
        match (&self.domains, &self.vlan) {
            (DomainMap::Access(domain), VlanPolicy::Access { vid: own }) => {
                (own.get() == vid && *domain != NO_DOMAIN).then_some(*domain)
            }
            (DomainMap::Access(_), VlanPolicy::Trunk { .. }) => None,
            (DomainMap::Trunk(map), _) => {
                map.get(usize::from(vid)).copied().filter(|&d| d != NO_DOMAIN)
            }
        }
    }

    /// Form in which a frame of VLAN `vid` leaves by this port: `Some(true)` tagged, `Some(false)`
    /// untagged, `None` not at all. An access port accepts any VLAN: normal forwarding sends it
    /// only frames of its own VLAN, but a rule may send frames of another.
    #[inline]
    #[must_use]
    pub fn egress_form(&self, vid: u16) -> Option<bool> {
        match &self.vlan {
            VlanPolicy::Access { .. } => Some(false),
            VlanPolicy::Trunk { native: Some(native), .. } if native.get() == vid => Some(false),
            VlanPolicy::Trunk { allowed, .. } => {
                (vid != 0 && allowed.contains(vid)).then_some(true)
            }
        }
    }

    /// Whether tags distinguish the VLANs of the port's frames.
    #[inline]
    #[must_use]
    pub const fn is_trunk(&self) -> bool {
        matches!(self.vlan, VlanPolicy::Trunk { .. })
    }

    /// Whether normal forwarding and floods may send a frame from this port to `other`.
    #[inline]
    #[must_use]
    pub fn may_reach(&self, other: &Self) -> bool {
        !(self.isolated && other.isolated)
    }
}

/// One VLAN of one tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domain {
    /// The tenant; `None` is the operator.
    pub tenant: Option<u16>,
    pub vid: u16,
    /// Ports that are members, in rising order.
    pub members: Box<[u16]>,
    /// Maximum number of FDB entries of the domain.
    pub fdb_limit: u32,
}

/// The ports that receive a copy of a frame sent to the set.
pub type OutputSet = Box<[u16]>;

/// Everything that classification and egress need to know of the configuration.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Differs between any two snapshots that lead to different decisions.
    pub generation: u64,
    /// Ports by number.
    pub ports: Vec<Option<Arc<PortPolicy>>>,
    /// Domains by number. A domain without members is unused.
    pub domains: Vec<Domain>,
    /// Output sets by number.
    pub output_sets: Vec<OutputSet>,
    /// Seconds after which an address without frames is removed; 0 means never.
    pub fdb_ageing_s: u32,
    /// Domain of each pair of tenant and VLAN id, in rising order.
    networks: Vec<((u16, u16), u16)>,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self::new(0, Vec::new(), Vec::new(), Vec::new(), AGEING_DEFAULT_S)
    }
}

impl Snapshot {
    /// Builds a snapshot and sorts the members of its domains.
    #[must_use]
    pub fn new(
        generation: u64,
        ports: Vec<Option<Arc<PortPolicy>>>,
        mut domains: Vec<Domain>,
        output_sets: Vec<OutputSet>,
        fdb_ageing_s: u32,
    ) -> Self {
        domains.iter_mut().for_each(|d| d.members.sort_unstable());
        let mut networks: Vec<_> = (0..)
            .zip(&domains)
            .filter_map(|(number, d)| Some(((d.tenant?, d.vid), number)))
            .collect();
        networks.sort_unstable();
        Self { generation, ports, domains, output_sets, fdb_ageing_s, networks }
    }

    /// A copy with changed QoS of some ports. Decisions stay valid, so the generation stays the
    /// same.
    #[must_use]
    pub fn with_qos(&self, mut change: impl FnMut(PortId, &mut PortQos)) -> Self {
        let mut new = self.clone();
        for (id, port) in (0..).map(PortId).zip(&mut new.ports) {
            let Some(policy) = port else { continue };
            let mut qos = policy.qos;
            change(id, &mut qos);
            if qos != policy.qos {
                Arc::make_mut(policy).qos = qos;
            }
        }
        new
    }

    /// The domain of VLAN `vid` of `tenant`.
    #[must_use]
    pub fn network(&self, tenant: u16, vid: u16) -> Option<u16> {
        let at = self.networks.binary_search_by_key(&(tenant, vid), |n| n.0).ok()?;
        self.networks.get(at).map(|n| n.1)
    }

    #[inline]
    #[must_use]
    pub fn domain(&self, number: u16) -> Option<&Domain> {
        self.domains.get(usize::from(number))
    }

    #[inline]
    #[must_use]
    pub fn port(&self, number: u16) -> Option<&Arc<PortPolicy>> {
        self.ports.get(usize::from(number))?.as_ref()
    }

    /// Whether `port` exists and is a member of `domain`.
    #[must_use]
    pub fn is_member(&self, domain: u16, port: u16) -> bool {
        self.port(port).is_some()
            && self.domain(domain).is_some_and(|d| d.members.binary_search(&port).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vid(v: u32) -> Vid {
        Vid::new(v).unwrap()
    }

    #[test]
    fn an_access_port_admits_no_tag_and_its_own() {
        let p = PortPolicy::access(1, None, vid(10), 4);
        assert_eq!((p.admit(0), p.admit(10)), (Some((10, 4)), Some((10, 4))));
        assert_eq!((p.admit(11), p.admit(4095)), (None, None));
        assert_eq!(p.egress_form(10), Some(false));
    }

    #[test]
    fn a_trunk_admits_only_its_vlans() {
        let allowed = [vid(10), vid(20)].into_iter().collect();
        let domains = DomainMap::trunk([(vid(5), 1), (vid(10), 2), (vid(30), 3)]);
        let p = PortPolicy::trunk(1, None, Some(vid(5)), allowed, domains);
        assert_eq!((p.admit(0), p.admit(10)), (Some((5, 1)), Some((10, 2))));
        assert_eq!((p.admit(20), p.admit(30), p.admit(5), p.admit(4095)), (None, None, None, None));
        assert_eq!((p.egress_form(5), p.egress_form(10)), (Some(false), Some(true)));
        assert_eq!((p.egress_form(30), p.egress_form(0)), (None, None));
    }

    #[test]
    fn the_network_of_a_tenant_is_found_by_its_vlan() {
        let domain = |tenant, vid| Domain { tenant, vid, ..Domain::default() };
        let domains = vec![domain(Some(2), 10), domain(Some(1), 10), domain(None, 10)];
        let s = Snapshot::new(1, Vec::new(), domains, Vec::new(), 300);
        assert_eq!(
            (s.network(1, 10), s.network(2, 10), s.network(2, 11)),
            (Some(1), Some(0), None)
        );
    }
}
