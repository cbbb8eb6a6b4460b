//! The `sluicegate` command.

fn main() {}
