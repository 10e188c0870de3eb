//! The program of a micro-guest: an endless loop in ring 3.
//!
//! # Approach
//!
//! The program's loop counts how often it has run. When the event number in memory changes, the
//! loop records the time and the number. If there is a stream, the loop also sends each packet when
//! the packet is due, and records the time of sending. If there is a stream, the loop also computes
//! the configured number of rounds in every period. When the loop has no more work in a period, it
//! writes the time of its next packet or period to memory. After writing the time, the loop
//! executes an I/O instruction, which causes a VM exit. The module `board` names the words that the
//! loop reads and writes.
#![allow(unsafe_code, reason = "the program is linked into this one as bytes")]

use std::arch::global_asm;

use super::board::{SLEEP_PORT, STOP_PORT, offset};

global_asm!(
    ".pushsection .rodata.penstock_microguest, \"a\"",
    "penstock_microguest_begin:",
    // Registers. rdi: address of the board; rsi: address of the next packet; r8: rounds; r9: number
    // of the last event; r10: sent packets; r12: remaining rounds of this period; r13: start of the
    // next period.
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
    // An event has arrived.
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
    // The rounds of this period are done.
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

/// Returns the machine code of the guest's program, which runs at any address.
pub(super) fn code() -> &'static [u8] {
    let (begin, end) = (&raw const penstock_microguest_begin, &raw const penstock_microguest_end);
    // SAFETY: both symbols are in one read-only section, and the end follows the beginning.
    // WHY: there is no safe way to name bytes from `global_asm!`.
    unsafe { std::slice::from_raw_parts(begin, end.addr() - begin.addr()) }
}
