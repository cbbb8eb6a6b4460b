//! RFC 5382, RFC 7857, RFC 5961: which segments may pass, and for how long a connection is remembered.

use std::net::IpAddr;
use std::time::Duration;

use crate::site::{packets::*, *};
use sluicegate_wire::{
    Port, Reason,
    tcp::{Control, Repr, WindowScale},
};

const C: End = (CLIENT, 40_000);
const S: End = (TARGET, 22);
const CLIENT_ISN: u32 = 1_000;
const SERVER_ISN: u32 = u32::MAX - 5;

/// A connection through the gate with everything at the start of its sequence space.
struct Connection {
    site: Site,
    gate: End,
}

fn segment(control: Control, seq: u32, ack: Option<u32>) -> Repr<'static> {
    Repr { ack, ..Repr::new(0, 0, control, seq) }
}

impl Connection {
    fn new() -> Self {
        // Long segments keep the tests short.
        let mut site = Site::with(sluicegate_nat::Config { mtu: [65_535; 2], ..config() });
        let (_, gate) = site.open(TCP, 22);
        Self { site, gate }
    }

    fn established() -> Self {
        let mut it = Self::new();
        it.client(segment(Control::Syn, CLIENT_ISN, None)).unwrap();
        it.server(segment(Control::Syn, SERVER_ISN, Some(CLIENT_ISN + 1))).unwrap();
        it.client(segment(Control::None, CLIENT_ISN + 1, Some(SERVER_ISN.wrapping_add(1)))).unwrap();
        it
    }

    #[track_caller]
    fn client(&mut self, repr: Repr<'_>) -> Result<(), Reason> {
        let out = self.site.outside_sends(&tcp(C, self.gate, repr));
        if let sluicegate_wire::Verdict::Drop(reason) = out.verdict {
            return Err(reason);
        }
        assert_eq!(ends(&out.inside()), (C, S));
        Ok(())
    }

    #[track_caller]
    fn server(&mut self, repr: Repr<'_>) -> Result<(), Reason> {
        let out = self.site.inside_sends(&tcp(S, C, repr));
        if let sluicegate_wire::Verdict::Drop(reason) = out.verdict {
            return Err(reason);
        }
        assert_eq!(ends(&out.outside()), (self.gate, C));
        Ok(())
    }

    fn lives_after(&mut self, secs: u64) -> bool {
        self.site.wait(Duration::from_secs(secs));
        self.site.used("flows") == 1
    }
}

#[test]
fn a_connection_opens_carries_data_and_closes() {
    let mut it = Connection::established();
    let data = payload(1_000);
    let server_next = SERVER_ISN.wrapping_add(1);
    it.client(Repr { payload: &data, ..segment(Control::None, CLIENT_ISN + 1, Some(server_next)) }).unwrap();
    it.server(segment(Control::None, server_next, Some(CLIENT_ISN + 1_001))).unwrap();
    it.client(segment(Control::Fin, CLIENT_ISN + 1_001, Some(server_next))).unwrap();
    it.server(segment(Control::Fin, server_next, Some(CLIENT_ISN + 1_002))).unwrap();
    it.client(segment(Control::None, CLIENT_ISN + 1_002, Some(server_next.wrapping_add(1)))).unwrap();
    assert!(it.lives_after(230) && !it.lives_after(15), "four minutes after it closed");
}

#[test]
fn data_without_a_handshake_never_passes() {
    let mut it = Connection::new();
    for repr in [
        segment(Control::None, 5, Some(6)),
        segment(Control::Fin, 5, Some(6)),
        segment(Control::Rst, 5, None),
        segment(Control::Syn, 5, Some(6)),
    ] {
        assert_eq!(it.client(repr), Err(Reason::TcpState));
        assert_eq!(it.server(repr), Err(Reason::TcpState));
    }
    assert_eq!(it.site.used("flows"), 0);
}

#[test]
fn data_before_the_services_answer_does_not_pass() {
    let mut it = Connection::new();
    it.client(segment(Control::Syn, CLIENT_ISN, None)).unwrap();
    assert_eq!(it.client(segment(Control::None, CLIENT_ISN + 1, Some(1))), Err(Reason::TcpState));
    it.client(segment(Control::Syn, CLIENT_ISN, None)).unwrap();
    let wrong = segment(Control::Syn, SERVER_ISN, Some(CLIENT_ISN + 2));
    assert_eq!(it.server(wrong), Err(Reason::TcpWindow), "an answer to another SYN");
}

