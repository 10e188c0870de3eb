//! A relay between two processes, which a measurement or a test can cut.
//!
//! # Approach
//!
//! A relay that is cut behaves like a network that lost a link, and not like a peer that closed its
//! connection. While the relay is cut, connections stay open on both sides, and neither side is
//! notified. The relay accepts new connections and does not answer. Bytes that were sent during the
//! cut arrive when the relay is restored.
//!
//! # Cost
//!
//! A connection takes two threads that wait. The threads end with their connection, or with the
//! process.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::Builder;

use anyhow::Context as _;

/// Whether bytes may pass through the relay.
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
}

#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    gate: Arc<Gate>,
}

impl Relay {
    /// Starts a relay to `target` on a free TCP port of loopback.
    ///
    /// # Errors
    /// Returns an error if no TCP port is free, or a thread cannot be started.
    pub fn start(target: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("a relay")?;
        let address = listener.local_addr().context("a relay")?;
        let gate = Arc::<Gate>::default();
        let theirs = Arc::clone(&gate);
        let accept = move || {
            for near in listener.incoming().flatten() {
                let gate = Arc::clone(&theirs);
                // Without a thread, the connection ends, and the peer may connect again.
                drop(Builder::new().spawn(move || connect(near, target, &gate)));
            }
        };
        Builder::new().name("relay".to_owned()).spawn(accept).context("a relay")?;
        Ok(Self { address, gate })
    }

    /// Address at which the relay accepts connections.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts the relay if `cut` is true, and restores it otherwise.
    pub fn cut(&self, cut: bool) {
        *self.gate.cut.lock().unwrap_or_else(PoisonError::into_inner) = cut;
        self.gate.mended.notify_all();
    }
}

fn connect(near: TcpStream, target: SocketAddr, gate: &Arc<Gate>) {
    gate.pass();
    let Ok(far) = TcpStream::connect(target) else { return };
    let (Ok(back), Ok(front)) = (far.try_clone(), near.try_clone()) else { return };
    let also = Arc::clone(gate);
    if Builder::new().spawn(move || carry(back, front, &also)).is_ok() {
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
    // The end of a connection is no news during a cut either.
    gate.pass();
    let _ = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_relay_that_is_cut_keeps_its_connections_and_delivers_later() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let relay = Relay::start(listener.local_addr().unwrap()).unwrap();
        let mut near = TcpStream::connect(relay.address()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        far.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut read = [0; 4];
        near.write_all(b"one.").unwrap();
        far.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"one.");
        relay.cut(true);
        near.write_all(b"two.").unwrap();
        drop(near);
        far.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        assert!(far.read(&mut read).is_err(), "neither bytes nor the end pass");
        relay.cut(false);
        far.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        far.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"two.");
        assert_eq!(far.read(&mut read).unwrap(), 0, "the end of the connection passes");
    }
}
