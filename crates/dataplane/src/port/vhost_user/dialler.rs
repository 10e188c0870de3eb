//! Connects to a VM that listens.
//!
//! # Problem
//! The session's thread exchanges messages with a VM's process. If it could also connect, an
//! attacker in it could connect to every socket of the host. For directories of other users it
//! would need `CAP_DAC_OVERRIDE`.
//!
//! # Approach
//! A separate thread makes the connection, passes it on, and reads nothing from it. The path comes
//! from the configuration, and the session's thread cannot choose another path.
//!
//! # Cost
//! A port with `mode = "client"` has one additional thread, which sleeps.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use super::{VhostUserConfig, socket};
use crate::confine::{Role, confine};

/// The session's end of the dialling thread.
#[derive(Debug)]
pub(super) struct Dialler {
    /// Requests to connect. If this is `None`, the thread ends.
    asks: Option<Sender<()>>,
    answers: Receiver<io::Result<UnixStream>>,
    thread: Option<JoinHandle<()>>,
}

impl Dialler {
    pub(super) fn start(config: &VhostUserConfig) -> io::Result<Self> {
        let (asks, asked) = channel::<()>();
        let (answer, answers) = channel();
        let path = config.path.clone();
        let thread = std::thread::Builder::new()
            .name(format!("dials-{}", config.name))
            .stack_size(128 * 1024)
            .spawn(move || {
                let is_confined = confine(Role::Dialler);
                for () in asked {
                    let made = match &is_confined {
                        Ok(()) => socket::connect(&path),
                        Err(e) => Err(io::Error::other(format!("give up its privileges: {e}"))),
                    };
                    if answer.send(made).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self { asks: Some(asks), answers, thread: Some(thread) })
    }

    /// Connects as [`socket::connect`] does.
    pub(super) fn connect(&self) -> io::Result<UnixStream> {
        let gone = || io::Error::other("the thread that connects has ended");
        self.asks.as_ref().and_then(|asks| asks.send(()).ok()).ok_or_else(gone)?;
        self.answers.recv().unwrap_or_else(|_| Err(gone()))
    }
}

impl Drop for Dialler {
    fn drop(&mut self) {
        self.asks = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
