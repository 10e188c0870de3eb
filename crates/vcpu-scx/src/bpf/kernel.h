// SPDX-License-Identifier: MIT OR GPL-2.0-only
// Declarations of the kernel that the program uses. The loader finds fields by name (CO-RE), so one
// object works on every kernel with sched_ext. The kernel only needs the fields declared here.
#ifndef PENSTOCK_KERNEL_H
#define PENSTOCK_KERNEL_H

#include <linux/types.h>
#include <stdbool.h>

typedef __u8 u8;
typedef __u32 u32;
typedef __s32 s32;
typedef __u64 u64;
typedef __s64 s64;

// From <linux/bpf.h>, which differs between distributions.
enum { BPF_MAP_TYPE_HASH = 1, BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_TASK_STORAGE = 29 };
enum { BPF_F_NO_PREALLOC = 1, BPF_F_TIMER_ABS = 1, BPF_F_TIMER_CPU_PIN = 2, BPF_F_MMAPABLE = 1024 };
enum { BPF_LOCAL_STORAGE_GET_F_CREATE = 1, CLOCK_MONOTONIC = 1 };

struct bpf_timer {
	u64 opaque[2];
} __attribute__((aligned(8)));

struct bpf_iter_num {
	u64 opaque[1];
} __attribute__((aligned(8)));

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#define FOUND_BY_NAME __attribute__((preserve_access_index))

struct sched_ext_entity {
	u32 weight;
	u32 flags;
	u64 slice;
} FOUND_BY_NAME;

struct task_struct {
	int pid;
	int tgid;
	char comm[16];
	struct sched_ext_entity scx;
} FOUND_BY_NAME;

struct scx_init_task_args;
struct scx_exit_task_args;

enum scx_exit_kind { SCX_EXIT_NONE };

struct scx_exit_info {
	enum scx_exit_kind kind;
	const char *reason;
	char *msg;
} FOUND_BY_NAME;

// The running kernel supplies the values. These values are only placeholders.
enum scx_enq_flags { SCX_ENQ_WAKEUP = 1, SCX_ENQ_HEAD = 16 };
enum scx_deq_flags { SCX_DEQ_SLEEP = 1 };
enum scx_ent_flags { SCX_TASK_QUEUED = 1 };

#define VALUE_OF(type, name) bpf_core_enum_value(enum type, name)

#define SCX_DSQ_LOCAL ((1ULL << 63) | 2)
#define SCX_ENQ_PREEMPT (1ULL << 32)
#define SCX_KICK_IDLE 1
#define SCX_KICK_PREEMPT 2

// Missing members are 0 in the kernel's structure.
struct sched_ext_ops {
	s32 (*select_cpu)(struct task_struct *p, s32 prev_cpu, u64 wake_flags);
	void (*enqueue)(struct task_struct *p, u64 enq_flags);
	void (*dispatch)(s32 cpu, struct task_struct *prev);
	void (*runnable)(struct task_struct *p, u64 enq_flags);
	void (*running)(struct task_struct *p);
	void (*stopping)(struct task_struct *p, bool runnable);
	void (*quiescent)(struct task_struct *p, u64 deq_flags);
	s32 (*init_task)(struct task_struct *p, struct scx_init_task_args *args);
	s32 (*init)(void);
	void (*exit)(struct scx_exit_info *info);
	u64 flags;
	u32 timeout_ms;
	char name[128];
};

struct bpf_iter_scx_dsq {
	u64 opaque[6];
} __attribute__((aligned(8)));

s32 scx_bpf_create_dsq(u64 dsq_id, s32 node) __ksym;
s32 scx_bpf_select_cpu_dfl(struct task_struct *p, s32 prev_cpu, u64 wake_flags,
			   bool *is_idle) __ksym;
void scx_bpf_dsq_insert(struct task_struct *p, u64 dsq_id, u64 slice, u64 enq_flags) __ksym;
bool scx_bpf_dsq_move_to_local(u64 dsq_id) __ksym;
bool scx_bpf_dsq_move(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq_id,
		      u64 enq_flags) __ksym;
void scx_bpf_dsq_move_set_slice(struct bpf_iter_scx_dsq *it, u64 slice) __ksym;
void scx_bpf_kick_cpu(s32 cpu, u64 flags) __ksym;
s32 scx_bpf_dsq_nr_queued(u64 dsq_id) __ksym;
s32 scx_bpf_task_cpu(const struct task_struct *p) __ksym;
u32 scx_bpf_nr_cpu_ids(void) __ksym;
int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, u64 dsq_id, u64 flags) __ksym;
struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it) __ksym;
void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it) __ksym;

#endif
