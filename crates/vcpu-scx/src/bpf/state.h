// SPDX-License-Identifier: MIT OR GPL-2.0-only
// State of the scheduler, and data shared with user space. `src/wire.rs` has the same layouts of
// `struct term`, `struct place`, `struct knobs` and `struct report`.
#ifndef PENSTOCK_STATE_H
#define PENSTOCK_STATE_H

#include "kernel.h"

#define MAX_CPUS 256
// Maximum number of deadlines on one processor. Admission permits 0.7 of a processor, which is 8
// deadlines of 5.5 ms.
#define SEATS 8
#define MAX_THREADS 4096
#define WAIT_BUCKETS 256

#define US 1000ULL
#define MS (1000 * US)
#define SLICE (500 * US)
#define CREDIT_SLICE (30 * MS)
#define EPOCH (30 * MS)
#define TICK (10 * MS)
// A thread that waited this long gets a slice regardless of its credits. Without this rule, a
// thread of nice 19 beside two of nice 0 would get 30 ms once in 2 s. Beside more or heavier
// threads, it would wait until the kernel removes the scheduler (`timeout_ms`).
#define STARVED (2000 * MS)
#define FLOOR_EPOCHS 10
#define WAIT_BUCKET (100 * US)
#define NONE (~0ULL)
// Weight of a thread of nice 0. A configured weight of 1 has the same value.
#define WEIGHT_ONE 100
// Fraction bits of the credits given to a unit of weight.
#define SHIFT 16

enum mode { BY_CREDIT, PERIODIC, APERIODIC, DRIVER };
enum lane { IDLE, LANE_CREDIT, LANE_STARVED, LANE_DEADLINE, LANE_DRIVER };
enum class { OVER, UNDER, BOOST, LONGEST };

// A thread's contract. The map's key is the thread number.
struct term {
	u32 mode;
	u32 weight;
	u32 reserve_pct;
	u32 seat; // with a deadline: cpu * SEATS + n
	u64 deadline;
};

// A seat: a thread with a deadline on a processor, and its own slots. User space writes it.
struct place {
	u32 tid; // 0: free
	u32 window;
	u32 period;
	u32 phase;
};

struct knobs {
	u32 stall; // for tests: 1 stops dispatching
	u32 ended;
	s32 kind;
	u32 unused;
	char reason[64];
	char msg[128];
};

// Measured times of a configured thread.
struct report {
	u64 runs;
	u64 ran;
	u64 slices; // runs that began because a deadline was due
	u64 missed; // runs that began later than deadline plus slice
	u64 boosts;
	u64 wait_max;
	u64 waits[WAIT_BUCKETS]; // buckets of 0.1 ms; the last has no upper end
};

struct owed {
	u64 since; // NONE: no slice is owed
	u64 ran;
};

// State of a seat. Only its processor changes it.
struct seat {
	u64 booked; // slot number, or NONE
	u64 by;
	struct owed owed;
	struct owed again;
	u64 event; // when the poll found one; 0: none
	u64 events_seen;
};

struct account {
	s64 credit;
	s64 reserve;
	u64 given; // the processor's `given` at the last settlement
	u64 since; // charged until then, while the thread runs
	u64 ready; // waits since then
	u64 boost_ran;
	u32 weight;
	s32 cpu;
	u32 boosted;
	u32 drawing;
	u32 soft; // ksoftirqd, which also runs the poll
	u32 unused;
};

// State of a processor. Only the processor changes it, under its run queue's lock. The poll only
// reads it. A processor that steals a thread from here also reads it, and changes the weight by
// atomic additions.
struct cpu {
	u64 weight; // sum of the runnable threads' weights
	u64 given; // credits given to a unit of weight so far, << SHIFT
	s64 pool; // used time not yet given as credits
	u64 epoch; // number of the last epoch
	u64 since; // beginning of this turn
	u32 lane;
	u32 tid; // running thread; 0: none
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

// Counters of events, by seat. A process that delivers an event adds 1 through mmap, without a
// system call.
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
	// The verifier needs the bound at the address. Without the barrier, the compiler would
	// remove it.
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
