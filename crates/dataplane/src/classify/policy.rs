//! What control compiles for the classifier: immutable, shared, swapped in between batches.
//!
//! **Rule.** A *domain* is one tenant's one VLAN: its members see each other's broadcast and share
//! a part of the FDB. Two tenants may use the same VLAN id; their domains differ. Control keeps
//! port and domain numbers stable from one snapshot to the next.

use std::sync::Arc;

use penstock_qos::policing::Policing;
use penstock_units::{PortId, Vid};

use super::binding::Binding;
use super::fdb::{AGEING_DEFAULT_S, NO_DOMAIN};
use super::key::{FlowMask, KeyFields, MAC_MASK};
use super::matching::{Actions, Match, Then};
use super::tables::{RuleRef, RuleTables};
use crate::egress::rtp::RtpStreams;
use crate::police::Limits;
use crate::port::vcpu_bells::VcpuBell;
use crate::queue::{QueueHome, ShapeTerms, ShareTerms};
use crate::schedule::PortQos;

/// VLAN ids a trunk carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VidSet(Box<[u64; 64]>);

impl Default for VidSet {
    fn default() -> Self {
        Self(Box::new([0; 64]))
    }
}

impl VidSet {
    /// Adds a VLAN id.
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

/// How a port takes part in VLANs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VlanPolicy {
    /// One VLAN, without a tag on the wire; frames with its own tag are admitted too.
    Access {
        /// The VLAN; 0 is the untagged network.
        vid: Vid,
    },
    /// Several, told apart by their tag.
    Trunk {
        /// Where frames without a tag belong.
        native: Option<Vid>,
        /// Those with a tag.
        allowed: VidSet,
    },
}

/// Which domain each VLAN of a port is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DomainMap {
    /// An access port's one domain.
    Access(u16),
    /// By VLAN id; [`NO_DOMAIN`] where there is none.
    Trunk(Box<[u16; 4096]>),
}

impl DomainMap {
    /// A trunk's map from pairs of VLAN id and domain.
    #[must_use]
    pub fn trunk(pairs: impl IntoIterator<Item = (Vid, u16)>) -> Self {
        let mut map = Box::new([NO_DOMAIN; 4096]);
        for (vid, domain) in pairs {
            map[usize::from(vid.get())] = domain;
        }
        Self::Trunk(map)
    }
}

/// How many frames a second may take the slow path: a new or moved source address, or a flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowPathLimit {
    /// Frames per second in the long run; 0 refuses all.
    pub per_second: u32,
    /// Frames at once.
    pub burst: u32,
}

impl SlowPathLimit {
    /// For a VM: enough for ARP and a boot, far too little to disturb anyone. What it may flood at
    /// once fits four times into the smallest ring that drivers use (256), so that a neighbour's
    /// own frames find room behind it.
    pub const DEFAULT: Self = Self { per_second: 1_000, burst: 64 };
    /// Refuses nothing; for uplinks.
    pub const UNLIMITED: Self = Self { per_second: u32::MAX, burst: u32::MAX };
}

/// A port whose every frame goes to one place, found by [`PortPolicy::finish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Patch {
    pub(super) port: u16,
    pub(super) vid: u16,
    pub(super) rule: RuleRef,
}

