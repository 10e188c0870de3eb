//! Computes values that depend on keys of several sections of the configuration file. The data path
//! and the sessions with a fabric's controllers use the computed values. Values that depend on one
//! section are computed in the section's module.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use penstock_dataplane::queue::{Classes, QueueTerms, ShapeTerms};
use penstock_qos::egress_policer::{Sharing, Terms};
use penstock_qos::policer::Spec;
use penstock_units::BitsPerSecond;

use super::fabric::AgentTerms;
use super::ingress_policer::IngressPolicerError;
use super::model::{HostConfig, Port, Tenant};
use super::release::{Egress, RateAllocation};
use super::switch::SwitchTerms;
use super::wfq::Wfq;
use super::{egress_policer, ingress_policer, queue};

impl HostConfig {
    /// Whether frames above the limit on what `port` receives wait for the limit. False if the port
    /// has no such limit, or if the switch drops frames above the limit.
    pub(crate) fn receive_waits(&self, port: &Port) -> bool {
        let tenant = self.tenants.iter().find(|tenant| Some(&tenant.name) == port.tenant.as_ref());
        let limit = tenant.and_then(|tenant| tenant.receive).or(port.receive);
        limit.is_some_and(|limit| limit.waits())
    }

    /// Returns the limits of the queue in which frames wait for `port`. Returns `None` if frames
    /// never wait in a queue for the port.
    pub(crate) fn queued(&self, port: &Port) -> Option<QueueTerms> {
        port.queued(self.receive_waits(port))
    }

    /// True if one worker must own all queue pairs of `port`, because only one worker can own an
    /// output queue or a shaper.
    pub(crate) fn is_one_workers(&self, port: &Port) -> bool {
        self.queued(port).is_some() || port.shaped().is_some()
    }

    /// Returns `[fabric]` with all defaults filled in. Returns `None` if the host is not a server
    /// of a fabric. Relative paths begin at the directory `directory`.
    #[must_use]
    pub fn agent_terms(&self, directory: &Path) -> Option<AgentTerms> {
        self.fabric.as_ref().map(|fabric| fabric.terms(&self.host, directory))
    }

    /// Returns the bandwidth of the tenants that share queue 0 of the host's fabric.
    pub(crate) fn rate_allocation(&self) -> RateAllocation {
        self.fabric.as_ref().map(|fabric| fabric.rate_allocation).unwrap_or_default()
    }

    /// Returns `[switch]` with all defaults filled in. Returns `None` if the host is not a switch
    /// of a fabric. Relative paths begin at the directory `directory`.
    #[must_use]
    pub fn switch_terms(&self, directory: &Path) -> Option<SwitchTerms> {
        self.switch.as_ref().map(|switch| switch.terms(&self.host, directory))
    }

    /// Returns the code point of each port's tenant, by the name of the port. The returned map
    /// omits ports whose tenant has no code point.
    pub(crate) fn code_points(&self) -> BTreeMap<String, u8> {
        let of = |port: &Port| {
            let tenant = port.tenant.as_ref()?;
            let tenant = self.tenants.iter().find(|other| other.name == *tenant)?;
            Some((port.name.clone(), tenant.dscp?))
        };
        if self.tenants.iter().all(|tenant| tenant.dscp.is_none()) {
            return BTreeMap::new();
        }
        self.ports.iter().filter_map(of).collect()
    }
}

impl Tenant {
    /// Limits on the frames that the tenant's VMs may receive together, or `None`.
    pub(crate) fn receive_terms(&self) -> Option<Terms> {
        self.receive.map(|receive| receive.terms(receive.waits()))
    }

    /// Returns the limits on the frames that the tenant's VMs send together through shared ports;
    /// `None` without `send`.
    pub(crate) fn send_terms(&self) -> Option<Terms> {
        self.send.map(|send| send.terms(send.waits()))
    }

    /// Limits on the frames that each of the tenant's `ports` may send through shared ports, in the
    /// order of `ports`. If frames above the tenant's limit are dropped, the ports have no limits
    /// of their own.
    pub(crate) fn send_parts(&self, ports: &[&Port]) -> Vec<Terms> {
        let ports: Vec<_> = ports.iter().map(|port| (None, port.uplink_share)).collect();
        match self.send.filter(|send| send.waits()) {
            Some(send) => egress_policer::parts(Some(send), &ports),
            None => vec![Terms::default(); ports.len()],
        }
    }

