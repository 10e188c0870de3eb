//! Implements the vhost-user session, which connects to the switch, negotiates features, and passes
//! memory and rings.
//!
//! In client mode, the driver connects to the switch's socket. In server mode, the driver listens
//! and the switch connects. Every wait for the switch has a time limit. If the switch supports
//! acknowledgements, every request asks for an acknowledgement. With acknowledgements, the caller
//! gets an error if the switch refuses a request. Without an acknowledgement, the port would
//! silently carry no traffic.
#![allow(unsafe_code, reason = "the crate vhost makes its event type only from a raw descriptor")]

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::eventfd::EventFd;
use nix::sys::socket::{MsgFlags, recv};
use vhost::VhostBackend;
use vhost::VringConfigData;
use vhost::vhost_user::message::{
    VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};

use super::device::{DriverConfig, SocketMode};
use super::error::DriverError;
use super::features::Features;
use super::live::region_info;
use super::memory::GuestMemory;
use crate::clock;

/// Maximum time to wait for the switch's answer to a request.
const REPLY_LIMIT: Duration = Duration::from_secs(3);
/// Time between two attempts to reach a socket that does not exist yet.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Connects to the switch, or accepts the switch's connections.
#[derive(Debug)]
pub(crate) struct Door {
    socket: PathBuf,
    listener: Option<UnixListener>,
}

impl Door {
    pub fn open(config: &DriverConfig) -> Result<Self, DriverError> {
        let listener = match config.mode {
            SocketMode::Client => None,
            SocketMode::Server => {
                // The socket file of a dead process would make `bind` fail forever.
                match std::fs::remove_file(&config.socket) {
                    Err(e) if e.kind() != io::ErrorKind::NotFound => {
                        return Err(DriverError::os("removing a stale socket")(e));
                    }
                    _ => {}
                }
                let listener = UnixListener::bind(&config.socket)
                    .map_err(DriverError::os("listening on the vhost-user socket"))?;
                listener
                    .set_nonblocking(true)
                    .map_err(DriverError::os("listening without blocking"))?;
                Some(listener)
            }
        };
        Ok(Self { socket: config.socket.clone(), listener })
    }

    /// Attempts once to connect to the switch or to accept its connection. Returns `None` if the
    /// switch is not reachable.
    pub fn try_stream(&self) -> Option<UnixStream> {
        match &self.listener {
            None => UnixStream::connect(&self.socket).ok(),
            Some(listener) => listener.accept().ok().map(|(stream, _)| stream),
        }
    }

    /// Attempts repeatedly to connect to the switch or to accept its connection. Returns an error
    /// if no connection exists after the time `limit`.
    pub fn stream(&self, limit: Duration) -> Result<UnixStream, DriverError> {
        let start = clock::now();
        loop {
            if let Some(stream) = self.try_stream() {
                return Ok(stream);
            }
            let waited = clock::now().duration_since(start);
            if waited >= limit {
                let socket = self.socket.clone();
                return Err(DriverError::NoPeer { socket, waited_ms: waited.as_millis() });
            }
            match &self.listener {
                None => clock::wait_readable(None, RETRY_PAUSE),
                Some(listener) => clock::wait_readable(Some(listener.as_fd()), limit - waited),
            };
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if self.listener.is_some() {
            // If this fails, the next listener removes the socket file.
            let _ = std::fs::remove_file(&self.socket);
        }
    }
}

/// Settings of a virtqueue that the driver sends to the switch.
#[derive(Debug)]
pub(crate) struct RingInfo<'a> {
    pub size: u16,
    pub base: u16,
    /// Addresses of the descriptor table, the available ring and the used ring in this process.
    pub addresses: [u64; 3],
    pub kick: &'a EventFd,
    pub call: &'a EventFd,
}

/// An inflight region (vhost-user), which the switch creates and the driver keeps. The driver
/// passes the inflight region to the next switch.
pub(crate) struct Inflight {
    region: VhostUserInflight,
    file: File,
}

impl std::fmt::Debug for Inflight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inflight").field("file", &self.file).finish_non_exhaustive()
    }
}

