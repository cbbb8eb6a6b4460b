//! Users register themselves, as RFC 3261 section 10.3 has it, with Path (RFC 3327) and the flows of RFC 5626.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use httpdate::fmt_http_date;
use sluicegate_sip::{
    message::{HeaderName, Message, NameAddr, Param},
    transaction::Role,
    uri::Uri,
};
use sluicegate_wire::Instant;

use super::Registrar;
use crate::{
    locations::{Contact, Contacts, LocationsFull},
    metrics::{Count, Outcome},
    shard::{
        answer::answer_flow,
        context::Context,
        ladder::Asked,
        settings::{Phones, Settings},
        transactions::Transactions,
    },
    transmits::Flow,
};

/// Longest URI of a Contact, and longest rest of it.
const CONTACT_PART_LEN_MAX: usize = 512;
/// Most parameters and header fields of a Contact's URI: each is compared with each of another's.
const URI_PARTS_MAX: usize = 16;
/// Most proxies between a telephone and us, and the length of all their Path values.
const PATH_VALUES_MAX: usize = 8;
const PATH_LEN_MAX: usize = 1_024;
/// Registrations shorter than this may be refused for that (RFC 3261 section 10.3).
const BRIEF_SECS: u32 = 3_600;
/// The extensions that a REGISTER may demand besides those of other requests.
pub(crate) const REGISTER_EXTENSIONS: [&str; 2] = ["path", "outbound"];

/// Why a REGISTER changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It does not follow the grammar, or contradicts itself.
    Malformed,
    /// The user may not do this.
    Denied(&'static str),
    /// The address is none of ours.
    NotHere,
    /// A proxy put a Path in that the telephone does not understand.
    Path,
    /// The proxy in between does not keep flows, as the telephone wants it.
    FirstHop,
    /// For less time than we take it.
    TooBrief,
    /// A later request of the same telephone came before it.
    Late,
    /// There is no room for one more user.
    Full,
}

impl Refusal {
    /// What it is counted as, and its status.
    pub(crate) const fn answer(self) -> (Outcome, u16) {
        match self {
            Self::Malformed => (Outcome::Malformed, 400),
            Self::Denied(_) => (Outcome::Denied, 403),
            Self::NotHere => (Outcome::Denied, 404),
            Self::Path => (Outcome::Unsupported, 420),
            Self::TooBrief => (Outcome::Unsupported, 423),
            Self::FirstHop => (Outcome::Unsupported, 439),
            Self::Late => (Outcome::Unavailable, 500),
            Self::Full => (Outcome::Unavailable, 503),
        }
    }
}

impl From<LocationsFull> for Refusal {
    fn from(full: LocationsFull) -> Self {
        match full {
            LocationsFull::OfUser => Self::Denied("the user is registered at as many contacts as one may be"),
            LocationsFull::OfAll => Self::Full,
        }
    }
}

/// A REGISTER that was understood.
struct Update<'m> {
    now: Instant,
    call_id: u64,
    cseq: u32,
    flow: Flow,
    route: Vec<Vec<u8>>,
    wants: Wants<'m>,
    /// Whether there is no proxy in between.
    is_direct: bool,
}

enum Wants<'m> {
    /// To be told what is registered.
    Nothing,
    /// To be registered nowhere.
    Nowhere,
    At(Vec<Wanted<'m>>),
}

/// One Contact of a REGISTER.
struct Wanted<'m> {
    uri: Uri<'m>,
    /// The URI without its header fields, which no Request-URI has (RFC 3261 section 19.1.1).
    text: &'m [u8],
    tail: Vec<u8>,
    instance: Option<&'m [u8]>,
    reg_id: Option<u32>,
    q: u16,
    secs: u32,
}

