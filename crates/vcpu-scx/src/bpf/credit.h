// SPDX-License-Identifier: MIT OR GPL-2.0-only
// Accounts: the rules of penstock-vcpu's `credit_book` and `reserve`, in a form that needs no walk
// over all threads. Each processor counts what a unit of weight was given, and an account takes its
// part when somebody looks at it. What is given in an epoch is what was used in it, so credits
// neither pile up nor run out.
#ifndef PENSTOCK_CREDIT_H
#define PENSTOCK_CREDIT_H

#include "state.h"

// Adds to an account; two epochs' parts are kept for I/O first.
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

// The weight of who is runnable on a processor. Another one that takes a thread from here changes it
// as well, under the lock of its own run queue.
static __always_inline void weigh(struct cpu *c, s64 by)
{
	__sync_fetch_and_add(&c->weight, by);
}

// It came to `to` without having slept on the way, as one that was stolen does: what it was given on
// `from` is settled there, and from now on it takes part here.
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

// Hands out what was used since the last epoch.
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

// What it used since it was last charged.
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

// It slept, and takes what it would have been given, up to an epoch's worth; then it keeps half of
// that, as Xen has it. The others get so much less.
static __always_inline void take_for_sleep(struct cpu *c, struct account *a, struct term *term)
{
	u64 given = c->given - a->given, whole = EPOCH << SHIFT;
	s64 before = a->credit, part;

	a->given = c->given;
	if (!a->weight)
		return;
	// Times the part it would have had of what it did not take part in.
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

// Woken from block, by somebody else: before all who wait, if it has credits, or a reserve.
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
