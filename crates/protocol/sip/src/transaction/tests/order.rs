use super::*;

/// A small generator of repeatable noise (xorshift64*).
struct Noise(u64);

impl Noise {
    fn below(&mut self, max: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % max
    }
}

/// What must hold whatever happens: a transaction is found by its message exactly while its table has it.
#[test]
fn any_order_of_events_leaves_the_tables_whole_and_empties_them_in_the_end() {
    let mut noise = Noise(7);
    let (mut server, mut client) = (ServerTransactions::new(48, KEY), ClientTransactions::new(48, KEY));
    let mut now = 0;
    let (mut asked, mut sent): ([Option<Token>; 64], [Option<Token>; 64]) = ([None; 64], [None; 64]);
    for _ in 0..60_000 {
        let nth = noise.below(64);
        let at = nth as usize;
        let method = if nth.is_multiple_of(4) { "BYE" } else { "INVITE" };
        // Every eighth Call-ID is said by several.
        let text =
            request(method, &format!("z9hG4bK{nth}"), 1).replace("Call-ID: c", &format!("Call-ID: {}", nth & !7));
        let message = Message::parse(text.as_bytes()).unwrap();
        let fields = message.essentials().unwrap();
        let code = [100, 180, 200, 200, 302, 486][noise.below(6) as usize];
        match noise.below(10) {
            0 | 1 => {
                let is_known =
                    asked[at].is_some_and(|token| server.peer(token).is_some() || server.table.entry(token).is_some());
                let found = server.receive(ms(now), &message, &fields);
                assert_eq!(found != Received::New, is_known);
                if !is_known {
                    let role = if nth.is_multiple_of(3) { Role::UserAgent } else { Role::Proxy };
                    asked[at] = server.open(ms(now), &message, &fields, peer(), role).ok();
                }
            }
            2 | 3 => drop(asked[at].map(|token| server.respond(ms(now), token, code, &answer(&text, code)))),
            4 => drop(receive(&mut server, ms(now), &text.replace(method, "ACK"))),
            5 => drop(receive(&mut server, ms(now), &text.replace(method, "ACK").replace("z9hG4bK", "z9hG4bKa"))),
            6 => {
                let is_known = sent[at].is_some_and(|token| client.peer(token).is_some());
                assert_eq!(reply(&mut client, ms(now), &text, code) != Reply::Unmatched, is_known);
                if !is_known {
                    sent[at] = client.start(ms(now), &message, peer()).ok();
                }
            }
            7 => match noise.below(3) {
                0 => sent[at].into_iter().for_each(|token| client.release(token)),
                1 => drop(sent[at].map(|token| client.cancel(ms(now), token))),
                _ => sent[at].into_iter().for_each(|token| client.forget(token)),
            },
            _ => {
                now += noise.below(3_000);
                while server.poll(ms(now)).is_some() {}
                while client.poll(ms(now)).is_some() {}
            }
        }
        let due = [server.poll_timeout(), client.poll_timeout()];
        assert!(server.gauge().used == 0 || due[0].is_some(), "whatever is there ends");
        assert!(client.gauge().used == 0 || due[1].is_some());
    }
    assert!(now > 1_000_000);
    drain_server(&mut server);
    drain_client(&mut client);
    assert_eq!((server.gauge().used, client.gauge().used), (0, 0));
}
