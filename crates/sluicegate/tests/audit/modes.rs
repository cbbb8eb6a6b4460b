//! What a packet has to prove, and to whom.