impl Registrar {
    /// A REGISTER of a user for itself.
    pub(super) fn on_user(&self, cx: &mut Context, transactions: &mut Transactions, asked: Asked<'_>, user: &str) {
        // Before anything changes: what could not be answered would be done and refused at once.
        let Some(id) = transactions.open(cx, asked, Role::UserAgent) else { return };
        let (fields, (outcome, code)) = match self.register(cx, asked, user) {
            Ok(fields) => (fields, (Outcome::Admitted, 200)),
            Err(refusal) => {
                note_refusal(cx, asked, user, refusal);
                (refusal_fields(refusal, &cx.settings.phones), refusal.answer())
            }
        };
        cx.metrics.request(asked.kind, outcome);
        let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, value.as_slice())).collect();
        cx.write_answer(asked.flow, asked.message, code, &fields);
        transactions.respond(cx, id, code);
    }

    /// Changes what the request wants changed, all of it or nothing; the header fields of its 200.
    fn register(&self, cx: &mut Context, asked: Asked<'_>, user: &str) -> Result<Vec<Field>, Refusal> {
        check_addresses(&cx.settings, asked, user)?;
        let update = Update::read(cx, asked, self.locations.per_user_max())?;
        let now = cx.now.instant;
        if matches!(update.wants, Wants::Nothing) {
            return Ok(registered(cx, asked, &update, &self.locations.of(now, user)));
        }
        let mut known = 0;
        let contacts = self.locations.update(now, user, |before| {
            known = before.len();
            update.apply(before)
        })?;
        if contacts.len() > known {
            let step = format!("+ registered; calls go to {} contacts now", self.contacts(now, user, 0).count());
            cx.decided(asked, user, (Outcome::Admitted, 200), [step]);
        }
        Ok(registered(cx, asked, &update, &contacts))
    }
}

