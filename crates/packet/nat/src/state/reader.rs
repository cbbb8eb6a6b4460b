use super::{ImportError, MAGIC, VERSION, record::Record, writer::Sum};

const SUM_LEN: usize = 8;

/// Fields one after the other; `None` past the end.
#[derive(Debug, Clone)]
pub(super) struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    pub(super) fn bool(&mut self) -> Option<bool> {
        match self.take()? {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }
}

/// Reads records whose checksum is right.
#[derive(Debug, Clone)]
pub(super) struct Reader<'a>(Fields<'a>);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Result<Self, ImportError> {
        let mut fields = Fields(bytes);
        if fields.take() != Some(MAGIC) {
            return Err(ImportError::Magic);
        }
        let version = fields.u16().ok_or(ImportError::Damaged)?;
        if version != VERSION {
            return Err(ImportError::Version(version));
        }
        let body_len = bytes.len().checked_sub(SUM_LEN).ok_or(ImportError::Damaged)?;
        let (body, sum) = bytes.split_at(body_len);
        if Sum::of(body).to_le_bytes() != sum {
            return Err(ImportError::Damaged);
        }
        let records = body.get(MAGIC.len() + size_of_val(&VERSION)..).ok_or(ImportError::Damaged)?;
        Ok(Self(Fields(records)))
    }

    /// Whether every byte belongs to a record and the last is the end.
    pub(super) fn check(mut self) -> Result<(), ImportError> {
        loop {
            match Record::read(&mut self.0) {
                Some(Record::End) if self.0.0.is_empty() => return Ok(()),
                Some(Record::End) | None => return Err(ImportError::Damaged),
                Some(_) => {}
            }
        }
    }
}

impl Iterator for Reader<'_> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        Record::read(&mut self.0)
    }
}
