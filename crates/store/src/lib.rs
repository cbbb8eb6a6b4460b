//! The store, its embedded back end, and the feed between frontend and gate.
