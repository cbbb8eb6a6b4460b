use std::{
    array,
    collections::BTreeMap,
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

use super::{
    Event,
    attacks::{self, ALL, CLASSES, SPOOFED},
    cast::{COUNTED, Cast, FOREVER_S, call_once, calling},
    daemons::{Daemons, wait_for},
    files::{DECLARED, INSIDER_BYTES_MAX, PHONES_GROUP, REALM, SERVICES},
    ledger::{Ledger, Origin},
    story,
    verdict::{Forgeries, Insider, Measured, SipAttack},
};
use crate::report::{Phase, Report};
use sluicegate_netlink::LinkCounters;
use sluicegate_site::{LabError, Process, clock::unix_ns, cpu::StolenWatch, topology::Site};
use sluicegate_traffic::{
    attack::{FloodSpec, InsiderSpec, SipFloodSpec, SipKind},
    client::{
        call::CallSpec,
        setup::{SetupSpec, SetupSummary, opened},
        transfer::TransferSpec,
    },
};

/// Time between a change (an attack begins, the way is switched) and what is measured.
const SETTLE: Duration = Duration::from_secs(1);
/// How long workers may take to end after their time.
const DRAIN_MAX: Duration = Duration::from_secs(8);
const TICK: Duration = Duration::from_millis(50);
/// How often a phase is measured at most, if the machine is disturbed.
const TRIES: u32 = 3;
const INSIDER_S: u32 = 6;
/// Where mallory wants media to come from, one port for each service.
const INSIDER_PORT: u16 = 42_000;
const SIP_FLOOD_PER_S: u64 = 36_000;
const CALL_PER_S: u32 = 50;
const CALL_BYTES: usize = 200;
/// Downloads; and uploads, which leave in one burst and take the link for less than 6 ms.
const TRANSFER_BYTES: u32 = 20_000;
const UPLOAD_BYTES: u32 = 10_000;
const TRANSFERS_PER_MINUTE: u32 = 190;
/// With each service.
const SETUPS_PER_S: u32 = 75;
/// Datagrams that an honest set-up sends to the front end, with its BYE; more than it needs.
const DATAGRAMS_PER_SETUP: u64 = 8;
/// Flow numbers: phase, then service, then call: alice's first, then bob's.
const FLOWS_PER_PHASE: u32 = 100;
const BOBS_FLOWS: u32 = 5;
const FLOWS_PER_SERVICE: u32 = 10;
const ETHERNET_LEN: u64 = 14;
const SECOND_NS: u64 = 1_000_000_000;

/// The run of the phases: workers come and go, everything that they say is kept.
pub(super) struct Stage<'a> {
    pub(super) daemons: &'a mut Daemons,
    pub(super) cast: Cast,
    tell: &'a mut dyn FnMut(Event),
    running: Vec<(Origin, Process)>,
    pub(super) ledger: Ledger,
    report: Report,
    start: Instant,
    start_ns: u64,
    sampled_s: u32,
    sampled: (u64, BTreeMap<String, u64>),
}

impl<'a> Stage<'a> {
    pub(super) fn new(daemons: &'a mut Daemons, mut cast: Cast, tell: &'a mut dyn FnMut(Event)) -> Self {
        let title = "sluicegate demo".to_owned();
        let (seed, link_rate_bps, backend) =
            (daemons.options.seed, daemons.options.site.link_rate_bps, daemons.backend.clone());
        let running = std::mem::take(&mut cast.counting);
        Self {
            daemons,
            cast,
            tell,
            running,
            ledger: Ledger::default(),
            report: Report { title, seed, link_rate_bps, backend, ..Report::default() },
            start: Instant::now(),
            start_ns: unix_ns(),
            sampled_s: 0,
            sampled: (0, BTreeMap::new()),
        }
    }

