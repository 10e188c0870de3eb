//! Accepts `SET_VRING_ENABLE` before `SET_FEATURES`. QEMU's virtio-net sends `SET_VRING_ENABLE`
//! first when it connects.
//!
//! # Problem
//! The `vhost` crate ends a session if the peer enables a ring before the peer acknowledges the
//! feature `VHOST_USER_F_PROTOCOL_FEATURES` (bit 30). QEMU 7.2 enables rings before it acknowledges
//! the feature.
//!
//! # Approach
//! Until the peer acknowledges feature bit 30, the switch reads the header of each message but
//! leaves the message in the socket. The switch itself takes and answers only an early
//! `SET_VRING_ENABLE`. The switch leaves all messages except an early `SET_VRING_ENABLE` to the
//! `vhost` crate. After the peer has acknowledged feature bit 30, the `vhost` crate handles all
//! messages.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use vhost::vhost_user::{Error, Result, VhostUserBackendReqHandler};

use super::session::Session;

const SET_VRING_ENABLE: u32 = 18;
const VERSION: u32 = 1;
const REPLY: u32 = 4;
const NEED_REPLY: u32 = 8;
const HEADER: usize = 12;
const PAYLOAD: u32 = 8;

/// Serves the next message if the message is an early `SET_VRING_ENABLE`. If the next message is
/// not an early `SET_VRING_ENABLE`, `serve` returns false and leaves the message in the socket.
///
/// # Errors
/// Returns an error if the connection broke, or if the message is invalid.
pub(super) fn serve(mut stream: &UnixStream, session: &Mutex<Session>) -> Result<bool> {
    let mut header = [0; HEADER];
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_WAITALL;
    let seen = loop {
        match recv(stream.as_raw_fd(), &mut header, flags) {
            Err(Errno::EINTR) => {}
            Err(_) => return Err(Error::Disconnected),
            Ok(seen) => break seen,
        }
    };
    if seen < HEADER || word(&header, 0) != SET_VRING_ENABLE || word(&header, 8) != PAYLOAD {
        return Ok(false);
    }
    let mut message = [0; HEADER + PAYLOAD as usize];
    stream.read_exact(&mut message).map_err(|_| Error::Disconnected)?;
    let (index, on) = (word(&message, HEADER), word(&message, HEADER + 4));
    let done = match on {
        0 | 1 => session.set_vring_enable(index, on == 1),
        _ => Err(Error::InvalidParam),
    };
    if word(&message, 4) & NEED_REPLY == 0 {
        return done.map(|()| true);
    }
    let mut reply = Vec::with_capacity(message.len());
    for word in [SET_VRING_ENABLE, VERSION | REPLY, PAYLOAD, u32::from(done.is_err()), 0] {
        reply.extend_from_slice(&word.to_ne_bytes());
    }
    stream.write_all(&reply).map_err(|_| Error::Disconnected)?;
    Ok(true)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(word)
}
