// SPDX-License-Identifier: MIT OR GPL-2.0-only
// What the scheduler knows, and what it shares with user space: the layouts of `struct term`,
// `struct place`, `struct knobs` and `struct report` are those of `src/wire.rs`.
#ifndef PENSTOCK_STATE_H
#define PENSTOCK_STATE_H

#include "kernel.h"

#define MAX_CPUS 256
// Deadlines on one processor: 0.7 of it is admitted, which is 8 of 5.5 ms.
#define SEATS 8
#define MAX_THREADS 4096
#define WAIT_BUCKETS 256

#define US 1000ULL
#define MS (1000 * US)
#define SLICE (500 * US)
#define CREDIT_SLICE (30 * MS)
#define EPOCH (30 * MS)
#define TICK (10 * MS)
// Who waited for so long has a slice whatever its credits: a thread of nice 19 beside two of nice 0
// would be owed 30 ms once in 2 s, beside more of them or heavier ones not before the kernel takes
// out a scheduler that lets somebody wait (`timeout_ms`).
#define STARVED (2000 * MS)
#define FLOOR_EPOCHS 10
#define WAIT_BUCKET (100 * US)
#define NONE (~0ULL)
// nice 0; a configured weight of 1 is as much.
#define WEIGHT_ONE 100
// Fixed point of what a unit of weight was given.
#define SHIFT 16

enum mode { BY_CREDIT, PERIODIC, APERIODIC, DRIVER };
enum lane { IDLE, LANE_CREDIT, LANE_STARVED, LANE_DEADLINE, LANE_DRIVER };
enum class { OVER, UNDER, BOOST, LONGEST };

// A thread's contract, by its id.
struct term {
	u32 mode;
	u32 weight;
	u32 reserve_pct;
	u32 seat; // cpu * SEATS + n of one with a deadline
	u64 deadline;
};

// Who has a deadline on a processor, and its own slots. Written by user space.
struct place {
	u32 tid; // 0: free
	u32 window;
	u32 period;
	u32 phase;
};

struct knobs {
	u32 stall; // test: nothing is dispatched any more
	u32 ended;
	s32 kind;
	u32 unused;
	char reason[64];
	char msg[128];
};

// What a configured thread got.
struct report {
	u64 runs;
	u64 ran;
	u64 slices; // in which it ran because it was due
	u64 missed; // begun later than its deadline and a slice
	u64 boosts;
	u64 wait_max;
	u64 waits[WAIT_BUCKETS]; // of 0.1 ms each, the last one open
};

struct owed {
	u64 since; // NONE: nothing
	u64 ran;
};

// Of who has a deadline; touched by its processor alone.
struct seat {
	u64 booked; // slot, or NONE
	u64 by;
	struct owed owed;
	struct owed again;
	u64 event; // when the poll saw one, 0: none
	u64 events_seen;
};

struct account {
	s64 credit;
	s64 reserve;
	u64 given; // the processor's `given` when this was last settled
	u64 since; // charged up to here, while it runs
	u64 ready; // waits to run since then
	u64 boost_ran;
	u32 weight;
	s32 cpu;
	u32 boosted;
	u32 drawing;
	u32 soft; // runs what interrupts left: the poll among it
	u32 unused;
};

// Touched by its processor alone, under its run queue's lock; the poll only reads. So does another
// processor that takes a thread from here, but for the weight, which is changed by atomic additions.
struct cpu {
	u64 weight; // of who is runnable here
	u64 given; // to a unit of weight since the start, << SHIFT
	s64 pool; // used, and not yet given to anybody
	u64 epoch; // number of the last one
	u64 since; // this turn's beginning
	u32 lane;
	u32 tid; // who runs
	u32 next_tid;
	u32 next_lane;
};

struct cpu cpus[MAX_CPUS];
struct seat seats[MAX_CPUS * SEATS];

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_THREADS);
	__type(key, u32);
	__type(value, struct term);
} terms SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_THREADS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u32);
	__type(value, struct report);
} reports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS * SEATS);
	__type(key, u32);
	__type(value, struct place);
} places SEC(".maps");

// Counts events for a seat; whoever delivers them adds, without a system call, by mmap.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS * SEATS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, u64);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct knobs);
} knobs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct account);
} accounts SEC(".maps");

struct poll {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct poll);
} polls SEC(".maps");

static __always_inline struct cpu *cpu_at(s32 cpu)
{
	u32 at = cpu;

	if (at >= MAX_CPUS)
		return NULL;
	// The verifier wants the bound at the address, where the compiler would leave it out.
	barrier_var(at);
	return &cpus[at & (MAX_CPUS - 1)];
}

static __always_inline struct seat *seat_at(u32 seat)
{
	if (seat >= MAX_CPUS * SEATS)
		return NULL;
	barrier_var(seat);
	return &seats[seat & (MAX_CPUS * SEATS - 1)];
}

static __always_inline struct place *place_at(u32 seat)
{
	struct place *place = bpf_map_lookup_elem(&places, &seat);

	return place && place->tid ? place : NULL;
}

static __always_inline struct term *term_of(struct task_struct *p)
{
	u32 tid = p->pid;

	return bpf_map_lookup_elem(&terms, &tid);
}

static __always_inline struct report *report_of(struct task_struct *p)
{
	u32 tid = p->pid;

	return bpf_map_lookup_elem(&reports, &tid);
}

static __always_inline bool has_deadline(struct term *term)
{
	return term && (term->mode == PERIODIC || term->mode == APERIODIC);
}

#endif
