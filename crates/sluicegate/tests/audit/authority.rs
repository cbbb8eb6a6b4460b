//! Who may say what: relayed SIP, dialogs, identities, service agents.
