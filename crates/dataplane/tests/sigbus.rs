//! These tests shrink the memory files of guests while the switch uses them (datapath rule 11).
//! Guests have several memory regions, with small or huge pages. A SIGBUS outside the guest memory
//! regions still ends the process.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unsafe_code, reason = "memory mapped beside a region")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use penstock_dataplane::batch::Batch;
use penstock_dataplane::offload::Offload;
use penstock_dataplane::port::TxOutcome;
use penstock_dataplane::port::guest_memory::{GuestMemory, RegionSpec};
use penstock_dataplane::port::inflight::{InflightRegion, RingLayout};
use penstock_dataplane::port::peer_memory::MemoryAccount;
use penstock_dataplane::port::peer_memory::pages_replaced;
use penstock_dataplane::port::split_ring::{RingAddresses, RingSpec, SplitRing};

const USER: u64 = 0x7000_0000_0000;
const HUGE: u64 = 2 << 20;
/// Guest address of the second memory region.
const SECOND: u64 = 1 << 30;

fn memory_file(len: u64, huge: bool) -> File {
    let flags = if huge { MFdFlags::MFD_HUGETLB } else { MFdFlags::empty() };
    let file = File::from(memfd_create(c"guest", flags | MFdFlags::MFD_CLOEXEC).unwrap());
    file.set_len(len).unwrap();
    file
}

/// Writes bytes to the guest's memory at an address, as the guest does.
fn put(file: &File, at: u64, bytes: &[u8], huge: bool) {
    if huge {
        // Files of huge pages cannot be written to, but an empty ring is accessed as well.
        return;
    }
    file.write_all_at(bytes, at).unwrap();
}

fn ring(memory: &Arc<GuestMemory>) -> SplitRing {
    let at = RingAddresses { descriptors: USER, available: USER + 0x1000, used: USER + 0x2000 };
    SplitRing::new(RingSpec::new(64, at), Arc::clone(memory)).unwrap()
}

/// Runs a ring whose descriptors are in one memory region and whose buffers are in another memory
/// region. The test shrinks the memory files of both regions while the ring runs.
fn shrinks(len: u64, huge: bool) {
    let (first, second) = (memory_file(len, huge), memory_file(len, huge));
    let region = |guest: u64, file: &File| RegionSpec {
        guest,
        user: USER + guest,
        len,
        offset: 0,
        file: file.try_clone().unwrap(),
    };
    let regions = vec![region(0, &first), region(SECOND, &second)];
    let Ok(memory) = GuestMemory::map(&MemoryAccount::default(), regions) else {
        assert!(huge, "ordinary memory can be mapped");
        penstock_testing::skip("no huge pages are free");
        return;
    };
    let memory = Arc::new(memory);
    for i in 0..64_u16 {
        let mut descriptor = (SECOND + 2048 * u64::from(i % 32)).to_le_bytes().to_vec();
        descriptor.extend(1500_u32.to_le_bytes());
        descriptor.extend([u8::from(i % 2 == 1) * 2, 0, 0, 0]);
        put(&first, 16 * u64::from(i), &descriptor, huge);
        put(&first, 0x1004 + 2 * u64::from(i), &i.to_le_bytes(), huge);
    }
    put(&first, 0x1002, &64_u16.to_le_bytes(), huge);
    let mut ring = ring(&memory);
    let (mut batch, mut out) = (Batch::new(), Batch::new());
    out.push(&[7; 900], Offload::NONE).unwrap();
    let before = pages_replaced();
    // The file of the buffers shrinks first, then the file of the ring.
    for file in [&second, &first] {
        file.set_len(0).unwrap();
        for _ in 0..8 {
            batch.clear();
            ring.take(&mut batch);
            ring.complete_taken();
            ring.publish();
            ring.give(&out, &[0], &mut TxOutcome::default());
            ring.publish();
            ring.notify();
        }
    }
    assert!(pages_replaced() > before, "nothing was touched");
}

#[test]
fn buffers_and_ring_in_several_regions_may_go() {
    shrinks(1 << 20, false);
}

#[test]
fn huge_pages_may_go() {
    shrinks(HUGE, true);
}

