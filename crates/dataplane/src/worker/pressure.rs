//! The worker records for each of its outputs the sources with too many waiting frames.
//!
//! # Problem
//!
//! A port may send to two outputs, and too many of the port's frames may wait at only one of the
//! two outputs. The worker must not poll the port again only because one of the two outputs has
//! sent a frame. If the worker polled a port although one of its outputs is full, the worker would
//! drop frames that should have stayed in the port's ring.
//!
//! # Approach
//!
//! Each output records on its own which source ports have too many frames waiting at the output.
//! The worker polls a source port again only if no output has too many frames of the port any more.
//!
//! An output presses a port only at the limits on the port's bytes, frames and memory at the
//! output. Below these limits, frames for a slow output wait in the port's queue at this output,
//! and the port's frames for other outputs pass.
//!
//! # Cost
//!
//! The record of held-back source ports takes one bit for each pair of output and source port. A
//! change takes a few instructions. A search for all sources of an output reads a word for each 64
//! ports.

use penstock_units::PortId;

/// For each output of a worker, the source ports that have too many frames waiting at the output.
#[derive(Debug)]
pub(super) struct Pressure {
    /// For each output, a bit mask of the source ports with too many frames at the output.
    sources: Box<[u64]>,
    /// Number of 64-bit words in `sources` that belong to one output.
    words: usize,
    /// For each source port, the number of outputs at which too many of its frames wait.
    outputs: Box<[u16]>,
}

impl Pressure {
    pub(super) fn new(ports: usize) -> Self {
        let words = ports.div_ceil(64);
        Self {
            sources: vec![0; ports * words].into_boxed_slice(),
            words,
            outputs: vec![0; ports].into_boxed_slice(),
        }
    }

    fn word(&self, output: PortId, source: PortId) -> (usize, u64) {
        (output.index() * self.words + source.index() / 64, 1 << (source.index() % 64))
    }

    /// Whether too many frames from port `source` wait at the output of port `output`.
    pub(super) fn is(&self, output: PortId, source: PortId) -> bool {
        let (word, bit) = self.word(output, source);
        self.sources.get(word).is_some_and(|sources| sources & bit != 0)
    }

    /// Records that too many frames from port `source` wait at the output of port `output`. Returns
    /// true if no output had too many frames of `source` before.
    pub(super) fn press(&mut self, output: PortId, source: PortId) -> bool {
        let (word, bit) = self.word(output, source);
        let (Some(sources), Some(outputs)) =
            (self.sources.get_mut(word), self.outputs.get_mut(source.index()))
        else {
            return false;
        };
        if *sources & bit != 0 {
            return false;
        }
        *sources |= bit;
        *outputs += 1;
        *outputs == 1
    }

    /// Records that the output of port `output` no longer has too many frames from port `source`.
    /// Returns true if no output has too many frames of `source` now.
    pub(super) fn ease(&mut self, output: PortId, source: PortId) -> bool {
        if !self.is(output, source) {
            return false;
        }
        let (word, bit) = self.word(output, source);
        self.sources[word] &= !bit;
        self.outputs[source.index()] -= 1;
        self.outputs[source.index()] == 0
    }

    /// Returns the first source port from number `from` on with too many frames at the output of
    /// port `output`. Returns `None` if no other source port has too many frames there.
    pub(super) fn next_source(&self, output: PortId, from: usize) -> Option<PortId> {
        let first = output.index() * self.words;
        let words = self.sources.get(first..first + self.words)?;
        let mut mask = u64::MAX << (from % 64);
        for (at, word) in words.iter().enumerate().skip(from / 64) {
            let rest = word & core::mem::replace(&mut mask, u64::MAX);
            if rest != 0 {
                let source = at * 64 + rest.trailing_zeros() as usize;
                return u16::try_from(source).ok().map(PortId);
            }
        }
        None
    }

    /// Removes all marks of `source` as a source with too many waiting frames, at every output.
    pub(super) fn forget(&mut self, source: PortId) {
        for output in 0..self.outputs.len() {
            let left = self.outputs.get(source.index()).copied().unwrap_or(0);
            let Some(output) = u16::try_from(output).ok().filter(|_| left > 0) else { return };
            let _ = self.ease(PortId(output), source);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_free_when_the_last_output_eases_it() {
        let mut pressure = Pressure::new(70);
        let [a, b, source] = [PortId(0), PortId(69), PortId(65)];
        assert!(pressure.press(a, source) && !pressure.press(a, source));
        assert!(!pressure.press(b, source) && pressure.is(b, source));
        assert!(!pressure.ease(a, source), "the other output still presses it");
        assert!(!pressure.ease(a, source) && !pressure.is(a, source));
        assert!(pressure.ease(b, source) && !pressure.ease(b, source));
        assert!(pressure.press(b, source) && !pressure.is(b, PortId(1)));
        pressure.forget(source);
        assert!(!pressure.is(b, source) && pressure.press(a, source));
        assert!(!pressure.press(PortId(70), source), "there is no such output");
    }

    #[test]
    fn the_sources_of_an_output_are_found_in_order() {
        let mut pressure = Pressure::new(200);
        let (output, other) = (PortId(3), PortId(4));
        let all = [0, 63, 64, 127, 190, 199].map(PortId);
        for source in all {
            pressure.press(output, source);
        }
        pressure.press(other, PortId(5));
        let mut found = Vec::new();
        while let Some(source) =
            pressure.next_source(output, found.last().map_or(0, |last: &PortId| last.index() + 1))
        {
            found.push(source);
        }
        assert_eq!(found, all);
        assert_eq!(pressure.next_source(other, 0), Some(PortId(5)));
        assert_eq!(pressure.next_source(other, 6), None);
        assert_eq!(pressure.next_source(PortId(200), 0), None, "there is no such output");
        pressure.forget(PortId(64));
        assert_eq!(pressure.next_source(output, 64), Some(PortId(127)));
    }
}
