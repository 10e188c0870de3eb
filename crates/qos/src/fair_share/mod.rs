//! The `fair-share` discipline divides an output by weight among tenants, and each tenant's share
//! among its VMs.
//!
//! # Problem
//!
//! A first-come, first-served uplink favours the VM with the most flows. Each tenant should get its
//! share of the output, regardless of the number of its VMs and flows, and of its frame sizes. No
//! capacity of the output should stay unused while frames wait.
//!
//! # Source
//!
//! The source is FS-VDE §4.1, Fig. 3, which describes a schedule of clients, a scheduler for each
//! client, and a queue for each VM.
//!
//! # Approach
//!
//! A tenant with frames is a client of a [`Discipline`]. The discipline among tenants is [`Vtrr`]
//! for up to [`VTRR_MAX`] tenants, and [`Eevdf`] for more tenants. When the number of tenants falls
//! to [`VTRR_AGAIN`], VTRR replaces EEVDF again. Within a tenant, VMs take turns by weighted DRR
//! (`rounds`). The frames of a VM stay in order. With flow queues ([`FairShare::with_flows`]), only
//! the frames of each flow stay in order. Tenants and VMs without frames are not scheduled, so
//! tenants and VMs with frames use the whole output (work conservation).
//!
//! # Bursts
//!
//! One decision suffices for a *burst*: successive frames of one VM. A burst lasts while the
//! discipline would pick its tenant again, the VM's account is above 0, and the VM has frames. The
//! tenant and the VM are charged once, for all frames of the burst ([`FairShare::settle`]). If
//! another VM gets frames, or if a tenant or VM changes, the burst ends first, so that each
//! decision sees all charges. The order of departures is the same as with one decision for each
//! frame. With EEVDF, the orders differ by rounding.
//!
//! While only one tenant has frames, its bursts need no decision among tenants for up to
//! [`ALONE_BYTES`](crate::discipline::ALONE_BYTES) bytes. While only one VM of a tenant has frames,
//! its account does not limit its bursts.
//!
//! # Lengths
//!
//! The length of a frame is its length on the link, including preamble, gap and FCS, because the
//! discipline divides time on the link. The caller adds preamble, gap and FCS to the length of each
//! frame.
//!
//! # Bounds
//!
//! A VM's queue is bounded in bytes and in time ([`Bound`]). With [`Excess::Hold`], a frame that
//! exceeds the bound of its VM's queue stays in the VM's ring ([`Offer::Held`]). If a frame stays
//! in the ring, the VM sees a full ring and sends less (back-pressure). With [`Excess::Drop`], the
//! switch drops a frame that exceeds the bound ([`Offer::Dropped`]). If a frame waited too long,
//! the discipline drops it and charges no VM for it. An empty queue accepts any frame.
//!
//! # Example
//!
//! In the tests of `fair-share`, three tenants have different weights:
//!
//! - The first of three tenants has weight 5, 3 VMs and 7 flows. A tenant with weight 5 of 9 and 7
//!   of 12 flows gets 5/9 of the bytes; without `fair-share`, it would get 7/12.
//! - The second tenant has weight 3, 2 VMs and 4 flows. A tenant with weight 3 of 9 and 4 of 12
//!   flows gets 3/9 of the bytes; without `fair-share`, it would get 4/12.
//! - The last of three tenants has weight 1, 1 VM and 1 flow. A tenant with weight 1 of 9 and 1 of
//!   12 flows gets 1/9 of the bytes; without `fair-share`, it would get 1/12.
//!
//! # Departures
//!
//! FS-VDE assumes frames of equal size and computes a list of turns in advance. In Penstock,
//! accounts are in bytes, and each decision is made when a frame is sent.
//!
//! # Cost
//!
//! A burst takes one decision among tenants and one decision among VMs. Each frame of the burst
//! takes two comparisons and one entry of the frame table. The entry of a frame is read when the
//! frame's turn comes, and the frame's bytes are never read. The discipline allocates no memory
//! after its construction.
//!
//! With flow queues (`flows`), each frame also takes a turn among the flows of its VM.
//!
//! A VM that has a claim instead of frames (`claims`) costs a decision like a VM with frames, but
//! its frames are not copied into the switch.
//!
//! A tenant or VM that is set to the weight and bound that it has already costs a few comparisons,
//! and no later departure changes. If the weight of a tenant or VM changes, the others keep their
//! accounts. The change of a tenant's weight takes one call of its discipline ([`Vtrr`] or
//! [`Eevdf`]). The change of a VM's weight takes a few comparisons in most cases (`weights`). If a
//! VM joins or leaves, only its own tenant is affected.