/// Anonymous memory of the test process, which must stay unchanged.
struct Neighbour(std::ptr::NonNull<std::ffi::c_void>);

const NEIGHBOUR: usize = 16 << 10;

impl Neighbour {
    fn new() -> Self {
        let rw = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let len = NEIGHBOUR.try_into().unwrap();
        // SAFETY: new memory at an address of the kernel's choice. WHY: a mapping beside another.
        let at = unsafe { mmap_anonymous(None, len, rw, MapFlags::MAP_PRIVATE) }.unwrap();
        // SAFETY: just mapped with this length. WHY: as above.
        unsafe { at.cast::<u8>().write_bytes(7, NEIGHBOUR) };
        Self(at)
    }

    fn is_whole(&self) -> bool {
        // SAFETY: mapped in `new` for as long as `self`. WHY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(self.0.cast::<u8>().as_ptr(), NEIGHBOUR) };
        bytes.iter().all(|byte| *byte == 7)
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and nothing else has the address. WHY: munmap has no safe form.
        let _ = unsafe { munmap(self.0, NEIGHBOUR) };
    }
}

#[test]
fn what_is_replaced_never_leaves_its_mapping() {
    let dir = std::env::temp_dir().join(format!("penstock-huge-tmpfs-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let flags = nix::mount::MsFlags::empty();
    let mounted = nix::mount::mount(Some("tmpfs"), &dir, Some("tmpfs"), flags, Some("huge=always"));
    if mounted.is_err() {
        std::fs::remove_dir(&dir).unwrap();
        penstock_testing::skip("no tmpfs with huge pages may be mounted here");
        return;
    }
    let file =
        File::options().read(true).write(true).create_new(true).open(dir.join("region")).unwrap();
    // The directory disappears with the file.
    nix::mount::umount2(&dir, nix::mount::MntFlags::MNT_DETACH).unwrap();
    std::fs::remove_dir(&dir).unwrap();
    file.set_len(4 << 20).unwrap();
    let region = InflightRegion::map(
        &MemoryAccount::default(),
        RingLayout::Split,
        &file,
        4096,
        64 << 10,
        (1, 1024),
    )
    .unwrap();
    let queue = Arc::new(region).split(0, 1024).unwrap();
    // The number is large enough to fill the holes on both sides, wherever the kernel puts the next
    // mapping.
    let neighbours: Vec<_> = std::iter::repeat_with(Neighbour::new).take(1_024).collect();
    file.set_len(0).unwrap();
    assert_eq!(queue.recover(0, 0), [0_u16; 0], "reads as zeroes");
    assert!(neighbours.iter().all(Neighbour::is_whole), "zeroes over somebody else's memory");
}

/// The next test runs this ignored test in a separate process, because the test ends its process.
#[test]
#[ignore = "ends its process; the test below runs it"]
fn a_fault_outside_of_guests_memory() {
    let file = memory_file(4096, false);
    let guest = memory_file(4096, false);
    let spec = RegionSpec { guest: 0, user: USER, len: 4096, offset: 0, file: guest };
    let _memory = GuestMemory::map(&MemoryAccount::default(), vec![spec]).unwrap();
    touch_beyond(&file);
}

/// Makes the kernel raise a fault in a mapping of `file` that belongs to no guest.
#[allow(unsafe_code, reason = "a map of its own and a read of it that must fault")]
fn touch_beyond(file: &File) {
    use nix::sys::mman::{MapFlags, ProtFlags, mmap};
    let len = core::num::NonZeroUsize::new(4096).unwrap();
    // SAFETY: a new mapping. WHY: the test needs one that faults.
    let at = unsafe { mmap(None, len, ProtFlags::PROT_READ, MapFlags::MAP_SHARED, file, 0) };
    file.set_len(0).unwrap();
    // SAFETY: mapped; the file has no page there, which is the case under test. WHY: as above.
    let byte = unsafe { at.unwrap().cast::<u8>().as_ptr().read_volatile() };
    panic!("read {byte} where no file is");
}

#[test]
fn a_fault_elsewhere_still_ends_the_process() {
    let me = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new(me);
    command.args(["--ignored", "--exact", "a_fault_outside_of_guests_memory"]);
    let status = command.output().unwrap().status;
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
}
