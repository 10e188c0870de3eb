//! One vhost-user session, which turns the requests of the protocol into rings in the worker.
//!
//! The session checks every value of a request before use, because the `vhost` crate passes queue
//! indices, ring sizes and feature bits unchecked (datapath rule 35). If a request cannot be
//! applied to a running ring, the session takes the ring out of the worker to change it.

mod ending;
mod keeping;
mod running;

use core::cell::Cell;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};

use nix::sys::eventfd::EventFd;
use penstock_units::{PortId, QueueId};
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, Result, VhostUserBackendReqHandlerMut};

use super::halt::{Halt, Halted};
use super::queue::{Side, SwapRing};
use super::virtqueue::Virtqueue;
use super::{SharedState, VhostUserConfig, lock, throttle};
use crate::offload::{OffloadCaps, VNET_HDR_LEN};
use crate::port::ControlMessage;
use crate::port::dirty_log::DirtyLog;
use crate::port::guest_memory::{GuestMemory, REGIONS_MAX, RegionSpec};
use crate::port::inflight::InflightRegion;
use crate::port::peer_memory::MemoryAccount;
use crate::port::split_ring::{RING_SIZE_MAX, RingAddresses, RingSpec};
use crate::port::{QueueOwners, Unreachable};
pub(super) use ending::SessionError;
use keeping::SharedFiles;

const F_CSUM: u64 = 1 << 0;
const F_GUEST_CSUM: u64 = 1 << 1;
const F_GUEST_TSO4: u64 = 1 << 7;
const F_GUEST_TSO6: u64 = 1 << 8;
const F_HOST_TSO4: u64 = 1 << 11;
const F_HOST_TSO6: u64 = 1 << 12;
const F_MRG_RXBUF: u64 = 1 << 15;
const F_STATUS: u64 = 1 << 16;
const F_CTRL_VQ: u64 = 1 << 17;
const F_CTRL_RX: u64 = 1 << 18;
const F_GUEST_ANNOUNCE: u64 = 1 << 21;
const F_MQ: u64 = 1 << 22;
const F_LOG_ALL: u64 = 1 << 26;
const F_ANY_LAYOUT: u64 = 1 << 27;
const F_INDIRECT_DESC: u64 = 1 << 28;
const F_EVENT_IDX: u64 = 1 << 29;
const F_PROTOCOL_FEATURES: u64 = 1 << 30;
const F_VERSION_1: u64 = 1 << 32;
const F_RING_PACKED: u64 = 1 << 34;
const F_IN_ORDER: u64 = 1 << 35;
const F_GUEST_USO4: u64 = 1 << 54;
const F_GUEST_USO6: u64 = 1 << 55;
const F_HOST_USO: u64 = 1 << 56;

const NAMES: &[(u64, &str)] = &[
    (F_CSUM, "csum"),
    (F_GUEST_CSUM, "guest-csum"),
    (F_GUEST_TSO4, "guest-tso4"),
    (F_GUEST_TSO6, "guest-tso6"),
    (F_HOST_TSO4, "host-tso4"),
    (F_HOST_TSO6, "host-tso6"),
    (F_GUEST_USO4, "guest-uso4"),
    (F_GUEST_USO6, "guest-uso6"),
    (F_HOST_USO, "host-uso"),
    (F_MRG_RXBUF, "mrg-rxbuf"),
    (F_MQ, "mq"),
    (F_INDIRECT_DESC, "indirect-desc"),
    (F_EVENT_IDX, "event-idx"),
    (F_VERSION_1, "version-1"),
    (F_RING_PACKED, "packed"),
    (F_IN_ORDER, "in-order"),
];

/// Names of the negotiated features that matter to operators.
pub(super) fn feature_names(features: u64) -> Vec<&'static str> {
    NAMES.iter().filter(|(bit, _)| features & bit != 0).map(|(_, name)| *name).collect()
}

