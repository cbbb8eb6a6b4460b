//! What a frontend for the domain `example.com`, which knows nobody by that name, answers to each message of RFC 4475 and of RFC
//! 5118. Used by the conformance tests of the proxy, and by the end-to-end tests of the binary.

use sluicegate_sip::{
    digest::Challenge,
    message::{HeaderName, Message},
};

/// The domain that the frontend is for.
pub(crate) const REALM: &str = "example.com";

/// What comes back for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// One answer with this status.
    Status(u16),
    /// One of 400: the message says wrongly where it ends.
    Unframed,
    /// Nothing.
    Silence,
}

use Answer::{Silence, Status, Unframed};

impl Answer {
    /// The status over datagrams, which end where they end; `None` for no answer.
    pub(crate) const fn of_datagram(self) -> Option<u16> {
        match self {
            Status(code) => Some(code),
            Unframed => Some(400),
            Silence => None,
        }
    }
}

/// What becomes of a stream behind a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behind {
    /// The next message is heard.
    Message,
    /// Nobody can tell where the next one begins: the stream is closed.
    Close,
    /// It goes on within the message, which has no end yet.
    Within,
}

/// Messages of which one cannot tell where they end on a stream: their first line is wrong, or Content-Length is missing, twice
/// there, or no number (RFC 3261 sections 18.3 and 20.14). And one behind which there is noise.
const CLOSED_BEHIND: [&str; 10] =
    ["lwsruri", "ltgtruri", "dblreq", "trws", "badvers", "bigcode", "ncl", "mcl01", "escruri", "lwsstart"];
/// Messages that say that they are longer than they are.
const ENDLESS: [&str; 2] = ["clerr", "baddn"];
/// RFC 2543 did not demand a Content-Length on streams.
const WITHOUT_LENGTH: &str = "inv2543";

impl Row {
    /// The statuses of the answers on a stream, and what becomes of that.
    pub(crate) fn on_stream(&self) -> (Vec<u16>, Behind) {
        let datagram = self.answer.of_datagram().into_iter().collect();
        match self.name {
            // Two requests.
            "dblreq" => (vec![401, 407], Behind::Close),
            WITHOUT_LENGTH => (vec![400], Behind::Close),
            name if ENDLESS.contains(&name) => (Vec::new(), Behind::Within),
            name if CLOSED_BEHIND.contains(&name) => (datagram, Behind::Close),
            _ => (datagram, Behind::Message),
        }
    }
}

/// A message, and what comes of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    /// As its RFC calls it.
    name: &'static str,
    /// RFC and section.
    section: &'static str,
    pub(crate) message: &'static [u8],
    pub(crate) answer: Answer,
    /// Why this answer.
    why: &'static str,
}

macro_rules! rows {
    ($(($name:literal, $section:literal, $answer:expr, $why:literal),)*) => {
        /// All of them.
        pub(crate) const ROWS: &[Row] = &[$(Row {
            name: $name,
            section: $section,
            message: include_bytes!(concat!($name, ".dat")),
            answer: $answer,
            why: $why,
        },)*];
    };
}

