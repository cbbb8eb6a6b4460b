//! The frontends of a site: where they are, and which of them answers.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use hickory_resolver::{TokioResolver, proto::rr::rdata::SRV};
use sluicegate_sip::{
    message::Method,
    ua::{Content, Parties},
};
use tokio::{
    net::lookup_host,
    runtime,
    task::JoinSet,
    time::{sleep, timeout},
};
use tracing::debug;

use crate::{
    account::random,
    endpoint::{Endpoint, ExchangeError},
};

/// Where frontends take SIP unless somebody says otherwise (RFC 3261 section 19.1.2).
const SIP_PORT: u16 = 5060;
/// Addresses that are tried.
const FRONTENDS_MAX: usize = 16;
/// How long the DNS may take to say whether a name has SRV records.
const SRV_WAIT: Duration = Duration::from_secs(2);
/// How much later than the one before each is asked (RFC 8305 section 5), and how long all may take.
const STAGGER: Duration = Duration::from_millis(250);
const PATIENCE: Duration = Duration::from_secs(4);
/// When the answer is looked for again after an error of the socket.
const AGAIN: Duration = Duration::from_millis(500);

/// The addresses of a site's frontends, the preferred one first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frontends {
    first: SocketAddr,
    others: Vec<SocketAddr>,
}

/// Why there is nobody to sign in to.
#[derive(Debug, thiserror::Error)]
pub enum FrontendError {
    /// What stands behind the colon.
    #[error("`{0}` is no port")]
    Port(String),
    /// No such name, or no DNS.
    #[error("{0:?} has no address: {1}; write a name or an address, such as 203.0.113.1:{SIP_PORT}")]
    Name(String, io::Error),
    /// Nothing was given.
    #[error("no name and no address; write one, such as 203.0.113.1:{SIP_PORT}")]
    Nothing,
    /// No runtime for the look-up.
    #[error("cannot ask the DNS: {0}")]
    Runtime(io::Error),
}

impl Frontends {
    /// Of `HOST[:PORT]`, or of several separated by commas. A name without a port may have SRV records for SIP over UDP
    /// (RFC 3263 section 4.2); else its addresses are taken, with SIP's port. Waits for the DNS.
    ///
    /// # Errors
    /// See [`FrontendError`].
    pub fn find(text: &str) -> Result<Self, FrontendError> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(FrontendError::Runtime)?;
        runtime.block_on(Self::look_up(text))
    }

    async fn look_up(text: &str) -> Result<Self, FrontendError> {
        let mut found: Vec<SocketAddr> = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            for address in addresses(part).await? {
                if !found.contains(&address) && found.len() < FRONTENDS_MAX {
                    found.push(address);
                }
            }
        }
        let mut found = found.into_iter();
        let first = found.next().ok_or(FrontendError::Nothing)?;
        Ok(Self { first, others: found.collect() })
    }

    /// The preferred one.
    pub(crate) const fn first(&self) -> SocketAddr {
        self.first
    }

    /// All of them, in their order.
    pub(crate) fn all(&self) -> impl Iterator<Item = SocketAddr> + use<> {
        let all: Vec<SocketAddr> = std::iter::once(self.first).chain(self.others.iter().copied()).collect();
        all.into_iter()
    }

    /// Whether there is more than one.
    pub(crate) const fn are_several(&self) -> bool {
        !self.others.is_empty()
    }

    /// The first that answers, of those other than `but`. Each is asked a little later than the one before.
    pub(crate) async fn answering(&self, interface: Option<&str>, but: Option<SocketAddr>) -> Option<SocketAddr> {
        let mut asked = JoinSet::new();
        let candidates = std::iter::once(self.first).chain(self.others.iter().copied());
        for (frontend, turn) in candidates.filter(|one| Some(*one) != but).zip(0..) {
            let interface = interface.map(str::to_owned);
            asked.spawn(async move {
                sleep(STAGGER * turn).await;
                answers(interface.as_deref(), frontend).await.map(|()| frontend)
            });
        }
        let first = async {
            while let Some(done) = asked.join_next().await {
                match done {
                    Ok(Ok(frontend)) => return Some(frontend),
                    Ok(Err(error)) => debug!(%error, "a frontend cannot be asked"),
                    Err(_) => {}
                }
            }
            None
        };
        timeout(PATIENCE, first).await.ok().flatten()
    }
}

impl From<SocketAddr> for Frontends {
    fn from(only: SocketAddr) -> Self {
        Self { first: only, others: Vec::new() }
    }
}

async fn addresses(part: &str) -> Result<Vec<SocketAddr>, FrontendError> {
    if let Ok(address) = part.parse() {
        return Ok(vec![address]);
    }
    if let Ok(ip) = part.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        return Ok(vec![(ip, SIP_PORT).into()]);
    }
    if let Some((name, port)) = part.split_once(':') {
        let port = port.parse().map_err(|_| FrontendError::Port(port.to_owned()))?;
        return of_name(name, port).await;
    }
    let mut found = Vec::new();
    for (name, port) in services(part).await {
        found.extend(of_name(&name, port).await.unwrap_or_default());
    }
    if found.is_empty() { of_name(part, SIP_PORT).await } else { Ok(found) }
}

async fn of_name(name: &str, port: u16) -> Result<Vec<SocketAddr>, FrontendError> {
    let found = lookup_host((name, port)).await.map_err(|error| FrontendError::Name(name.to_owned(), error))?;
    Ok(found.collect())
}

