//! Users, groups, services and rules; one pure decision and its explanation.
