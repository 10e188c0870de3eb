//! Values for the data path, the fabric's agent and the fabric's switch that depend on several
//! keys. The modules of the sections compute single values; this module combines them.

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
use super::release::Egress;
use super::switch::SwitchTerms;
use super::wfq::Wfq;
use super::{egress_policer, ingress_policer, queue};

impl HostConfig {
    /// The host as a server of a fabric, if it is one; relative paths begin at `directory`.
    #[must_use]
    pub fn agent_terms(&self, directory: &Path) -> Option<AgentTerms> {
        self.fabric.as_ref().map(|fabric| fabric.terms(&self.host, directory))
    }

    /// The host as a switch of a fabric, if it is one; relative paths begin at `directory`.
    #[must_use]
    pub fn switch_terms(&self, directory: &Path) -> Option<SwitchTerms> {
        self.switch.as_ref().map(|switch| switch.terms(&self.host, directory))
    }

    /// The tenant's code point of each port, by port. Ports are missing if their tenant has none.
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
    /// Limits on the frames that the tenant's VMs may receive together.
    pub(crate) fn receive_terms(&self) -> Option<Terms> {
        self.receive.map(|receive| receive.terms())
    }

    /// Limits on the frames that the tenant's VMs may send by shared ports together.
    pub(crate) fn send_terms(&self) -> Option<Terms> {
        self.send.map(|send| send.terms())
    }

    /// Whether a VM may receive more than its part.
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
    /// The port's ingress limit. `None` under policies that do not police.
    ///
    /// # Errors
    /// The port has neither `police` nor `contract`, or the limit is impossible.
    pub(super) fn checked_ingress_policer(&self) -> Result<Option<Spec>, IngressPolicerError> {
        ingress_policer::checked(self.police.as_ref(), self.contract.as_ref(), self.ingress_policy)
    }

    /// The port's ingress limit. The configuration must have been checked.
    #[must_use]
    pub fn ingress_policer(&self) -> Option<Spec> {
        self.checked_ingress_policer().ok().flatten()
    }

    /// The rate that the port purchased, in bits per second, FCS included: the contract's rate,
    /// otherwise the rate of `police`. Frames per second are converted by the contract's frame
    /// size.
    #[must_use]
    pub fn bought(&self) -> Option<BitsPerSecond> {
        ingress_policer::bought(self.police.as_ref(), self.contract.as_ref())
    }

    /// The shaper of the frames that the port sends.
    pub(crate) fn shaped(&self) -> Option<ShapeTerms> {
        self.shape.as_ref()?.send_terms()
    }

    /// The queue towards the port. `None` if frames never wait for the port.
    pub(crate) fn queued(&self) -> Option<QueueTerms> {
        let shaped = self.shape.and_then(|shape| shape.receive_terms());
        queue::terms(self.queue, self.egress, shaped, self.link)
    }

    /// Whether one worker must own all queue pairs of the port, because a queue or a shaper has a
    /// single owner.
    pub(crate) fn is_one_workers(&self) -> bool {
        self.queued().is_some() || self.shaped().is_some()
    }

    /// UDP ports and clocks of the streams whose jitter is measured.
    pub(crate) fn measured(&self) -> Vec<(u16, u32)> {
        self.rtp.iter().map(|stream| (stream.port, stream.clock_hz)).collect()
    }

    /// The queues of a `wfq` output. `tenant` returns a tenant's number. Lanes that exist in `old`
    /// stay.
    pub(crate) fn classes(
        &self,
        tenant: impl Fn(&str) -> Option<u16>,
        old: &Classes,
    ) -> Option<Arc<Classes>> {
        let of = |wfq: &Wfq| Arc::new(wfq.classes(tenant, old));
        (self.egress == Egress::Wfq).then(|| self.wfq.as_ref().map_or_else(Arc::default, of))
    }
}