rows! {
    ("wsinv", "4475 3.1.1.1", Status(481), "well-formed; its To has a tag of no dialog of ours"),
    ("intmeth", "4475 3.1.1.2", Status(407), "well-formed; a proxy passes any method on, of somebody whom it knows"),
    ("esc01", "4475 3.1.1.3", Status(407), "well-formed; callers sign in"),
    ("escnull", "4475 3.1.1.4", Status(401), "well-formed; who registers signs in"),
    ("esc02", "4475 3.1.1.5", Status(407), "% is no escape in a method, so this is another one, which a proxy passes on all the same"),
    ("lwsdisp", "4475 3.1.1.6", Status(200), "well-formed, as the RFC corrects the grammar"),
    ("longreq", "4475 3.1.1.7", Status(407), "well-formed; callers sign in"),
    ("dblreq", "4475 3.1.1.8", Status(401), "a REGISTER; what follows it in the datagram is noise"),
    ("semiuri", "4475 3.1.1.9", Status(200), "the semicolon belongs to the user of our domain"),
    ("transports", "4475 3.1.1.10", Status(200), "any transport may stand in a Via"),
    ("mpart01", "4475 3.1.1.11", Status(407), "well-formed; a MESSAGE with parts, of somebody to be known first"),
    ("unreason", "4475 3.1.1.12", Silence, "well-formed; a response to nothing that we sent"),
    ("noreason", "4475 3.1.1.13", Silence, "well-formed; a response to nothing that we sent"),
    ("badinv01", "4475 3.1.2.1", Status(400), "empty parameters in Via"),
    ("clerr", "4475 3.1.2.2", Unframed, "Content-Length is more than there is"),
    ("ncl", "4475 3.1.2.3", Unframed, "Content-Length is negative"),
    ("scalar02", "4475 3.1.2.4", Status(400), "CSeq is above 2^32 - 1"),
    ("scalarlg", "4475 3.1.2.5", Silence, "a response with a CSeq above 2^32 - 1"),
    ("quotbal", "4475 3.1.2.6", Status(400), "a quotation mark in To that nothing closes"),
    ("ltgtruri", "4475 3.1.2.7", Status(400), "brackets around the Request-URI"),
    ("lwsruri", "4475 3.1.2.8", Status(400), "a blank in the Request-URI"),
    ("lwsstart", "4475 3.1.2.9", Status(400), "more than one blank between parts of the request line"),
    ("trws", "4475 3.1.2.10", Status(400), "blanks at the end of the request line"),
    ("escruri", "4475 3.1.2.11", Status(400), "header fields in the Request-URI"),
    ("baddate", "4475 3.1.2.12", Status(407), "Date is nothing that we act on"),
    ("regbadct", "4475 3.1.2.13", Status(401), "who registers signs in before its Contact is read (RFC 3261 10.3)"),
    ("badaspec", "4475 3.1.2.14", Status(400), "blanks within the brackets of To"),
    ("baddn", "4475 3.1.2.15", Status(400), "a comma in a name without quotation marks"),
    ("badvers", "4475 3.1.2.16", Status(505), "SIP/7.0"),
    ("mismatch01", "4475 3.1.2.17", Status(400), "CSeq names another method"),
    ("mismatch02", "4475 3.1.2.18", Status(501), "CSeq names another method than an unknown one"),
    ("bigcode", "4475 3.1.2.19", Silence, "a response with a status above 699"),
    ("badbranch", "4475 3.2.1", Status(400), "a branch that is the magic cookie alone"),
    ("insuf", "4475 3.3.1", Status(400), "neither Call-ID nor From nor To"),
    ("unkscm", "4475 3.3.2", Status(416), "a scheme that nobody knows"),
    ("novelsc", "4475 3.3.3", Status(416), "a scheme that is never ours"),
    ("unksm2", "4475 3.3.4", Status(401), "who registers signs in before To is looked at (RFC 3261 10.3)"),
    ("bext01", "4475 3.3.5", Status(420), "extensions that nobody has"),
    ("invut", "4475 3.3.6", Status(407), "a proxy does not look at the body; callers sign in"),
    ("regaut01", "4475 3.3.7", Status(401), "a registrar asks anew, in a scheme that it knows"),
    ("multi01", "4475 3.3.8", Status(400), "fields twice that may stand once"),
    ("mcl01", "4475 3.3.9", Unframed, "Content-Length twice"),
    ("bcast", "4475 3.3.10", Silence, "a response on its way to everybody"),
    ("zeromf", "4475 3.3.11", Status(200), "the last hop answers OPTIONS itself (RFC 3261 16.3)"),
    ("cparam01", "4475 3.3.12", Status(401), "well-formed; who registers signs in"),
    ("cparam02", "4475 3.3.13", Status(401), "well-formed; who registers signs in"),
    ("regescrt", "4475 3.3.14", Status(401), "well-formed; who registers signs in"),
    ("sdp01", "4475 3.3.15", Status(407), "callers sign in before it is looked at what they accept"),
    ("inv2543", "4475 3.4.1", Status(407), "RFC 2543: no branch, no tag, no Max-Forwards"),
    ("ipv6-good", "5118 4.1", Status(401), "well-formed; who registers signs in"),
    ("ipv6-bad", "5118 4.2", Status(400), "an address in the Request-URI without brackets"),
    ("port-ambiguous", "5118 4.3", Status(401), "well-formed, whatever its sender meant"),
    ("port-unambiguous", "5118 4.4", Status(401), "well-formed; who registers signs in"),
    ("via-received-param-with-delim", "5118 4.5", Status(481), "read all the same; a BYE of no dialog of ours"),
    ("via-received-param-no-delim", "5118 4.5", Status(404), "well-formed; asks for a host that we are not"),
    ("ipv6-in-sdp", "5118 4.6", Status(407), "well-formed; callers sign in"),
    ("mult-ip-in-header", "5118 4.7", Status(481), "well-formed; a BYE of no dialog of ours"),
    ("mult-ip-in-sdp", "5118 4.8", Status(407), "well-formed; callers sign in"),
    ("ipv4-mapped-ipv6", "5118 4.9", Status(407), "well-formed; callers sign in"),
    ("ipv6-bug-abnf-3-colons", "5118 4.10", Status(404), "to be borne; asks for a host that we are not"),
    ("ipv6-correct-abnf-2-colons", "5118 4.10", Status(404), "well-formed; asks for a host that we are not"),
}

