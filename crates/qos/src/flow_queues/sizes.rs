//! Finds a flow with many waiting bytes in constant time.
//!
//! # Approach
//!
//! Flows form a list for each octave of their waiting bytes. An octave is the range from a power of
//! two to the next one. A bitmap tells which octaves have flows. Any two flows of one octave differ
//! by less than a factor of two, so any flow of the highest octave has at least half the bytes of
//! the largest flow.

const NIL: u32 = u32::MAX;
/// Number of octaves. Octave 0 is for flows without bytes, which are in no list.
const OCTAVES: u8 = 64;

/// Place of a flow in the list of its octave.
#[derive(Clone, Copy, Debug)]
struct Link {
    next: u32,
    previous: u32,
    octave: u8,
}

/// Lists of the flows with frames, by octave.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    first: [u32; OCTAVES as usize],
    /// Bitmap of the octaves that have flows.
    used: u64,
    links: Box<[Link]>,
}

/// Returns the octave of a number of bytes, from 1 on, or 0 without bytes.
fn octave_of(bytes: u64) -> u8 {
    let log = bytes.checked_ilog2().map_or(0, |log| log + 1);
    u8::try_from(log).unwrap_or(OCTAVES).min(OCTAVES - 1)
}

impl Sizes {
    pub fn new(flows: usize) -> Self {
        let link = Link { next: NIL, previous: NIL, octave: 0 };
        let links = vec![link; flows].into_boxed_slice();
        Self { first: [NIL; OCTAVES as usize], used: 0, links }
    }

    /// Sets the number of waiting bytes of a flow.
    pub fn set(&mut self, flow: u32, bytes: u64) {
        let octave = octave_of(bytes);
        if self.links[flow as usize].octave == octave {
            return;
        }
        self.unlink(flow);
        let mut next = NIL;
        if octave != 0 {
            next = core::mem::replace(&mut self.first[usize::from(octave)], flow);
            self.used |= 1_u64 << octave;
        }
        if let Some(after) = self.links.get_mut(next as usize) {
            after.previous = flow;
        }
        self.links[flow as usize] = Link { next, previous: NIL, octave };
    }

    fn unlink(&mut self, flow: u32) {
        let Link { next, previous, octave } = self.links[flow as usize];
        if octave == 0 {
            return;
        }
        if let Some(before) = self.links.get_mut(previous as usize) {
            before.next = next;
        } else {
            self.first[usize::from(octave)] = next;
            if next == NIL {
                self.used &= !(1_u64 << octave);
            }
        }
        if let Some(after) = self.links.get_mut(next as usize) {
            after.previous = previous;
        }
    }

    /// Returns a flow that has at least half as many bytes as any other flow. Returns `None` if no
    /// flow has bytes.
    pub fn largest(&self) -> Option<u32> {
        let octave = self.used.checked_ilog2()?;
        self.first.get(octave as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_flow_is_found_while_flows_grow_and_shrink() {
        let mut sizes = Sizes::new(4);
        assert_eq!(sizes.largest(), None);
        for (flow, bytes, largest) in [
            (0, 100, Some(0)),
            (1, 300, Some(1)),
            (2, 300, Some(2)),
            (3, 1, Some(2)),
            // 256 bytes are in the octave of 300.
            (2, 256, Some(2)),
            (2, 90, Some(1)),
            (1, 0, Some(2)),
            (2, 63, Some(0)),
            (0, 0, Some(2)),
            (2, 0, Some(3)),
            (3, u64::MAX, Some(3)),
            (3, 0, None),
        ] {
            sizes.set(flow, bytes);
            assert_eq!(sizes.largest(), largest, "flow {flow} has {bytes} bytes");
        }
    }
}
