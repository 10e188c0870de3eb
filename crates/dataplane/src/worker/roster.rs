//! The roster determines which units take part in the schedule.
//!
//! # Problem
//!
//! A queue pair leaves the schedule if it had no frames for a while, or if the port's shaper or
//! rate limit permits no frame yet. A queue pair also leaves the schedule if too many frames of its
//! port wait at an output queue. A queue pair must return to the schedule when the last reason for
//! its absence is over, and not before.
//!
//! # Approach
//!
//! The roster owns the schedule and all reasons for units to be outside the schedule. A unit is
//! outside the schedule if it is at rest ([`Resting`]), if its port must wait ([`Aside`]), or if
//! its next frame is not due. Only the roster adds units to the schedule or removes units from the
//! schedule.

use penstock_qos::wheel::Wheel;
use penstock_units::{Cycles, Nanos, PortId, Priority};

use super::WorkerConfig;
use super::aside::{Aside, Why, units};
use super::context::Context;
use super::delay::Delays;
use super::resting::{AWAKE_MIN, Resting, unit_of};
use crate::port::Pending;
use crate::schedule::Schedule;
use crate::tsc::CycleCounter;
use crate::unit::QUEUES_MAX;
use crate::unit::UNITS_MAX;
use crate::unit::Unit;

/// An event for which the roster's timing wheel wakes a unit at a given time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The next frame of the output's queue is due.
    Output(PortId),
    /// The next frame of the shaped port may be sent.
    Shaped(PortId),
    /// The rate limit of the port is out of debt.
    Policed(PortId),
}

/// Number of kinds of [`Event`] that a port can have in the timing wheel.
const KINDS: usize = 3;

impl Event {
    fn entry(self) -> usize {
        match self {
            Self::Output(port) => KINDS * port.index(),
            Self::Shaped(port) => KINDS * port.index() + 1,
            Self::Policed(port) => KINDS * port.index() + 2,
        }
    }

    fn of(entry: usize) -> Option<Self> {
        let port = u16::try_from(entry / KINDS).map(PortId).ok()?;
        Some(match entry % KINDS {
            0 => Self::Output(port),
            1 => Self::Shaped(port),
            _ => Self::Policed(port),
        })
    }
}

/// The worker's schedule, the units that are outside the schedule, and the events after which these
/// units return to the schedule.
#[derive(Debug)]
pub(super) struct Roster {
    pub schedule: Schedule,
    pub delays: Delays,
    aside: Aside,
    resting: Resting,
    wheel: Wheel,
    /// Whether a source has a claim at an output ([`super::claims`]).
    has_claims: bool,
    /// Whether the timing wheel has an event, or a source has a claim. A turn checks only this
    /// flag.
    has_events: bool,
}

impl Roster {
    pub fn new(config: &WorkerConfig, now: Nanos) -> Self {
        let ports = config.max_ports;
        Self {
            schedule: Schedule::new(config.schedule, config.readiness, ports * UNITS_MAX),
            delays: Delays::new(ports),
            aside: Aside::new(ports),
            resting: Resting::new(ports, config.tsc),
            wheel: Wheel::new(KINDS * ports, now),
            has_claims: false,
            has_events: false,
        }
    }

    pub const fn resting(&self) -> &Resting {
        &self.resting
    }

    /// Arms the event for time `at`. If the event already has a time, the new time replaces the
    /// earlier time.
    pub fn arm(&mut self, event: Event, at: Nanos) {
        self.wheel.arm(event.entry(), at);
        self.has_events = true;
    }

    pub fn cancel(&mut self, event: Event) {
        self.wheel.cancel(event.entry());
        self.note_events();
    }

    /// Notes whether a source has a claim at an output.
    pub fn note_claims(&mut self, has_claims: bool) {
        self.has_claims = has_claims;
        self.note_events();
    }

    /// Whether a source may have a claim at an output.
    #[inline]
    pub const fn has_claims(&self) -> bool {
        self.has_claims
    }

    fn note_events(&mut self) {
        self.has_events = self.has_claims || !self.wheel.is_empty();
    }

    /// Removes and returns an event that is due at time `now`. Returns `None` if no event is due.
    #[inline]
    pub fn expire(&mut self, now: Nanos) -> Option<Event> {
        if self.wheel.is_empty() {
            return None;
        }
        let expired = self.wheel.expire(now);
        self.note_events();
        expired.and_then(|(entry, _)| Event::of(entry))
    }

    /// Whether the timing wheel has an event, or a source has a claim at an output.
    #[inline]
    pub const fn has_events(&self) -> bool {
        self.has_events
    }

    /// Returns the time of the earliest event in the timing wheel, or `None` if there is no event.
    /// Returns `None` if no event is armed.
    pub fn next_event(&self) -> Option<Nanos> {
        self.wheel.next_event()
    }

    /// Adds a queue pair that was attached or moved to this worker.
    pub fn join(&mut self, unit: Unit, class: Priority, now: Cycles) {
        self.resting.note_busy(unit, now);
        self.delays.begin(unit, now);
        if !self.aside.is_aside(unit.port) {
            self.schedule.add(unit, class);
        }
    }

