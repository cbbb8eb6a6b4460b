//! A configuration file's text, and where in it a setting stands.

use std::{
    fmt,
    ops::Range,
    path::{Path, PathBuf},
};

use sluicegate_policy::Severity;
use toml::de::{DeTable, DeValue};

/// Something wrong with a configuration file: what, where, and what to do next. After an error nothing starts and nothing
/// changes.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    pub(crate) file: PathBuf,
    /// Line, counted from 1; `None` when the whole file is meant.
    pub(crate) line: Option<usize>,
    pub(crate) what: String,
    pub(crate) hint: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}: {}", label(self.severity), self.what)?;
        if !self.hint.is_empty() {
            write!(f, "\n  hint: {}", self.hint)?;
        }
        Ok(())
    }
}

/// How bad a finding is, in a word.
pub(crate) const fn label(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    }
}

/// The text of a configuration file.
#[derive(Debug)]
pub(crate) struct Source {
    path: PathBuf,
    text: String,
}

impl Source {
    /// Largest file read, in bytes: thousands of services, and no more than one careless `cat`.
    const SIZE_MAX: u64 = 4 << 20;

    /// Reads `path`.
    pub(crate) fn read(path: &Path) -> Result<Self, Finding> {
        let failed = |what: String, hint: &str| Finding {
            severity: Severity::Error,
            file: path.to_owned(),
            line: None,
            what,
            hint: hint.to_owned(),
        };
        let size = std::fs::metadata(path)
            .map_err(|error| {
                failed(
                    format!("cannot read the configuration: {error}"),
                    "name an existing file, or start from examples/site.toml",
                )
            })?
            .len();
        if size > Self::SIZE_MAX {
            return Err(failed(format!("the file has {size} bytes"), "a configuration has at most 4 MiB"));
        }
        let text = std::fs::read_to_string(path).map_err(|error| {
            failed(
                format!("cannot read the configuration: {error}"),
                "check the file's owner, mode and encoding (UTF-8)",
            )
        })?;
        Ok(Self { path: path.to_owned(), text })
    }

    /// The text.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// An error or warning about the setting at `path` (keys and array indices, such as `["service", "1", "address"]`).
    ///
    /// Points at the longest part of `path` that the file has.
    pub(crate) fn finding(&self, severity: Severity, path: &[&str], what: String, hint: &str) -> Finding {
        let line = self.span(path).map(|span| self.line(span.start));
        Finding { severity, file: self.path.clone(), line, what, hint: hint.to_owned() }
    }

    /// A deserialisation error with its place.
    pub(crate) fn parse_error(&self, error: &toml::de::Error) -> Finding {
        let what = error.message().trim().to_owned();
        let hint = hint_for(&what);
        let line = error.span().map(|span| self.line(span.start));
        Finding { severity: Severity::Error, file: self.path.clone(), line, what, hint: hint.to_owned() }
    }

    fn line(&self, offset: usize) -> usize {
        1 + self.text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count()
    }

    fn span(&self, path: &[&str]) -> Option<Range<usize>> {
        let root = DeTable::parse(&self.text).ok()?;
        let (first, rest) = path.split_first()?;
        let (key, mut value) = root.get_ref().get_key_value(*first)?;
        let mut found = key.span();
        for segment in rest {
            let next = match value.get_ref() {
                DeValue::Table(map) => map.get_key_value(*segment).map(|(key, value)| (key.span(), value)),
                DeValue::Array(list) => {
                    segment.parse().ok().and_then(|index: usize| list.get(index)).map(|value| (value.span(), value))
                }
                _ => None,
            };
            let Some((span, inner)) = next else { break };
            (found, value) = (span, inner);
        }
        Some(found)
    }
}

/// What to do about a text that cannot be read as a configuration.
fn hint_for(what: &str) -> &'static str {
    const HINTS: &[(&str, &str)] = &[
        ("unknown field", "remove it or correct its spelling; the reference lists every setting"),
        ("missing field", "add it"),
        ("IP address", "write an address such as \"203.0.113.1\" or \"2001:db8::1\""),
        ("socket address", "write ADDRESS:PORT, such as \"127.0.0.1:9469\""),
        ("duplicate", "keep one of the two"),
        (
            "invalid type",
            "write a value of the kind that is expected: text in quotes, numbers and true or false without",
        ),
        ("invalid value", "write one of the values that are expected"),
    ];
    let fitting = HINTS.iter().find(|(part, _)| what.contains(part));
    fitting.map_or("correct the line; the reference shows every setting with an example", |(_, hint)| hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source { path: "site.toml".into(), text: text.to_owned() }
    }

    #[test]
    fn a_setting_is_found_by_its_path() {
        let source =
            source("[node]\nname = \"a\"\n\n[[service]]\nname = \"x\"\n[[service]]\nname = \"y\"\naddress = \"1\"\n");
        let line = |path: &[&str]| source.finding(Severity::Error, path, String::new(), "").line;
        assert_eq!(line(&["node", "name"]), Some(2));
        assert_eq!(line(&["service", "1", "address"]), Some(8));
        assert_eq!(line(&["gate"]), None);
    }

    #[test]
    fn a_finding_says_file_line_what_and_what_to_do() {
        let finding = source("[gate]\noutside = 1\n").finding(
            Severity::Error,
            &["gate", "outside"],
            "no such interface".to_owned(),
            "name one",
        );
        assert_eq!(finding.to_string(), "site.toml:2: error: no such interface\n  hint: name one");
    }
}
