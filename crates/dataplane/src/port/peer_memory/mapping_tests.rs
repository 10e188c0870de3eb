use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::os::unix::fs::FileExt;

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::super::MemoryLimits;
use super::*;
use crate::port::dirty_log::DirtyLog;
use crate::port::guest_memory::{GuestMemory, RegionSpec};
use crate::port::inflight::{InflightRegion, RingLayout};

fn file(name: &std::ffi::CStr, len: u64) -> File {
    let file = File::from(memfd_create(name, MFdFlags::MFD_CLOEXEC).unwrap());
    file.set_len(len).unwrap();
    file
}

/// Accesses the byte at address `at` in the same way as a write of the switch.
fn touch(at: usize) -> u8 {
    // SAFETY: the address lies in a mapping that the caller holds. WHY: it was found in smaps.
    unsafe { AtomicU8::from_ptr(at as *mut u8) }.fetch_add(1, Relaxed)
}

/// Start, end, name and flags of every mapping of this process.
fn smaps() -> Vec<(usize, usize, String, String)> {
    let mut found: Vec<(usize, usize, String, String)> = Vec::new();
    for line in std::fs::read_to_string("/proc/self/smaps").unwrap().lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            found.last_mut().unwrap().3 = flags.to_owned();
            continue;
        }
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let Some((from, to)) = range else { continue };
        let number = |text| usize::from_str_radix(text, 16);
        if let (Ok(from), Ok(to)) = (number(from), number(to)) {
            found.push((from, to, line.to_owned(), String::new()));
        }
    }
    found
}

/// Whether the mapping that contains address `at` is excluded from core files.
fn is_left_out(at: usize) -> bool {
    let all = smaps();
    let (.., flags) = all.iter().find(|(from, to, ..)| (*from..*to).contains(&at)).unwrap();
    flags.split_whitespace().any(|flag| flag == "dd")
}

#[test]
fn no_memory_of_a_peer_is_in_a_core_file_also_after_it_was_replaced() {
    let account = MemoryAccount::default();
    let files = [c"dump-guest", c"dump-log", c"dump-inflight"].map(|name| file(name, 0x4000));
    let [guest, log, inflight] = &files;
    let region =
        RegionSpec { guest: 0, user: 0, len: 0x4000, offset: 0, file: guest.try_clone().unwrap() };
    let _guest = GuestMemory::map(&account, vec![region]).unwrap();
    let _log = DirtyLog::map(&account, log, 0, 0x4000).unwrap();
    let (split, queues) = (RingLayout::Split, (1, 16));
    let _inflight = InflightRegion::map(&account, split, inflight, 0, 0x4000, queues).unwrap();
    let all = smaps();
    for (name, file) in ["dump-guest", "dump-log", "dump-inflight"].into_iter().zip(&files) {
        let (at, ..) = *all.iter().find(|(.., line, _)| line.contains(name)).unwrap();
        assert!(is_left_out(at), "{name}: mapped");
        file.set_len(0x1000).unwrap();
        let gone = at + 0x1000;
        assert_eq!((touch(gone), touch(gone)), (0, 1), "{name}: replaced, and writable");
        assert!(
            is_left_out(gone),
            "{name}: a core dump contains the pages that replaced the guest's memory"
        );
        assert!(
            is_left_out(at),
            "{name}: a core dump has the guest's pages that were not replaced"
        );
    }
}

#[test]
fn only_the_pages_of_the_stretch_are_mapped_and_all_are_given_back() {
    let account = MemoryAccount::default();
    let sparse = file(c"sparse", 4 << 30);
    sparse.write_all_at(&[7, 8], (3 << 30) + 0x1fff).unwrap();
    let far = Mapping::new(&account, &sparse, 3 << 30, 0x1000).unwrap();
    assert_eq!(account.mapped(), 0x1000, "the mapping must not include the file's first 3 GiB");
    let odd = Mapping::new(&account, &sparse, (3 << 30) + 0x1fff, 2).unwrap();
    assert_eq!(account.mapped(), 0x3000, "the two bytes are on two pages");
    let at = odd.at().as_ptr() as usize;
    assert_eq!((touch(at), touch(at + 1)), (7, 8));
    drop(far);
    drop(odd);
    assert_eq!(account.mapped(), 0);
    // A refused mapping leaves no state behind, whatever the reason of the refusal.
    let huge = file(c"huge", MemoryLimits::default().port + 0x1000);
    let len = MemoryLimits::default().port + 0x1000;
    let refused = Mapping::new(&account, &huge, 0, len).unwrap_err();
    assert!(matches!(refused, MappingError::Limit { mapped: 0, .. }), "{refused}");
    let sealed = file(c"read-only", 0x1000);
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&sealed));
    let refused = Mapping::new(&account, &File::open(path).unwrap(), 0, 0x1000).unwrap_err();
    assert!(matches!(refused, MappingError::Kernel { call: "mmap", .. }), "{refused}");
    assert_eq!(account.mapped(), 0);
}