/// A header field of an answer.
type Field = (&'static str, Vec<u8>);

/// Who registers whom: this user, here, and no one else's address (RFC 3261 section 10.3 steps 1, 4 and 5).
fn check_addresses(settings: &Settings, asked: Asked<'_>, user: &str) -> Result<(), Refusal> {
    let (from, to) = (asked.essentials.from.uri, asked.essentials.to.uri);
    let is_own = |uri: &[u8]| Uri::parse(uri).is_ok_and(|uri| settings.is_address_of(&uri, user));
    if !settings.is_for_us(asked.message) || !is_own(to) {
        return Err(Refusal::NotHere);
    }
    if is_own(from) { Ok(()) } else { Err(Refusal::Denied("From is not the user's own address")) }
}

impl<'m> Update<'m> {
    fn read(cx: &Context, asked: Asked<'m>, contacts_max: usize) -> Result<Self, Refusal> {
        let (message, essentials) = (asked.message, asked.essentials);
        let route = path(message)?;
        // Who is behind no proxy reaches us over its own flow. The proxy nearest to it wrote the last Path.
        let is_direct = message.headers(HeaderName::Via).nth(1).is_none();
        let keeps_flows = is_direct || route.last().is_some_and(|value| is_outbound(value));
        Ok(Self {
            now: cx.now.instant,
            call_id: cx.keys.call_id(essentials.call_id),
            cseq: essentials.cseq.number,
            flow: flow_back(asked.flow, message),
            route,
            is_direct,
            wants: Wants::read(asked, (keeps_flows, contacts_max), &cx.settings.phones)?,
        })
    }

    /// The bindings after it.
    fn apply(&self, before: &[Arc<Contact>]) -> Result<Vec<Arc<Contact>>, Refusal> {
        let mut after = before.to_vec();
        match &self.wants {
            Wants::Nothing => {}
            Wants::Nowhere => {
                before.iter().try_for_each(|known| self.is_in_order(known))?;
                after.clear();
            }
            // The last first, so that the first comes out in front.
            Wants::At(contacts) => contacts.iter().rev().try_for_each(|wanted| self.apply_one(wanted, &mut after))?,
        }
        Ok(after)
    }

    fn apply_one(&self, wanted: &Wanted<'_>, contacts: &mut Vec<Arc<Contact>>) -> Result<(), Refusal> {
        let is_meant = |known: &Arc<Contact>| {
            let of_this = known.call_id == self.call_id && known.cseq == self.cseq;
            wanted.is_at(known) || (wanted.is_of_instance(known) && !of_this)
        };
        let at = contacts.iter().position(is_meant);
        if let Some(known) = at.and_then(|at| contacts.get(at)) {
            self.is_in_order(known)?;
        }
        if let Some(at) = at {
            contacts.remove(at);
        }
        if wanted.secs > 0 {
            // In front of what is as much preferred: what was registered last is likeliest to be there still.
            contacts.insert(0, self.contact(wanted));
        }
        Ok(())
    }

    /// Of requests of one telephone that overtook each other the later counts, also if it came first. An address that is
    /// there twice in one request is refused by this too.
    const fn is_in_order(&self, known: &Contact) -> Result<(), Refusal> {
        let is_late = known.call_id == self.call_id && known.cseq >= self.cseq;
        if is_late { Err(Refusal::Late) } else { Ok(()) }
    }

    fn contact(&self, wanted: &Wanted<'_>) -> Arc<Contact> {
        Arc::new(Contact {
            flow: self.flow,
            uri: wanted.text.to_vec(),
            route: self.route.clone(),
            q: wanted.q,
            expires: self.now + Duration::from_secs(wanted.secs.into()),
            tail: wanted.tail.clone(),
            call_id: self.call_id,
            cseq: self.cseq,
            granted_s: wanted.secs,
        })
    }

    /// Whether what it registers is named by instance and flow.
    fn names_flows(&self) -> bool {
        matches!(&self.wants, Wants::At(contacts) if contacts.iter().any(|wanted| wanted.reg_id.is_some()))
    }
}

impl<'m> Wants<'m> {
    fn read(asked: Asked<'m>, (keeps_flows, max): (bool, usize), phones: &Phones) -> Result<Self, Refusal> {
        let message = asked.message;
        let mut contacts = Vec::new();
        for contact in message.contacts() {
            let contact = contact.map_err(|_| Refusal::Malformed)?;
            if contacts.len() >= max {
                return Err(LocationsFull::OfUser.into());
            }
            contacts.push(contact);
        }
        if contacts.iter().any(NameAddr::is_star) {
            let is_alone = contacts.len() == 1 && message.expires() == Some(0);
            return if is_alone { Ok(Self::Nowhere) } else { Err(Refusal::Malformed) };
        }
        if contacts.is_empty() {
            return Ok(Self::Nothing);
        }
        let wanted = contacts.iter().map(|contact| Wanted::read(contact, message.expires(), phones));
        let mut wanted = wanted.collect::<Result<Vec<_>, _>>()?;
        let names_flows = wanted.iter().any(|wanted| wanted.reg_id.is_some());
        if names_flows && keeps_flows && wanted.iter().filter(|wanted| wanted.secs > 0).nth(1).is_some() {
            return Err(Refusal::Malformed);
        }
        if names_flows && !keeps_flows {
            if message.lists(HeaderName::Supported, b"outbound") {
                return Err(Refusal::FirstHop);
            }
            wanted.iter_mut().for_each(|wanted| wanted.reg_id = None);
        }
        Ok(Self::At(wanted))
    }
}

impl<'m> Wanted<'m> {
    fn read(contact: &NameAddr<'m>, of_all: Option<u32>, phones: &Phones) -> Result<Self, Refusal> {
        let uri = Uri::parse(contact.uri).map_err(|_| Refusal::Malformed)?;
        let parts = uri_parts(contact);
        let text = contact.uri.get(..contact.uri.len() - uri.headers.len()).unwrap_or_default();
        let text = if uri.is_sip() { text.strip_suffix(b"?").unwrap_or(text) } else { contact.uri };
        let (instance, q) = (instance_of(contact), contact.params.value(b"q"));
        // Without an instance it means nothing (RFC 5626 section 6).
        let reg_id = reg_id_of(contact).filter(|_| instance.is_some());
        let asked = contact.params.find(b"expires").map(|_| contact.params.value(b"expires").and_then(number));
        let tail = tail(contact, text.len());
        if contact.uri.len() > CONTACT_PART_LEN_MAX || tail.len() > CONTACT_PART_LEN_MAX || parts > URI_PARTS_MAX {
            return Err(Refusal::Malformed);
        }
        Ok(Self {
            uri,
            text,
            tail,
            instance,
            reg_id,
            q: q.map_or(Some(Contact::Q_MAX), thousandths).ok_or(Refusal::Malformed)?,
            secs: granted_secs(asked.unwrap_or(of_all), phones)?,
        })
    }

    /// Whether a binding is that of the same URI. Two telephones may have the same behind two NATs, and one telephone over
    /// two flows: then instance and flow tell them apart.
    fn is_at(&self, known: &Contact) -> bool {
        let value = known.value();
        let Some(address) = NameAddr::parse(&value) else { return false };
        let are_same = |(known, own): (&[u8], &[u8])| known.eq_ignore_ascii_case(own);
        instance_of(&address).zip(self.instance).is_none_or(are_same)
            && reg_id_of(&address).zip(self.reg_id).is_none_or(|(known, own)| known == own)
            && Uri::parse(address.uri).is_ok_and(|uri| uri.is_equivalent(&self.uri))
    }

    /// Whether a binding is of the same telephone, and of the same flow of it if it names some: one that was started anew
    /// may have another URI.
    fn is_of_instance(&self, known: &Contact) -> bool {
        let value = known.value();
        let Some(address) = NameAddr::parse(&value) else { return false };
        let instances = instance_of(&address).zip(self.instance);
        instances.is_some_and(|(known, own)| known.eq_ignore_ascii_case(own)) && reg_id_of(&address) == self.reg_id
    }
}

/// Where a request can go that is long or not. Of a telephone with several flows it is the first one, and another only where that
/// fails: none is to ring twice (RFC 5626 section 7); what is too long for a datagram takes a connection, if the telephone has
/// one. And a user may be registered at a mailbox, say.
pub(super) fn callable(contacts: &[Arc<Contact>], is_long: bool) -> Vec<Vec<Arc<Contact>>> {
    let mut telephones: Vec<Option<Vec<u8>>> = Vec::new();
    let mut found: Vec<Vec<Arc<Contact>>> = Vec::new();
    for contact in contacts.iter().filter(|contact| contact.is_sip()) {
        let value = contact.value();
        let instance = NameAddr::parse(&value).as_ref().and_then(instance_of).map(<[u8]>::to_ascii_lowercase);
        let known = telephones.iter().position(|known| instance.is_some() && *known == instance);
        let Some(flows) = known.and_then(|at| found.get_mut(at)) else {
            telephones.push(instance);
            found.push(vec![Arc::clone(contact)]);
            continue;
        };
        let is_before = |flow: &Arc<Contact>| flow.flow.connection.is_some() || contact.flow.connection.is_none();
        let at = if is_long { flows.iter().take_while(|flow| is_before(flow)).count() } else { flows.len() };
        flows.insert(at, Arc::clone(contact));
    }
    found
}

/// Which telephone a Contact is of (RFC 5626 section 4.1).
fn instance_of<'a>(contact: &NameAddr<'a>) -> Option<&'a [u8]> {
    contact.params.value(b"+sip.instance")
}

