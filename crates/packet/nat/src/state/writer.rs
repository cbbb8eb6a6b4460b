use core::hash::Hasher as _;

use siphasher::sip::SipHasher24;

const BUFFER_LEN: usize = 4_096;

/// The running checksum.
#[derive(Debug, Clone, Default)]
pub(super) struct Sum(SipHasher24);

impl Sum {
    pub(super) fn of(bytes: &[u8]) -> u64 {
        let mut sum = Self::default();
        sum.0.write(bytes);
        sum.value()
    }

    pub(super) fn value(&self) -> u64 {
        self.0.finish()
    }
}

/// Collects small fields into large pieces, and their checksum.
pub(super) struct Writer<'a> {
    sink: &'a mut dyn FnMut(&[u8]),
    buffer: [u8; BUFFER_LEN],
    len: usize,
    sum: Sum,
}

impl<'a> Writer<'a> {
    pub(super) fn new(sum: Sum, sink: &'a mut dyn FnMut(&[u8])) -> Self {
        Self { sink, buffer: [0; BUFFER_LEN], len: 0, sum }
    }

    /// Adds a field of at most the buffer's length.
    #[inline]
    pub(super) fn put(&mut self, bytes: &[u8]) {
        if self.len + bytes.len() > BUFFER_LEN {
            self.flush();
        }
        let end = self.len + bytes.len();
        self.buffer[self.len..end].copy_from_slice(bytes);
        self.len = end;
    }

    /// Writes what is left; gives the checksum so far.
    pub(super) fn finish(mut self) -> Sum {
        self.flush();
        self.sum
    }

    fn flush(&mut self) {
        let bytes = &self.buffer[..self.len];
        self.sum.0.write(bytes);
        (self.sink)(bytes);
        self.len = 0;
    }
}