/// Whether `answers` are what `row` says of a datagram, and well made.
///
/// # Panics
/// If not.
pub(crate) fn check(row: &Row, answers: &[Vec<u8>]) {
    let said = check_statuses(row, answers, row.answer.of_datagram().as_slice());
    for text in answers {
        let (len, asked) = (text.len(), row.message.len());
        assert!(len <= 3 * asked, "{said}: {len} bytes to {asked}");
    }
}

/// Whether `answers` and what became of the stream are what `row` says of one, and well made.
///
/// # Panics
/// If not.
pub(crate) fn check_on_stream(row: &Row, answers: &[Vec<u8>], behind: Behind) {
    let (statuses, expected) = row.on_stream();
    let said = check_statuses(row, answers, &statuses);
    assert_eq!(behind, expected, "{said}");
}

/// Whether these are the answers to a message; what is said of it.
fn check_statuses(row: &Row, answers: &[Vec<u8>], expected: &[u16]) -> String {
    let Row { name, section, message, why, .. } = row;
    let said = format!("{name} (RFC {section}): {why}");
    let shown: Vec<_> = answers.iter().map(|answer| String::from_utf8_lossy(answer)).collect();
    let statuses = answers.iter().filter_map(|answer| Message::parse(answer).expect(&said).status());
    assert_eq!(statuses.collect::<Vec<_>>(), expected, "{said}\n{}", shown.join("\n"));
    // What may follow is another's.
    if let Some(first) = answers.first() {
        check_fields(&said, message, &Message::parse(first).expect(&said));
    }
    said
}

/// The fields that an answer takes over (RFC 3261 section 8.2.6.2), and those that its status demands.
fn check_fields(said: &str, sent: &[u8], answer: &Message<'_>) {
    let request = Message::parse(sent).ok().or_else(|| Message::salvage(sent)).expect(said);
    for name in [HeaderName::CallId, HeaderName::From, HeaderName::CSeq] {
        let unfolded = |value: &[u8]| {
            value.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).collect::<Vec<_>>().concat()
        };
        assert_eq!(answer.header(name).map(unfolded), request.header(name).map(unfolded), "{said}: {}", name.as_str());
    }
    let vias = |message: &Message<'_>| message.headers(HeaderName::Via).count();
    assert_eq!(vias(answer), vias(&request), "{said}");
    assert!(request.to().is_err() || answer.to().is_ok_and(|to| to.tag.is_some()), "{said}: To has a tag");
    let has = |name| answer.header(name).is_some();
    let is_ours = |name| {
        let challenges = answer.headers_raw(name).map(|value| Challenge::parse(value).expect(said).realm_text());
        challenges.into_iter().next().is_some_and(|realm| realm.is_some_and(|realm| realm == REALM))
    };
    match answer.status().unwrap_or_default() {
        200 => assert!(has(HeaderName::Allow) && has(HeaderName::Accept) && has(HeaderName::Supported), "{said}"),
        401 => assert!(is_ours(HeaderName::WwwAuthenticate), "{said}"),
        407 => assert!(is_ours(HeaderName::ProxyAuthenticate), "{said}"),
        405 => assert!(has(HeaderName::Allow), "{said}"),
        420 => assert_eq!(answer.headers(HeaderName::Unsupported).count(), 4, "{said}"),
        _ => {}
    }
}
