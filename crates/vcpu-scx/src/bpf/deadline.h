// SPDX-License-Identifier: MIT OR GPL-2.0-only
// The deadline queue of a processor: the rules of penstock-vcpu's `deadline_queue`, and the rules
// of `double_queue` for owed slices. User space lays out each thread's own slots.
#ifndef PENSTOCK_DEADLINE_H
#define PENSTOCK_DEADLINE_H

#include "state.h"

// A turn begins a little later than its slot and ends with it. So most of a slot counts as a slice.
#define SERVED (SLICE / 2)
// Maximum number of slots that are checked for a free one before the deadline. If none is free, the
// thread uses its own slot.
#define LOOK 64

static __always_inline bool is_free(u32 first, u32 mine, u64 slot)
{
	struct bpf_iter_num it;
	bool taken = false;
	int *n;

	bpf_iter_num_new(&it, 0, SEATS);
	while ((n = bpf_iter_num_next(&it))) {
		u32 at = first + *n;
		struct place *place = place_at(at);
		struct seat *seat = seat_at(at);

		if (!place || !seat || at == mine)
			continue;
		if (seat->booked == slot || (place->period && slot % place->period == place->phase)) {
			taken = true;
			break;
		}
	}
	bpf_iter_num_destroy(&it);
	return !taken;
}

// Books the latest free slot that begins until `by`, or the thread's next own slot.
static __noinline int book(u32 mine, u64 by, u64 now)
{
	struct seat *seat = seat_at(mine);
	struct place *place = place_at(mine);
	u32 first_seat = mine / SEATS * SEATS;
	u64 first = (now + SLICE - 1) / SLICE, last = by / SLICE, slot = NONE;
	struct bpf_iter_num it;
	int *n;

	if (!seat || !place || !place->period || (seat->booked != NONE && seat->by <= by))
		return 0;
	if (last > first + place->window)
		last = first + place->window;
	bpf_iter_num_new(&it, 0, LOOK);
	while ((n = bpf_iter_num_next(&it))) {
		u64 at = last - *n;

		if (last < first + *n)
			break;
		if (is_free(first_seat, mine, at)) {
			slot = at;
			break;
		}
	}
	bpf_iter_num_destroy(&it);
	if (slot == NONE)
		slot = first + (place->phase + place->period - first % place->period) % place->period;
	seat->booked = slot;
	seat->by = by;
	return 0;
}

// Records that a thread is owed a slice from `since` on. If an earlier slice is still owed, that
// slice comes first.
static __always_inline void owe(struct term *term, u64 since, u64 now)
{
	struct seat *seat = seat_at(term->seat);

	if (!seat)
		return;
	if (seat->owed.since != NONE && seat->owed.ran) {
		seat->again.since = since;
		seat->again.ran = 0;
	}
	if (seat->owed.since == NONE) {
		seat->owed.since = since;
		seat->owed.ran = 0;
	}
	book(term->seat, seat->owed.since + term->deadline, now);
}

static __always_inline void count_owed(struct term *term, u64 ran)
{
	struct seat *seat = seat_at(term->seat);

	if (!seat)
		return;
	if (seat->owed.since != NONE)
		seat->owed.ran += ran;
	if (seat->again.since != NONE)
		seat->again.ran += ran;
}

// Updates the owed slices of a thread that leaves the processor.
static __always_inline void requeue(struct term *term, bool runnable, u64 now)
{
	struct seat *seat = seat_at(term->seat);

	if (!seat)
		return;
	if (!runnable || seat->owed.since == NONE || seat->owed.ran >= SERVED) {
		seat->owed.since = NONE;
		if (runnable && seat->again.since != NONE && seat->again.ran < SERVED)
			seat->owed = seat->again;
		seat->again.since = NONE;
		if (term->mode == PERIODIC && runnable) {
			seat->owed.since = now;
			seat->owed.ran = 0;
		}
		seat->booked = NONE;
	}
	if (seat->owed.since != NONE)
		book(term->seat, seat->owed.since + term->deadline, now);
}

// Returns the thread that is due now and does not run. 0: none.
static __always_inline u32 due(s32 cpu, u64 now, u32 running)
{
	u64 earliest = now / SLICE;
	struct bpf_iter_num it;
	u32 tid = 0;
	int *n;

	bpf_iter_num_new(&it, 0, SEATS);
	while ((n = bpf_iter_num_next(&it))) {
		u32 at = cpu * SEATS + *n;
		struct place *place = place_at(at);
		struct seat *seat = seat_at(at);

		if (place && seat && place->tid != running && seat->booked <= earliest) {
			earliest = seat->booked;
			tid = place->tid;
		}
	}
	bpf_iter_num_destroy(&it);
	return tid;
}

// Handles the events that the poll found for threads with a deadline on this processor.
static __always_inline void take_events(s32 cpu, u64 now)
{
	struct bpf_iter_num it;
	int *n;

	bpf_iter_num_new(&it, 0, SEATS);
	while ((n = bpf_iter_num_next(&it))) {
		u32 at = cpu * SEATS + *n, tid;
		struct place *place = place_at(at);
		struct seat *seat = seat_at(at);
		struct term *term;
		u64 event;

		if (!place || !seat || !seat->event)
			continue;
		event = seat->event;
		seat->event = 0;
		tid = place->tid;
		term = bpf_map_lookup_elem(&terms, &tid);
		if (term && term->mode == APERIODIC)
			owe(term, event, now);
	}
	bpf_iter_num_destroy(&it);
}

#endif
