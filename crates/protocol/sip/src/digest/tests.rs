use std::{format, string::String, vec::Vec};

use super::*;

const NONCE: &str = "7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v";
const CNONCE: &str = "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ";

/// RFC 7616 section 3.9.1.
fn example(algorithm: Algorithm, response: &str) -> String {
    format!(
        "Digest username=\"Mufasa\",\r\n realm=\"http-auth@example.org\", uri=\"/dir/index.html\", algorithm={}, \
        nonce=\"{NONCE}\", nc=00000001, cnonce=\"{CNONCE}\", qop=auth, response=\"{response}\", opaque=\"x\"",
        algorithm.name()
    )
}

const VECTORS: [(Algorithm, &str); 2] = [
    (Algorithm::Md5, "8ca523f5e9506fed4657c9700eebdbec"),
    (Algorithm::Sha256, "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1"),
];

fn mufasa(algorithm: Algorithm) -> Ha1 {
    ha1(algorithm, "Mufasa", "http-auth@example.org", "Circle of Life")
}

#[test]
fn the_examples_of_rfc_7616_verify() {
    for (algorithm, response) in VECTORS {
        let text = example(algorithm, response);
        let authorization = Authorization::parse(text.as_bytes()).unwrap();
        assert_eq!(authorization.username().unwrap(), "Mufasa");
        assert!(verify(&authorization, b"GET", Some(&mufasa(algorithm))));
        let upper = example(algorithm, &response.to_uppercase());
        assert!(verify(&Authorization::parse(upper.as_bytes()).unwrap(), b"GET", Some(&mufasa(algorithm))));
    }
}

#[test]
fn anything_else_does_not_verify() {
    for (algorithm, response) in VECTORS {
        let text = example(algorithm, response);
        let authorization = Authorization::parse(text.as_bytes()).unwrap();
        let wrong = ha1(algorithm, "Mufasa", "http-auth@example.org", "Circle of life");
        assert!(!verify(&authorization, b"GET", Some(&wrong)));
        assert!(!verify(&authorization, b"POST", Some(&mufasa(algorithm))));
        assert!(!verify(&authorization, b"GET", None));
        let other = if algorithm == Algorithm::Md5 { Algorithm::Sha256 } else { Algorithm::Md5 };
        assert!(!verify(&authorization, b"GET", Some(&mufasa(other))));
        let not_hex = "zz".repeat(response.len() / 2);
        for bad in ["", "00", &response[2..], &format!("{response}00"), not_hex.as_str()] {
            let text = example(algorithm, bad);
            // An empty quoted string is a value; it is just no digest.
            let authorization = Authorization::parse(text.as_bytes()).unwrap();
            assert!(!verify(&authorization, b"GET", Some(&mufasa(algorithm))));
        }
    }
}

#[test]
fn the_dummy_of_an_unknown_user_is_nobodys_password() {
    for algorithm in [Algorithm::Md5, Algorithm::Sha256] {
        let dummy = Ha1::dummy(algorithm);
        let challenge = Challenge { realm: b"r", nonce: b"n", opaque: None, algorithm, stale: false };
        let answer = Answer {
            challenge: &challenge,
            username: "nobody",
            ha1: &dummy,
            method: b"INVITE",
            uri: b"sip:a@b",
            cnonce: "c",
            nc: 1,
        };
        let mut out = Vec::new();
        answer.write(&mut out);
        assert!(!verify(&Authorization::parse(&out).unwrap(), b"INVITE", None));
    }
}

