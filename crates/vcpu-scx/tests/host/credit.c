// SPDX-License-Identifier: MIT OR GPL-2.0-only
// Accounts of threads that processors steal from each other, by the rules of `credit.h`. The
// program runs random turns, thefts, sleeps and epochs, and checks the sums of the rules after
// each. It prints the first violation and exits with status 1.
#include <stdio.h>

#include "credit.h"

#define CPUS 3
#define THREADS 12
#define STEPS 400000

struct thread {
	struct account account;
	bool sleeps;
};

static struct thread threads[THREADS];
static u64 seed, state, now;

static u32 any(u32 below)
{
	state = state * 6364136223846793005ULL + 1442695040888963407ULL;
	return (state >> 33) % below;
}

// As `note_move` of the BPF program.
static void note_move(struct thread *t, s32 cpu)
{
	if (t->account.cpu == cpu)
		return;
	arrive(&cpus[t->account.cpu], &cpus[cpu], &t->account, NULL);
	t->account.cpu = cpu;
}

// Runs the thread with the most credits on the processor of `t`.
static void runs(struct thread *t)
{
	struct cpu *c = &cpus[t->account.cpu];

	for (u32 n = 0; n < THREADS; n++) {
		struct thread *other = &threads[n];

		if (other->sleeps || other->account.cpu != t->account.cpu)
			continue;
		settle(c, &other->account, NULL);
		if (other->account.credit > t->account.credit)
			t = other;
	}
	t->account.since = now;
	now += 1 + any(CREDIT_SLICE);
	account(c, now);
	settle(c, &t->account, NULL);
	charge(c, &t->account, now);
}

static void sleeps(struct thread *t)
{
	struct cpu *c = &cpus[t->account.cpu];

	settle(c, &t->account, NULL);
	weigh(c, -(s64)t->account.weight);
	t->sleeps = true;
}

static void wakes(struct thread *t, s32 cpu)
{
	struct cpu *c = &cpus[cpu];

	account(c, now);
	if (t->account.cpu == cpu)
		take_for_sleep(c, &t->account, NULL);
	t->account.given = c->given;
	t->account.cpu = cpu;
	t->account.weight = 1 + any(300);
	weigh(c, t->account.weight);
	t->sleeps = false;
}

static int wrong(u32 step, const char *what, s64 is, s64 most)
{
	printf("seed %llu, step %u: %s is %lld; the limit is %lld\n", (unsigned long long)seed,
	       step, what, (long long)is, (long long)most);
	return 1;
}

// Checks that all credits and pools cancel out, and that each processor's weight is the sum of its
// threads' weights.
static int check(u32 step)
{
	s64 sum = 0, most = 0, weights[CPUS] = {};

	for (u32 n = 0; n < THREADS; n++) {
		struct account *a = &threads[n].account;
		struct cpu *c = &cpus[a->cpu];

		if (!threads[n].sleeps) {
			settle(c, a, NULL);
			weights[a->cpu] += a->weight;
		}
		sum += a->credit;
		most = a->credit > most ? a->credit : most;
	}
	for (u32 cpu = 0; cpu < CPUS; cpu++)
		sum += cpus[cpu].pool;
	// At most an epoch for each thread.
	if (most > (s64)EPOCH * THREADS)
		return wrong(step, "a thread's credit", most, EPOCH * THREADS);
	// Divisions are rounded down: less than 1 us for each step.
	if (sum > 0 || sum < -(s64)step * 1000)
		return wrong(step, "the sum of all credits", sum, 0);
	for (u32 cpu = 0; cpu < CPUS; cpu++) {
		if (weights[cpu] != (s64)cpus[cpu].weight)
			return wrong(step, "a processor's weight", cpus[cpu].weight, weights[cpu]);
	}
	return 0;
}

int main(void)
{
	for (seed = 1; seed < 8; seed++) {
		state = seed;
		now = 1;
		__builtin_memset(cpus, 0, sizeof(cpus));
		__builtin_memset(threads, 0, sizeof(threads));
		for (u32 n = 0; n < THREADS; n++)
			threads[n].account.cpu = -1;
		for (u32 n = 0; n < THREADS; n++)
			wakes(&threads[n], n % CPUS);
		for (u32 step = 0; step < STEPS / 8; step++) {
			struct thread *t = &threads[any(THREADS)];
			u32 what = any(16);

			if (t->sleeps)
				wakes(t, any(CPUS));
			else if (what == 0)
				sleeps(t);
			else if (what < 3)
				note_move(t, any(CPUS));
			else
				runs(t);
			if (check(step))
				return 1;
		}
	}
	return 0;
}