mod claims;
mod flows;
mod rounds;
mod weights;

use penstock_units::{Nanos, Weight};

use crate::discipline::{Allowance, Discipline};
use crate::eevdf::Eevdf;
use crate::frame_pool::{Pool, Queue};
use crate::vtrr::{self, Vtrr};
pub use claims::Turn;
use flows::Tables;
use rounds::{Place, Places, Ring};
use weights::Weights;

/// Maximum number of tenants that VTRR serves. If an output has more tenants, EEVDF serves them.
pub const VTRR_MAX: usize = vtrr::CLIENTS_MAX;
/// Number of tenants at or below which VTRR replaces EEVDF again. The threshold is below
/// [`VTRR_MAX`], so that VTRR and EEVDF do not alternate (hysteresis).
pub const VTRR_AGAIN: usize = 24;

/// Sizes of an output's tables, which are fixed at construction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Number of slots for tenants.
    pub tenants: usize,
    /// Number of slots for VMs.
    pub vms: usize,
    /// Maximum number of frames of all VMs together that wait at the output.
    pub frames: u32,
}

/// Treatment of a frame that exceeds the [`Bound`] of its queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Excess {
    /// The frame stays in the ring of its VM (back-pressure).
    #[default]
    Hold,
    /// The switch drops a frame that exceeds the bound.
    Drop,
}

/// Limits on the bytes and the wait of the frames in a VM's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Maximum number of bytes that wait in the VM's queue.
    pub bytes: u64,
    /// Longest wait of a frame in the VM's queue. With [`Excess::Hold`], the queue accepts no frame
    /// when its oldest frame has waited this long. With [`Excess::Drop`], a frame that has waited
    /// longer than the limit is dropped when the frame's turn comes.
    pub wait: Nanos,
    /// Treatment of frames that exceed the queue's limits.
    pub excess: Excess,
}

impl Default for Bound {
    /// A bound of 256 KiB and 10 ms for each VM, with [`Excess::Hold`]. The bound has room for four
    /// large segments of 64 KiB: two that wait and two that are being sent.
    fn default() -> Self {
        Self { bytes: 256 * 1024, wait: Nanos::from_millis(10), excess: Excess::Hold }
    }
}

/// Limit because of which a frame was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The VM's queue would exceed [`Bound::bytes`].
    Bytes,
    /// The oldest frame in the VM's queue has waited for [`Bound::wait`].
    Wait,
    /// The VMs of the output already have [`Capacity::frames`] waiting frames in total.
    Frames,
    /// No VM has the slot that the frame names.
    Nobody,
}

/// Result of offering a frame to the output: accepted, refused or dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// The output accepted the frame, which now waits in its VM's queue.
    Queued,
    /// The frame was not accepted and stays with the caller.
    Held(Full),
    /// The frame was not accepted and must be dropped.
    Dropped(Full),
}

/// A frame that the output sends next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure<T> {
    /// Handle by which the caller identifies the frame.
    pub item: T,
    /// Slot of the VM that sent the frame.
    pub vm: usize,
    /// Length of the frame on the link, in bytes.
    pub bytes: u32,
    /// Time for which the frame waited at the output.
    pub waited: Nanos,
}

/// Counters of a VM at the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Number of bytes in frames that the VM sent.
    pub sent_bytes: u64,
    /// Number of frames that the VM sent.
    pub sent_frames: u64,
    /// Number of bytes that are in the VM's queue now.
    pub queued_bytes: u64,
    /// Number of frames that are in the VM's queue now.
    pub queued_frames: u32,
    /// Number of frames that were refused with [`Offer::Held`]. If a frame is refused several
    /// times, each refusal counts.
    pub held: u64,
    /// Number of frames that were dropped because a limit was reached.
    pub dropped_full: u64,
    /// Number of frames that were dropped because they waited too long.
    pub dropped_late: u64,
}

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Tenant {
    there: bool,
    weight: Weight,
    ring: Ring,
    /// Slot of the VM that sends the tenant's next frame. If no VM of the tenant has frames, the
    /// value of `chosen` has no meaning.
    chosen: u32,
}