    /// Plays all phases and returns what was measured in each.
    pub(super) fn play(&mut self) -> Result<Vec<Measured>, LabError> {
        self.sampled = (self.offered()?.rx_bytes, self.daemons.drops());
        let mut measured = vec![self.measure("calm", true)?];

        self.daemons.site.gate_off()?;
        self.start_flood()?;
        self.start_flood_next_door("bypass", "to_bypass", Site::BYPASS)?;
        measured.push(self.measure("gate off", false)?);

        self.stop(Origin::Flood(SPOOFED), "core")?;
        self.daemons.site.gate_on()?;
        self.start_flood_next_door("gate", "to_gate", Site::GATE)?;
        let back_s = self.services_are_back()?;
        measured.push(Measured { back_s: Some(back_s), ..self.measure("gate on", true)? });

        // The front end is flooded while the link is.
        self.start_sip_flood()?;
        let mut both = self.measure("both", true)?;
        self.stop(Origin::SipFlood, "")?;
        for class in CLASSES {
            self.stop(Origin::Flood(class), "")?;
        }
        if let (Some(attack), Some(accepted)) = (&mut both.sip_attack, self.accepted()) {
            attack.accepted = accepted;
        }
        measured.push(both);

        measured.push(self.insider()?);
        self.close()?;
        Ok(measured)
    }

    /// What the phases left for the report: time series and phases.
    pub(super) fn into_report(self) -> Report {
        self.report
    }

    /// Measures a phase, and again while the machine's host gave too much of it to others meanwhile.
    pub(super) fn measure(&mut self, name: &'static str, through_gate: bool) -> Result<Measured, LabError> {
        for _ in 1..TRIES {
            let measured = self.measure_once(name, through_gate)?;
            if !measured.taken.is_much() {
                return Ok(measured);
            }
            let percent = measured.taken.share * 100.0;
            (self.tell)(Event::Step(format!("others took {percent:.0} % of this machine: \"{name}\" again")));
        }
        self.measure_once(name, through_gate)
    }

    /// Runs calls, transfers and set-ups with all services for the length of a phase.
    fn measure_once(&mut self, name: &'static str, through_gate: bool) -> Result<Measured, LabError> {
        (self.tell)(Event::Phase(name, story::of(name)));
        let number = u32::try_from(self.report.phases.len()).unwrap_or(0);
        self.run_for(SETTLE)?;
        let from_s = self.elapsed_s();
        let way = if through_gate { "gate" } else { "bypass" };
        let (from_ns, before) = (unix_ns(), self.daemons.site.lab.counters(way, Site::OUTSIDE)?);
        let asked = self.daemons.datagrams_at_frontend();
        let (began, watch) = (Instant::now(), StolenWatch::start());
        for service in 0..SERVICES.len() {
            self.start_clients(service, number, through_gate)?;
        }
        self.run_for(Duration::from_secs(self.daemons.options.phase_s.into()))?;
        let (to_ns, offered) = (unix_ns(), self.daemons.site.lab.counters(way, Site::OUTSIDE)?.since(&before));
        let (seconds, taken) = (began.elapsed().as_secs_f64(), watch.end().taken());
        let asked = self.daemons.datagrams_at_frontend().saturating_sub(asked);
        self.end_phase(name, from_s);
        self.drain_clients()?;
        // A counter's tick tells of the half second before it.
        let (count_from, count_to) = (from_ns, unix_ns());
        let flows = |service: u32| {
            let first = number * FLOWS_PER_PHASE + service * FLOWS_PER_SERVICE;
            move |flow: u32| (first..first + FLOWS_PER_SERVICE).contains(&flow)
        };
        let call =
            |service: usize| self.ledger.calls(from_ns, u64::MAX, flows(u32::try_from(service).unwrap_or(u32::MAX)));
        let setups = array::from_fn(|service| self.ledger.setups(service, from_ns, to_ns));
        let honest: u64 = setups.iter().map(|one: &SetupSummary| one.started * DATAGRAMS_PER_SETUP).sum();
        let received_per_s = asked.saturating_sub(honest) as f64 / seconds;
        Ok(Measured {
            name,
            calls: array::from_fn(call),
            transfers: array::from_fn(|service| self.ledger.transfers(service, from_ns, to_ns)),
            setups,
            stranger_bytes: self.counted("stranger", count_from, count_to),
            forgeries: ALL.map(|class| self.forgeries(class, count_from, count_to)),
            offered_bps: self.ip_bytes(through_gate, offered) as f64 * 8.0 / seconds,
            offered_pps: offered.rx_packets as f64 / seconds,
            seconds,
            taken,
            sip_attack: (name == "both").then_some(SipAttack { received_per_s, accepted: u64::MAX }),
            insider: None,
            back_s: None,
        })
    }

