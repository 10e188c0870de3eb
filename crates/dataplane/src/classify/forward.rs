//! The full path decides about a frame if the cache has no decision for the frame.
//!
//! The full path's steps are VLAN admission, the check of the source addresses, reserved groups,
//! rules, and forwarding by MAC. Forwarding learns the frame's source address, looks up the
//! destination address, and floods the frame if the destination is unknown.
//!
//! A frame that would learn or flood takes one token of its port's slow-path meter. If the meter
//! has no token, the frame's source is not learned. A frame with an unlearned source is still
//! forwarded if the frame's destination is known. If the domain's part of the FDB has no room for a
//! source, frames from this source are not flooded. If the switch flooded frames from an unlearned
//! source, it would also have to flood the answers to this source. The full path caches a decision
//! only if the flow's next frame would get the same decision.

use super::cache::{Decision, KEEP_DSCP, NO_MIRROR, ONLY_MIRROR};
use super::fdb::{Fdb, Learned};
use super::port_state::PortState;
use crate::batch::{HEAD_COPY, Verdict};
use crate::drop::DropReason;
use crate::headers::key::FlowKey;
use crate::headers::parse::Headers;
use crate::snapshot::matching::{Actions, Then};
use crate::snapshot::{PortPolicy, Snapshot};

/// Group bit of a MAC address that is stored in the low 48 bits.
const GROUP: u64 = 1 << 40;

/// Whether a bridge must not forward frames to the address: 01:80:c2:00:00:00 to 01:80:c2:00:00:0f
/// (802.1D).
#[inline]
pub(super) const fn is_reserved(mac: u64) -> bool {
    mac >> 4 == 0x0180_c200_0000 >> 4
}

/// Whether the address cannot be a source address, because the address is a group address or zero.
#[inline]
pub(super) const fn is_no_source(mac: u64) -> bool {
    mac & GROUP != 0 || mac == 0
}

/// Counts of one batch, which are added to the port's counters once per batch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) cache_hits: u64,
    pub(super) rule_lookups: u64,
    pub(super) slow_path: u64,
    pub(super) learned: u64,
    pub(super) unlearned: u64,
}

/// State of a frame's source address in the FDB.
enum Source {
    Known(u32),
    /// The port's slow-path meter has no token to learn the address.
    Unmetered,
    /// The FDB has no room for the address.
    NoRoom,
    /// The source address is pinned to another port.
    Pinned,
}

/// Results of the last FDB look-ups of a source and of a destination address. Most frames of a VM
/// have the same source, and often the same destination. A look-up result is valid within one
/// batch, until the FDB learns an address.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recent {
    source: Option<(u16, u64, u32)>,
    destination: Option<(u16, u64, u16)>,
}

/// Inputs and state of the full path for one batch.
pub(super) struct Path<'a> {
    pub(super) policy: &'a PortPolicy,
    pub(super) snapshot: &'a Snapshot,
    pub(super) fdb: &'a mut Fdb,
    pub(super) port: &'a mut PortState,
    pub(super) tally: &'a mut Tally,
    pub(super) now_s: u32,
    pub(super) now_ns: u64,
    pub(super) recent: Recent,
}