#[test]
fn contradicting_flags_are_no_tcp() {
    let mut it = Connection::established();
    for flags in [0x00, 0x03, 0x06, 0x05, 0x29, 0x3f, 0x01] {
        let mut packet = tcp(C, it.gate, segment(Control::None, CLIENT_ISN + 1, Some(SERVER_ISN)));
        packet[33] = flags;
        assert_eq!(it.site.outside_sends(&packet).dropped(), Reason::TransportHeaderInvalid, "{flags:#x}");
    }
}

#[test]
fn an_unanswered_connection_lives_four_minutes_and_an_established_one_two_hours() {
    let mut it = Connection::new();
    it.client(segment(Control::Syn, CLIENT_ISN, None)).unwrap();
    assert!(it.lives_after(239) && !it.lives_after(2));

    // A grant of a day, so that the flow ends first.
    let mut site = Site::new();
    let mut grant = site.grant(TCP, CLIENT);
    grant.not_after = grant.not_before.plus_secs(86_400);
    let opened = site.install(grant, TARGET, (22, 22));
    let mut it = Connection { site, gate: (opened.address, opened.ports.0) };
    it.client(segment(Control::Syn, CLIENT_ISN, None)).unwrap();
    it.server(segment(Control::Syn, SERVER_ISN, Some(CLIENT_ISN + 1))).unwrap();
    it.client(segment(Control::None, CLIENT_ISN + 1, Some(SERVER_ISN.wrapping_add(1)))).unwrap();
    assert!(it.lives_after(7_430) && !it.lives_after(15));
}

#[test]
fn a_reset_in_the_window_starts_the_short_timer_and_does_not_end_the_flow_at_once() {
    let mut it = Connection::established();
    it.client(segment(Control::Rst, CLIENT_ISN + 1, None)).unwrap();
    assert!(it.lives_after(230), "the reset may get lost behind the gate");
    it.client(segment(Control::Rst, CLIENT_ISN + 1, None)).unwrap();
    assert!(!it.lives_after(245));
}

#[test]
fn a_reset_that_is_not_the_next_number_passes_and_ends_nothing() {
    let mut it = Connection::established();
    for seq in [CLIENT_ISN, CLIENT_ISN + 2, CLIENT_ISN + 60_000] {
        it.client(segment(Control::Rst, seq, None)).unwrap();
    }
    it.server(segment(Control::Rst, SERVER_ISN.wrapping_add(500), Some(CLIENT_ISN + 1))).unwrap();
    assert!(it.lives_after(1_000));
}

#[test]
fn data_after_a_reset_shows_that_nobody_believed_it() {
    let mut it = Connection::established();
    it.client(segment(Control::Rst, CLIENT_ISN + 1, None)).unwrap();
    let next = SERVER_ISN.wrapping_add(1);
    it.server(Repr { payload: b"still here", ..segment(Control::None, next, Some(CLIENT_ISN + 1)) }).unwrap();
    assert!(it.lives_after(1_000));
}

#[test]
fn a_blind_reset_does_not_pass() {
    let mut it = Connection::established();
    for offset in [70_000u32, 1 << 20, 1 << 31, u32::MAX - 70_000] {
        let seq = (CLIENT_ISN + 1).wrapping_add(offset);
        assert_eq!(it.client(segment(Control::Rst, seq, None)), Err(Reason::TcpWindow), "{offset}");
    }
    assert!(it.lives_after(1_000));
}

