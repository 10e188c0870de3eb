//! The `fair-share` discipline of an output: tenants by weight, then a tenant's VMs, then frames.
//!
//! **Problem.** An uplink that takes frames as they come gives most to who has most flows. It
//! should give each tenant its part, however many VMs and flows it has and whatever the sizes of
//! its frames, and leave nothing unused. **Source.** FS-VDE §4.1, Fig. 3: a schedule of clients, a
//! scheduler per client, a queue per VM.
//!
//! **Quantities.** The bytes of a frame are those that it takes on the link, with preamble, gap and
//! FCS: where a link is shared, its time is what is due. The caller adds them.
//!
//! **Rule.** A tenant with frames is a client of a [`Discipline`]: [`Vtrr`] while there are no more
//! than [`VTRR_MAX`] tenants, [`Eevdf`] above (and below again from [`VTRR_AGAIN`] on). Within it
//! VMs take turns by DRR (`rounds`, equal or weighted), and a VM's frames go in their
//! order. Who has nothing is in no line, so the others use its part at once (work-conserving).
//!
//! **Bounds.** A VM's queue is bounded in bytes and in time ([`Bound`]); above them
//! [`FairShare::offer`] says [`Offer::Held`], and the frame stays in its VM's ring, which is the
//! back-pressure; or, where a VM is told so, [`Offer::Dropped`], and a frame that has waited too
//! long is dropped when its turn comes, before it is charged to anybody. A queue that is empty
//! takes any frame.
//!
//! **Example** (tests). Weights 5, 3, 1 with three, two, one VMs and seven, four, one flows: 5/9,
//! 3/9, 1/9 of the bytes; without, 7/12, 4/12, 1/12.
//!
//! **Departures.** FS-VDE takes frames to be of one size and runs on a list made once; here
//! accounts are in bytes and no list is made. **Cost.** A frame: one decision of the discipline,
//! one of the ring, one place of the pool. Nothing is allocated after construction; a tenant or VM
//! that comes or goes touches its own tenant.

pub(crate) mod queue;
mod rounds;

use penstock_units::{Nanos, Weight};

use crate::discipline::Discipline;
use crate::eevdf::Eevdf;
use crate::vtrr::{self, Vtrr};
use queue::{Pool, Queue};
use rounds::{Place, Places, Ring};

/// Most tenants that VTRR divides among.
pub const VTRR_MAX: usize = vtrr::CLIENTS_MAX;
/// As few must they be again before it does so again.
pub const VTRR_AGAIN: usize = 24;

/// How much there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Tenants' slots.
    pub tenants: usize,
    /// VMs' slots.
    pub vms: usize,
    /// Frames that wait, of all VMs together.
    pub frames: u32,
}

/// What becomes of a frame for which there is no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Excess {
    /// It stays where it is: in its VM's ring.
    #[default]
    Hold,
    /// It is dropped.
    Drop,
}

/// How much of a VM may wait, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Bytes.
    pub bytes: u64,
    /// Time that a frame waits: with [`Excess::Hold`] none is taken while the oldest has waited so
    /// long, with [`Excess::Drop`] the oldest is dropped.
    pub wait: Nanos,
    /// What becomes of what is above it.
    pub excess: Excess,
}

impl Default for Bound {
    /// 256 KiB, 10 ms, held: two large segments under way and two more.
    fn default() -> Self {
        Self { bytes: 256 * 1024, wait: Nanos::from_millis(10), excess: Excess::Hold }
    }
}

/// Why there is no room for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// [`Bound::bytes`] wait.
    Bytes,
    /// The oldest has waited for [`Bound::wait`].
    Wait,
    /// [`Capacity::frames`] wait, of all VMs together.
    Frames,
    /// There is no such VM.
    Nobody,
}

/// What became of an offered frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// It waits.
    Queued,
    /// It was not taken.
    Held(Full),
    /// It was not taken and is lost.
    Dropped(Full),
}

/// A frame whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure<T> {
    /// What was offered.
    pub item: T,
    /// Its VM's slot.
    pub vm: usize,
    /// Its length.
    pub bytes: u32,
    /// How long it waited.
    pub waited: Nanos,
}