/// Which of its flows.
fn reg_id_of(contact: &NameAddr<'_>) -> Option<u32> {
    contact.params.value(b"reg-id").and_then(number)
}

/// The rest of a Contact behind its URI, as it is told again, without what is only said of this moment.
pub(crate) fn tail(contact: &NameAddr<'_>, uri_len: usize) -> Vec<u8> {
    let mut tail = [contact.uri.get(uri_len..).unwrap_or_default(), b">"].concat();
    for Param { name, value } in contact.params.iter().filter(|param| !param.name.eq_ignore_ascii_case(b"expires")) {
        tail.push(b';');
        tail.extend_from_slice(name);
        if let Some(value) = value {
            tail.push(b'=');
            tail.extend_from_slice(value);
        }
    }
    tail
}

/// The Path values of a REGISTER, topmost first.
pub(crate) fn path(message: &Message<'_>) -> Result<Vec<Vec<u8>>, Refusal> {
    let values: Vec<&[u8]> = message.headers(HeaderName::Path).take(PATH_VALUES_MAX + 1).collect();
    if values.is_empty() {
        return Ok(Vec::new());
    }
    let is_sip = |value: &&[u8]| {
        let uri = NameAddr::parse(value).and_then(|address| Uri::parse(address.uri).ok());
        uri.is_some_and(|uri| uri.is_sip())
    };
    let len: usize = values.iter().map(|value| value.len()).sum();
    if values.len() > PATH_VALUES_MAX || len > PATH_LEN_MAX || !values.iter().all(is_sip) {
        return Err(Refusal::Malformed);
    }
    // A telephone that does not know of it would not see what a proxy did (RFC 3327 section 5.3).
    let is_known = message.lists(HeaderName::Supported, b"path");
    if is_known { Ok(values.into_iter().map(<[u8]>::to_vec).collect()) } else { Err(Refusal::Path) }
}

