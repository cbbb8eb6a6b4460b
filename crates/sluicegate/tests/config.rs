//! Configuration mistakes: each is found with file and line, says what to do, and changes nothing.
//!
//! Runs the real binary, without root. Mistakes that need interfaces to be made are in `e2e/refusals.rs`.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// A frontend; STATE stands for the state directory. Nothing is wrong with it.
const FRONTEND: &str = r#"[node]
name = "front-1"
state = "STATE"
[frontend]
listen = ["udp/127.0.0.1:5060"]
realm = "example.net"
digest = ["SHA-256", "MD5"]
feed = "127.0.0.1:7443"
shards = 2
[metrics]
listen = "127.0.0.1:9469"
[[service]]
name = "web"
address = "10.4.0.2"
ports = ["tcp/80", "tcp/443"]
allow = ["group:staff"]
grant = { bytes_max = "10MB", lifetime_s = 300, rate = "10Mbit" }
[[service]]
name = "ssh"
kind = "agent"
address = "10.4.0.3"
ports = ["tcp/22"]
registrar = "ssh-host"
allow = ["group:admins"]
[[rule]]
name = "office"
services = ["web"]
subjects = ["user:alice"]
effect = "allow"
days = ["mon", "tue"]
from = "08:00"
to = "18:00"
"#;

/// A gate. That there are no such interfaces is found in each case, besides what the case is about.
const GATE: &str = r#"[node]
name = "gate-1"
state = "STATE"
[gate]
outside = "absent0"
inside = "absent1"
address = "203.0.113.1"
local = ["udp/5060", "tcp/22"]
external_ports = "20000-32767"
may_open = ["10.4.0.0/24"]
"#;

/// A router and an edge; their interfaces are absent too.
const ROUTER: &str = r#"[node]
state = "STATE"
[gate]
role = "router"
outside = "absent0"
inside = "absent1"
link_rate = "100Mbit"
boundary = ["outside"]
fairness = "destination"
merge = "largest-excess"
capability_lines_max = 40960
"#;

const EDGE: &str = r#"[node]
state = "STATE"
[gate]
role = "edge"
outside = "absent0"
inside = "absent1"
policy = "client"
carriage = "encapsulated"
capability_bytes = "100KB"
capability_s = 10
peers_max = 4096
"#;

/// A service side agent; PASSWORD stands for its password file.
const AGENT: &str = r#"[agent]
frontend = "203.0.113.1:5060"
realm = "example.net"
user = "ssh-host"
password_file = "PASSWORD"
service = "ssh"
address = "10.4.0.2"
ports = ["tcp/22"]
"#;

/// Right text, wrong text in its place, the line that is found (0: none), what is said of it, what to do.
type Mistake = (&'static str, &'static str, usize, &'static str, &'static str);

