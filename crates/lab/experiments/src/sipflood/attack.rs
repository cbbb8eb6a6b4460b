//! Who attacks in each case, and how.

use super::{
    Mutant,
    cases::{Attackers, Case, Crowd},
    play::{FOREVER_S, Scene},
    recorded::record,
    site::{BOTNET, Exchange, FRONTEND, INSIDER, REALM, VICTIMS, frontend},
};
use sluicegate_site::{LabError, Prefix, Process};
use sluicegate_traffic::{
    attack::{ConnectionsSpec, FloodSpec, SipFloodSpec, SipKind, Target},
    stream::Over,
};

/// Sockets of a flood.
const SOCKETS: u16 = 200;
/// Connections that strangers open a second.
const CONNECTIONS_PER_S: u64 = 3_000;
/// Different requests of those who make themselves out to be others.
const SPOOFED: usize = 256;

impl Scene<'_> {
    /// Begins to attack over this, with this account if it takes one; what does.
    pub(super) fn attack(&self, case: &Case, over: Over, account: &str) -> Result<Vec<Process>, LabError> {
        if self.options.mutant == Mutant::NoFlood {
            return Ok(Vec::new());
        }
        let flood = |host: &str, spec: SipFloodSpec| Ok(vec![self.worker(host, "sip_flood", &spec)?]);
        match case.by {
            Attackers::Nobody => Ok(Vec::new()),
            Attackers::Strangers(kinds) => flood("botnet", self.flood(over, kinds, BOTNET)),
            Attackers::Account(kind, exchange) => {
                let service = exchange.name().to_owned();
                let account = Some((account.to_owned(), self.password.clone()));
                flood("insider", SipFloodSpec { service, account, ..self.flood(over, &[kind], INSIDER) })
            }
            Attackers::Caller(kinds, calls) => {
                let way = self.certificate.way(over);
                let seen = record((&self.binary, &self.lab), (account, &self.password, &way), calls, self.seed())?;
                let sockets = u16::try_from(seen.from.len()).unwrap_or(SOCKETS);
                let spec = SipFloodSpec {
                    sockets,
                    from: seen.from,
                    recorded: seen.messages,
                    ..self.flood(over, kinds, INSIDER)
                };
                flood("insider", spec)
            }
            Attackers::Spoofers => Ok(vec![self.worker("botnet", "flood", &self.spoofed()?)?]),
            Attackers::Crowd(crowd) => {
                let host = if crowd.sources == INSIDER { "insider" } else { "botnet" };
                Ok(vec![self.worker(host, "connections", &self.crowd(crowd, over))?])
            }
        }
    }

    fn crowd(&self, crowd: Crowd, over: Over) -> ConnectionsSpec {
        ConnectionsSpec {
            to: frontend(over),
            way: self.certificate.way(over),
            sources: crowd.sources,
            connections: crowd.connections,
            per_s: CONNECTIONS_PER_S.min(self.options.per_s),
            manner: crowd.manner,
            realm: REALM.to_owned(),
            seconds: FOREVER_S,
        }
    }

    fn flood(&self, over: Over, kinds: &[SipKind], sources: Prefix) -> SipFloodSpec {
        SipFloodSpec {
            to: vec![frontend(over)],
            way: self.certificate.way(over),
            sources,
            sockets: SOCKETS,
            per_s: self.options.per_s,
            seconds: FOREVER_S,
            requests_max: u64::MAX,
            realm: REALM.to_owned(),
            service: Exchange::Office.name().to_owned(),
            users: self.users.iter().map(|(name, _)| name.clone()).collect(),
            mix: kinds.iter().map(|kind| (*kind, 1)).collect(),
            branches: self.branches.clone(),
            seed: self.seed(),
            ..SipFloodSpec::default()
        }
    }

    /// Short requests whose answers are long, with the addresses of one network.
    fn spoofed(&self) -> Result<FloodSpec, LabError> {
        let to = frontend(Over::Udp);
        let request = |number: usize| {
            let method = ["INVITE", "OPTIONS", "REGISTER", "BYE"][number % 4];
            let to_tag = if method == "BYE" { ";tag=b" } else { "" };
            format!(
                "{method} sip:{REALM} SIP/2.0\r\nv:SIP/2.0/UDP h;branch=z9hG4bK{number};rport\r\nf:<sip:a@{REALM}>;tag=a\r\n\
                 t:<sip:a@{REALM}>{to_tag}\r\ni:{number}\r\nCSeq:1 {method}\r\nMax-Forwards:9\r\nl:0\r\n\r\n"
            )
        };
        Ok(FloodSpec {
            interface: "eth0".to_owned(),
            destination_mac: self.lab.mac("core", "botnet")?,
            source_mac: self.lab.mac("botnet", "eth0")?,
            targets: vec![Target { address: FRONTEND.into(), first: to.port(), last: to.port() }],
            mix: Vec::new(),
            datagrams: (0..SPOOFED).map(|number| (None, request(number))).collect(),
            sources: vec![VICTIMS],
            clients: Vec::new(),
            clients_percent: 0,
            mark: 0,
            frame_bytes: vec![200],
            per_s: self.options.per_s,
            seconds: FOREVER_S,
            frames_max: u64::MAX,
            seed: self.seed(),
        })
    }
}