#[test]
fn a_syn_in_the_middle_of_a_connection_reaches_the_service_and_changes_nothing() {
    for seq in [CLIENT_ISN + 500, 77_777_777] {
        let mut it = Connection::established();
        it.client(segment(Control::Syn, seq, None)).unwrap();
        // The challenge (RFC 5961 4), and life goes on.
        let server_next = SERVER_ISN.wrapping_add(1);
        it.server(segment(Control::None, server_next, Some(CLIENT_ISN + 1))).unwrap();
        let data = Repr { payload: b"data", ..segment(Control::None, CLIENT_ISN + 1, Some(server_next)) };
        it.client(data).unwrap();
        it.server(segment(Control::None, server_next, Some(CLIENT_ISN + 5))).unwrap();
        assert!(it.lives_after(1_000));
    }
    let mut it = Connection::established();
    it.client(segment(Control::Syn, CLIENT_ISN, None)).unwrap();
    it.server(segment(Control::Syn, SERVER_ISN, Some(CLIENT_ISN + 1))).unwrap();
}

/// RFC 9293 3.5.1: the SYN of one that came back is challenged, and the answer to the challenge ends the old connection.
#[test]
fn a_second_syn_before_the_answer_does_not_take_the_firsts_place() {
    let waiting = || {
        let mut it = Connection::new();
        it.client(segment(Control::Syn, 100, None)).unwrap();
        // From somebody who read the ports: a service would give up what it has not seen opened.
        assert_eq!(it.client(segment(Control::Syn, 70_000, None)), Err(Reason::TcpState));
        it
    };
    let mut it = waiting();
    it.server(segment(Control::Syn, 500, Some(101))).unwrap();
    assert_eq!(it.client(segment(Control::Syn, 70_000, None)), Err(Reason::TcpState));
    it.client(segment(Control::None, 101, Some(501))).unwrap();
    // A second later it may be the client's own, which gave up the first: the service decides.
    for (answer, next) in [(101, 101), (70_001, 70_001)] {
        let mut it = waiting();
        it.site.wait(Duration::from_millis(1_100));
        it.client(segment(Control::Syn, 70_000, None)).unwrap();
        it.server(segment(Control::Syn, 500, Some(answer))).unwrap();
        it.client(segment(Control::None, next, Some(501))).unwrap();
    }
}

#[test]
fn a_client_that_crashed_connects_again_from_the_same_port() {
    for answered_only in [false, true] {
        let mut it = if answered_only { Connection::new() } else { Connection::established() };
        let server_next = SERVER_ISN.wrapping_add(1);
        if answered_only {
            it.client(segment(Control::Syn, CLIENT_ISN, None)).unwrap();
            it.server(segment(Control::Syn, SERVER_ISN, Some(CLIENT_ISN + 1))).unwrap();
        } else {
            it.client(Repr { payload: b"data", ..segment(Control::None, CLIENT_ISN + 1, Some(server_next)) }).unwrap();
        }
        let sent = if answered_only { 1 } else { 5 };
        let again = 3_000_000_000;
        // Nobody crashes and comes back within a second.
        it.site.wait(Duration::from_millis(1_100));
        it.client(segment(Control::Syn, again, None)).unwrap();
        it.server(segment(Control::None, server_next, Some(CLIENT_ISN + sent))).unwrap();
        it.client(segment(Control::Rst, CLIENT_ISN + sent, None)).unwrap();
        it.client(segment(Control::Syn, again, None)).unwrap();
        it.server(segment(Control::Syn, 9, Some(again + 1))).unwrap();
        it.client(segment(Control::None, again + 1, Some(10))).unwrap();
        it.client(Repr { payload: b"x", ..segment(Control::None, again + 1, Some(10)) }).unwrap();
        it.server(segment(Control::None, 10, Some(again + 2))).unwrap();
        assert!(it.lives_after(1_000));
    }
}

/// RFC 9293 3.5.1 (half-open connections) and RFC 5961 4, where the gate knows nothing of the old connection: its grant had
/// ended, or the gate was another.
#[test]
fn a_service_that_holds_a_connection_which_the_gate_forgot_is_heard_about_it() {
    let mut it = Connection::new();
    let (again, old_next, old_sent) = (3_000_000_000, 88_000, 12_345);
    it.client(segment(Control::Syn, again, None)).unwrap();
    // Nothing of the service's was said in this connection: a reset in its name ends nothing.
    assert_eq!(it.client(segment(Control::Rst, old_sent, None)), Err(Reason::TcpState));
    let challenge = segment(Control::None, old_next, Some(old_sent));
    it.server(challenge).unwrap();
    assert_eq!(it.server(Repr { payload: b"old", ..challenge }), Err(Reason::TcpState), "data waits for a handshake");
    assert_eq!(it.client(segment(Control::Rst, old_sent + 1, None)), Err(Reason::TcpState));
    it.client(segment(Control::Rst, old_sent, None)).unwrap();
    it.client(segment(Control::Syn, again, None)).unwrap();
    it.server(segment(Control::Syn, 9, Some(again + 1))).unwrap();
    it.client(segment(Control::None, again + 1, Some(10))).unwrap();
    assert_eq!(it.server(challenge), Err(Reason::TcpWindow));
    assert!(it.lives_after(1_000));
}

