//! The torture messages of RFC 4475 and RFC 5118, as datagrams and on streams. `crates/sluicegate/tests/e2e/torture.rs` sends the
//! same to the binary.

use sluicegate_proxy::{ConnectionId, Flow, Listening};
use sluicegate_sip::{
    message::Transport,
    stream::{Framer, Item},
};

use crate::{
    answers::{self, Behind, Row},
    site::{FRONTEND, PHONE, Site},
};

#[test]
fn each_torture_message_gets_the_answer_of_its_rfc_and_leaves_nothing_behind() {
    let mut site = Site::of_realm(answers::REALM);
    for row in answers::ROWS {
        let answers: Vec<_> = site.send_raw(PHONE, row.message).into_iter().map(|(_, answer)| answer).collect();
        answers::check(row, &answers);
    }
    assert!(
        site.shards[0].gauges(site.instant).iter().all(|table| table.used == 0),
        "{:?}",
        site.shards[0].gauges(site.instant)
    );
}

/// What comes back for a message on a stream of its own, and what becomes of that.
fn on_stream(site: &mut Site, number: u32, row: &Row) -> (Vec<Vec<u8>>, Behind) {
    let flow = Flow { listener: 1, peer: PHONE.parse().unwrap(), connection: ConnectionId::new(0, number) };
    let (mut framer, mut rest) = (Framer::new(), row.message);
    let (now, shard) = (site.now(), &mut site.shards[0]);
    let is_closed = loop {
        match framer.next(rest) {
            Ok(None) => break false,
            Ok(Some((used, item))) => {
                if let Item::Message(message) = item {
                    shard.on_datagram(now, flow, message);
                }
                rest = &rest[used..];
            }
            Err(broken) => {
                shard.on_broken(now, flow, broken.bytes, broken.error);
                break true;
            }
        }
    };
    let answers = shard.transmits().iter().map(|(_, answer)| answer.to_vec()).collect();
    shard.transmits().clear();
    let behind = if is_closed { Behind::Close } else { Behind::Message };
    (answers, if framer.is_within() && !is_closed { Behind::Within } else { behind })
}

#[test]
fn each_torture_message_gets_the_answer_of_its_rfc_on_a_stream() {
    let mut site = Site::of_realm(answers::REALM);
    site.listening.push(Listening::new(Transport::Tcp, FRONTEND.parse().unwrap()));
    site.start(1);
    for (row, number) in answers::ROWS.iter().zip(1..) {
        let (answers, behind) = on_stream(&mut site, number, row);
        answers::check_on_stream(row, &answers, behind);
    }
    assert!(
        site.shards[0].gauges(site.instant).iter().all(|table| table.used == 0),
        "{:?}",
        site.shards[0].gauges(site.instant)
    );
}
