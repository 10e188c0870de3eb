//! Implements a virtio-net device, seen from the guest.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use vhost::vhost_user::Frontend;

use super::error::DriverError;
use super::features::Features;
use super::header::VNET_HDR_LEN;
use super::memory::{GuestMemory, Window};
use super::raw::RawQueue;
use super::ring::{MAX_RING_SIZE, ring_bytes};
use super::rx::RxQueue;
use super::session::{Door, Inflight, RingInfo, Session};
use super::tx::{TxQueue, table_bytes};
use super::virtqueue::Virtqueue;

/// Which side listens on the vhost-user socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SocketMode {
    /// The switch listens on the vhost-user socket, and the driver connects.
    #[default]
    Client,
    /// The driver listens on the vhost-user socket, and the switch connects.
    Server,
}

/// Order in which a queue reuses free transmit slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SlotOrder {
    /// First in, first out: the queue reuses the slot that has been free for the longest time. With
    /// the FIFO order, each descriptor keeps its slot and need not be rewritten. Traffic generators
    /// use the FIFO order.
    #[default]
    Fifo,
    /// The queue reuses the slot that was freed last, because that slot is still in the cache. The
    /// LIFO order suits large slots.
    Lifo,
}

#[derive(Debug, Clone)]
pub struct DriverConfig {
    /// Path of the vhost-user socket.
    pub socket: PathBuf,
    pub mode: SocketMode,
    /// Features that the driver accepts if the switch offers them. If RING_PACKED is among the
    /// wanted features, it is also required.
    pub wanted: Features,
    /// Features without which attaching fails. VERSION_1 is always required.
    pub required: Features,
    /// Number of queue pairs, at least 1.
    pub queue_pairs: u16,
    /// Number of descriptors of each ring, which is a power of two up to [`MAX_RING_SIZE`].
    pub ring_size: u16,
    /// Size of a transmit slot in bytes, including the header.
    pub tx_slot_bytes: usize,
    /// Number of transmit slots of a queue; `None` means one slot for each descriptor.
    pub tx_slots: Option<u16>,
    pub slot_order: SlotOrder,
    /// Size of a receive buffer in bytes, including the header.
    pub rx_buffer_bytes: usize,
    /// Number of guest memory regions (1 to 8) that hold the rings and buffers.
    pub regions: usize,
    /// Whether the driver tries to get 2 MiB pages for its memory before 4 KiB pages.
    pub hugepages: bool,
    /// Whether the device reconnects as a hypervisor does, without the guest's knowledge. If
    /// `inflight` is true, the rings stay unchanged, and the new switch receives the inflight
    /// region that the first switch made. The inflight region is shared memory that lists the
    /// buffers that a switch has not returned. If `inflight` is false, the driver sends and posts
    /// again all frames and buffers that the old switch had not returned.
    pub inflight: bool,
    /// Whether the device reconnects as QEMU's network device does after it lost its switch. If
    /// `says_start` is true, the rings stay unchanged, and the driver wrongly tells the new switch
    /// that a packed ring is at its start.
    pub says_start: bool,
    /// Size in bytes of additional guest memory for tests with a hostile guest
    /// ([`VirtioNet::scratch`]).
    pub scratch_bytes: usize,
    /// Maximum time that the driver waits until the switch is reachable.
    pub wait: Duration,
}

impl DriverConfig {
    /// Default size of a slot or buffer in bytes: 2 KiB and a cache line. If buffers were exactly 2
    /// KiB apart, the first cache lines of all buffers would share two sets of a 32 KiB first-level
    /// cache.
    pub const BUFFER_BYTES: usize = 2048 + 64;

