//! The torture messages of RFC 4475 and RFC 5118. `crates/sluicegate/tests/e2e/torture.rs` sends the same to the binary.

use crate::{
    answers,
    site::{PHONE, Site},
};

#[test]
fn each_torture_message_gets_the_answer_of_its_rfc_and_leaves_nothing_behind() {
    let mut site = Site::of_realm(answers::REALM);
    for row in answers::ROWS {
        let answers: Vec<_> = site.send_raw(PHONE, row.message).into_iter().map(|(_, bytes)| bytes).collect();
        answers::check(row, &answers);
    }
    assert!(site.shards[0].gauges().iter().all(|table| table.used == 0), "{:?}", site.shards[0].gauges());
}
