//! What must hold of everything that is sent, whatever was said before.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use sluicegate_sip::{
    message::{HeaderName, Message, Method},
    transaction::T4_MS,
};
use sluicegate_wire::Instant;

use super::texts::MEDIA_INSIDE;

/// An answer to somebody who has proved nothing is no longer than this, in multiples of what was asked.
const AMPLIFICATION_MAX: usize = 3;
/// From where alice registers.
const ALICE: [&str; 3] = ["198.51.100.7", "198.51.100.8", "198.51.100.9"];

/// What became of an INVITE, by whom it came from and what it is known by there.
#[derive(Debug, Clone, Copy)]
enum Became {
    /// A provisional answer came last.
    Ringing,
    /// Its final answer came first.
    Final(u16, Instant),
}

#[derive(Debug, Default)]
pub(super) struct Rules {
    invites: HashMap<(SocketAddr, String), Became>,
    /// Branches of messages that somebody changed on their way: two requests may have them.
    changed: HashSet<String>,
    /// Bytes from and to those who never prove anything.
    strangers: BTreeMap<IpAddr, (usize, usize)>,
}

impl Rules {
    pub(super) fn knows_stranger(&mut self, ip: IpAddr) {
        self.strangers.insert(ip, (0, 0));
    }

    /// Somebody says something.
    pub(super) fn came(&mut self, from: SocketAddr, len: usize) {
        if let Some((said, _)) = self.strangers.get_mut(&from.ip()) {
            *said += len;
        }
    }

    /// The same, in words that were another's.
    pub(super) fn came_changed(&mut self, text: &str) {
        let branches = text.split("branch=").skip(1).filter_map(|rest| rest.split([';', '\r', ',', ' ']).next());
        self.changed.extend(branches.map(str::to_owned));
    }

    /// Something is sent.
    pub(super) fn sent(&mut self, now: Instant, to: SocketAddr, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        if let Some((said, heard)) = self.strangers.get_mut(&to.ip()) {
            *heard += bytes.len();
            assert!(*heard <= *said * AMPLIFICATION_MAX, "{heard} bytes for {said}: {text}");
        }
        let is_inside = to.ip().to_string().starts_with("10.");
        assert!(is_inside || !text.contains(MEDIA_INSIDE), "an address inside goes to {to}: {text}");
        let message = Message::parse(bytes).unwrap_or_else(|error| panic!("{error}: {text}"));
        match message.status() {
            Some(code) => self.answered(now, to, &message, code),
            None => check_request(to, is_inside, &message),
        }
    }

    /// An INVITE that was answered at all has one final answer in the end, or several that accept it.
    fn answered(&mut self, now: Instant, to: SocketAddr, message: &Message<'_>, code: u16) {
        let Ok(fields) = message.essentials() else { return };
        if fields.cseq.method != Method::Invite {
            return;
        }
        if fields.via.branch.is_some_and(|branch| self.changed.contains(&*String::from_utf8_lossy(branch))) {
            return;
        }
        let via = message.header(HeaderName::Via).map(String::from_utf8_lossy).unwrap_or_default();
        let via = via.split(";received").next().unwrap_or_default().split(";rport").next().unwrap_or_default();
        let name =
            format!("{via} {} {:?} {}", String::from_utf8_lossy(fields.call_id), fields.from.tag, fields.cseq.number);
        if code < 200 {
            self.invites.entry((to, name.clone())).or_insert(Became::Ringing);
        }
        // A refusal that is not remembered may be another the next time.
        let Some(became) = self.invites.get_mut(&(to, name)) else { return };
        match (*became, code) {
            (Became::Ringing, 100..=199) => {}
            (Became::Ringing, _) => *became = Became::Final(code, now),
            (Became::Final(..), 100..=199) => panic!("{code} after its final answer: {message:?}"),
            (Became::Final(before, _), 200..=299) => assert_eq!(before / 100, 2, "{code} after {before}"),
            (Became::Final(before, at), _) => {
                let is_remembered = now < at + Duration::from_millis(T4_MS);
                assert!(!is_remembered || before == code, "{code} after {before}: {message:?}");
            }
        }
    }

    /// In the end nobody waits for a final answer.
    pub(super) fn check_answered(&self) {
        let is_changed = |name: &str| self.changed.iter().any(|branch| name.contains(branch.as_str()));
        for (of, became) in self.invites.iter().filter(|((_, name), _)| !is_changed(name)) {
            assert!(matches!(became, Became::Final(..)), "never answered: {of:?}");
        }
    }
}

/// A call that reaches a service is a user's who may call it, and who that is does not stand there in anybody else's words. One
/// that reaches somebody outside is for whoever may use the service that calls.
fn check_request(to: SocketAddr, is_inside: bool, message: &Message<'_>) {
    if message.method() != Some(Method::Invite) || message.to().is_ok_and(|to| to.tag.is_some()) {
        return;
    }
    if is_inside {
        let who: Vec<_> = message.headers(HeaderName::PAssertedIdentity).collect();
        assert!(who == [b"<sip:alice@example.net>"] || who == [b"<sip:dave@example.net>"], "{message:?}");
    } else {
        assert!(ALICE.contains(&&*to.ip().to_string()), "{to} is called: {message:?}");
    }
}
