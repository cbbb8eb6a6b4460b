//! A stock SIP caller, with MD5 and no idea of sluicegate, calls a stock SIP callee behind the gate.

use std::time::Duration;

use crate::support::{
    capture::Capture,
    lab::{CLIENT, Lab},
    node::{Config, Node, PASSWORD, service},
    program::Program,
};

const LIMIT: Duration = Duration::from_secs(60);
/// Where the callee receives RTP.
const MEDIA_PORT: u16 = 10_000;
/// The caller's stream: 20 ms of G.711 a packet, for 3 s.
const RTP_PACKETS: usize = 150;

on_each_datapath!(sipp_sets_up_a_call_to_sipp_behind_the_gate_and_its_rtp_arrives, &["sipp"], super::over_udp);
on_packet!(sipp_calls_over_tcp_a_sipp_behind_the_gate_that_speaks_udp, &["sipp"], over_tcp);
on_packet!(sipp_calls_over_udp_a_backup_where_nothing_listens_at_the_first, &["sipp"], backup_over_udp);
on_packet!(sipp_calls_over_udp_a_backup_where_the_first_refuses_connections, &["sipp"], backup_over_tcp);

fn over_udp(datapath: &'static str) {
    drop(sipp(datapath, "u1", &pbx("pbx"), &["alice"]));
}

fn over_tcp(datapath: &'static str) {
    drop(sipp(datapath, "t1", &pbx("pbx"), &["alice"]));
}

fn backup_over_udp(datapath: &'static str) {
    backup(datapath, "sip_port = 5070\n");
}

fn backup_over_tcp(datapath: &'static str) {
    backup(datapath, "sip = [\"tcp/5070\"]\n");
}

/// A server that is away, whose backup is there. Once two users went without an answer `status` says so.
fn backup(datapath: &'static str, sip: &str) {
    let first = service("pbx", "\"udp/11000-11009\"", &format!("kind = \"sip\"\nbackups = [\"pbx-b\"]\n{sip}"));
    let (_lab, node) = sipp(datapath, "u1", &format!("{first}{}", pbx("pbx-b")), &["alice", "bob"]);
    let status = node.json(&["status"]);
    let alarms = status["frontend"]["alarms"].to_string();
    assert!(alarms.contains("pbx does not answer"), "{alarms}");
    assert_eq!(status["frontend"]["events"]["failed_over"], 2, "{status}");
}

fn pbx(name: &str) -> String {
    service(name, "\"udp/10000-10009\"", "kind = \"sip\"\nsip_port = 5060\n")
}

/// These users call one after the other.
fn sipp(datapath: &'static str, transport: &str, services: &str, users: &[&str]) -> (Lab, Node) {
    let lab = Lab::new();
    let listen = "listen = [\"udp/203.0.113.1:5060\", \"tcp/203.0.113.1:5060\"]\n";
    let config = Config::new(datapath, services).frontend("digest = [\"MD5\"]\n").frontend(listen);
    let config = config.gate("local = [\"udp/5060\", \"tcp/5060\"]\n");
    let node = Node::up(&lab, &config);
    // Three seconds of silence in G.711: 8,000 samples a second, one byte each.
    std::fs::write(lab.path("audio.raw"), vec![0xff; 3 * 8_000]).expect("an audio file");
    let audio = lab.path("audio.raw").display().to_string();
    let uas = lab.write("uas.xml", UAS);
    let uas = uas.display().to_string();

    let rtp = Capture::start(&lab, ("service", "eth0"), move |seen| {
        seen.from == CLIENT && seen.protocol == 17 && seen.ports.1 == MEDIA_PORT
    });
    let calls = users.len().to_string();
    let callee = ["-sf", &uas, "-i", "10.4.0.2", "-p", "5060", "-mp", "10000", "-m", &calls, "-nostdin", "-trace_err"];
    let mut callee = Program::start(&lab, "service", "callee", "sipp", &callee);
    for user in users {
        let uac = UAC.replace("AUDIO", &audio).replace("PASSWORD", PASSWORD).replace("alice", user);
        let uac = lab.write("uac.xml", &uac).display().to_string();
        let caller = [
            "203.0.113.1:5060",
            "-t",
            transport,
            "-sf",
            &uac,
            "-s",
            "pbx",
            "-auth_uri",
            "pbx@example.net",
            "-i",
            "198.51.100.2",
            "-p",
            "5066",
            "-mi",
            "198.51.100.2",
            "-mp",
            "6000",
            "-m",
            "1",
            "-l",
            "1",
            "-nostdin",
            "-timeout",
            "40",
            "-trace_err",
        ];
        let mut caller = Program::start(&lab, "client", "caller", "sipp", &caller);
        let content = caller.finished(LIMIT);
        assert!(content, "the caller's scenario ran to its end\n{}", errors(&lab));
    }
    assert!(callee.finished(LIMIT), "the callee's scenario ran to its end\n{}", errors(&lab));

    let packets = rtp.seen();
    // An RTP header of version 2 with payload type 0 behind 28 bytes of IP and UDP headers.
    let audio = packets.iter().filter(|seen| seen.bytes.get(28..30) == Some(&[0x80, 0])).count();
    let numbers: Vec<&[u8]> = packets.iter().filter_map(|seen| seen.bytes.get(30..32)).collect();
    assert!(
        audio >= RTP_PACKETS * 9 / 10,
        "{audio} of {RTP_PACKETS} RTP packets arrived, {} in all, sequence numbers {numbers:?}",
        packets.len(),
    );
    assert_eq!(node.grants().len(), 0, "the BYE ended the grants");
    (lab, node)
}