/// A vhost-user connection with the switch.
pub(crate) struct Session {
    stream: UnixStream,
    frontend: Frontend,
    features: Features,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("stream", &self.stream)
            .field("features", &self.features)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// Negotiates features. The driver accepts the `wanted` features that the switch offers.
    /// Returns an error if the switch does not offer a `required` feature.
    pub fn negotiate(
        stream: UnixStream,
        wanted: Features,
        required: Features,
        queue_pairs: u16,
    ) -> Result<Self, DriverError> {
        stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_read_timeout(Some(REPLY_LIMIT)))
            .and_then(|()| stream.set_write_timeout(Some(REPLY_LIMIT)))
            .map_err(DriverError::os("setting up the vhost-user socket"))?;
        await_answer(&stream)?;
        if queue_pairs > 1 {
            check_queue_pairs(&stream, queue_pairs)?;
        }
        let ours = stream.try_clone().map_err(DriverError::os("duplicating the socket"))?;
        let mut frontend = Frontend::from_stream(ours, u64::from(queue_pairs) * 2);
        frontend.set_owner().map_err(DriverError::protocol("SET_OWNER"))?;
        let offered =
            Features(frontend.get_features().map_err(DriverError::protocol("GET_FEATURES"))?);
        let required = required | Features::PROTOCOL;
        let missing = required.without(offered);
        if missing != Features::NONE {
            return Err(DriverError::Missing { missing });
        }
        let features = (wanted | required) & offered;
        let offered = frontend
            .get_protocol_features()
            .map_err(DriverError::protocol("GET_PROTOCOL_FEATURES"))?;
        let wanted = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::LOG_SHMFD
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS;
        let agreed = offered & wanted;
        frontend
            .set_protocol_features(agreed)
            .map_err(DriverError::protocol("SET_PROTOCOL_FEATURES"))?;
        if agreed.contains(VhostUserProtocolFeatures::REPLY_ACK) {
            frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
        frontend.set_features(features.0).map_err(DriverError::protocol("SET_FEATURES"))?;
        Ok(Self { stream, frontend, features })
    }

    pub fn features(&self) -> Features {
        self.features
    }

    pub fn frontend(&mut self) -> &mut Frontend {
        &mut self.frontend
    }

    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Asks the switch to create an inflight region, and returns the region.
    pub fn get_inflight(&mut self, queues: u16, size: u16) -> Result<Inflight, DriverError> {
        let wanted = VhostUserInflight::new(0, 0, queues, size);
        let (region, file) = self
            .frontend
            .get_inflight_fd(&wanted)
            .map_err(DriverError::protocol("GET_INFLIGHT_FD"))?;
        Ok(Inflight { region, file })
    }

    pub fn set_inflight(&mut self, inflight: &Inflight) -> Result<(), DriverError> {
        self.frontend
            .set_inflight_fd(&inflight.region, inflight.file.as_raw_fd())
            .map_err(DriverError::protocol("SET_INFLIGHT_FD"))
    }

    pub fn set_memory(&self, memory: &GuestMemory) -> Result<(), DriverError> {
        let table: Vec<_> = memory.regions().map(|r| region_info(&r)).collect();
        self.frontend.set_mem_table(&table).map_err(DriverError::protocol("SET_MEM_TABLE"))?;
        Ok(())
    }

    pub fn set_ring(&self, index: usize, ring: &RingInfo<'_>) -> Result<(), DriverError> {
        let front = &self.frontend;
        front.set_vring_num(index, ring.size).map_err(DriverError::protocol("SET_VRING_NUM"))?;
        front.set_vring_base(index, ring.base).map_err(DriverError::protocol("SET_VRING_BASE"))?;
        self.set_addresses(index, ring, None)?;
        front
            .set_vring_call(index, &event(ring.call)?)
            .map_err(DriverError::protocol("SET_VRING_CALL"))?;
        front
            .set_vring_kick(index, &event(ring.kick)?)
            .map_err(DriverError::protocol("SET_VRING_KICK"))
    }

    /// Passes the addresses of a ring to the switch. With a `log` address, the switch must log its
    /// writes to the used ring.
    pub fn set_addresses(
        &self,
        index: usize,
        ring: &RingInfo<'_>,
        log: Option<u64>,
    ) -> Result<(), DriverError> {
        let [desc, avail, used] = ring.addresses;
        let addresses = VringConfigData {
            queue_max_size: ring.size,
            queue_size: ring.size,
            flags: u32::from(log.is_some()),
            desc_table_addr: desc,
            used_ring_addr: used,
            avail_ring_addr: avail,
            log_addr: log,
        };
        self.frontend
            .set_vring_addr(index, &addresses)
            .map_err(DriverError::protocol("SET_VRING_ADDR"))
    }

