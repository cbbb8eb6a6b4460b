//! What the NUTSS paper says of servers that authenticate in the place of a service: played with the frontends' own shards.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use sluicegate_grant::epoch::Epoch;
use sluicegate_policy::User;
use sluicegate_proxy::{AgentKeys, EpochUsers, Flow, Input, LEAD_S, Now};
use sluicegate_signin::{EpochHa1, SiteKey, UserSecret};
use sluicegate_sip::{
    digest::{Algorithm, Challenge},
    nonce::{NONCE_TEXT_LEN, WINDOW_S},
};
use sluicegate_wire::{Instant, UnixTime};

use super::{Claim, Level, Outcome, Paper, Setting};
use crate::{
    Rng, agent,
    frontend::{Frontend, REALM, START, Setup, address, policy, replica_key, user},
    telephone::Telephone,
};

pub(super) const NU_5: Claim = Claim {
    id: "NU-5",
    paper: Paper::Nutss,
    source: "3.1",
    expected: "a third message that is replayed is accepted by each of R servers once",
    tolerance: "exactly R as the paper has it; ours exactly once, whatever the shard and the restart",
    level: Level::Exact,
    run: replays,
};
pub(super) const NU_6: Claim = Claim {
    id: "NU-6",
    paper: Paper::Nutss,
    source: "3.1",
    expected: "nothing is remembered before the third message; only who receives at its address is let in",
    tolerance: "exact",
    level: Level::Exact,
    run: strangers,
};
pub(super) const NU_7: Claim = Claim {
    id: "NU-7",
    paper: Paper::Nutss,
    source: "3.1",
    expected: "who has all that a server holds signs in until the epoch of SKct = H(SKc|t) is over, and not after",
    tolerance: "exact; in the last hour a frontend holds the next epoch too",
    level: Level::Exact,
    run: leaked,
};

fn at(seconds: u64) -> Now {
    Now { instant: Instant::from_secs(1_000 + seconds), unix: START.plus_secs(seconds) }
}

fn caller(user: &User, nth: u64) -> Telephone {
    let [.., high, low] = nth.to_be_bytes();
    Telephone::new(user, SocketAddr::from(([198, 18, high, low], 5060)), "web", format!("call{nth}"))
}

/// The INVITE with the credentials that the last answer asks for.
fn signed(phone: &mut Telephone, sent: &[(Flow, Vec<u8>)]) -> Option<String> {
    let credentials = phone.credentials(&sent.last()?.1, "INVITE")?;
    Some(phone.request("INVITE", &credentials))
}

/// How often third messages are accepted, each of them replayed at every shard of every frontend, before and after restarts.
fn accepted((seed, rounds): (u64, u64), (replicas, shards, restarts): (u16, u8, u32), shares_nonces: bool) -> Vec<u64> {
    let alice = user("alice");
    let policy = policy(vec![alice.clone()]);
    let mut rng = Rng::new(seed);
    let mut round = |nth: u64| {
        let frontend = |replica| {
            let setup = Setup { replica, shards, shares_nonces, ..Setup::default() };
            Frontend::new(setup, &policy, AgentKeys::default())
        };
        let mut frontends: Vec<Frontend> = (1..=replicas).map(frontend).collect();
        let places = u64::from(replicas) * u64::from(shards);
        let place = |nth: u64| ((nth / u64::from(shards)) as usize, (nth % u64::from(shards)) as usize);
        let mut phone = caller(&alice, nth);
        let flow = Flow::datagrams(0, phone.address);
        let (own, shard) = place(rng.below(places));
        let sent = frontends[own].receive(at(0), shard, flow, phone.request("INVITE", "").as_bytes());
        let Some(third) = signed(&mut phone, &sent) else { return 0 };
        let mut copies = 0;
        let mut opened = 0;
        for restart in 0..=restarts {
            // From somewhere on each gets it, in any order; some twice.
            let first = rng.below(places);
            for step in 0..2 * places {
                let (replica, shard) = place((first + step) % places);
                copies += 1;
                // Another branch, so that it is no retransmission, and now and then another port.
                let copy = third.replacen("branch=z9hG4bK", &format!("branch=z9hG4bKcopy{copies}"), 1);
                let port = flow.peer.port() + u16::from(rng.chance(300_000));
                let flow = Flow { peer: SocketAddr::new(flow.peer.ip(), port), ..flow };
                frontends[replica].receive(at(u64::from(restart)), shard, flow, copy.as_bytes());
            }
            opened = frontends.iter().map(|frontend| frontend.opened).sum();
            frontends.iter_mut().for_each(Frontend::start);
        }
        opened
    };
    (0..rounds).map(&mut round).collect()
}

