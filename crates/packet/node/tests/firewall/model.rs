//! The translator against a naive one made of hash maps: the same packets, the same fate.

use std::{collections::HashMap, net::IpAddr, time::Duration};

use crate::site::{packets::*, *};
use proptest::prelude::*;
use sluicegate_grant::{Grant, GrantId};
use sluicegate_wire::{Port, Verdict};

const CLIENTS: [IpAddr; 3] = [CLIENT, OTHER_CLIENT, STRANGER];
const HOSTS: [IpAddr; 3] = [TARGET, TALKER, FILTERED];
const UDP_IDLE_S: u64 = 300;

#[derive(Debug, Clone)]
enum Step {
    Install {
        client: usize,
        host: usize,
        port: u16,
        lifetime_s: u64,
    },
    Revoke {
        grant: usize,
    },
    Wait {
        weeks_of_7_s: u64,
    },
    /// To the gate end of some grant, binding, or to nowhere.
    In {
        client: usize,
        client_port: u16,
        to: usize,
    },
    Out {
        host: usize,
        port: u16,
        client: usize,
        client_port: u16,
    },
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let client = 0..CLIENTS.len();
    let host = 0..HOSTS.len();
    prop_oneof![
        3 => (client.clone(), host.clone(), 1u16..3, 0u64..200)
            .prop_map(|(client, host, port, n)| Step::Install { client, host, port, lifetime_s: 7 * n + 3 }),
        1 => (0usize..40).prop_map(|grant| Step::Revoke { grant }),
        2 => (1u64..60).prop_map(|weeks_of_7_s| Step::Wait { weeks_of_7_s }),
        10 => (client.clone(), 1u16..4, 0usize..60)
            .prop_map(|(client, client_port, to)| Step::In { client, client_port, to }),
        8 => (host, 1u16..4, client, 1u16..4)
            .prop_map(|(host, port, client, client_port)| Step::Out { host, port, client, client_port }),
        1 => Just(Step::Restart),
    ]
}

struct Opened {
    id: GrantId,
    client: IpAddr,
    target: End,
    gate: End,
    ends_s: u64,
    live: bool,
}

struct Flow {
    client: End,
    gate: End,
    target: End,
    /// Index of the grant; `None`: the talker started it.
    grant: Option<usize>,
    seen_s: u64,
}

#[derive(Default)]
struct Model {
    now_s: u64,
    grants: Vec<Opened>,
    flows: Vec<Flow>,
    /// What the talker's ports were seen as.
    bindings: HashMap<End, End>,
}

impl Model {
    fn expire(&mut self) {
        let now_s = self.now_s;
        for grant in &mut self.grants {
            grant.live &= now_s < grant.ends_s;
        }
        let grants = &self.grants;
        self.flows.retain(|flow| now_s - flow.seen_s < UDP_IDLE_S && flow.grant.is_none_or(|grant| grants[grant].live));
        let flows = &self.flows;
        self.bindings.retain(|inside, _| flows.iter().any(|flow| flow.grant.is_none() && flow.target == *inside));
    }

    fn open(&mut self, client: End, gate: End, target: End, grant: Option<usize>) {
        self.flows.retain(|flow| !(flow.client == client && (flow.target == target || flow.gate == gate)));
        self.flows.push(Flow { client, gate, target, grant, seen_s: self.now_s });
    }

    /// Where a packet from outside goes.
    fn inbound(&mut self, client: End, gate: End) -> Option<End> {
        self.expire();
        let now_s = self.now_s;
        if let Some(flow) = self.flows.iter_mut().find(|flow| flow.client == client && flow.gate == gate) {
            flow.seen_s = now_s;
            return Some(flow.target);
        }
        let found = self.grants.iter().rposition(|it| it.live && it.client == client.0 && it.gate == gate)?;
        let target = self.grants[found].target;
        self.open(client, gate, target, Some(found));
        Some(target)
    }

    /// What a packet from inside looks like outside; `Err(())`: some new port of the gate.
    fn outbound(&mut self, target: End, client: End) -> Option<Result<End, ()>> {
        self.expire();
        let now_s = self.now_s;
        if let Some(flow) = self.flows.iter_mut().find(|flow| flow.client == client && flow.target == target) {
            flow.seen_s = now_s;
            return Some(Ok(flow.gate));
        }
        if let Some(found) = self.grants.iter().rposition(|it| it.live && it.client == client.0 && it.target == target)
        {
            let gate = self.grants[found].gate;
            self.open(client, gate, target, Some(found));
            return Some(Ok(gate));
        }
        if target.0 != TALKER {
            return None;
        }
        let Some(gate) = self.bindings.get(&target).copied() else { return Some(Err(())) };
        self.open(client, gate, target, None);
        Some(Ok(gate))
    }
}

struct Run {
    site: Site,
    model: Model,
}

