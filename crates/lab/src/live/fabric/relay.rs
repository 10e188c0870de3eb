//! Relays between hosts' agents and controllers, which an experiment can cut.
//!
//! # Problem
//!
//! In a live fabric, loopback replaces the management network. A host that becomes silent must not
//! stop forwarding frames, so an experiment cannot stop the host's process.
//!
//! # Approach
//!
//! Each host has a relay for each controller. A relay that is cut behaves like a network that lost
//! a link: connections stay open on both sides, and neither side is notified. The relay accepts new
//! connections and does not answer. Bytes that were sent during the cut arrive after the cut.
//!
//! # Cost
//!
//! A connection takes two threads that wait. The threads end with their connection, or with the
//! process.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use anyhow::Context as _;

/// Whether the bytes of a host may pass.
#[derive(Debug, Default)]
struct Gate {
    cut: Mutex<bool>,
    mended: Condvar,
}

impl Gate {
    /// Waits until bytes may pass.
    fn pass(&self) {
        let cut = self.cut.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.mended.wait_while(cut, |cut| *cut).unwrap_or_else(PoisonError::into_inner));
    }

    fn cut(&self, cut: bool) {
        *self.cut.lock().unwrap_or_else(PoisonError::into_inner) = cut;
        self.mended.notify_all();
    }
}

/// The relays of a host.
#[derive(Debug)]
struct HostRelays {
    gate: Arc<Gate>,
    /// Address of the relay for each controller.
    addresses: Vec<SocketAddr>,
}

/// The relays of all hosts.
#[derive(Debug)]
pub(super) struct Relays(Vec<HostRelays>);

impl Relays {
    /// Starts relays of `hosts` hosts to the controllers at the addresses `controllers`.
    pub fn start(hosts: usize, controllers: &[SocketAddr]) -> anyhow::Result<Self> {
        let host = |_| -> anyhow::Result<HostRelays> {
            let gate = Arc::<Gate>::default();
            let addresses = controllers.iter().map(|to| relay(*to, &gate));
            let addresses = addresses.collect::<anyhow::Result<Vec<SocketAddr>>>()?;
            Ok(HostRelays { gate, addresses })
        };
        Ok(Self((0..hosts).map(host).collect::<anyhow::Result<Vec<HostRelays>>>()?))
    }

    /// Returns the addresses at which the agent of a host reaches the controllers.
    pub fn of(&self, host: usize) -> &[SocketAddr] {
        self.0.get(host).map_or(&[], |relays| &relays.addresses)
    }

    /// Cuts the relays of a host if `cut` is true, and otherwise lets bytes pass again.
    pub fn cut(&self, host: usize, cut: bool) {
        if let Some(relays) = self.0.get(host) {
            relays.gate.cut(cut);
        }
    }
}

/// Starts a relay to `target`, and returns the relay's address.
fn relay(target: SocketAddr, gate: &Arc<Gate>) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("a relay")?;
    let address = listener.local_addr()?;
    let gate = Arc::clone(gate);
    let accept = move || {
        for near in listener.incoming().flatten() {
            let gate = Arc::clone(&gate);
            let spawned = std::thread::Builder::new().spawn(move || connect(near, target, &gate));
            // Without a thread, the connection ends, and the agent connects again.
            drop(spawned);
        }
    };
    std::thread::Builder::new().name("relay".to_owned()).spawn(accept).context("a relay")?;
    Ok(address)
}

fn connect(near: TcpStream, target: SocketAddr, gate: &Arc<Gate>) {
    gate.pass();
    let Ok(far) = TcpStream::connect(target) else { return };
    let (Ok(back), Ok(front)) = (far.try_clone(), near.try_clone()) else { return };
    let also = Arc::clone(gate);
    let spawned = std::thread::Builder::new().spawn(move || carry(back, front, &also));
    if spawned.is_ok() {
        carry(near, far, gate);
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, gate: &Gate) {
    let mut bytes = [0; 16 << 10];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        gate.pass();
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    gate.pass();
    // The other side may have closed the connection already.
    let _ = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_relay_that_is_cut_keeps_its_connections_and_delivers_later() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let relays = Relays::start(2, &[listener.local_addr().unwrap()]).unwrap();
        let mut agent = TcpStream::connect(relays.of(1)[0]).unwrap();
        let (mut controller, _) = listener.accept().unwrap();
        controller.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let mut read = [0; 4];
        agent.write_all(b"one.").unwrap();
        controller.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"one.");
        relays.cut(1, true);
        agent.write_all(b"two.").unwrap();
        assert!(controller.read_exact(&mut read).is_err(), "nothing passes");
        relays.cut(1, false);
        controller.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        controller.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"two.");
        assert!(relays.of(2).is_empty());
    }
}