/// Virtio feature bits that a port with this configuration offers to a driver.
fn offered(config: &VhostUserConfig) -> u64 {
    let mut features = F_MRG_RXBUF
        | F_STATUS
        | F_CTRL_VQ
        | F_CTRL_RX
        | F_GUEST_ANNOUNCE
        | F_LOG_ALL
        | F_ANY_LAYOUT
        | F_INDIRECT_DESC
        | F_EVENT_IDX
        | F_PROTOCOL_FEATURES
        | F_VERSION_1
        | F_RING_PACKED
        | F_IN_ORDER;
    if config.queue_pairs > 1 {
        features |= F_MQ;
    }
    let o = config.offloads;
    for (wanted, bits) in [
        (o.csum, F_CSUM | F_GUEST_CSUM),
        (o.csum && o.tso4, F_HOST_TSO4 | F_GUEST_TSO4),
        (o.csum && o.tso6, F_HOST_TSO6 | F_GUEST_TSO6),
        (o.csum && o.uso, F_HOST_USO | F_GUEST_USO4 | F_GUEST_USO6),
    ] {
        if wanted {
            features |= bits;
        }
    }
    features
}

/// State of a ring according to the vhost-user protocol.
#[derive(Debug, Default)]
struct Ring {
    size: u32,
    at: RingAddresses,
    /// Guest address of the used ring for the dirty log. `None` if writes to the used ring are not
    /// logged.
    log_used: Option<u64>,
    /// Whether the front end passed an inflight region, and the ring has not started since.
    recover: bool,
    base: u32,
    /// True if `base` is the position at which the worker stopped using the ring. If `exact` is
    /// false, `base` is the ring position that the front end gave.
    exact: bool,
    addressed: bool,
    kick: Option<File>,
    call: Option<File>,
    kicked: bool,
    enabled: bool,
    running: bool,
}

/// State of a vhost-user session between requests.
pub(super) struct Session {
    name: String,
    rings_owner: Box<dyn RingsOwner>,
    shared: SharedState,
    /// State that says whether and why the port is stopped. The switch also signals `Halt::alarm`
    /// if the driver has shortened a mapped file.
    halt: Arc<Halt>,
    /// Reason why the worker stopped the port.
    halted: Cell<Option<Halted>>,
    offered: u64,
    features: u64,
    /// Whether the driver has read the offered features.
    has_offered: bool,
    /// Whether at least one ring of this session has run.
    has_run: bool,
    protocol: u64,
    queue_pairs: u16,
    rings: Vec<Ring>,
    /// Account of the bytes of the driver's memory that the port has mapped.
    account: MemoryAccount,
    memory: Option<Arc<GuestMemory>>,
    /// Memory regions that the driver removed one by one: guest address, driver's address, length
    /// in bytes.
    removed: Vec<(u64, u64, u64)>,
    log: Option<Arc<DirtyLog>>,
    inflight: Option<Arc<InflightRegion>>,
    /// Files of the dirty log and of the inflight region, for a process that continues the session.
    shared_files: SharedFiles,
    /// Number of units of the port's [`throttle`] that the session spent since the last call of
    /// [`Self::take_spent`].
    spent: Cell<u64>,
}

/// Owner of the rings of a port's session: the workers, or a caller that steps the port.
pub(super) trait RingsOwner: Send {
    /// Passes a message to the owner of a queue pair, which executes the message. Returns the
    /// message, which then contains the ring's previous value.
    fn exchange(&self, queue: QueueId, message: ControlMessage) -> ExchangeResult;

    /// Lets the owner of a resting queue pair poll the queue pair again.
    fn ring_bell(&self, queue: QueueId);
}

pub(super) type ExchangeResult = core::result::Result<ControlMessage, Unreachable>;

impl RingsOwner for (PortId, Arc<dyn QueueOwners>) {
    fn exchange(&self, queue: QueueId, message: ControlMessage) -> ExchangeResult {
        self.1.exchange(self.0, queue, message)
    }

    fn ring_bell(&self, queue: QueueId) {
        self.1.ring_bell(self.0, queue);
    }
}

fn refuse(what: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::ReqHandlerError(std::io::Error::other(what))
}

/// Whether a file descriptor is an eventfd, so that the worker may write to the descriptor. A write
/// to a pipe, or to a file of a file system that the driver itself serves, could block forever.
fn is_eventfd(file: &File) -> bool {
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
        .is_ok_and(|target| target.as_os_str() == "anon_inode:[eventfd]")
}

