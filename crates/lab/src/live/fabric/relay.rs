//! Relays between hosts' agents and controllers, which an experiment can cut.
//!
//! In a live fabric, loopback replaces the management network. A host that becomes silent must not
//! stop forwarding frames, so an experiment cannot stop the host's process. Each host has a relay
//! for each controller instead.

use std::net::SocketAddr;

use penstock_guest::bed::relay::Relay;

/// The relays of all hosts: one for each controller.
#[derive(Debug)]
pub(super) struct Relays(Vec<Vec<Relay>>);

impl Relays {
    /// Starts relays of `hosts` hosts to the controllers at the addresses `controllers`.
    pub fn start(hosts: usize, controllers: &[SocketAddr]) -> anyhow::Result<Self> {
        let host = |_| -> anyhow::Result<Vec<Relay>> {
            controllers.iter().map(|to| Relay::start(*to)).collect()
        };
        Ok(Self((0..hosts).map(host).collect::<anyhow::Result<Vec<Vec<Relay>>>>()?))
    }

    /// Returns the addresses at which the agent of a host reaches the controllers.
    pub fn of(&self, host: usize) -> Vec<SocketAddr> {
        self.0.get(host).into_iter().flatten().map(Relay::address).collect()
    }

    /// Cuts the relays of a host if `cut` is true, and otherwise lets bytes pass again.
    pub fn cut(&self, host: usize, cut: bool) {
        self.0.get(host).into_iter().flatten().for_each(|relay| relay.cut(cut));
    }
}