/// The error traces that SIPp wrote.
fn errors(lab: &Lab) -> String {
    let files = std::fs::read_dir(lab.dir.path()).expect("the lab's directory").flatten();
    let errors = files.filter(|file| file.file_name().to_string_lossy().contains("_errors"));
    errors.map(|file| std::fs::read_to_string(file.path()).unwrap_or_default()).collect()
}

const UAC: &str = r#"<?xml version="1.0" encoding="ISO-8859-1" ?>
<scenario name="a phone that knows MD5">
  <send retrans="500"><![CDATA[

INVITE sip:[service]@example.net SIP/2.0
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
Max-Forwards: 70
From: <sip:alice@example.net>;tag=[pid]SIPpTag00[call_number]
To: <sip:[service]@example.net>
Call-ID: [call_id]
CSeq: 1 INVITE
Contact: <sip:alice@[local_ip]:[local_port]>
Content-Type: application/sdp
Content-Length: [len]

v=0
o=user1 53655765 2353687637 IN IP[local_ip_type] [local_ip]
s=-
c=IN IP[media_ip_type] [media_ip]
t=0 0
m=audio [rtpstream_audio_port] RTP/AVP 0
a=rtpmap:0 PCMU/8000

  ]]></send>
  <recv response="100" optional="true"></recv>
  <recv response="407" auth="true"></recv>
  <send><![CDATA[

ACK sip:[service]@example.net SIP/2.0
[last_Via:]
Max-Forwards: 70
From: <sip:alice@example.net>;tag=[pid]SIPpTag00[call_number]
[last_To:]
Call-ID: [call_id]
CSeq: 1 ACK
Content-Length: 0

  ]]></send>
  <send retrans="500"><![CDATA[

INVITE sip:[service]@example.net SIP/2.0
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
Max-Forwards: 70
From: <sip:alice@example.net>;tag=[pid]SIPpTag00[call_number]
To: <sip:[service]@example.net>
Call-ID: [call_id]
CSeq: 2 INVITE
Contact: <sip:alice@[local_ip]:[local_port]>
[authentication username=alice password=PASSWORD]
Content-Type: application/sdp
Content-Length: [len]

v=0
o=user1 53655765 2353687637 IN IP[local_ip_type] [local_ip]
s=-
c=IN IP[media_ip_type] [media_ip]
t=0 0
m=audio [rtpstream_audio_port] RTP/AVP 0
a=rtpmap:0 PCMU/8000

  ]]></send>
  <recv response="100" optional="true"></recv>
  <recv response="180" optional="true"></recv>
  <recv response="200" rrs="true"></recv>
  <send><![CDATA[

ACK [next_url] SIP/2.0
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
Max-Forwards: 70
[routes]
From: <sip:alice@example.net>;tag=[pid]SIPpTag00[call_number]
[last_To:]
Call-ID: [call_id]
CSeq: 2 ACK
Content-Length: 0

  ]]></send>
  <nop><action><exec rtp_stream="AUDIO,1,0"/></action></nop>
  <pause milliseconds="3500"/>
  <send retrans="500"><![CDATA[

BYE [next_url] SIP/2.0
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
Max-Forwards: 70
[routes]
From: <sip:alice@example.net>;tag=[pid]SIPpTag00[call_number]
[last_To:]
Call-ID: [call_id]
CSeq: 3 BYE
Content-Length: 0

  ]]></send>
  <recv response="200"></recv>
</scenario>
"#;

const UAS: &str = r#"<?xml version="1.0" encoding="ISO-8859-1" ?>
<scenario name="a PBX">
  <recv request="INVITE" rrs="true"></recv>
  <send><![CDATA[

SIP/2.0 180 Ringing
[last_Via:]
[last_From:]
[last_To:];tag=[pid]SIPpTag01[call_number]
[last_Call-ID:]
[last_CSeq:]
[last_Record-Route:]
Contact: <sip:pbx@[local_ip]:[local_port]>
Content-Length: 0

  ]]></send>
  <send retrans="500"><![CDATA[

SIP/2.0 200 OK
[last_Via:]
[last_From:]
[last_To:];tag=[pid]SIPpTag01[call_number]
[last_Call-ID:]
[last_CSeq:]
[last_Record-Route:]
Contact: <sip:pbx@[local_ip]:[local_port]>
Content-Type: application/sdp
Content-Length: [len]

v=0
o=user1 53655765 2353687637 IN IP[local_ip_type] [local_ip]
s=-
c=IN IP[media_ip_type] [media_ip]
t=0 0
m=audio 10000 RTP/AVP 0
a=rtpmap:0 PCMU/8000

  ]]></send>
  <recv request="ACK"></recv>
  <recv request="BYE"></recv>
  <send><![CDATA[

SIP/2.0 200 OK
[last_Via:]
[last_From:]
[last_To:]
[last_Call-ID:]
[last_CSeq:]
Content-Length: 0

  ]]></send>
  <timewait milliseconds="500"/>
</scenario>
"#;