const FRONTEND_MISTAKES: &[Mistake] = &[
    ("shards = 2", "shard = 2", 9, "unknown field `shard`", "correct its spelling"),
    ("[metrics]", "[metric]", 10, "unknown field `metric`", "expected one of `node`, `frontend`"),
    ("realm = \"example.net\"\n", "", 4, "missing field `realm`", "add it"),
    ("address = \"10.4.0.2\"\n", "", 12, "missing field `address`", "add it"),
    ("feed = \"127.0.0.1:7443\"\n", "", 4, "gates have no address to dial", "add feed ="),
    ("= [\"udp/127.0.0.1:5060\"]", "= \"udp/127.0.0.1:5060\"", 5, "invalid type", "expected a sequence"),
    ("[\"udp/127", "[\"sctp/127", 5, "\"sctp/127.0.0.1:5060\" is not a SIP address", "write udp/ADDRESS:PORT, tcp/"),
    (
        "[\"udp/127.0.0.1:5060\"]",
        "[{ on = \"udp/127.0.0.1:5060\", as = \"\" }]",
        5,
        "unknown field `as`",
        "correct its spelling",
    ),
    ("[\"udp/127.0.0.1:5060\"]", "[{ on = \"udp/127.0.0.1:5060\" }]", 5, "missing field `advertise`", "add it"),
    ("[\"udp/127.0.0.1:5060\"]", "[5060]", 5, "invalid type: integer `5060`", "advertise = \"ADDRESS:PORT\""),
    (
        "[\"udp/127.0.0.1:5060\"]",
        "[{ on = \"udp/127.0.0.1:5060\", advertise = \"198.51.100.1\" }]",
        5,
        "advertise = \"198.51.100.1\" is no address and port",
        "write what the NAT makes into this address",
    ),
    (
        "[\"udp/127.0.0.1:5060\"]",
        "[{ on = \"udp/127.0.0.1:5060\", advertise = \"[2001:db8::1]:5060\" }]",
        5,
        "is advertised as [2001:db8::1]:5060, where nobody reaches it",
        "of the same IP version",
    ),
    ("[\"udp/127", "[\"tls/127", 5, "\"tls/127.0.0.1:5060\" needs a certificate", "add tls = { certificate ="),
    ("shards = 2", "tls = { certificate = \"x\" }", 9, "missing field `key`", "add it"),
    ("shards = 2", "tls = { certificate = \"ABSENT\", key = \"x\" }", 9, "the `certificate`", "cannot read ABSENT"),
    ("shards = 2", "connections = { idle_s = 0 }", 9, "connections idle_s = 0", "leave it out"),
    ("shards = 2", "emergency = { numbers = [\"112\"] }", 9, "emergency numbers count with", "leave the numbers out"),
    ("shards = 2", "emergency = { calls_per_s = 0 }", 9, "emergency calls_per_s = 0", "leave it out"),
    ("shards = 2", "connections = { idle = 1 }", 9, "unknown field `idle`", "correct its spelling"),
    ("realm = \"example.net\"", "realm = \"example.net", 6, "invalid basic string", "expected `\"`"),
    ("\"10MB\"", "\"10 parsecs\"", 17, "\"10 parsecs\" is no size", "write \"10MB\""),
    ("\"10Mbit\"", "\"fast\"", 17, "\"fast\" is no rate", "write \"1Mbit\""),
    ("= \"10MB\"", "= \"1KB\"", 17, "does not carry one packet", "write for example"),
    ("\"10Mbit\"", "\"10kbit\"", 17, "less than a grant can say", "write at least"),
    ("lifetime_s = 300", "lifetime_s = 5", 17, "lifetime_s = 5 is out of range", "write 10 to 86400"),
    ("tcp/443", "tcp/443-80", 15, "\"tcp/443-80\" is no port range", "the lower one first"),
    ("tcp/443", "tcp/99999", 15, "\"tcp/99999\" is no port range", "ports from 1 to 65535"),
    ("tcp/443", "ip/6", 15, "\"ip/6\" is no port range", "has a name of its own"),
    ("tcp/443", "ip/44", 15, "\"ip/44\" is no port range", "no transport"),
    ("\"tcp/443\"", "\"ah\"", 15, "ah signs the addresses", "use mode = \"filter\""),
    ("tcp/443", "sctp/443", 15, "\"sctp/443\" is no port range", "does not forward sctp"),
    ("[\"tcp/22\"]", "[]", 22, "no grant could open anything", "write for example"),
    ("\"10.4.0.3\"", "\"224.0.0.1\"", 21, "no address of a host", "write the service's own address"),
    (
        "10.4.0.3\"\nports = [\"tcp/22\"",
        "10.4.0.2\"\nports = [\"tcp/443\"",
        22,
        "belongs to service \"web\"",
        "to one service",
    ),
    ("name = \"ssh\"", "name = \"web\"", 19, "the name is used twice", "give every one its own name"),
    ("name = \"front-1\"", "name = \"front 1\"", 2, "name \"front 1\" is not", "1 to 64 letters"),
    ("group:staff", "staff", 16, "\"staff\" is no user, group or peer", "write \"user:alice\""),
    (
        "services = [\"web\"]",
        "services = [\"wbe\"]",
        27,
        "there is no service \"wbe\"",
        "write the name of a [[service]]",
    ),
    ("\"08:00\"", "\"25:00\"", 31, "\"25:00\" is no time of day", "write \"08:30\""),
    ("\"tue\"", "\"someday\"", 30, "unknown variant `someday`", "expected one of `mon`"),
    ("effect = \"allow\"", "effect = \"permit\"", 29, "unknown variant `permit`", "expected `allow` or `deny`"),
    ("\"MD5\"", "\"SHA-1\"", 7, "unknown variant `SHA-1`", "expected `SHA-256` or `MD5`"),
    ("[\"SHA-256\", \"MD5\"]", "[]", 7, "digest must name", "each once"),
    ("example.net", "exa mple", 6, "is not a domain name", "such as \"example.net\""),
    ("udp/127.0.0.1:5060", "udp/0.0.0.0:5060", 5, "not an address that clients can answer to", "write one address"),
    ("udp/127.0.0.1:5060", "127.0.0.1:5060", 5, "is not a SIP address", "write \"udp/203.0.113.1:5060\""),
    ("127.0.0.1:5060\"", "127.0.0.1:5060\", \"udp/127.0.0.1:5060\"", 5, "is there twice", "remove one"),
    ("shards = 2", "datapath = \"dpdk\"", 9, "unknown variant `dpdk`", "expected `socket` or `xdp`"),
    ("shards = 2", "shards = 2\ndatapath = \"xdp\"", 9, "shards = 2 is too many for datapath", "write 1"),
    ("shards = 2", "datapath = \"xdp\"", 9, "datapath \"xdp\" has no datagrams to take", "add \"udp/203.0.113.1"),
    ("shards = 2", "shards = 1000", 9, "shards = 1000 is more than 64", "write one per processor"),
    ("shards = 2", "shards = 2\ngrants_max = 0", 10, "grants_max = 0 leaves no room", "write a larger number"),
    (
        "shards = 2",
        "shards = 2\ntables = { legs_max = 99999999 }",
        10,
        "tables legs_max is larger than 4194304",
        "write a smaller number",
    ),
    (
        "shards = 2",
        "shards = 2\ntables = { legs = 5 }",
        10,
        "unknown field `legs`",
        "expected one of `transactions_max`",
    ),
    ("127.0.0.1:9469", "0.0.0.0:9469", 11, "reachable from outside", "use a loopback address"),
    ("registrar = \"ssh-host\"\n", "", 18, "no one may register this service", "registrar = \"NAME\""),
    ("name = \"web\"\n", "name = \"web\"\nsip_port = 5060\n", 14, "is sent no SIP", "remove sip_port"),
    (
        "name = \"web\"\n",
        "name = \"web\"\nkind = \"sip\"\nsip = [\"sctp/5060\"]\n",
        15,
        "\"sctp/5060\" is no way to take SIP",
        "write \"udp/5060\"",
    ),
    (
        "name = \"web\"\n",
        "name = \"web\"\nkind = \"sip\"\nsip = [\"tcp/5060\"]\n",
        15,
        "takes SIP as tcp/5060, and the frontend listens for none",
        "add \"tcp/ADDRESS:PORT\" to listen",
    ),
    (
        "name = \"web\"\n",
        "name = \"web\"\nkind = \"sip\"\nsip = [\"tls/5061\", \"udp/5060\"]\ncertificate = \"pbx.example.net\"\n",
        16,
        "could not believe",
        "add server_ca = FILE to tls",
    ),
    (
        "name = \"web\"\n",
        "name = \"web\"\nmode = \"route\"\n",
        14,
        "unknown variant `route`",
        "expected `nat` or `filter`",
    ),
    ("STATE", "PASSWORD", 3, "is not a directory", "name a directory"),
    ("STATE", "OPEN", 3, "others may write to the state directory", "chmod 0700"),
];

