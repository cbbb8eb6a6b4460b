//! A deterministic event world on the protocol crates, and the papers' claims as checks.
