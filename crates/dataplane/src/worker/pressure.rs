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
//! # Cost
//!
//! The record of held-back source ports takes one bit for each pair of output and source port. A
//! change takes a few instructions.

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

    /// Removes all marks of `source` as a source with too many waiting frames, at every output.
    pub(super) fn forget(&mut self, source: PortId) {
        for output in 0..self.outputs.len() {
            let Ok(output) = u16::try_from(output) else { return };
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
}