    /// Sends the acknowledged features to the switch a second time. When the driver acknowledges
    /// features again, only features that do not concern rings may differ from the negotiated
    /// features.
    pub fn set_features(&self, features: Features) -> Result<(), DriverError> {
        self.frontend.set_features(features.0).map_err(DriverError::protocol("SET_FEATURES"))
    }

    pub fn enable(&mut self, index: usize, on: bool) -> Result<(), DriverError> {
        self.frontend.set_vring_enable(index, on).map_err(DriverError::protocol("SET_VRING_ENABLE"))
    }

    /// Whether the switch is still connected. Each call of `is_alive` makes one system call.
    pub fn is_alive(&self) -> bool {
        let mut byte = [0];
        match recv(self.stream.as_raw_fd(), &mut byte, MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT)
        {
            Ok(0) => false,
            Ok(_) => true,
            Err(e) => e == nix::errno::Errno::EAGAIN || e == nix::errno::Errno::EINTR,
        }
    }
}

/// Requests the switch's features, and waits at most [`REPLY_LIMIT`] for the answer. The time limit
/// for the answer is necessary, because a switch stops the port of a faulty peer for some time.
/// While the port is stopped, the switch accepts connections but does not answer. The crate `vhost`
/// would wait without limit, because it repeats a read that timed out.
fn await_answer(mut stream: &UnixStream) -> Result<(), DriverError> {
    // Message number, protocol version, and length 0 of the body. The answer has a body of 8 bytes.
    let request = [1_u32, 1, 0].map(u32::to_ne_bytes);
    let mut answer = [0; 20];
    stream
        .write_all(request.as_flattened())
        .and_then(|()| stream.read_exact(&mut answer))
        .map_err(DriverError::os("waiting for the switch's answer to GET_FEATURES"))
}

/// Checks that the switch supports `wanted` queue pairs. The number of queue pairs is requested
/// through a second `Frontend` object, because the crate `vhost` interprets the answer as a number
/// of *rings*. Switches answer with a number of queue pairs, as in the network example of the
/// vhost-user specification.
fn check_queue_pairs(stream: &UnixStream, wanted: u16) -> Result<(), DriverError> {
    let ours = stream.try_clone().map_err(DriverError::os("duplicating the socket"))?;
    let mut probe = Frontend::from_stream(ours, 2);
    let features = Features(probe.get_features().map_err(DriverError::protocol("GET_FEATURES"))?);
    if !features.contains(Features::PROTOCOL) {
        return Err(DriverError::Missing { missing: Features::PROTOCOL });
    }
    let protocol =
        probe.get_protocol_features().map_err(DriverError::protocol("GET_PROTOCOL_FEATURES"))?;
    if !protocol.contains(VhostUserProtocolFeatures::MQ) {
        return Err(DriverError::QueuePairs { offered: 1, wanted });
    }
    probe
        .set_protocol_features(VhostUserProtocolFeatures::MQ)
        .map_err(DriverError::protocol("SET_PROTOCOL_FEATURES"))?;
    let offered = probe.get_queue_num().map_err(DriverError::protocol("GET_QUEUE_NUM"))?;
    if offered < u64::from(wanted) {
        return Err(DriverError::QueuePairs { offered, wanted });
    }
    Ok(())
}

/// Duplicates an event descriptor, and converts the duplicate to the type that the crate `vhost`
/// expects. The function is generic over the descriptor type, because no crate of this workspace
/// exports the type that `vhost` expects.
fn event<T: FromRawFd>(ours: &EventFd) -> Result<T, DriverError> {
    let duplicate = ours
        .as_fd()
        .try_clone_to_owned()
        .map_err(DriverError::os("duplicating an event descriptor"))?;
    // SAFETY: the descriptor was just made, nothing else owns it, and it is an eventfd.
    // WHY: vmm-sys-util's EventFd has no constructor from an OwnedFd.
    Ok(unsafe { T::from_raw_fd(duplicate.into_raw_fd()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_that_never_answers_is_given_up() {
        let (driver, _switch) = UnixStream::pair().unwrap();
        driver.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let refused = await_answer(&driver).unwrap_err();
        assert!(matches!(refused, DriverError::Os { .. }), "{refused}");
    }
}
