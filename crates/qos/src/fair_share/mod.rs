//! The `fair-share` discipline of an output divides the output by weight among tenants, and each
//! tenant's share among the tenant's VMs.
//!
//! # Problem
//!
//! A first-come, first-served uplink favours the VM with the most flows. Each tenant should get its
//! share, regardless of its number of VMs and flows and of its frame sizes. No capacity should stay
//! unused while frames wait.
//!
//! # Source
//!
//! FS-VDE §4.1, Fig. 3: a schedule of clients, a scheduler per client and a queue per VM.
//!
//! # Approach
//!
//! A tenant with frames is a client of a [`Discipline`]. The discipline is [`Vtrr`] for up to
//! [`VTRR_MAX`] tenants and [`Eevdf`] for more. VTRR returns when the number falls to
//! [`VTRR_AGAIN`] tenants. Within a tenant, VMs take turns by DRR (`rounds`) with equal or
//! different weights. A VM's frames stay in order. Tenants and VMs without frames are in no line,
//! so others use their share at once (work conservation).
//!
//! The length of a frame is its length on the link, including preamble, gap and FCS, because link
//! time is shared. The caller adds these bytes.
//!
//! # Bounds
//!
//! A VM's queue is bounded in bytes and in time ([`Bound`]). If a frame exceeds the bound,
//! [`FairShare::offer`] returns [`Offer::Held`]. The frame stays in its VM's ring, which is the
//! back-pressure. If the VM is configured to drop, `offer` returns [`Offer::Dropped`]. A frame that
//! waited too long is then dropped at its turn and charged to no VM. An empty queue takes any
//! frame.
//!
//! # Example
//!
//! The tests use three tenants with weights 5, 3 and 1. The tenants have three, two and one VMs and
//! seven, four and one flows. They send 5/9, 3/9 and 1/9 of the bytes. Without the discipline they
//! send 7/12, 4/12 and 1/12.
//!
//! # Departures
//!
//! FS-VDE assumes frames of equal size and follows a list that is computed once. Here accounts are
//! in bytes, and no list is computed.
//!
//! # Cost
//!
//! A frame takes one decision of the discipline, one decision of the ring and one entry of the
//! pool. Nothing is allocated after construction. A tenant or VM that joins or leaves affects its
//! own tenant only.

pub(crate) mod queue;
mod rounds;

use penstock_units::{Nanos, Weight};

use crate::discipline::Discipline;
use crate::eevdf::Eevdf;
use crate::vtrr::{self, Vtrr};
use queue::{Pool, Queue};
use rounds::{Place, Places, Ring};

/// Maximum number of tenants that VTRR serves. With more, EEVDF takes over.
pub const VTRR_MAX: usize = vtrr::CLIENTS_MAX;
/// Number of tenants at which VTRR takes over again. The distance from [`VTRR_MAX`] is a
/// hysteresis.
pub const VTRR_AGAIN: usize = 24;

/// Sizes of the tables, which never grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Number of tenant slots.
    pub tenants: usize,
    /// Number of VM slots.
    pub vms: usize,
    /// Number of frames of all VMs together that may wait.
    pub frames: u32,
}

/// What happens to a frame for which there is no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Excess {
    /// The frame stays in its VM's ring.
    #[default]
    Hold,
    /// The frame is dropped.
    Drop,
}

/// Limits of a VM's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Bytes that may wait.
    pub bytes: u64,
    /// Longest wait of a frame. With [`Excess::Hold`], no frame is accepted if the oldest has
    /// waited this long. With [`Excess::Drop`], a frame that waited longer is dropped at its turn.
    pub wait: Nanos,
    /// What happens to frames above the limits.
    pub excess: Excess,
}

impl Default for Bound {
    /// 256 KiB and 10 ms, with [`Excess::Hold`]. This is room for two large segments that are being
    /// sent and two more.
    fn default() -> Self {
        Self { bytes: 256 * 1024, wait: Nanos::from_millis(10), excess: Excess::Hold }
    }
}

/// The limit for which a frame was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The queue would exceed [`Bound::bytes`].
    Bytes,
    /// The oldest frame has waited for [`Bound::wait`].
    Wait,
    /// [`Capacity::frames`] frames of all VMs together are waiting.
    Frames,
    /// The slot has no VM.
    Nobody,
}

/// Result of offering a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// The frame waits in the queue.
    Queued,
    /// The frame was not accepted and stays with the caller.
    Held(Full),
    /// The frame was not accepted and must be dropped.
    Dropped(Full),
}