impl Path<'_> {
    /// Decides where to forward a frame with parsed headers `h` and first bytes `w`. Returns
    /// whether the decision may be cached. Writes `plan` field by field, because the CPU stalls if
    /// it reads back a structure right after the stores.
    #[inline]
    pub(super) fn decide(&mut self, w: &[u8; HEAD_COPY], h: &Headers, plan: &mut Decision) -> bool {
        *plan = Decision::drop(DropReason::Rule);
        match self.admit(w, h) {
            Ok((vid, domain)) => self.by_rules(&h.key, vid, domain, plan),
            Err(reason) => {
                plan.verdict = Verdict::Drop(reason);
                true
            }
        }
    }

    /// Returns the frame's VLAN and domain, or the drop reason if the port may not send the frame.
    #[inline]
    fn admit(&self, w: &[u8; HEAD_COPY], h: &Headers) -> Result<(u16, u16), DropReason> {
        let network = self.policy.admit(h.key.vid()).ok_or(DropReason::VlanIngress)?;
        if is_no_source(h.key.src_mac()) {
            return Err(DropReason::BadHeader);
        }
        if let Some(binding) = &self.policy.binding {
            binding.check(w, h)?;
        }
        if is_reserved(h.key.dst_mac()) { Err(DropReason::ReservedMac) } else { Ok(network) }
    }

    #[inline]
    fn by_rules(&mut self, key: &FlowKey, vid: u16, domain: u16, plan: &mut Decision) -> bool {
        plan.vid = vid;
        if self.policy.rules.is_empty() {
            return self.normal(key, domain, plan);
        }
        self.tally.rule_lookups += 1;
        let Some((rule, actions)) = self.policy.rules.lookup(key, vid) else {
            return self.normal(key, domain, plan);
        };
        plan.rule = rule;
        plan.mirror = actions.mirror.unwrap_or(NO_MIRROR);
        let keep = if plan.mirror == NO_MIRROR { KEEP_DSCP } else { ONLY_MIRROR };
        plan.dscp = actions.set_dscp.map_or(keep, |dscp| dscp & 0x3f);
        let Some(domain) = self.rewritten_domain(actions, domain) else {
            plan.verdict = Verdict::Drop(DropReason::VlanEgress);
            return true;
        };
        plan.vid = actions.set_vlan.map_or(vid, penstock_units::Vid::get);
        plan.verdict = match actions.then {
            Then::Normal => return self.normal(key, domain, plan),
            Then::Drop => Verdict::Drop(DropReason::Rule),
            Then::Output(port) if port == self.policy.id => Verdict::Drop(DropReason::SamePort),
            Then::Output(port) if self.snapshot.port(port).is_some() => Verdict::Output(port),
            Then::OutputSet(set) if usize::from(set) < self.snapshot.output_sets.len() => {
                Verdict::OutputSet(set)
            }
            Then::Output(_) | Then::OutputSet(_) => Verdict::Drop(DropReason::NoPort),
        };
        true
    }

    /// Returns a frame's domain after the action `set_vlan`. The port's own VLAN with the new ID
    /// takes precedence over the tenant's VLAN with this ID. A rule never moves a frame to a
    /// network outside the port and its tenant.
    fn rewritten_domain(&self, actions: &Actions, domain: u16) -> Option<u16> {
        let Some(vid) = actions.set_vlan else { return Some(domain) };
        self.policy
            .domain(vid.get())
            .or_else(|| self.snapshot.network(self.policy.tenant?, vid.get()))
    }

    /// Decides about a frame by its MAC addresses, and returns whether the decision may be cached.
    #[inline]
    fn normal(&mut self, key: &FlowKey, domain: u16, plan: &mut Decision) -> bool {
        plan.domain = domain;
        let destination = key.dst_mac();
        let mut paid = false;
        let source = self.source(key.src_mac(), domain, &mut paid);
        if let Source::Pinned = source {
            plan.verdict = Verdict::Drop(DropReason::SpoofedMac);
            return false;
        }
        let mut floods = false;
        plan.verdict = if let Some(port) = self.destination(destination, domain) {
            self.to_port(port)
        } else {
            floods = true;
            self.flood(domain, &source, &mut paid)
        };
        if paid {
            self.tally.slow_path += 1;
        }
        match source {
            Source::Known(slot) if !floods => {
                plan.fdb_slot = slot;
                true
            }
            _ => false,
        }
    }

    /// Returns the number of the port behind which a destination address lives.
    #[inline]
    fn destination(&mut self, mac: u64, domain: u16) -> Option<u16> {
        if let Some((d, m, port)) = self.recent.destination
            && (d, m) == (domain, mac)
        {
            return Some(port);
        }
        if mac & GROUP != 0 {
            return None;
        }
        let (_, port) = self.fdb.lookup(domain, mac)?;
        self.recent.destination = Some((domain, mac, port));
        Some(port)
    }

    /// Learns the source address `mac` in the FDB if the FDB does not know the address behind this
    /// port.
    #[inline]
    fn source(&mut self, mac: u64, domain: u16, paid: &mut bool) -> Source {
        if let Some((d, m, slot)) = self.recent.source
            && (d, m) == (domain, mac)
        {
            return Source::Known(slot);
        }
        if let Some(slot) = self.fdb.refresh(domain, mac, self.policy.id, self.now_s) {
            self.recent.source = Some((domain, mac, slot));
            return Source::Known(slot);
        }
        self.learn(mac, domain, paid)
    }

    #[inline(never)]
    fn learn(&mut self, mac: u64, domain: u16, paid: &mut bool) -> Source {
        if !self.port.slow_path(self.policy.slow_path, self.now_ns) {
            self.tally.unlearned += 1;
            return Source::Unmetered;
        }
        *paid = true;
        self.recent = Recent::default();
        let limit = self.snapshot.domain(domain).map_or(0, |d| d.fdb_limit);
        match self.fdb.learn(domain, mac, self.policy.id, self.now_s, limit) {
            Learned::New(slot) | Learned::Moved(slot) => {
                self.tally.learned += 1;
                Source::Known(slot)
            }
            Learned::Known(slot) => Source::Known(slot),
            Learned::Pinned => Source::Pinned,
            Learned::Full => {
                self.tally.unlearned += 1;
                Source::NoRoom
            }
        }
    }

    #[inline]
    fn to_port(&self, port: u16) -> Verdict {
        if port == self.policy.id {
            return Verdict::Drop(DropReason::SamePort);
        }
        match self.snapshot.port(port) {
            Some(other) if self.policy.may_reach(other) => Verdict::Output(port),
            Some(_) => Verdict::Drop(DropReason::NoDestination),
            None => Verdict::Drop(DropReason::NoPort),
        }
    }

    #[inline]
    fn flood(&mut self, domain: u16, source: &Source, paid: &mut bool) -> Verdict {
        let members = self.snapshot.domain(domain).map_or(&[][..], |d| &d.members);
        if members.iter().all(|&m| m == self.policy.id) {
            return Verdict::Drop(DropReason::NoDestination);
        }
        if let Source::NoRoom = source {
            return Verdict::Drop(DropReason::FdbLimit);
        }
        *paid = *paid || self.port.slow_path(self.policy.slow_path, self.now_ns);
        if *paid { Verdict::Flood(domain) } else { Verdict::Drop(DropReason::SlowPathLimit) }
    }
}
