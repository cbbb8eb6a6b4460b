//! Requests and their answers: sequence numbers, acknowledgements, dumps, notifications.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer,
};
use netlink_sys::SocketAddr;
use socket2::SockRef;

use crate::{
    Error,
    message::{self, Message},
};

/// Room for one datagram: twice what the kernel puts into one.
const RECEIVE_BYTES: usize = 1 << 16;
/// What may wait to be read.
const QUEUE_BYTES: libc::c_int = 1 << 20;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a dump is read whose table changes all the while.
const DUMP_TRIES: usize = 8;
/// `NLMSGERR_ATTR_MSG` of linux/netlink.h.
const ACK_ATTRIBUTE_MESSAGE: u16 = 1;

/// One message of an answer, or a notification.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer<'a> {
    pub(crate) kind: u16,
    /// Fixed header and attributes.
    pub(crate) payload: &'a [u8],
}

/// A netlink socket in the network namespace in which it was opened.
pub(crate) struct Socket {
    socket: netlink_sys::Socket,
    sequence: u32,
    buffer: Box<[u8]>,
}

impl Socket {
    /// A socket that also receives the notifications of `groups` (bit mask of the old numbering).
    pub(crate) fn open(protocol: isize, groups: u32) -> io::Result<Self> {
        let mut socket = netlink_sys::Socket::new(protocol)?;
        // Better errors and a longer queue: a kernel that has neither works too.
        let _ = socket.set_ext_ack(true);
        let _ = socket.set_cap_ack(true);
        let _ = socket.set_rx_buf_sz(QUEUE_BYTES);
        SockRef::from(&socket).set_read_timeout(Some(ANSWER_TIMEOUT))?;
        socket.bind(&SocketAddr::new(0, groups))?;
        // To the kernel: no other process can answer in its place.
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0, buffer: vec![0; RECEIVE_BYTES].into_boxed_slice() })
    }

    /// Sends a request and waits for its acknowledgement. `request` completes "the kernel refused to …".
    pub(crate) fn request(&mut self, request: &str, message: &Message) -> Result<(), Error> {
        self.ask(request, message, &mut |_| {})
    }

    /// Sends a request about one object and hands the answers before the acknowledgement to `each`.
    pub(crate) fn ask(
        &mut self,
        request: &str,
        message: &Message,
        each: &mut dyn FnMut(Answer<'_>),
    ) -> Result<(), Error> {
        let pending = self.send(&[message], NLM_F_ACK, [None; 2])?;
        self.answers(request, pending, each).map(drop)
    }

    /// Sends a request for all objects of a kind and folds the answers into what starts as `T::default()`, anew whenever
    /// the kernel says that its table changed meanwhile.
    pub(crate) fn dump<T: Default>(
        &mut self,
        request: &str,
        message: &Message,
        mut fold: impl FnMut(&mut T, Answer<'_>),
    ) -> Result<T, Error> {
        let mut tries = 1;
        loop {
            let mut found = T::default();
            let pending = self.send(&[message], NLM_F_DUMP, [None; 2])?;
            let is_torn = self.answers(request, pending, &mut |answer| fold(&mut found, answer))?;
            // A table that never holds still (a router that takes in the whole Internet) is torn whenever it is read. The
            // last reading is as good as any then, and whoever needs to be exact follows the changes and reads again.
            if !is_torn || tries == DUMP_TRIES {
                return Ok(found);
            }
            tries += 1;
        }
    }

    /// Sends messages between `begin` and `end`, which are not acknowledged, and waits until all are.
    pub(crate) fn transact(
        &mut self,
        request: &str,
        messages: &[Message],
        [begin, end]: [&Message; 2],
    ) -> Result<(), Error> {
        let messages: Vec<&Message> = messages.iter().collect();
        let pending = self.send(&messages, NLM_F_ACK, [Some(begin), Some(end)])?;
        self.answers(request, pending, &mut |_| {}).map(drop)
    }

    /// Sends consecutive messages in one datagram.
    fn send(&mut self, messages: &[&Message], flags: u16, [begin, end]: [Option<&Message>; 2]) -> io::Result<Pending> {
        let mut bytes = Vec::new();
        let mut write = |message: &Message, flags| {
            self.sequence = self.sequence.wrapping_add(1);
            message.write(self.sequence, flags, &mut bytes);
            self.sequence
        };
        begin.map(|message| write(message, 0));
        let sequences: Vec<u32> = messages.iter().map(|message| write(message, flags)).collect();
        end.map(|message| write(message, 0));
        self.socket.send(&bytes, 0)?;
        let count = sequences.len() as u32;
        Ok(Pending { first: sequences.first().copied().unwrap_or_default(), count, open: count, is_torn: false })
    }

    /// Reads until everything is answered; whether a dump was torn.
    fn answers(
        &mut self,
        request: &str,
        mut pending: Pending,
        each: &mut dyn FnMut(Answer<'_>),
    ) -> Result<bool, Error> {
        while pending.open > 0 {
            match self.receive(0)? {
                Some(datagram) => pending.take(request, datagram, each)?,
                None => return Err(Error::Timeout(request.into())),
            }
        }
        Ok(pending.is_torn)
    }

    /// Reads one datagram of notifications, if one is there, and hands its messages to `each`; `false` if none was.
    pub(crate) fn notifications(&mut self, each: &mut dyn FnMut(Answer<'_>)) -> io::Result<bool> {
        let Some(datagram) = self.receive(libc::MSG_DONTWAIT)? else { return Ok(false) };
        message::messages(datagram)
            .for_each(|message| each(Answer { kind: message.message_type(), payload: message.payload() }));
        Ok(true)
    }

    /// One datagram, cut to the buffer; `None` if none came in time.
    fn receive(&mut self, flags: libc::c_int) -> io::Result<Option<&[u8]>> {
        loop {
            match self.socket.recv(&mut &mut self.buffer[..], flags) {
                Ok(len) => return Ok(self.buffer.get(..len)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Socket").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What is to come of the answers to consecutive messages.
struct Pending {
    /// Sequence number of the first message.
    first: u32,
    count: u32,
    /// Messages that are not acknowledged yet.
    open: u32,
    /// The table changed while it was dumped: entries may be missing, or there twice.
    is_torn: bool,
}

impl Pending {
    /// Takes one datagram; messages of other requests, which were given up, are skipped.
    fn take(&mut self, request: &str, datagram: &[u8], each: &mut dyn FnMut(Answer<'_>)) -> Result<(), Error> {
        for message in message::messages(datagram) {
            if message.sequence_number().wrapping_sub(self.first) >= self.count {
                continue;
            }
            self.is_torn |= message.flags() & NLM_F_DUMP_INTR != 0;
            match message.message_type() {
                NLMSG_ERROR | NLMSG_DONE => {
                    refusal(request, &message)?;
                    self.open = self.open.saturating_sub(1);
                }
                kind => each(Answer { kind, payload: message.payload() }),
            }
        }
        Ok(())
    }
}

/// Turns an `NLMSG_ERROR` or `NLMSG_DONE` into an error, unless it is an acknowledgement.
fn refusal(request: &str, message: &NetlinkBuffer<&[u8]>) -> Result<(), Error> {
    let (payload, is_error) = (message.payload(), message.message_type() == NLMSG_ERROR);
    let unreadable = if is_error { -libc::EPROTO } else { 0 };
    let code = payload.first_chunk().map_or(unreadable, |bytes| i32::from_ne_bytes(*bytes));
    if code >= 0 {
        return Ok(());
    }
    let mut error = Error::refused(request, -code);
    if message.flags() & NLM_F_ACK_TLVS != 0
        && let Error::Refused { detail, .. } = &mut error
    {
        // Behind the code of an error comes our message: only its header if capped, else whole.
        let quoted = match (is_error, message.flags() & NLM_F_CAPPED != 0) {
            (false, _) => 0,
            (true, true) => 16,
            (true, false) => payload.get(4..).and_then(<[u8]>::first_chunk).map_or(16, |len| u32::from_ne_bytes(*len)),
        };
        let words = payload.get((4 + quoted as usize).next_multiple_of(4)..).unwrap_or_default();
        if let Some(words) = message::value(words, ACK_ATTRIBUTE_MESSAGE) {
            *detail = format!(" ({})", message::text(words));
        }
    }
    Err(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Attributes;

    /// What the kernel answers to message 1 with this payload.
    fn answer(kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        Message::new(kind, flags, payload, Attributes::default()).write(1, 0, &mut bytes);
        bytes
    }

    fn pending() -> Pending {
        Pending { first: 1, count: 1, open: 1, is_torn: false }
    }

    #[test]
    fn a_dump_during_which_the_table_changed_is_known_by_any_of_its_messages() {
        for torn in [0, 1] {
            let mut pending = pending();
            let flags = [NLM_F_DUMP_INTR, 0];
            let datagram = [answer(16, flags[torn], &[0; 4]), answer(NLMSG_DONE, flags[1 - torn], &[0; 4])].concat();
            let mut entries = 0;
            pending.take("list", &datagram, &mut |_| entries += 1).unwrap();
            assert_eq!((entries, pending.open, pending.is_torn), (1, 0, true));
        }
    }

    #[test]
    fn answers_to_requests_that_were_given_up_are_skipped() {
        let mut pending = Pending { first: 2, ..pending() };
        pending.take("list", &answer(NLMSG_ERROR, 0, &(-libc::EPERM).to_ne_bytes()), &mut |_| panic!()).unwrap();
        assert_eq!(pending.open, 1);
    }

    #[test]
    fn a_refusal_has_the_kernels_own_words() {
        let mut words = Attributes::default();
        words.put_text(ACK_ATTRIBUTE_MESSAGE, "Device is busy");
        let code = (-libc::EBUSY).to_ne_bytes();
        let [capped, whole] = [(NLM_F_CAPPED, 16u32), (0, 20)].map(|(capped, quoted)| {
            let mut payload = [&code[..], &quoted.to_ne_bytes(), &vec![0; quoted as usize - 4]].concat();
            payload.extend(words.clone().into_bytes());
            answer(NLMSG_ERROR, NLM_F_ACK_TLVS | capped, &payload)
        });
        for datagram in [capped, whole] {
            let error = pending().take("do it", &datagram, &mut |_| {}).unwrap_err();
            assert_eq!(error.errno(), Some(libc::EBUSY));
            assert!(error.to_string().starts_with("the kernel refused to do it: "), "{error}");
            assert!(error.to_string().ends_with(" (Device is busy)"), "{error}");
        }
    }

    #[test]
    fn a_dump_that_fails_on_the_way_is_no_end() {
        let error = pending().take("list", &answer(NLMSG_DONE, 0, &(-libc::ENOMEM).to_ne_bytes()), &mut |_| {});
        assert_eq!(error.unwrap_err().errno(), Some(libc::ENOMEM));
        for empty in [answer(NLMSG_DONE, 0, &[]), answer(NLMSG_ERROR, 0, &[0; 4])] {
            let mut pending = pending();
            pending.take("list", &empty, &mut |_| {}).unwrap();
            assert_eq!(pending.open, 0);
        }
        assert!(pending().take("list", &answer(NLMSG_ERROR, 0, &[]), &mut |_| {}).is_err(), "no code, no success");
    }
}