    fn end_phase(&mut self, name: &str, from_s: u32) {
        let (name, about, to_s) = (name.to_owned(), story::of(name).to_owned(), self.elapsed_s());
        self.report.phases.push(Phase { name, about, from_s, to_s });
    }

    /// Bytes of a class that reached the hosts of the services.
    pub(super) fn counted(&self, class: &str, from_ns: u64, to_ns: u64) -> u64 {
        (0..COUNTED.len()).map(|host| self.ledger.counted(host, class, from_ns, to_ns).1).sum()
    }

    fn forgeries(&self, class: attacks::Class, from_ns: u64, to_ns: u64) -> Forgeries {
        Forgeries {
            name: class.name,
            sent: self.ledger.sent(class, from_ns, to_ns),
            received_bytes: self.counted(class.name, from_ns, to_ns),
        }
    }

    fn start_clients(&mut self, service: usize, phase: u32, through_gate: bool) -> Result<(), LabError> {
        let what = SERVICES[service];
        let number = u32::try_from(service).unwrap_or(0);
        let first_flow = phase * FLOWS_PER_PHASE + number * FLOWS_PER_SERVICE;
        let calls = self.cast.call_targets[service].len();
        let direct = vec![(what.public(), what.udp).into(); calls];
        let call = CallSpec {
            to: if through_gate { self.cast.call_targets[service].clone() } else { direct },
            first_flow,
            from_ports: self.cast.call_ports[service].clone(),
            per_s: CALL_PER_S,
            bytes: CALL_BYTES,
            seconds: self.daemons.options.phase_s,
        };
        self.start(Origin::Call, "alice", "call", &call)?;
        let call = CallSpec {
            to: vec![Cast::datagram_target(service, through_gate)],
            first_flow: first_flow + BOBS_FLOWS,
            from_ports: Vec::new(),
            ..call
        };
        self.start(Origin::Call, "bob", "call", &call)?;
        for upload in [false, true] {
            let Some(to) = Cast::transfer_target(service, through_gate) else { continue };
            let transfer = TransferSpec {
                to,
                from: None,
                bytes: if upload { UPLOAD_BYTES } else { TRANSFER_BYTES },
                deadline_ms: 3_000,
                per_minute: TRANSFERS_PER_MINUTE / 2,
                parallel_max: 0,
                upload,
                seconds: self.daemons.options.phase_s,
            };
            self.start(Origin::Transfer(service), "bob", "transfer", &transfer)?;
        }
        if !through_gate && !what.is_declared() {
            // The front end reaches these through the gate only.
            return Ok(());
        }
        let setup = SetupSpec {
            users: self.daemons.files.members(PHONES_GROUP),
            sockets: 8,
            per_s: SETUPS_PER_S,
            calls: SETUPS_PER_S * self.daemons.options.phase_s,
            seconds: self.daemons.options.phase_s,
            talk_ms: Some(0),
            seed: self.daemons.options.seed ^ (u64::from(phase) << 8 | service as u64),
            ..calling(self.daemons, "alice", what, 41_000)?
        };
        self.start(Origin::Setup(service), "phones", "setup", &setup)
    }