#[test]
fn a_service_that_restarted_or_forgot_answers_a_new_connection_at_once() {
    let mut it = Connection::established();
    let again = 3_000_000_000;
    it.client(segment(Control::Syn, again, None)).unwrap();
    it.server(segment(Control::Syn, 9, Some(again + 1))).unwrap();
    it.client(segment(Control::None, again + 1, Some(10))).unwrap();
    // A service that comes back as a client of the same ports: the other way round.
    let inside = 2_000_000_000;
    it.server(segment(Control::Syn, inside, None)).unwrap();
    it.client(segment(Control::Syn, 70, Some(inside + 1))).unwrap();
    it.server(segment(Control::None, inside + 1, Some(71))).unwrap();
    let mut it = Connection::established();
    it.client(segment(Control::Syn, again, None)).unwrap();
    it.server(segment(Control::Rst, 0, Some(again + 1))).unwrap();
    assert!(!it.lives_after(245), "neither end has a connection any more");
}

/// The attack: resets through the whole number space, each followed by a SYN, from the client's address and port.
#[test]
fn blind_pairs_of_reset_and_syn_leave_an_open_connection_alone() {
    let mut it = Connection::new();
    let scale = Some(WindowScale::new(7));
    let wide = |control, seq, ack| Repr { window: 65_535, window_scale: scale, ..segment(control, seq, ack) };
    it.client(wide(Control::Syn, CLIENT_ISN, None)).unwrap();
    it.server(wide(Control::Syn, SERVER_ISN, Some(CLIENT_ISN + 1))).unwrap();
    let server_next = SERVER_ISN.wrapping_add(1);
    let ack = |seq, ack| Repr { window: 65_535, ..segment(Control::None, seq, Some(ack)) };
    it.client(ack(CLIENT_ISN + 1, server_next)).unwrap();
    it.server(ack(server_next, CLIENT_ISN + 1)).unwrap();
    let mut passed = 0;
    for pair in 0..2_048u32 {
        let seq = pair << 21;
        passed += u32::from(it.client(segment(Control::Rst, seq, None)).is_ok());
        if it.client(segment(Control::Syn, seq.wrapping_add(7), None)).is_ok() {
            it.server(ack(server_next, CLIENT_ISN + 1)).unwrap();
        }
    }
    assert!(passed > 0, "some lay in the window: the service challenges those itself");
    it.client(Repr { payload: b"data", ..ack(CLIENT_ISN + 1, server_next) }).unwrap();
    it.server(Repr { payload: b"answer", ..ack(server_next, CLIENT_ISN + 5) }).unwrap();
    it.client(ack(CLIENT_ISN + 5, server_next.wrapping_add(6))).unwrap();
    assert!(it.lives_after(1_000));
}

#[test]
fn a_syn_after_a_reset_counts_only_when_the_other_side_answers_it() {
    let mut it = Connection::established();
    let server_next = SERVER_ISN.wrapping_add(1);
    // Exactly the next number, by luck or by sight; the service does not believe it all the same.
    it.client(segment(Control::Rst, CLIENT_ISN + 1, None)).unwrap();
    it.client(segment(Control::Syn, 55, None)).unwrap();
    it.server(segment(Control::None, server_next, Some(CLIENT_ISN + 1))).unwrap();
    it.server(Repr { payload: b"still here", ..segment(Control::None, server_next, Some(CLIENT_ISN + 1)) }).unwrap();
    it.client(segment(Control::None, CLIENT_ISN + 1, Some(server_next.wrapping_add(10)))).unwrap();
    assert!(it.lives_after(1_000));
}

