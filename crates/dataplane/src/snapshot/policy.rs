//! A snapshot is the configuration in the form that the control plane compiles for the classifier.
//! A snapshot is immutable and shared, and is replaced between batches.
//!
//! A *domain* is one VLAN of one tenant. A domain's members receive each other's broadcasts and
//! share a part of the FDB. Two tenants may use equal VLAN IDs, because the tenants' domains
//! differ. The control plane keeps port and domain numbers stable from one snapshot to the next.

use std::sync::Arc;

use penstock_qos::egress_policer::EgressPolicer;
use penstock_qos::inbound_shares::InboundShares;
use penstock_qos::pair_table::PairTable;
use penstock_units::{PortId, Vid};

use super::PortQos;
use super::binding::Binding;
use super::changes::Lineage;
use super::matching::{Actions, Match, Then};
use super::tables::{RuleRef, RuleTables};
use crate::headers::key::{FlowMask, KeyFields, MAC_MASK};
use crate::ingress_policer::IngressPolicer;
use crate::port::vcpu_bells::VcpuBell;
use crate::queue::{QueueHome, ShapeTerms, ShareTerms};
use crate::rtp::RtpStreams;

/// Default time in seconds after which an FDB entry without frames is removed.
pub const AGEING_DEFAULT_S: u32 = 300;
/// Domain number that means "no domain". For example, [`NO_DOMAIN`] marks a VLAN ID that a port
/// does not carry.
pub const NO_DOMAIN: u16 = u16::MAX;

/// Set of the VLAN IDs that a trunk carries.
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

    /// Whether the VLAN ID in the low 12 bits of `vid` is in the set.
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

/// VLANs of a port, and whether their frames are tagged on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VlanPolicy {
    /// The port has one VLAN, untagged on the wire. An access port also admits tagged frames of its
    /// own VLAN.
    Access {
        /// VLAN ID of the access port. 0 is the untagged network.
        vid: Vid,
    },
    /// The port has several VLANs, which are distinguished by their tags.
    Trunk {
        /// VLAN of untagged frames on the trunk. `None` means that the port refuses untagged
        /// frames.
        native: Option<Vid>,
        /// VLANs of the tagged frames that the trunk carries.
        allowed: VidSet,
    },
}

/// The forwarding domain of each VLAN of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DomainMap {
    /// Number of the single domain of an access port.
    Access(u16),
    /// Domains of a trunk, indexed by VLAN ID. The domain is [`NO_DOMAIN`] for a VLAN that the
    /// trunk does not carry.
    Trunk(Box<[u16; 4096]>),
}

impl DomainMap {
    /// Builds a trunk's domain map from pairs of VLAN ID and domain.
    #[must_use]
    pub fn trunk(pairs: impl IntoIterator<Item = (Vid, u16)>) -> Self {
        let mut map = Box::new([NO_DOMAIN; 4096]);
        for (vid, domain) in pairs {
            map[usize::from(vid.get())] = domain;
        }
        Self::Trunk(map)
    }
}

/// Rate limit on a port's frames that take the slow path: frames with a new or moved source
/// address, and floods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowPathLimit {
    /// Long-term rate of slow-path frames in frames per second. 0 refuses all slow-path frames.
    pub per_second: u32,
    /// Maximum burst of slow-path frames.
    pub burst: u32,
}

impl SlowPathLimit {
    /// Default slow-path limit of a VM. 1,000 slow-path frames per second are enough for ARP and
    /// for booting a VM, and too few to disturb other ports. A burst of 64 frames is a quarter of
    /// the smallest ring that drivers use (256 entries). After a burst of 64 flooded frames,
    /// another VM's ring still has room for other frames.
    pub const DEFAULT: Self = Self { per_second: 1_000, burst: 64 };
    /// The limit for ports that need no slow-path limit, for example uplinks.
    pub const UNLIMITED: Self = Self { per_second: u32::MAX, burst: u32::MAX };
}

/// The one port to which the switch sends all frames of another port, without parsing the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patch {
    pub(crate) port: u16,
    pub(crate) vid: u16,
    pub(crate) rule: RuleRef,
}

