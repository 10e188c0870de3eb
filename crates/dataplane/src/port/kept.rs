//! State that a port leaves to the next process of the switch, so that the port's peer sees only a
//! pause.
//!
//! # Problem
//! A restart of the switch used to end all vhost-user sessions, and to remove the TAP interfaces
//! that the switch had made. QEMU connects again only once a second, and an interface that is made
//! a second time has lost its addresses and routes.
//!
//! # Approach
//! A port that stops for a restart returns a [`Kept`]: a text that describes the session, and the
//! descriptors that the text refers to by number. [`Kept::seal`] sends both into a socket pair and
//! returns the receiving end. The kernel keeps descriptors that wait in a socket, so the whole
//! state of a port is one descriptor, the *carrier*. The service manager stores the carriers
//! (sd_pid_notify_with_fds(3), `FDSTORE=1`) and passes them to the next process.
//!
//! A start can fail before it continues a session, or a signal can end it. The next process
//! therefore only looks into a carrier ([`Kept::open`]), and the state stays in the carrier that
//! the service manager stores. The state of a session is valid until messages of its peer or the
//! use of its rings make it outdated. A second process that ran rings from outdated positions would
//! use buffers of the guest a second time. The new process therefore prepares everything first: it
//! sets up the session, but reads no message of the peer and lets no ring run. When the process is
//! ready, it takes the session over ([`VhostUser::take_over`]): it empties the carrier, and then
//! the rings run. A crash before this moment loses nothing, however often it happens. A crash later
//! ends the sessions. A process that ends in order stores the sessions again. The state of a TAP
//! interface never becomes outdated, so its carrier stays as it is until the service manager
//! removes it.
//!
//! [`VhostUser::take_over`]: super::vhost_user::VhostUser::take_over
//!
//! The next process applies the state by the same functions as the messages of a peer. State that
//! does not fit the new configuration is therefore refused like a message that does not fit.
//!
//! # Cost
//! A port keeps one more descriptor for each memory region of its guest, and for each queue of a
//! TAP interface.

use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use penstock_units::TscRate;
use serde::{Deserialize, Serialize};

use super::passing::{self, PASSED_MAX};

/// Version of the format of [`Message`]. A program reads only its own version.
const VERSION: u32 = 1;
/// Limit of the list of addresses in bytes. The largest FDB has 131,072 addresses.
const ADDRESSES_BYTES_MAX: u64 = 64 << 20;
/// Limit of the state's text in bytes. The text of a port with 16 rings and 32 memory regions has
/// about 8,000 bytes.
const TEXT_MAX: usize = 64 << 10;

/// Number of restarts after which a process measures the rate of the time-stamp counter again.
const TSC_RESTARTS_MAX: u32 = 16;

/// Rate of the time-stamp counter, which a process leaves to the next one. A measurement takes
/// longer than all other steps of a restart together. But no rate stays for ever, because the
/// counter of a virtual machine may run at another rate after a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptTsc {
    rate: TscRate,
    /// Number of restarts since the measurement.
    restarts: u32,
}

impl KeptTsc {
    /// A rate that this process has measured.
    #[must_use]
    pub const fn measured(rate: TscRate) -> Self {
        Self { rate, restarts: 0 }
    }

    #[must_use]
    pub const fn rate(self) -> TscRate {
        self.rate
    }

    /// Rate that the next process may use. `None` if the next process must measure the rate again.
    #[must_use]
    pub fn after_restart(self) -> Option<Self> {
        let restarts = self.restarts.saturating_add(1);
        (restarts < TSC_RESTARTS_MAX).then_some(Self { restarts, ..self })
    }
}

/// State of one port, with the descriptors that the state refers to.
#[derive(Debug)]
pub struct Kept {
    port: String,
    tsc: Option<KeptTsc>,
    pub(super) state: State,
    pub(super) files: Files,
    /// Carrier that still contains the state.
    carrier: Option<Carrier>,
}

/// Carrier in the service manager's store that contains the state of a port.
#[derive(Debug)]
pub(super) struct Carrier(OwnedFd);

impl Carrier {
    /// Empties the carrier, so that no other process continues the port with its state.
    pub(super) fn empty(self) {
        passing::discard(&self.0);
    }
}

/// Message in a carrier.
#[derive(Debug, Serialize, Deserialize)]
struct Message {
    version: u32,
    port: String,
    tsc_hz: Option<u64>,
    /// Number of restarts since the measurement of `tsc_hz`.
    #[serde(default, skip_serializing_if = "is_zero")]
    tsc_restarts: u32,
    state: State,
}

const fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The only part of a message that all versions have.
#[derive(Debug, Deserialize)]
struct Versioned {
    version: u32,
}

/// State of a port by kind.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum State {
    VhostUser(KeptSession),
    Tap(KeptTap),
    /// Learned addresses of the whole switch, which belong to no port.
    Addresses(KeptAddresses),
}

/// Number of a descriptor in [`Files`].
pub(super) type FileNumber = usize;

/// State of a vhost-user session between two messages. No ring runs.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptSession {
    pub(super) connection: FileNumber,
    pub(super) features: u64,
    pub(super) protocol: u64,
    pub(super) memory: Vec<KeptRegion>,
    pub(super) log: Option<KeptRange>,
    pub(super) inflight: Option<KeptInflight>,
    pub(super) rings: Vec<KeptRing>,
    /// Memory regions that the driver removed one by one: guest address, driver's address, length
    /// in bytes. The driver may repeat the removal for each queue pair.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) removed: Vec<(u64, u64, u64)>,
}

/// A memory region of a guest; see [`super::guest_memory::RegionSpec`].
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptRegion {
    pub(super) guest: u64,
    pub(super) user: u64,
    pub(super) range: KeptRange,
}

/// A range of a file, in bytes.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptRange {
    pub(super) file: FileNumber,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// The inflight region of a session.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptInflight {
    pub(super) range: KeptRange,
    pub(super) queues: u16,
    pub(super) size: u16,
}

/// State of a ring in the terms of the vhost-user protocol.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptRing {
    pub(super) size: u32,
    /// Addresses of the descriptors, the available ring and the used ring, if the driver gave them.
    pub(super) addresses: Option<[u64; 3]>,
    pub(super) log_used: Option<u64>,
    pub(super) base: u32,
    /// Whether `base` is the position at which the worker stopped.
    pub(super) exact: bool,
    pub(super) kick: Option<FileNumber>,
    pub(super) call: Option<FileNumber>,
    pub(super) kicked: bool,
    pub(super) enabled: bool,
    /// Whether the ring ran with the inflight region, so that the positions in the region are older
    /// than `base`.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub(super) recovered: bool,
}

/// State of a TAP port. Its queues are the first descriptors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptTap {
    pub(super) interface: String,
    pub(super) netns: Option<std::path::PathBuf>,
    pub(super) queues: u16,
}

/// Learned addresses of the switch, as JSON in a file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptAddresses {
    pub(super) list: FileNumber,
}

/// A learned address, with the names of its network and port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptAddress {
    pub tenant: String,
    /// VLAN; 0 for an untagged network.
    pub vlan: u16,
    pub mac: String,
    pub port: String,
    /// Seconds since the last frame from the address.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub age_s: u32,
}

/// Numbered descriptors of a port's state.
#[derive(Debug, Default)]
pub(super) struct Files(Vec<Option<OwnedFd>>);

impl Files {
    pub(super) fn put(&mut self, file: impl Into<OwnedFd>) -> FileNumber {
        self.0.push(Some(file.into()));
        self.0.len() - 1
    }

    /// Takes descriptor number `number`, which can be taken once.
    ///
    /// # Errors
    /// Returns an error if the state lacks the descriptor.
    pub(super) fn take(&mut self, number: FileNumber) -> io::Result<OwnedFd> {
        let file = self.0.get_mut(number).and_then(Option::take);
        file.ok_or_else(|| io::Error::other(format!("the state lacks descriptor {number}")))
    }

    pub(super) fn take_file(&mut self, number: FileNumber) -> io::Result<File> {
        self.take(number).map(File::from)
    }
}

impl Kept {
    pub(super) const fn new(port: String, state: State, files: Files) -> Self {
        Self { port, tsc: None, state, files, carrier: None }
    }

    /// Adds the rate of the time-stamp counter, so that the next process need not measure it.
    #[must_use]
    pub fn with_tsc(self, tsc: KeptTsc) -> Self {
        Self { tsc: Some(tsc), ..self }
    }

    /// Rate of the time-stamp counter. `None` if the former process did not add it.
    #[must_use]
    pub const fn tsc(&self) -> Option<KeptTsc> {
        self.tsc
    }

    /// Keeps the learned addresses of the switch.
    ///
    /// # Errors
    /// Returns an error if the kernel has no memory for the list.
    pub fn of_addresses(addresses: &[KeptAddress]) -> io::Result<Self> {
        let file = memfd_create(c"penstock-addresses", MFdFlags::MFD_CLOEXEC)?;
        let mut file = io::BufWriter::new(File::from(file));
        serde_json::to_writer(&mut file, addresses)?;
        let mut files = Files::default();
        let list = files.put(file.into_inner().map_err(io::IntoInnerError::into_error)?);
        Ok(Self::new(String::new(), State::Addresses(KeptAddresses { list }), files))
    }

