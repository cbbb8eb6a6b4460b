use std::collections::BTreeMap;

use sluicegate_wire::tcp::{Control, Repr};

use super::{SEGMENT_BYTES, WINDOW, pattern};

/// Out-of-order pieces that a receiver keeps; more are dropped, and the sender repeats them.
const PIECES_MAX: usize = 128;

/// The passive end of one transfer: acknowledges every segment at once and checks the data.
#[derive(Debug, Clone)]
pub struct Receiver {
    iss: u32,
    irs: u32,
    /// Offset of the next expected position in the stream, the SYN being position 0.
    expected: u64,
    /// Pieces behind a gap: start and end.
    pieces: BTreeMap<u64, u64>,
    fin_at: Option<u64>,
    mangled: u64,
}

impl Receiver {
    /// Answers this SYN; `None` if the segment is none.
    #[must_use]
    pub fn open(iss: u32, syn: &Repr<'_>) -> Option<Self> {
        let is_syn = syn.control == Control::Syn && syn.ack.is_none();
        let pieces = BTreeMap::new();
        is_syn.then_some(Self { iss, irs: syn.seq, expected: 1, pieces, fin_at: None, mangled: 0 })
    }

    /// Takes a segment in and returns the answer, if it wants one.
    pub fn on_segment(&mut self, segment: &Repr<'_>) -> Option<Repr<'static>> {
        if segment.control == Control::Syn {
            let answers_ours = segment.ack.is_none() && segment.seq == self.irs;
            return answers_ours.then(|| Repr {
                mss: Some(SEGMENT_BYTES),
                ..Repr { control: Control::Syn, seq: self.iss, ..self.answer(segment) }
            });
        }
        let at = self.offset(segment.seq);
        let end = at + segment.payload.len() as u64;
        if !segment.payload.is_empty() && at >= 1 && segment.payload != pattern(at - 1, segment.payload.len()) {
            self.mangled += 1;
            return None;
        }
        if segment.control == Control::Fin {
            self.fin_at = Some(end);
        }
        if end > at && (self.pieces.len() < PIECES_MAX || at <= self.expected) {
            let kept = self.pieces.entry(at).or_insert(end);
            *kept = (*kept).max(end);
        }
        self.advance();
        let wants_answer = !segment.payload.is_empty() || segment.control == Control::Fin;
        wants_answer.then(|| self.answer(segment))
    }

    /// Data received without a gap, in bytes.
    #[must_use]
    pub fn received(&self) -> u64 {
        let data_end = self.fin_at.map_or(self.expected, |fin_at| self.expected.min(fin_at));
        data_end - 1
    }

    /// Whether all data and the end of the stream have arrived.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.fin_at.is_some_and(|fin_at| self.expected > fin_at)
    }

    /// Segments whose data was not what the sender sends at that place.
    #[must_use]
    pub const fn mangled(&self) -> u64 {
        self.mangled
    }

    fn advance(&mut self) {
        while let Some((&start, &end)) = self.pieces.first_key_value() {
            if start > self.expected {
                break;
            }
            self.expected = self.expected.max(end);
            self.pieces.remove(&start);
        }
        if self.fin_at == Some(self.expected) {
            self.expected += 1;
        }
    }

    fn offset(&self, seq: u32) -> u64 {
        let expected_seq = self.irs.wrapping_add(self.expected as u32);
        self.expected.saturating_add_signed(i64::from(seq.wrapping_sub(expected_seq) as i32))
    }

    fn answer(&self, segment: &Repr<'_>) -> Repr<'static> {
        let seq = self.iss.wrapping_add(1);
        Repr {
            ack: Some(self.irs.wrapping_add(self.expected as u32)),
            window: WINDOW,
            ..Repr::new(segment.dst_port, segment.src_port, Control::None, seq)
        }
    }
}