    /// Everything that is no call to the front end: strangers, and forgeries by those who know whom the gate lets in.
    pub(super) fn start_flood(&mut self) -> Result<(), LabError> {
        for (number, host) in (1..).zip(["storm_a", "storm_b"]) {
            let spec = attacks::spoofed(self.daemons, host, number)?;
            self.start(Origin::Flood(SPOOFED), host, "flood", &spec)?;
        }
        self.start_forgeries(attacks::forged(self.daemons, &self.cast)?)
    }

    pub(super) fn start_forgeries(&mut self, specs: Vec<(attacks::Class, FloodSpec)>) -> Result<(), LabError> {
        specs.iter().try_for_each(|(class, spec)| {
            let host = if *class == attacks::FORGED_INFRASTRUCTURE { "storm_b" } else { "storm_a" };
            self.start(Origin::Flood(*class), host, "flood", spec)
        })
    }

    pub(super) fn start_flood_next_door(
        &mut self,
        router: &str,
        interface: &str,
        own: Ipv4Addr,
    ) -> Result<(), LabError> {
        let spec = attacks::next_door(self.daemons, (router, interface), own)?;
        self.start(Origin::Flood(SPOOFED), "core", "flood", &spec)
    }

    fn start_sip_flood(&mut self) -> Result<(), LabError> {
        let known = self.daemons.files.users.iter().take(4).map(|user| user.name.clone());
        let spec = SipFloodSpec {
            to: vec![self.daemons.frontend],
            sources: Site::BOTNET,
            sockets: 200,
            per_s: SIP_FLOOD_PER_S,
            seconds: FOREVER_S,
            requests_max: u64::MAX,
            realm: REALM.to_owned(),
            service: SERVICES[0].name.to_owned(),
            users: known.chain(["nobody".to_owned(), "root".to_owned()]).collect(),
            mix: vec![(SipKind::Invite, 4), (SipKind::BadDigest, 3), (SipKind::Replay, 2), (SipKind::Garbage, 1)],
            recorded: self.cast.recorded.iter().map(|(_, message)| message.clone()).collect(),
            seed: self.daemons.options.seed,
            ..SipFloodSpec::default()
        };
        self.start(Origin::SipFlood, "botnet", "sip_flood", &spec)
    }

    /// Seconds until the services that register at the front end can be called again, which the flood before may have kept
    /// from renewing their registrations.
    fn services_are_back(&self) -> Result<f64, LabError> {
        let began = Instant::now();
        for service in SERVICES.into_iter().filter(|service| !service.is_declared()) {
            let what = format!("calls to {}", service.name);
            wait_for(&what, || call_once(self.daemons, service).is_ok())?;
        }
        Ok(began.elapsed().as_secs_f64())
    }

    /// Requests of the flood that were answered with success.
    fn accepted(&self) -> Option<u64> {
        self.ledger.results(Origin::SipFlood).last()?["accepted"].as_u64()
    }