    /// Creates the configuration of a client on `socket`. The configuration has one queue pair with
    /// rings of 256 descriptors, and the wanted features [`Features::BASIC`]. Slots and buffers
    /// have [`BUFFER_BYTES`](Self::BUFFER_BYTES) bytes.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            mode: SocketMode::Client,
            wanted: Features::BASIC,
            required: Features::NONE,
            queue_pairs: 1,
            ring_size: 256,
            tx_slot_bytes: Self::BUFFER_BYTES,
            tx_slots: None,
            slot_order: SlotOrder::Fifo,
            rx_buffer_bytes: Self::BUFFER_BYTES,
            regions: 1,
            hugepages: true,
            inflight: false,
            says_start: false,
            scratch_bytes: 0,
            wait: Duration::from_secs(5),
        }
    }

    fn check(&self) -> Result<(), DriverError> {
        let range = |what, value, low, high| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                Err(DriverError::Range { what, value, low, high })
            }
        };
        if !self.ring_size.is_power_of_two() || !(2..=MAX_RING_SIZE).contains(&self.ring_size) {
            return Err(DriverError::RingSize { size: self.ring_size, max: MAX_RING_SIZE });
        }
        range("queue pairs", usize::from(self.queue_pairs), 1, 64)?;
        range("tx slot bytes", self.tx_slot_bytes, VNET_HDR_LEN + 60, 1 << 20)?;
        range("rx buffer bytes", self.rx_buffer_bytes, VNET_HDR_LEN + 60, 1 << 20)?;
        range("tx slots", usize::from(self.slots()), 1, usize::from(self.ring_size))?;
        range("memory regions", self.regions, 1, 8)
    }

    fn slots(&self) -> u16 {
        self.tx_slots.unwrap_or(self.ring_size)
    }

    fn wanted(&self) -> Features {
        let mq = if self.queue_pairs > 1 { Features::MQ } else { Features::NONE };
        self.wanted | mq
    }

    fn required(&self) -> Features {
        // The driver lays out the rings before the negotiation, so a wanted ring format is also
        // required.
        let packed = if self.packed() { Features::RING_PACKED } else { Features::NONE };
        self.required | Features::VERSION_1 | packed
    }

    fn packed(&self) -> bool {
        (self.wanted | self.required).contains(Features::RING_PACKED)
    }
}

#[derive(Debug)]
pub struct QueuePair {
    /// Receive queue, from the switch to the driver.
    pub rx: RxQueue,
    /// Transmit queue, from the driver to the switch.
    pub tx: TxQueue,
}

/// Numbers of frames sent again, of buffers posted again, and of frames dropped after a
/// reconnection to the switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resubmitted {
    /// Number of frames that the driver sent again after the reconnection, because the old switch
    /// had not returned the buffers of the frames. If the old switch forwarded a frame but did not
    /// return the frame's buffer, the receiver gets the frame twice.
    pub tx_frames: u64,
    /// Number of receive buffers that the driver posted again.
    pub rx_buffers: u64,
    /// Number of received frames that were lost in the reconnection, because the driver had not
    /// read the frames from the receive ring before. To avoid drops, receive all waiting frames
    /// before you reconnect.
    pub rx_dropped: u64,
}

/// A virtio-net device that is connected to a switch over vhost-user.
#[derive(Debug)]
pub struct VirtioNet {
    config: DriverConfig,
    door: Door,
    session: Option<Session>,
    features: Features,
    inflight: Option<Inflight>,
    pairs: Vec<QueuePair>,
    scratch: Option<Window>,
    memory: Arc<GuestMemory>,
}

impl VirtioNet {
    /// Waits for the switch, negotiates features, posts receive buffers and enables all rings.
    ///
    /// # Errors
    /// Returns an error if the configuration is out of range, the switch does not appear within
    /// [`DriverConfig::wait`], or the switch refuses a request.
    pub fn connect(config: DriverConfig) -> Result<Self, DriverError> {
        let mut device = Self::prepare(config)?;
        device.reconnect()?;
        Ok(device)
    }