impl Session {
    pub(super) fn new(
        config: &VhostUserConfig,
        rings_owner: Box<dyn RingsOwner>,
        shared: SharedState,
        halt: Arc<Halt>,
    ) -> Self {
        let rings = 2 * usize::from(config.queue_pairs);
        Self {
            name: config.name.clone(),
            rings_owner,
            shared,
            halt,
            halted: Cell::new(None),
            offered: offered(config),
            features: 0,
            has_offered: false,
            has_run: false,
            protocol: 0,
            queue_pairs: config.queue_pairs,
            rings: std::iter::repeat_with(Ring::default).take(rings).collect(),
            account: MemoryAccount::default(),
            memory: None,
            removed: Vec::new(),
            log: None,
            inflight: None,
            shared_files: SharedFiles::default(),
            spent: Cell::new(0),
        }
    }

    /// Returns the number of [`throttle`] units that this session spent since the last call of
    /// `take_spent`.
    pub(super) fn take_spent(&self) -> u64 {
        self.spent.take()
    }

    fn spend(&self, units: u64) {
        self.spent.set(self.spent.get().saturating_add(units));
    }

    /// Takes every ring out of the worker, so that no thread accesses the guest's memory any more.
    pub(super) fn end(&mut self) {
        for index in 0..self.rings.len() {
            self.halt(index);
        }
        self.memory = None;
        self.removed.clear();
        self.log = None;
        self.inflight = None;
        self.shared_files = SharedFiles::default();
    }