/// Configuration of a port: its permissions and parameters. Build a policy with [`Self::access`] or
/// [`Self::trunk`], set the fields, and call [`Self::finish`] last.
#[derive(Clone, Debug)]
pub struct PortPolicy {
    pub id: u16,
    /// The tenant that owns the port. The tenant is `None` if the operator owns the port, as for an
    /// uplink.
    pub tenant: Option<u16>,
    pub vlan: VlanPolicy,
    pub domains: DomainMap,
    /// Source addresses that the port may use. `None` allows all source addresses.
    pub binding: Option<Binding>,
    /// The rules that apply to frames from the port.
    pub rules: RuleTables,
    /// Limit on learning addresses and on flooding.
    pub slow_path: SlowPathLimit,
    /// Whether the port is isolated from other isolated ports. Isolated ports cannot reach each
    /// other, but can reach all other ports (a private VLAN).
    pub isolated: bool,
    /// Whether the port may send frames with one more VLAN tag behind the port's own tag. The
    /// switch does not parse the headers behind a second VLAN tag.
    pub qinq: bool,
    /// Whether the port is administratively up.
    pub up: bool,
    /// Entitlement, weight and latency class of the port.
    pub qos: PortQos,
    /// Rate limits on the frames that the port sends.
    pub ingress_policer: Option<Arc<IngressPolicer>>,
    /// Rate limit on the frames that the port receives.
    pub egress_policer: Option<Arc<EgressPolicer>>,
    /// Rate limit on the frames that the port's tenant sends over the network. All ports of the
    /// tenant share one policer.
    pub tenant_policer: Option<Arc<EgressPolicer>>,
    /// Shares of the frames that arrive through this uplink, among the VMs that receive them. The
    /// shares are `None` if the frames are not shared.
    pub inbound: Option<Arc<InboundShares>>,
    /// Pairs of VMs that send or receive through this uplink and share a queue of the fabric.
    /// `None` if the port is no uplink into a fabric. The egress reads `pairs` only if
    /// [`Self::marks`] is set.
    pub pairs: Option<Arc<PairTable>>,
    /// Queue of the frames that wait for the port. The queue is `None` if the port has no output
    /// queue.
    pub queue: Option<Arc<QueueHome>>,
    /// The port's weights at outputs that have a queue.
    pub share: ShareTerms,
    /// Shaper of the frames that the port sends. The shaper is `None` if the port's frames are not
    /// shaped.
    pub shape: Option<ShapeTerms>,
    /// Code point (DSCP, 0 to 63) for the port's frames that leave the host. If `dscp` is `None`,
    /// the switch does not change the DSCP of the port's frames.
    pub dscp: Option<u8>,
    /// Whether frames that leave by this port leave the host and may need a new DSCP, because a
    /// DSCP is configured for some port.
    pub marks: bool,
    /// Measurement of the RTP streams to the port. The measurement is `None` if the port has no
    /// marked RTP streams.
    pub rtp: Option<Arc<RtpStreams>>,
    /// Whether the load of the port's link is monitored. If the load is monitored, the switch
    /// counts each frame to the link with the frame's size on the link.
    pub watched: bool,
    /// Bell that notifies the vCPU scheduler when frames arrive for the port's VM. The bell is
    /// `None` if no vCPU scheduler runs the VM's vCPUs.
    pub bell: Option<VcpuBell>,
    /// Ports that get copies of the port's frames.
    pub mirror: Mirror,
    /// The single destination of the port's frames, or `None` if the frames have several
    /// destinations. With a single destination, the switch parses only frames with a VLAN tag or
    /// offload metadata. [`Self::finish`] computes the single destination of the port's frames.
    pub(crate) patch: Option<Patch>,
    /// Bits of the flow key on which a decision about the port's frames can depend.
    /// [`Self::finish`] computes the bits on which decisions about the port's frames depend.
    pub(crate) relevant: FlowMask,
}

impl PortPolicy {
    /// Creates the policy of an access port of VLAN `vid` in domain `domain`, without binding and
    /// rules.
    #[must_use]
    pub fn access(id: u16, tenant: Option<u16>, vid: Vid, domain: u16) -> Self {
        Self::new(id, tenant, VlanPolicy::Access { vid }, DomainMap::Access(domain))
    }