#[derive(Clone, Copy, Debug)]
struct Vm {
    tenant: u32,
    bound: Bound,
    queue: Queue,
    place: Place,
    account: Account,
    /// Expected bytes of the frames that the VM hands over next ([`FairShare::claim`]), or 0.
    claim: u32,
    /// Number of the VM's flow queues in [`Tables`]. If the value is [`NONE`], the VM's frames wait
    /// in `queue`. Otherwise, `queue` only counts them.
    table: u32,
    /// Bytes of the next frames for which the VM is not charged ([`FairShare::not_sent`]).
    credit: u32,
}

impl Vm {
    /// Whether the VM takes part in the discipline: frames of the VM wait, or it has a claim.
    const fn is_active(&self) -> bool {
        !self.queue.is_empty() || self.claim > 0
    }
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

/// Frames that a VM sent for one decision, and that are not charged yet.
#[derive(Clone, Copy, Debug)]
struct Burst {
    tenant: u32,
    vm: u32,
    /// Bytes that the discipline among tenants permits.
    allowance: Allowance,
    /// Bytes that the VM's account permits. If no other VM of the tenant has frames, the account
    /// sets no limit, and the value of `account` is [`UNLIMITED`].
    account: u64,
    /// Sum of the lengths of the burst's frames. The field `last` is the length of the last frame.
    sent: u32,
    last: u32,
    /// Number of batches that passed for the VM's claims ([`FairShare::passed`]).
    batches: u32,
}

const UNLIMITED: u64 = u64::MAX;

impl Burst {
    /// Whether a frame of `head` bytes may follow.
    #[inline]
    fn permits(&self, head: u32) -> bool {
        u64::from(self.sent) < self.account && self.allowance.permits(self.sent, head)
    }
}

/// The `fair-share` discipline of one output. The type `T` is the caller's handle of a frame.
#[derive(Clone, Debug)]
pub struct FairShare<T> {
    tenants: Box<[Tenant]>,
    vms: Box<[Vm]>,
    weights: Weights,
    pool: Pool<T>,
    flows: Tables,
    vtrr: Vtrr,
    eevdf: Eevdf,
    members: usize,
    /// Whether [`Eevdf`] is in use because there are many tenants. If the field `many` is false,
    /// [`Vtrr`] serves the tenants.
    many: bool,
    frames: u32,
    /// Number of VMs with a claim.
    claims: u32,
    /// The open burst. The VM of an open burst has frames or a claim. The value is `None` if all
    /// sent frames are charged.
    burst: Option<Burst>,
}

#[expect(clippy::cast_possible_truncation, reason = "slots are below 2^32")]
const fn narrow(slot: usize) -> u32 {
    slot as u32
}

impl<T: Copy + Default> FairShare<T> {
    /// Returns an output without tenants, at which each VM has one queue.
    #[must_use]
    pub fn new(capacity: Capacity) -> Self {
        Self::with_flows(capacity, 0, 0)
    }

    /// Returns an output without tenants. Up to `tables` VMs with frames have a queue for each of
    /// their flows at the same time, of `flows` queues each.
    #[must_use]
    pub fn with_flows(capacity: Capacity, tables: usize, flows: u32) -> Self {
        let tenant = Tenant { there: false, weight: Weight::ONE, ring: Ring::EMPTY, chosen: NONE };
        let vm = Vm {
            tenant: NONE,
            bound: Bound::default(),
            queue: Queue::EMPTY,
            place: Place::new(Weight::ONE),
            account: Account::default(),
            claim: 0,
            table: NONE,
            credit: 0,
        };
        Self {
            tenants: vec![tenant; capacity.tenants].into_boxed_slice(),
            vms: vec![vm; capacity.vms].into_boxed_slice(),
            weights: Weights::new(capacity.vms),
            pool: Pool::new(capacity.frames),
            flows: Tables::new(tables, flows),
            vtrr: Vtrr::new(capacity.tenants),
            eevdf: Eevdf::new(capacity.tenants),
            members: 0,
            many: false,
            frames: 0,
            claims: 0,
            burst: None,
        }
    }

