/// What kind of request arrives: R-SOCA counts and refuses by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// An INVITE that begins a session (E_I).
    Invite,
    /// A REGISTER (E_R).
    Register,
    /// Any other request outside a dialog, such as OPTIONS or MESSAGE (E_O).
    Other,
    /// A request within a dialog (E_D).
    InDialog(InDialog),
}

impl Class {
    /// How many kinds there are outside dialogs.
    pub(crate) const OUTSIDE: usize = 3;

    /// The place of a kind outside dialogs, below [`Self::OUTSIDE`]; none for what is within one.
    pub(crate) const fn outside(self) -> Option<usize> {
        match self {
            Self::Invite => Some(0),
            Self::Register => Some(1),
            Self::Other => Some(2),
            Self::InDialog(_) => None,
        }
    }
}

/// The kinds of request within a dialog, which are counted apart from each other (section III-B).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InDialog {
    /// Ends the session: once a dialog.
    Bye,
    /// Acknowledges its 2xx: once a dialog.
    Ack,
    /// Takes the INVITE back: once a dialog.
    Cancel,
    /// Acknowledges a provisional response: once a dialog.
    Prack,
    /// Changes the session while it is being set up: once a dialog.
    Update,
    /// Refreshes or changes the session: N_r times a dialog.
    ReInvite,
    /// Everything else.
    Other,
}

impl InDialog {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Bye, Self::Ack, Self::Cancel, Self::Prack, Self::Update, Self::ReInvite, Self::Other];
}
