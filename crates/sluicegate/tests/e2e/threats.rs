//! Whoever stands on the way of a flow with capabilities, or loses its memory there: what it can do, and what not.

mod onlookers;
mod restarts;
mod site;

on_each_datapath!(alone a_killed_router_comes_back_and_its_flows_with_it, &[], super::restarts::keeps_its_secrets);
on_packet!(alone a_router_that_forgot_its_secrets_demotes_until_senders_have_asked_again, &[], restarts::forgets);
on_each_datapath!(
    alone a_sniffer_on_the_senders_lan_can_spend_n_bytes_there_and_nothing_elsewhere,
    &[],
    super::onlookers::sniffer
);
on_packet!(
    alone a_compromised_router_can_spend_what_it_sees_and_make_up_nothing_for_others,
    &[],
    onlookers::compromised_router
);
on_packet!(alone a_host_that_grants_in_the_receivers_name_grants_n_bytes_to_that_receiver_alone, &[], onlookers::grantor);
