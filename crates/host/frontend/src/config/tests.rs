use super::*;

fn config() -> Config {
    let address = |text: &str| text.parse().unwrap();
    Config::new("f1", "example.net", address("203.0.113.1:5060"), address("203.0.113.1:7443"), "/nowhere")
}

#[test]
fn the_defaults_are_accepted() {
    assert_eq!(config().check(), Ok(()));
}

#[test]
fn every_mistake_is_reported_at_once() {
    let mut wrong = config();
    wrong.name = "no spaces".into();
    wrong.realm = "exa mple".into();
    let listen = ["udp/0.0.0.0:5060", "udp/0.0.0.0:5060", "tls/203.0.113.1:5061"];
    wrong.listen = listen.map(|text| text.parse().unwrap()).to_vec();
    wrong.listen[0].advertise = Some("[2001:db8::1]:5060".parse().unwrap());
    wrong.connections.idle_s = 0;
    wrong.digest = Vec::new();
    wrong.shards = 1000;
    wrong.datapath = Datapath::Xdp;
    wrong.grants_max = 0;
    wrong.registration_secs_max = 1;
    wrong.relay_rate_bps = 1;
    wrong.dialog_requests_per_s = 0;
    wrong.tables.legs_max = 0;
    wrong.emergency = Emergency { numbers: vec!["112".into(), "sip:112@example.net".into()], calls_per_s: 0 };
    wrong.tables.contacts_per_user_max = 31;
    wrong.phones.registration_s_min = 5;
    wrong.tables.transactions_max = TABLE_MAX + 1;
    assert_eq!(wrong.check().unwrap_err().len(), 22);
}

#[test]
fn listening_addresses_are_read_back_and_others_refused_with_an_example() {
    for text in ["udp/203.0.113.1:5060", "tcp/[2001:db8::1]:5060", "tls/203.0.113.1:5061"] {
        assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
    }
    for text in ["", "203.0.113.1:5060", "sctp/203.0.113.1:5060", "udp/203.0.113.1", "tcp/example.net:5060"] {
        let error = text.parse::<Listen>().unwrap_err().to_string();
        assert!(error.contains("\"udp/203.0.113.1:5060\""), "{text}");
    }
}
#[test]
fn a_listener_is_advertised_as_it_says_or_as_all_are_whose_port_a_nat_keeps() {
    let all = ["198.51.100.1:5060", "[2001:db8::1]:5060", "198.51.100.2:5060"].map(|text| text.parse().unwrap());
    for (listen, expected) in [
        ("udp/10.0.0.5:5060", Some(all[0])),
        ("tcp/[fd00::5]:5060", Some(all[1])),
        ("tls/10.0.0.5:5061", None),
        ("udp/203.0.113.1:5060", None),
    ] {
        assert_eq!(listen.parse::<Listen>().unwrap().advertised(&all).advertise, expected, "{listen}");
    }
    let own = "198.51.100.9:443".parse().unwrap();
    let named = Listen { advertise: Some(own), ..Listen::new(Transport::Tls, "10.0.0.5:5061".parse().unwrap()) };
    assert_eq!(named.advertised(&all).advertise, Some(own));
}
