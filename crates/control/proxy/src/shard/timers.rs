//! Session timers (RFC 4028): how a call says that it goes on, which renews what it has open.

use sluicegate_sip::message::{HeaderName, Message};

/// Shortest session timer, in seconds (RFC 4028 section 4).
pub(super) const SECS_MIN: u32 = 90;

/// Whether a request asks for a timer that is too short for anybody.
pub(super) fn is_too_small(request: &Message<'_>) -> bool {
    seconds(request, HeaderName::SessionExpires).is_some_and(|secs| secs < SECS_MIN)
}

/// The timer of an answer of our own (RFC 4028 section 9), in seconds: no longer than was asked for nor than the grants last,
/// and no shorter than the caller allows. `None` where that cannot be, where the caller has no timers, and where it wants
/// us to refresh.
pub(super) fn of_answer(request: &Message<'_>, lifetime_s: u32) -> Option<u32> {
    let is_ours = refresher(request).is_some_and(|who| who.eq_ignore_ascii_case(b"uas"));
    let least = least(request);
    let secs = seconds(request, HeaderName::SessionExpires).unwrap_or(u32::MAX).min(lifetime_s);
    (has_timers(request) && !is_ours && least <= lifetime_s).then(|| secs.max(least))
}

/// The Session-Expires that a request has when it goes on to a SIP server (RFC 4028 section 8.1): what its sender asked for,
/// but no longer than the grants last, as far as it allows that.
pub(super) fn for_service(request: &Message<'_>, lifetime_s: u32) -> String {
    let secs = seconds(request, HeaderName::SessionExpires).unwrap_or(u32::MAX).min(lifetime_s).max(least(request));
    match refresher(request).and_then(|who| std::str::from_utf8(who).ok()) {
        Some(who) => format!("{secs};refresher={who}"),
        None => secs.to_string(),
    }
}

/// The Session-Expires that an accepting answer gets on its way to a caller with timers, where who answered has none (RFC
/// 4028 section 8.2): the caller then refreshes alone.
pub(super) fn for_caller(request: &[u8], forwarded: &[u8], answer: &Message<'_>) -> Option<String> {
    let is_accepted = answer.status().is_some_and(|code| code / 100 == 2);
    let is_without = answer.header(HeaderName::SessionExpires).is_none();
    let is_invite = answer.cseq().is_ok_and(|cseq| cseq.method == sluicegate_sip::message::Method::Invite);
    if !is_accepted || !is_without || !is_invite || !has_timers(&Message::parse(request).ok()?) {
        return None;
    }
    let secs = seconds(&Message::parse(forwarded).ok()?, HeaderName::SessionExpires)?;
    Some(format!("{secs};refresher=uac"))
}

fn has_timers(request: &Message<'_>) -> bool {
    [HeaderName::Supported, HeaderName::Require].iter().any(|field| request.lists(*field, b"timer"))
}

fn least(request: &Message<'_>) -> u32 {
    seconds(request, HeaderName::MinSe).unwrap_or(0).max(SECS_MIN)
}

/// Who is to refresh, if the request says so.
fn refresher<'m>(request: &Message<'m>) -> Option<&'m [u8]> {
    let asked = request.header(HeaderName::SessionExpires)?;
    let of = |param: &'m [u8]| {
        param.split_at_checked(b"refresher=".len()).filter(|(name, _)| name.eq_ignore_ascii_case(b"refresher="))
    };
    asked.split(|byte| *byte == b';').find_map(|param| of(param.trim_ascii())).map(|(_, who)| who)
}

/// The number that such a field begins with.
fn seconds(message: &Message<'_>, name: HeaderName) -> Option<u32> {
    let value = message.header(name)?.split(|byte| *byte == b';').next()?;
    std::str::from_utf8(value.trim_ascii()).ok()?.parse().ok()
}