#[test]
fn syns_into_an_open_connection_pass_once_a_second_each_way() {
    let mut it = Connection::established();
    let mut passed = [0, 0];
    for count in 0..3_000u32 {
        passed[0] += u32::from(it.client(segment(Control::Syn, 1 << 20 | count << 8, None)).is_ok());
        passed[1] += u32::from(it.server(segment(Control::Syn, 1 << 22 | count << 8, None)).is_ok());
        it.site.wait(Duration::from_millis(1));
    }
    assert!(passed.iter().all(|passed| (3..=4).contains(passed)), "{passed:?}");
}

#[test]
fn a_segment_with_a_wrong_checksum_changes_no_state() {
    let server_next = SERVER_ISN.wrapping_add(1);
    let mut it = Connection::new();
    let damaged = |packet: &[u8]| {
        let mut packet = packet.to_vec();
        let last = packet.len() - 4;
        packet[last] ^= 0x55;
        packet
    };
    let syn = tcp(C, it.gate, segment(Control::Syn, CLIENT_ISN, None));
    assert_eq!(it.site.outside_sends(&damaged(&syn)).dropped(), Reason::TransportHeaderInvalid);
    assert_eq!(it.site.used("flows"), 0);
    let mut it = Connection::established();
    for control in [Control::Fin, Control::Rst] {
        let end = tcp(C, it.gate, segment(control, CLIENT_ISN + 1, Some(server_next)));
        assert_eq!(it.site.outside_sends(&damaged(&end)).dropped(), Reason::TransportHeaderInvalid);
        let end = tcp(S, C, segment(control, server_next, Some(CLIENT_ISN + 1)));
        assert_eq!(it.site.inside_sends(&damaged(&end)).dropped(), Reason::TransportHeaderInvalid);
    }
    assert!(it.lives_after(1_000));
    let udp_gate = it.site.open(UDP, 5_004).1;
    let datagram = damaged(&udp((CLIENT, 9_000), udp_gate, b"a datagram"));
    assert_eq!(it.site.outside_sends(&datagram).dropped(), Reason::TransportHeaderInvalid);
    assert_eq!(it.site.used("flows"), 1);
}

#[test]
fn the_same_ports_may_connect_again_after_close_or_reset() {
    for last in [Control::Rst, Control::Fin] {
        let mut it = Connection::established();
        it.client(segment(last, CLIENT_ISN + 1, Some(SERVER_ISN.wrapping_add(1)))).unwrap();
        if last == Control::Fin {
            it.server(segment(last, SERVER_ISN.wrapping_add(1), Some(CLIENT_ISN + 2))).unwrap();
        }
        it.client(segment(Control::Syn, 2_000_000_000, None)).unwrap();
        it.server(segment(Control::Syn, 9, Some(2_000_000_001))).unwrap();
        it.client(segment(Control::None, 2_000_000_001, Some(10))).unwrap();
        let old = segment(Control::None, CLIENT_ISN + 1, Some(SERVER_ISN.wrapping_add(1)));
        assert_eq!(it.client(old), Err(Reason::TcpWindow), "the old connection is gone");
    }
}

#[test]
fn simultaneous_open_works_in_both_orders() {
    for inside_first in [false, true] {
        let mut it = Connection::new();
        if inside_first {
            it.server(segment(Control::Syn, SERVER_ISN, None)).unwrap();
            it.client(segment(Control::Syn, CLIENT_ISN, None)).unwrap();
        } else {
            it.client(segment(Control::Syn, CLIENT_ISN, None)).unwrap();
            it.server(segment(Control::Syn, SERVER_ISN, None)).unwrap();
        }
        it.client(segment(Control::Syn, CLIENT_ISN, Some(SERVER_ISN.wrapping_add(1)))).unwrap();
        it.server(segment(Control::Syn, SERVER_ISN, Some(CLIENT_ISN + 1))).unwrap();
        it.client(segment(Control::None, CLIENT_ISN + 1, Some(SERVER_ISN.wrapping_add(1)))).unwrap();
        assert!(it.lives_after(1_000), "it counts as established");
    }
}