const GATE_MISTAKES: &[Mistake] = &[
    ("absent0", "absent2", 5, "outside interface \"absent2\" does not exist", "this host has: lo"),
    ("absent1", "absent0", 6, "outside and inside are both \"absent0\"", "between two different interfaces"),
    ("203.0.113.1\"", "127.0.0.1\"", 7, "unspecified, multicast or loopback", "use an address of the outside"),
    (
        "\"203.0.113.1\"",
        "[\"203.0.113.1\", \"203.0.113.2\"]",
        7,
        "is the second of its IP version",
        "one IPv4 and one IPv6",
    ),
    ("20000-32767", "80-90", 9, "external_ports 80-90 must be", "such as \"20000-32767\""),
    ("20000-32767", "many", 9, "is no range of ports", "write it like"),
    ("tcp/22", "tcp/20000", 8, "overlaps external_ports 20000-32767", "move one of the two"),
    ("tcp/22", "tcp22", 8, "\"tcp22\" is no port range", "write tcp/22"),
    ("tcp/22", "ip/6", 8, "\"ip/6\" is no port range", "write tcp/22"),
    ("tcp/22", "ip/256", 8, "\"ip/256\" is no port range", "gre, esp or ip/4"),
    ("10.4.0.0/24", "10.4.0.0/33", 10, "is no address prefix", "write it like 192.0.2.0/24"),
    ("[gate]", "[gate]\ndatapath = \"dpdk\"", 5, "`dpdk` is no datapath", "write auto, xdp or packet"),
    ("[gate]", "[gate]\nmode = \"maybe\"", 5, "unknown variant `maybe`", "expected `enforce` or `observe`"),
    ("[gate]", "[gate]\nflows_max = 0", 5, "flows_max must be", "at least 1"),
    ("[gate]", "[gate]\npinholes_max = 999999999", 5, "pinholes_max is 999999999", "at most 262144"),
    (
        "[gate]",
        "[frontend]\nlisten = [\"udp/203.0.113.1:5070\"]\nrealm = \"a.b\"\n[gate]",
        11,
        "would drop all SIP",
        "add \"udp/5070\" to local",
    ),
];