fn replays(setting: &Setting) -> Outcome {
    let (replicas, rounds) = if setting.short { (3, 5) } else { (5, 20) };
    let paper = accepted((setting.seed, 1), (replicas, 1, 0), true);
    let ours = accepted((setting.seed, rounds), (replicas, 2, 1), false);
    Outcome::new(
        paper == [u64::from(replicas)] && ours.iter().all(|times| *times == 1),
        format!(
            "R = {replicas}: {} times as the paper has it; ours {} to {} times, 2 shards each and a restart",
            paper.iter().max().unwrap_or(&0),
            ours.iter().min().unwrap_or(&0),
            ours.iter().max().unwrap_or(&0)
        ),
    )
}

/// What a frontend's tables hold.
fn held(frontend: &Frontend, now: Now) -> u64 {
    frontend.shards.iter().flat_map(|shard| shard.gauges(now.instant)).map(|gauge| gauge.used).sum()
}

/// What is held after so many strangers, and how often a forger got in who knows the password, but not what is sent to the
/// address that it uses. With `hides`, all senders have one address, as behind a router that translates them.
fn forged((seed, strangers, guesses): (u64, u64, u64), hides: bool) -> (u64, u64) {
    let alice = user("alice");
    let setup = Setup { shards: 1, ..Setup::default() };
    let mut frontend = Frontend::new(setup, &policy(vec![alice.clone()]), AgentKeys::default());
    let mut rng = Rng::new(seed);
    let seen = |address: SocketAddr| {
        let ip = if hides { SocketAddr::from(([100, 64, 0, 1], 0)).ip() } else { address.ip() };
        Flow::datagrams(0, SocketAddr::new(ip, address.port()))
    };
    for nth in 0..strangers {
        let method = ["INVITE", "REGISTER", "OPTIONS", "MESSAGE", "BYE", "CANCEL", "ACK"][rng.below(7) as usize];
        let [a, b, c, ..] = rng.bits().to_be_bytes();
        let mut phone =
            Telephone::new(&alice, SocketAddr::from(([11, a, b, c], 5060)), "web", format!("stranger{nth}"));
        frontend.receive(at(nth / 1_000), 0, seen(phone.address), phone.request(method, "").as_bytes());
    }
    let now = at(strangers / 1_000);
    let kept = held(&frontend, now);
    // A nonce that the forger was given at its own address, and many that nobody was given.
    let mut own = caller(&alice, 1);
    let sent = frontend.receive(now, 0, seen(own.address), own.request("INVITE", "").as_bytes());
    let Some(third) = signed(&mut own, &sent) else { return (kept, u64::MAX) };
    let victim = caller(&alice, 2).address;
    let moved = third.replace(&own.address.to_string(), &victim.to_string());
    frontend.receive(now, 0, seen(victim), moved.as_bytes());
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for nth in 0..guesses {
        let mut phone = Telephone::new(&alice, victim, "web", format!("guess{nth}"));
        let nonce: Vec<u8> = (0..NONCE_TEXT_LEN).map(|_| DIGITS[rng.below(64) as usize]).collect();
        let realm = REALM.as_bytes();
        let challenge = Challenge { realm, nonce: &nonce, opaque: None, algorithm: Algorithm::Sha256, stale: false };
        let credentials = phone.proof(&challenge, "INVITE");
        frontend.receive(now, 0, seen(victim), phone.request("INVITE", &credentials).as_bytes());
    }
    (kept, frontend.opened)
}

