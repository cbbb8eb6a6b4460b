//! What a person's own host knows of sites: links, and the file of those that were saved.

use std::{
    fmt, fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::file;

/// Of links.
const SCHEME: &str = "sluicegate://";
/// Longest profile, in bytes.
const PROFILE_BYTES_MAX: u64 = 1 << 20;

/// A user's way to a service, as a site hands it out: `sluicegate://USER@FRONTEND/SERVICE?realm=REALM&key=SITE_KEY`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) user: String,
    /// `HOST[:PORT]`.
    pub(crate) frontend: String,
    pub(crate) service: String,
    pub(crate) realm: String,
    pub(crate) site_key: Option<String>,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}@{}/{}?realm={}", self.user, self.frontend, self.service, self.realm)?;
        self.site_key.as_ref().map_or(Ok(()), |key| write!(f, "&key={key}"))
    }
}

impl Link {
    /// Whether `text` is meant as a link.
    pub(crate) fn is_meant(text: &str) -> bool {
        text.starts_with(SCHEME)
    }
}

impl FromStr for Link {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || format!("`{text}` is no link; copy the whole line that `sluicegate link` printed, in quotes");
        let rest = text.strip_prefix(SCHEME).with_context(wrong)?;
        let (way, query) = rest.split_once('?').with_context(wrong)?;
        let (place, service) = way.split_once('/').with_context(wrong)?;
        let (user, frontend) = place.split_once('@').with_context(wrong)?;
        let (mut realm, mut site_key) = (None, None);
        for pair in query.split('&') {
            match pair.split_once('=').with_context(wrong)? {
                ("realm", value) => realm = Some(value.to_owned()),
                ("key", value) => site_key = Some(value.to_owned()),
                (name, _) => bail!("`{text}`: there is no `{name}` in links; a newer sluicegate may know it"),
            }
        }
        let realm = realm.filter(|realm| !realm.is_empty()).with_context(wrong)?;
        let is_whole = [user, frontend, service].iter().all(|part| !part.is_empty());
        let link =
            Self { user: user.to_owned(), frontend: frontend.to_owned(), service: service.to_owned(), realm, site_key };
        is_whole.then_some(link).with_context(wrong)
    }
}

/// A site that was saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Site {
    /// `HOST[:PORT]`.
    pub(crate) frontend: String,
    pub(crate) realm: String,
    pub(crate) user: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) site_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) password_file: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key_file: Option<PathBuf>,
    /// The services that are meant where only a name is given.
    pub(crate) services: Vec<String>,
}

/// The sites of one person.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Profile {
    #[serde(default)]
    site: Vec<Site>,
}

impl Profile {
    /// The file at `path`; empty if there is none.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = match fs::metadata(path) {
            Ok(found) if found.len() > PROFILE_BYTES_MAX => bail!("{} is no profile: it is too long", path.display()),
            Ok(_) => fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        toml::from_str(&text).with_context(|| format!("in {}", path.display()))
    }

    /// The site that offers `service`, to `user` if one is named.
    pub(crate) fn find(&self, user: Option<&str>, service: &str, path: &Path) -> Result<&Site> {
        let offers = |site: &&Site| {
            user.is_none_or(|user| user == site.user) && site.services.iter().any(|known| known == service)
        };
        let mut found = self.site.iter().filter(offers);
        match (found.next(), found.next()) {
            (Some(site), None) => Ok(site),
            (Some(_), Some(_)) => {
                bail!("{} knows several sites with {service}; name --frontend and --realm", path.display())
            }
            (None, _) => bail!(
                "{} knows no site with {service}: ask the site for a link (`sluicegate link` there) and connect to that with --save, or name --frontend and --realm",
                path.display()
            ),
        }
    }

    /// Notes a site, or one more service of a site that is noted; what is noted of the same user there is replaced.
    pub(crate) fn note(&mut self, mut new: Site) {
        let is_same = |known: &Site| (&known.realm, &known.user) == (&new.realm, &new.user);
        if let Some(known) = self.site.iter().position(is_same) {
            let known = self.site.remove(known);
            let others = known.services.into_iter().filter(|service| !new.services.contains(service));
            new.services.extend(others.collect::<Vec<_>>());
        }
        self.site.push(new);
    }

    /// Writes it to `path`, whole or not at all.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let said = || format!("writing {}", path.display());
        fs::DirBuilder::new().recursive(true).mode(0o700).create(file::directory(path)).with_context(said)?;
        let text = toml::to_string(self).with_context(said)?;
        file::replace(path, text.as_bytes()).with_context(said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(realm: &str, user: &str, services: &[&str]) -> Site {
        Site {
            frontend: "203.0.113.1".to_owned(),
            realm: realm.to_owned(),
            user: user.to_owned(),
            site_key: None,
            password_file: None,
            key_file: None,
            services: services.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    #[test]
    fn a_link_is_read_as_it_was_written_and_a_cut_one_is_refused() {
        let text = "sluicegate://alice@[2001:db8::1]:5070/web?realm=example.net&key=abc-_1";
        let link: Link = text.parse().unwrap();
        assert_eq!((link.frontend.as_str(), link.site_key.as_deref()), ("[2001:db8::1]:5070", Some("abc-_1")));
        assert_eq!(link.to_string(), text);
        for len in 0..text.find("&key").unwrap() - "example.net".len() {
            assert!(text[..len].parse::<Link>().is_err(), "{}", &text[..len]);
        }
        let newer = "sluicegate://a@b/c?realm=d&colour=red".parse::<Link>().unwrap_err().to_string();
        assert!(newer.contains("`colour`"), "{newer}");
    }

    #[test]
    fn a_service_is_found_by_its_name_where_only_one_site_has_it() {
        let path = Path::new("p.toml");
        let mut profile = Profile::default();
        profile.note(site("a.example", "alice", &["web"]));
        profile.note(site("a.example", "alice", &["mail"]));
        profile.note(site("b.example", "al", &["mail"]));
        assert_eq!(profile.site.len(), 2, "one more service of the same site");
        assert_eq!(profile.find(None, "web", path).unwrap().realm, "a.example");
        assert_eq!(profile.find(Some("al"), "mail", path).unwrap().realm, "b.example");
        assert!(profile.find(None, "mail", path).unwrap_err().to_string().contains("several sites"));
        assert!(profile.find(None, "ssh", path).unwrap_err().to_string().contains("--save"));
    }

    #[test]
    fn a_profile_comes_back_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/config.toml");
        assert_eq!(Profile::read(&path).unwrap(), Profile::default());
        let mut profile = Profile::default();
        profile.note(site("a.example", "alice", &["web"]));
        profile.write(&path).unwrap();
        assert_eq!(Profile::read(&path).unwrap(), profile);
        fs::write(&path, "[[site]]\nrelm = 1\n").unwrap();
        assert!(format!("{:#}", Profile::read(&path).unwrap_err()).contains("relm"));
    }
}
