//! Capabilities as the paper means them.
