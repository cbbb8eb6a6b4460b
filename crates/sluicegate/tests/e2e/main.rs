//! The whole system on the real binary: gate, frontend, agents and stock programs in network namespaces.
//!
//! Each test builds a lab, starts the nodes that it is about, and measures on the wire. They need root, and some need
//! programs of other people; a test that cannot run says `skipped: needs …`, or fails where `SLUICEGATE_NO_SKIP=1` is
//! set. `cargo test -p sluicegate --test e2e` runs them.

/// A test that runs with both back ends: `NAME::packet` and `NAME::xdp` call `BODY("packet")` and `BODY("xdp")`.
macro_rules! on_each_datapath {
    ($(#[$doc:meta])* $name:ident, $programs:expr, $body:path) => {
        $(#[$doc])*
        mod $name {
            #[test]
            fn packet() {
                if let Some(_turn) = $crate::support::turn($programs) {
                    $body("packet");
                }
            }

            #[test]
            fn xdp() {
                if let Some(_turn) = $crate::support::turn($programs) {
                    $body("xdp");
                }
            }
        }
    };
}

/// A test that runs once, with the `packet` back end.
macro_rules! on_packet {
    ($name:ident, $programs:expr, $body:path) => {
        #[test]
        fn $name() {
            if let Some(_turn) = $crate::support::turn($programs) {
                $body("packet");
            }
        }
    };
}

mod calls;
mod capabilities;
mod hosts;
mod lifetime;
mod macs;
mod observing;
mod outages;
mod refusals;
mod scans;
mod security;
mod serving;
mod support;
mod threats;
mod tools;
mod windows;