/// Who receives at its address is let in, and remembered from then on.
fn honest() -> (u64, u64) {
    let alice = user("alice");
    let mut frontend = Frontend::new(Setup::default(), &policy(vec![alice.clone()]), AgentKeys::default());
    let mut phone = caller(&alice, 3);
    let flow = Flow::datagrams(0, phone.address);
    let sent = frontend.receive(at(0), 0, flow, phone.request("INVITE", "").as_bytes());
    if let Some(third) = signed(&mut phone, &sent) {
        frontend.receive(at(0), 0, flow, third.as_bytes());
    }
    (held(&frontend, at(0)), frontend.opened)
}

fn strangers(setting: &Setting) -> Outcome {
    let (count, guesses) = if setting.short { (2_000, 500) } else { (20_000, 5_000) };
    let (kept, forged) = forged((setting.seed, count, guesses), false);
    let (remembered, let_in) = honest();
    Outcome::new(
        kept == 0 && forged == 0 && remembered > 0 && let_in == 1,
        format!(
            "{kept} entries in all tables after {count} strangers; a forger with the password is let in {forged} times in \
             {guesses} guesses; who receives {let_in} of 1 times, {remembered} entries"
        ),
    )
}

/// The key holder's side: what frontends are given of a user.
struct Holder {
    secret: UserSecret,
    /// Whether secrets change with the epoch.
    rotates: bool,
}

impl Holder {
    fn ha1(&self, epoch: Epoch, replica: u16) -> EpochHa1 {
        let epoch_of_secret = if self.rotates { epoch } else { Epoch(0) };
        self.secret.ha1("alice", REALM, epoch_of_secret, replica_key(replica).public())
    }

    fn keys(&self, now: UnixTime, replica: u16) -> AgentKeys {
        let site = SiteKey::from_seed(&[1; 32]);
        let until = AgentKeys::certified_until(now);
        let certificate = site.certify(REALM, *replica_key(replica).public(), until).to_text();
        let users = |epoch| EpochUsers::from([("alice".to_owned(), self.ha1(epoch, replica))]);
        let wanted = AgentKeys::wanted(now).into_iter();
        AgentKeys::new(certificate, wanted.map(|epoch| (epoch, users(epoch))).collect())
    }
}

/// A site of two frontends, which are told the keys of each epoch in time.
struct Site {
    holder: Holder,
    alice: User,
    frontends: Vec<Frontend>,
    calls: u64,
}

impl Site {
    fn new(holder: Holder) -> Self {
        let alice = user("alice");
        let policy = policy(vec![alice.clone()]);
        let frontend = |replica| Frontend::new(Setup { replica, ..Setup::default() }, &policy, AgentKeys::default());
        Self { holder, alice, frontends: (1..=2).map(frontend).collect(), calls: 0 }
    }

    /// Whether a secret signs in at a frontend at this time, whatever epoch it is said to be of.
    fn admits(&mut self, unix: UnixTime, replica: u16, secret: &EpochHa1) -> bool {
        let now = Now { instant: Instant::from_secs(unix.0 - START.0 + 100_000), unix };
        let epochs = [Epoch(Epoch::at(unix).0 - 1), Epoch::at(unix), Epoch(Epoch::at(unix).0 + 1)];
        let mut keys = self.holder.keys(unix, replica);
        let frontend = &mut self.frontends[usize::from(replica) - 1];
        keys.keep_previous(&frontend.agents, unix);
        frontend.agents = Arc::new(keys);
        frontend.tell(now, &Input::Agents(Arc::clone(&frontend.agents)));
        let before = frontend.opened;
        for epoch in epochs {
            self.calls += 1;
            let mut phone = caller(&self.alice, self.calls);
            phone.offer = agent::PORTS;
            let flow = Flow::datagrams(0, phone.address);
            let sent = frontend.receive(now, 0, flow, phone.request("INVITE", agent::SUPPORTED).as_bytes());
            let Some((_, challenge)) = sent.last() else { continue };
            let there = (address(replica), replica_key(replica));
            let there = (there.0, there.1.public());
            if let Some(third) = agent::sign_in(&mut phone, challenge, (secret, epoch), there) {
                frontend.receive(now, 0, flow, third.as_bytes());
            }
        }
        frontend.opened > before
    }

