//! What a shard spends on each kind of request: bytes, which are the same in every run, and time, which is this machine's.

use std::{net::SocketAddr, sync::Arc, time};

use sluicegate_overload::{Engineered, Load, Refusing};
use sluicegate_policy::{Policy, User};
use sluicegate_proxy::{AgentKeys, Flow, Now, Overload, Tables};
use sluicegate_wire::Instant;

use crate::{
    frontend::{Frontend, SERVER, START, Setup, policy, user},
    telephone::{Telephone, answer_of_server},
};

/// Bytes in and out, and nanoseconds, of each time that it was done.
#[derive(Debug, Default, Clone)]
pub(crate) struct Done {
    pub(crate) bytes: u64,
    times: Vec<u64>,
}

impl Done {
    /// The median, which does not see whom else the machine served in between.
    pub(crate) fn ns(&self) -> u64 {
        let mut times = self.times.clone();
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or_default()
    }

    pub(crate) const fn times(&self) -> usize {
        self.times.len()
    }
}

/// What a relayed call with digest takes, message by message.
#[derive(Debug, Default)]
pub(crate) struct Call {
    /// The first INVITE, which is challenged, and the ACK of that.
    pub(crate) challenge: Done,
    pub(crate) ack: Done,
    /// The INVITE with credentials; the same with a wrong digest, which has another challenge.
    pub(crate) invite: Done,
    pub(crate) wrong: Done,
    /// The server's 200, and what the gate opens for it; the ACK.
    pub(crate) answer: Done,
    pub(crate) confirm: Done,
    /// BYE and its 200.
    pub(crate) bye: Done,
    pub(crate) end: Done,
}

impl Call {
    /// Which share of its time goes into digest authentication: the challenge and its ACK, and the look at the credentials.
    pub(crate) fn digest_share(&self) -> f64 {
        let digest = self.wrong.ns() + self.ack.ns();
        let rest = [&self.answer, &self.confirm, &self.bye, &self.end].map(Done::ns).iter().sum::<u64>();
        let all = self.challenge.ns() + self.ack.ns() + self.invite.ns() + rest;
        digest as f64 / all.max(1) as f64
    }
}

/// What refusing takes.
#[derive(Debug, Default)]
pub(crate) struct Refusal {
    pub(crate) dropped: Done,
    pub(crate) rejected: Done,
}

/// Requests of each kind. Below a few hundred a median of times says little.
const ROUNDS: usize = 400;

struct Bench {
    frontend: Frontend,
    users: Vec<User>,
    now: Now,
}

fn bench(overload: Overload) -> Bench {
    let users: Vec<User> = (0..64).map(|nth| user(&format!("user{nth}"))).collect();
    let policy: Arc<Policy> = policy(users.clone());
    let frontend =
        Frontend::new(Setup { overload, tables: Tables::default(), ..Setup::default() }, &policy, AgentKeys::default());
    Bench { frontend, users, now: Now { instant: Instant::from_secs(1_000), unix: START } }
}

impl Bench {
    fn telephone(&self, nth: usize) -> Telephone {
        let [high, low] = (nth as u16).to_be_bytes();
        let address = SocketAddr::from(([198, 18, high, low], 5060));
        let user = &self.users[nth % self.users.len()];
        Telephone::new(user, address, "pbx", format!("call{nth}"))
    }

    /// One datagram, and the last answer to it. Timed is what the shard does, and not what this world does around it.
    fn time(&mut self, done: &mut Done, from: SocketAddr, datagram: &[u8]) -> Vec<(Flow, Vec<u8>)> {
        let shard = &mut self.frontend.shards[0];
        let flow = Flow::datagrams(0, from);
        let began = time::Instant::now();
        shard.on_datagram(self.now, flow, datagram);
        done.times.push(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        let sent = self.frontend.on_time(self.now);
        let out: usize = sent.iter().map(|(_, bytes)| bytes.len()).sum();
        done.bytes = (datagram.len() + out) as u64;
        sent
    }
}

fn to_server(sent: &[(Flow, Vec<u8>)]) -> &[u8] {
    sent.iter().find(|(flow, _)| flow.peer == SERVER).map_or(&[], |(_, bytes)| bytes)
}

fn last(sent: &[(Flow, Vec<u8>)]) -> &[u8] {
    sent.last().map_or(&[], |(_, bytes)| bytes)
}

/// Plays calls one after another; `None` if one is not set up or does not end.
pub(crate) fn calls() -> Option<Call> {
    let mut bench = bench(Overload::Off);
    let mut call = Call::default();
    for nth in 0..ROUNDS {
        bench.now.instant = bench.now.instant + time::Duration::from_millis(100);
        let mut phone = bench.telephone(nth);
        let at = phone.address;
        let sent = bench.time(&mut call.challenge, at, phone.request("INVITE", "").as_bytes());
        let credentials = phone.credentials(last(&sent), "INVITE")?;
        bench.time(&mut call.ack, at, phone.ack_of_refusal().as_bytes());
        if nth % 4 == 0 {
            let wrong = credentials.replacen("response=\"", "response=\"0", 1).replacen("0\"", "\"", 1);
            bench.time(&mut call.wrong, at, phone.request("INVITE", &wrong).as_bytes());
            bench.frontend.receive(bench.now, 0, Flow::datagrams(0, at), phone.ack_of_refusal().as_bytes());
        }
        let sent = bench.time(&mut call.invite, at, phone.request("INVITE", &credentials).as_bytes());
        let answer = answer_of_server(to_server(&sent))?;
        let sent = bench.time(&mut call.answer, SERVER, &answer);
        phone.begin_dialog(last(&sent));
        bench.time(&mut call.confirm, at, phone.request("ACK", "").as_bytes());
        let sent = bench.time(&mut call.bye, at, phone.request("BYE", "").as_bytes());
        let answer = answer_of_server(to_server(&sent))?;
        let sent = bench.time(&mut call.end, SERVER, &answer);
        if !last(&sent).starts_with(b"SIP/2.0 200") {
            return None;
        }
    }
    Some(call)
}

/// Has R-SOCA's controller refuse INVITEs and drop UPDATEs of as many bytes.
pub(crate) fn refusals() -> Refusal {
    let load = Load { invites: 10.0, in_dialog: 10.0, registers: 10.0, others: 10.0 };
    let engineered = Engineered { load, ..Engineered::PAPER };
    let mut bench = bench(Overload::Rsoca(engineered, Refusing::Proportionally));
    let mut refusal = Refusal::default();
    let mut inside = bench.telephone(0);
    inside.begin_dialog(b"SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK1\r\nTo: <sip:a@b>;tag=strange\r\n\r\n");
    for _ in 0..20 {
        for nth in 0..ROUNDS / 4 {
            let mut phone = bench.telephone(nth);
            let mut done = Done::default();
            let sent = bench.time(&mut done, phone.address, phone.request("INVITE", "").as_bytes());
            if last(&sent).starts_with(b"SIP/2.0 500") {
                refusal.rejected.times.append(&mut done.times);
                refusal.rejected.bytes = done.bytes;
            }
            let sent = bench.time(&mut done, inside.address, inside.request("UPDATE", "").as_bytes());
            if sent.is_empty() {
                refusal.dropped.times.append(&mut done.times);
                refusal.dropped.bytes = done.bytes;
            }
        }
        bench.now.instant = bench.now.instant + time::Duration::from_secs(1);
        bench.frontend.shards[0].measure(bench.now, 0.3, 0.3);
        bench.frontend.on_time(bench.now);
    }
    refusal
}
