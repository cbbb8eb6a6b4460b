//! What a package brings besides the program: man pages for each verb, units that a service manager takes, and manners
//! towards files with passwords. Runs the real binary, without root; `packaging/test` installs the packages themselves.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sluicegate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluicegate")).args(arguments).output().expect("the binary runs")
}

#[test]
fn a_password_file_that_others_may_read_is_refused_with_what_to_run() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("password");
    fs::write(&file, "secret\n").expect("a file");
    let name = file.to_str().expect("UTF-8");
    for mode in [0o644, 0o640, 0o604, 0o620] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("a mode");
        let connect = ["connect", "a@b", "--frontend", "127.0.0.1:9", "--realm", "c", "-L", "1:1"];
        for verb in [&connect[..], &["user", "add", "a", "--config", "/dev/null"]] {
            let output = sluicegate(&[verb, &["--password-file", name]].concat());
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{mode:o}");
            assert!(said.contains(&format!("chmod 600 {name}")), "{mode:o}: {said}");
            assert!(!said.contains("secret\n"), "{said}");
        }
    }
}

/// Names of the verbs that `--help` lists.
fn verbs() -> Vec<String> {
    let help = String::from_utf8(sluicegate(&["--help"]).stdout).expect("text");
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = list.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).filter(|verb| *verb != "help").map(str::to_owned).collect()
}

#[test]
fn every_verb_has_a_man_page_with_files_examples_and_exit_status() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = sluicegate(&["man", dir.path().to_str().expect("UTF-8")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let verbs = verbs();
    assert!(verbs.len() > 15, "{verbs:?}");
    for name in verbs.iter().map(|verb| format!("sluicegate-{verb}")).chain(["sluicegate".to_owned()]) {
        let page =
            fs::read_to_string(dir.path().join(format!("{name}.1"))).unwrap_or_else(|error| panic!("{name}: {error}"));
        for section in ["NAME", "SYNOPSIS", "FILES", "EXAMPLES", "\"EXIT STATUS\"", "\"SEE ALSO\""] {
            assert!(page.contains(&format!(".SH {section}\n")), "{name} has no {section}");
        }
    }
    // No page leads to one that is not there.
    for entry in fs::read_dir(dir.path()).expect("a directory") {
        let path = entry.expect("an entry").path();
        let page = fs::read_to_string(&path).expect("text").replace('\\', "");
        for (at, _) in page.match_indices("sluicegate-") {
            let name: String = page[at..].chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect();
            if page[at + name.len()..].starts_with("(1)") {
                assert!(dir.path().join(format!("{name}.1")).exists(), "{}: {name}(1)", path.display());
            }
        }
    }
}

#[test]
fn the_units_verify_and_leave_little_exposed() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        assert!(std::env::var_os("SLUICEGATE_NO_SKIP").is_none(), "needs systemd-analyze");
        eprintln!("skipped: needs systemd-analyze");
        return;
    }
    let units = root().join("packaging/systemd");
    let dir = tempfile::tempdir().expect("a directory");
    // The program that the units name is not installed here.
    for name in ["sluicegate.service", "sluicegate-close.service"] {
        let text = fs::read_to_string(units.join(name)).expect("a unit");
        assert!(text.contains("/usr/bin/sluicegate"), "{name}");
        let text = text.replace("/usr/bin/sluicegate", env!("CARGO_BIN_EXE_sluicegate"));
        fs::write(dir.path().join(name), text).expect("a file");
    }
    for (name, exposure_max) in [("sluicegate.service", "45"), ("sluicegate-close.service", "45")] {
        let unit = dir.path().join(name);
        let analyze = |arguments: &[&str]| {
            let output = Command::new("systemd-analyze").args(arguments).arg(&unit).output().expect("systemd-analyze");
            let said = [&output.stdout[..], &output.stderr].concat();
            (output.status.success(), String::from_utf8_lossy(&said).into_owned())
        };
        let (fine, said) = analyze(&["verify", "--man=no", "--recursive-errors=no"]);
        assert!(fine && !said.contains(name), "{said}");
        let (fine, said) = analyze(&["security", "--offline=true", &format!("--threshold={exposure_max}")]);
        assert!(fine, "{said}");
    }
}

/// `packaging/test` plays them.
#[test]
fn the_book_gets_to_a_first_service_on_two_machines_in_six_steps() {
    let page = fs::read_to_string(root().join("docs/src/operating/first-service.md")).expect("the page");
    let section =
        page.split("\n## ").find(|section| section.starts_with("Six steps on two machines")).expect("the steps");
    let is_step = |line: &&str| line.starts_with(|first: char| first.is_ascii_digit());
    assert_eq!(section.lines().filter(is_step).count(), 6);
    // One command a step, and no step hidden in another.
    let commands = section.lines().filter(|line| line.starts_with("   ") && !line.contains("```"));
    let commands =
        commands.filter(|line| ["apt ", "sluicegate ", "systemctl "].iter().any(|word| line.trim().starts_with(word)));
    assert_eq!(commands.count(), 5);
}
