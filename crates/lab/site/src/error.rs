use std::{io, process::Output};

/// Why a lab could not be built or a worker could not do its part.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// The kernel refused a step; the text says which.
    #[error("{what}: {source}")]
    Kernel {
        /// The step.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A network namespace could not be made.
    #[error(
        "cannot make a network namespace: {0}; run as root, or allow user namespaces \
         (sysctl user.max_user_namespaces and kernel.unprivileged_userns_clone)"
    )]
    Namespace(io::Error),
    /// A lab refers to a host, link or address that it does not have.
    #[error("the lab plan is wrong: {0}")]
    Plan(String),
    /// An attack was asked for outside a lab.
    #[error("refusing to attack: {0}; attacks run only in the namespaces of a lab made by this program")]
    NotALab(String),
    /// A worker's specification cannot be used.
    #[error("worker `{role}`: {reason}")]
    Spec {
        /// The worker's role.
        role: String,
        /// What is wrong with the specification.
        reason: String,
    },
    /// A process of the lab ended early, hung or said something that nobody expected.
    #[error("process {name}: {reason}")]
    Process {
        /// The process as the lab calls it.
        name: String,
        /// What happened.
        reason: String,
    },
    /// The report could not be written.
    #[error("cannot write the report: {0}")]
    Report(String),
}

impl LabError {
    /// What became of the process of this name.
    #[must_use]
    pub fn process(name: &str, reason: impl Into<String>) -> Self {
        Self::Process { name: name.to_owned(), reason: reason.into() }
    }

    /// The text that a command of this name has printed.
    ///
    /// # Errors
    /// [`LabError::Process`] with what it said on standard error, if it failed.
    pub(crate) fn printed(name: &str, output: &Output) -> Result<String, Self> {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            return Ok(text(&output.stdout));
        }
        Err(Self::process(name, text(&output.stderr).trim()))
    }
}

/// Says which step an [`io::Error`] belongs to.
pub trait During<T> {
    /// Turns the error into [`LabError::Kernel`].
    ///
    /// # Errors
    /// Those of `self`.
    fn during(self, what: impl FnOnce() -> String) -> Result<T, LabError>;
}

impl<T, E: Into<io::Error>> During<T> for Result<T, E> {
    fn during(self, what: impl FnOnce() -> String) -> Result<T, LabError> {
        self.map_err(|source| LabError::Kernel { what: what(), source: source.into() })
    }
}
