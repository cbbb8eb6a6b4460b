//! What a packet carries, and how long that is.

use sluicegate_wire::capability::{Kind, NONCE_LEN, regular_len, request_len};

/// How a packet goes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Without capability, and not as a request: legacy.
    Bare,
    Request,
    Renewal,
    List,
    Nonce,
}

impl Form {
    /// Whether the packet is charged to a capability.
    pub(super) const fn is_regular(self) -> bool {
        matches!(self, Self::Renewal | Self::List | Self::Nonce)
    }

    /// The kind of header on the wire; bare packets that must have one carry a request without slots.
    pub(super) const fn kind(self) -> Kind {
        match self {
            Self::Bare | Self::Request => Kind::Request,
            Self::Renewal => Kind::Renewal,
            Self::List => Kind::Capabilities,
            Self::Nonce => Kind::Nonce,
        }
    }
}

/// Bytes of the header, with `entries` slots or capabilities and without return information.
pub(super) const fn len(form: Form, entries: usize) -> usize {
    match form {
        Form::Bare => 0,
        Form::Request => request_len(entries),
        Form::Renewal | Form::List => regular_len(entries),
        Form::Nonce => NONCE_LEN,
    }
}
