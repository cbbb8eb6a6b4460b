//! Eight checks at once: the hashes of different packets do not wait for each other.

use sluicegate_wire::{
    Reason,
    capability::{Algorithm, Capability},
};

use super::{BATCH, Checked, Question, Secrets, aes128, message::Message, siphash};

type Answer = Result<Checked, Reason>;

/// Answers eight questions. They are interleaved if they have algorithm and IP version in common, as nearly all
/// packets of one link do; otherwise each is answered alone.
pub(super) fn check(secrets: &Secrets, questions: &[Question; BATCH], answers: &mut [Answer; BATCH]) {
    let [first, ..] = questions;
    let algorithm = first.algorithm;
    let messages = questions
        .each_ref()
        .map(|question| Message::new(question.src, question.dst, question.client, question.capability.timestamp()));
    let hashes = if questions.iter().all(|question| question.algorithm == algorithm) {
        hashes(secrets, algorithm, questions, &messages)
    } else {
        None
    };
    let Some(hashes) = hashes else {
        for (question, answer) in questions.iter().zip(answers) {
            *answer = single(secrets, question);
        }
        return;
    };
    let mut pre = questions.each_ref().map(|question| question.capability);
    for (pre, hash) in pre.iter_mut().zip(hashes) {
        *pre = Capability::new(pre.timestamp(), hash);
    }
    let limits = questions.each_ref().map(|question| question.limits);
    let expected = match algorithm {
        Algorithm::SipHash => siphash::seal_lanes(pre, limits),
        Algorithm::Aes => secrets.compression.seal_lanes(pre, limits),
    };
    for (answer, (question, expected)) in answers.iter_mut().zip(questions.iter().zip(expected)) {
        *answer = secrets.judge(expected, question.capability, question.limits);
    }
}

/// Answers one question.
#[inline]
pub(super) fn single(secrets: &Secrets, question: &Question) -> Answer {
    let Question { algorithm, src, dst, client, limits, capability } = question;
    secrets.check(*algorithm, *src, *dst, *client, *limits, capability)
}

/// The first hash of each message; `None` if the IP versions differ.
#[inline]
fn hashes(
    secrets: &Secrets,
    algorithm: Algorithm,
    questions: &[Question; BATCH],
    messages: &[Message; BATCH],
) -> Option<[u64; BATCH]> {
    let mut v4 = [0; BATCH];
    let mut v6 = [[0; BATCH]; 3];
    let mut count_v4 = 0;
    for (lane, message) in messages.iter().enumerate() {
        match *message {
            Message::V4(block) => {
                v4[lane] = block;
                count_v4 += 1;
            }
            Message::V6(blocks) => {
                for (lanes, block) in v6.iter_mut().zip(blocks) {
                    lanes[lane] = block;
                }
            }
        }
    }
    let odd = questions.each_ref().map(|question| question.capability.timestamp() >> 7 != 0);
    match (algorithm, count_v4) {
        (Algorithm::Aes, BATCH) => Some(encrypt(secrets, odd, v4).map(aes128::first_half)),
        (Algorithm::Aes, 0) => {
            let [first, second, third] = v6;
            let chained = encrypt(secrets, odd, xor(encrypt(secrets, odd, first), second));
            Some(encrypt(secrets, odd, xor(chained, third)).map(aes128::first_half))
        }
        (Algorithm::SipHash, BATCH) => {
            let words = transpose(v4.map(Message::words_v4));
            Some(sip24(secrets, odd, &words))
        }
        (Algorithm::SipHash, 0) => {
            let [first, second, third] = v6;
            let blocks: [[u128; 3]; BATCH] = core::array::from_fn(|lane| [first[lane], second[lane], third[lane]]);
            Some(sip24(secrets, odd, &transpose(blocks.map(Message::words_v6))))
        }
        _ => None,
    }
}

fn transpose<const W: usize>(lanes: [[u64; W]; BATCH]) -> [[u64; BATCH]; W] {
    core::array::from_fn(|word| lanes.map(|words| words[word]))
}

#[inline]
fn sip24<const W: usize>(secrets: &Secrets, odd: [bool; BATCH], words: &[[u64; BATCH]; W]) -> [u64; BATCH] {
    let [even_secret, odd_secret] = &secrets.periods;
    let keys = odd.map(|odd| if odd { &odd_secret.siphash } else { &even_secret.siphash });
    siphash::sip24(keys.map(|key| key.k0), keys.map(|key| key.k1), words)
}

/// Encrypts each lane with the secret that its time names. With both in one batch all lanes are encrypted twice, which
/// is cheaper than sorting them.
#[inline]
fn encrypt(secrets: &Secrets, odd: [bool; BATCH], blocks: [u128; BATCH]) -> [u128; BATCH] {
    let [even_secret, odd_secret] = &secrets.periods;
    if odd == [false; BATCH] {
        return even_secret.aes.encrypt_lanes(blocks);
    }
    let mut encrypted = odd_secret.aes.encrypt_lanes(blocks);
    if odd != [true; BATCH] {
        let even_lanes = even_secret.aes.encrypt_lanes(blocks);
        for (lane, (even, odd)) in encrypted.iter_mut().zip(even_lanes.iter().zip(odd)) {
            *lane = if odd { *lane } else { *even };
        }
    }
    encrypted
}

#[inline]
fn xor(mut a: [u128; BATCH], b: [u128; BATCH]) -> [u128; BATCH] {
    for (a, b) in a.iter_mut().zip(b) {
        *a ^= b;
    }
    a
}
