// SPDX-License-Identifier: MIT OR GPL-2.0-only
// Two run queues on each processor, as the kernel's scheduler: by deadline and by credit.
//
// The rules are those of penstock-vcpu's `double_queue`, built on sched_ext. All threads that wait
// on a processor are in one dispatch queue, which has the processor's number. When the processor
// decides, it searches this queue for the next thread. So no order must be maintained. State of a
// processor changes only under its run queue's lock. The processor's timer runs every 0.5 ms and
// only checks whether a new decision is due.
//
// Threads without a contract, including the kernel's, have an account with a weight by their nice
// value. A thread that mostly sleeps is boosted when it wakes. A thread that computes for long
// waits like others. Only ksoftirqd runs before all others, as the driver domain does, because it
// runs the poll on a busy processor.
#include "credit.h"
#include "deadline.h"

// Either licence applies. The kernel offers its functions only to programs under the GPL.
char _license[] SEC("license") = "Dual MIT/GPL";

u32 nr_cpus = 1;

static __always_inline struct account *account_of(struct task_struct *p)
{
	return bpf_task_storage_get(&accounts, p, NULL, 0);
}

static __always_inline bool is_driver(struct account *a, struct term *term)
{
	return a->soft || (term && term->mode == DRIVER);
}

static __always_inline bool stalled(void)
{
	u32 zero = 0;
	struct knobs *k = bpf_map_lookup_elem(&knobs, &zero);

	return k && k->stall;
}

static __always_inline u32 weight_of(struct task_struct *p, struct term *term)
{
	u32 weight = term ? term->weight * WEIGHT_ONE : p->scx.weight;

	return weight ? weight : 1;
}

// The kernel moves runnable threads without a callback. The move is noticed when the thread is
// queued or runs.
static __always_inline void note_move(struct cpu *c, s32 cpu, struct account *a, struct term *term)
{
	if (a->cpu == cpu)
		return;
	arrive(cpu_at(a->cpu), c, a, term);
	a->cpu = cpu;
}

SEC("struct_ops.s/init_task")
s32 BPF_PROG(penstock_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct account *a = bpf_task_storage_get(&accounts, p, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	char name[16] = {};

	if (!a)
		return -12; // ENOMEM
	a->cpu = -1;
	bpf_probe_read_kernel(name, sizeof(name), p->comm);
	a->soft = !bpf_strncmp(name, 9, "ksoftirqd");
	return 0;
}

SEC("struct_ops/select_cpu")
s32 BPF_PROG(penstock_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	bool idle = false;
	s32 cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &idle);

	if (idle && !stalled())
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, CREDIT_SLICE, 0);
	return cpu;
}

SEC("struct_ops/runnable")
void BPF_PROG(penstock_runnable, struct task_struct *p, u64 enq_flags)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct cpu *c = cpu_at(cpu);
	struct account *a = account_of(p);
	struct term *term = term_of(p);
	u64 now = bpf_ktime_get_ns();

	if (!c || !a)
		return;
	account(c, now);
	if (a->cpu == cpu && (enq_flags & VALUE_OF(scx_enq_flags, SCX_ENQ_WAKEUP)))
		take_for_sleep(c, a, term);
	a->given = c->given;
	a->cpu = cpu;
	a->weight = weight_of(p, term);
	a->ready = now;
	weigh(c, a->weight);
	if (!(enq_flags & VALUE_OF(scx_enq_flags, SCX_ENQ_WAKEUP)))
		return;
	if (boost(a)) {
		struct report *report = report_of(p);

		if (report)
			report->boosts++;
	}
	if (has_deadline(term))
		owe(term, now, now);
}

SEC("struct_ops/quiescent")
void BPF_PROG(penstock_quiescent, struct task_struct *p, u64 deq_flags)
{
	struct account *a = account_of(p);
	struct cpu *c;

	if (!a)
		return;
	c = cpu_at(a->cpu);
	if (!c)
		return;
	settle(c, a, term_of(p));
	weigh(c, -(s64)a->weight);
	end_boost(a);
}

