//! What attackers have seen before they attack.

use std::{net::SocketAddr, time::Duration};

use super::{
    cases::Calls,
    site::{Exchange, REALM, frontend},
};
use sluicegate_site::{Lab, LabError, binary::Binary};
use sluicegate_traffic::{client::setup::SetupSpec, stream::Connecting};

/// Calls that an attacker makes beforehand. One socket may have few requests under way.
pub(super) const CALLS: u16 = 16;
const HEAR_MAX: Duration = Duration::from_secs(10);

/// Requests of an attacker's own calls, and where each was sent from.
#[derive(Debug, Clone, Default)]
pub(super) struct Recorded {
    pub(super) from: Vec<SocketAddr>,
    pub(super) messages: Vec<String>,
}

/// Makes calls on the attacker's host, and records a request of each that has all that proves it: the BYE of calls that
/// are over, the ACK of those that stay. Nobody listens any more where they were made from.
pub(super) fn record(
    (binary, lab): (&Binary, &Lab),
    (user, password, way): (&str, &str, &Connecting),
    calls: Calls,
    seed: u64,
) -> Result<Recorded, LabError> {
    let is_over = calls == Calls::Over;
    let spec = SetupSpec {
        to: vec![frontend(way.over)],
        way: way.clone(),
        sockets: CALLS,
        realm: REALM.to_owned(),
        service: Exchange::Office.name().to_owned(),
        users: vec![(user.to_owned(), password.to_owned())],
        per_s: 50,
        calls: CALLS.into(),
        seconds: 60,
        talk_ms: is_over.then_some(0),
        give_up_ms: 5_000,
        record: CALLS.into(),
        record_also: if is_over { "BYE" } else { "ACK" }.to_owned(),
        seed,
        ..SetupSpec::default()
    };
    let mut phone = binary.worker(lab, "insider", "setup", &spec)?;
    let mut recorded = Recorded::default();
    for _ in 0..CALLS {
        let event = phone.event("recorded", HEAR_MAX)?;
        let from = event["from"].as_str().and_then(|from| from.parse().ok());
        recorded.from.push(from.ok_or_else(|| phone.failed("says not where it called from"))?);
        recorded.messages.push(event["message"].as_str().unwrap_or_default().to_owned());
    }
    if is_over {
        phone.event("result", HEAR_MAX)?;
    } else {
        // Who is killed says no goodbye.
        phone.kill();
    }
    Ok(recorded)
}