/// What a VM sent, has waiting, and lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Bytes that departed.
    pub sent_bytes: u64,
    /// Frames that departed.
    pub sent_frames: u64,
    /// Bytes that wait.
    pub queued_bytes: u64,
    /// Frames that wait.
    pub queued_frames: u32,
    /// Offers that were held.
    pub held: u64,
    /// Frames dropped because there was no room.
    pub dropped_full: u64,
    /// Frames dropped because they had waited too long.
    pub dropped_late: u64,
}

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Tenant {
    there: bool,
    weight: Weight,
    ring: Ring,
    /// The VM whose frame is the tenant's next; without meaning while its ring is empty.
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

/// See the module's text. `T` is what the caller knows a frame by.
#[derive(Clone, Debug)]
pub struct FairShare<T> {
    tenants: Box<[Tenant]>,
    vms: Box<[Vm]>,
    pool: Pool<T>,
    vtrr: Vtrr,
    eevdf: Eevdf,
    /// Tenants there.
    members: usize,
    /// Whether [`Eevdf`] divides.
    many: bool,
    frames: u32,
}

#[expect(clippy::cast_possible_truncation, reason = "slots are below 2^32")]
const fn narrow(slot: usize) -> u32 {
    slot as u32
}

impl<T: Copy + Default> FairShare<T> {
    /// Nobody there yet.
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

    /// The name of what divides among the tenants now.
    #[must_use]
    pub const fn discipline_name(&self) -> &'static str {
        if self.many { "eevdf" } else { "vtrr" }
    }

    /// Frames that wait, of all VMs.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.frames
    }

    /// Whether no frame waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// Adds a tenant, or gives the one that is there another weight. Whether there is such a slot.
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

    /// Takes a tenant out with its VMs; `lost` gets the frames that waited.
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

    /// The other discipline, with those tenants that the present one has.
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

    /// Adds a VM to a tenant that is there, or changes its weight and bound if it is this tenant's.
    /// Whether it could be done.
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

    /// The quanta of a tenant's VMs.
    fn weigh(&mut self, tenant: usize) {
        let of = |vm: &Vm| vm.tenant == narrow(tenant);
        let heaviest = self.vms.iter().filter(|vm| of(vm)).map(|vm| vm.place.weight).max();
        let heaviest = heaviest.unwrap_or(Weight::ONE);
        self.vms.iter_mut().filter(|vm| of(vm)).for_each(|vm| vm.place.weigh(heaviest));
    }

    /// Takes a VM out; `lost` gets its frames that waited, in their order.
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

    /// A VM's queue has become empty.
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

    /// Whose frame is a tenant's next, by its ring; its length, 0 if there is none.
    fn choose(&mut self, tenant: usize) -> u32 {
        let of = &mut self.tenants[tenant];
        let Some(vm) = of.ring.pick(&mut Slots(&mut self.vms)) else { return 0 };
        of.chosen = vm;
        self.head(tenant)
    }

    /// The length of a tenant's next frame.
    fn head(&self, tenant: usize) -> u32 {
        let vm = self.vms.get(self.tenants[tenant].chosen as usize);
        vm.and_then(|vm| self.pool.head(&vm.queue)).map_or(0, |frame| frame.bytes)
    }

    /// A tenant has frames, or another is its next.
    fn announce(&mut self, tenant: usize) {
        let head = self.head(tenant);
        self.discipline().backlogged(tenant, head);
    }

    /// Whether a frame of so many bytes of this VM would be taken now.
    ///
    /// # Errors
    /// Why not.
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
        // Those that are dropped when they are late make room by that.
        if vm.bound.excess == Excess::Hold && now.saturating_sub(head.since) >= vm.bound.wait {
            return Err(Full::Wait);
        }
        Ok(())
    }

    /// A VM's frame comes; what is not [`Offer::Queued`] stays with the caller.
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

    /// The frame that goes next; `None` when none waits. `lost` gets those that have waited too
    /// long and are dropped on the way.
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

    /// A VM's frame has gone, and is charged to its tenant.
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

    /// Since when a VM's first frame waits; `None` where none does.
    #[must_use]
    pub fn oldest(&self, vm: usize) -> Option<Nanos> {
        let vm = self.vms.get(vm).filter(|vm| vm.tenant != NONE)?;
        self.pool.head(&vm.queue).map(|frame| frame.since)
    }

    /// What a VM sent, has waiting, and lost; `None` where there is none.
    #[must_use]
    pub fn account(&self, vm: usize) -> Option<Account> {
        let vm = self.vms.get(vm).filter(|vm| vm.tenant != NONE)?;
        let (queued_bytes, queued_frames) = (vm.queue.bytes, vm.queue.frames);
        Some(Account { queued_bytes, queued_frames, ..vm.account })
    }
}

#[cfg(test)]
mod tests;
