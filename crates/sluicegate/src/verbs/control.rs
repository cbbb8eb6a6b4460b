//! Talks to a node and prints what it says.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use sluicegate_admin::{
    Api,
    client::{CallError, ask, ask_here},
};
use sluicegate_api::{Endpoint, Question};
use sluicegate_frontend::{Catalog, KeyHolder};
use sluicegate_policy::PerUser;
use sluicegate_store::audit;

use crate::{
    cli::Reading,
    config::{self, Outline},
    out,
};

/// A node, found through its configuration file; users, groups and services also of one that does not run.
pub(crate) struct Node {
    outline: Outline,
    runtime: tokio::runtime::Runtime,
}

impl Node {
    /// The node whose configuration is `file`.
    pub(crate) fn of(file: &Path) -> Result<Self> {
        let outline = config::outline(file)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
        Ok(Self { outline, runtime })
    }

    /// The realm of its users.
    pub(crate) fn realm(&self) -> Result<&str> {
        self.outline.realm.as_deref().context("this node is no frontend; ask the frontend's node")
    }

    /// Whether keys come from a key holder on another host.
    pub(crate) const fn has_keys_from_elsewhere(&self) -> bool {
        self.outline.keys.is_some()
    }

    /// Where they are copied to, if they are.
    pub(crate) fn keys_file(&self) -> Option<&Path> {
        self.outline.keys.as_ref()?.file.as_deref()
    }

    /// Names of the frontends that have this one's users.
    pub(crate) fn replicas(&self) -> &[String] {
        &self.outline.replicas
    }

    /// Where a frontend that does not run has its users' secrets kept.
    fn keyholder(&self) -> Result<KeyHolder> {
        Ok(match &self.outline.keys {
            Some(keys) => KeyHolder::Elsewhere { file: keys.file.clone(), site: keys.site_key.parse()? },
            None => KeyHolder::Thread { directory: sluicegate_frontend::keyholder_directory(&self.outline.state) },
        })
    }

    /// Puts a question to the node.
    pub(crate) fn ask<A: DeserializeOwned>(&self, question: &Question<A>) -> Result<A> {
        let socket = self.outline.control_socket();
        let answer = self.runtime.block_on(ask(&socket, question));
        match (answer, &self.outline.realm) {
            (Err(CallError::NotRunning { .. }), Some(realm)) if is_object(&question.uri) => {
                let dir = self.outline.frontend_state();
                sluicegate_keys::private_directory(&self.outline.state)?;
                sluicegate_keys::private_directory(&dir)?;
                // What users may hold is for a running frontend to say.
                let objects = (self.outline.configured.clone(), PerUser::default());
                let catalog = Catalog::open(&dir, realm, objects, &self.keyholder()?)?;
                let audit = self.outline.audit.as_ref().map(audit::Files::open).transpose()?;
                let audit = audit.map(audit::Files::start).transpose()?;
                let api = Api { catalog: Some(catalog), audit: audit.clone(), ..Api::default() };
                let answer = self.runtime.block_on(ask_here(api, question));
                audit.iter().for_each(audit::Audit::flush);
                Ok(answer?)
            }
            (answer, _) => Ok(answer?),
        }
    }
}

/// Whether a call is about what the store holds.
fn is_object(uri: &str) -> bool {
    ["/v1/users", "/v1/groups", "/v1/services"].iter().any(|prefix| uri.starts_with(prefix))
}

/// Prints indented JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    out::line(format_args!("{}", serde_json::to_string_pretty(value)?));
    Ok(())
}

/// Prints rows under their headings.
pub(crate) fn table<const N: usize>(headings: [&str; N], rows: impl IntoIterator<Item = [String; N]>) {
    let lines: Vec<[String; N]> = std::iter::once(headings.map(str::to_owned)).chain(rows).collect();
    let widths: [usize; N] =
        std::array::from_fn(|column| lines.iter().map(|line| line[column].len()).max().unwrap_or(0));
    for line in &lines {
        let padded: Vec<String> = line.iter().zip(widths).map(|(text, width)| format!("{text:width$}")).collect();
        out::line(format_args!("{}", padded.join("  ").trim_end()));
    }
}

/// Prints what `endpoint` lists: as JSON, or in a table with a row for each.
pub(crate) fn list<T: Serialize + DeserializeOwned, const N: usize>(
    reading: &Reading,
    endpoint: &Endpoint<(), Vec<T>>,
    headings: [&str; N],
    row: impl Fn(T) -> [String; N],
) -> Result<()> {
    let found = Node::of(&reading.node.config)?.ask(&endpoint.ask(&()))?;
    if reading.json {
        return print_json(&found);
    }
    table(headings, found.into_iter().map(row));
    Ok(())
}

/// One value as a person writes it.
pub(crate) fn cell(value: &impl Serialize) -> String {
    written(&serde_json::to_value(value).unwrap_or_default())
}

/// The same of what is JSON already.
pub(crate) fn written(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(flag) => if *flag { "yes" } else { "no" }.to_owned(),
        Value::Array(items) => items.iter().map(written).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}