    /// Mallory is let in to both declared services and floods both.
    fn insider(&mut self) -> Result<Measured, LabError> {
        (self.tell)(Event::Phase("insider", story::of("insider")));
        let from_s = self.elapsed_s();
        let (from_ns, watch) = (unix_ns(), StolenWatch::start());
        let mut phones = Vec::new();
        let mut pinholes = Vec::new();
        let ports = (INSIDER_PORT..).take(DECLARED);
        for (port, service) in ports.clone().zip(SERVICES) {
            let spec = calling(self.daemons, "mallory", service, port)?;
            let phone = self.daemons.worker("mallory", "setup", &spec)?;
            pinholes.push(opened(&phone)?);
            phones.push(phone);
        }
        let offered = pinholes.len() as u64;
        let spec = InsiderSpec {
            to: pinholes,
            from_ports: ports.collect(),
            bytes: 1_200,
            per_s: 10_000,
            seconds: INSIDER_S,
            bytes_max: u64::MAX,
        };
        self.start(Origin::Insider, "mallory", "insider", &spec)?;
        self.run_for(Duration::from_secs(INSIDER_S.into()))?;
        self.stop(Origin::Insider, "")?;
        self.run_for(SETTLE)?;
        let to_ns = unix_ns();
        self.end_phase("insider", from_s);
        let sent = self.ledger.results(Origin::Insider).last().and_then(|result| result["bytes"].as_u64()).unwrap_or(0);
        let insider = array::from_fn(|service| {
            // The grant counts IP bytes.
            let (packets, bytes) = self.ledger.counted(service, "insider", from_ns, to_ns);
            Insider {
                received: bytes - packets * ETHERNET_LEN,
                offered: sent / offered.max(1),
                allowed: INSIDER_BYTES_MAX,
            }
        });
        let (stranger_bytes, taken) = (self.counted("stranger", from_ns, to_ns), watch.end().taken());
        Ok(Measured { name: "insider", stranger_bytes, taken, insider: Some(insider), ..Measured::default() })
    }

    /// Ends sinks and counters, and completes the time series.
    fn close(&mut self) -> Result<(), LabError> {
        for (service, host) in COUNTED.into_iter().enumerate() {
            self.stop(Origin::Count(service), "")?;
            let lost = self.ledger.results(Origin::Count(service)).last().and_then(|result| result["lost"].as_u64());
            let lost = lost.ok_or_else(|| LabError::process("count", "ended without a result"))?;
            self.report.of("verdict").at_most(&format!("frames_not_counted.{host}"), lost as f64, 0.0);
        }
        (0..self.sampled_s).for_each(|second| self.complete(second));
        Ok(())
    }

    pub(super) fn start<S: serde::Serialize>(
        &mut self,
        origin: Origin,
        host: &str,
        role: &str,
        spec: &S,
    ) -> Result<(), LabError> {
        let process = self.daemons.worker(host, role, spec)?;
        self.running.push((origin, process));
        Ok(())
    }

    /// Ends the workers of this origin, on hosts whose name contains `host`, and keeps what they say last.
    pub(super) fn stop(&mut self, origin: Origin, host: &str) -> Result<(), LabError> {
        let chosen = |(of, process): &mut (Origin, Process)| *of == origin && process.name().ends_with(host);
        let mut ending: Vec<_> = self.running.extract_if(.., chosen).collect();
        ending.iter_mut().for_each(|(_, process)| process.close_input());
        for (origin, process) in &mut ending {
            while let Some(line) = process.line(DRAIN_MAX) {
                self.ledger.take(*origin, &line);
            }
            process.wait(DRAIN_MAX)?;
        }
        Ok(())
    }

    /// Goes on until all callers, transfers and phones have ended, and their last packets are counted.
    fn drain_clients(&mut self) -> Result<(), LabError> {
        let is_client = |origin: Origin| matches!(origin, Origin::Call | Origin::Transfer(_) | Origin::Setup(_));
        let end = Instant::now() + DRAIN_MAX;
        while Instant::now() < end && self.running.iter().any(|(origin, _)| is_client(*origin)) {
            self.turn()?;
        }
        // Sinks print twice a second.
        self.run_for(Duration::from_millis(700))?;
        self.running.retain(|(origin, _)| !is_client(*origin));
        Ok(())
    }