/// A frame that is sent next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure<T> {
    /// The caller's handle of the frame.
    pub item: T,
    /// Slot of the VM that sent the frame.
    pub vm: usize,
    /// Length of the frame on the link, in bytes.
    pub bytes: u32,
    /// How long the frame waited.
    pub waited: Nanos,
}

/// Counters of a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Bytes of the VM's sent frames.
    pub sent_bytes: u64,
    /// Number of the VM's sent frames.
    pub sent_frames: u64,
    /// Bytes in the queue now.
    pub queued_bytes: u64,
    /// Frames in the queue now.
    pub queued_frames: u32,
    /// Offers refused with [`Offer::Held`].
    pub held: u64,
    /// Frames dropped for lack of room.
    pub dropped_full: u64,
    /// Frames dropped because they waited too long.
    pub dropped_late: u64,
}

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Tenant {
    there: bool,
    weight: Weight,
    ring: Ring,
    /// The VM that sends the tenant's next frame. Undefined while the tenant's ring is empty.
    chosen: u32,
}

#[derive(Clone, Copy, Debug)]
struct Vm {
    tenant: u32,
    bound: Bound,
    queue: Queue,
    place: Place,
    account: Account,
}

impl Places for [Vm] {
    fn place(&mut self, vm: u32) -> &mut Place {
        &mut self[vm as usize].place
    }
}

struct Slots<'a>(&'a mut [Vm]);

impl Places for Slots<'_> {
    fn place(&mut self, vm: u32) -> &mut Place {
        self.0.place(vm)
    }
}

/// The discipline's state. `T` is the caller's handle of a frame.
#[derive(Clone, Debug)]
pub struct FairShare<T> {
    tenants: Box<[Tenant]>,
    vms: Box<[Vm]>,
    pool: Pool<T>,
    vtrr: Vtrr,
    eevdf: Eevdf,
    members: usize,
    /// Whether [`Eevdf`] is in use.
    many: bool,
    frames: u32,
}

#[expect(clippy::cast_possible_truncation, reason = "slots are below 2^32")]
const fn narrow(slot: usize) -> u32 {
    slot as u32
}

impl<T: Copy + Default> FairShare<T> {
    /// An output without tenants.
    #[must_use]
    pub fn new(capacity: Capacity) -> Self {
        let tenant = Tenant { there: false, weight: Weight::ONE, ring: Ring::EMPTY, chosen: NONE };
        let vm = Vm {
            tenant: NONE,
            bound: Bound::default(),
            queue: Queue::EMPTY,
            place: Place::new(Weight::ONE),
            account: Account::default(),
        };
        Self {
            tenants: vec![tenant; capacity.tenants].into_boxed_slice(),
            vms: vec![vm; capacity.vms].into_boxed_slice(),
            pool: Pool::new(capacity.frames),
            vtrr: Vtrr::new(capacity.tenants),
            eevdf: Eevdf::new(capacity.tenants),
            members: 0,
            many: false,
            frames: 0,
        }
    }

    fn discipline(&mut self) -> &mut dyn Discipline {
        if self.many { &mut self.eevdf } else { &mut self.vtrr }
    }

