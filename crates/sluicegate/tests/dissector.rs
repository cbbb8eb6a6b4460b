//! The Wireshark dissector, run by tshark over golden captures.
//!
//! The captures are what `wire` writes today: a change of the format fails here until captures and expected text are
//! written anew with `SLUICEGATE_WRITE_GOLDEN=1 cargo test -p sluicegate --test dissector`, and looked through.

mod golden;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Fields shown for each packet, so that a filter or a column can rely on their names.
const FIELDS: [&str; 21] = [
    "frame.number",
    "_ws.col.Protocol",
    "_ws.col.Info",
    "sluicegate.version",
    "sluicegate.demoted",
    "sluicegate.return",
    "sluicegate.kind",
    "sluicegate.upper",
    "sluicegate.client_id",
    "sluicegate.nonce",
    "sluicegate.num",
    "sluicegate.ptr",
    "sluicegate.n_kb",
    "sluicegate.t_s",
    "sluicegate.path_id",
    "sluicegate.capability",
    "sluicegate.capability.timestamp",
    "sluicegate.capability.hash",
    "sluicegate.return.kind",
    "sluicegate.return.num",
    "sluicegate.malformed",
];

fn dissectors() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../dissectors")
}

fn is_set(variable: &str) -> bool {
    env::var(variable).is_ok_and(|value| value == "1")
}

/// What tshark prints about a capture with the dissector loaded; `None` where there is no tshark.
fn tshark(capture: &Path, arguments: &[&str]) -> Option<String> {
    let script = format!("lua_script:{}", dissectors().join("sluicegate.lua").display());
    // No name look-ups and no personal profile: the output depends on capture and dissector alone.
    let output = Command::new("tshark")
        .args(["-n", "-X", &script, "-r"])
        .arg(capture)
        .args(arguments)
        .env("WIRESHARK_CONFIG_DIR", "/nonexistent")
        .env("TZ", "UTC")
        .env("LC_ALL", "C.UTF-8")
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) if is_set("SLUICEGATE_NO_SKIP") => panic!("tshark: {error}"),
        Err(error) => {
            println!("skipped: tshark: {error}");
            return None;
        }
    };
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !complaints.contains("Lua"), "tshark: {complaints}");
    Some(String::from_utf8(output.stdout).unwrap())
}

/// The fields of every packet, one line each, and the dissector's own part of the details.
fn shown(capture: &Path) -> Option<String> {
    let mut arguments = vec!["-T", "fields", "-E", "separator=|", "-E", "occurrence=a", "-E", "aggregator=,"];
    arguments.extend(FIELDS.iter().flat_map(|field| ["-e", *field]));
    let fields = tshark(capture, &arguments)?;
    let details = tshark(capture, &["-O", "sluicegate"])?;
    let own = |line: &&str| line.starts_with("Sluicegate") || line.starts_with(' ');
    let details: Vec<_> = details.lines().filter(own).collect();
    Some(format!("{}\n{fields}\n{}\n", FIELDS.join("|"), details.join("\n")))
}

/// Compares with the committed file, or writes it if that was asked for.
fn compare(path: &Path, content: &[u8]) {
    if is_set("SLUICEGATE_WRITE_GOLDEN") {
        fs::write(path, content).unwrap();
        return;
    }
    let committed = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if committed != content {
        let (committed, content) = (String::from_utf8_lossy(&committed), String::from_utf8_lossy(content));
        panic!("{} differs; now it is\n{content}\nand was\n{committed}", path.display());
    }
}

#[test]
fn golden_captures_hold_what_the_product_writes_and_the_dissector_shows_it() {
    for (name, packets) in golden::captures() {
        let capture = dissectors().join("golden").join(format!("{name}.pcap"));
        compare(&capture, &golden::pcap(&packets));
        if let Some(shown) = shown(&capture) {
            compare(&capture.with_extension("txt"), shown.as_bytes());
        }
    }
}

/// What tshark says in a column about each packet of a capture.
fn column(name: &str, field: &str) -> Option<Vec<String>> {
    let capture = dissectors().join("golden").join(format!("{name}.pcap"));
    let lines = tshark(&capture, &["-T", "fields", "-e", field])?;
    Some(lines.lines().map(str::to_owned).collect())
}

#[test]
fn every_malformed_header_is_marked_and_no_other_one() {
    for (name, packets) in golden::captures() {
        let Some(marks) = column(name, "sluicegate.malformed") else { return };
        assert_eq!(marks.len(), packets.len());
        for (number, mark) in marks.iter().enumerate() {
            assert_eq!(!mark.is_empty(), name == "malformed", "packet {} of {name}: {mark:?}", number + 1);
        }
    }
}

#[test]
fn the_inner_packet_is_handed_on() {
    for name in ["ipv4-native", "ipv4-encapsulated", "ipv6-native", "ipv6-encapsulated"] {
        let Some(ports) = column(name, "tcp.dstport") else { return };
        let expected: Vec<_> = golden::headers().iter().map(|header| if header.inner { "443" } else { "" }).collect();
        assert_eq!(ports, expected, "{name}");
    }
}
