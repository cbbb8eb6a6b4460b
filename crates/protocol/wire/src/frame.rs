use alloc::{boxed::Box, vec};

/// Bytes kept free in front of every received frame, so that headers can be added in place.
pub const HEADROOM: usize = 128;

/// A packet inside a larger buffer: headers are added in the space before it and removed by moving its start.
#[derive(Debug)]
pub struct Frame<'a> {
    buffer: &'a mut [u8],
    start: usize,
    end: usize,
}

impl<'a> Frame<'a> {
    /// The frame `buffer[start..start + len]`; `None` if that does not lie inside `buffer`.
    #[inline]
    #[must_use]
    pub fn new(buffer: &'a mut [u8], start: usize, len: usize) -> Option<Self> {
        let end = start.checked_add(len)?;
        (end <= buffer.len()).then_some(Self { buffer, start, end })
    }

    /// The packet's bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// The packet's bytes, writable.
    #[inline]
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start..self.end]
    }

    /// Length of the packet in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether the packet has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Offset of the first byte of the packet in its buffer.
    #[must_use]
    pub const fn start(&self) -> usize {
        self.start
    }

    /// Makes room for `n` bytes in front and returns the grown packet; `None` (and no change) without that headroom.
    pub fn push_front(&mut self, n: usize) -> Option<&mut [u8]> {
        self.start = self.start.checked_sub(n)?;
        Some(self.bytes_mut())
    }

    /// Removes `n` bytes from the front; `None` (and no change) if the packet is shorter.
    pub fn pull_front(&mut self, n: usize) -> Option<()> {
        let start = self.start.checked_add(n)?;
        (start <= self.end).then(|| self.start = start)
    }

    /// Shortens the packet to `len` bytes; no change if it is not longer.
    pub fn truncate(&mut self, len: usize) {
        self.end = self.end.min(self.start.saturating_add(len));
    }

    /// Makes the packet `n` bytes longer at its end and returns it; `None` (and no change) without that room.
    pub fn extend_back(&mut self, n: usize) -> Option<&mut [u8]> {
        let end = self.end.checked_add(n)?;
        if end > self.buffer.len() {
            return None;
        }
        self.end = end;
        Some(self.bytes_mut())
    }

    /// Replaces the packet by `bytes`, keeping its start; `None` (and no change) if they do not fit.
    pub fn replace(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.start.checked_add(bytes.len())?;
        self.buffer.get_mut(self.start..end)?.copy_from_slice(bytes);
        self.end = end;
        Some(())
    }
}

/// An owned frame, for the control plane, simulators and tests. Allocates once, at construction.
#[derive(Debug, Clone)]
pub struct FrameBuf {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl FrameBuf {
    /// A frame holding `bytes` with [`HEADROOM`] bytes in front and as many behind.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut buffer = vec![0; HEADROOM + bytes.len() + HEADROOM].into_boxed_slice();
        buffer[HEADROOM..HEADROOM + bytes.len()].copy_from_slice(bytes);
        Self { buffer, start: HEADROOM, end: HEADROOM + bytes.len() }
    }

    /// Runs `f` on the frame and keeps what it did to the packet's bounds.
    pub fn with<R>(&mut self, f: impl FnOnce(&mut Frame<'_>) -> R) -> R {
        let mut frame = Frame { buffer: &mut self.buffer, start: self.start, end: self.end };
        let result = f(&mut frame);
        (self.start, self.end) = (frame.start, frame.end);
        result
    }

    /// The packet's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_added_and_removed_in_place() {
        let mut owned = FrameBuf::from_bytes(b"payload");
        owned.with(|frame| {
            frame.push_front(2).unwrap()[..2].copy_from_slice(b"h:");
            assert_eq!(frame.bytes(), b"h:payload");
            frame.pull_front(3).unwrap();
            frame.truncate(4);
        });
        assert_eq!(owned.bytes(), b"aylo");
    }

    #[test]
    fn a_change_without_room_is_refused_and_changes_nothing() {
        let mut buffer = [0; 8];
        assert!(Frame::new(&mut buffer, 4, 5).is_none());
        let mut frame = Frame::new(&mut buffer, 2, 4).unwrap();
        assert!(frame.push_front(3).is_none());
        assert!(frame.pull_front(5).is_none());
        assert!(frame.extend_back(3).is_none());
        assert!(frame.replace(&[0; 7]).is_none());
        assert_eq!((frame.start(), frame.len()), (2, 4));
    }
}
