//! The real binary as a router, and what it counted.

use std::{thread, time::Duration};

use super::Kind;
use crate::bench::lab::BenchLab;
use sluicegate_site::{LabError, Node, NodeFile, binary::Binary};

/// Room for flows: few enough for [`super::traffic::UNCACHED_FLOWS`] to push each other out.
const LINES_MAX: usize = super::traffic::UNCACHED_FLOWS / 4;
/// What a router counts is to be read no sooner than this after it happened.
const PUBLISHED: Duration = Duration::from_millis(300);

/// A running router.
pub(super) struct Router {
    name: String,
    binary: Binary,
    node: Node,
}

/// Packets until now.
pub(super) struct Counts {
    /// Of one kind, as what they are.
    passed: u64,
    /// Found wanting.
    demoted: u64,
}

/// A lab with our router in the middle.
pub(super) fn start(binary: &Binary, backend: &str) -> Result<(BenchLab, Router), LabError> {
    let lab = BenchLab::build(backend, false)?;
    let binary = Binary { directory: binary.directory.join(format!("router-{backend}")), ..binary.clone() };
    let more =
        format!("role = \"router\"\nboundary = true\nlink_rate = \"none\"\ncapability_lines_max = {LINES_MAX}\n");
    let file = NodeFile::new("router").gate(("outside", "inside"), backend, &more);
    let node = Node::start(&binary, &lab.lab, "gate", "gate", &file)?;
    node.ready()?;
    Ok((lab, Router { name: backend.to_owned(), binary, node }))
}

impl Router {
    pub(super) fn counts(&self, kind: Kind) -> Result<Counts, LabError> {
        thread::sleep(PUBLISHED);
        let Some(status) = self.node.status() else {
            return Err(self.wrong(format!("no status; it said:\n{}", self.binary.last_words("router"))));
        };
        let router = &status["gate"]["router"];
        let demoted = router["demoted"].as_object().into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum();
        Ok(Counts { passed: router["passed"][kind.counted_as()].as_u64().unwrap_or(0), demoted })
    }

    /// Packets that were demoted are other packets than those that the row is about.
    pub(super) fn require_passed(&self, kind: Kind, before: &Counts) -> Result<(), LabError> {
        let after = self.counts(kind)?;
        let (passed, demoted) = (after.passed - before.passed, after.demoted - before.demoted);
        if passed == 0 || demoted * 100 > passed {
            return Err(self.wrong(format!("{passed} packets passed as {}, {demoted} were demoted", kind.counted_as())));
        }
        Ok(())
    }

    fn wrong(&self, reason: String) -> LabError {
        LabError::process(&format!("router {}", self.name), reason)
    }
}
