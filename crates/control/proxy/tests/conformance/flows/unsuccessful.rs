//! RFC 3665 sections 3.8 to 3.11: sessions that do not come about.

use super::*;
use crate::passing::{check_own_ack, check_own_cancel};

/// A refusal of Bob's: acknowledged at once, passed on, and again until Alice acknowledges it.
fn refused(site: &mut Site, (f1, f4): (&str, &str), code: u16, more: &[(&str, &str)]) {
    let refusal = answer(f4, code, more, "");
    let [ack, passed] = exactly(site.send(PBX, &refusal), [PBX, PHONE]);
    check_own_ack(f4, &refusal, &ack);
    check_response(&refusal, &passed, Edits::default());
    let [again] = exactly(site.send(PBX, &refusal), [PBX]);
    assert_eq!(again, ack, "for him whom the ACK has not reached");
    let [again] = exactly(site.send(PHONE, f1), [PHONE]);
    assert_eq!(again, passed, "for her whom the refusal has not reached");
    let [again] = exactly(site.pass(Duration::from_millis(500)), [PHONE]);
    assert_eq!(again, passed, "timer G");
    exactly(site.send(PHONE, ack_to_refusal(f1, &passed)), []);
    assert_eq!((site.asked().len(), site.revokes()), (0, 0), "nothing was opened");
    is_over(site);
}

#[test]
fn s3_8_no_answer() {
    let mut site = Site::new();
    let mut alice = alice();
    let (f1, f4) = invited(&mut site, &mut alice);
    rings(&mut site, &f4);
    let f9 = cancel(&f1);
    let [f10, f11] = exactly(site.send(PHONE, &f9), [PHONE, PBX]);
    check_answer(&f9, PHONE, &f10, 200, &[]);
    check_own_cancel(&f4, &f11);
    // His 200 to the CANCEL is for whoever sent it.
    exactly(site.send(PBX, answer(&f11, 200, &[], "")), []);
    refused(&mut site, (&f1, &f4), 487, &[]);
}

#[test]
fn s3_9_busy() {
    let mut site = Site::new();
    let mut alice = alice();
    let (f1, f4) = invited(&mut site, &mut alice);
    exactly(site.send(PBX, answer(&f4, 100, &[], "")), []);
    refused(&mut site, (&f1, &f4), 486, &[("Retry-After", "60")]);
}

/// Proxy 2 of the RFC answers 480; RFC 3261 section 16.8 has a proxy answer 408, as ours does.
#[test]
fn s3_10_no_response_from_the_user_agent() {
    let mut site = Site::new();
    let mut alice = alice();
    let (f1, f4) = invited(&mut site, &mut alice);
    // F6 to F11: timer A, which doubles.
    let mut after = Vec::new();
    for ms in [500, 1_000, 2_000, 4_000, 8_000, 16_000] {
        exactly(site.pass(Duration::from_millis(ms - 1)), []);
        let [again] = exactly(site.pass(Duration::from_millis(1)), [PBX]);
        after.push(again);
    }
    assert!(after.iter().all(|again| *again == f4));
    let [f14] = exactly(site.pass(Duration::from_millis(500)), [PHONE]);
    check_answer(&f1, PHONE, &f14, 408, &[]);
    exactly(site.send(PHONE, ack_to_refusal(&f1, &f14)), []);
    is_over(&mut site);
}

#[test]
fn s3_11_temporarily_unavailable() {
    let mut site = Site::new();
    let mut alice = alice();
    let (f1, f4) = invited(&mut site, &mut alice);
    rings(&mut site, &f4);
    refused(&mut site, (&f1, &f4), 480, &[("Retry-After", "300"), ("Warning", "399 pbx \"away\"")]);
}