    /// Prepares memory, rings and, in server mode, the listening socket, but does not connect.
    ///
    /// # Errors
    /// Returns an error if the configuration is out of range, or if memory or the socket is not
    /// available.
    pub fn prepare(config: DriverConfig) -> Result<Self, DriverError> {
        config.check()?;
        let [desc, avail, used] = ring_bytes(config.ring_size);
        let slots = usize::from(config.slots());
        let pair = [
            [desc, avail, used].as_slice(),
            &[usize::from(config.ring_size) * config.rx_buffer_bytes],
            &[desc, avail, used],
            &[slots * config.tx_slot_bytes, table_bytes(slots)],
        ]
        .concat();
        let mut sizes = pair.repeat(usize::from(config.queue_pairs));
        sizes.push(config.scratch_bytes);
        let (memory, windows) =
            GuestMemory::with_windows(&sizes, config.regions, config.hugepages)?;
        let mut windows = windows.into_iter();
        let mut next = || windows.next().ok_or(DriverError::NotConnected);
        let mut pairs = Vec::new();
        for _ in 0..config.queue_pairs {
            let (packed, size) = (config.packed(), config.ring_size);
            let rx_ring = Virtqueue::new(packed, size, [next()?, next()?, next()?]);
            let rx = RxQueue::new(rx_ring, next()?, (event()?, event()?));
            let tx_ring = Virtqueue::new(packed, size, [next()?, next()?, next()?]);
            let (slots, tables, events) = (next()?, next()?, (event()?, event()?));
            let order = config.slot_order;
            let tx = TxQueue::new(tx_ring, slots, tables, config.slots(), order, events);
            pairs.push(QueuePair { rx, tx });
        }
        let scratch = Some(next()?).filter(|w| !w.is_empty());
        let door = Door::open(&config)?;
        let features = Features::NONE;
        let (session, inflight) = (None, None);
        Ok(Self { config, door, session, features, inflight, pairs, scratch, memory })
    }

    /// Waits for the switch and attaches to it. The switch may have restarted since the last
    /// session. The device keeps its memory, its rings and the frames in the rings. Without an
    /// inflight region, the device continues at the used index, and the driver offers again all
    /// frames and buffers that the old device had not returned. With [`DriverConfig::inflight`],
    /// the switch itself resumes the frames and buffers that were not returned.
    ///
    /// # Errors
    /// Returns the errors of [`connect`](Self::connect), and an error if a restarted switch offers
    /// fewer features than before.
    pub fn reconnect(&mut self) -> Result<Resubmitted, DriverError> {
        self.session = None;
        let stream = self.door.stream(self.config.wait)?;
        self.attach(stream)
    }

    /// Tries once to reconnect to the switch, without waiting for the switch. Returns `None` if the
    /// switch is not reachable.
    ///
    /// # Errors
    /// Returns an error if the switch is reachable and refuses a request.
    pub fn try_reconnect(&mut self) -> Result<Option<Resubmitted>, DriverError> {
        self.session = None;
        match self.door.try_stream() {
            None => Ok(None),
            Some(stream) => self.attach(stream).map(Some),
        }
    }

