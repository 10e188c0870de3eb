//! What may come for a tenant and for each of its ports, as the policers take it.

use penstock_qos::policer::{default_depth, default_frames};
use penstock_qos::policing::{Sharing as QosSharing, Terms, split};

use super::super::model::{Port, Tenant};
use super::super::receiving::{Receive, Sharing};
use super::police::FCS_BYTES;
impl Receive {
    pub(crate) fn terms(&self) -> Terms {
        let bytes = self.rate.map(|rate| (rate.0, self.burst.unwrap_or(default_depth(rate.0))));
        let frames = self.pps.map(|pps| (pps.0, self.frames.unwrap_or(default_frames(pps.0))));
        Terms { bytes, frames, per_frame: FCS_BYTES }
    }
}

impl Tenant {
    /// What its VMs may receive together.
    pub(crate) fn may_receive(&self) -> Option<Terms> {
        self.receive.map(|receive| receive.terms())
    }

    /// What its VMs may send over the network together.
    pub(crate) fn may_send(&self) -> Option<Terms> {
        self.send.map(|send| send.terms())
    }

    /// What each may have above its part.
    pub(crate) fn receive_sharing(&self) -> QosSharing {
        match self.receive.and_then(|receive| receive.sharing).unwrap_or_default() {
            Sharing::Borrow => QosSharing::Borrow,
            Sharing::Strict => QosSharing::Strict,
        }
    }

    /// The parts of its `ports`, in their order: of each what it says itself, else its part of the
    /// tenant's by `uplink_share`. Depths are the tenant's.
    pub(crate) fn parts(&self, ports: &[&Port]) -> Vec<Terms> {
        let whole = self.may_receive().unwrap_or_default();
        let weights: Vec<_> = ports.iter().map(|port| port.uplink_share.0).collect();
        let rates = whole.bytes.map(|(rate, depth)| (split(rate.0, &weights), depth));
        let counts = whole.frames.map(|(rate, depth)| (split(rate.0, &weights), depth));
        let part = |at: usize, parts: &Option<(Vec<u64>, u32)>| {
            parts.as_ref().map(|(rates, depth)| (rates[at].max(1), *depth))
        };
        let of = |(at, port): (usize, &&Port)| match &port.receive {
            Some(own) => own.terms(),
            None => Terms {
                bytes: part(at, &rates).map(|(rate, d)| (penstock_units::BitsPerSecond(rate), d)),
                frames: part(at, &counts)
                    .map(|(rate, d)| (penstock_units::PacketsPerSecond(rate), d)),
                per_frame: FCS_BYTES,
            },
        };
        ports.iter().enumerate().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::attachment::Tap;
    use super::super::super::share::Weight;
    use super::*;

    fn port(name: &str, share: u64) -> Port {
        let share = Weight(penstock_units::Weight::new(share).unwrap());
        Port { uplink_share: share, ..Port::new(name, Tap::new(name)) }
    }

    #[test]
    fn parts_go_by_share_unless_a_vm_has_its_own() {
        let receive: Receive = toml_edit::de::from_str("rate = \"1G\"\npps = \"900k\"").unwrap();
        let tenant = Tenant { receive: Some(receive), ..Tenant::new("red") };
        let own = toml_edit::de::from_str("rate = \"50M\"\nburst = 9000").unwrap();
        let own = Port { receive: Some(own), ..port("c", 1) };
        let ports = [&port("a", 2), &port("b", 1), &own];
        let parts = tenant.parts(&ports);
        let rates = parts.iter().map(|t| t.bytes.map(|(rate, depth)| (rate.0, depth)));
        assert_eq!(
            rates.collect::<Vec<_>>(),
            [
                Some((500_000_000, 25_000_000)),
                Some((250_000_000, 25_000_000)),
                Some((50_000_000, 9_000)),
            ]
        );
        let frames = parts.iter().map(|t| t.frames.map(|(rate, depth)| (rate.0, depth)));
        assert_eq!(
            frames.collect::<Vec<_>>(),
            [Some((450_000, 180_000)), Some((225_000, 180_000)), None]
        );
        assert_eq!(tenant.receive_sharing(), QosSharing::Borrow);
        assert!(tenant.parts(&[]).is_empty());
    }
}
