//! What a proxy has to set, add, remove or leave in what passes it (RFC 3261 sections 16.6 and 16.7), and what it writes itself:
//! each line of a message is accounted for.

use std::collections::BTreeSet;

use crate::site::FRONTEND;

/// Fields that are compared by rules of their own.
const BY_RULE: [&str; 5] = ["Via", "Record-Route", "Route", "Max-Forwards", "Content-Length"];

/// A message taken apart, line by line as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wire {
    /// The first line.
    pub(crate) start: String,
    fields: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Wire {
    pub(crate) fn of(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no end of the header fields: {text}"));
        let mut lines = head.split("\r\n").map(str::to_owned);
        let start = lines.next().unwrap();
        let field = |line: String| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()));
        let fields = lines.map(|line| field(line).expect("a header field")).collect();
        let wire = Self { start, fields, body: body.to_owned() };
        assert_eq!(wire.one("Content-Length").parse(), Ok(body.len()), "{text}");
        wire
    }

    /// The values of a field, topmost first.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        self.fields.iter().filter(|(own, _)| own == name).map(|(_, value)| value.as_str()).collect()
    }

    /// The value of a field that stands there once.
    pub(crate) fn one(&self, name: &str) -> &str {
        let [value] = self.all(name)[..] else { panic!("not one {name}: {self:?}") };
        value
    }

    /// The method of a request, or the version of a response.
    pub(crate) fn method(&self) -> &str {
        self.start.split(' ').next().unwrap_or_default()
    }

    pub(crate) fn uri(&self) -> &str {
        self.start.split(' ').nth(1).unwrap_or_default()
    }

    /// The status of a response; 0 for a request.
    pub(crate) fn status(&self) -> u16 {
        if self.method() == "SIP/2.0" { self.uri().parse().unwrap_or(0) } else { 0 }
    }

    /// Adds a field at the end.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Without a field.
    pub(crate) fn without(mut self, name: &str) -> Self {
        self.fields.retain(|(own, _)| own != name);
        self
    }

    /// All fields that no rule is about, those of one name in their order.
    fn others(&self) -> Vec<(&str, &str)> {
        let others = self.fields.iter().filter(|(name, _)| !BY_RULE.contains(&name.as_str()));
        let mut others: Vec<_> = others.map(|(name, value)| (name.as_str(), value.as_str())).collect();
        others.sort_by_key(|(name, _)| *name);
        others
    }

    fn names(&self) -> BTreeSet<&str> {
        self.fields.iter().map(|(name, _)| name.as_str()).collect()
    }
}

impl std::fmt::Display for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\r\n", self.start)?;
        for (name, value) in self.fields.iter().filter(|(name, _)| name != "Content-Length") {
            write!(f, "{name}: {value}\r\n")?;
        }
        write!(f, "Content-Length: {}\r\n\r\n{}", self.body.len(), self.body)
    }
}

/// The topmost Via of a request with where it came from (RFC 3261 section 18.2.1, RFC 3581 section 4).
fn marked(via: &str, source: &str) -> String {
    let (ip, port) = source.rsplit_once(':').unwrap();
    assert!(via.ends_with(";rport"), "{via}");
    format!("{};received={ip};rport={port}", via.trim_end_matches(";rport"))
}

fn vias_marked(request: &Wire, source: &str) -> Vec<String> {
    let mut vias: Vec<_> = request.all("Via").into_iter().map(str::to_owned).collect();
    vias[0] = marked(&vias[0], source);
    vias
}

/// What a proxy changes in a request that it passes on, besides Via and Max-Forwards.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Edits<'e> {
    /// The Request-URI.
    pub(crate) uri: Option<&'e str>,
    /// Whether it wants to see what follows: Record-Route.
    pub(crate) is_recorded: bool,
    /// Whether the topmost Route is the proxy itself.
    pub(crate) is_routed_here: bool,
    /// Fields that go no further.
    pub(crate) removed: &'e [&'e str],
    /// Fields that it puts in, or in place of those that it removed.
    pub(crate) added: &'e [(&'e str, &'e str)],
    /// The body.
    pub(crate) body: Option<&'e str>,
}

impl Edits<'_> {
    fn apply(&self, before: &Wire) -> Wire {
        let wire = self.removed.iter().fold(before.clone(), |wire, name| {
            assert!(!wire.all(name).is_empty(), "there is a {name} to be removed");
            wire.without(name)
        });
        let mut wire = self.added.iter().fold(wire, |wire, (name, value)| wire.with(name, value));
        wire.body = self.body.unwrap_or(&wire.body).to_owned();
        wire
    }
}

