//! Generated texts: completions and man pages. What they say of a verb is what `cli` says, and what stands here.

use std::{fs, io, path::Path};

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_mangen::{
    Man,
    roff::{Roff, bold, roman},
};

use crate::cli::Cli;

/// What a page gives as examples: the command line, and what it is for. Every verb has one.
const EXAMPLES: &[(&str, &str)] = &[
    ("sluicegate check", "Finds what is wrong with /etc/sluicegate/sluicegate.toml, line by line."),
    ("sluicegate up", "Runs the site of that file: frontend and gate."),
    ("sluicegate gate gate.toml", "Runs a gate whose frontends are elsewhere."),
    ("sluicegate frontend frontend.toml", "Runs a frontend whose gates are elsewhere."),
    ("sluicegate agent agent.toml --serve", "Serves what [agent] in the file names."),
    ("sluicegate agent run capture.toml -- curl http://192.0.2.77/", "Carries one command's packets."),
    (
        "sluicegate connect alice@web --frontend 203.0.113.1 --realm example.net -L 8080:80",
        "The service's port 80 is this host's port 8080 as long as it runs.",
    ),
    (
        "sluicegate connect alice@vpn --open udp/500 --open udp/4500 --open esp",
        "Opens the gate for IPsec on this host, until it ends.",
    ),
    ("sluicegate connect web", "The same, of a site that `connect --save` has noted."),
    ("sluicegate link web --user alice", "What alice hands to `connect`, with the site's key in it."),
    ("sluicegate up --confirm 60", "Ends after a minute, and opens again, unless somebody confirms."),
    ("sluicegate reload", "Puts services and rules of the changed file in place."),
    ("sluicegate confirm", "Keeps what `up --confirm` has started."),
    ("sluicegate status", "What the node of this host does."),
    ("sluicegate trace --user alice", "Why alice was refused."),
    ("sluicegate trace --call a84b4c76e66710@pc33", "What became of the call with this Call-ID."),
    (
        "sluicegate trace --user alice --pcap alice.pcap",
        "Her SIP messages of the next minute, for Wireshark or sngrep.",
    ),
    (
        "sluicegate trace --flow \"tcp 198.51.100.7:40000 > 203.0.113.1:22\"",
        "What would become of that packet, and why.",
    ),
    ("sluicegate observe on", "Counts from now on what would be dropped."),
    ("sluicegate user add alice --group staff", "Adds alice, and asks for her password."),
    ("sluicegate key show", "The key by which agents know the site."),
    ("sluicegate group add staff", "Adds a group."),
    ("sluicegate service add web.toml", "Adds a service to a running node."),
    ("sluicegate grant ls", "What is open, for whom, how long."),
    ("sluicegate limit ls", "Who is refused for sending more than others, or for wrong passwords."),
    (
        "sluicegate limit lift 198.51.100.0/24 --for 60 --reason \"the office\"",
        "Refuses nobody there for load in the next hour.",
    ),
    ("sluicegate policy test alice web", "Whether alice may use web now, and by which rule."),
    ("sluicegate gate-join --new", "A token, to be used on the gate's host within an hour."),
    ("sluicegate gate-close", "Closes the interfaces of a gate that does not run yet."),
    ("sluicegate gate-open", "Takes away what a stopped gate left closed."),
    ("sluicegate export site.tar", "All that makes this node the same again elsewhere; keep it like a key."),
    ("sluicegate import site.tar", "Puts that in place, before the node starts."),
    #[cfg(feature = "lab")]
    ("sluicegate demo", "About two minutes, in namespaces of its own."),
    #[cfg(feature = "lab")]
    ("sluicegate attack --example", "What a flood looks like, as JSON."),
    #[cfg(feature = "lab")]
    ("sluicegate bench turns", "The longest turns of a packet thread."),
    #[cfg(feature = "lab")]
    ("sluicegate lab check", "Checks the papers' claims."),
    ("sluicegate completions bash", "For ~/.local/share/bash-completion/completions/sluicegate."),
    ("sluicegate man /usr/local/share/man/man1", "Writes all pages there."),
];

/// Files of nodes, and of the agents of people.
const FILES: &[(&str, &str)] = &[
    ("/etc/sluicegate/sluicegate.toml", "The configuration, where no other file is named."),
    ("/var/lib/sluicegate/", "State and secrets of the node, mode 0700; `state` in [node] names another place."),
    ("~/.config/sluicegate/known_sites", "Keys of the sites that agents of this person have met."),
];

pub(crate) fn completions(shell: clap_complete::Shell) {
    clap_complete::generate(shell, &mut Cli::command(), "sluicegate", &mut io::stdout());
}