/// Whether a proxy says of itself that it keeps flows (RFC 5626 section 5.1).
fn is_outbound(path: &[u8]) -> bool {
    let uri = NameAddr::parse(path).and_then(|address| Uri::parse(address.uri).ok());
    uri.is_some_and(|uri| uri.param(b"ob").is_some())
}

/// Where calls to who sent this go: to where its answers go.
pub(crate) fn flow_back(flow: Flow, message: &Message<'_>) -> Flow {
    if flow.connection.is_some() { flow } else { answer_flow(flow, message) }
}

/// How long a contact is registered that was asked for so long.
const fn granted_secs(asked: Option<u32>, phones: &Phones) -> Result<u32, Refusal> {
    let Phones { registration_s_default, registration_s_min, registration_s_max } = *phones;
    match asked {
        None => Ok(registration_s_default),
        Some(secs) if secs > 0 && secs < BRIEF_SECS && secs < registration_s_min => Err(Refusal::TooBrief),
        Some(secs) if secs > registration_s_max => Ok(registration_s_max),
        Some(secs) => Ok(secs),
    }
}

pub(crate) fn number(text: &[u8]) -> Option<u32> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
}

/// A `qvalue` (RFC 3261 section 25.1) in thousandths.
pub(crate) fn thousandths(text: &[u8]) -> Option<u16> {
    let (whole, rest) = text.split_first()?;
    let digits = if rest.is_empty() { rest } else { rest.strip_prefix(b".")? };
    if !matches!(whole, b'0' | b'1') || digits.len() > 3 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let fraction = (0..3).fold(0, |sum, nth| sum * 10 + u16::from(digits.get(nth).map_or(0, |digit| digit - b'0')));
    Some(u16::from(whole - b'0') * Contact::Q_MAX + fraction).filter(|q| *q <= Contact::Q_MAX)
}

/// The header fields of a 200: all that is registered, and what became of the extensions.
fn registered(cx: &Context, asked: Asked<'_>, update: &Update<'_>, contacts: &Contacts) -> Vec<Field> {
    let contact = |contact: &Arc<Contact>| {
        let secs = contact.expires.since(update.now).as_secs().max(1);
        ("Contact", [&contact.value()[..], format!(";expires={secs}").as_bytes()].concat())
    };
    let date = fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(cx.now.unix.0));
    let mut fields: Vec<Field> = contacts.iter().map(contact).collect();
    fields.extend(update.route.iter().map(|value| ("Path", value.clone())));
    fields.extend([("Supported", b"path, outbound".to_vec()), ("Date", date.into_bytes())]);
    if update.names_flows() && asked.message.lists(HeaderName::Supported, b"outbound") {
        fields.push(("Require", b"outbound".to_vec()));
        if update.is_direct && update.flow.connection.is_some() {
            fields.push(("Flow-Timer", flow_timer_s(cx.settings.connection_idle_s).to_string().into_bytes()));
        }
    }
    fields
}

/// How often a telephone keeps a connection that is closed when nothing came for so long; the rest is for what is under way (RFC 5626
/// section 4.4). A flow over UDP does not end while its registration lasts, and NATs there want the 24 to 29 seconds that
/// telephones take unless they are told another time.
const fn flow_timer_s(idle_s: u32) -> u32 {
    idle_s - idle_s / 5
}

fn refusal_fields(refusal: Refusal, phones: &Phones) -> Vec<Field> {
    match refusal {
        Refusal::TooBrief => vec![("Min-Expires", phones.registration_s_min.to_string().into_bytes())],
        Refusal::Path => vec![("Unsupported", b"path".to_vec())],
        _ => Vec::new(),
    }
}

