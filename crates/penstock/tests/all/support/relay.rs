//! A relay that can be cut: what is on its way then stays there, and nobody is told.
//!
//! **Rule.** As a network that lost a link, and not as a peer that went away: connections stay open
//! on both sides, new ones are taken and not answered, and what was sent meanwhile arrives when
//! the cut is mended.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

/// Whether bytes may pass.
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

/// See the module's text. Its threads end with the test's process.
#[derive(Debug)]
pub struct Relay {
    /// Where it listens.
    pub address: SocketAddr,
    gate: Arc<Gate>,
}

impl Relay {
    /// A relay to `target`.
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

    /// Nothing passes any more, or all does again.
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