    /// Removes a port's timer events and the reasons not to poll the port, because no queue pair of
    /// the port is on this worker any more.
    pub fn forget(&mut self, port: PortId) {
        self.cancel(Event::Shaped(port));
        self.cancel(Event::Policed(port));
        self.aside.forget(port);
    }

    /// Removes a port that is detached from this worker.
    pub fn remove<C: CycleCounter>(&mut self, ctx: &Context<C>, port: PortId) {
        self.schedule.remove(port);
        self.resting.remove_port(port);
        self.show_resting(ctx);
    }

    /// Whether the worker polls a queue pair of this worker, unless its port lacks tokens.
    pub fn polls(&self, unit: Unit) -> bool {
        !self.aside.is_aside(unit.port) && !self.resting.is_resting(unit)
    }

    pub fn is_aside(&self, port: PortId, why: Why) -> bool {
        self.aside.is(port, why)
    }

    /// Removes a port's queue pairs from the schedule for the reason `reason`, until
    /// [`Self::take_back`] removes the reason.
    pub fn put_aside<C: CycleCounter>(&mut self, ctx: &Context<C>, port: PortId, reason: Why) {
        if !self.aside.put(port, reason) {
            return;
        }
        for unit in units(port).filter(|unit| ctx.owns(port, unit.queue)) {
            self.schedule.leave(unit);
        }
    }

    /// Removes one reason for which the worker does not poll a port. If the port has no other
    /// reason to wait, the port's queue pairs return to the schedule.
    pub fn take_back<C: CycleCounter>(&mut self, ctx: &Context<C>, port: PortId, reason: Why) {
        if !self.aside.take(port, reason) {
            return;
        }
        let class = ctx.class(port);
        for unit in units(port).filter(|unit| ctx.owns(port, unit.queue)) {
            if !self.resting.is_resting(unit) {
                self.schedule.add(unit, class);
            }
        }
    }

    /// Records that the worker took frames from the unit at time `now`.
    #[inline]
    pub fn note_busy(&mut self, unit: Unit, now: Cycles) {
        self.resting.note_busy(unit, now);
    }

    /// Records that the worker polled the unit and found no frame. If the unit was empty for
    /// [`super::resting::IDLE_AFTER`], the worker stops polling the unit (rest).
    #[inline]
    pub fn note_empty<C: CycleCounter>(&mut self, ctx: &mut Context<C>, unit: Unit) {
        let now = ctx.last();
        self.delays.begin(unit, now);
        if self.schedule.len() > AWAKE_MIN && self.resting.is_idle(unit, now) {
            self.put_to_rest(ctx, unit);
        }
    }

    /// Stops polling a queue pair if the queue pair's port can signal new frames.
    #[cold]
    fn put_to_rest<C: CycleCounter>(&mut self, ctx: &mut Context<C>, unit: Unit) {
        if ctx.ports[unit.port.index()].queues[unit.queue.index()].rest() {
            self.schedule.leave(unit);
            self.resting.add(unit);
            self.show_resting(ctx);
        } else {
            self.resting.note_busy(unit, ctx.last());
        }
    }

    /// Ends a queue pair's rest period, so that the worker polls the queue pair again.
    pub fn wake<C: CycleCounter>(&mut self, ctx: &mut Context<C>, unit: Unit) {
        if !self.resting.remove(unit) {
            return;
        }
        let slot = ctx.ports.get_mut(unit.port.index());
        if let Some(queue) = slot.and_then(|slot| slot.queues.get_mut(unit.queue.index())) {
            queue.wake();
            self.join(unit, ctx.class(unit.port), ctx.last());
            ctx.counters().wakes.add(1);
        }
        self.show_resting(ctx);
    }

    /// Wakes queue pairs at rest if their drivers kicked since the last call. Also checks some
    /// queue pairs at rest for frames, if the time of the next check has come. Returns true if at
    /// least one queue pair woke.
    #[inline]
    pub fn wake_some<C: CycleCounter>(&mut self, ctx: &mut Context<C>) -> bool {
        let looks = self.resting.looks_due(ctx.last());
        (looks > 0 || self.resting.doorbell().has_rung()) && self.wake_waiting(ctx, looks)
    }

    #[inline(never)]
    fn wake_waiting<C: CycleCounter>(&mut self, ctx: &mut Context<C>, looks: u64) -> bool {
        let resting = self.resting.len();
        let doorbell = std::sync::Arc::clone(self.resting.doorbell());
        doorbell.answer(|bell| {
            ctx.counters().kicks.add(1);
            if let Some(unit) = unit_of(bell) {
                self.wake(ctx, unit);
            }
        });
        for _ in 0..looks {
            let Some(unit) = self.resting.next_look() else { break };
            let queue = &mut ctx.ports[unit.port.index()].queues[unit.queue.index()];
            if queue.pending(ctx.account.last()) != Pending::No {
                self.wake(ctx, unit);
            }
        }
        self.resting.len() < resting
    }

    fn show_resting<C: CycleCounter>(&self, ctx: &Context<C>) {
        ctx.counters().resting.set(self.resting.len() as u64);
    }
}

const _: () = assert!(UNITS_MAX >= QUEUES_MAX);
