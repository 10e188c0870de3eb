//! State of the clients that request flows.

use penstock_units::Nanos;

use super::spec::{Connection, Order, VmNo};
use crate::Rng;

/// State of a client's connection.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub rng: Rng,
    /// Servers that the client has not used in this round.
    round: Vec<VmNo>,
    /// Time of the last request.
    pub asked: Nanos,
    /// Size of the last requested flow.
    pub bytes: u64,
    /// Number of complete flows.
    pub done: u64,
}

impl Client {
    pub const fn new(rng: Rng) -> Self {
        Self { rng, round: Vec::new(), asked: Nanos(0), bytes: 0, done: 0 }
    }

    /// Returns the server of the next flow.
    pub fn next_server(&mut self, connection: &Connection) -> VmNo {
        let servers = &connection.servers;
        let below = |rng: &mut Rng, count: usize| {
            let count = u64::try_from(count).unwrap_or(u64::MAX);
            usize::try_from(rng.below(count)).unwrap_or(0)
        };
        if connection.order == Order::Random {
            return servers[below(&mut self.rng, servers.len())];
        }
        if self.round.is_empty() {
            self.round.clone_from(servers);
        }
        let at = below(&mut self.rng, self.round.len());
        self.round.swap_remove(at)
    }
}