    /// Takes the learned addresses of the switch. Returns `None` if the state is that of a port. A
    /// list that cannot be read is empty.
    pub fn take_addresses(&mut self) -> Option<Vec<KeptAddress>> {
        let State::Addresses(KeptAddresses { list }) = self.state else { return None };
        let read = |mut file: File| -> io::Result<Vec<KeptAddress>> {
            file.rewind()?;
            Ok(serde_json::from_reader(io::BufReader::new(file.take(ADDRESSES_BYTES_MAX)))?)
        };
        Some(self.files.take_file(list).and_then(read).unwrap_or_else(|error| {
            tracing::warn!("addresses are learned again: {error}");
            Vec::new()
        }))
    }

    /// Name of the port that the state belongs to.
    #[must_use]
    pub fn port(&self) -> &str {
        &self.port
    }

    /// Puts the state and its descriptors into a carrier.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the socket pair, or if the state exceeds a message.
    pub fn seal(self) -> io::Result<OwnedFd> {
        let files: Vec<OwnedFd> = self.files.0.into_iter().flatten().collect();
        let tsc_hz = self.tsc.map(|tsc| tsc.rate.hz());
        let tsc_restarts = self.tsc.map_or(0, |tsc| tsc.restarts);
        let (port, state) = (self.port, self.state);
        let message = Message { version: VERSION, port, tsc_hz, tsc_restarts, state };
        let text = serde_json::to_vec(&message)?;
        if files.len() > PASSED_MAX || text.len() > TEXT_MAX {
            let (files, bytes) = (files.len(), text.len());
            return Err(io::Error::other(format!(
                "{files} descriptors and {bytes} bytes; the limits are {PASSED_MAX} and {TEXT_MAX}"
            )));
        }
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (sender, carrier) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        let passed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        passing::send(&sender, &text, &passed)?;
        Ok(carrier)
    }

    /// Takes the carrier from which the state was read.
    pub(super) const fn take_carrier(&mut self) -> Option<Carrier> {
        self.carrier.take()
    }

    /// Notes that a carrier still contains the state.
    pub(super) fn stored_in(self, carrier: Option<Carrier>) -> Self {
        Self { carrier, ..self }
    }

    /// Whether the service manager's store already has the state.
    #[must_use]
    pub const fn is_stored(&self) -> bool {
        self.carrier.is_some()
    }

    /// Reads the state in a carrier. The state stays in the carrier.
    ///
    /// # Errors
    /// Returns an error if the descriptor is no carrier, if the carrier is empty, or if another
    /// version wrote the state.
    pub fn open(carrier: OwnedFd) -> io::Result<Self> {
        let mut text = vec![0; TEXT_MAX];
        let (len, files) = passing::peek(&carrier, &mut text)?;
        let text = &text[..len];
        let broken = |what: String| io::Error::other(format!("state of a port: {what}"));
        if text.is_empty() {
            let what = "it is gone, because a process that has ended continued the session";
            return Err(broken(what.to_owned()));
        }
        let found: Versioned = serde_json::from_slice(text).map_err(|e| broken(e.to_string()))?;
        if found.version != VERSION {
            let version = found.version;
            return Err(broken(format!(
                "version {version}; this program continues only sessions of version {VERSION}"
            )));
        }
        let message: Message = serde_json::from_slice(text).map_err(|e| broken(e.to_string()))?;
        let files = Files(files.into_iter().map(Some).collect());
        let tsc = message.tsc_hz.map(|hz| {
            let (rate, restarts) = (TscRate::from_hz(hz), message.tsc_restarts);
            KeptTsc { rate, restarts }
        });
        let carrier = Some(Carrier(carrier));
        Ok(Self { port: message.port, tsc, state: message.state, files, carrier })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    fn session(files: &mut Files, connection: UnixStream) -> KeptSession {
        let connection = files.put(connection);
        let range = |file| KeptRange { file, offset: 4096, len: u64::MAX };
        KeptSession {
            connection,
            features: u64::MAX,
            memory: vec![KeptRegion { guest: 1, user: 2, range: range(0) }],
            rings: vec![KeptRing { addresses: Some([1, 2, u64::MAX]), ..KeptRing::default() }],
            ..KeptSession::default()
        }
    }

    #[test]
    fn state_and_descriptors_come_out_as_they_went_in() {
        let (ours, mut peer) = UnixStream::pair().unwrap();
        let mut files = Files::default();
        let state = State::VhostUser(session(&mut files, ours));
        let tsc = KeptTsc { rate: TscRate::from_hz(3), restarts: 2 };
        let kept = Kept::new("vm1".to_owned(), state, files).with_tsc(tsc);
        let mut kept = Kept::open(kept.seal().unwrap()).unwrap();
        assert_eq!((kept.port(), kept.tsc()), ("vm1", Some(tsc)));
        let State::VhostUser(found) = kept.state else { panic!("another kind") };
        let (same, _) = UnixStream::pair().unwrap();
        assert_eq!(found, session(&mut Files::default(), same));
        let mut ours = UnixStream::from(kept.files.take(found.connection).unwrap());
        assert!(kept.files.take(found.connection).is_err(), "a descriptor has one owner");
        assert!(kept.files.take(99).is_err());
        ours.write_all(b"here").unwrap();
        let mut heard = [0; 4];
        peer.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"here");
    }

