use core::hash::Hasher as _;

use siphasher::sip::SipHasher24;

use super::{ImportError, MAGIC, VERSION, record::Record};

/// Several times the longest record.
const BUFFER_LEN: usize = 4_096;

/// The running checksum.
#[derive(Debug, Clone, Default)]
pub(super) struct Sum(SipHasher24);

impl Sum {
    fn of(bytes: &[u8]) -> Self {
        let mut sum = Self::default();
        sum.0.write(bytes);
        sum
    }

    pub(super) fn to_bytes(&self) -> [u8; 8] {
        self.0.finish().to_le_bytes()
    }
}

/// Collects records into larger pieces, and their checksum.
pub(super) struct Writer<'a> {
    sink: &'a mut dyn FnMut(&[u8]),
    buffer: [u8; BUFFER_LEN],
    len: usize,
    sum: Sum,
}

impl<'a> Writer<'a> {
    /// Begins a file.
    pub(super) fn new(sink: &'a mut dyn FnMut(&[u8])) -> Self {
        let mut writer = Self::resume(Sum::default(), sink);
        for bytes in [&MAGIC[..], &VERSION.to_le_bytes()] {
            writer.buffer[writer.len..writer.len + bytes.len()].copy_from_slice(bytes);
            writer.len += bytes.len();
        }
        writer
    }

    /// Goes on with a file.
    pub(super) fn resume(sum: Sum, sink: &'a mut dyn FnMut(&[u8])) -> Self {
        Self { sink, buffer: [0; BUFFER_LEN], len: 0, sum }
    }

    /// Adds a record.
    pub(super) fn put(&mut self, record: &Record<'_>) {
        if postcard::to_slice(record, &mut self.buffer[self.len..]).map(|bytes| self.len += bytes.len()).is_err() {
            self.flush();
            self.len = postcard::to_slice(record, &mut self.buffer).expect("a buffer holds several records").len();
        }
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

/// The records of a file.
#[derive(Debug, Clone)]
pub(super) struct Records<'a>(&'a [u8]);

impl<'a> Records<'a> {
    /// Of a file whose checksum is right, in which every byte belongs to a record and the last is the end.
    pub(super) fn of(file: &'a [u8]) -> Result<Self, ImportError> {
        let rest = file.strip_prefix(&MAGIC).ok_or(ImportError::Magic)?;
        let (version, _) = rest.split_first_chunk().ok_or(ImportError::Damaged)?;
        match u16::from_le_bytes(*version) {
            VERSION => {}
            other => return Err(ImportError::Version(other)),
        }
        let (body, sum) = file.split_last_chunk().ok_or(ImportError::Damaged)?;
        if Sum::of(body).to_bytes() != *sum {
            return Err(ImportError::Damaged);
        }
        let records = Self(body.get(MAGIC.len() + version.len()..).ok_or(ImportError::Damaged)?);
        let mut unchecked = records.clone();
        loop {
            match unchecked.next() {
                Some(Record::End) if unchecked.0.is_empty() => return Ok(records),
                Some(Record::End) | None => return Err(ImportError::Damaged),
                Some(record) if record.is_consistent() => {}
                Some(_) => return Err(ImportError::Damaged),
            }
        }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        let (record, rest) = postcard::take_from_bytes(self.0).ok()?;
        self.0 = rest;
        Some(record)
    }
}
