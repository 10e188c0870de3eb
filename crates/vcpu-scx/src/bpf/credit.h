// SPDX-License-Identifier: MIT OR GPL-2.0-only
// Credit accounts by the rules of penstock-vcpu's `credit_book` and `reserve`, without a loop over
// all threads. Each processor sums the credits given to a unit of weight. An account takes its part
// when it is next read. The credits of an epoch equal the time used in it, so credits neither
// accumulate nor run out.
#ifndef PENSTOCK_CREDIT_H
#define PENSTOCK_CREDIT_H

#include "state.h"

// Adds credits to an account. A part of them first fills the reserve for I/O, up to two epochs'
// parts.
static __always_inline void earn(struct account *a, struct term *term, s64 earned)
{
	u32 pct = term ? term->reserve_pct : 0;

	if (earned > 0 && pct) {
		s64 part = (u64)earned * pct / 100;
		s64 most = 2 * (s64)(EPOCH * pct / 100);

		if (a->reserve + part > most)
			part = a->reserve < most ? most - a->reserve : 0;
		a->reserve += part;
		earned -= part;
	}
	a->credit += earned;
	if (a->credit >= 0)
		a->drawing = 0;
}

static __always_inline void settle(struct cpu *c, struct account *a, struct term *term)
{
	u64 given = c->given - a->given;

	if (!given)
		return;
	a->given = c->given;
	earn(a, term, (s64)((given * a->weight) >> SHIFT));
}

// Changes the weight of the runnable threads on a processor. Another processor that steals a thread
// from here also changes it, under the lock of its own run queue.
static __always_inline void weigh(struct cpu *c, s64 by)
{
	__sync_fetch_and_add(&c->weight, by);
}

// Moves an account of a thread that came to `to` without sleeping, for example a stolen one.
// Credits given on `from` are settled there. From now on the thread takes part on `to`.
static __always_inline void arrive(struct cpu *from, struct cpu *to, struct account *a,
				   struct term *term)
{
	if (from) {
		settle(from, a, term);
		weigh(from, -(s64)a->weight);
	}
	a->given = to->given;
	weigh(to, a->weight);
}

// Gives the time used since the last epoch to the runnable threads as credits.
static __always_inline void account(struct cpu *c, u64 now)
{
	u64 epoch = now / EPOCH;

	if (epoch == c->epoch || !c->weight)
		return;
	c->epoch = epoch;
	if (c->pool > 0) {
		c->given += ((u64)c->pool << SHIFT) / c->weight;
		c->pool = 0;
	}
}

static __always_inline u32 class_of(struct account *a)
{
	if (a->boosted)
		return BOOST;
	return a->credit < 0 ? OVER : UNDER;
}

// Charges a thread for the time since its last charge. Returns this time.
static __always_inline u64 charge(struct cpu *c, struct account *a, u64 now)
{
	u64 ran = now > a->since ? now - a->since : 0;
	s64 used = ran, floor = -(s64)(FLOOR_EPOCHS * EPOCH);

	a->since = now;
	if (a->drawing) {
		s64 drawn = used < a->reserve ? used : a->reserve;

		a->reserve -= drawn;
		used -= drawn;
		if (!a->reserve) {
			a->drawing = 0;
			a->boosted = 0;
		}
	}
	a->credit -= used;
	c->pool += ran;
	if (a->credit < floor) {
		c->pool -= floor - a->credit;
		a->credit = floor;
	}
	if (a->boosted && !a->drawing) {
		a->boost_ran += ran;
		if (a->boost_ran >= TICK)
			a->boosted = 0;
	}
	return ran;
}

// Gives a thread that slept the credits that it would have got. If it then has more than an epoch,
// it keeps half an epoch, as in Xen. The other threads get less by the same amount.
static __always_inline void take_for_sleep(struct cpu *c, struct account *a, struct term *term)
{
	u64 given = c->given - a->given, whole = EPOCH << SHIFT;
	s64 before = a->credit, part;

	a->given = c->given;
	if (!a->weight)
		return;
	// Scaled by the share that the thread would have had of the credits given to others.
	if (given > whole / a->weight * (FLOOR_EPOCHS + 1))
		given = whole / a->weight * (FLOOR_EPOCHS + 1);
	part = (given * a->weight) >> SHIFT;
	if (c->weight)
		part = (u64)part * c->weight / (c->weight + a->weight);
	earn(a, term, part);
	if (a->credit > (s64)EPOCH)
		a->credit = before > (s64)EPOCH / 2 ? before : (s64)EPOCH / 2;
	c->pool -= a->credit - before;
}

// Boosts a thread that another thread woke: it runs before all waiting threads, if it has credits
// or a reserve.
static __always_inline bool boost(struct account *a)
{
	a->boost_ran = 0;
	if (a->credit >= 0)
		a->boosted = 1;
	else if (a->reserve > 0)
		a->boosted = a->drawing = 1;
	return a->boosted;
}

static __always_inline void end_boost(struct account *a)
{
	if (a->drawing) {
		a->drawing = 0;
		a->boosted = 0;
	}
}

#endif