    /// Makes reads and writes of the driver's event descriptor non-blocking. A full or empty
    /// eventfd must not block the worker or the session's thread.
    fn event(fd: File, what: &'static str) -> Result<File> {
        use nix::fcntl::{FcntlArg, OFlag, fcntl};
        if !is_eventfd(&fd) {
            return Err(refuse(SessionError::NotEvent(what)));
        }
        fcntl(&fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(refuse)?;
        Ok(fd)
    }

    fn ring(&mut self, index: u32) -> Result<(usize, &mut Ring)> {
        let at = usize::try_from(index).unwrap_or(usize::MAX);
        match self.rings.get_mut(at) {
            Some(ring) => Ok((at, ring)),
            None => Err(refuse(SessionError::Ring { index, pairs: self.queue_pairs })),
        }
    }

    /// The event descriptors with which the driver kicks for its transmit rings, and the queue
    /// pairs of these rings.
    pub(super) fn kicks(&self) -> impl Iterator<Item = (QueueId, &File)> {
        self.rings.iter().enumerate().filter_map(|(index, ring)| {
            let queue = QueueId(u16::try_from(index / 2).ok()?);
            // The guest's receive rings have even numbers. The worker reads these rings when it has
            // a frame for them, so it needs no kick.
            let kick = ring.kick.as_ref().filter(|_| ring.running && index % 2 == 1)?;
            Some((queue, kick))
        })
    }

    /// Eventfd that is readable if the driver has shortened a mapped file, or if the worker stopped
    /// the port.
    pub(super) fn alarm(&self) -> &EventFd {
        &self.halt.alarm
    }

    /// Lets the worker poll a resting queue pair again.
    pub(super) fn ring_bell(&self, queue: QueueId) {
        self.rings_owner.ring_bell(queue);
    }

    /// Bytes of the driver's memory that the port has mapped now.
    pub(super) fn mapped(&self) -> u64 {
        self.account.mapped()
    }

    /// Whether at least one ring of this session has run.
    pub(super) const fn has_run(&self) -> bool {
        self.has_run
    }

    /// Whether the driver has acknowledged the vhost-user protocol features.
    pub(super) fn knows_protocol_features(&self) -> bool {
        self.has(F_PROTOCOL_FEATURES)
    }

    fn has(&self, feature: u64) -> bool {
        self.features & feature != 0
    }

    /// Offloads that the guest accepts in received frames.
    fn caps(&self) -> OffloadCaps {
        OffloadCaps {
            csum: self.has(F_GUEST_CSUM),
            tso4: self.has(F_GUEST_TSO4),
            tso6: self.has(F_GUEST_TSO6),
            uso: self.has(F_GUEST_USO4) && self.has(F_GUEST_USO6),
        }
    }

    /// Installs `ring` as ring number `index` in the worker. If `ring` is `None`, the function
    /// removes ring number `index`. Returns the ring that had the number `index` before.
    fn swap(&self, index: usize, ring: Option<Box<Virtqueue>>) -> Option<Box<Virtqueue>> {
        let side = if index.is_multiple_of(2) { Side::Tx } else { Side::Rx };
        let queue = QueueId(u16::try_from(index / 2).unwrap_or(u16::MAX));
        self.spend(throttle::EXCHANGE);
        let kicks = self.rings[index].kick.is_some();
        let message = Box::new(SwapRing { side, ring, caps: self.caps(), kicks });
        match self.rings_owner.exchange(queue, message) {
            Ok(answer) => answer.downcast::<SwapRing>().ok().and_then(|swap| swap.ring),
            Err(error) => {
                // The port is being deleted, so its queues and rings have left the worker.
                tracing::debug!(port = %self.name, %error, "ring not exchanged");
                None
            }
        }
    }

    /// Takes ring number `index` out of the worker and records the ring's position.
    fn halt(&mut self, index: usize) {
        if !std::mem::take(&mut self.rings[index].running) {
            return;
        }
        if let Some(mut ring) = self.swap(index, None) {
            ring.publish();
            ring.notify();
            if ring.is_stopped() {
                let what = "the switch had stopped the ring: the driver broke the virtio rules";
                tracing::warn!(port = %self.name, ring = index, "{what}");
            }
            self.rings[index].base = ring.base();
            self.rings[index].exact = true;
        }
        self.report();
    }

    /// Puts ring number `index` into the worker if the ring's settings are complete.
    fn start(&mut self, index: usize) -> Result<()> {
        let event_idx = self.has(F_EVENT_IDX);
        let mergeable = self.has(F_MRG_RXBUF);
        let in_order = self.has(F_IN_ORDER);
        let packed = self.has(F_RING_PACKED);
        let modern = self.has(F_VERSION_1) || mergeable;
        let ring = &mut self.rings[index];
        let ready = ring.enabled && ring.kicked && ring.addressed && ring.size > 0;
        let (Some(memory), true, false) = (&self.memory, ready, ring.running) else {
            return Ok(());
        };
        let spec = RingSpec {
            size: ring.size,
            at: ring.at,
            base: ring.base,
            event_idx,
            mergeable,
            in_order,
            header: if modern { VNET_HDR_LEN } else { 10 },
            call: ring.call.as_ref().and_then(|call| call.try_clone().ok()),
        };
        let mut virtqueue = Virtqueue::new(packed, spec, Arc::clone(memory))
            .map_err(|source| refuse(SessionError::Start { ring: index, source }))?;
        self.place(index, &mut virtqueue)?;
        self.rings[index].running = true;
        self.has_run = true;
        self.swap(index, Some(Box::new(virtqueue)));
        self.report();
        Ok(())
    }

    /// Takes a ring out of the worker, changes the ring's settings, and puts the ring back.
    fn change(&mut self, index: u32, change: impl FnOnce(&mut Ring)) -> Result<()> {
        let (index, _) = self.ring(index)?;
        self.halt(index);
        change(&mut self.rings[index]);
        self.start(index)
    }

    fn report(&self) {
        let mut shared = lock(&self.shared);
        shared.features = self.features;
        shared.rings = self.rings.iter().map(|r| (r.size, r.running)).collect();
        if self.rings.iter().any(|ring| ring.running) {
            shared.error = None;
        }
    }
}

impl VhostUserBackendReqHandlerMut for Session {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.end();
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        self.end();
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        self.has_offered = true;
        Ok(self.offered)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        let foreign = features & !self.offered;
        if foreign != 0 {
            return Err(refuse(SessionError::NotOffered(foreign)));
        }
        if self.features != 0 && (features ^ self.features) & !F_LOG_ALL == 0 {
            // A migration begins or is cancelled, or QEMU repeats its features for another queue
            // pair. The rings stay in the worker, so that frames keep flowing.
            self.features = features;
            self.set_logs();
            return Ok(());
        }
        let running: Vec<usize> =
            (0..self.rings.len()).filter(|&i| self.rings[i].running).collect();
        running.iter().for_each(|&index| self.halt(index));
        self.features = features;
        if !self.has(F_PROTOCOL_FEATURES) {
            // Without protocol features, rings start enabled (vhost-user specification).
            self.rings.iter_mut().for_each(|ring| ring.enabled = true);
        }
        self.report();
        running.into_iter().try_for_each(|index| self.start(index))
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<Vec<vhost::VhostUserMemoryRegionBase>>> {
        self.spend(throttle::MAPPING);
        if regions.len() != files.len() {
            let (regions, files) = (regions.len(), files.len());
            return Err(refuse(SessionError::Descriptors { regions, files }));
        }
        let specs = regions
            .iter()
            .zip(files)
            .map(|(r, file)| RegionSpec {
                guest: r.guest_phys_addr,
                user: r.user_addr,
                len: r.memory_size,
                offset: r.mmap_offset,
                file,
            })
            .collect();
        self.remap(GuestMemory::map(&self.account, specs).map_err(refuse)?)?;
        self.removed.clear();
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        // Further conditions on a split ring's size are checked when it starts, because the
        // features may come later.
        if !(1..=RING_SIZE_MAX).contains(&num) {
            return Err(refuse(SessionError::RingSize { index, size: num }));
        }
        self.change(index, |ring| ring.size = num)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        log: u64,
    ) -> Result<()> {
        let at = RingAddresses { descriptors, available, used };
        let log_used = flags.contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG).then_some(log);
        let (i, ring) = self.ring(index)?;
        if ring.running && ring.at == at {
            ring.log_used = log_used;
            self.set_log(i);
            return Ok(());
        }
        self.change(index, |ring| {
            ring.at = at;
            ring.log_used = log_used;
            ring.addressed = true;
        })
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        // Packed rings use all 32 bits.
        self.change(index, |ring| (ring.base, ring.exact) = (base, false))
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let (at, _) = self.ring(index)?;
        self.halt(at);
        let ring = &mut self.rings[at];
        // GET_VRING_BASE stops the ring until the next kick descriptor (vhost-user specification).
        ring.kicked = false;
        ring.kick = None;
        Ok(VhostUserVringState::new(index, ring.base))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let fd = fd.map(|fd| Self::event(fd, "kick")).transpose()?;
        let queue = QueueId(u16::from(index) / 2);
        let (_, ring) = self.ring(u32::from(index))?;
        if ring.running {
            ring.kick = fd;
            // The old descriptor may have a kick that was not read yet.
            self.ring_bell(queue);
            return Ok(());
        }
        self.change(u32::from(index), |ring| {
            ring.kick = fd;
            ring.kicked = true;
        })
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let fd = fd.map(|fd| Self::event(fd, "call")).transpose()?;
        let (index, ring) = self.ring(u32::from(index))?;
        ring.call = fd;
        self.set_call(index);
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, _fd: Option<File>) -> Result<()> {
        self.ring(u32::from(index)).map(|_| ())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::LOG_SHMFD
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::RESET_DEVICE)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        self.protocol = features;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(u64::from(self.queue_pairs))
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.change(index, |ring| ring.enabled = enable)
    }

    fn get_config(&mut self, _: u32, _: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        Err(Error::InvalidOperation("no configuration space"))
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        Err(Error::InvalidOperation("no configuration space"))
    }

    fn set_gpu_socket(&mut self, _: vhost::vhost_user::GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("not a GPU"))
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("no shared objects"))
    }

    fn get_inflight_fd(&mut self, want: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        self.spend(throttle::MAPPING);
        let (queues, size) = (want.num_queues, want.queue_size);
        if usize::from(queues) > self.rings.len() || u32::from(size) > RING_SIZE_MAX {
            let rings = self.rings.len();
            return Err(refuse(SessionError::Inflight { queues, size, rings }));
        }
        let (file, len) =
            InflightRegion::make(&self.account, self.layout(), queues, size).map_err(refuse)?;
        Ok((VhostUserInflight::new(len, 0, queues, size), file))
    }

    fn set_inflight_fd(&mut self, region: &VhostUserInflight, file: File) -> Result<()> {
        self.spend(throttle::MAPPING);
        let (offset, len) = (region.mmap_offset, region.mmap_size);
        let (queues, size) = (region.num_queues, region.queue_size);
        let region =
            InflightRegion::map(&self.account, self.layout(), &file, offset, len, (queues, size))
                .map_err(refuse)?;
        region.set_alarm(&self.halt.alarm);
        self.shared_files.inflight = Some((file, offset, len, (queues, size)));
        let running: Vec<usize> =
            (0..self.rings.len()).filter(|&i| self.rings[i].running).collect();
        running.iter().for_each(|&index| self.halt(index));
        self.inflight = Some(Arc::new(region));
        self.rings.iter_mut().for_each(|ring| ring.recover = true);
        running.into_iter().try_for_each(|index| self.start(index))
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(REGIONS_MAX as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<vhost::VhostUserMemoryRegionBase>> {
        self.spend(throttle::MAPPING);
        let spec = RegionSpec {
            guest: region.guest_phys_addr,
            user: region.user_addr,
            len: region.memory_size,
            offset: region.mmap_offset,
            file,
        };
        let region = (spec.guest, spec.user, spec.len);
        let new = match &self.memory {
            // QEMU announces each region once for every queue pair. The new descriptor is closed.
            Some(memory) if memory.has(&spec).map_err(refuse)? => return Ok(None),
            Some(memory) => memory.with(&self.account, spec),
            None => GuestMemory::map(&self.account, vec![spec]),
        };
        self.remap(new.map_err(refuse)?)?;
        self.removed.retain(|removed| *removed != region);
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        self.spend(throttle::MAPPING);
        let (guest, user, len) = (region.guest_phys_addr, region.user_addr, region.memory_size);
        let rest = self.memory.as_ref().and_then(|memory| memory.without(guest, user, len));
        let Some(rest) = rest else {
            if self.removed.contains(&(guest, user, len)) {
                // QEMU sent the same request for another queue pair before.
                return Ok(());
            }
            return Err(refuse(SessionError::NoRegion { guest, len }));
        };
        self.remap(rest)?;
        if self.removed.len() == REGIONS_MAX {
            self.removed.remove(0);
        }
        self.removed.push((guest, user, len));
        Ok(())
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        Err(Error::InvalidOperation("the port has no device state to transfer"))
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("the port has no device state to transfer"))
    }

    fn get_shmem_config(&mut self) -> Result<vhost::vhost_user::message::VhostUserShMemConfig> {
        Err(Error::InvalidOperation("no shared memory regions"))
    }

    fn set_log_base(&mut self, region: &VhostUserLog, file: File) -> Result<()> {
        self.spend(throttle::MAPPING);
        let (offset, len) = (region.mmap_offset, region.mmap_size);
        let log = DirtyLog::map(&self.account, &file, offset, len).map_err(refuse)?;
        log.set_alarm(&self.halt.alarm);
        if self.memory.as_ref().is_some_and(|memory| !log.covers(memory.end())) {
            let what = "the dirty log is shorter than the guest's memory; some marks are lost";
            tracing::warn!(port = %self.name, bytes = len, "{what}");
        }
        self.shared_files.log = Some((file, offset, len));
        let before = self.log.replace(Arc::new(log));
        self.set_logs();
        drop(before);
        Ok(())
    }
}

/// Checks at compile time that `Mutex<Session>` is a handler for the `vhost` crate, which calls its
/// handler by shared reference.
const _: fn() = || {
    fn is_handler<T: vhost::vhost_user::VhostUserBackendReqHandler>() {}
    is_handler::<Mutex<Session>>();
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;

    #[test]
    fn the_worker_writes_to_event_counters_only() {
        let event = File::from(OwnedFd::from(EventFd::new().unwrap()));
        assert!(is_eventfd(&event));
        let (_, pipe) = nix::unistd::pipe().unwrap();
        assert!(!is_eventfd(&File::from(pipe)));
        assert!(!is_eventfd(&File::open("/dev/null").unwrap()));
    }
}