SEC("struct_ops/enqueue")
void BPF_PROG(penstock_enqueue, struct task_struct *p, u64 enq_flags)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct cpu *c = cpu_at(cpu);
	struct account *a = account_of(p);
	struct term *term = term_of(p);

	if (!c || !a)
		return;
	note_move(c, cpu, a, term);
	if (is_driver(a, term)) {
		u64 flags = c->lane == LANE_DRIVER ? 0 : SCX_ENQ_PREEMPT;

		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, CREDIT_SLICE, enq_flags | flags);
		return;
	}
	scx_bpf_dsq_insert(p, cpu, CREDIT_SLICE, enq_flags);
	if (c->lane == IDLE)
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	else if (c->lane == LANE_CREDIT && a->boosted &&
		 (enq_flags & VALUE_OF(scx_enq_flags, SCX_ENQ_WAKEUP)))
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
}

// Moves the thread with this number from the processor's queue to the front of the processor.
static __always_inline bool take(s32 cpu, u32 tid, u64 slice)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	bool taken = false;

	if (bpf_iter_scx_dsq_new(&it, cpu, 0)) {
		bpf_iter_scx_dsq_destroy(&it);
		return false;
	}
	while ((p = bpf_iter_scx_dsq_next(&it))) {
		if (p->pid != tid)
			continue;
		scx_bpf_dsq_move_set_slice(&it, slice);
		taken = scx_bpf_dsq_move(&it, p, SCX_DSQ_LOCAL, 0);
		break;
	}
	bpf_iter_scx_dsq_destroy(&it);
	return taken;
}

struct choice {
	u32 tid;
	u32 class;
	s64 credit;
};

