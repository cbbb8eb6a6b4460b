//! Eight checks at once: the blocks of different packets go through the processor's AES unit behind each other, instead
//! of each waiting for the one before.

use sluicegate_wire::{
    Reason,
    capability::{Algorithm, Capability},
};

use super::{
    BATCH, Checked, Question, Secrets,
    aes128::{self, Block},
    message::Message,
};

type Answer = Result<Checked, Reason>;

/// Answers eight questions. They are interleaved if all are for AES and of one IP version, as those of one path are.
/// Otherwise each is answered alone; SipHash gains nothing from lanes.
#[inline]
pub(super) fn check(secrets: &Secrets, questions: &[Question; BATCH], answers: &mut [Answer; BATCH]) {
    let is_aes = questions.iter().all(|question| question.algorithm == Algorithm::Aes);
    let Some(hashes) = is_aes.then(|| hashes(secrets, questions)).flatten() else {
        for (question, answer) in questions.iter().zip(answers) {
            *answer = single(secrets, question);
        }
        return;
    };
    let mut pre = questions.each_ref().map(|question| question.capability);
    for (pre, hash) in pre.iter_mut().zip(&hashes) {
        *pre = Capability::new(pre.timestamp(), aes128::first_half(aes128::from_block(hash)));
    }
    let expected = secrets.compression.seal_lanes(&pre, &questions.each_ref().map(|question| question.limits));
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
fn hashes(secrets: &Secrets, questions: &[Question; BATCH]) -> Option<[Block; BATCH]> {
    let odd = questions.each_ref().map(|question| question.capability.timestamp() >> 7 != 0);
    let mut lanes = [Block::default(); BATCH];
    let mut rest = [[0; 2]; BATCH];
    let mut count_v4 = 0;
    for (question, (lane, rest)) in questions.iter().zip(lanes.iter_mut().zip(&mut rest)) {
        match Message::new(question.src, question.dst, question.client, question.capability.timestamp()) {
            Message::V4(block) => {
                *lane = aes128::to_block(block);
                count_v4 += 1;
            }
            Message::V6([first, others @ ..]) => {
                *lane = aes128::to_block(first);
                *rest = others;
            }
        }
    }
    if !matches!(count_v4, 0 | BATCH) {
        return None;
    }
    encrypt(secrets, odd, &mut lanes);
    if count_v4 == 0 {
        for part in 0..2 {
            for (lane, rest) in lanes.iter_mut().zip(&rest) {
                *lane = aes128::to_block(aes128::from_block(lane) ^ rest[part]);
            }
            encrypt(secrets, odd, &mut lanes);
        }
    }
    Some(lanes)
}

/// Encrypts each lane with the secret that its time names. With both in one batch all lanes are encrypted twice, which
/// is cheaper than sorting them.
#[inline]
fn encrypt(secrets: &Secrets, odd: [bool; BATCH], lanes: &mut [Block; BATCH]) {
    let [even_secret, odd_secret] = &secrets.periods;
    if odd == [false; BATCH] {
        return even_secret.aes.encrypt_lanes(lanes);
    }
    let mut even_lanes = *lanes;
    odd_secret.aes.encrypt_lanes(lanes);
    if odd != [true; BATCH] {
        even_secret.aes.encrypt_lanes(&mut even_lanes);
        for (lane, (even, odd)) in lanes.iter_mut().zip(even_lanes.iter().zip(odd)) {
            *lane = if odd { *lane } else { *even };
        }
    }
}