/// That `after` is the request `before`, which came from `source`, as the frontend passes it on with these edits and no others.
pub(crate) fn check_request(before: &str, source: &str, after: &str, edits: Edits<'_>) -> Wire {
    let (before, after) = (Wire::of(before), Wire::of(after));
    let uri = edits.uri.unwrap_or(before.uri());
    assert_eq!(after.start, format!("{} {uri} SIP/2.0", before.method()));
    let vias = after.all("Via");
    let (own, others) = vias.split_first().expect("a Via");
    assert!(own.starts_with(&format!("SIP/2.0/UDP {FRONTEND};branch=z9hG4bK")) && own.ends_with(";rport"), "{own}");
    assert!(before.all("Via").iter().all(|via| branch(via) != branch(own)), "a branch of its own: {own}");
    assert_eq!(others, vias_marked(&before, source), "the Vias below");
    let hops = |wire: &Wire| wire.one("Max-Forwards").parse::<u8>().unwrap();
    assert_eq!(hops(&after) + 1, hops(&before));
    let mut records = after.all("Record-Route");
    if edits.is_recorded {
        let own = records.remove(0);
        assert!(own.starts_with(&format!("<sip:{FRONTEND};lr;")) && own.ends_with('>'), "{own}");
    }
    assert_eq!(records, before.all("Record-Route"));
    let routes = before.all("Route");
    assert_eq!(after.all("Route"), routes[usize::from(edits.is_routed_here)..]);
    let expected = edits.apply(&before);
    assert_eq!(after.others(), expected.others());
    assert_eq!(after.body, expected.body);
    after
}

/// That `after` is the response `before` as the frontend passes it on with these edits and no others.
pub(crate) fn check_response(before: &str, after: &str, edits: Edits<'_>) -> Wire {
    let (before, after) = (Wire::of(before), Wire::of(after));
    assert_eq!(after.start, before.start);
    assert_eq!(after.all("Via"), before.all("Via")[1..], "without our own");
    assert_eq!(after.all("Record-Route"), before.all("Record-Route"));
    let expected = edits.apply(&before);
    assert_eq!(after.others(), expected.others());
    assert_eq!(after.body, expected.body);
    after
}

/// That the frontend itself answers a request from `source`: with this status, the fields that each answer has and `more`, and
/// no others (RFC 3261 section 8.2.6.2).
pub(crate) fn check_answer(request: &str, source: &str, answer: &str, code: u16, more: &[&str]) -> Wire {
    let (request, answer) = (Wire::of(request), Wire::of(answer));
    assert_eq!(answer.status(), code, "{answer}");
    assert_eq!(answer.all("Via"), vias_marked(&request, source));
    for name in ["From", "Call-ID", "CSeq"] {
        assert_eq!(answer.one(name), request.one(name));
    }
    let (to, asked) = (answer.one("To"), request.one("To"));
    let is_tagged = code == 100 || asked.contains(";tag=");
    assert!(if is_tagged { to == asked } else { to.starts_with(&format!("{asked};tag=")) }, "{to}");
    let every = ["Via", "From", "To", "Call-ID", "CSeq", "Content-Length"];
    assert_eq!(answer.names(), every.iter().chain(more).copied().collect(), "{answer}");
    answer
}

/// That the frontend acknowledges a refusal of the INVITE that it sent (RFC 3261 section 17.1.1.3).
pub(crate) fn check_own_ack(invite: &str, refusal: &str, ack: &str) {
    let (invite, refusal, ack) = (Wire::of(invite), Wire::of(refusal), Wire::of(ack));
    check_own(&invite, &ack, "ACK");
    assert_eq!(ack.one("To"), refusal.one("To"));
}

/// That the frontend cancels the INVITE that it sent (RFC 3261 section 9.1).
pub(crate) fn check_own_cancel(invite: &str, cancel: &str) {
    let (invite, cancel) = (Wire::of(invite), Wire::of(cancel));
    check_own(&invite, &cancel, "CANCEL");
    assert_eq!(cancel.one("To"), invite.one("To"));
}

/// What both have in common: all that names the transaction, and no more.
fn check_own(invite: &Wire, own: &Wire, method: &str) {
    assert_eq!(own.start, format!("{method} {} SIP/2.0", invite.uri()));
    assert_eq!(own.all("Via"), invite.all("Via")[..1]);
    assert_eq!(own.all("Route"), invite.all("Route"));
    for name in ["From", "Call-ID"] {
        assert_eq!(own.one(name), invite.one(name));
    }
    assert_eq!(own.one("CSeq"), invite.one("CSeq").replace("INVITE", method));
    let every = ["Via", "From", "To", "Call-ID", "CSeq", "Content-Length", "Max-Forwards"];
    assert_eq!(own.clone().without("Route").names(), every.into(), "{own}");
    assert!(own.body.is_empty());
}

/// The branch that a Via names.
pub(crate) fn branch(via: &str) -> &str {
    via.split(';').find_map(|part| part.strip_prefix("branch=")).unwrap_or_else(|| panic!("no branch: {via}"))
}
