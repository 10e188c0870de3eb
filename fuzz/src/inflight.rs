//! The input is an inflight region with any bytes, from which a ring in any state recovers.
//!
//! **Rule.** A recovered split ring resubmits exactly the chains that a reference implementation of
//! the specification computes, and leaves the region with exactly the expected bytes. A recovered
//! packed ring starts at a position inside the ring, and writes nothing outside the guest's
//! regions.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use nix::sys::memfd::{MFdFlags, memfd_create};
use penstock_dataplane::batch::Batch;
use penstock_dataplane::port::inflight::{InflightRegion, RingLayout};
use penstock_dataplane::port::packed_ring::{PackedRing, RingAddresses, RingSpec};
use penstock_dataplane::port::peer_memory::MemoryAccount;

use crate::guest::{Guest, USER, with_guest};
use crate::input::Input;

const BYTES: usize = 4096;
const QUEUES: u16 = 2;
const SIZE_MAX: usize = 16;

/// Runs the target on one input.
///
/// # Panics
/// Panics if a property of the target does not hold.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.u8();
    let size = u16::try_from(1 + input.below(SIZE_MAX)).unwrap_or(1);
    let (used, available) = (input.u16() % 64, input.u16() % 64);
    let mut bytes = vec![0; BYTES];
    for queue in 0..usize::from(QUEUES) {
        let at = queue * stride(choice & 1 == 1, size);
        let part = input.slice(32 * usize::from(size) + 32);
        bytes[at..at + part.len()].copy_from_slice(part);
        // Most inputs get a version that the switch accepts.
        if choice & 6 != 0 {
            bytes[at + 8..at + 10].copy_from_slice(&u16::from(choice & 8 == 0).to_le_bytes());
        }
    }
    let file = File::from(memfd_create(c"fuzz", MFdFlags::MFD_CLOEXEC).expect("a memory file"));
    file.write_all_at(&bytes, 0).expect("its bytes");
    let layout = if choice & 1 == 1 { RingLayout::Packed } else { RingLayout::Split };
    let (len, shape) = (BYTES as u64, (QUEUES, size));
    let account = MemoryAccount::default();
    let region = InflightRegion::map(&account, layout, &file, 0, len, shape);
    let versions =
        (0..usize::from(QUEUES)).map(|n| word(&bytes, n * stride(choice & 1 == 1, size) + 8));
    assert_eq!(
        region.is_ok(),
        versions.into_iter().all(|version| version <= 1),
        "the version of the region"
    );
    let Ok(region) = region.map(Arc::new) else { return };
    let queue = u16::from(choice >> 7);
    if layout == RingLayout::Packed {
        with_guest(|guest, batch| packed(guest, batch, &region, (queue, size), &mut input));
    } else {
        let part = region.split(queue, size).expect("a queue of the region");
        let mut model = read(&file);
        let heads =
            recover(&mut model, usize::from(queue) * stride(false, size), size, used, available);
        assert_eq!(part.recover(used, available), heads, "the heads in flight");
        assert!(read(&file) == model, "the region after recovery");
    }
    drop(region);
    assert_eq!(account.mapped(), 0);
}

fn read(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    file.read_exact_at(&mut bytes, 0).expect("the file");
    bytes
}

/// Returns the size in bytes of one queue's part of the inflight region, a multiple of 64.
fn stride(packed: bool, size: u16) -> usize {
    let n = usize::from(size);
    (if packed { 32 + 32 * n } else { 16 + 16 * n }).next_multiple_of(64)
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Recovers a split ring by the steps of the vhost-user specification, on a copy of the inflight
/// region.
fn recover(bytes: &mut [u8], at: usize, size: u16, used: u16, available: u16) -> Vec<u16> {
    let entry = |head: u16| at + 16 + 16 * usize::from(head);
    let batch = used.wrapping_sub(word(bytes, at + 14));
    if batch <= size {
        let mut head = word(bytes, at + 12);
        for _ in 0..batch {
            // A chain cannot begin at an index beyond the ring.
            if head >= size {
                break;
            }
            bytes[entry(head)] = 0;
            head = word(bytes, entry(head) + 6);
        }
    }
    let mut heads: Vec<u16> = (0..size).filter(|&head| bytes[entry(head)] == 1).collect();
    let outstanding = available.wrapping_sub(used);
    if batch > size || outstanding > size || heads.len() > usize::from(outstanding) {
        heads.drain(..).for_each(|head| bytes[entry(head)] = 0);
    }
    bytes[at + 14..at + 16].copy_from_slice(&used.to_le_bytes());
    let counter = |head: u16| {
        let mut counter = [0; 8];
        counter.copy_from_slice(&bytes[entry(head) + 8..entry(head) + 16]);
        u64::from_le_bytes(counter)
    };
    heads.sort_by_key(|&head| counter(head));
    heads
}

/// Runs a packed ring with arbitrary descriptors from the positions that the inflight region
/// contains.
fn packed(
    guest: &Guest,
    batch: &mut Batch,
    region: &Arc<InflightRegion>,
    (queue, size): (u16, u16),
    input: &mut Input<'_>,
) {
    let descriptors = input.slice(16 * usize::from(size));
    guest.write(0, descriptors);
    let at = RingAddresses { descriptors: USER, available: USER + 0x400, used: USER + 0x404 };
    let spec = RingSpec {
        base: 0x8000_8000,
        event_idx: input.bool(),
        in_order: input.bool(),
        ..RingSpec::new(size.into(), at)
    };
    let mut ring = PackedRing::new(spec, Arc::clone(&guest.memory)).expect("a lawful ring");
    let part = region.packed(queue, size).expect("a queue of the region");
    let stood = part.positions();
    ring.track(part, stood);
    let base = ring.base();
    let (next, used) = (base & 0x7fff, base >> 16 & 0x7fff);
    assert!(next < size.into() && used < size.into(), "recovered outside of the ring: {base:#x}");
    if let Some((old, new)) = stood {
        let stands = u16::try_from(base & 0xffff).unwrap_or(0);
        assert!(stands == old || stands == new, "{stands:#x} is neither {old:#x} nor {new:#x}");
    }
    for _ in 0..4 {
        batch.clear();
        ring.take(batch);
        ring.complete_taken();
        ring.publish();
        ring.notify();
    }
}
