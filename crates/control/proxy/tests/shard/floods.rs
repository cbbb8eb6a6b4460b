//! What somebody who has a call, or had one, reaches its service with: no more than a telephone that repeats itself.

use std::time::Duration;

use sluicegate_proxy::Count;

use crate::site::{PBX, PHONE, Site, header, of_service, phone, reply, set_up, status};

const INSIDE: &str = "sip:pbx@10.0.0.2:5060";

/// Sends this so often; how much of it came to the service.
fn reached(site: &mut Site, message: &str, times: usize) -> usize {
    let is_for_service = |(to, _): &(std::net::SocketAddr, String)| to.to_string() == PBX;
    (0..times).flat_map(|_| site.send(PHONE, message)).filter(is_for_service).count()
}

#[test]
fn a_bye_that_comes_without_end_reaches_its_service_as_often_as_a_timer_repeats_it() {
    let mut site = Site::new();
    let mut alice = phone();
    set_up(&mut site, &mut alice);
    let bye = alice.request("BYE", INSIDE, "", "");
    assert_eq!(reached(&mut site, &bye, 1_000), 1 + 11);
    let answers = site.send(PHONE, &bye);
    assert_eq!(answers.iter().map(|(_, text)| status(text)).collect::<Vec<_>>(), [481], "it is over all the same");
}

#[test]
fn an_answer_that_comes_without_end_reaches_its_service_as_often_as_it_was_asked() {
    let mut site = Site::new();
    let mut alice = phone();
    set_up(&mut site, &mut alice);
    let mut answers = Vec::new();
    for cseq in 1..=2 {
        let asked = site.send(PBX, of_service(&alice, "INFO", cseq, "")).pop().unwrap().1;
        assert!(header(&asked, "CSeq").is_some_and(|value| value.ends_with("INFO")), "{asked}");
        answers.push(reply(&asked, 200, ""));
    }
    assert_eq!(reached(&mut site, &answers[0], 1_000), 24);
    assert_eq!(site.metrics[0].count(Count::ResponsesTooMany), 976);
    assert_eq!(reached(&mut site, &answers[1], 1), 1, "others pass");
    let branches = |site: &Site| {
        site.shards[0].gauges(site.instant).into_iter().find(|gauge| gauge.name == "responses_passed").unwrap().used
    };
    assert_eq!(branches(&site), 2);
    site.pass(Duration::from_secs(8));
    assert_eq!(reached(&mut site, &answers[0], 1_000), 2);
    site.pass(Duration::from_secs(600));
    assert_eq!(branches(&site), 0, "over by time alone, though nothing has come since");
}
