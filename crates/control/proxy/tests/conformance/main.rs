//! What RFC 3261 and its followers demand of a proxy and registrar, on a virtual clock. Names beginning with `d` and a number
//! are defects that an audit found.

mod allocation;
#[path = "../../../../protocol/sip/tests/torture/answers.rs"]
mod answers;
mod behind_nat;
mod checks;
mod credentials;
mod dialog;
mod failover;
mod flows;
mod hiding;
mod inbound;
mod invite;
mod keep_alives;
mod lasting;
mod messages;
mod outbound;
mod passing;
mod registrations;
mod relayed_registrations;
#[path = "../site/mod.rs"]
mod site;
mod state;
mod stories;
mod torture;
mod trunks;
