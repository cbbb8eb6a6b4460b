//! Defects of the SIP server that let somebody in or out.
