//! Hostile acts of frontends that remove the memory that they announced.
//!
//! A frontend could also announce a file on a file system that the frontend implements itself
//! (FUSE). Reads of a FUSE file could take arbitrarily long. No test mounts a FUSE file system. The
//! tests announce other files that are not memory: a file on a disk, `/dev/zero` and a pipe. The
//! switch refuses every file that is not memory before it accesses the file system.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use penstock_guest::driver::{Descriptor, FaultyMemory, VirtioNet};
use vhost::vhost_user::VhostUserFrontend;
use vhost::{VhostBackend, VhostUserDirtyLogRegion};

use crate::acts::Stage;

/// Guest address of the memory region that the hostile frontend announces.
const GUEST: u64 = 1 << 40;
const LEN: u64 = 1 << 20;

/// Makes the switch read a frame at `offset` in the announced memory region.
fn touch(evil: &mut VirtioNet, offset: u64) {
    let mut raw = evil.raw(1);
    let at = raw.avail_idx();
    let slot = at % raw.size();
    let frame = Descriptor { addr: GUEST + offset, len: 100, flags: 0, next: 0 };
    raw.write_desc(slot, frame);
    raw.write_avail(slot, slot);
    raw.write_avail_idx(at.wrapping_add(1));
    raw.kick();
}

fn announce(evil: &mut VirtioNet, memory: &FaultyMemory, offset: u64) -> bool {
    let region = memory.region(GUEST, offset);
    evil.frontend().is_ok_and(|frontend| frontend.add_mem_region(&region).is_ok())
}

fn withdraw(evil: &mut VirtioNet, memory: &FaultyMemory, offset: u64) {
    let region = memory.region(GUEST, offset);
    let _ = evil.frontend().is_ok_and(|frontend| frontend.remove_mem_region(&region).is_ok());
}

/// Repeats rounds. In each round, the guest announces memory from `make` and sends a frame from the
/// memory. The closure `harm` then damages the memory, and the guest sends frames from the memory
/// again.
fn takes_away(
    stage: &Stage,
    make: impl Fn() -> FaultyMemory,
    harm: impl Fn(&FaultyMemory, &mut VirtioNet),
) {
    let mut evil = stage.evil();
    while stage.goes_on() {
        let memory = make();
        if announce(&mut evil, &memory, 0) {
            touch(&mut evil, 0);
            harm(&memory, &mut evil);
            for page in [2, 1, 100] {
                touch(&mut evil, page * 0x1000);
            }
            withdraw(&mut evil, &memory, 0);
        }
        // The session has usually ended, so the driver reconnects.
        let _ = evil.try_reconnect();
    }
}

pub fn shortens(stage: &Stage) {
    let memory = || FaultyMemory::new(LEN).unwrap();
    takes_away(stage, memory, |memory, _| memory.shrink(0x1000).unwrap());
}

pub fn punches(stage: &Stage) {
    let memory = || FaultyMemory::new(LEN).unwrap();
    takes_away(stage, memory, |memory, _| memory.punch(0, LEN).unwrap());
}

/// Replaces the announced memory region by another file at the same addresses, and then shrinks
/// both files.
pub fn replaces(stage: &Stage) {
    let memory = || FaultyMemory::new(LEN).unwrap();
    takes_away(stage, memory, |memory, evil| {
        let other = FaultyMemory::new(LEN).unwrap();
        announce(evil, &other, 0);
        withdraw(evil, memory, 0);
        announce(evil, &other, 0);
        memory.shrink(0).unwrap();
        other.shrink(0x8000).unwrap();
    });
}

/// Creates a file on a separate tmpfs with huge blocks. Returns `None` if no tmpfs with huge blocks
/// can be mounted.
fn huge_tmpfs() -> Option<File> {
    let dir = std::env::temp_dir().join(format!("penstock-huge-{}", std::process::id()));
    std::fs::create_dir_all(&dir).ok()?;
    let none = None::<&str>;
    // Only this thread sees the mount, which disappears when the thread ends.
    let mounted = unshare(CloneFlags::CLONE_NEWNS).is_ok()
        && mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).is_ok()
        && mount(Some("tmpfs"), &dir, Some("tmpfs"), MsFlags::empty(), Some("huge=always")).is_ok();
    let path = dir.join("guest");
    let open = File::options().read(true).write(true).create_new(mounted).open(path);
    open.ok().filter(|_| mounted)
}

/// Announces memory with blocks of 2 MiB and pages of 4 KiB. The announced memory region ends
/// inside a memory block of 2 MiB.
pub fn odd_blocks(stage: &Stage) {
    let file = huge_tmpfs();
    if file.is_none() {
        penstock_testing::skip(
            "no tmpfs with huge=always can be mounted here; a memfd is tested instead",
        );
    }
    let make = || match &file {
        Some(file) => FaultyMemory::of(file.try_clone().unwrap(), LEN + 0x3000).unwrap(),
        None => FaultyMemory::new(LEN + 0x3000).unwrap(),
    };
    takes_away(stage, make, |memory, _| memory.shrink(0x2800).unwrap());
}

/// Announces memory regions and logs at unaligned offsets, and close to the end of the file.
pub fn odd_offsets(stage: &Stage) {
    let mut evil = stage.evil();
    while stage.goes_on() {
        let memory = FaultyMemory::new(LEN).unwrap();
        for offset in [0x4, 0xff4, LEN - 1, 0x8010] {
            if announce(&mut evil, &memory, offset) {
                touch(&mut evil, 0);
                memory.shrink(offset & !0xfff).unwrap();
                touch(&mut evil, (LEN - offset).saturating_sub(0x400));
                memory.shrink(LEN).unwrap();
                withdraw(&mut evil, &memory, offset);
            }
            let log = VhostUserDirtyLogRegion {
                mmap_size: 0x1000 - (offset & 0xff0),
                mmap_offset: offset & !0xf0f,
                mmap_handle: memory.descriptor(),
            };
            let _ = evil.frontend().is_ok_and(|f| f.set_log_base(0, Some(log)).is_ok());
            let _ = evil.try_reconnect();
            stage.rounds.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Announces files that are not memory as memory regions.
pub fn no_memory(stage: &Stage) {
    let mut evil = stage.evil();
    let path = std::env::current_exe().unwrap();
    let (pipe, _) = nix::unistd::pipe().unwrap();
    let zero = File::options().read(true).write(true).open("/dev/zero").unwrap();
    let others: [OwnedFd; 3] = [File::open(path).unwrap().into(), zero.into(), pipe];
    while stage.goes_on() {
        for other in &others {
            let memory = FaultyMemory::new(LEN).unwrap();
            let mut region = memory.region(GUEST, 0);
            region.mmap_handle = std::os::fd::AsRawFd::as_raw_fd(other);
            let taken = evil.frontend().is_ok_and(|f| f.add_mem_region(&region).is_ok());
            assert!(!taken, "{other:?} is no memory");
            let _ = evil.try_reconnect();
            stage.rounds.fetch_add(1, Ordering::Relaxed);
        }
    }
}