#[test]
fn an_answer_to_a_challenge_verifies() {
    let mut out = Vec::new();
    let challenge = Challenge {
        realm: b"example.net;e=7",
        nonce: b"abc",
        opaque: Some(b"o"),
        algorithm: Algorithm::Sha256,
        stale: true,
    };
    challenge.write(&mut out);
    let read = Challenge::parse(&out).unwrap();
    assert_eq!(read, challenge);
    let ha1 = ha1(Algorithm::Sha256, "al\"ice\\", "example.net;e=7", "secret");
    let mut value = Vec::new();
    Answer {
        challenge: &read,
        username: "al\"ice\\",
        ha1: &ha1,
        method: b"INVITE",
        uri: b"sip:pbx@example.net",
        cnonce: "00ff",
        nc: 0x1f,
    }
    .write(&mut value);
    let authorization = Authorization::parse(&value).unwrap();
    assert_eq!(authorization.username().unwrap(), "al\"ice\\");
    assert_eq!(authorization.nc, b"0000001f");
    assert!(verify(&authorization, b"INVITE", Some(&ha1)));
    assert!(authorization.covers(b"sip:pbx@EXAMPLE.net;transport=udp"));
    assert!(!authorization.covers(b"sip:other@example.net"));
}

#[test]
fn the_strongest_challenge_that_we_know_is_chosen() {
    let values: [&[u8]; 4] = [
        b"Digest realm=\"r\", nonce=\"1\", algorithm=SHA-512-256, qop=\"auth\"",
        b"Digest realm=\"r\", nonce=\"2\", qop=\"auth,auth-int\"",
        b"Digest realm=\"r\", nonce=\"3\", algorithm=sha-256, qop=\"auth-int, auth\"",
        b"Digest realm=\"r\", nonce=\"4\", algorithm=SHA-256, qop=\"auth\"",
    ];
    assert_eq!(strongest(values.into_iter()).unwrap().nonce, b"3");
    assert_eq!(strongest(values.into_iter().take(1)), None);
}

#[test]
fn what_cannot_be_used_says_why() {
    let good = example(VECTORS[1].0, VECTORS[1].1);
    let long = format!("{good}, x=\"{}\"", "y".repeat(VALUE_LEN_MAX));
    let many = format!("{good}{}", ", x=y".repeat(PARAMS_MAX));
    for (text, error) in [
        (String::from("Basic dXNlcg=="), DigestError::Scheme),
        (String::from("NoOneKnowsThisScheme opaque-data=here"), DigestError::Scheme),
        (String::from("Digest"), DigestError::Malformed),
        (String::from("Digest username=\"a"), DigestError::Malformed),
        (good.replace("nc=00000001", "nc=1"), DigestError::Malformed),
        (good.replace("nc=00000001", "nc=00000000"), DigestError::Malformed),
        (good.replace("nc=00000001", "realm=\"again\""), DigestError::Malformed),
        (good.replace("nc=00000001", "nc=00000001, opaque=a\\"), DigestError::Malformed),
        (good.replace("qop=auth", "qop=auth-int"), DigestError::Qop),
        (good.replace(", qop=auth", ""), DigestError::Qop),
        (good.replace("SHA-256", "SHA-256-sess"), DigestError::Algorithm),
        (good.replace("cnonce", "xnonce"), DigestError::Missing("cnonce")),
        (long, DigestError::Length),
        (many, DigestError::Length),
    ] {
        assert_eq!(Authorization::parse(text.as_bytes()), Err(error), "{text}");
    }
}

/// Written out in quotes, such a value would take the closing one with it and end where its sender likes.
#[test]
fn a_challenge_whose_value_ends_in_a_backslash_outside_quotes_is_refused() {
    for text in ["realm=r\\, nonce=n", "realm=r, nonce=n\\", "realm=r, nonce=n, opaque=o\\", "realm=\\r, nonce=n"] {
        let text = format!("Digest {text}, qop=\"auth\"");
        assert_eq!(Challenge::parse(text.as_bytes()), Err(DigestError::Malformed), "{text}");
    }
    let quoted = br#"Digest realm="r\\", nonce="n", qop="auth""#;
    assert_eq!(Challenge::parse(quoted).unwrap().realm_text().unwrap(), "r\\");
}

#[test]
fn secrets_do_not_show_in_debug_output() {
    let text = example(VECTORS[1].0, VECTORS[1].1);
    let shown = format!("{:?} {:?}", Authorization::parse(text.as_bytes()).unwrap(), mufasa(Algorithm::Sha256));
    assert!(!shown.contains(NONCE) && !shown.contains("753927") && shown.contains("Ha1(SHA-256)"));
}