// Finds the best of `best` and the waiting threads, by class and then by credits. Starving threads
// go first, in the order of their waits.
static __always_inline void choose(s32 cpu, struct cpu *c, u64 now, struct choice *best)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;

	if (bpf_iter_scx_dsq_new(&it, cpu, 0)) {
		bpf_iter_scx_dsq_destroy(&it);
		return;
	}
	while ((p = bpf_iter_scx_dsq_next(&it))) {
		struct account *a = account_of(p);
		u32 class;
		s64 credit;

		if (!a)
			continue;
		settle(c, a, term_of(p));
		class = class_of(a);
		credit = a->credit;
		if (now > a->ready + STARVED) {
			class = LONGEST;
			credit = -(s64)a->ready;
		}
		if (!best->tid || class > best->class ||
		    (class == best->class && credit > best->credit)) {
			best->tid = p->pid;
			best->class = class;
			best->credit = credit;
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
}

static __always_inline void begin_turn(struct cpu *c, u32 tid, u32 lane)
{
	c->next_tid = tid;
	c->next_lane = lane;
}

// Charges the running thread. Returns whether it may continue.
static __always_inline bool charge_running(struct cpu *c, struct task_struct *prev, u64 now,
					   struct choice *best)
{
	struct account *a;
	struct report *report;
	struct term *term;
	u64 ran;

	if (!prev || !(prev->scx.flags & VALUE_OF(scx_ent_flags, SCX_TASK_QUEUED)))
		return false;
	a = account_of(prev);
	if (!a)
		return false;
	term = term_of(prev);
	ran = charge(c, a, now);
	if (has_deadline(term))
		count_owed(term, ran);
	report = report_of(prev);
	if (report)
		report->ran += ran;
	settle(c, a, term);
	best->tid = prev->pid;
	best->class = class_of(a);
	best->credit = a->credit;
	return true;
}

// A processor without work takes a thread that may move from another processor.
static __always_inline void steal(s32 cpu)
{
	struct bpf_iter_num it;
	int *n;

	bpf_iter_num_new(&it, 1, nr_cpus);
	while ((n = bpf_iter_num_next(&it))) {
		u32 other = (cpu + *n) % nr_cpus;

		if (scx_bpf_dsq_nr_queued(other) > 0 && scx_bpf_dsq_move_to_local(other))
			break;
	}
	bpf_iter_num_destroy(&it);
}

SEC("struct_ops/dispatch")
void BPF_PROG(penstock_dispatch, s32 cpu, struct task_struct *prev)
{
	struct cpu *c = cpu_at(cpu);
	u64 now = bpf_ktime_get_ns();
	struct choice best = {};
	u32 tid;
	bool goes_on;

	if (!c || stalled())
		return;
	goes_on = charge_running(c, prev, now, &best);
	account(c, now);
	take_events(cpu, now);
	tid = due(cpu, now, goes_on ? best.tid : 0);
	if (tid) {
		begin_turn(c, tid, LANE_DEADLINE);
		if (take(cpu, tid, SLICE))
			return;
	}
	choose(cpu, c, now, &best);
	if (!best.tid) {
		steal(cpu);
		return;
	}
	if (best.class == LONGEST) {
		begin_turn(c, best.tid, LANE_STARVED);
		take(cpu, best.tid, SLICE);
		return;
	}
	begin_turn(c, best.tid, LANE_CREDIT);
	if (goes_on && prev && best.tid == prev->pid) {
		prev->scx.slice = CREDIT_SLICE;
		c->lane = LANE_CREDIT;
		c->since = now;
		return;
	}
	take(cpu, best.tid, CREDIT_SLICE);
}

// Records how long a thread waited, and whether it missed its deadline.
static __always_inline void note_wait(struct task_struct *p, struct account *a, struct term *term,
				      u32 lane, u64 now)
{
	struct report *report = report_of(p);
	u64 wait = now > a->ready ? now - a->ready : 0;
	struct seat *seat;
	u64 at = wait / WAIT_BUCKET;

	if (!report)
		return;
	report->runs++;
	if (lane == LANE_DEADLINE)
		report->slices++;
	if (wait > report->wait_max)
		report->wait_max = wait;
	if (at > WAIT_BUCKETS - 1)
		at = WAIT_BUCKETS - 1;
	report->waits[at]++;
	if (!has_deadline(term))
		return;
	seat = seat_at(term->seat);
	if (seat && seat->owed.since != NONE && now > seat->owed.since + term->deadline + SLICE &&
	    !seat->owed.ran)
		report->missed++;
}

SEC("struct_ops/running")
void BPF_PROG(penstock_running, struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct cpu *c = cpu_at(cpu);
	struct account *a = account_of(p);
	struct term *term = term_of(p);
	u64 now = bpf_ktime_get_ns();

	if (!c || !a)
		return;
	note_move(c, cpu, a, term);
	c->since = now;
	c->tid = p->pid;
	c->lane = LANE_CREDIT;
	if (is_driver(a, term))
		c->lane = LANE_DRIVER;
	else if (c->next_tid == c->tid)
		c->lane = c->next_lane;
	c->next_tid = 0;
	a->since = now;
	note_wait(p, a, term, c->lane, now);
}

SEC("struct_ops/stopping")
void BPF_PROG(penstock_stopping, struct task_struct *p, bool runnable)
{
	struct cpu *c = cpu_at(scx_bpf_task_cpu(p));
	struct account *a = account_of(p);
	struct term *term = term_of(p);
	u64 now = bpf_ktime_get_ns(), ran;
	struct report *report;

	if (!c || !a)
		return;
	c->lane = IDLE;
	c->tid = 0;
	account(c, now);
	settle(c, a, term);
	ran = charge(c, a, now);
	a->ready = now;
	report = report_of(p);
	if (report)
		report->ran += ran;
	if (!has_deadline(term))
		return;
	count_owed(term, ran);
	requeue(term, runnable, now);
}

// Returns whether an event arrived for a thread with a deadline.
static __always_inline bool see_events(s32 cpu, u64 now)
{
	struct bpf_iter_num it;
	bool any = false;
	int *n;

	bpf_iter_num_new(&it, 0, SEATS);
	while ((n = bpf_iter_num_next(&it))) {
		u32 at = cpu * SEATS + *n;
		struct seat *seat = seat_at(at);
		u64 *count = bpf_map_lookup_elem(&events, &at);

		if (!seat || !count || *count == seat->events_seen)
			continue;
		seat->events_seen = *count;
		if (!seat->event)
			seat->event = now;
		any = true;
	}
	bpf_iter_num_destroy(&it);
	return any;
}

static __always_inline bool must_decide(s32 cpu, u64 now)
{
	struct cpu *c = cpu_at(cpu);
	bool events;
	u64 ran;

	if (!c || c->lane == IDLE || c->lane == LANE_DRIVER || scx_bpf_dsq_nr_queued(cpu) <= 0)
		return false;
	events = see_events(cpu, now);
	ran = now > c->since ? now - c->since : 0;
	if (c->lane == LANE_DEADLINE)
		return ran >= SERVED;
	if (c->lane == LANE_STARVED && ran >= SERVED)
		return true;
	return events || ran >= CREDIT_SLICE || due(cpu, now, c->tid);
}

// Runs every 0.5 ms, at the beginning of a slot, on each processor for itself. A poll from another
// processor would need an interrupt between the two, and that processor could be slow to wake.
static int poll(void *map, u32 *cpu, struct poll *poll)
{
	u64 now = bpf_ktime_get_ns();

	if (must_decide(*cpu, now))
		scx_bpf_kick_cpu(*cpu, SCX_KICK_PREEMPT);
	bpf_timer_start(&poll->timer, (now / SLICE + 1) * SLICE,
			BPF_F_TIMER_ABS | BPF_F_TIMER_CPU_PIN);
	return 0;
}

// The loader runs this on each processor.
SEC("syscall")
int start_poll(void *unused)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct poll *p = bpf_map_lookup_elem(&polls, &cpu);

	if (!p)
		return 0;
	bpf_timer_init(&p->timer, &polls, CLOCK_MONOTONIC);
	bpf_timer_set_callback(&p->timer, poll);
	return bpf_timer_start(&p->timer, 0, BPF_F_TIMER_CPU_PIN);
}