const ROUTER_MISTAKES: &[Mistake] = &[
    ("\"router\"", "\"switch\"", 4, "unknown variant `switch`", "expected one of `gate`, `router`, `edge`"),
    ("\"100Mbit\"", "\"100 cars\"", 7, "\"100 cars\" is no rate", "write \"1Mbit\""),
    ("\"100Mbit\"", "\"9kbit\"", 7, "link_rate is 9000 bit/s", "from \"64kbit\" to \"100Gbit\""),
    ("[\"outside\"]", "\"left\"", 8, "\"left\"", "a list of the two"),
    ("\"destination\"", "\"everyone\"", 9, "\"everyone\" is no fairness", "\"prefix/24\""),
    (
        "\"destination\"",
        "\"source\"",
        9,
        "lets whoever forges addresses take the link",
        "set ingress_verified = true only if",
    ),
    (
        "\"largest-excess\"",
        "\"smallest\"",
        10,
        "unknown variant `smallest`",
        "expected `deepest-first` or `largest-excess`",
    ),
    ("40960", "0", 11, "capability_lines_max must be", "at least 1"),
    ("40960", "999999999", 11, "capability_lines_max is 999999999", "at most 16777216"),
    ("40960", "31249", 11, "attackers can fill 31250 at this link rate", "leave it out"),
    ("link_rate = \"100Mbit\"\n", "", 4, "a router without link_rate sorts nothing", "write link_rate"),
    ("40960", "40960\nrequest_percent = 51", 12, "request_percent is 51", "1 to 50 percent"),
    ("link_rate = \"100Mbit\"\n", "", 8, "fairness has no effect: no link is scheduled", "add link_rate"),
    ("40960", "40960\nrequest_queues_max = 200001", 12, "request_queues_max is 200001", "at most 200000"),
    ("40960", "40960\npolicy = \"client\"", 12, "policy means nothing in role \"router\"", "correct role"),
    (
        "40960",
        "40960\nflows_max = 4096",
        12,
        "flows_max means nothing in role \"router\", only in \"gate\"",
        "remove it",
    ),
    ("40960", "40960\nknown_paths = \"/absent/paths\"", 12, "cannot read /absent/paths", "name a file"),
    (
        "40960",
        "40960\n[[service]]\nname = \"web\"\naddress = \"10.4.0.2\"\nports = [\"tcp/80\"]",
        12,
        "role \"router\" protects no service",
        "on the gate in front of them",
    ),
    (
        "[gate]",
        "[frontend]\nlisten = [\"udp/203.0.113.1:5060\"]\nrealm = \"a.b\"\n[gate]",
        7,
        "`up` runs a gate beside the frontend",
        "remove [frontend]",
    ),
];