/// The main page to standard output, or the pages of all verbs to a directory.
pub(crate) fn man(directory: Option<&Path>) -> Result<()> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    match directory {
        None => page(&command, ("sluicegate", "sluicegate"), &mut io::stdout()),
        Some(directory) => pages(&command, ("sluicegate", "sluicegate"), directory),
    }
}

/// Writes the pages of a verb and of what is below it. Verbs have dashes too: only their place tells the page above.
fn pages(command: &Command, (above, name): (&str, &str), directory: &Path) -> Result<()> {
    let path = directory.join(format!("{name}.1"));
    let mut text = Vec::new();
    page(command, (above, name), &mut text)?;
    fs::write(&path, text).with_context(|| format!("cannot write {}; name a directory that exists", path.display()))?;
    let below = command.get_subcommands().filter(|command| !command.is_hide_set());
    let mut of = |command: &Command| pages(command, (name, &format!("{name}-{}", command.get_name())), directory);
    below.into_iter().try_for_each(&mut of)
}

fn page(command: &Command, (above, name): (&str, &str), to: &mut dyn io::Write) -> Result<()> {
    let man = Man::new(command.clone()).title(name.to_uppercase()).manual("Sluicegate");
    man.render_title(to)?;
    man.render_name_section(to)?;
    man.render_synopsis_section(to)?;
    man.render_description_section(to)?;
    man.render_options_section(to)?;
    if command.has_subcommands() {
        man.render_subcommands_section(to)?;
    }
    let mut roff = Roff::new();
    list(&mut roff, "FILES", FILES.iter().copied());
    list(&mut roff, "EXAMPLES", examples(name).into_iter());
    list(&mut roff, "EXIT STATUS", statuses(name).iter().copied());
    roff.control("SH", ["SEE ALSO"]);
    roff.text([bold(above), roman("(1)")]);
    Ok(roff.to_writer(to)?)
}

fn list<'a>(roff: &mut Roff, title: &str, items: impl Iterator<Item = (&'a str, &'a str)>) {
    roff.control("SH", [title]);
    for (term, text) in items {
        roff.control("TP", []);
        roff.text([bold(term)]);
        roff.text([roman(text)]);
    }
}

/// Examples of the verb of this page, or of the verbs that it is below.
fn examples(name: &str) -> Vec<(&'static str, &'static str)> {
    let of = |name: &str| {
        let words = name.replacen('-', " ", 1);
        let fits = |line: &str| line == words || line.starts_with(&format!("{words} "));
        EXAMPLES.iter().copied().filter(|(line, _)| fits(line)).collect::<Vec<_>>()
    };
    match name.split('-').nth(1) {
        None => EXAMPLES.iter().copied().take(2).collect(),
        Some(verb) => [of(name), of(&format!("sluicegate-{verb}"))]
            .into_iter()
            .find(|found| !found.is_empty())
            .unwrap_or_default(),
    }
}

/// Exit statuses of the verb of this page.
fn statuses(name: &str) -> &'static [(&'static str, &'static str)] {
    const DONE: (&str, &str) = ("0", "Done, or ended because it was asked to.");
    const FAILED: (&str, &str) = ("1", "Not done; standard error says what, where, and what to do next.");
    const USAGE: (&str, &str) = ("2", "The command line is wrong.");
    match name {
        "sluicegate-connect" | "sluicegate-agent-run" => {
            &[DONE, FAILED, USAGE, ("other", "That of the command after --, if one was given.")]
        }
        "sluicegate-demo" | "sluicegate-lab" | "sluicegate-lab-run" => {
            &[DONE, FAILED, USAGE, ("3", "The machine was too disturbed to judge what missed.")]
        }
        "sluicegate-check" => {
            &[("0", "No errors; there may be warnings."), ("1", "Errors, each with file and line."), USAGE]
        }
        "sluicegate-policy" | "sluicegate-policy-test" => {
            &[("0", "Allowed."), ("1", "Denied, or not to be asked."), USAGE]
        }
        _ => &[DONE, FAILED, USAGE],
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn every_example_is_a_command_line_that_is_taken() {
        for (line, _) in EXAMPLES {
            let quoted = line.split('"').enumerate();
            let words: Vec<&str> = quoted
                .flat_map(|(at, part)| if at % 2 == 1 { vec![part] } else { part.split_whitespace().collect() })
                .collect();
            assert!(Cli::try_parse_from(&words).is_ok(), "{line}");
        }
    }

    #[test]
    fn every_verb_has_examples() {
        let mut command = Cli::command();
        command.build();
        for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help") {
            let name = format!("sluicegate-{}", verb.get_name());
            assert!(!examples(&name).is_empty(), "{name}");
        }
    }
}