/// What is checked of a REGISTER that a SIP server takes: whose it is, and that it is of a size that we can compare its answer
/// with.
pub(crate) fn check_relayed(cx: &Context, asked: Asked<'_>, user: &str) -> Result<(), Refusal> {
    check_addresses(&cx.settings, asked, user)?;
    path(asked.message)?;
    for (contact, nth) in asked.message.contacts().zip(1..) {
        let contact = contact.map_err(|_| Refusal::Malformed)?;
        if nth > cx.settings.locations.per_user_max() {
            return Err(LocationsFull::OfUser.into());
        }
        if contact.uri.len() > CONTACT_PART_LEN_MAX || uri_parts(&contact) > URI_PARTS_MAX {
            return Err(Refusal::Malformed);
        }
    }
    Ok(())
}

/// Refuses a REGISTER of a user.
pub(crate) fn refuse(
    cx: &mut Context,
    transactions: &mut Transactions,
    asked: Asked<'_>,
    user: &str,
    refusal: Refusal,
) {
    note_refusal(cx, asked, user, refusal);
    let fields = refusal_fields(refusal, &cx.settings.phones);
    let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, value.as_slice())).collect();
    transactions.refuse(cx, asked, refusal.answer(), &fields);
}

fn uri_parts(contact: &NameAddr<'_>) -> usize {
    contact.uri.iter().filter(|byte| matches!(byte, b';' | b'&')).count()
}

fn note_refusal(cx: &mut Context, asked: Asked<'_>, user: &str, refusal: Refusal) {
    match refusal {
        Refusal::Denied(why) => cx.decided(asked, user, refusal.answer(), [why]),
        Refusal::Full => cx.metrics.one(Count::TableFull),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contact(uri: &str, params: &str) -> Arc<Contact> {
        Arc::new(Contact {
            flow: Flow::datagrams(0, "198.51.100.7:5060".parse().unwrap()),
            uri: uri.into(),
            route: Vec::new(),
            q: Contact::Q_MAX,
            expires: Instant::ZERO,
            tail: format!(">{params}").into_bytes(),
            call_id: 1,
            cseq: 1,
            granted_s: 60,
        })
    }

    #[test]
    fn a_telephone_is_called_over_one_of_its_flows_at_a_time_and_a_mailbox_not_at_all() {
        let instance = |id: &str, flow: u8| format!(";+sip.instance=\"<urn:uuid:{id}>\";reg-id={flow}");
        let contacts = [
            contact("sip:a@h1", &instance("A", 2)),
            contact("mailto:a@1", ""),
            contact("sip:a@h2", &instance("a", 1)),
            contact("sip:a@h3", &instance("b", 1)),
            contact("sip:a@h4", ""),
            contact("sip:a@h5", ""),
        ];
        let flows = |contacts: &[Arc<Contact>], is_long| -> Vec<Vec<u8>> {
            let of_phone = |flows: &Vec<Arc<Contact>>| flows.iter().map(|contact| contact.uri[7]).collect();
            callable(contacts, is_long).iter().map(of_phone).collect()
        };
        assert_eq!(flows(&contacts, false), [&b"12"[..], b"3", b"4", b"5"]);
        // The second of its flows is a connection.
        let mut connected = contacts;
        Arc::get_mut(&mut connected[2]).unwrap().flow.connection = crate::ConnectionId::new(0, 1);
        for (is_long, expected) in [(false, b"12"), (true, b"21")] {
            assert_eq!(flows(&connected, is_long), [&expected[..], b"3", b"4", b"5"]);
        }
    }

    #[test]
    fn preferences_are_read_as_the_grammar_has_them() {
        for (text, expected) in [
            ("1", Some(1_000)),
            ("1.000", Some(1_000)),
            ("0", Some(0)),
            ("0.", Some(0)),
            ("0.5", Some(500)),
            ("0.007", Some(7)),
            ("1.001", None),
            ("0.1234", None),
            ("2", None),
            (".5", None),
            ("", None),
            ("0,5", None),
            ("-0.5", None),
        ] {
            assert_eq!(thousandths(text.as_bytes()), expected, "{text}");
        }
    }
}