#[test]
fn a_refused_connection_passes_the_services_reset() {
    let mut it = Connection::new();
    it.client(segment(Control::Syn, CLIENT_ISN, None)).unwrap();
    assert_eq!(it.server(segment(Control::Rst, 0, Some(CLIENT_ISN + 2))), Err(Reason::TcpWindow));
    it.server(segment(Control::Rst, 0, Some(CLIENT_ISN + 1))).unwrap();
    it.client(segment(Control::Syn, 55, None)).unwrap();
}

#[test]
fn scaled_windows_are_counted_in_full() {
    let mut it = Connection::new();
    let scale = |shift| Some(WindowScale::new(shift));
    it.client(Repr { window_scale: scale(7), ..segment(Control::Syn, CLIENT_ISN, None) }).unwrap();
    it.server(Repr {
        window_scale: scale(10),
        window: 60_000,
        ..segment(Control::Syn, SERVER_ISN, Some(CLIENT_ISN + 1))
    })
    .unwrap();
    let server_next = SERVER_ISN.wrapping_add(1);
    it.client(segment(Control::None, CLIENT_ISN + 1, Some(server_next))).unwrap();
    let far = |seq| Repr { payload: b"x", ..segment(Control::None, seq, Some(server_next)) };
    // The SYN's own window is not scaled.
    assert_eq!(it.client(far(CLIENT_ISN + 1 + 60_000)), Err(Reason::TcpWindow));
    it.client(far(CLIENT_ISN + 60_000)).unwrap();
    it.server(Repr { window: 1_000, ..segment(Control::None, server_next, Some(CLIENT_ISN + 1)) }).unwrap();
    let limit = CLIENT_ISN + 1 + (1_000 << 10);
    assert_eq!(it.client(far(limit)), Err(Reason::TcpWindow));
    it.client(far(limit - 1)).unwrap();
}

#[test]
fn a_scale_that_only_one_side_offers_does_not_count() {
    let mut it = Connection::new();
    it.client(segment(Control::Syn, CLIENT_ISN, None)).unwrap();
    let answer = segment(Control::Syn, SERVER_ISN, Some(CLIENT_ISN + 1));
    it.server(Repr { window_scale: Some(WindowScale::new(14)), ..answer }).unwrap();
    let server_next = SERVER_ISN.wrapping_add(1);
    it.client(segment(Control::None, CLIENT_ISN + 1, Some(server_next))).unwrap();
    it.server(Repr { window: 100, ..segment(Control::None, server_next, Some(CLIENT_ISN + 1)) }).unwrap();
    let beyond = segment(Control::None, CLIENT_ISN + 1 + 65_536, Some(server_next));
    assert_eq!(it.client(beyond), Err(Reason::TcpWindow));
}

#[test]
fn a_keep_alive_and_a_probe_of_a_closed_window_pass() {
    let mut it = Connection::established();
    let server_next = SERVER_ISN.wrapping_add(1);
    it.client(segment(Control::None, CLIENT_ISN, Some(server_next))).unwrap();
    let data = payload(60_000);
    for at in [0, 30_000] {
        let part = &data[..30_000];
        it.client(Repr { payload: part, ..segment(Control::None, CLIENT_ISN + 1 + at, Some(server_next)) }).unwrap();
    }
    it.client(Repr { payload: &data[..5_535], ..segment(Control::None, CLIENT_ISN + 60_001, Some(server_next)) })
        .unwrap();
    let full = CLIENT_ISN + 1 + 65_535;
    it.server(Repr { window: 0, ..segment(Control::None, server_next, Some(full)) }).unwrap();
    it.client(Repr { payload: b"p", ..segment(Control::None, full, Some(server_next)) }).unwrap();
    let two = Repr { payload: b"pp", ..segment(Control::None, full, Some(server_next)) };
    assert_eq!(it.client(two), Err(Reason::TcpWindow));
}

#[test]
fn acknowledgements_of_what_was_never_sent_do_not_pass() {
    let mut it = Connection::established();
    let server_next = SERVER_ISN.wrapping_add(1);
    for ack in [server_next.wrapping_add(1), server_next.wrapping_add(1 << 31), server_next.wrapping_sub(70_000)] {
        assert_eq!(it.client(segment(Control::None, CLIENT_ISN + 1, Some(ack))), Err(Reason::TcpWindow));
    }
}

