//! Reads numbers from the bytes of an input; all numbers after the input's end are 0.

/// Bytes of an input that were not read yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) const fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    /// Returns all unread bytes of the input.
    pub(crate) const fn rest(self) -> &'a [u8] {
        self.0
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let part = self.slice(N);
        bytes[..part.len()].copy_from_slice(part);
        bytes
    }

    /// Reads the next bytes of the input, at most `len`.
    pub(crate) fn slice(&mut self, len: usize) -> &'a [u8] {
        let (part, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        part
    }

    pub(crate) fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.bytes())
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    pub(crate) fn bool(&mut self) -> bool {
        self.u8() & 1 == 1
    }

    /// Reads a number below `n` from the input; `n` is 1 to 256.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::from(self.u8()) % n
    }
}
