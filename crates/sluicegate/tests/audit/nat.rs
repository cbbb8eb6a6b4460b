//! Translation that no sender can turn against another.