    fn attach(&mut self, stream: UnixStream) -> Result<Resubmitted, DriverError> {
        // Frames in flight and users of the device rely on the features of the first session.
        let (wanted, required) = if self.features == Features::NONE {
            (self.config.wanted(), self.config.required())
        } else {
            (self.features, self.features)
        };
        let mut session = Session::negotiate(stream, wanted, required, self.config.queue_pairs)?;
        let features = session.features();
        session.set_memory(&self.memory)?;
        let again = self.features != Features::NONE;
        let resume = self.inflight.is_some();
        if self.config.inflight {
            let region = match self.inflight.take() {
                Some(region) => region,
                None => session.get_inflight(2 * self.config.queue_pairs, self.config.ring_size)?,
            };
            session.set_inflight(&region)?;
            self.inflight = Some(region);
        }
        let mut moved = Resubmitted::default();
        for (i, pair) in self.pairs.iter_mut().enumerate() {
            let (event_idx, in_order) =
                (features.contains(Features::EVENT_IDX), features.contains(Features::IN_ORDER));
            pair.rx.set_mergeable(features.contains(Features::MRG_RXBUF));
            pair.rx.ring.set_features(event_idx, in_order);
            pair.tx.ring.set_features(event_idx, in_order);
            let (rx, tx) = if resume {
                (pair.rx.ring.resume(), pair.tx.ring.resume())
            } else if again && self.config.says_start {
                (PACKED_START, PACKED_START)
            } else {
                restart(pair, &mut moved)
            };
            let rx = ring_info(&pair.rx.ring, rx, &pair.rx.kick, &pair.rx.call);
            session.set_ring(2 * i, &rx)?;
            let tx = ring_info(&pair.tx.ring, tx, &pair.tx.kick, &pair.tx.call);
            session.set_ring(2 * i + 1, &tx)?;
        }
        for ring in 0..2 * self.pairs.len() {
            session.enable(ring, true)?;
        }
        for pair in &mut self.pairs {
            // The switch does not see frames that were published before it attached, so it needs a
            // kick.
            pair.rx.kick_now();
            pair.tx.kick_now();
        }
        self.features = features;
        self.session = Some(session);
        Ok(moved)
    }

    /// Enables or disables the switch's log of writes. Makes the switch log, or not log, the guest
    /// memory pages that it writes. Sends the feature bit VHOST_F_LOG_ALL and the log addresses of
    /// the rings.
    pub(super) fn set_logging(&mut self, on: bool) -> Result<(), DriverError> {
        let session = self.session.as_ref().ok_or(DriverError::NotConnected)?;
        let log = if on { Features::LOG_ALL } else { Features::NONE };
        session.set_features(self.features | log)?;
        for (i, pair) in self.pairs.iter_mut().enumerate() {
            let used = |ring: &mut Virtqueue| on.then(|| ring.used_window().guest(0));
            let log = used(&mut pair.rx.ring);
            let rx = ring_info(&pair.rx.ring, 0, &pair.rx.kick, &pair.rx.call);
            session.set_addresses(2 * i, &rx, log)?;
            let log = used(&mut pair.tx.ring);
            let tx = ring_info(&pair.tx.ring, 0, &pair.tx.kick, &pair.tx.call);
            session.set_addresses(2 * i + 1, &tx, log)?;
        }
        Ok(())
    }

    /// Returns the negotiated features. The set of features is empty before the first session.
    #[must_use]
    pub fn features(&self) -> Features {
        self.features
    }

    #[must_use]
    pub fn config(&self) -> &DriverConfig {
        &self.config
    }

    #[must_use]
    pub fn queue_pairs(&self) -> usize {
        self.pairs.len()
    }

    /// Returns the queue pair with the number `index`.
    ///
    /// # Panics
    /// Panics if `index` is not below [`queue_pairs`](Self::queue_pairs).
    pub fn pair(&mut self, index: usize) -> &mut QueuePair {
        &mut self.pairs[index]
    }

    /// Returns the transmit queue of queue pair 0.
    pub fn tx(&mut self) -> &mut TxQueue {
        &mut self.pairs[0].tx
    }

    /// Returns the receive queue of queue pair 0.
    pub fn rx(&mut self) -> &mut RxQueue {
        &mut self.pairs[0].rx
    }

    /// Returns all queue pairs, so that a caller can use each pair in a separate thread.
    pub fn pairs_mut(&mut self) -> &mut [QueuePair] {
        &mut self.pairs
    }

    /// Whether the switch is still connected. This function makes a system call, so do not call it
    /// in every turn of a loop.
    pub fn is_connected(&mut self) -> bool {
        if self.session.as_ref().is_some_and(|s| !s.is_alive()) {
            self.session = None;
        }
        self.session.is_some()
    }

    /// Returns the session's socket, for epoll; `None` if the device is not connected.
    #[must_use]
    pub fn socket(&self) -> Option<&UnixStream> {
        self.session.as_ref().map(Session::stream)
    }

