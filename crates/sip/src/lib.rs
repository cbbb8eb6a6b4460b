//! SIP messages, transactions, digest and session descriptions without I/O.