const EDGE_MISTAKES: &[Mistake] = &[
    ("\"client\"", "\"anyone\"", 7, "unknown variant `anyone`", "expected `client` or `server`"),
    ("\"encapsulated\"", "\"wrapped\"", 8, "unknown variant `wrapped`", "expected `native` or `encapsulated`"),
    ("\"100KB\"", "\"2MB\"", 9, "capability_bytes is 2000 kB", "1KB to 1023KB"),
    ("capability_s = 10", "capability_s = 64", 10, "capability_s is 64", "1 to 63 seconds"),
    ("4096", "0", 11, "peers_max must be", "at least 1"),
    (
        "4096",
        "4096\nlink_rate = \"1Mbit\"",
        12,
        "link_rate means nothing in role \"edge\"",
        "only in \"gate\" and \"router\"",
    ),
    ("4096", "4096\nflood_rate = \"1Mbit\"", 12, "flood_rate is about senders that hosts did not contact", "policy"),
    ("\"client\"", "\"server\"\nrenew = \"always\"", 8, "unknown variant `always`", "`never` or `within_rate`"),
    ("\"client\"", "\"server\"\nflood_rate = \"1bit\"", 8, "flood_rate is 0 bit/s", "such as \"512kbit\""),
    ("\"client\"", "\"server\"\nblacklist_s = 0", 8, "blacklist_s is 0", "1 to 86400 seconds"),
    ("4096", "4096\nalgorithm = \"md5\"", 12, "unknown variant `md5`", "expected `siphash` or `aes`"),
];

const OPEN_MISTAKES: &[Mistake] = &[
    ("mode = \"filter\"\n", "", 13, "without translation", "write mode = \"filter\""),
    ("\"open\"", "\"on\"", 14, "unknown variant `on`", "expected `off` or `open`"),
    ("mode =", "ports = [\"tcp/80\"]\nmode =", 13, "open on all ports", "remove ports"),
    ("mode =", "allow = [\"group:all\"]\nmode =", 13, "open to everyone", "remove allow"),
    ("mode =", "kind = \"agent\"\nmode =", 13, "nobody signs in to an open service", "remove kind"),
];

const AGENT_MISTAKES: &[Mistake] = &[
    ("PASSWORD", "/absent/password", 5, "cannot read /absent/password", "write the password of `user` to it"),
    ("PASSWORD", "LOOSE", 5, "others may read", "mode 0600"),
    (
        "service =",
        "site_key = \"short\"\nservice =",
        6,
        "43 letters, digits",
        "`sluicegate status` at the site shows it",
    ),
    (
        "service =",
        "key_file = \"PASSWORD\"\nservice =",
        1,
        "one of password_file and key_file",
        "write password_file, or",
    ),
    ("[\"tcp/22\"]", "[]", 8, "no port is offered", "such as \"tcp/22\""),
    ("ports", "abuse_rate = \"2Mbit\"\nports", 8, "cannot be measured without an interface", "add interface ="),
];

/// A directory with configurations; what is in it besides must stay as it is.
struct Desk {
    dir: tempfile::TempDir,
}

