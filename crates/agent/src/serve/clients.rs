//! Who is let in, and who has a call open.

use std::{fmt, net::IpAddr};

use sluicegate_sip::{dialog::Dialog, message::Message};

/// One open call.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) user: String,
    pub(super) client: IpAddr,
    pub(super) dialog: Dialog,
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

/// The open calls; at most `max`.
#[derive(Debug)]
pub(super) struct Clients {
    max: usize,
    allow: Vec<String>,
    deny: Vec<String>,
    open: Vec<Admission>,
}

impl Clients {
    pub(super) const fn new(max: usize, allow: Vec<String>, deny: Vec<String>) -> Self {
        Self { max, allow, deny, open: Vec::new() }
    }

    /// Lets a client in if local policy agrees and there is room.
    pub(super) fn admit(&mut self, admission: Admission) -> Result<(), Refusal> {
        if self.deny.contains(&admission.user) {
            return Err(Refusal::Denied);
        }
        if !self.allow.is_empty() && !self.allow.contains(&admission.user) {
            return Err(Refusal::NotAllowed);
        }
        if self.open.len() >= self.max {
            return Err(Refusal::Full);
        }
        self.open.push(admission);
        Ok(())
    }

    /// Whether the request lies within an open call.
    pub(super) fn knows(&mut self, request: &Message<'_>) -> bool {
        self.position(request).is_some()
    }

    /// Removes the call that the request lies within; whether there was one.
    pub(super) fn remove_by_request(&mut self, request: &Message<'_>) -> bool {
        self.position(request).map(|index| self.open.swap_remove(index)).is_some()
    }

    /// Removes and returns all calls of a client.
    pub(super) fn remove_client(&mut self, client: IpAddr) -> Vec<Admission> {
        let (gone, kept) = std::mem::take(&mut self.open).into_iter().partition(|open| open.client == client);
        self.open = kept;
        gone
    }

    fn position(&mut self, request: &Message<'_>) -> Option<usize> {
        let fields = request.essentials().ok()?;
        self.open.iter_mut().position(|open| open.dialog.accept(request, &fields).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(user: &str) -> Admission {
        let text = "INVITE sip:ssh@example.net SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1;branch=z9hG4bK1\r\n\
                    From: <sip:alice@example.net>;tag=a\r\nTo: <sip:ssh@example.net>\r\nCall-ID: c\r\nCSeq: 1 INVITE\r\n\
                    Contact: <sip:alice@192.0.2.1>\r\n\r\n";
        let dialog = Dialog::from_request(&Message::parse(text.as_bytes()).unwrap(), b"b").unwrap();
        Admission { user: user.to_owned(), client: "192.0.2.1".parse().unwrap(), dialog }
    }

    #[test]
    fn deny_wins_over_allow_and_an_empty_allow_lets_everyone_in() {
        let mut clients = Clients::new(9, vec!["alice".to_owned(), "bob".to_owned()], vec!["bob".to_owned()]);
        assert_eq!(clients.admit(admission("alice")), Ok(()));
        assert_eq!(clients.admit(admission("bob")), Err(Refusal::Denied));
        assert_eq!(clients.admit(admission("carol")), Err(Refusal::NotAllowed));
        assert_eq!(Clients::new(9, Vec::new(), Vec::new()).admit(admission("carol")), Ok(()));
    }

    #[test]
    fn a_full_table_refuses_and_ending_a_client_makes_room() {
        let mut clients = Clients::new(2, Vec::new(), Vec::new());
        assert_eq!(clients.admit(admission("a")), Ok(()));
        assert_eq!(clients.admit(admission("b")), Ok(()));
        assert_eq!(clients.admit(admission("c")), Err(Refusal::Full));
        assert_eq!(clients.remove_client("192.0.2.1".parse().unwrap()).len(), 2);
        assert_eq!(clients.admit(admission("c")), Ok(()));
    }
}
