//! The input is a dirty log of any length at any offset of its file, and guest addresses that the
//! switch marks in the log.
//!
//! **Rule.** A bit of the log is set if, and only if, the bit's page was written and the log is
//! long enough for the bit. No byte outside the log changes. Marking a page causes no error if the
//! log's file was shortened.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use nix::sys::memfd::{MFdFlags, memfd_create};
use penstock_dataplane::port::dirty_log::{DirtyLog, LOG_BYTES_MAX, LOG_PAGE, RingLog};
use penstock_dataplane::port::peer_memory::MemoryAccount;

use crate::input::Input;

const FILE: u64 = 0x4000;

/// Runs the target on one input.
///
/// # Panics
/// Panics if a property of the target does not hold.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let file = File::from(memfd_create(c"fuzz", MFdFlags::MFD_CLOEXEC).expect("a memory file"));
    file.set_len(FILE).expect("a size");
    let offset = match input.below(8) {
        0 => input.u64(),
        n => 0x1000 * (n as u64 % 5),
    };
    let len = match input.below(8) {
        0 => input.u64(),
        1 => 0x1000,
        _ => 1 + u64::from(input.u8()),
    };
    let account = MemoryAccount::default();
    let log = DirtyLog::map(&account, &file, offset, len);
    let end = offset.checked_add(len);
    let lawful = offset.is_multiple_of(0x1000)
        && (1..=LOG_BYTES_MAX).contains(&len)
        && end.is_some_and(|end| end <= FILE);
    assert_eq!(log.is_ok(), lawful, "{len} bytes at {offset:#x}");
    let Ok(log) = log.map(Arc::new) else {
        assert_eq!(account.mapped(), 0, "a refused log is still mapped");
        return;
    };
    let ring = RingLog { log: Arc::clone(&log), used: input.bool().then(|| address(&mut input)) };
    // What the log's file holds.
    let mut marked = vec![0; usize::try_from(FILE).unwrap_or(0)];
    let from = usize::try_from(offset).unwrap_or(0);
    let own = from..from + usize::try_from(len).unwrap_or(0);
    let mut is_whole = true;
    while !input.is_empty() {
        let (at, bytes) = (address(&mut input), length(&mut input));
        match input.below(16) {
            0 if is_whole => {
                compare(&file, &marked);
                is_whole = false;
                file.set_len(u64::from(input.u16()) % FILE).expect("a size");
            }
            1..=4 => {
                ring.mark_used(at, bytes);
                if let Some(at) = ring.used.and_then(|used| used.checked_add(at)) {
                    note(&mut marked[own.clone()], at, bytes);
                }
            }
            _ => {
                log.mark(at, bytes);
                note(&mut marked[own.clone()], at, bytes);
            }
        }
    }
    if is_whole {
        compare(&file, &marked);
    }
    drop((ring, log));
    assert_eq!(account.mapped(), 0, "a dropped log is still mapped");
}

/// Sets the expected mark of each page of a write in `marked`, a copy of the log.
fn note(marked: &mut [u8], at: u64, bytes: u64) {
    let Some(last) = bytes.checked_sub(1).and_then(|more| at.checked_add(more)) else { return };
    for page in at / LOG_PAGE..=last / LOG_PAGE {
        let byte = usize::try_from(page / 8).ok().and_then(|byte| marked.get_mut(byte));
        let Some(byte) = byte else { return };
        *byte |= 1 << (page % 8);
    }
}

fn compare(file: &File, marked: &[u8]) {
    let mut bytes = vec![0; marked.len()];
    file.read_exact_at(&mut bytes, 0).expect("the file");
    let wrong = bytes.iter().zip(marked).position(|(found, wanted)| found != wanted);
    assert_eq!(wrong, None, "a wrong byte in the log's file");
}

fn address(input: &mut Input<'_>) -> u64 {
    match input.below(4) {
        0 => input.u64(),
        1 => u64::MAX - u64::from(input.u8()),
        _ => u64::from(input.u32() % 0x80_0000),
    }
}

fn length(input: &mut Input<'_>) -> u64 {
    match input.below(4) {
        0 => input.u64(),
        1 => u64::from(input.u16()),
        _ => u64::from(input.u8()),
    }
}
