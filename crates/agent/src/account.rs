//! Who the agent is, and how it proves that to a frontend.

use std::fmt;

use sluicegate_capability::{
    epoch::{Epoch, agent_password, agent_secret},
    mac::SessionSecret,
};
use sluicegate_sip::{
    digest::{Answer, Challenge, ha1, strongest},
    message::{HeaderName, Message},
};
use zeroize::Zeroizing;

/// A user's name, realm and secret. The password itself is not kept.
#[derive(Clone)]
pub struct Account {
    /// The user's name.
    pub user: String,
    /// The realm.
    pub realm: String,
    secret: Zeroizing<[u8; 32]>,
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account").field("user", &self.user).field("realm", &self.realm).finish_non_exhaustive()
    }
}

impl Account {
    /// The account of `user` in `realm`.
    #[must_use]
    pub fn new(user: &str, realm: &str, password: &str) -> Self {
        Self { user: user.to_owned(), realm: realm.to_owned(), secret: agent_secret(user, realm, password.as_bytes()) }
    }

    /// The URI of this user.
    pub(crate) fn uri(&self) -> String {
        format!("sip:{}@{}", self.user, self.realm)
    }

    /// The header field that answers the challenge in a 401 or 407; `None` if it asks for nothing that
    /// an agent of this realm answers. A challenge for another realm gets no answer: its sender would learn a hash of
    /// this user's secret.
    pub(crate) fn answer(&self, response: &Message<'_>, method: &[u8], uri: &[u8]) -> Option<Credentials> {
        let (asks, name) = match response.status()? {
            401 => (HeaderName::WwwAuthenticate, "Authorization"),
            407 => (HeaderName::ProxyAuthenticate, "Proxy-Authorization"),
            _ => return None,
        };
        let challenge = strongest(response.headers_raw(asks))?;
        let epoch = self.epoch(&challenge)?;
        let password = agent_password(&self.secret, epoch);
        let password = std::str::from_utf8(&*password).ok()?;
        let ha1 = ha1(challenge.algorithm, &self.user, &challenge.realm_text()?, password);
        let cnonce = random_token();
        let mut value = Vec::new();
        Answer { challenge: &challenge, username: &self.user, ha1: &ha1, method, uri, cnonce: &cnonce, nc: 1 }
            .write(&mut value);
        let session = SessionSecret::extract(ha1.as_bytes(), challenge.nonce, cnonce.as_bytes());
        Some(Credentials { name, value, session })
    }

    fn epoch(&self, challenge: &Challenge<'_>) -> Option<Epoch> {
        challenge.realm_text()?.strip_prefix(self.realm.as_str())?.strip_prefix(";e=")?.parse().ok()
    }
}

/// An answer to a challenge.
#[derive(Debug)]
pub(crate) struct Credentials {
    /// The header field's name.
    pub(crate) name: &'static str,
    /// Its value.
    pub(crate) value: Vec<u8>,
    /// What the frontend and this agent know if it lets this in.
    pub(crate) session: SessionSecret,
}

/// 128 random bits.
///
/// # Panics
/// If the kernel gives no random bytes, without which nothing here is safe.
pub(crate) fn random_bits() -> [u8; 16] {
    let mut bytes = [0; 16];
    #[allow(clippy::expect_used, reason = "without random numbers nothing here is safe")]
    getrandom::fill(&mut bytes).expect("the kernel gives random bytes");
    bytes
}

/// 128 random bits as 32 hexadecimal digits: branches, tags, Call-IDs and client nonces.
pub(crate) fn random_token() -> String {
    random_bits().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn challenge(realm: &str) -> String {
        format!(
            "SIP/2.0 407 x\r\nVia: SIP/2.0/UDP a;branch=z9hG4bK1\r\nFrom: <sip:a@b>;tag=1\r\nTo: <sip:c@b>;tag=2\r\n\
             Call-ID: 1\r\nCSeq: 1 INVITE\r\nProxy-Authenticate: Digest realm=\"{realm}\", nonce=\"n\", \
             algorithm=SHA-256, qop=\"auth\"\r\nContent-Length: 0\r\n\r\n"
        )
    }

    #[test]
    fn only_an_agents_challenge_of_the_own_realm_is_answered() {
        let account = Account::new("alice", "example.net", "correct horse");
        let answer = |realm: &str| {
            let text = challenge(realm);
            let response = Message::parse(text.as_bytes()).unwrap();
            account.answer(&response, b"INVITE", b"sip:web@example.net").is_some()
        };
        assert!(answer("example.net;e=20000"));
        assert!(!answer("example.net"));
        assert!(!answer("evil.example;e=20000"));
        assert!(!answer("example.net;e=x"));
    }

    #[test]
    fn an_account_never_prints_its_secret() {
        let text = format!("{:?}", Account::new("alice", "example.net", "correct horse"));
        assert_eq!(text, "Account { user: \"alice\", realm: \"example.net\", .. }");
    }
}
