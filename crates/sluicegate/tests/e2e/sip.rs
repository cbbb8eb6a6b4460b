//! Stock telephones outside, a stock PBX behind the gate: baresip, and Kamailio with rtpengine as the book configures them.

mod called;
mod calls;
mod lasting;
mod load;
mod relayed;
mod restarts;
mod without;

use std::{env, net::Ipv4Addr, time::Duration};

use sluicegate_site::clock::unix_ns;

use crate::support::{
    lab::{CLIENT, GATE, Lab, SERVICE, STRANGER},
    let_run,
    node::{Config, Node, service},
    rtp::Audio,
    softphone::{Account, Softphone},
    stock_pbx::StockPbx,
    until,
};

/// RTP packets a second of one direction of a call.
const PER_SECOND: usize = 50;
/// What is on its way has arrived after this.
const IN_FLIGHT: Duration = Duration::from_millis(200);
/// Within this silence is silence.
const SILENCE: Duration = Duration::from_millis(400);

/// Whether tests are to take the time that they are about, and not a short form of it.
fn is_long() -> bool {
    env::var_os("SLUICEGATE_LONG").is_some_and(|value| value == "1")
}

/// A telephone outside: whose, on which host, the other end of its wire, where.
struct Place {
    user: &'static str,
    host: &'static str,
    at_core: &'static str,
    address: Ipv4Addr,
    transport: &'static str,
}

const ALICE: Place = Place { user: "alice", host: "client", at_core: "to_client", address: CLIENT, transport: "udp" };
const BOB: Place = Place { user: "bob", host: "stranger", at_core: "to_stranger", address: STRANGER, transport: "udp" };

impl Place {
    fn account(&self, server: Ipv4Addr) -> Account<'static> {
        Account {
            place: (self.host, self.address.into()),
            port: 5060,
            user: self.user,
            server: (server, 5060).into(),
            transport: self.transport,
            registers: true,
            answers: false,
        }
    }

    fn audio(&self, lab: &Lab) -> Audio {
        Audio::of(lab, self.host, self.address.into(), ("core", self.at_core))
    }
}

/// A PBX behind a gate, with the frontend on the gate's host.
struct Site {
    node: Node,
    pbx: StockPbx,
    /// What the PBX says and hears.
    pbx_audio: Audio,
    lab: Lab,
}

impl Site {
    /// One whose service has these further lines.
    fn start(datapath: &'static str, more: &str) -> Self {
        Self::start_over(datapath, &["udp", "tcp"], StockPbx::start, more)
    }

    /// One where nobody speaks SIP over anything but UDP.
    fn start_over_udp(datapath: &'static str) -> Self {
        Self::start_over(datapath, &["udp"], StockPbx::start_over_udp, "")
    }

    fn start_over(datapath: &'static str, transports: &[&str], start_pbx: fn(&Lab) -> StockPbx, more: &str) -> Self {
        let lab = Lab::new();
        let list = |place: &str| {
            let all = transports.iter().map(|transport| format!("\"{transport}/{place}\""));
            all.collect::<Vec<_>>().join(", ")
        };
        let (ports, listeners) = (list("5060"), list(&format!("{GATE}:5060")));
        let more = format!("kind = \"sip\"\nsip = [{ports}]\nregistrar = \"switch\"\nnumbers = [\"*\"]\n{more}");
        let pbx = service("pbx", "\"udp/10000-10199\"", &more);
        // This baresip gives up at an algorithm that it does not know, instead of taking the next one.
        let frontend = format!("listen = [{listeners}]\ndigest = [\"MD5\"]\n");
        let config = Config::new(datapath, &pbx).frontend(&frontend).gate(&format!("local = [{ports}]\n"));
        let node = Node::up(&lab, &config);
        node.add_user(&lab, "switch", None);
        let pbx = start_pbx(&lab);
        let pbx_audio = Audio::of(&lab, "service", SERVICE.into(), ("gate", "inside"));
        Self { node, pbx, pbx_audio, lab }
    }

    /// A telephone that only calls, and what it says and hears.
    fn caller(&self, place: &Place) -> (Softphone, Audio) {
        let account = Account { registers: false, ..place.account(GATE) };
        (Softphone::start(&self.lab, &account), place.audio(&self.lab))
    }

    /// A telephone that is registered, and what it says and hears.
    fn phone(&self, place: &Place) -> (Softphone, Audio) {
        let phone = Softphone::start(&self.lab, &place.account(GATE));
        phone.registered();
        (phone, place.audio(&self.lab))
    }

    /// Telephones that are registered.
    fn contacts(&self) -> u64 {
        let tables = self.node.json(&["status"])["frontend"]["tables"].clone();
        let mut contacts = tables.as_array().into_iter().flatten().filter(|table| table["table"] == "contacts");
        contacts.next().and_then(|table| table["used"].as_u64()).expect("a table of contacts")
    }

    /// Waits until nothing is open any more.
    fn is_closed(&self) {
        until("the end of a call ends its grants", || self.node.grants().is_empty().then_some(()));
    }
}

/// Lets two talk for a while: each hears every packet of the other.
fn talk(one: &Audio, other: &Audio, time: Duration) {
    let from_ns = unix_ns();
    let_run(time);
    let until_ns = unix_ns();
    let_run(IN_FLIGHT);
    // A telephone on a busy machine says less than it should; what it says has to arrive.
    let enough = time.as_millis() as usize * PER_SECOND / 2_000;
    for (from, to) in [(one, other), (other, one)] {
        let arrived = from.reached(to, from_ns, until_ns);
        println!("{arrived:?} in {time:?}");
        assert!(arrived.said >= enough && arrived.lost == 0, "{arrived:?} in {time:?}, {enough} are enough");
    }
}

/// Waits until both say something that the other hears.
fn hear_each_other(one: &Audio, other: &Audio) {
    let from_ns = unix_ns();
    until("both hear something", || {
        let both = [one, other].map(|audio| audio.heard_since(from_ns).len());
        both.iter().all(|heard| *heard > PER_SECOND / 10).then_some(())
    });
}

/// Waits until neither hears anything.
fn hear_nothing(one: &Audio, other: &Audio) {
    until("neither hears anything", || {
        let from_ns = unix_ns();
        let_run(SILENCE);
        [one, other].iter().all(|audio| audio.heard_since(from_ns).is_empty()).then_some(())
    });
}