    /// For how many seconds from `leak` on what the first frontend held then signs in there, to the minute; and whether it signs
    /// in at the other.
    fn exposure(&mut self, leak: UnixTime) -> (Vec<u64>, bool) {
        let stolen: Vec<EpochHa1> =
            AgentKeys::wanted(leak).into_iter().map(|epoch| self.holder.ha1(epoch, 1)).collect();
        let midnight = Epoch(Epoch::at(leak).0 + 1).start();
        let looks =
            [leak, UnixTime(midnight.0 - 1), midnight.plus_secs(WINDOW_S - 1), midnight.plus_secs(WINDOW_S + 1)];
        let next = midnight.plus_secs(86_400);
        let looks =
            looks.into_iter().chain([UnixTime(next.0 - 1), next.plus_secs(WINDOW_S + 1), next.plus_secs(400_000)]);
        let looks: Vec<UnixTime> = looks.collect();
        // Days go by one after the other.
        let mut opens = Vec::new();
        let mut elsewhere = false;
        for at in looks {
            let admitted = stolen.iter().filter(|secret| self.admits(at, 1, secret)).count();
            if admitted > 0 {
                opens.push(at.0 - leak.0);
            }
            elsewhere |= stolen.iter().any(|secret| self.admits(at, 2, secret));
        }
        (opens, elsewhere)
    }

    /// Whether the owner of the secret signs in at this time.
    fn admits_owner(&mut self, at: UnixTime) -> bool {
        let secret = self.holder.ha1(Epoch::at(at), 1);
        self.admits(at, 1, &secret)
    }
}

/// How long what is stolen at noon, and what is stolen half an hour before midnight, opens a frontend, in seconds; and whether the
/// owner gets in two days later and a thief ever elsewhere.
fn stolen(rotates: bool) -> ([u64; 2], bool, bool) {
    let midnight = Epoch(Epoch::at(START).0 + 1).start();
    let mut elsewhere = false;
    let mut owner = true;
    let lasts = [START, UnixTime(midnight.0 - LEAD_S / 2)].map(|leak| {
        let mut site = Site::new(Holder { secret: UserSecret::from_bytes([5; 32]), rotates });
        let (opens, also) = site.exposure(leak);
        elsewhere |= also;
        owner &= site.admits_owner(leak.plus_secs(600_000));
        opens.last().copied().unwrap_or_default()
    });
    (lasts, owner, elsewhere)
}

fn leaked(_: &Setting) -> Outcome {
    let midnight = Epoch(Epoch::at(START).0 + 1).start();
    let (lasts, owner, elsewhere) = stolen(true);
    let to_midnight = [midnight.0 - START.0, LEAD_S / 2 + 86_400];
    // Looked at: a second before midnight, a second before the window of old nonces ends, a second after it.
    let is_in_time = lasts[0] == to_midnight[0] + WINDOW_S - 1 && lasts[1] == to_midnight[1] - 1;
    let hours = lasts.map(|seconds| Duration::from_secs(seconds).as_secs_f64() / 3_600.0);
    Outcome::new(
        is_in_time && owner && !elsewhere,
        format!(
            "stolen at noon it opens the frontend for {:.1} h, half an hour before midnight for {:.1} h; another never{}",
            hours[0],
            hours[1],
            if owner { "; its owner later too" } else { "; its owner is locked out" }
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_that_share_a_nonce_key_accept_what_is_replayed_once_each_and_once_more_after_a_restart() {
        assert_eq!(accepted((1, 1), (3, 1, 0), true), [3]);
        assert_eq!(accepted((1, 1), (3, 1, 1), true), [6]);
        assert_eq!(accepted((1, 1), (3, 2, 0), true), [6]);
    }

    #[test]
    fn a_forger_gets_in_where_addresses_are_hidden() {
        assert_eq!(forged((1, 10, 10), true), (0, 1));
    }

    #[test]
    fn secrets_that_do_not_change_are_worth_something_for_ever() {
        let (lasts, ..) = stolen(false);
        assert!(lasts.iter().all(|seconds| *seconds > 400_000), "{lasts:?}");
    }
}