/// The SRV records of a name, as RFC 2782 orders them. A name without a dot is this host's or its network's, and has none.
async fn services(name: &str) -> Vec<(String, u16)> {
    let Some(Ok(resolver)) = name.contains('.').then(TokioResolver::builder_tokio) else { return Vec::new() };
    let resolver = resolver.build();
    let asked = timeout(SRV_WAIT, resolver.srv_lookup(format!("_sip._udp.{name}."))).await;
    let Ok(Ok(records)) = asked else { return Vec::new() };
    ordered(records.iter().map(|record| (record, u64::from_be_bytes(random()))).collect())
}

/// By priority, and within one at random by weight: of independent exponential times with rates as the weights, each is the
/// first with the probability that the RFC asks for.
fn ordered(mut records: Vec<(&SRV, u64)>) -> Vec<(String, u16)> {
    let time = |(record, drawn): &(&SRV, u64)| {
        let uniform = (*drawn as f64 + 1.0) / (u64::MAX as f64 + 1.0);
        -uniform.ln() / f64::from(record.weight()).max(0.01)
    };
    records.sort_by(|a, b| a.0.priority().cmp(&b.0.priority()).then(time(a).total_cmp(&time(b))));
    records.iter().map(|(record, _)| (record.target().to_string(), record.port())).collect()
}

/// Returns once a frontend has answered a question that anybody may ask.
async fn answers(interface: Option<&str>, frontend: SocketAddr) -> Result<(), ExchangeError> {
    let opened = Endpoint::open_on(interface, frontend, true).await;
    let mut endpoint = opened.map_err(|error| ExchangeError::Socket(frontend, error))?;
    let (from, to) = (format!("sip:{}", endpoint.local()), format!("sip:{frontend}"));
    let parties = Parties { from: &from, to: &to, uri: &to, contact: "" };
    let question = endpoint.start(Method::Options, parties, Content::default(), None)?;
    // What ICMP says of it is no answer: it may come from anybody.
    while endpoint.outcome(question).await.is_err() {
        sleep(AGAIN).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{net::UdpSocket, thread};

    use hickory_resolver::proto::rr::Name;

    use super::*;

    fn found(text: &str) -> Vec<String> {
        let frontends = Frontends::find(text).unwrap();
        std::iter::once(frontends.first).chain(frontends.others).map(|address| address.to_string()).collect()
    }

    #[test]
    fn a_frontend_is_an_address_or_a_name_and_maybe_a_port_and_there_may_be_several() {
        assert_eq!(found("203.0.113.1:5070"), ["203.0.113.1:5070"]);
        assert_eq!(found("203.0.113.1"), ["203.0.113.1:5060"]);
        assert_eq!(found("2001:db8::1"), ["[2001:db8::1]:5060"]);
        assert_eq!(found("[2001:db8::1]"), ["[2001:db8::1]:5060"]);
        assert_eq!(found("[2001:db8::1]:5070, 203.0.113.1,203.0.113.1"), ["[2001:db8::1]:5070", "203.0.113.1:5060"]);
        assert!(found("localhost:5070").iter().all(|address| address.ends_with(":5070")));
        for (wrong, told) in
            [("", "no name"), (",", "no name"), ("localhost:sip", "`sip` is no port"), ("no-such:1", "no address")]
        {
            let error = Frontends::find(wrong).unwrap_err().to_string();
            assert!(error.contains(told), "{wrong}: {error}");
        }
    }

    #[test]
    fn srv_records_are_ordered_by_priority_and_drawn_by_weight() {
        let record = |priority, weight, name: &str| SRV::new(priority, weight, 5060, Name::from_ascii(name).unwrap());
        let (first, heavy, light) = (record(1, 0, "a."), record(2, 90, "b."), record(2, 10, "c."));
        let mut heavy_first = 0;
        for n in 0..1_000u64 {
            let draw = |salt: u64| (n * 2 + salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let names: Vec<String> = ordered(vec![(&light, draw(0)), (&heavy, draw(1)), (&first, 0)])
                .into_iter()
                .map(|(name, _)| name)
                .collect();
            assert_eq!(names[0], "a.");
            heavy_first += u32::from(names[1] == "b.");
        }
        assert!((850..950).contains(&heavy_first), "{heavy_first}");
    }

    #[tokio::test]
    async fn the_one_that_answers_is_taken_and_none_where_nobody_does() {
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        let answering = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (silent_at, answering_at) = (silent.local_addr().unwrap(), answering.local_addr().unwrap());
        thread::spawn(move || {
            let mut bytes = [0; 2_048];
            while let Ok((len, from)) = answering.recv_from(&mut bytes) {
                let asked = String::from_utf8_lossy(&bytes[..len]).into_owned();
                let (_, headers) = asked.split_once("\r\n").unwrap();
                // Not this one's: another call.
                let other = headers.replace("Call-ID: ", "Call-ID: x");
                answering.send_to(format!("SIP/2.0 200 OK\r\n{other}").as_bytes(), from).unwrap();
                answering.send_to(format!("SIP/2.0 200 OK\r\n{headers}").as_bytes(), from).unwrap();
            }
        });
        let both = Frontends { first: silent_at, others: vec![answering_at] };
        assert_eq!(both.answering(None, None).await, Some(answering_at));
        assert_eq!(both.answering(None, Some(answering_at)).await, None);
        assert!(both.are_several() && !Frontends::from(silent_at).are_several());
    }
}
