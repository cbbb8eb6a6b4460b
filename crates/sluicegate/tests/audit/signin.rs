//! Who signs in, as what, and what a thief of the frontend holds.
