//! RFC 3665 section 2: registrations. Bob is a user with a telephone, who registers himself.

use super::*;

const SERVER: &str = "sips:example.net";
const HERE: &str = "Contact: <sips:bob@client.biloxi.example.com>\r\n";
const MAIL: &str = "Contact: mailto:bob@biloxi.example.com\r\n";
const LISTED: [&str; 2] =
    ["<mailto:bob@biloxi.example.com>;expires=3600", "<sips:bob@client.biloxi.example.com>;expires=3600"];

fn bob() -> Caller {
    Caller { to: "sips:bob@example.net".into(), ..Caller::new("bob", PHONE) }
}

/// F1 to F4 of section 2.1 with these fields; the answer's Contacts. Who has authenticated before is asked again here, for each
/// nonce is good for one request.
fn registered(site: &mut Site, bob: &mut Caller, headers: &str) -> Vec<String> {
    let f1 = bob.request("REGISTER", SERVER, headers, "");
    let [f2] = exactly(site.send(PHONE, &f1), [PHONE]);
    check_answer(&f1, PHONE, &f2, 401, &["WWW-Authenticate"]);
    let f3 = bob.answered(&f2, "REGISTER", SERVER, headers, "");
    let [f4] = exactly(site.send(PHONE, &f3), [PHONE]);
    let has_contact = !Wire::of(&f4).all("Contact").is_empty();
    let more = if has_contact { &["Contact", "Date", "Supported"][..] } else { &["Date", "Supported"] };
    let ok = check_answer(&f3, PHONE, &f4, 200, more);
    ok.all("Contact").into_iter().map(str::to_owned).collect()
}

#[test]
fn s2_1_new_registration_of_a_telephone() {
    assert_eq!(registered(&mut Site::new(), &mut bob(), HERE), LISTED[1..]);
}

#[test]
fn s2_2_update_of_a_telephones_contact_list() {
    let (mut site, mut bob) = (Site::new(), bob());
    registered(&mut site, &mut bob, HERE);
    assert_eq!(registered(&mut site, &mut bob, MAIL), LISTED);
}

#[test]
fn s2_3_request_for_a_telephones_contact_list() {
    let (mut site, mut bob) = (Site::new(), bob());
    registered(&mut site, &mut bob, HERE);
    registered(&mut site, &mut bob, MAIL);
    assert_eq!(registered(&mut site, &mut bob, ""), LISTED);
}

#[test]
fn s2_4_cancellation_of_a_telephones_registration() {
    let (mut site, mut bob) = (Site::new(), bob());
    registered(&mut site, &mut bob, HERE);
    assert!(registered(&mut site, &mut bob, "Expires: 0\r\nContact: *\r\n").is_empty());
    assert!(site.locations.of(site.instant, "bob").is_empty());
}

#[test]
fn s2_5_unsuccessful_registration_of_a_telephone() {
    let mut site = Site::new();
    let mut bob = Caller { password: "wrong".into(), ..bob() };
    let f1 = bob.request("REGISTER", SERVER, HERE, "");
    let [f2] = exactly(site.send(PHONE, &f1), [PHONE]);
    let f3 = bob.answered(&f2, "REGISTER", SERVER, HERE, "");
    let [f4] = exactly(site.send(PHONE, &f3), [PHONE]);
    let refused = check_answer(&f3, PHONE, &f4, 401, &["WWW-Authenticate"]);
    let challenges = refused.all("WWW-Authenticate");
    assert!(challenges.iter().all(|challenge| !challenge.contains("stale=true")), "the nonce was not at fault");
    assert!(site.locations.of(site.instant, "bob").is_empty());
}