impl Run {
    fn install(&mut self, client: usize, host: usize, port: u16, lifetime_s: u64) -> Result<(), TestCaseError> {
        let base = self.site.grant(UDP, CLIENTS[client]);
        let grant = Grant { not_after: self.site.unix.plus_secs(lifetime_s), bytes: 1 << 40, flows: 500, ..base };
        let opened = self.site.install(grant.clone(), HOSTS[host], (port, port));
        let gate = (opened.address, opened.ports.0);
        if HOSTS[host] != FILTERED {
            let taken = self.model.grants.iter().any(|other| other.live && other.gate == gate);
            prop_assert!(!taken && !self.model.bindings.values().any(|bound| *bound == gate), "one holder a port");
        }
        let (client, target) = (CLIENTS[client], (HOSTS[host], port));
        let ends_s = self.model.now_s + lifetime_s;
        self.model.grants.push(Opened { id: grant.id, client, target, gate, ends_s, live: true });
        Ok(())
    }

    fn inbound(&mut self, client: End, to: usize) -> Result<(), TestCaseError> {
        let bound: Vec<End> = {
            let mut all: Vec<End> = self.model.bindings.values().copied().collect();
            all.sort_unstable();
            all
        };
        let grants = self.model.grants.len();
        let gate = match to {
            to if to < grants => self.model.grants[to].gate,
            to if to < grants + bound.len() => bound[to - grants],
            _ => (GATE.into(), 20_999),
        };
        let expected = self.model.inbound(client, gate);
        let out = self.site.outside_sends(&udp(client, gate, b"model"));
        match expected {
            Some(target) => {
                prop_assert_eq!(out.verdict, Verdict::Forward(Port::INSIDE), "{:?} -> {:?}", client, gate);
                prop_assert_eq!(ends(&out.packet), (client, target));
            }
            None => prop_assert!(matches!(out.verdict, Verdict::Drop(_)), "{client:?} -> {gate:?} passed"),
        }
        Ok(())
    }

    fn outbound(&mut self, target: End, client: End) -> Result<(), TestCaseError> {
        let expected = self.model.outbound(target, client);
        let out = self.site.inside_sends(&udp(target, client, b"model"));
        let Some(expected) = expected else {
            prop_assert!(matches!(out.verdict, Verdict::Drop(_)), "{target:?} -> {client:?} passed");
            return Ok(());
        };
        prop_assert_eq!(out.verdict, Verdict::Forward(Port::OUTSIDE), "{:?} -> {:?}", target, client);
        let (src, dst) = ends(&out.packet);
        prop_assert_eq!(dst, client);
        match expected {
            Ok(gate) => prop_assert_eq!(src, gate),
            Err(()) => {
                let taken = self.model.grants.iter().any(|other| other.live && other.gate == src);
                prop_assert!(!taken && !self.model.bindings.values().any(|bound| *bound == src), "one holder a port");
                self.model.bindings.insert(target, src);
                self.model.open(client, src, target, None);
            }
        }
        Ok(())
    }

    fn restart(&mut self) {
        let mut bytes = Vec::new();
        sluicegate_nat::Export::whole(&self.site.gate.translator, &mut |part| bytes.extend_from_slice(part));
        let mut gate = firewall(config(), [90; 16], 5);
        gate.translator.set_services(&services()).unwrap();
        let imported = sluicegate_nat::import(&mut gate.translator, self.site.now, self.site.unix, &bytes).unwrap();
        assert_eq!(imported.skipped, 0);
        self.site.gate = gate;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_translator_does_what_the_naive_one_does(steps in prop::collection::vec(step(), 1..150)) {
        let mut run = Run { site: Site::new(), model: Model::default() };
        for step in steps {
            match step {
                Step::Install { client, host, port, lifetime_s } => run.install(client, host, port, lifetime_s)?,
                Step::Revoke { grant } => {
                    run.model.expire();
                    if let Some(opened) = run.model.grants.get_mut(grant) {
                        let ended = run.site.gate.translator.revoke(run.site.now, opened.id);
                        prop_assert_eq!(ended.is_some(), opened.live);
                        opened.live = false;
                    }
                }
                Step::Wait { weeks_of_7_s } => {
                    run.site.wait(Duration::from_secs(weeks_of_7_s * 7));
                    run.model.now_s += weeks_of_7_s * 7;
                }
                Step::In { client, client_port, to } => run.inbound((CLIENTS[client], client_port), to)?,
                Step::Out { host, port, client, client_port } => {
                    run.outbound((HOSTS[host], port), (CLIENTS[client], client_port))?;
                }
                Step::Restart => run.restart(),
            }
            run.model.expire();
            prop_assert_eq!(run.site.used("flows") as usize, run.model.flows.len());
            prop_assert_eq!(run.site.used("bindings") as usize, run.model.bindings.len());
            let live = run.model.grants.iter().filter(|grant| grant.live).count();
            prop_assert_eq!(run.site.used("pinholes") as usize, live + 1);
        }
    }
}