/// What a port may do. Build it with [`Self::access`] or [`Self::trunk`], set the fields, and call
/// [`Self::finish`] last.
#[derive(Clone, Debug)]
pub struct PortPolicy {
    /// The port's number.
    pub id: u16,
    /// Whose it is; `None` is the operator's (an uplink).
    pub tenant: Option<u16>,
    /// Its VLANs.
    pub vlan: VlanPolicy,
    /// Their domains.
    pub domains: DomainMap,
    /// The addresses it may use.
    pub binding: Option<Binding>,
    /// The rules its frames meet.
    pub rules: RuleTables,
    /// How much it may learn and flood.
    pub slow_path: SlowPathLimit,
    /// Isolated ports do not reach each other, only others (a private VLAN).
    pub isolated: bool,
    /// Whether it may send frames with one VLAN tag more than its own, whose headers nobody reads.
    pub qinq: bool,
    /// Administratively up.
    pub up: bool,
    /// What it bought, and its class.
    pub qos: PortQos,
    /// The rates it is held to, if there are any.
    pub limits: Option<Arc<Limits>>,
    /// What it may receive, if that is limited.
    pub receive: Option<Arc<Policing>>,
    /// What its tenant may send over the network, by shared ports, if that is limited.
    pub send: Option<Arc<Policing>>,
    /// The queue of what goes to it, if it has one.
    pub queue: Option<Arc<QueueHome>>,
    /// Its part of outputs that are shared.
    pub share: ShareTerms,
    /// How what it sends is shaped, if it is.
    pub shape: Option<ShapeTerms>,
    /// The code point (DSCP, 0 to 63) of what it sends, where that leaves the host.
    pub dscp: Option<u8>,
    /// Whether what goes to it leaves the host, and some port has a code point for that.
    pub marks: bool,
    /// The RTP streams to it that are measured.
    pub rtp: Option<Arc<RtpStreams>>,
    /// Whether its link's load is watched, so that what goes there is counted as it is on the link.
    pub watched: bool,
    /// Rung when frames came for its VM, if somebody schedules its vCPUs.
    pub bell: Option<VcpuBell>,
    /// Worked out by [`Self::finish`].
    pub(super) patch: Option<Patch>,
    /// The bits of a flow key that any decision about this port's frames depends on; worked out by
    /// [`Self::finish`].
    pub(super) relevant: FlowMask,
}

impl PortPolicy {
    /// An access port of `vid`, which is `domain`; no binding, no rules.
    #[must_use]
    pub fn access(id: u16, tenant: Option<u16>, vid: Vid, domain: u16) -> Self {
        Self::new(id, tenant, VlanPolicy::Access { vid }, DomainMap::Access(domain))
    }

    /// A trunk port; no binding, no rules.
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
            limits: None,
            receive: None,
            send: None,
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

    /// Works out what can be decided beforehand. Call it after the last change.
    #[must_use]
    pub fn finish(mut self) -> Self {
        self.patch = self.find_patch();
        self.relevant = self.find_relevant();
        self
    }

    /// Ports, VLAN, protocol and addresses of Ethernet always matter; of the rest what a rule or
    /// the binding looks at. Flows that differ in other bits share a decision.
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

    /// The one output of an access port without binding whose best rule of all matches every
    /// frame.
    fn find_patch(&self) -> Option<Patch> {
        let VlanPolicy::Access { vid } = self.vlan else { return None };
        // A code point is for all of its frames, also for those whose headers are to be read first.
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

    /// Whether what becomes of its frames depends on headers, so that none may be hidden: by its
    /// binding, its rules but for the one that sends all to one place, or its code point.
    #[inline]
    #[must_use]
    pub fn reads_headers(&self) -> bool {
        let by_rules = !self.rules.is_empty() && self.patch.is_none();
        self.binding.is_some() || self.dscp.is_some() || by_rules
    }

    /// Whether what `sender` writes behind its own VLAN's tag may become a tag that a network goes
    /// by: on a trunk never, on a link that leaves the host only if the sender is the operator's
    /// or the link is for that ([`Self::qinq`]).
    #[inline]
    #[must_use]
    pub fn keeps_tags_in(&self, sender: Option<&Self>) -> bool {
        let tenants = self.tenant.is_none() && sender.is_some_and(|s| s.tenant.is_some());
        self.is_trunk() || tenants && !self.qinq
    }

    /// Whether every frame goes to one port without a look at its headers (a frame with a tag or
    /// with offload metadata is looked at nevertheless).
    #[must_use]
    pub fn is_patch(&self) -> bool {
        self.patch.is_some()
    }

    /// The VLAN and domain of a frame with this VLAN id in its tag (0: no tag); `None` if the port
    /// does not admit it.
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

    /// In which form a frame of VLAN `vid` leaves by this port: `Some(true)` with its tag,
    /// `Some(false)` without, `None` not at all. An access port takes what it is sent: normal
    /// forwarding only sends it its own VLAN, a rule may send it any.
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

    /// Whether what the port sends and receives is told apart by tags.
    #[inline]
    #[must_use]
    pub const fn is_trunk(&self) -> bool {
        matches!(self.vlan, VlanPolicy::Trunk { .. })
    }

    /// Whether normal forwarding and floods may take a frame from this port to `other`.
    #[inline]
    #[must_use]
    pub fn may_reach(&self, other: &Self) -> bool {
        !(self.isolated && other.isolated)
    }
}

/// One tenant's one VLAN.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domain {
    /// Whose it is; `None` is the operator's.
    pub tenant: Option<u16>,
    /// Its VLAN id.
    pub vid: u16,
    /// Ports that take part, rising.
    pub members: Box<[u16]>,
    /// Most addresses it may have in the FDB.
    pub fdb_limit: u32,
}

