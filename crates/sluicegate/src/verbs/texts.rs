//! Generated texts: completions and the man page.

use std::io;

use anyhow::Result;
use clap::CommandFactory;

use crate::cli::Cli;

pub(crate) fn completions(shell: clap_complete::Shell) {
    clap_complete::generate(shell, &mut Cli::command(), "sluicegate", &mut io::stdout());
}

pub(crate) fn man() -> Result<()> {
    clap_mangen::Man::new(Cli::command()).render(&mut io::stdout())?;
    Ok(())
}
