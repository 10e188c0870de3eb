//! `SET_VRING_ENABLE` before `SET_FEATURES`, as QEMU's virtio-net sends it when it connects.
//!
//! # Problem
//! The `vhost` crate ends a session that enables a ring before feature bit 30 is acknowledged, but
//! QEMU 7.2 does exactly this.
//!
//! # Approach
//! Until the bit is acknowledged, the header of each message is read without taking the message.
//! This module takes and answers an early enable. All other messages go to the crate. Once the bit
//! is acknowledged, the crate handles all messages.

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

/// Serves the next message if it is an early enable. Returns false for any other message and leaves
/// it in place.
///
/// # Errors
/// The connection broke, or the message is wrong.
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
