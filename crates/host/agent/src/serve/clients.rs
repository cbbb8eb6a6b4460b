//! Who is let in, and who has a call open.

use std::{fmt, net::IpAddr, time::Duration};

use sluicegate_sip::ua::LegId;
use tokio::time::Instant;

/// How much longer than its grant a place is kept: the frontend's word that it was renewed, or is over, may be late.
const GRACE: Duration = Duration::from_secs(5);

/// A call: at which of the frontends, and its leg there.
pub(super) type Place = (usize, LegId);

/// One open call.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) user: String,
    pub(super) client: IpAddr,
    pub(super) place: Place,
    /// How long what was opened for it lasts, from now on or from its last renewal.
    pub(super) lifetime: Duration,
}

/// Why a client is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    Denied,
    NotAllowed,
    Full,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Denied => "the user is in `deny`",
            Self::NotAllowed => "the user is not in `allow`",
            Self::Full => "as many clients as `clients_max` allows are in",
        })
    }
}

/// The open calls; at most `max`, and of one user at most `per_user_max`. A place ends with what was opened for it, so that
/// clients that just go away take none for ever.
#[derive(Debug)]
pub(super) struct Clients {
    max: usize,
    per_user_max: usize,
    allow: Vec<String>,
    deny: Vec<String>,
    /// In the order in which they were let in, and when each ends unless it is renewed.
    open: Vec<(Admission, Instant)>,
}

impl Clients {
    pub(super) const fn new((max, per_user_max): (usize, usize), allow: Vec<String>, deny: Vec<String>) -> Self {
        Self { max, per_user_max, allow, deny, open: Vec::new() }
    }

    /// Lets a client in if local policy agrees and there is room. A user who has all that one may have gives up the oldest
    /// of it, which the caller ends.
    pub(super) fn admit(&mut self, now: Instant, admission: Admission) -> Result<Option<Admission>, Refusal> {
        if self.deny.contains(&admission.user) {
            return Err(Refusal::Denied);
        }
        if !self.allow.is_empty() && !self.allow.contains(&admission.user) {
            return Err(Refusal::NotAllowed);
        }
        self.expire(now);
        let of_user = |(open, _): &(Admission, Instant)| open.user == admission.user;
        let oldest = self.open.iter().position(of_user);
        let is_at_limit = self.open.iter().filter(|open| of_user(open)).count() >= self.per_user_max;
        let given_up = oldest.filter(|_| is_at_limit).map(|at| self.open.remove(at).0);
        if self.open.len() >= self.max {
            return Err(Refusal::Full);
        }
        let ends = now + admission.lifetime + GRACE;
        self.open.push((admission, ends));
        Ok(given_up)
    }

    /// Renews a call; whether there is one.
    pub(super) fn renew(&mut self, now: Instant, place: Place, lifetime: Duration) -> bool {
        let Some((_, ends)) = self.open.iter_mut().find(|(open, _)| open.place == place) else { return false };
        *ends = now + lifetime + GRACE;
        true
    }

    /// Removes what has ended and was not renewed.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Place> {
        self.open.extract_if(.., |(_, ends)| *ends <= now).map(|(open, _)| open.place).collect()
    }

    /// When the next call ends if it is not renewed.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.open.iter().map(|(_, ends)| *ends).min()
    }

    /// Removes a call, if it is here.
    pub(super) fn remove(&mut self, place: Place) {
        self.open.retain(|(open, _)| open.place != place);
    }

    /// Removes and returns all calls of a client.
    pub(super) fn remove_client(&mut self, client: IpAddr) -> Vec<Admission> {
        self.open.extract_if(.., |(open, _)| open.client == client).map(|(open, _)| open).collect()
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_sip::{
        message::{Method, Transport},
        ua::{Content, Parties, Password, Settings, UserAgent},
    };

    use super::*;

    const LIFETIME: Duration = Duration::from_secs(60);

    fn admission(user: &str) -> Admission {
        Admission { user: user.to_owned(), client: "192.0.2.1".parse().unwrap(), place: (0, leg()), lifetime: LIFETIME }
    }

    /// The leg of some call.
    fn leg() -> LegId {
        let local = "192.0.2.1:5060".parse().unwrap();
        let settings = Settings {
            transport: Transport::Udp,
            local,
            target: local,
            requests_max: 1,
            answers_max: 1,
            patience: None,
            has_short_t2: false,
        };
        let parties = Parties { from: "sip:a@b", to: "sip:a@b", uri: "sip:a@b", contact: "a" };
        let mut ua = UserAgent::<Password>::new(settings, [1; 16]);
        ua.start(sluicegate_wire::Instant::ZERO, Method::Invite, parties, Content::default(), None).unwrap()
    }

    fn admit(clients: &mut Clients, now: Instant, user: &str) -> Result<bool, Refusal> {
        clients.admit(now, admission(user)).map(|given_up| given_up.is_some())
    }

    #[test]
    fn deny_wins_over_allow_and_an_empty_allow_lets_everyone_in() {
        let now = Instant::now();
        let mut clients = Clients::new((9, 9), vec!["alice".to_owned(), "bob".to_owned()], vec!["bob".to_owned()]);
        assert_eq!(admit(&mut clients, now, "alice"), Ok(false));
        assert_eq!(admit(&mut clients, now, "bob"), Err(Refusal::Denied));
        assert_eq!(admit(&mut clients, now, "carol"), Err(Refusal::NotAllowed));
        assert_eq!(admit(&mut Clients::new((9, 9), Vec::new(), Vec::new()), now, "carol"), Ok(false));
    }

    #[test]
    fn a_full_table_refuses_and_ending_a_client_makes_room() {
        let now = Instant::now();
        let mut clients = Clients::new((2, 2), Vec::new(), Vec::new());
        assert_eq!(admit(&mut clients, now, "a"), Ok(false));
        assert_eq!(admit(&mut clients, now, "b"), Ok(false));
        assert_eq!(admit(&mut clients, now, "c"), Err(Refusal::Full));
        assert_eq!(clients.remove_client("192.0.2.1".parse().unwrap()).len(), 2);
        assert_eq!(admit(&mut clients, now, "c"), Ok(false));
    }

    #[test]
    fn a_place_ends_with_what_was_opened_for_it() {
        let now = Instant::now();
        let mut clients = Clients::new((1, 1), Vec::new(), Vec::new());
        assert_eq!(admit(&mut clients, now, "a"), Ok(false));
        assert_eq!(clients.next_end(), Some(now + LIFETIME + GRACE));
        assert_eq!(admit(&mut clients, now + LIFETIME, "b"), Err(Refusal::Full));
        assert_eq!(admit(&mut clients, now + LIFETIME + GRACE, "b"), Ok(false));
    }

    #[test]
    fn one_user_takes_only_places_of_his_own() {
        let now = Instant::now();
        let mut clients = Clients::new((3, 2), Vec::new(), Vec::new());
        let given_up: Vec<_> = (0..9).map(|_| admit(&mut clients, now, "a")).collect();
        assert_eq!(given_up.iter().filter(|gave| **gave == Ok(true)).count(), 7);
        assert_eq!(admit(&mut clients, now, "b"), Ok(false));
    }
}