    pub(super) fn run_for(&mut self, time: Duration) -> Result<(), LabError> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.turn()?;
        }
        Ok(())
    }

    /// Reads what was said, samples each second once, forgets workers that have ended.
    fn turn(&mut self) -> Result<(), LabError> {
        thread::sleep(TICK);
        for (origin, process) in &self.running {
            while let Some(line) = process.line_now() {
                self.ledger.take(*origin, &line);
            }
        }
        self.forget_ended()?;
        while self.sampled_s < self.elapsed_s() {
            self.sample()?;
        }
        Ok(())
    }

    fn forget_ended(&mut self) -> Result<(), LabError> {
        let mut failed = None;
        let ledger = &mut self.ledger;
        self.running.retain_mut(|(origin, process)| {
            let Ok(success) = process.wait(Duration::ZERO) else { return true };
            // Its output is read to the end, which comes at once now.
            while let Some(line) = process.line(Duration::from_millis(200)) {
                ledger.take(*origin, &line);
            }
            if !success {
                failed = Some(process.name().to_owned());
            }
            false
        });
        match failed {
            Some(name) => Err(LabError::process(&name, "failed; see its message above")),
            None => Ok(()),
        }
    }

    fn sample(&mut self) -> Result<(), LabError> {
        let (offered, drops) = (self.offered()?.rx_bytes, self.daemons.drops());
        let second = self.sampled_s;
        self.sampled_s += 1;
        if let Some(entry) = self.report.second(second) {
            entry.offered_bps = Some((offered.saturating_sub(self.sampled.0)) as f64 * 8.0);
            let new = |(reason, count): (&String, &u64)| {
                let before = self.sampled.1.get(reason).copied().unwrap_or(0);
                (reason.clone(), count.saturating_sub(before))
            };
            entry.drops = drops.iter().map(new).filter(|(_, count)| *count > 0).collect();
        }
        self.sampled = (offered, drops);
        // Two seconds later everything that was sent has arrived or is lost, and both ends have said so.
        if let Some(settled) = second.checked_sub(2) {
            self.complete(settled);
            if let Some(entry) = self.report.second(settled) {
                let entry = entry.clone();
                (self.tell)(Event::Second(entry));
            }
        }
        Ok(())
    }

    /// Fills in what the clients of a second said.
    fn complete(&mut self, second: u32) {
        let from_ns = self.start_ns + u64::from(second) * SECOND_NS;
        let to_ns = from_ns + SECOND_NS;
        let calls = self.ledger.calls(from_ns, to_ns, |_| true);
        let transfers = self.ledger.transfers_completed(from_ns, to_ns) as f64;
        let setups: u64 =
            (0..SERVICES.len()).map(|service| self.ledger.setups(service, from_ns, to_ns).established).sum();
        let Some(entry) = self.report.second(second) else { return };
        let bytes = calls.received as f64 * CALL_BYTES as f64 + transfers * f64::from(TRANSFER_BYTES);
        // Where nobody called, nothing was measured.
        entry.goodput_bps = (calls.sent > 0).then_some(bytes * 8.0);
        entry.loss = (calls.sent > 0).then_some(calls.loss);
        entry.delay_p99_ms = (calls.received > 0).then_some(calls.delay_us.p99 as f64 / 1_000.0);
        entry.setups = Some(setups as f64);
    }

    /// What arrived at the outside port of the gate, or of the plain router in its place, since the lab was built.
    fn offered(&self) -> Result<LinkCounters, LabError> {
        let gate = self.daemons.site.lab.counters("gate", Site::OUTSIDE)?;
        let bypass = self.daemons.site.lab.counters("bypass", Site::OUTSIDE)?;
        Ok(LinkCounters {
            rx_packets: gate.rx_packets + bypass.rx_packets,
            rx_bytes: gate.rx_bytes + bypass.rx_bytes,
            ..LinkCounters::default()
        })
    }

    /// Received bytes without Ethernet headers. The kernel counts them with headers, except on a veth with an XDP
    /// program: counted alike, the floods of both gate phases can be compared.
    fn ip_bytes(&self, through_gate: bool, counters: LinkCounters) -> u64 {
        let with_headers = !(through_gate && self.report.backend.starts_with("xdp"));
        counters.rx_bytes - if with_headers { counters.rx_packets * ETHERNET_LEN } else { 0 }
    }

    fn elapsed_s(&self) -> u32 {
        u32::try_from(self.start.elapsed().as_secs()).unwrap_or(u32::MAX)
    }
}