    /// Name of the discipline in use: `vtrr` or `eevdf`.
    #[must_use]
    pub const fn discipline_name(&self) -> &'static str {
        if self.many { "eevdf" } else { "vtrr" }
    }

    /// Number of waiting frames of all VMs.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.frames
    }

    /// Whether no frame waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// Adds a tenant or changes its weight. Returns whether the slot exists.
    pub fn set_tenant(&mut self, slot: usize, weight: Weight) -> bool {
        let Some(tenant) = self.tenants.get_mut(slot) else { return false };
        if !tenant.there {
            *tenant = Tenant { there: true, weight, ring: Ring::EMPTY, chosen: NONE };
            self.members += 1;
            if !self.many && self.members > VTRR_MAX {
                self.change_discipline();
            }
        }
        self.tenants[slot].weight = weight;
        self.discipline().join(slot, weight);
        true
    }

    /// Removes a tenant and its VMs. `lost` gets the slots and handles of their waiting frames.
    pub fn remove_tenant(&mut self, slot: usize, mut lost: impl FnMut(usize, T)) {
        if !self.tenants.get(slot).is_some_and(|tenant| tenant.there) {
            return;
        }
        for vm in 0..self.vms.len() {
            if self.vms[vm].tenant == narrow(slot) {
                self.remove_vm(vm, |item| lost(vm, item));
            }
        }
        self.tenants[slot].there = false;
        self.discipline().leave(slot);
        self.members -= 1;
        if self.many && self.members <= VTRR_AGAIN {
            self.change_discipline();
        }
    }

    /// Switches to the other discipline and registers all tenants there.
    fn change_discipline(&mut self) {
        for slot in 0..self.tenants.len() {
            self.discipline().leave(slot);
        }
        self.many = !self.many;
        for slot in 0..self.tenants.len() {
            let Tenant { there, weight, ring, .. } = self.tenants[slot];
            if there {
                self.discipline().join(slot, weight);
                if !ring.is_empty() {
                    self.announce(slot);
                }
            }
        }
    }

    /// Adds a VM to an existing tenant, or changes its weight and bound. Returns false if a slot
    /// does not exist or the VM belongs to another tenant.
    pub fn set_vm(&mut self, slot: usize, tenant: usize, weight: Weight, bound: Bound) -> bool {
        if !self.tenants.get(tenant).is_some_and(|tenant| tenant.there) {
            return false;
        }
        let Some(vm) = self.vms.get_mut(slot) else { return false };
        if vm.tenant == NONE {
            vm.tenant = narrow(tenant);
            (vm.queue, vm.account) = (Queue::EMPTY, Account::default());
            vm.place = Place::new(weight);
        } else if vm.tenant != narrow(tenant) {
            return false;
        }
        (vm.place.weight, vm.bound) = (weight, bound);
        self.weigh(tenant);
        true
    }

    /// Recomputes the quanta of a tenant's VMs.
    fn weigh(&mut self, tenant: usize) {
        let of = |vm: &Vm| vm.tenant == narrow(tenant);
        let heaviest = self.vms.iter().filter(|vm| of(vm)).map(|vm| vm.place.weight).max();
        let heaviest = heaviest.unwrap_or(Weight::ONE);
        self.vms.iter_mut().filter(|vm| of(vm)).for_each(|vm| vm.place.weigh(heaviest));
    }

    /// Removes a VM. `lost` gets its waiting frames in order.
    pub fn remove_vm(&mut self, slot: usize, mut lost: impl FnMut(T)) {
        let Some(vm) = self.vms.get(slot) else { return };
        let tenant = vm.tenant as usize;
        if vm.tenant == NONE {
            return;
        }
        if !vm.queue.is_empty() {
            while let Some(frame) = self.pool.pop(&mut self.vms[slot].queue) {
                self.frames -= 1;
                lost(frame.item);
            }
            self.silence(tenant, slot);
        }
        self.vms[slot].tenant = NONE;
        self.weigh(tenant);
    }

    /// Updates the ring and the discipline after a VM's queue has run empty.
    fn silence(&mut self, tenant: usize, vm: usize) {
        let ring = &mut self.tenants[tenant].ring;
        ring.go(&mut Slots(&mut self.vms), narrow(vm));
        if ring.is_empty() {
            self.discipline().drained(tenant);
        } else if self.tenants[tenant].chosen == narrow(vm) {
            self.choose(tenant);
            self.announce(tenant);
        }
    }

    /// Chooses the VM that sends the tenant's next frame. Returns the frame's length. 0 if no frame
    /// waits.
    fn choose(&mut self, tenant: usize) -> u32 {
        let of = &mut self.tenants[tenant];
        let Some(vm) = of.ring.pick(&mut Slots(&mut self.vms)) else { return 0 };
        of.chosen = vm;
        self.head(tenant)
    }

    /// Length of a tenant's next frame. 0 if no frame waits.
    fn head(&self, tenant: usize) -> u32 {
        let vm = self.vms.get(self.tenants[tenant].chosen as usize);
        vm.and_then(|vm| self.pool.head(&vm.queue)).map_or(0, |frame| frame.bytes)
    }

    /// Reports to the discipline that a tenant has frames or that its next frame changed.
    fn announce(&mut self, tenant: usize) {
        let head = self.head(tenant);
        self.discipline().backlogged(tenant, head);
    }

    /// Whether a frame of this length would be accepted now.
    ///
    /// # Errors
    /// Returns the limit that the frame would exceed.
    pub fn room(&self, vm: usize, bytes: u32, now: Nanos) -> Result<(), Full> {
        let Some(vm) = self.vms.get(vm).filter(|vm| vm.tenant != NONE) else {
            return Err(Full::Nobody);
        };
        if self.pool.is_full() {
            return Err(Full::Frames);
        }
        let Some(head) = self.pool.head(&vm.queue) else { return Ok(()) };
        if vm.queue.bytes + u64::from(bytes) > vm.bound.bytes {
            return Err(Full::Bytes);
        }
        // With [`Excess::Drop`], late frames are dropped later and make room.
        if vm.bound.excess == Excess::Hold && now.saturating_sub(head.since) >= vm.bound.wait {
            return Err(Full::Wait);
        }
        Ok(())
    }

    /// Offers a frame of a VM. Unless the result is [`Offer::Queued`], the frame stays with the
    /// caller.
    pub fn offer(&mut self, vm: usize, item: T, bytes: u32, now: Nanos) -> Offer {
        if let Err(full) = self.room(vm, bytes, now) {
            let Some(vm) = self.vms.get_mut(vm) else { return Offer::Dropped(full) };
            return match (vm.bound.excess, full) {
                (_, Full::Nobody) => Offer::Dropped(full),
                (Excess::Hold, _) => {
                    vm.account.held += 1;
                    Offer::Held(full)
                }
                (Excess::Drop, _) => {
                    vm.account.dropped_full += 1;
                    Offer::Dropped(full)
                }
            };
        }
        let of = &mut self.vms[vm];
        let (tenant, first) = (of.tenant as usize, of.queue.is_empty());
        self.pool.push(&mut of.queue, item, bytes, now);
        self.frames += 1;
        if first {
            let ring = &mut self.tenants[tenant].ring;
            let silent = ring.is_empty();
            ring.enter(&mut Slots(&mut self.vms), narrow(vm));
            if silent {
                self.choose(tenant);
                self.announce(tenant);
            }
        }
        Offer::Queued
    }

    /// Removes the frame that is sent next. `None` if no frame waits. `lost` gets the frames that
    /// waited too long and were dropped before it.
    pub fn next(&mut self, now: Nanos, mut lost: impl FnMut(usize, T)) -> Option<Departure<T>> {
        loop {
            let tenant = if self.many { self.eevdf.pick() } else { self.vtrr.pick() }?;
            let slot = self.tenants[tenant].chosen as usize;
            let vm = self.vms.get_mut(slot)?;
            let frame = self.pool.pop(&mut vm.queue)?;
            self.frames -= 1;
            let waited = now.saturating_sub(frame.since);
            if vm.bound.excess == Excess::Drop && waited > vm.bound.wait {
                vm.account.dropped_late += 1;
                if vm.queue.is_empty() {
                    self.silence(tenant, slot);
                } else {
                    self.announce(tenant);
                }
                lost(slot, frame.item);
                continue;
            }
            vm.place.charge(frame.bytes);
            vm.account.sent_bytes += u64::from(frame.bytes);
            vm.account.sent_frames += 1;
            self.settle(tenant, slot, frame.bytes);
            return Some(Departure { item: frame.item, vm: slot, bytes: frame.bytes, waited });
        }
    }

    /// Charges a frame that was sent to its tenant.
    fn settle(&mut self, tenant: usize, vm: usize, bytes: u32) {
        if self.vms[vm].queue.is_empty() {
            let ring = &mut self.tenants[tenant].ring;
            ring.go(&mut Slots(&mut self.vms), narrow(vm));
        }
        let next = self.choose(tenant);
        self.discipline().charge(tenant, bytes, next);
        if self.tenants[tenant].ring.is_empty() {
            self.discipline().drained(tenant);
        }
    }

    /// Time at which a VM's first frame was queued. `None` if no frame waits.
    #[must_use]
    pub fn oldest(&self, vm: usize) -> Option<Nanos> {
        let vm = self.vms.get(vm).filter(|vm| vm.tenant != NONE)?;
        self.pool.head(&vm.queue).map(|frame| frame.since)
    }

    /// A VM's counters; `None` if the slot has no VM.
    #[must_use]
    pub fn account(&self, vm: usize) -> Option<Account> {
        let vm = self.vms.get(vm).filter(|vm| vm.tenant != NONE)?;
        let (queued_bytes, queued_frames) = (vm.queue.bytes, vm.queue.frames);
        Some(Account { queued_bytes, queued_frames, ..vm.account })
    }
}

#[cfg(test)]
mod tests;
