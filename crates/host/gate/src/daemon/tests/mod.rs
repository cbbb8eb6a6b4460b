mod loopback;
mod macs;
mod real;
mod site;

use crate::{Issuer, Probe, Selected, Selector, StartError, Tuple, samples};
use site::{Frontend, config, install, open, start, until};
use sluicegate_api::{Enforcement, FeedStage, FlowTrace, GrantStatus};
use sluicegate_feed::{Delta, EndCause, FEED_VERSION, FeedSip, FromGate, JoinSecret, JoinToken, ToGate, encode};
use sluicegate_grant::IssuerPublic;
use sluicegate_grant::{
    mac::{Ends, Purpose, SessionKeys},
    relay::RelayKeys,
};
use sluicegate_wire::Port;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

const CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 7), 4000);
const STRANGER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 66), 4000);
const SERVICE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 5004);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_frontend_grants_is_opened_answered_and_passes() {
    let dir = tempfile::tempdir().unwrap();
    let mut frontend = Frontend::new().await;
    let gate = start(config(dir.path()), &[frontend.address()]).await;
    let (mut feed, resume, _) = frontend.welcome().await;
    assert_eq!(resume, None);
    frontend.push(&mut feed, [install(1)]).await;
    let opened = feed.opened().await;
    assert_eq!(IpAddr::V4(*opened.ip()), samples::GATE_ADDRESS);
    assert_eq!(gate.send_in(CLIENT, opened).await, (CLIENT, SERVICE, b"ping".to_vec()));
    gate.send_in_vain(STRANGER, opened, &["no_pinhole"]).await;
    let status = gate.control.status();
    assert_eq!((status.grants, status.feeds[0].state, status.feeds[0].opened), (1, FeedStage::Connected, 1));
    assert_eq!(status.feeds[0].frontend.as_deref(), Some("frontend-1"));
    gate.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_feed_closes_nothing_and_is_resumed_where_it_ended() {
    let dir = tempfile::tempdir().unwrap();
    let mut frontend = Frontend::new().await;
    let gate = start(config(dir.path()), &[frontend.address()]).await;
    let (mut feed, ..) = frontend.welcome().await;
    frontend.push(&mut feed, [install(1)]).await;
    let opened = feed.opened().await;
    drop(feed);
    until("the gate sees the loss", || (gate.control.status().feeds[0].state != FeedStage::Connected).then_some(()))
        .await;
    gate.send_in(CLIENT, opened).await;
    let (_feed, resume, before) = frontend.welcome().await;
    assert_eq!(resume.map(|resume| resume.seq), Some(1));
    let [FromGate::Active { grants, more: false }] = &before[..] else { panic!("{before:?}") };
    assert_eq!((grants.len(), grants[0].ports.0), (1, opened.port()));
    assert!(grants[0].bytes_used > 0);
    gate.send_in(CLIENT, opened).await;
    gate.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_gate_brings_back_everything_that_it_answered() {
    let dir = tempfile::tempdir().unwrap();
    let mut frontend = Frontend::new().await;
    let gate = start(config(dir.path()), &[frontend.address()]).await;
    let (mut feed, ..) = frontend.welcome().await;
    for number in 1..=20 {
        frontend.push(&mut feed, [install(number)]).await;
    }
    let mut opened = Vec::new();
    for _ in 1..=20 {
        opened.push(feed.opened().await);
    }
    gate.kill().await;
    // Nobody serves its feed now.
    let gate = start(config(dir.path()), &[frontend.address()]).await;
    for opened in &opened {
        gate.send_in(CLIENT, *opened).await;
    }
    assert_eq!(gate.control.status().grants, 20);
    gate.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_grant_is_not_brought_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut frontend = Frontend::new().await;
    let gate = start(config(dir.path()), &[frontend.address()]).await;
    let (mut feed, ..) = frontend.welcome().await;
    frontend.push(&mut feed, [install(1), install(2)]).await;
    let (first, second) = (feed.opened().await, feed.opened().await);
    let selector = Selector::all(Selected::Grant(samples::grant(1).id));
    frontend.push(&mut feed, [Delta::Revoke(selector)]).await;
    let FromGate::Ended { id, cause: EndCause::Revoked, .. } = feed.next().await else { panic!() };
    assert_eq!(id, samples::grant(1).id);
    gate.kill().await;
    let gate = start(config(dir.path()), &[]).await;
    gate.send_in(CLIENT, second).await;
    assert_eq!(gate.control.status().grants, 1);
    gate.send_in_vain(CLIENT, first, &["no_pinhole", "grant_revoked"]).await;
    gate.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_operator_ends_a_users_grants_and_the_frontend_hears_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut frontend = Frontend::new().await;
    let gate = start(config(dir.path()), &[frontend.address()]).await;
    let (mut feed, ..) = frontend.welcome().await;
    frontend.push(&mut feed, [install(1)]).await;
    let opened = feed.opened().await;
    gate.send_in(CLIENT, opened).await;
    let grants: Vec<GrantStatus> = gate.control.grants().await;
    assert_eq!((grants.len(), grants[0].user.as_str(), grants[0].flows), (1, "alice", Some(1)));
    assert!(grants[0].bytes_used > Some(0) && grants[0].not_after > crate::clock::unix().plus_secs(3_500).0);
    let ended = gate.control.revoke(&Selector::all(Selected::User("alice".into()))).await;
    assert_eq!(ended, Ok(1));
    assert!(matches!(feed.next().await, FromGate::Ended { cause: EndCause::Revoked, bytes_used: 32.., .. }));
    gate.send_in_vain(CLIENT, opened, &["grant_revoked"]).await;
    assert_eq!(gate.control.revoke(&Selector::all(Selected::User("alice".into()))).await, Ok(0));
    gate.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_says_why_a_strangers_packet_was_dropped_and_shows_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut frontend = Frontend::new().await;
    let gate = start(config(dir.path()), &[frontend.address()]).await;
    let (mut feed, ..) = frontend.welcome().await;
    frontend.push(&mut feed, [install(1)]).await;
    let opened = feed.opened().await;
    gate.send_in_vain(STRANGER, opened, &["no_pinhole"]).await;
    let end = |at: SocketAddrV4| (IpAddr::V4(*at.ip()), at.port());
    let tuple = |from| Tuple { protocol: 17, src: end(from), dst: end(opened) };
    let probe = |from| Probe { tuple: tuple(from), port: Port::OUTSIDE };
    let refused: FlowTrace = gate.control.trace(probe(STRANGER)).await.unwrap();
    assert_eq!((refused.verdict.as_str(), refused.reason.as_deref()), ("dropped", Some("no_pinhole")));
    assert_eq!((refused.recent.len(), &*refused.recent[0].reason), (1, "no_pinhole"));
    assert_eq!(refused.recent[0].source.as_deref(), Some("198.51.100.66:4000"));
    let admitted = gate.control.trace(probe(CLIENT)).await.unwrap();
    assert_eq!((admitted.reason, admitted.recent.len()), (None, 0));
    assert_eq!(admitted.grant.map(|grant| grant.service), Some("web".into()));
    gate.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_for_unknown_services_and_targets_that_may_not_be_opened_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut frontend = Frontend::new().await;
    let mut narrow = config(dir.path());
    narrow.may_open = vec!["10.0.0.0/24".parse().unwrap()];
    let gate = start(narrow, &[frontend.address()]).await;
    let mut elsewhere = samples::service("elsewhere");
    elsewhere.address = IpAddr::V4(Ipv4Addr::new(10, 0, 1, 2));
    frontend.state.push(Delta::Service(elsewhere));
    let (mut feed, _, before) = frontend.welcome().await;
    assert!(matches!(&before[0], FromGate::ServiceRefused { service, .. } if service == "elsewhere"), "{before:?}");
    let mut deltas = [install(1), install(2), install(3)];
    let [Delta::Install(unknown), Delta::Install(outside), _] = &mut deltas else { panic!() };
    unknown.service = "nothing".into();
    outside.target = IpAddr::V4(Ipv4Addr::new(10, 0, 1, 2));
    frontend.push(&mut feed, deltas).await;
    let mut reasons = Vec::new();
    for _ in 0..2 {
        let FromGate::Refused { reason, .. } = feed.next().await else { panic!() };
        reasons.push(reason);
    }
    assert!(reasons[0].contains("nothing") && reasons[1].contains("may_open"), "{reasons:?}");
    feed.opened().await;
    assert_eq!(gate.control.status().feeds[0].refused, 2);
    gate.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_may_not_be_opened_any_more_stays_closed_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut frontend = Frontend::new().await;
    let gate = start(config(dir.path()), &[frontend.address()]).await;
    let (mut feed, ..) = frontend.welcome().await;
    frontend.push(&mut feed, [install(1)]).await;
    let opened = feed.opened().await;
    gate.stop().await;
    let mut narrow = config(dir.path());
    narrow.may_open = vec!["10.9.0.0/16".parse().unwrap()];
    let gate = start(narrow, &[]).await;
    gate.send_in_vain(CLIENT, opened, &["grant_revoked"]).await;
    assert_eq!(gate.control.status().grants, 0);
    gate.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_is_reached_by_sip_gets_a_standing_pinhole_that_survives() {
    let dir = tempfile::tempdir().unwrap();
    let mut frontend = Frontend::new().await;
    let frontend_sip = SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 60), 5060);
    let mut pbx = samples::service("pbx");
    pbx.address = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3));
    let brought = SessionKeys::from_bytes([[3; 16], [4; 16]]);
    let peers = vec![(*STRANGER.ip()).into()];
    pbx.sip = Some(FeedSip { port: 5060, peers, rate_bps: 1_000_000, keys: Some(brought.clone()), shards: 1 });
    frontend.state.push(Delta::Service(pbx));
    let mut told = config(dir.path());
    let mut rule = Issuer::any(frontend.address().issuer);
    rule.sip_from = vec![(*frontend_sip.ip()).into()];
    told.issuers = vec![rule];
    let gate = start(told, &[frontend.address()]).await;
    let (_feed, _, before) = frontend.welcome().await;
    let FromGate::Standing { service, address: IpAddr::V4(address), port, salt } = &before[0] else {
        panic!("{before:?}")
    };
    let signalling = SocketAddrV4::new(*address, *port);
    assert_eq!(service, "pbx");
    let keys = RelayKeys::derive(&brought, *salt);
    let ends = Ends { client: (IpAddr::V4(*frontend_sip.ip()), frontend_sip.port()), gate_port: *port };
    let trailer = keys.keys().to_service.trailer(keys.sender(0), Purpose::Datagram, 1, &ends, b"ping");
    let (_, to, text) = gate.send_text_in(frontend_sip, signalling, &[&b"ping"[..], &trailer].concat()).await;
    assert_eq!((to, &text[..]), ("10.0.0.3:5060".parse().unwrap(), &b"ping"[..]));
    // The frontend's address alone is everybody's.
    gate.send_in_vain(frontend_sip, signalling, &["mac_missing"]).await;
    gate.send_in_vain(STRANGER, signalling, &["no_pinhole"]).await;
    gate.stop().await;
    // The port stays; the keys are on no disk and come with the feed.
    let gate = start(config(dir.path()), &[]).await;
    gate.send_in_vain(frontend_sip, signalling, &["mode_too_weak"]).await;
    gate.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn observe_mode_is_shown_and_switched() {
    let dir = tempfile::tempdir().unwrap();
    let gate = start(config(dir.path()), &[]).await;
    assert_eq!(gate.control.status().mode, Enforcement::Enforce);
    gate.control.observe(true).await.unwrap();
    assert_eq!(gate.control.status().mode, Enforcement::Observe);
    gate.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_gate_on_the_same_state_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let gate = start(config(dir.path()), &[]).await;
    assert!(matches!(open(config(dir.path()), &[]), Err(StartError::StateInUse(..))));
    gate.stop().await;
    assert!(open(config(dir.path()), &[]).is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_checkpoint_is_set_aside_and_the_feeds_snapshot_opens_everything_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut frontend = Frontend::new().await;
    let gate = start(config(dir.path()), &[frontend.address()]).await;
    let (mut feed, ..) = frontend.welcome().await;
    frontend.push(&mut feed, [install(1)]).await;
    feed.opened().await;
    gate.stop().await;
    drop(feed);
    std::fs::write(dir.path().join("gate.state"), b"not a checkpoint").unwrap();
    let gate = start(config(dir.path()), &[frontend.address()]).await;
    assert!(dir.path().join("gate.damaged").exists());
    frontend.state.push(install(1));
    let (_feed, resume, before) = frontend.welcome().await;
    assert_eq!(resume, None);
    assert!(before.iter().any(|message| matches!(message, FromGate::Opened { .. })), "{before:?}");
    gate.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_fails_raises_an_alarm_and_calls_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut frontend = Frontend::new().await;
    let gate = start(config(dir.path()), &[frontend.address()]).await;
    let (mut feed, ..) = frontend.welcome().await;
    std::fs::remove_dir_all(dir.path()).unwrap();
    frontend.push(&mut feed, [install(1)]).await;
    let opened = feed.opened().await;
    gate.send_in(CLIENT, opened).await;
    let alarm = until("the alarm", || {
        let status = gate.control.status();
        status.saved.error.and_then(|_| status.alarms.into_iter().find(|alarm| alarm.contains("not saved")))
    });
    assert!(alarm.await.contains(dir.path().to_str().unwrap()));
    gate.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joining_stores_the_frontends_keys_and_a_refusal_stores_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let frontend = Frontend::new().await;
    let address = frontend.address();
    let token = JoinToken {
        feed: address.address,
        certificate: address.certificate_pin,
        issuer: IssuerPublic::from_bytes(&address.issuer).unwrap(),
        secret: JoinSecret::new([9; 16]),
    };
    let text = token.to_text();
    for refused in [true, false] {
        let answer = if refused {
            ToGate::Refused { reason: "used already".into() }
        } else {
            let name = "frontend-1".into();
            ToGate::Hello { version: FEED_VERSION, issuer: address.issuer, boot_id: 1, name, resumed: false }
        };
        let frontend_side = async {
            let mut feed = frontend.accept().await;
            let FromGate::Join { secret, gate } = feed.next().await else { panic!("a join comes first") };
            assert_eq!((secret, gate.as_str()), (token.secret.clone(), "gate-1"));
            assert!(matches!(feed.next().await, FromGate::Hello { .. }));
            feed.send(&encode(&answer).unwrap()).await;
            feed
        };
        let (joined, _feed) = tokio::join!(crate::join(&text, "gate-1", dir.path()), frontend_side);
        if refused {
            assert!(joined.unwrap_err().to_string().contains("used already"));
            assert_eq!(crate::joined(dir.path()).unwrap(), []);
        } else {
            assert_eq!(joined.unwrap(), address);
            assert_eq!(crate::joined(dir.path()).unwrap(), std::slice::from_ref(&address));
        }
    }
}
