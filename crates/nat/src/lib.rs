//! UDP, TCP and ICMP translation and filtering.
