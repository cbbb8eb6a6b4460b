//! Talks to a node and prints what it says.

use std::path::Path;

use anyhow::{Context, Result};
use hyper::Method;
use serde_json::Value;
use sluicegate_admin::{
    Api,
    client::{CallError, call, call_here},
};
use sluicegate_frontend::{Catalog, KeyHolder};
use sluicegate_policy::PerUser;
use sluicegate_store::audit;

use crate::{
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

    /// Where keys are copied to from a key holder on another host, if there is one.
    pub(crate) fn keys(&self) -> Option<&Path> {
        self.outline.keys.as_ref().map(|keys| keys.file.as_path())
    }

    /// Where a frontend that does not run has its users' secrets kept.
    fn keyholder(&self) -> Result<KeyHolder> {
        Ok(match &self.outline.keys {
            Some(keys) => KeyHolder::Elsewhere { file: keys.file.clone(), site: keys.site_key.parse()? },
            None => KeyHolder::Thread { directory: sluicegate_frontend::keyholder_directory(&self.outline.state) },
        })
    }

    /// Calls the node's API.
    pub(crate) fn call(&self, method: Method, uri: &str, body: Option<Value>) -> Result<Value> {
        let socket = self.outline.control_socket();
        let answer = self.runtime.block_on(call(&socket, method.clone(), uri, body.as_ref()));
        match (answer, &self.outline.realm) {
            (Err(CallError::NotRunning { .. }), Some(realm)) if is_object(uri) => {
                let dir = self.outline.frontend_state();
                sluicegate_keys::private_directory(&self.outline.state)?;
                sluicegate_keys::private_directory(&dir)?;
                let (services, rules) = (self.outline.services.clone(), self.outline.rules.clone());
                // What users may hold is for a running frontend to say.
                let objects = (services, rules, PerUser::default());
                let catalog = Catalog::open(&dir, realm, objects, &self.keyholder()?)?;
                let audit = self.outline.audit.as_ref().map(audit::Files::open).transpose()?;
                let audit = audit.map(audit::Files::start).transpose()?;
                let api = Api { catalog: Some(catalog), audit: audit.clone(), ..Api::default() };
                let answer = self.runtime.block_on(call_here(api, method, uri, body.as_ref()));
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
pub(crate) fn print_json(value: &Value) -> Result<()> {
    out::line(format_args!("{}", serde_json::to_string_pretty(value)?));
    Ok(())
}

/// Prints an array of objects as a table of `(heading, key)` columns.
pub(crate) fn table(rows: &Value, columns: &[(&str, &str)]) {
    let mut lines = vec![columns.iter().map(|(heading, _)| (*heading).to_owned()).collect::<Vec<_>>()];
    for row in rows.as_array().into_iter().flatten() {
        lines.push(columns.iter().map(|(_, key)| cell(row.get(*key))).collect());
    }
    let width = |column: usize| lines.iter().filter_map(|line| line.get(column)).map(String::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    for line in &lines {
        let padded: Vec<String> = line.iter().zip(&widths).map(|(text, width)| format!("{text:width$}")).collect();
        out::line(format_args!("{}", padded.join("  ").trim_end()));
    }
}

/// One value as a person writes it.
pub(crate) fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Bool(flag)) => if *flag { "yes" } else { "no" }.to_owned(),
        Some(Value::Array(items)) => items.iter().map(|item| cell(Some(item))).collect::<Vec<_>>().join(","),
        Some(other) => other.to_string(),
    }
}