    /// Creates the policy of a trunk port without binding and rules.
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
            inbound: None,
            pairs: None,
            rtp: None,
            queue: None,
            share: ShareTerms::default(),
            shape: None,
            dscp: None,
            marks: false,
            watched: false,
            bell: None,
            mirror: Mirror::default(),
            patch: None,
            relevant: FlowMask::new(&KeyFields::ALL),
        }
    }

    /// Computes the fields of the policy that follow from other fields. The caller must call
    /// `finish` after its last change of a field.
    #[must_use]
    pub fn finish(mut self) -> Self {
        self.patch = self.find_patch();
        self.relevant = self.find_relevant();
        self
    }

    /// Returns the bits of the flow key on which a decision can depend. The mask always contains
    /// the input port, the VLAN, the IP protocol and the Ethernet addresses. The mask contains any
    /// other bit of the flow key only if a rule or the source-address binding reads the bit. Flows
    /// that differ only in excluded bits share a decision.
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

    /// If this port is an access port without source-address binding and DSCP, returns the port to
    /// which its best rule sends every frame.
    fn find_patch(&self) -> Option<Patch> {
        let VlanPolicy::Access { vid } = self.vlan else { return None };
        // The code point must be written into all frames, so their headers must be parsed first.
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
            Actions { set_vlan: None, set_dscp: None, mirror: None, then: Then::Output(port) }
                if best.matching == everything && port != self.id =>
            {
                Some(Patch { port, vid: vid.get(), rule })
            }
            _ => None,
        }
    }

    /// Returns the ports that may get copies of frames from or to this port.
    fn mirrors(&self) -> impl Iterator<Item = u16> {
        let Mirror { received, sent } = self.mirror;
        received.into_iter().chain(sent).chain(self.rules.mirrors())
    }

    /// Whether a decision about the port's frames depends on headers, so that the switch must
    /// refuse frames with hidden headers. A decision about a port's frames depends on headers if
    /// the port has a source-address binding or a DSCP. If the port has rules, the treatment also
    /// depends on headers, unless a rule sends all frames to one port.
    #[inline]
    #[must_use]
    pub fn reads_headers(&self) -> bool {
        let by_rules = !self.rules.is_empty() && self.patch.is_none();
        self.binding.is_some() || self.dscp.is_some() || by_rules
    }

    /// Whether the switch must not send a frame of port `sender` with a second VLAN tag out of this
    /// port. If the switch removed the outer VLAN tag, the network would obey the inner tag. A
    /// trunk always refuses frames with a second tag. A link that leaves the host accepts frames
    /// with a second tag only from the operator, or if [`Self::qinq`] allows a second tag.
    #[inline]
    #[must_use]
    pub fn keeps_tags_in(&self, sender: Option<&Self>) -> bool {
        let tenants = self.tenant.is_none() && sender.is_some_and(|s| s.tenant.is_some());
        self.is_trunk() || tenants && !self.qinq
    }

    /// Returns VLAN and domain of a frame with VLAN ID `tag` in its tag, 0 for an untagged frame.
    /// Returns `None` if the port does not accept frames of this VLAN.
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

    /// Returns the domain of VLAN `vid` of the port. Returns `None` if the port has no such VLAN.
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

    /// Returns whether a frame of VLAN `vid` leaves by the port tagged (`Some(true)`) or untagged
    /// (`Some(false)`). Returns `None` if the frame may not leave by the port. An access port
    /// accepts frames of any VLAN. Normal forwarding sends an access port only frames of the port's
    /// own VLAN, but a rule may send the port frames of another VLAN.
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

    /// Whether the port is a trunk, so that tags distinguish the VLANs of the port's frames.
    #[inline]
    #[must_use]
    pub const fn is_trunk(&self) -> bool {
        matches!(self.vlan, VlanPolicy::Trunk { .. })
    }

    /// Whether normal forwarding and floods may send a frame from the port to port `other`.
    #[inline]
    #[must_use]
    pub fn may_reach(&self, other: &Self) -> bool {
        !(self.isolated && other.isolated)
    }
}

