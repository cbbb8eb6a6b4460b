//! Where a connection stands, of whatever transport keeps some.

/// Where a connection stands. "In" is opened, or finished, by the outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Not TCP.
    None = 0,
    /// A SYN came in.
    SynIn = 1,
    /// A SYN went out.
    SynOut = 2,
    /// SYNs crossed: simultaneous open (RFC 5382 REQ-2a).
    SynBoth = 3,
    /// A SYN came in and was answered; the opener's ACK is missing.
    AnsweredIn = 4,
    /// A SYN went out and was answered; the opener's ACK is missing.
    AnsweredOut = 5,
    /// Open.
    Established = 6,
    /// The outside will send no more.
    FinIn = 7,
    /// The inside will send no more.
    FinOut = 8,
    /// Nobody will send more.
    Closing = 9,
    /// A reset passed. Kept for a while, because the reset may get lost behind the gate (RFC 7857 2.2).
    Reset = 10,
}

impl State {
    pub(crate) const fn from_code(code: u8) -> Self {
        match code {
            1 => Self::SynIn,
            2 => Self::SynOut,
            3 => Self::SynBoth,
            4 => Self::AnsweredIn,
            5 => Self::AnsweredOut,
            6 => Self::Established,
            7 => Self::FinIn,
            8 => Self::FinOut,
            9 => Self::Closing,
            10 => Self::Reset,
            _ => Self::None,
        }
    }

    /// Whether the long timer runs and the flow is not recycled: open or half closed.
    pub(crate) const fn is_lasting(self) -> bool {
        matches!(self, Self::Established | Self::FinIn | Self::FinOut)
    }

    /// Whether both ends have seen the other's SYN: a host then takes an ICMP error for a hint at most (RFC 5927 5.2).
    pub(crate) const fn is_synchronised(self) -> bool {
        self.is_lasting() || matches!(self, Self::Closing | Self::Reset)
    }

    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::None => "not TCP",
            Self::SynIn => "SYN from outside",
            Self::SynOut => "SYN from inside",
            Self::SynBoth => "simultaneous open",
            Self::AnsweredIn | Self::AnsweredOut => "SYN answered",
            Self::Established => "established",
            Self::FinIn => "finished by outside",
            Self::FinOut => "finished by inside",
            Self::Closing => "closing",
            Self::Reset => "reset",
        }
    }
}
