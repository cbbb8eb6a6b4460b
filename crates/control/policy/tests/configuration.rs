//! The types are read from the configuration file as administrators write it, and kept by the store in a compact form.

use serde::Deserialize;
use sluicegate_grant::DataMode;
use sluicegate_policy::{
    Credentials, Day, Effect, Limits, Outbound, RATE_UNLIMITED, Rule, Service, ServiceKind, ServiceMode,
    SipCertificate, Subject, User,
};
use sluicegate_sip::message::Transport;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    service: Vec<Service>,
    #[serde(default)]
    rule: Vec<Rule>,
}

fn file(text: &str) -> File {
    toml::from_str(text).unwrap()
}

fn mistake(text: &str) -> String {
    toml::from_str::<File>(text).unwrap_err().to_string()
}

const PBX: &str = r#"
    [[service]]
    name = "pbx"
    kind = "sip"
    mode = "filter"
    address = "10.4.0.2"
    ports = ["udp/5004-5100", "icmp"]
    sip_port = 5062
    outbound = "all"
    grant = { bytes_max = "1MB", rate = "2Mbit" }
    allow = ["group:phones", "user:alice"]
    registrar = "pbx"

    [[rule]]
    name = "office"
    services = ["pbx"]
    subjects = ["group:guests"]
    effect = "allow"
    days = ["mon", "fri"]
    from = "08:00"
    to = "18:30"
    grant = { lifetime_s = 60, least_mode = "mac" }
"#;

#[test]
fn a_service_and_a_rule_are_read_as_written() {
    let File { service, rule } = file(PBX);
    let pbx = &service[0];
    assert_eq!((pbx.kind, pbx.mode, pbx.outbound), (ServiceKind::Sip, ServiceMode::Filter, Outbound::All));
    assert_eq!(pbx.ports.iter().map(ToString::to_string).collect::<Vec<_>>(), ["udp/5004-5100", "icmp"]);
    assert_eq!(pbx.sip_ports(), ["udp/5062".parse().unwrap()]);
    assert_eq!((pbx.sip_port_over(Transport::Udp), pbx.sip_port_over(Transport::Tcp)), (Some(5062), None));
    assert_eq!(pbx.certificate_or_default().to_string(), "10.4.0.2");
    assert_eq!(pbx.limits, Limits { bytes_max: 1_000_000, rate_bps: 2_000_000, ..Limits::DEFAULT });
    assert_eq!(pbx.allow, [Subject::Group("phones".into()), Subject::User("alice".into())]);

    let office = &rule[0];
    assert_eq!((office.effect, &office.days[..]), (Effect::Allow, &[Day::Mon, Day::Fri][..]));
    assert_eq!(office.schedule().to_string(), "mon,fri 08:00-18:30 UTC");
    assert_eq!(office.limits, Some(Limits { lifetime_s: 60, least_mode: DataMode::Mac, ..Limits::UNLIMITED }));
}

#[test]
fn a_sip_server_lists_by_which_transports_it_is_reached() {
    let text = PBX.replace("sip_port = 5062", "sip = [\"tls/5061\", \"udp/5062\"]\ncertificate = \"PBX.example.net\"");
    let File { service, .. } = file(&text);
    let pbx = &service[0];
    assert_eq!(pbx.sip_ports().iter().map(ToString::to_string).collect::<Vec<_>>(), ["tls/5061", "udp/5062"]);
    assert_eq!((pbx.sip_port_over(Transport::Udp), pbx.sip_port_over(Transport::Tls)), (Some(5062), Some(5061)));
    assert_eq!(pbx.certificate, Some(SipCertificate::Name("pbx.example.net".into())));
    assert!(mistake(&text.replace("tls/5061", "sctp/5061")).contains("\"tcp/5060\""));
}

#[test]
fn a_minimal_service_is_declared_translated_silent_and_limited() {
    let File { service, .. } = file("[[service]]\nname = \"web\"\naddress = \"10.0.0.1\"\nports = [\"tcp/80\"]");
    let web = &service[0];
    assert_eq!((web.kind, web.mode, web.outbound), (ServiceKind::Declared, ServiceMode::Nat, Outbound::None));
    assert_eq!((web.limits, web.sip_ports().len(), web.allow.len()), (Limits::DEFAULT, 0, 0));
}