/// A forwarding domain, which is one VLAN of one tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domain {
    /// Number of the tenant that owns the domain, or `None` if the operator owns the domain. The
    /// tenant is `None` if the domain belongs to the operator.
    pub tenant: Option<u16>,
    pub vid: u16,
    /// Numbers of the domain's member ports, in rising order.
    pub members: Box<[u16]>,
    /// Maximum number of FDB entries of the domain.
    pub fdb_limit: u32,
}

/// Numbers of the ports that each receive a copy of a frame.
pub type OutputSet = Box<[u16]>;

/// Ports that get copies of another port's frames, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mirror {
    /// Port that gets a copy of each frame that the switch receives from the port.
    pub received: Option<u16>,
    /// Port that gets a copy of each frame that the switch sends to the port.
    pub sent: Option<u16>,
}

/// The configuration of the switch that classification and egress need.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Number of the snapshot's generation, which differs between any two snapshots that lead to
    /// different decisions.
    pub generation: u64,
    /// Policies of the ports, indexed by port number.
    pub ports: Vec<Option<Arc<PortPolicy>>>,
    /// Forwarding domains, indexed by domain number. A domain without members is unused.
    pub domains: Vec<Domain>,
    /// Output sets, indexed by output set number.
    pub output_sets: Vec<OutputSet>,
    /// Seconds after which the FDB removes an address without frames. 0 means that addresses are
    /// never removed.
    pub fdb_ageing_s: u32,
    /// Domain of each pair of tenant and VLAN ID, in rising order of the pairs.
    networks: Vec<((u16, u16), u16)>,
    /// Numbers of the ports that get copies of other ports' frames, in rising order.
    mirrors: Vec<u16>,
    /// Whether a port has pairs of VMs with their own rates.
    pairs: bool,
    /// What the snapshot changes compared with the snapshot before it.
    pub(super) lineage: Lineage,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self::new(0, Vec::new(), Vec::new(), Vec::new(), AGEING_DEFAULT_S)
    }
}

impl Snapshot {
    /// Builds a snapshot and sorts the member lists of the domains.
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
        let mut mirrors: Vec<u16> =
            ports.iter().flatten().flat_map(|port| port.mirrors()).collect();
        mirrors.sort_unstable();
        mirrors.dedup();
        Self {
            generation,
            pairs: ports.iter().flatten().any(|port| port.pairs.is_some()),
            ports,
            domains,
            output_sets,
            fdb_ageing_s,
            networks,
            mirrors,
            lineage: Lineage::default(),
        }
    }

    /// Whether a rule or a port has a mirror.
    #[must_use]
    pub const fn has_mirrors(&self) -> bool {
        !self.mirrors.is_empty()
    }

    /// Returns the pairs of VMs with their own rates, if a port has pairs.
    #[must_use]
    pub fn pair_table(&self) -> Option<&Arc<PairTable>> {
        let mut ports = self.ports.iter().flatten().filter(|_| self.pairs);
        ports.find_map(|port| port.pairs.as_ref())
    }

    /// Whether frames to the port leave the host, because no tenant owns the port.
    #[must_use]
    pub fn is_shared(&self, port: u16) -> bool {
        self.port(port).is_some_and(|policy| policy.tenant.is_none())
    }

    /// Whether the port gets copies of other ports' frames. Nobody waits for such a port.
    #[must_use]
    pub fn is_mirror(&self, port: u16) -> bool {
        self.mirrors.binary_search(&port).is_ok()
    }

    /// Whether the snapshot's domains or output sets may lead to other decisions about frames than
    /// those of the snapshot `old`. The policies of the ports are not compared.
    pub(super) fn forwards_otherwise(&self, old: &Self) -> bool {
        self.domains != old.domains
            || self.output_sets != old.output_sets
            || self.networks != old.networks
    }

    /// Returns a copy of the snapshot in which `change` has changed the QoS of ports. Cached
    /// decisions stay valid in the copy, because the copy keeps the generation of the original
    /// snapshot. The caller should call [`Self::following`] for the copy.
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

    /// Returns the domain of VLAN `vid` of tenant `tenant`.
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
