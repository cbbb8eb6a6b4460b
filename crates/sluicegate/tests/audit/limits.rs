//! Nobody uses up another's share.