    #[test]
    fn addresses_come_out_as_they_went_in() {
        let address = |n: u16| KeptAddress {
            tenant: "red".to_owned(),
            vlan: n,
            mac: "52:54:00:00:00:01".to_owned(),
            port: "vm1".to_owned(),
            age_s: u32::from(n % 3),
        };
        let all: Vec<_> = (0..4_000).map(address).collect();
        let kept = Kept::of_addresses(&all).unwrap();
        let mut kept = Kept::open(kept.seal().unwrap()).unwrap();
        assert_eq!(kept.take_addresses().unwrap(), all);
        let (ours, _) = UnixStream::pair().unwrap();
        let mut files = Files::default();
        let state = State::VhostUser(session(&mut files, ours));
        assert_eq!(Kept::new("vm1".to_owned(), state, files).take_addresses(), None);
    }

    #[test]
    fn a_rate_is_measured_again_after_some_restarts() {
        let first = KeptTsc::measured(TscRate::from_hz(3));
        let chain = core::iter::successors(Some(first), |tsc| tsc.after_restart());
        let chain: Vec<_> = chain.take(100).collect();
        assert_eq!(chain.len(), 16, "the sixteenth restart measures");
        assert!(chain.iter().all(|tsc| tsc.rate() == first.rate()));
    }

    #[test]
    fn what_is_no_state_is_refused() {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let carrier = |text: &[u8]| {
            let (sender, carrier) =
                socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
            passing::send(&sender, text, &[]).unwrap();
            Kept::open(carrier).unwrap_err().to_string()
        };
        assert!(carrier(b"{\"version\":2,\"new\":1}").contains("version 2"));
        assert!(carrier(b"{\"version\":1}").contains("missing field"));
        assert!(carrier(b"").contains("state of a port"));
        let taken = OwnedFd::from(UnixStream::pair().unwrap().0);
        assert!(Kept::open(taken).is_err());
    }

    #[test]
    fn a_state_is_there_for_the_next_start_until_a_process_takes_it_over() {
        let (ours, mut peer) = UnixStream::pair().unwrap();
        let mut files = Files::default();
        let state = State::VhostUser(session(&mut files, ours));
        let carrier = Kept::new("vm1".to_owned(), state, files).seal().unwrap();
        let open = || Kept::open(carrier.try_clone().unwrap());
        // Two starts fail before they take the session over.
        drop(open().unwrap());
        drop(open().unwrap());
        let mut kept = open().unwrap();
        assert!(kept.is_stored());
        kept.take_carrier().unwrap().empty();
        assert!(!kept.is_stored());
        assert!(open().unwrap_err().to_string().contains("continued the session"));
        peer.set_nonblocking(true).unwrap();
        let read = peer.read(&mut [0]).unwrap_err();
        assert_eq!(read.kind(), io::ErrorKind::WouldBlock, "the session has its connection");
        drop(kept);
        assert_eq!(peer.read(&mut [0]).unwrap(), 0);
    }

    /// The state of version 1 as the first program with this version wrote it. A change of this
    /// text needs a new version.
    #[test]
    fn the_format_of_version_1_stays() {
        let text = include_str!("../../../../fixtures/0.1/host/kept-session.json");
        let message: Message = serde_json::from_str(text).unwrap();
        assert_eq!(
            serde_json::to_value(&message).unwrap(),
            serde_json::from_str::<serde_json::Value>(text).unwrap()
        );
        assert_eq!(message.version, VERSION);
    }
}
