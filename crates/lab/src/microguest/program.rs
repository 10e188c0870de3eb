//! The guest's program: a loop in ring 3 that never ends by itself.
//!
//! # Approach
//!
//! The loop counts its rounds. When the number of the last event in memory changes, the loop notes
//! the time and the number. With a stream, it also sends each packet when it is due and notes that
//! time. It computes for a number of rounds in every period. If no packet is due and no rounds are
//! left, the loop writes the time until which it has nothing to do. It then leaves the processor by
//! an I/O instruction. `board` names the words that the loop reads and writes.
#![allow(unsafe_code, reason = "the program is linked into this one as bytes")]

use std::arch::global_asm;

use super::board::{SLEEP_PORT, STOP_PORT, offset};

global_asm!(
    ".pushsection .rodata.penstock_microguest, \"a\"",
    "penstock_microguest_begin:",
    // Registers. rdi: the board; rsi: the next packet; r8: rounds; r9: the last event; r10: packets
    // sent; r12: rounds left in this period; r13: when the next period begins.
    "2:",
    "inc r8",
    "mov [rdi + {rounds}], r8",
    "mov rax, [rdi + {event}]",
    "cmp rax, r9",
    "jne 5f",
    "3:",
    "cmp r10, [rdi + {packets}]",
    "jae 2b",
    "rdtsc",
    "shl rdx, 32",
    "or rax, rdx",
    "cmp rax, [rsi]",
    "jae 6f",
    "test r12, r12",
    "jz 7f",
    "dec r12",
    "jmp 2b",
    // An event has come.
    "5:",
    "mov r9, rax",
    "rdtsc",
    "shl rdx, 32",
    "or rax, rdx",
    "mov [rdi + {answered_at}], rax",
    "mov [rdi + {answered}], r9",
    "cmp r9, -1",
    "jne 3b",
    "mov edx, {stop_port}",
    "out dx, al",
    "jmp 2b",
    // A packet is due.
    "6:",
    "mov [rsi + 8], rax",
    "add rsi, 16",
    "inc r10",
    "mov [rdi + {sent}], r10",
    "jmp 2b",
    // No rounds are left.
    "7:",
    "cmp rax, r13",
    "jae 8f",
    "mov rdx, [rsi]",
    "cmp r13, rdx",
    "cmovb rdx, r13",
    "mov [rdi + {idle_until}], rdx",
    "mov edx, {sleep_port}",
    "out dx, al",
    "jmp 2b",
    // A period begins.
    "8:",
    "mov r12, [rdi + {work}]",
    "test r13, r13",
    "cmovz r13, rax",
    "add r13, [rdi + {period}]",
    "jmp 2b",
    "penstock_microguest_end:",
    ".popsection",
    rounds = const offset::ROUNDS,
    event = const offset::EVENT,
    answered = const offset::ANSWERED,
    answered_at = const offset::ANSWERED_AT,
    packets = const offset::PACKETS,
    sent = const offset::SENT,
    work = const offset::WORK,
    period = const offset::PERIOD,
    idle_until = const offset::IDLE_UNTIL,
    sleep_port = const SLEEP_PORT,
    stop_port = const STOP_PORT,
);

unsafe extern "C" {
    static penstock_microguest_begin: u8;
    static penstock_microguest_end: u8;
}

/// The guest's machine code, which runs at any address.
pub(super) fn code() -> &'static [u8] {
    let (begin, end) = (&raw const penstock_microguest_begin, &raw const penstock_microguest_end);
    // SAFETY: both lie in one section of constants, the end behind the beginning.
    // WHY: bytes that the assembler made have no safe name.
    unsafe { std::slice::from_raw_parts(begin, end.addr() - begin.addr()) }
}