    /// Whether a VM may receive more than its part of the tenant's limit.
    pub(crate) fn receive_sharing(&self) -> Sharing {
        self.receive.unwrap_or_default().sharing()
    }

    /// Limits on the frames that each of the tenant's `ports` may receive, in the order of `ports`.
    pub(crate) fn parts(&self, ports: &[&Port]) -> Vec<Terms> {
        let ports: Vec<_> = ports.iter().map(|port| (port.receive, port.uplink_share)).collect();
        egress_policer::parts(self.receive, &ports)
    }
}

impl Port {
    /// Returns the limits on the frames that the port sends: those of `police` under the policies
    /// `bps` and `pps`, and the maxima of `contract`.
    ///
    /// # Errors
    /// Returns an error if the port has neither `police` nor `contract`, or if a limit is
    /// impossible.
    pub(super) fn checked_ingress_policers(&self) -> Result<Vec<Spec>, IngressPolicerError> {
        ingress_policer::checked(self.police.as_ref(), self.contract.as_ref(), self.ingress_policy)
    }

    /// Returns the limits on the frames that the port sends. The caller must have checked the
    /// port's configuration.
    #[must_use]
    pub fn ingress_policers(&self) -> Vec<Spec> {
        self.checked_ingress_policers().unwrap_or_default()
    }

    /// Returns the port's tightest limits in bits and in frames per second: the key, and the rate.
    pub(crate) fn tightest_limits(&self) -> [(&'static str, u64); 2] {
        ingress_policer::keys(self.police.as_ref(), self.contract.as_ref(), self.ingress_policy)
    }

    /// Returns the rate that the port purchased, in bits per second with FCS: the contract's rate,
    /// otherwise the rate of `police`. A rate in frames per second is converted with the contract's
    /// frame size, or with the mean size of IMIX if there is none.
    #[must_use]
    pub fn bought(&self) -> Option<BitsPerSecond> {
        ingress_policer::bought(self.police.as_ref(), self.contract.as_ref())
    }

    /// Returns the rate that tenants share of the frames that arrive through the port; `None`
    /// without `inbound`.
    pub(crate) fn inbound_rate(&self) -> Option<BitsPerSecond> {
        self.inbound?.rate(self.link)
    }

    /// The shaper of the frames that the port sends.
    pub(crate) fn shaped(&self) -> Option<ShapeTerms> {
        self.shape.as_ref()?.send_terms()
    }

    /// Returns the limits of the queue in which frames wait for the port. Returns `None` if frames
    /// never wait in a queue for the port. The argument `limited` is true if frames wait for a
    /// limit on received frames ([`HostConfig::receive_waits`]).
    pub(super) fn queued(&self, limited: bool) -> Option<QueueTerms> {
        let shaped = self.shape.and_then(|shape| shape.receive_terms());
        let pacing = match (shaped, limited) {
            (Some(terms), _) => queue::Paced::Shaped(terms),
            (None, true) => queue::Paced::Limited,
            (None, false) => queue::Paced::No,
        };
        queue::terms(self.queue, self.egress, pacing, self.link)
    }

    /// UDP ports and clock rates of the RTP streams whose jitter is measured.
    pub(crate) fn measured(&self) -> Vec<(u16, u32)> {
        self.rtp.iter().map(|stream| (stream.port, stream.clock_hz)).collect()
    }

    /// Returns the queues of a `wfq` output. The argument `tenant` is a function that returns a
    /// tenant's number for the tenant's name. A tenant with a ceiling has a separate queue, its
    /// lane, and keeps the lane that it had in the queues `old`.
    pub(crate) fn classes(
        &self,
        tenant: impl Fn(&str) -> Option<u16>,
        old: &Classes,
    ) -> Option<Arc<Classes>> {
        let of = |wfq: &Wfq| Arc::new(wfq.classes(tenant, old));
        (self.egress == Egress::Wfq).then(|| self.wfq.as_ref().map_or_else(Arc::default, of))
    }
}