SEC("struct_ops.s/init")
s32 BPF_PROG(penstock_init)
{
	struct bpf_iter_num it;
	s32 error = 0;
	int *n;

	nr_cpus = scx_bpf_nr_cpu_ids();
	if (nr_cpus > MAX_CPUS)
		return -22; // EINVAL
	bpf_iter_num_new(&it, 0, MAX_CPUS * SEATS);
	while ((n = bpf_iter_num_next(&it))) {
		struct seat *seat = seat_at(*n);

		if (seat)
			seat->booked = seat->owed.since = seat->again.since = NONE;
	}
	bpf_iter_num_destroy(&it);
	bpf_iter_num_new(&it, 0, nr_cpus);
	while (!error && (n = bpf_iter_num_next(&it)))
		error = scx_bpf_create_dsq(*n, -1);
	bpf_iter_num_destroy(&it);
	return error;
}

SEC("struct_ops/exit")
void BPF_PROG(penstock_exit, struct scx_exit_info *info)
{
	u32 zero = 0;
	struct knobs *k = bpf_map_lookup_elem(&knobs, &zero);

	if (!k)
		return;
	k->kind = info->kind;
	bpf_probe_read_kernel_str(k->reason, sizeof(k->reason), info->reason);
	bpf_probe_read_kernel_str(k->msg, sizeof(k->msg), info->msg);
	k->ended = 1;
}

SEC(".struct_ops.link")
struct sched_ext_ops penstock = {
	.select_cpu = (void *)penstock_select_cpu,
	.enqueue = (void *)penstock_enqueue,
	.dispatch = (void *)penstock_dispatch,
	.runnable = (void *)penstock_runnable,
	.running = (void *)penstock_running,
	.stopping = (void *)penstock_stopping,
	.quiescent = (void *)penstock_quiescent,
	.init_task = (void *)penstock_init_task,
	.init = (void *)penstock_init,
	.exit = (void *)penstock_exit,
	.timeout_ms = 5000,
	.name = "penstock",
};
