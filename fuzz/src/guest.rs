//! Memory of a guest for the fuzz targets of rings: three regions of one file, with holes between
//! the regions.
//!
//! **Rule.** The switch must never change bytes in the holes between the guest's regions
//! ([`Guest::check_holes`]).

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use nix::sys::memfd::{MFdFlags, memfd_create};
use penstock_dataplane::batch::{BATCH_FRAMES, Batch};
use penstock_dataplane::offload::{Offload, VNET_HDR_LEN};
use penstock_dataplane::port::guest_memory::{GuestMemory, RegionSpec};
use penstock_dataplane::port::peer_memory::MemoryAccount;

use crate::input::Input;
use crate::model::{Range, Region};

pub(crate) const USER: u64 = 0x7000_0000_0000;
const FILE: usize = 0xe000;
/// Regions 1 and 2 are adjacent in guest addresses but not in the file. Region 3 begins at an
/// offset that is not aligned to a page.
pub(crate) const REGIONS: [Region; 3] = [
    Region { guest: 0, len: 0x8000, file: 0 },
    Region { guest: 0x8000, len: 0x2000, file: 0x9000 },
    Region { guest: 0x4000_0000, len: 0x1000, file: 0xc004 },
];
/// Ranges of the memory file that belong to no region: offset and length.
const HOLES: [Range; 4] = [(0x8000, 0x1000), (0xb000, 0x1000), (0xc000, 4), (0xd004, 0xffc)];
const HOLE_BYTE: u8 = 0xc5;

/// Guest address at which inputs usually put indirect tables and small buffers.
pub(crate) const TABLES: u64 = 0xa00;

thread_local! {
    static GUEST: RefCell<(Guest, Box<Batch>)> = RefCell::new((Guest::new(), Batch::new()));
}

/// Runs a test with a guest whose memory has its initial content. The batch may contain frames of
/// an earlier test.
///
/// # Panics
/// Panics if a byte outside the guest's regions was written.
pub(crate) fn with_guest(test: impl FnOnce(&Guest, &mut Batch)) {
    GUEST.with_borrow_mut(|(guest, batch)| {
        guest.reset();
        test(guest, batch);
        guest.check_holes();
    });
}

#[derive(Debug)]
pub(crate) struct Guest {
    file: File,
    pub(crate) memory: Arc<GuestMemory>,
    blank: Vec<u8>,
}

impl Guest {
    fn new() -> Self {
        let file = memfd_create(c"fuzz", MFdFlags::MFD_CLOEXEC).expect("a memory file");
        let file = File::from(file);
        file.set_len(FILE as u64).expect("a size");
        let spec = |r: &Region| RegionSpec {
            guest: r.guest,
            user: USER + r.guest,
            len: r.len,
            offset: r.file,
            file: file.try_clone().expect("a descriptor"),
        };
        let memory =
            GuestMemory::map(&MemoryAccount::default(), REGIONS.iter().map(spec).collect())
                .expect("a lawful map");
        let mut blank = vec![0; FILE];
        for (at, len) in HOLES {
            blank[at..at + len].fill(HOLE_BYTE);
        }
        Self { file, memory: Arc::new(memory), blank }
    }

    /// Writes bytes at a guest address, and skips bytes outside the guest's regions.
    pub(crate) fn write(&self, guest: u64, bytes: &[u8]) {
        for (at, byte) in (0..).map(|i| guest.wrapping_add(i)).zip(bytes) {
            if let Some(r) = REGIONS.iter().find(|r| at.wrapping_sub(r.guest) < r.len) {
                let place = r.file + (at - r.guest);
                self.file.write_all_at(&[*byte], place).expect("a write to the memory file");
            }
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; FILE];
        self.file.read_exact_at(&mut bytes, 0).expect("the file");
        bytes
    }

    /// Restores the initial content of the memory file.
    fn reset(&self) {
        self.file.write_all_at(&self.blank, 0).expect("the file");
    }

    /// Panics if a byte outside the regions was written.
    fn check_holes(&self) {
        let bytes = self.bytes();
        for (at, len) in HOLES {
            let whole = bytes[at..at + len].iter().all(|b| *b == HOLE_BYTE);
            assert!(whole, "a byte outside the guest's regions changed, near {at:#x}");
        }
    }
}

/// Creates frame `i` of a burst, which has the number `i` in its first byte.
pub(crate) fn frame_of(i: usize, len: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (1..=251_u8).cycle().skip(i).take(len).collect();
    frame[0] = u8::try_from(i).unwrap_or(u8::MAX);
    frame
}

/// Fills the batch with frames of lengths from the input, and returns the frames.
pub(crate) fn fill(input: &mut Input<'_>, batch: &mut Batch) -> Vec<Vec<u8>> {
    let count = 1 + input.below(BATCH_FRAMES);
    let mut frames = Vec::new();
    for i in 0..count {
        let len = 14 + usize::from(input.u8()) * if i % 4 == 3 { 37 } else { 1 };
        let frame = frame_of(i, len);
        if batch.push(&frame, Offload::NONE).is_err() {
            break;
        }
        frames.push(frame);
    }
    frames
}

/// Checks that the batch has exactly the wanted headers and frames, and an error for each chain
/// that has none.
pub(crate) fn check_taken(batch: &Batch, wanted: &[Option<(Vec<u8>, Vec<u8>)>]) {
    let good: Vec<_> = wanted.iter().flatten().collect();
    assert_eq!(batch.len(), good.len(), "frames");
    assert_eq!(batch.errors as usize, wanted.len() - good.len(), "bad chains");
    for (i, (header, frame)) in good.into_iter().enumerate() {
        let mut got = Vec::new();
        batch.copy_out(i, &mut got);
        assert_eq!(&got, frame, "frame {i}");
        let mut wire = [0; VNET_HDR_LEN];
        wire[..header.len()].copy_from_slice(header);
        assert_eq!(batch.frame(i).offload, Offload::from_guest(&wire), "header {i}");
    }
}

/// Returns the file offset of a guest address in the first region.
pub(crate) fn place(guest: u64) -> usize {
    usize::try_from(guest).unwrap_or(usize::MAX)
}

/// Reads a guest address from the input, mostly in a region or near a region's edge.
pub(crate) fn address(input: &mut Input<'_>) -> u64 {
    let (kind, fine) = (input.u8(), u64::from(input.u8()));
    match kind % 8 {
        0 | 1 => 0x1000 + 0x100 * u64::from(kind / 8) + fine,
        2 => TABLES + 16 * (fine % 64),
        3 => 0x8000 - 128 + fine,
        4 => 0xa000 - 128 + fine,
        5 => 0x4000_0000 + 0x80 * u64::from(kind / 8) + fine % 16,
        6 => fine * 8,
        _ => input.u64(),
    }
}

/// Reads a buffer's length from the input, mostly small or the length of an indirect table.
pub(crate) fn length(input: &mut Input<'_>) -> u32 {
    let kind = input.u8();
    match kind % 8 {
        0..=2 => u32::from(input.u8()),
        3 => 12 + u32::from(kind / 8),
        4 => 16 * u32::from(kind / 8),
        5 => u32::from(input.u16()),
        6 => 0,
        _ => input.u32(),
    }
}