#[test]
fn a_segment_cut_into_fragments_can_be_acknowledged() {
    let mut it = Connection::established();
    let server_next = SERVER_ISN.wrapping_add(1);
    let data = payload(3_000);
    let whole = tcp(C, it.gate, Repr { payload: &data, ..segment(Control::None, CLIENT_ISN + 1, Some(server_next)) });
    let parts = fragments(&whole, 7, 1_000);
    let arrived: Vec<_> = parts.iter().map(|part| it.site.outside_sends(part).inside()).collect();
    check_checksums(&reassemble(&arrived));
    it.server(segment(Control::None, server_next, Some(CLIENT_ISN + 3_001))).unwrap();
    it.client(segment(Control::None, CLIENT_ISN + 3_001, Some(server_next))).unwrap();
}

/// A small generator, so that this test needs no crate and repeats itself exactly.
struct Lcg(u64);

impl Lcg {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }
}

#[test]
fn out_of_window_segments_never_pass() {
    let mut it = Connection::established();
    let mut random = Lcg(42);
    let server_next = SERVER_ISN.wrapping_add(1);
    let template = tcp(C, it.gate, segment(Control::None, 0, Some(server_next)));
    let mut frame = sluicegate_wire::FrameBuf::from_bytes(&template);
    let mut passed = 0;
    for count in 0..1_000_000u32 {
        // Both sides offered 65,535 bytes: acceptable is what lies so near to the next byte.
        let near = 65_537;
        let offset = near + random.next() % (u32::MAX - 2 * near);
        let seq = (CLIENT_ISN + 1).wrapping_add(offset);
        let flags = [0x10, 0x18, 0x11, 0x04, 0x14][count as usize % 5];
        let mut packet = template.clone();
        packet[24..28].copy_from_slice(&seq.to_be_bytes());
        packet[33] = flags;
        frame.with(|frame| {
            frame.replace(&packet).unwrap();
            if !matches!(it.site.gate.on_packet(it.site.now, Port::OUTSIDE, frame), sluicegate_wire::Verdict::Drop(_)) {
                passed += 1;
            }
        });
    }
    assert_eq!(passed, 0);
    assert_eq!(it.site.drops(Reason::TcpWindow), 1_000_000);
    it.client(segment(Control::None, CLIENT_ISN + 1, Some(server_next))).unwrap();
    let translator = &it.site.gate.translator;
    let id = translator.pinholes().table.iter().find_map(|(_, pinhole)| Some(pinhole.grant()?.id)).unwrap();
    assert_eq!(translator.usage(id).unwrap().bytes_used, 3 * 40, "forged segments cost the grant nothing");
}

#[test]
fn right_sequence_numbers_with_wrong_acknowledgements_never_pass() {
    let mut it = Connection::established();
    let mut random = Lcg(43);
    let server_next = SERVER_ISN.wrapping_add(1);
    for _ in 0..100_000 {
        let offset = 1 + random.next() % (u32::MAX - 66_003);
        let ack = server_next.wrapping_add(offset);
        let result = it.client(segment(Control::None, CLIENT_ISN + 1, Some(ack)));
        assert_eq!(result, Err(Reason::TcpWindow), "{offset}");
    }
}

#[test]
fn hairpin_connections_are_tracked_on_both_ways() {
    let mut site = Site::new();
    let grant = site.grant(TCP, IpAddr::V4(GATE));
    let opened = site.install(grant, TARGET, (22, 22));
    let gate = (opened.address, opened.ports.0);
    let talker = (TALKER, 777);
    let syn = site.inside_sends(&tcp(talker, gate, segment(Control::Syn, 5, None))).inside();
    let external = ends(&syn).0;
    let answer = site.inside_sends(&tcp(S, external, segment(Control::Syn, 50, Some(6)))).inside();
    assert_eq!(ends(&answer), (gate, talker));
    site.inside_sends(&tcp(talker, gate, segment(Control::None, 6, Some(51)))).inside();
    let wild = site.inside_sends(&tcp(talker, gate, segment(Control::None, 6 + (1 << 20), Some(51))));
    assert_eq!(wild.dropped(), Reason::TcpWindow);
}
