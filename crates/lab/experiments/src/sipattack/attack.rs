//! Who attacks, and how: all of it at once.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use super::{Mutant, play::Siege};
use crate::sipflood::{
    play::FOREVER_S,
    site::{BOTNET, Exchange, FRONTENDS, INSIDER, REALM, at},
};
use sluicegate_site::{LabError, Process};
use sluicegate_traffic::{
    attack::{ConnectionsSpec, Manner, SipFloodSpec, SipKind},
    sipload::{CallRate, CallersSpec},
    stream::Over,
};

/// Sockets of a flood.
const SOCKETS: u16 = 200;
/// What strangers send, as much of each.
const STRANGERS: [SipKind; 9] = [
    SipKind::Invite,
    SipKind::Bye,
    SipKind::Ack,
    SipKind::Cancel,
    SipKind::Response,
    SipKind::Register,
    SipKind::BadDigest,
    SipKind::BadRegister,
    SipKind::Garbage,
];
/// Requests a second of the stolen account, to each exchange.
const ACCOUNT_PER_S: u64 = 1_000;
/// Connections of strangers to each front end, and how many they open a second.
const CONNECTIONS: u16 = 300;
const CONNECTIONS_PER_S: u64 = 200;
/// Stolen accounts that call all at once, each like a telephone.
pub(super) const CROWD: usize = 200;
/// Which of the attackers are strangers whose addresses may be forged.
pub(super) const STRANGERS_OVER_UDP: usize = 0;
/// Calls a second of them together: more than a thread can set up.
const CROWD_PER_S: u32 = 12_000;
const CROWD_HOLD_MS: u32 = 200;
/// Which they offer, and send nothing from.
const CROWD_MEDIA_PORT: u16 = 10_000;
const CROWD_CALLS_MAX: u32 = 1 << 17;

pub(super) fn to(over: Over) -> Vec<SocketAddr> {
    FRONTENDS.map(|address| at(address, over)).to_vec()
}

impl Siege<'_> {
    /// Begins all that lasts from the start to the end.
    pub(super) fn attack(&self) -> Result<Vec<Process>, LabError> {
        if self.options.mutant == Mutant::NoFlood {
            return Ok(Vec::new());
        }
        // The first: see [`STRANGERS_OVER_UDP`].
        let mut attackers = vec![self.worker("botnet", "sip_flood", &self.strangers(Over::Udp, self.options.per_s))?];
        attackers.push(self.worker("botnet", "sip_flood", &self.strangers(Over::Tcp, self.options.per_s / 10))?);
        for exchange in Exchange::ALL {
            attackers.push(self.worker("insider", "sip_flood", &self.insider(exchange))?);
        }
        for frontend in FRONTENDS {
            attackers.push(self.worker("botnet", "connections", &self.handshakes(frontend.into()))?);
        }
        Ok(attackers)
    }

    fn strangers(&self, over: Over, per_s: u64) -> SipFloodSpec {
        SipFloodSpec {
            to: to(over),
            way: self.certificate.way(over),
            sources: BOTNET,
            sockets: SOCKETS,
            per_s,
            seconds: FOREVER_S,
            requests_max: u64::MAX,
            realm: REALM.to_owned(),
            service: Exchange::Office.name().to_owned(),
            users: self.users.iter().map(|(name, _)| name.clone()).collect(),
            mix: STRANGERS.map(|kind| (kind, 1)).to_vec(),
            seed: self.seed(),
            ..SipFloodSpec::default()
        }
    }

    /// One stolen account, which calls an exchange and acknowledges nothing.
    fn insider(&self, exchange: Exchange) -> SipFloodSpec {
        SipFloodSpec {
            sources: INSIDER,
            per_s: ACCOUNT_PER_S,
            service: exchange.name().to_owned(),
            mix: vec![(SipKind::Account, 3), (SipKind::AccountRegister, 1)],
            account: self.stolen.first().cloned(),
            ..self.strangers(Over::Udp, 0)
        }
    }

    fn handshakes(&self, frontend: IpAddr) -> ConnectionsSpec {
        ConnectionsSpec {
            to: SocketAddr::new(frontend, to(Over::Tls)[0].port()),
            way: self.certificate.way(Over::Tls),
            sources: BOTNET,
            connections: CONNECTIONS,
            per_s: CONNECTIONS_PER_S,
            manner: Manner::Handshakes,
            realm: REALM.to_owned(),
            seconds: FOREVER_S,
        }
    }

    /// Many stolen accounts that call at once, from one network, as telephones do: with credentials, an ACK and a BYE.
    pub(super) fn crowd(&self, time: Duration) -> Result<Process, LabError> {
        let ms = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        let spec = CallersSpec {
            to: to(Over::Udp),
            sources: Some(BOTNET),
            lines: SOCKETS,
            realm: REALM.to_owned(),
            service: Exchange::Office.name().to_owned(),
            users: self.stolen.clone(),
            rates: vec![CallRate { per_s: CROWD_PER_S, ms }],
            is_attack: true,
            media_port: CROWD_MEDIA_PORT,
            hold_ms: Some(CROWD_HOLD_MS),
            calls_max: CROWD_CALLS_MAX,
            tick_ms: 1_000,
            windows_ms: vec![(0, u64::from(FOREVER_S) * 1_000)],
            seed: self.seed(),
            ..CallersSpec::default()
        };
        self.worker("botnet", "callers", &spec)
    }
}