    fn discipline(&mut self) -> &mut dyn Discipline {
        if self.many { &mut self.eevdf } else { &mut self.vtrr }
    }

    /// Returns the name of the discipline in use, `vtrr` or `eevdf`.
    #[must_use]
    pub const fn discipline_name(&self) -> &'static str {
        if self.many { "eevdf" } else { "vtrr" }
    }

    /// Returns the number of frames that wait in the queues of all VMs.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.frames
    }

    /// Whether no frame of any VM waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// Adds a tenant, or changes the weight of a tenant. If the tenant already has the weight,
    /// nothing changes. Returns whether the tenant's slot exists.
    pub fn set_tenant(&mut self, slot: usize, weight: Weight) -> bool {
        let Some(tenant) = self.tenants.get(slot) else { return false };
        if tenant.there && tenant.weight == weight {
            return true;
        }
        self.settle();
        let tenant = &mut self.tenants[slot];
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

    /// Removes a tenant and its VMs. The function calls `lost` with the VM slot and the handle of
    /// each waiting frame.
    pub fn remove_tenant(&mut self, slot: usize, mut lost: impl FnMut(usize, T)) {
        if !self.tenants.get(slot).is_some_and(|tenant| tenant.there) {
            return;
        }
        self.settle();
        if !self.tenants[slot].ring.heaviest.is_none() {
            for vm in 0..self.vms.len() {
                if self.weights.is_of(vm, narrow(slot)) {
                    self.remove_vm(vm, |item| lost(vm, item));
                }
            }
        }
        self.tenants[slot].there = false;
        self.discipline().leave(slot);
        self.members -= 1;
        if self.many && self.members <= VTRR_AGAIN {
            self.change_discipline();
        }
    }

    /// Switches from VTRR to EEVDF or back, and registers all tenants with the new discipline.
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

    /// Adds a VM to an existing tenant, or changes the VM's weight and bound. If the VM already has
    /// the weight and bound, nothing changes. Returns false if the slot of the tenant or VM does
    /// not exist, or if the VM belongs to another tenant.
    pub fn set_vm(&mut self, slot: usize, tenant: usize, weight: Weight, bound: Bound) -> bool {
        if !self.tenants.get(tenant).is_some_and(|tenant| tenant.there) {
            return false;
        }
        let Some(vm) = self.vms.get_mut(slot) else { return false };
        if vm.tenant == NONE {
            vm.tenant = narrow(tenant);
            (vm.queue, vm.account, vm.credit) = (Queue::EMPTY, Account::default(), 0);
            vm.place = Place::new(weight);
        } else if vm.tenant != narrow(tenant) {
            return false;
        } else if vm.place.weight() == weight {
            vm.bound = bound;
            return true;
        }
        self.settle();
        let (vm, ring) = (&mut self.vms[slot], &mut self.tenants[tenant].ring);
        vm.bound = bound;
        if vm.is_active() {
            let [old, new] = [vm.place.weight(), weight].map(|weight| u64::from(weight.get()));
            ring.weights = ring.weights - old + new;
        }
        vm.place.set_weight(weight);
        self.weights.set(slot, narrow(tenant), Some(weight), &mut ring.heaviest);
        true
    }

    /// Removes a VM. The function calls `lost` with the handle of each waiting frame, in the order
    /// in which the VM would send them.
    pub fn remove_vm(&mut self, slot: usize, mut lost: impl FnMut(T)) {
        let Some(vm) = self.vms.get(slot) else { return };
        let tenant = vm.tenant as usize;
        if vm.tenant == NONE {
            return;
        }
        self.settle();
        let vm = &self.vms[slot];
        if vm.is_active() {
            while let Some(frame) = self.take(slot) {
                lost(frame.item);
            }
            self.put_claim(slot, 0);
            self.silence(tenant, slot);
        }
        self.vms[slot].tenant = NONE;
        let heaviest = &mut self.tenants[tenant].ring.heaviest;
        self.weights.set(slot, narrow(tenant), None, heaviest);
    }

    /// Records that a VM has neither frames nor a claim: the VM leaves its tenant's ring, and the
    /// discipline learns the tenant's next frame.
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

    /// Chooses the VM that sends the tenant's next frame. Returns the length of the tenant's next
    /// frame or claim in bytes, or 0 if no VM of the tenant has one.
    fn choose(&mut self, tenant: usize) -> u32 {
        let of = &mut self.tenants[tenant];
        let Some(vm) = of.ring.pick(&mut Slots(&mut self.vms)) else { return 0 };
        of.chosen = vm;
        self.next_of(vm)
    }

    /// Reports to the discipline that a tenant has frames, or that the tenant's next frame changed.
    fn announce(&mut self, tenant: usize) {
        let head = self.next_of(self.tenants[tenant].chosen);
        self.discipline().backlogged(tenant, head);
    }

    /// Checks whether the output would accept a frame of `bytes` bytes from the VM now.
    ///
    /// # Errors
    /// Returns an error, which names the limit, if the frame would exceed a limit.
    pub fn room(&self, vm: usize, bytes: u32, now: Nanos) -> Result<(), Full> {
        let Some(vm) = self.vms.get(vm).filter(|vm| vm.tenant != NONE) else {
            return Err(Full::Nobody);
        };
        if self.pool.is_full() {
            return Err(Full::Frames);
        }
        if vm.queue.is_empty() {
            return Ok(());
        }
        if vm.queue.bytes + u64::from(bytes) > vm.bound.bytes {
            return Err(Full::Bytes);
        }
        // With [`Excess::Drop`], late frames are dropped when their turn comes. The first frame is
        // read only if the queue has a limit on its wait.
        let Bound { wait, excess, .. } = vm.bound;
        let late = excess == Excess::Hold
            && wait != Nanos(u64::MAX)
            && self.pool.head(&vm.queue).is_some_and(|head| now.saturating_sub(head.since) >= wait);
        if late { Err(Full::Wait) } else { Ok(()) }
    }

    /// Offers a frame of a VM to the output. If the result is not [`Offer::Queued`], the frame
    /// stays with the caller.
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
        self.accept(vm, item, bytes, now);
        Offer::Queued
    }

    /// Adds a frame of a VM to the VM's queue. The caller must have found with [`Self::room`] that
    /// the output accepts the frame.
    pub fn accept(&mut self, vm: usize, item: T, bytes: u32, now: Nanos) {
        self.accept_flow(vm, 0, (item, bytes), now);
    }

    /// Adds a frame of a VM as [`Self::accept`] does. If the output has flow queues, `flow` is the
    /// hash of the frame's flow.
    pub fn accept_flow(&mut self, vm: usize, flow: u32, (item, bytes): (T, u32), now: Nanos) {
        debug_assert!(self.room(vm, bytes, now).is_ok(), "the caller looked for room");
        let (first, claims) = (self.vms[vm].queue.is_empty(), self.vms[vm].claim > 0);
        if first {
            // Another VM gets frames, so the next decision must see all charges.
            self.settle();
        }
        let tenant = self.vms[vm].tenant as usize;
        self.put(vm, flow, (item, bytes), now);
        if first && claims {
            // The frame comes before the claim.
            if self.tenants[tenant].chosen == narrow(vm) {
                self.announce(tenant);
            }
        } else if first {
            let ring = &mut self.tenants[tenant].ring;
            let silent = ring.is_empty();
            ring.enter(&mut Slots(&mut self.vms), narrow(vm));
            if silent {
                self.choose(tenant);
                self.announce(tenant);
            }
        }
    }

    /// Removes and returns the frame that the output sends next. Returns `None` if no frame waits,
    /// or if the turn is that of a claim ([`Self::turn`]). The function calls `lost` with each
    /// frame that was dropped because it waited too long.
    pub fn next(&mut self, now: Nanos, mut lost: impl FnMut(usize, T)) -> Option<Departure<T>> {
        loop {
            if !self.goes_on() {
                self.settle();
                self.burst = Some(self.decide()?);
            }
            let slot = self.burst.as_ref()?.vm as usize;
            let frame = self.take(slot)?;
            let (burst, vm) = (self.burst.as_mut()?, self.vms.get_mut(slot)?);
            let waited = now.saturating_sub(frame.since);
            let late = vm.bound.excess == Excess::Drop && waited > vm.bound.wait;
            if late {
                vm.account.dropped_late += 1;
                self.flows.line(vm).give_back(frame.bytes);
            } else {
                let free = vm.credit.min(frame.bytes);
                vm.credit -= free;
                burst.last = frame.bytes - free;
                burst.sent = burst.sent.saturating_add(burst.last);
                vm.account.sent_bytes += u64::from(frame.bytes);
                vm.account.sent_frames += 1;
            }
            if !vm.is_active() {
                self.settle();
            }
            if late {
                lost(slot, frame.item);
                continue;
            }
            return Some(Departure { item: frame.item, vm: slot, bytes: frame.bytes, waited });
        }
    }

    /// Whether the open burst permits the next frame of its VM, or the VM's claim.
    #[inline]
    fn goes_on(&mut self) -> bool {
        let Some(burst) = self.burst else { return false };
        let is_active = self.vms.get(burst.vm as usize).is_some_and(Vm::is_active);
        is_active && burst.permits(self.next_of(burst.vm))
    }

    /// Chooses the tenant and the VM that send next. Returns their burst, which has no frames yet.
    /// Returns `None` if no frame waits and no VM has a claim.
    fn decide(&mut self) -> Option<Burst> {
        let tenant = if self.many { self.eevdf.pick() } else { self.vtrr.pick() }?;
        let Tenant { chosen: vm, ring, .. } = self.tenants[tenant];
        let place = &self.vms.get(vm as usize)?.place;
        let account = if ring.is_single() { UNLIMITED } else { place.bytes() };
        let allowance = self.discipline().allowance();
        let (sent, last, batches) = (0, 0, 0);
        Some(Burst { tenant: narrow(tenant), vm, allowance, account, sent, last, batches })
    }

    /// Ends the open burst, and charges its tenant and its VM for its frames. The other functions
    /// call `settle` whenever it is necessary, so a caller never has to.
    #[inline]
    pub fn settle(&mut self) {
        if let Some(burst) = self.burst.take() {
            self.charge(&burst);
        }
    }

    /// Charges a tenant and its VM for a burst. Removes the VM from the tenant's ring if the VM has
    /// neither frames nor a claim.
    ///
    /// If a tenant or VM has no competitor, its burst may exceed its account by far. The account
    /// first pays for all frames but the last, and gets the turns that it needs for the last frame.
    /// The account is then the same as with one decision for each frame. Otherwise, a newcomer
    /// would send alone until it had sent the bytes of the whole burst.
    fn charge(&mut self, burst: &Burst) {
        let Burst { sent, last, .. } = *burst;
        let (tenant, vm) = (burst.tenant as usize, burst.vm as usize);
        let before = sent - last;
        let ring = &mut self.tenants[tenant].ring;
        if before > 0 && burst.account == UNLIMITED {
            self.vms[vm].place.charge(before);
            ring.pick(&mut Slots(&mut self.vms));
            self.vms[vm].place.charge(last);
        } else {
            self.vms[vm].place.charge(sent);
        }
        if !self.vms[vm].is_active() {
            ring.go(&mut Slots(&mut self.vms), burst.vm);
        }
        let next = self.choose(tenant);
        let discipline = self.discipline();
        if before > 0 && burst.allowance.alone {
            discipline.charge(tenant, before, last);
            discipline.pick();
            discipline.charge(tenant, last, next);
        } else {
            discipline.charge(tenant, sent, next);
        }
        if self.tenants[tenant].ring.is_empty() {
            self.discipline().drained(tenant);
        }
    }

    /// Returns the number of frames in a VM's queue, and their number of bytes. Both numbers are 0
    /// if the slot has no VM.
    #[must_use]
    pub fn backlog(&self, vm: usize) -> (u32, u64) {
        let vm = self.vms.get(vm).filter(|vm| vm.tenant != NONE);
        vm.map_or((0, 0), |vm| (vm.queue.frames, vm.queue.bytes))
    }

    /// Returns the counters of a VM; `None` if the slot has no VM.
    #[must_use]
    pub fn account(&self, vm: usize) -> Option<Account> {
        let vm = self.vms.get(vm).filter(|vm| vm.tenant != NONE)?;
        let (queued_bytes, queued_frames) = (vm.queue.bytes, vm.queue.frames);
        Some(Account { queued_bytes, queued_frames, ..vm.account })
    }
}

#[cfg(test)]
mod tests;
