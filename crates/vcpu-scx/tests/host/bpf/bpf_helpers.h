// SPDX-License-Identifier: MIT OR GPL-2.0-only
// Replaces the parts of libbpf that the program's headers use, for a program of this machine.
#define SEC(name)
#define __uint(name, value) int(*name)[value]
#define __type(name, value) value *name
#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
#define __noinline __attribute__((noinline))
#define __ksym
#define barrier_var(variable) asm volatile("" : "+r"(variable))

// All maps are empty.
static inline void *bpf_map_lookup_elem(void *map, const void *key)
{
	return 0;
}