impl Desk {
    fn new() -> Self {
        let desk = Self { dir: tempfile::tempdir().expect("a temporary directory") };
        for (name, mode) in [("password", 0o600), ("loose", 0o644)] {
            fs::write(desk.path(name), "secret\n").expect("a file");
            fs::set_permissions(desk.path(name), fs::Permissions::from_mode(mode)).expect("a mode");
        }
        fs::create_dir(desk.path("open")).expect("a directory");
        fs::set_permissions(desk.path("open"), fs::Permissions::from_mode(0o777)).expect("a mode");
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a configuration with the places filled in.
    fn write(&self, text: &str) -> PathBuf {
        let places = [("STATE", "state"), ("PASSWORD", "password"), ("LOOSE", "loose"), ("OPEN", "open")];
        let fill =
            |text: String, (place, name): (&str, &str)| text.replace(place, &self.path(name).display().to_string());
        let path = self.path("site.toml");
        fs::write(&path, places.into_iter().fold(text.to_owned(), fill)).expect("a file");
        path
    }

    /// Everything that is here, apart from the configuration itself.
    fn contents(&self) -> BTreeSet<PathBuf> {
        let (mut found, mut folders) = (BTreeSet::new(), vec![self.dir.path().to_owned()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a directory") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path.clone());
                }
                found.insert(path);
            }
        }
        found.remove(&self.path("site.toml"));
        found
    }
}

fn sluicegate(verb: &str, file: &Path) -> (Output, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_sluicegate")).arg(verb).arg(file).output().expect("the binary runs");
    let said = [&output.stdout[..], &output.stderr].concat();
    let said = String::from_utf8(said).expect("text");
    (output, said)
}

/// Whether a finding at this place says `what` and, there or in its hint, `todo`.
fn finds(said: &str, file: &Path, line: usize, what: &str, todo: &str) -> bool {
    let place =
        if line == 0 { format!("{}: error: ", file.display()) } else { format!("{}:{line}: error: ", file.display()) };
    let lines: Vec<&str> = said.lines().collect();
    lines.iter().enumerate().any(|(index, text)| {
        let hint = lines.get(index + 1).filter(|next| next.starts_with("  hint: ")).copied().unwrap_or_default();
        text.starts_with(&place) && text.contains(what) && format!("{text}{hint}").contains(todo)
    })
}

fn every_mistake_is_found(right: &str, mistakes: &[Mistake], verb: &str) {
    let desk = Desk::new();
    let before = desk.contents();
    for (from, to, line, what, todo) in mistakes {
        assert!(right.contains(from), "the case `{to}` changes nothing");
        let file = desk.write(&right.replacen(from, to, 1));
        let (output, said) = sluicegate("check", &file);
        assert!(!output.status.success(), "check accepts `{to}`:\n{said}");
        assert!(
            finds(&said, &file, *line, what, todo),
            "`{to}`: no finding in line {line} of `{what}`, `{todo}`:\n{said}"
        );
        if !verb.is_empty() {
            let (output, said) = sluicegate(verb, &file);
            assert!(!output.status.success(), "{verb} starts with `{to}`:\n{said}");
            assert!(finds(&said, &file, *line, what, todo), "{verb}, `{to}`:\n{said}");
            assert!(said.contains("nothing was started or changed"), "{verb}, `{to}`:\n{said}");
        }
        assert_eq!(desk.contents(), before, "`{to}` changed something");
    }
}

#[test]
fn a_configuration_without_mistakes_passes_and_checking_it_changes_nothing() {
    let desk = Desk::new();
    let before = desk.contents();
    for right in [FRONTEND, AGENT] {
        let file = desk.write(right);
        let (output, said) = sluicegate("check", &file);
        assert!(output.status.success() && said.contains("no errors") && !said.contains("warning"), "{said}");
    }
    assert_eq!(desk.contents(), before);
}

#[test]
fn every_mistake_about_a_frontend_gives_file_line_and_what_to_do() {
    every_mistake_is_found(FRONTEND, FRONTEND_MISTAKES, "frontend");
}

#[test]
fn every_mistake_about_a_gate_gives_file_line_and_what_to_do() {
    every_mistake_is_found(GATE, GATE_MISTAKES, "");
}

#[test]
fn every_mistake_about_a_router_gives_file_line_and_what_to_do() {
    every_mistake_is_found(ROUTER, ROUTER_MISTAKES, "");
}

#[test]
fn every_mistake_about_an_edge_gives_file_line_and_what_to_do() {
    every_mistake_is_found(EDGE, EDGE_MISTAKES, "");
}

