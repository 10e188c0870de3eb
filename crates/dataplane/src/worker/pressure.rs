//! Which outputs of this worker have too much of which source waiting.
//!
//! **Problem.** A port that sends to two outputs may press one of them only. If any output's
//! departure let the port go on, its next batch would find the other one full, and frames that
//! should have stayed in its ring would be lost. **Rule.** Each output presses a source and eases
//! it for itself. A source is polled again when no output presses it. **Cost.** One bit an output
//! and source; a few instructions when an output begins or ceases to press.

use penstock_units::PortId;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Pressure {
    /// By output: the sources that it presses, a bit each.
    sources: Box<[u64]>,
    /// Words of one output.
    words: usize,
    /// By source: how many outputs press it.
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

    /// Whether `output` presses `source`.
    pub(super) fn is(&self, output: PortId, source: PortId) -> bool {
        let (word, bit) = self.word(output, source);
        self.sources.get(word).is_some_and(|sources| sources & bit != 0)
    }

    /// `output` presses `source` from now on. True: no output did.
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

    /// `output` no longer presses `source`. True: no output does any more.
    pub(super) fn ease(&mut self, output: PortId, source: PortId) -> bool {
        if !self.is(output, source) {
            return false;
        }
        let (word, bit) = self.word(output, source);
        self.sources[word] &= !bit;
        self.outputs[source.index()] -= 1;
        self.outputs[source.index()] == 0
    }

    /// `source` goes: no output presses it.
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
