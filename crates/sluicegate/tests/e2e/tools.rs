//! Stock programs through the agent: curl, ssh, iperf3.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, time::Duration};

use crate::support::{
    BINARY,
    agent::connect_to,
    lab::{GATE, Lab},
    node::{Config, Node, REALM, service},
    program::{Program, run_on},
    until,
};

const LIMIT: Duration = Duration::from_secs(60);
const PAGE: &str = "a page that only the service has";

on_each_datapath!(curl_gets_a_page_through_a_port_forward_and_through_socks, &["nginx", "curl"], super::curl);
on_each_datapath!(ssh_logs_in_as_the_command_of_connect, &["sshd", "ssh", "ssh-keygen"], super::ssh);
on_packet!(iperf3_passes_over_tcp_and_udp, &["iperf3"], iperf3);
on_packet!(a_wrong_password_ends_connect_with_a_sentence_that_says_so, &[], wrong_password);

/// `sluicegate connect` of alice in the background.
fn connect(lab: &Lab, service: &str, how: &[&str]) -> Program {
    connect_to(lab, GATE, service, how)
}

fn nginx(lab: &Lab) -> Program {
    let root = lab.path("www");
    fs::create_dir(&root).expect("a directory");
    fs::write(root.join("index.html"), PAGE).expect("a page");
    fs::set_permissions(lab.dir.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
    let here = lab.dir.path().display();
    let config = format!(
        "daemon off; master_process off; worker_processes 1; pid {here}/nginx.pid; error_log {here}/nginx.error;\n\
         events {{ worker_connections 64; }}\n\
         http {{ access_log off; client_body_temp_path {here}/body; proxy_temp_path {here}/proxy;\n\
         fastcgi_temp_path {here}/fastcgi; uwsgi_temp_path {here}/uwsgi; scgi_temp_path {here}/scgi;\n\
         server {{ listen 10.4.0.2:80; root {here}/www; }} }}\n"
    );
    let config = lab.write("nginx.conf", &config);
    let server = Program::start(lab, "service", "nginx", "nginx", &["-c", config.to_str().expect("UTF-8")]);
    answers(lab, 80);
    server
}

/// Waits until the service's own host gets a connection on `port`.
fn answers(lab: &Lab, port: u16) {
    let address = (crate::support::lab::SERVICE, port).into();
    until(&format!("the service listens on port {port}"), || lab.connect("service", address).ok());
}

fn curl(datapath: &'static str) {
    let lab = Lab::new();
    let _server = nginx(&lab);
    let node = Node::up(&lab, &Config::new(datapath, &service("web", "\"tcp/80\"", "")));
    let agent = connect(&lab, "web", &["-L", "8080:80", "--socks", "127.0.0.1:1080"]);
    agent.says("ready");

    let fetch = |arguments: &[&str]| {
        let arguments = [&["--silent", "--show-error", "--fail", "--max-time", "20"], arguments].concat();
        run_on(&lab, "client", "curl", &arguments, LIMIT).expect("curl")
    };
    assert_eq!(fetch(&["http://127.0.0.1:8080/"]), PAGE);
    assert_eq!(fetch(&["--proxy", "socks5h://127.0.0.1:1080", "http://web/"]), PAGE);
    assert_eq!(node.grants().len(), 1, "one session, one grant");

    let mut agent = agent;
    assert!(agent.stop(), "connect ends well when it is asked to");
    until("the goodbye ends the grant", || node.grants().is_empty().then_some(()));
}

/// A server with keys of its own that lets root in with a key of its own.
struct Sshd {
    _server: Program,
    key: PathBuf,
    known_hosts: PathBuf,
}

impl Sshd {
    fn start(lab: &Lab) -> Self {
        // Debian's server wants this directory, which its service file makes.
        fs::create_dir_all("/run/sshd").expect("a directory");
        let keys = ["host_key", "user_key"].map(|name| lab.path(name));
        for key in &keys {
            let file = key.to_str().expect("UTF-8");
            run_on(lab, "service", "ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", file], LIMIT)
                .expect("ssh-keygen");
        }
        let public = |key: &PathBuf| fs::read_to_string(key.with_extension("pub")).expect("a public key");
        let authorized = lab.write("authorized_keys", &public(&keys[1]));
        let known_hosts = lab.write("known_hosts", &format!("the-service {}", public(&keys[0])));
        let config = format!(
            "Port 22\nListenAddress 10.4.0.2\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\n\
             UsePAM no\nUseDNS no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
             PermitRootLogin prohibit-password\nForceCommand echo \"logged in from ${{SSH_CONNECTION%% *}}\"\n",
            keys[0].display(),
            authorized.display(),
        );
        let config = lab.write("sshd_config", &config);
        let arguments = ["-D", "-e", "-f", config.to_str().expect("UTF-8")];
        let server = Program::start(lab, "service", "sshd", "sshd", &arguments);
        answers(lab, 22);
        let [_, key] = keys;
        Self { _server: server, key, known_hosts }
    }
}