    /// Ends the session with the switch, but keeps memory and rings for
    /// [`reconnect`](Self::reconnect).
    pub fn close(&mut self) {
        self.session = None;
    }

    /// Makes the switch start or stop one ring. Ring 0 is the receive ring of pair 0, ring 1 is the
    /// transmit ring of pair 0, and so on.
    ///
    /// # Errors
    /// Returns an error if the device has no session, or if the switch refuses the request.
    pub fn enable_ring(&mut self, ring: usize, on: bool) -> Result<(), DriverError> {
        self.session.as_mut().ok_or(DriverError::NotConnected)?.enable(ring, on)
    }

    /// Returns the front end of the vhost-user protocol, for messages that a well-behaved driver
    /// would not send.
    ///
    /// # Errors
    /// Returns an error if the device has no session.
    pub fn frontend(&mut self) -> Result<&mut Frontend, DriverError> {
        Ok(self.session.as_mut().ok_or(DriverError::NotConnected)?.frontend())
    }

    /// Returns raw access to one ring, for a hostile guest. Ring 0 is the receive ring of pair 0,
    /// ring 1 is the transmit ring of pair 0, and so on.
    ///
    /// # Panics
    /// Panics if the device has no ring with the number `ring`.
    pub fn raw(&mut self, ring: usize) -> RawQueue<'_> {
        let pair = &mut self.pairs[ring / 2];
        if ring.is_multiple_of(2) {
            RawQueue::new(&mut pair.rx.ring, &pair.rx.kick, &self.memory)
        } else {
            RawQueue::new(&mut pair.tx.ring, &pair.tx.kick, &self.memory)
        }
    }

    /// Returns the additional guest memory; `None` if [`DriverConfig::scratch_bytes`] is 0.
    pub fn scratch(&mut self) -> Option<&mut Window> {
        self.scratch.as_mut()
    }

    #[must_use]
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }
}

/// Ring base of a new packed ring: position 0 with wrap counter 1 (bit 15).
const PACKED_START: u16 = 1 << 15;

/// Drops the received frames that the driver has not read, and restarts both rings of a queue pair
/// where the old device stopped. Returns the ring bases of the receive ring and of the transmit
/// ring.
fn restart(pair: &mut QueuePair, moved: &mut Resubmitted) -> (u16, u16) {
    moved.rx_dropped += pair.rx.drop_waiting();
    pair.tx.reclaim(|_| ());
    let (rx, again) = pair.rx.ring.restart();
    moved.rx_buffers += u64::from(again);
    let (tx, again) = pair.tx.ring.restart();
    moved.tx_frames += u64::from(again);
    (rx, tx)
}

fn ring_info<'a>(
    ring: &Virtqueue,
    base: u16,
    kick: &'a EventFd,
    call: &'a EventFd,
) -> RingInfo<'a> {
    RingInfo { size: ring.size(), base, addresses: ring.addresses(), kick, call }
}

fn event() -> Result<EventFd, DriverError> {
    EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
        .map_err(DriverError::errno("making an event descriptor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_are_named() {
        let refuse = |change: fn(&mut DriverConfig)| {
            let mut config = DriverConfig::new("/nonexistent/lab.sock");
            change(&mut config);
            VirtioNet::prepare(config).unwrap_err().to_string()
        };
        assert_eq!(
            refuse(|c| c.ring_size = 100),
            "ring size 100 is not a power of two between 2 and 1024"
        );
        assert_eq!(refuse(|c| c.queue_pairs = 0), "queue pairs is 0, the range is 1..=64");
        assert_eq!(refuse(|c| c.tx_slots = Some(300)), "tx slots is 300, the range is 1..=256");
    }

    #[test]
    fn a_switch_that_is_not_there_is_waited_for_and_named() {
        let mut config = DriverConfig::new("/nonexistent/lab.sock");
        config.wait = Duration::from_millis(30);
        let error = VirtioNet::connect(config).unwrap_err().to_string();
        assert!(error.starts_with("no peer on /nonexistent/lab.sock within "), "{error}");
    }
}
