//! Connects a vhost-user port to the socket on which a VM listens.
//!
//! # Problem
//! The session's thread exchanges messages with a VM's process. If the session's thread could also
//! make connections, an attacker who controls the thread could connect to every socket of the host.
//! To reach sockets in other users' directories, the session's thread would also need
//! `CAP_DAC_OVERRIDE`.
//!
//! # Approach
//! A separate dialling thread makes the connection and passes the connection to the session's
//! thread. The dialling thread reads nothing from the connection. The socket's path comes from the
//! configuration, and the session's thread cannot choose another path.
//!
//! # Cost
//! A port with `mode = "client"` has one additional thread, which sleeps most of the time.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use super::{VhostUserConfig, socket};
use crate::confine::{Role, confine};

/// Handle with which the session's thread uses the dialling thread.
#[derive(Debug)]
pub(super) struct Dialler {
    /// Channel on which the session's thread requests a connection from the dialling thread. If the
    /// channel is closed (`None`), the dialling thread ends.
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
                        Err(e) => Err(io::Error::other(format!("cannot give up privileges: {e}"))),
                    };
                    if answer.send(made).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self { asks: Some(asks), answers, thread: Some(thread) })
    }

    /// Like [`socket::connect`], but the dialling thread makes the connection.
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
