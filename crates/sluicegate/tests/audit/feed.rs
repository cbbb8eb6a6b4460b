//! The connection between frontend and gate, and what each may say on it.