#[test]
fn every_mistake_about_an_open_service_gives_file_line_and_what_to_do() {
    let open =
        format!("{GATE}[[service]]\nname = \"web\"\nmode = \"filter\"\ndefault = \"open\"\naddress = \"192.0.2.80\"\n");
    every_mistake_is_found(&open, OPEN_MISTAKES, "");
}

/// Only that there are no such interfaces, addresses and files may be found.
#[test]
fn the_examples_of_the_documentation_have_no_mistakes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    for name in ["router.toml", "edge.toml", "trunk.toml"] {
        let (_, said) = sluicegate("check", &folder.join(name));
        let errors: Vec<&str> = said.lines().filter(|line| line.contains(": error: ")).collect();
        let absent = ["interface \"eth", "cannot read /etc/sluicegate/", "this host has no address 203.0.113.1"];
        let is_elsewhere = |line: &&str| absent.iter().any(|absent| line.contains(absent));
        assert!(!errors.is_empty() && errors.iter().all(is_elsewhere), "{name}: {said}");
    }
}

#[test]
fn a_peer_without_tls_or_a_certificate_is_refused_with_what_to_write() {
    const PEER: &str = "[[peer]]\nname = \"carrier\"\naddresses = [\"198.51.100.32/28\"]\n\
        certificate = \"sbc.carrier.example\"\nsip = \"tls/198.51.100.40:5061\"\nnumbers = [\"+*\"]\n";
    let right = format!("{FRONTEND}{PEER}");
    let first = FRONTEND.lines().count() + 1;
    let listens = "the frontend listens for none";
    every_mistake_is_found(
        &right,
        &[
            ("+*", "0*", first, listens, "add \"tls/ADDRESS:5061\" to listen"),
            ("+*", "0*", first + 3, "a certificate that the frontend could not believe", "add server_ca = FILE"),
            ("certificate = \"sbc.carrier.example\"\n", "", first, "an address proves nothing", "write its name"),
            ("\"tls/198", "\"udp/198", first + 4, "over udp nobody shows a certificate", "write \"tls/198.51.100.40"),
            ("+*", "+*\"]\nreg = [\"", first + 6, "unknown field `reg`", "correct its spelling"),
        ],
        "",
    );
}

#[test]
fn every_mistake_about_an_agent_gives_file_line_and_what_to_do() {
    every_mistake_is_found(AGENT, AGENT_MISTAKES, "");
}

#[test]
fn a_file_that_cannot_be_read_is_named_with_the_reason() {
    let desk = Desk::new();
    let absent = desk.path("absent.toml");
    fs::write(desk.path("binary.toml"), [0xff, 0xfe, 0x00]).expect("a file");
    fs::write(desk.path("empty.toml"), "").expect("a file");
    let cases = [
        (absent, "cannot read the configuration: No such file", "name an existing file"),
        (desk.path("open"), "cannot read the configuration", "check the file's owner, mode and encoding"),
        (desk.path("binary.toml"), "cannot read the configuration", "encoding (UTF-8)"),
        (desk.path("empty.toml"), "there is no [frontend] section", "add [frontend]"),
        (desk.path("empty.toml"), "there is no [gate] section", "add [gate]"),
    ];
    for (file, what, todo) in &cases {
        for verb in ["check", "up"] {
            let (output, said) = sluicegate(verb, file);
            assert!(!output.status.success());
            assert!(finds(&said, file, 0, what, todo), "{verb} {}: {said}", file.display());
        }
    }
}

#[test]
fn findings_are_printed_as_json_for_programs() {
    let desk = Desk::new();
    let file = desk.write(&FRONTEND.replace("shards = 2", "shards = 1000").replace("example.net", "exa mple"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    let output = command.arg("check").arg(&file).arg("--json").output().expect("the binary runs");
    assert!(!output.status.success());
    let text = String::from_utf8(output.stdout).expect("text");
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("one object a line")).collect();
    let mut found: Vec<u64> = lines.iter().filter_map(|finding| finding["line"].as_u64()).collect();
    found.sort_unstable();
    assert_eq!(found, [6, 9], "every mistake at once: {text}");
    assert!(
        lines.iter().all(|finding| finding["severity"] == "error" && finding["file"] == file.display().to_string())
    );
}
