//! A relay between two processes that a test can cut. Neither side is notified of a cut.
//!
//! # Approach
//!
//! A cut relay behaves like a network that lost a link, and not like a peer that closed its
//! connection. While the relay is cut, connections stay open on both sides. The relay accepts new
//! connections and does not answer. Bytes that were sent during the cut arrive when the relay is
//! restored.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

/// Whether bytes may pass through the relay.
#[derive(Debug, Default)]
struct Gate {
    cut: Mutex<bool>,
    mended: Condvar,
}

impl Gate {
    fn pass(&self) {
        let cut = self.cut.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.mended.wait_while(cut, |cut| *cut).unwrap_or_else(PoisonError::into_inner));
    }
}

/// A relay. The relay's threads end with the test's process.
#[derive(Debug)]
pub struct Relay {
    pub address: SocketAddr,
    gate: Arc<Gate>,
}

impl Relay {
    pub fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let gate = Arc::new(Gate::default());
        let theirs = Arc::clone(&gate);
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let gate = Arc::clone(&theirs);
                thread::spawn(move || {
                    gate.pass();
                    let Ok(far) = TcpStream::connect(target) else { return };
                    let (Ok(back), Ok(front)) = (far.try_clone(), near.try_clone()) else { return };
                    let also = Arc::clone(&gate);
                    thread::spawn(move || carry(back, front, &also));
                    carry(near, far, &gate);
                });
            }
        });
        Self { address, gate }
    }

    /// Cuts the relay if `cut` is true, and restores it otherwise.
    pub fn cut(&self, cut: bool) {
        *self.gate.cut.lock().unwrap_or_else(PoisonError::into_inner) = cut;
        self.gate.mended.notify_all();
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
    let _ = to.shutdown(Shutdown::Write);
}