fn ssh(datapath: &'static str) {
    let lab = Lab::new();
    let server = Sshd::start(&lab);
    let node = Node::up(&lab, &Config::new(datapath, &service("ssh", "\"tcp/22\"", "")));
    let (known, key) =
        (format!("UserKnownHostsFile={}", server.known_hosts.display()), server.key.display().to_string());
    let command = [
        "--",
        "ssh",
        "-F",
        "/dev/null",
        "-o",
        &known,
        "-o",
        "HostKeyAlias=the-service",
        "-o",
        "BatchMode=yes",
        "-o",
        "ConnectTimeout=15",
        "-i",
        &key,
        "-p",
        "{port}",
        "root@{host}",
        "true",
    ];
    let mut agent = connect(&lab, "ssh:22", &command);
    assert!(agent.finished(LIMIT), "connect gives the command's exit code");
    // The service sees the client's own address.
    assert!(agent.log().contains("logged in from 198.51.100.2"), "{}", agent.log());
    until("the goodbye ends the grant", || node.grants().is_empty().then_some(()));

    let mut failing = connect(&lab, "ssh:22", &["--", "sh", "-c", "exit 7"]);
    assert!(!failing.finished(LIMIT), "a failing command makes connect fail");
}

fn iperf3(datapath: &'static str) {
    let lab = Lab::new();
    let _server = Program::start(&lab, "service", "iperf3", "iperf3", &["-s", "-B", "10.4.0.2", "-p", "5201"]);
    answers(&lab, 5201);
    let _node = Node::up(&lab, &Config::new(datapath, &service("perf", "\"tcp/5201\", \"udp/5201\"", "")));
    let agent = connect(&lab, "perf", &["-L", "5201:5201", "-L", "5201:5201/udp"]);
    agent.says("ready");

    let measure = |more: &[&str]| -> serde_json::Value {
        let arguments = [&["-c", "127.0.0.1", "-p", "5201", "-t", "3", "-J"], more].concat();
        let out = run_on(&lab, "client", "iperf3", &arguments, LIMIT).expect("iperf3");
        serde_json::from_str(&out).expect("a report")
    };
    let tcp = measure(&["-b", "20M"]);
    let bytes = tcp["end"]["sum_received"]["bytes"].as_u64().expect("bytes received");
    assert!(bytes > 1_000_000, "TCP moved {bytes} bytes in 3 s");
    let udp = measure(&["-u", "-b", "2M", "-l", "1000"]);
    let (packets, lost) = (&udp["end"]["sum"]["packets"], &udp["end"]["sum"]["lost_percent"]);
    assert!(packets.as_u64().is_some_and(|packets| packets > 500), "{}", udp["end"]);
    assert!(lost.as_f64().is_some_and(|percent| percent < 5.0), "{}", udp["end"]);
}

fn wrong_password(datapath: &'static str) {
    let lab = Lab::new();
    let node = Node::up(&lab, &Config::new(datapath, &service("web", "\"tcp/80\"", "")));
    let wrong = lab.write("wrong", "guess\n");
    fs::set_permissions(&wrong, fs::Permissions::from_mode(0o600)).expect("a mode");
    let wrong = wrong.display().to_string();
    let arguments =
        ["connect", "alice@web", "--frontend", "203.0.113.1:5060", "--realm", REALM, "--password-file", &wrong];
    let arguments = [&arguments[..], &["-L", "8080:80"]].concat();
    let mut agent = Program::start(&lab, "client", "connect", BINARY, &arguments);
    assert!(!agent.finished(LIMIT));
    assert!(agent.log().contains("does not accept the password of alice"), "{}", agent.log());
    assert_eq!(node.grants().len(), 0);
}