/// The ports that get a copy of a frame sent to the set.
pub type OutputSet = Box<[u16]>;

/// Everything the classifier and the egress side go by.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Differs from snapshot to snapshot.
    pub generation: u64,
    /// By port number.
    pub ports: Vec<Option<Arc<PortPolicy>>>,
    /// By domain number; a domain without members is unused.
    pub domains: Vec<Domain>,
    /// By set number.
    pub output_sets: Vec<OutputSet>,
    /// Seconds after which an address nobody hears of is forgotten; 0 is never.
    pub fdb_ageing_s: u32,
    /// (tenant, VLAN id) to domain, rising.
    networks: Vec<((u16, u16), u16)>,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self::new(0, Vec::new(), Vec::new(), Vec::new(), AGEING_DEFAULT_S)
    }
}

impl Snapshot {
    /// A snapshot; sorts the domains' members.
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

    /// The same with some ports' shares changed, and nothing else: what was decided by it holds, so
    /// its generation is the same.
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

    /// The domain that is `tenant`'s VLAN `vid`.
    #[must_use]
    pub fn network(&self, tenant: u16, vid: u16) -> Option<u16> {
        let at = self.networks.binary_search_by_key(&(tenant, vid), |n| n.0).ok()?;
        self.networks.get(at).map(|n| n.1)
    }

    /// Domain `number`.
    #[inline]
    #[must_use]
    pub fn domain(&self, number: u16) -> Option<&Domain> {
        self.domains.get(usize::from(number))
    }

    /// The policy of port `number`.
    #[inline]
    #[must_use]
    pub fn port(&self, number: u16) -> Option<&Arc<PortPolicy>> {
        self.ports.get(usize::from(number))?.as_ref()
    }

    /// Whether `port` takes part in `domain`.
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
    fn a_trunk_admits_its_vlans_and_gives_the_rest_no_home() {
        let allowed = [vid(10), vid(20)].into_iter().collect();
        let domains = DomainMap::trunk([(vid(5), 1), (vid(10), 2), (vid(30), 3)]);
        let p = PortPolicy::trunk(1, None, Some(vid(5)), allowed, domains);
        assert_eq!((p.admit(0), p.admit(10)), (Some((5, 1)), Some((10, 2))));
        assert_eq!((p.admit(20), p.admit(30), p.admit(5), p.admit(4095)), (None, None, None, None));
        assert_eq!((p.egress_form(5), p.egress_form(10)), (Some(false), Some(true)));
        assert_eq!((p.egress_form(30), p.egress_form(0)), (None, None));
    }

    #[test]
    fn a_tenant_s_network_is_found_by_its_vlan() {
        let domain = |tenant, vid| Domain { tenant, vid, ..Domain::default() };
        let domains = vec![domain(Some(2), 10), domain(Some(1), 10), domain(None, 10)];
        let s = Snapshot::new(1, Vec::new(), domains, Vec::new(), 300);
        assert_eq!(
            (s.network(1, 10), s.network(2, 10), s.network(2, 11)),
            (Some(1), Some(0), None)
        );
    }
}