#[test]
fn a_grant_without_a_budget_is_worth_what_its_rate_carries_in_its_time() {
    let bytes = |grant: &str| {
        let text = format!("[[service]]\nname = \"web\"\naddress = \"::1\"\nports = []\ngrant = {{ {grant} }}");
        file(&text).service[0].limits.bytes_max
    };
    assert_eq!(bytes(""), 375_000_000);
    assert_eq!(bytes("rate = \"100Mbit\", lifetime_s = 60"), 750_000_000);
    assert_eq!(bytes("rate = \"none\""), u64::MAX);
    assert_eq!(bytes("rate = \"100Mbit\", bytes_max = \"10MB\""), 10_000_000);
}

#[test]
fn an_unlimited_rate_is_written_none() {
    let text = "[[service]]\nname = \"web\"\naddress = \"::1\"\nports = []\ngrant = { rate = \"none\" }";
    assert_eq!(file(text).service[0].limits.rate_bps, RATE_UNLIMITED);
}

#[test]
fn a_mistake_is_answered_with_what_to_write() {
    let cases = [
        ("ports = [\"udp/5004-5100\", \"icmp\"]", "ports = [\"upd/1\"]", "\"tcp/22\""),
        ("ports = [\"udp/5004-5100\", \"icmp\"]", "ports = [22]", "a port range such as"),
        ("ports = [\"udp/5004-5100\", \"icmp\"]", "prots = [\"tcp/22\"]", "unknown field `prots`"),
        ("bytes_max = \"1MB\"", "bytes_max = \"1 megabyte\"", "\"10MB\""),
        ("bytes_max = \"1MB\"", "bytes_max = -1", "\"10MB\""),
        ("bytes_max = \"1MB\"", "bytes_max = 1.5", "\"10MB\""),
        ("rate = \"2Mbit\"", "rate = \"2MB\"", "\"1Mbit\""),
        ("bytes_max = \"1MB\"", "bytes = \"1MB\"", "unknown field `bytes`"),
        ("least_mode = \"mac\"", "least_mode = \"strong\"", "`capability`"),
        ("\"user:alice\"", "\"alice\"", "\"user:alice\""),
        ("from = \"08:00\"", "from = \"8am\"", "\"08:30\""),
        ("days = [\"mon\", \"fri\"]", "days = [\"monday\"]", "`mon`"),
        ("kind = \"sip\"", "kind = \"pbx\"", "`declared`"),
        ("name = \"pbx\"", "", "missing field `name`"),
        ("address = \"10.4.0.2\"", "address = \"10.4.0\"", "IP address"),
    ];
    for (right, wrong, expected) in cases {
        assert!(PBX.contains(right), "{right}");
        let message = mistake(&PBX.replacen(right, wrong, 1));
        assert!(message.contains(expected), "{wrong}: {message}");
    }
}

#[test]
fn everything_survives_the_store_and_the_configuration_format() {
    let File { service, rule } = file(PBX);
    let credentials = Credentials { ha1_sha256: [1; 32], ha1_md5: [2; 16] };
    let user =
        User { groups: vec!["phones".into()], credentials: Some(credentials), phone: true, ..User::new("alice") };

    let stored = postcard::to_allocvec(&(&service, &rule, &user)).unwrap();
    assert_eq!(
        postcard::from_bytes::<(Vec<Service>, Vec<Rule>, User)>(&stored).unwrap(),
        (service.clone(), rule.clone(), user)
    );

    for service in service {
        assert_eq!(toml::from_str::<Service>(&toml::to_string(&service).unwrap()).unwrap(), service);
    }
    for rule in rule {
        assert_eq!(toml::from_str::<Rule>(&toml::to_string(&rule).unwrap()).unwrap(), rule);
    }
}

#[test]
fn credentials_are_never_printed() {
    let credentials = Credentials { ha1_sha256: [0xAB; 32], ha1_md5: [0xAB; 16] };
    let user = User { credentials: Some(credentials), ..User::new("alice") };
    let text = format!("{user:?}");
    assert!(
        text.contains("Credentials(..)") && !text.contains("171") && !text.to_lowercase().contains("abab"),
        "{text}"
    );
}
