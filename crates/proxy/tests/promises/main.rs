//! The pool's promises, each in a file named after it, against a scripted broker.
//!
//! The broker has no socket and the clock is paused: time passes only while nobody has anything to do, so that no outcome
//! depends on the machine. Tests of addresses use ports and the real clock.

#[path = "../common/mod.rs"]
mod common;

mod a_broker_restart_is_no_outage;
mod a_channel_limit_hits_only_the_offender;
mod a_flood_starves_nobody;
mod a_memory_alarm_is_waited_out;
mod a_slow_consumer_delays_nobody;
mod a_stalled_connection_is_replaced;
mod a_whole_pool_runs_in_simulated_time;
mod an_alarm_blocks_publishers_alone;
mod an_outage_looks_like_one;
mod answers_overtake_nothing;
mod authentication_is_never_guessed;
mod blocked_reaches_late_joiners;
mod bodies_are_resplit;
mod bounded_consumers_share;
mod channels_are_as_many_as_promised;
mod channels_are_opened_at_the_brokers_pace;
mod channels_are_reused_only_when_clean;
mod clients_go_on_in_another_process;
mod confirms_in_flight_are_awaited;
mod connections_are_shared_evenly;
mod connections_are_waited_for;
mod connections_that_are_refused_end_nobody;
mod errors_pass_exactly;
mod exclusive_queues_stay_private;
mod late_answers_are_waited_for;
mod methods_come_behind_closed_channels;
mod moved_channels_keep_their_order;
mod new_secrets_move_nothing;
mod no_message_is_confirmed_for_another;
mod nothing_is_replayed_for_those_who_do_it;
mod only_the_offender_ends;
mod several_upstreams_share_the_load;
mod staging_is_waited_for;
mod streams_go_on_where_they_were;
mod transient_topology_is_declared_again;
mod upstreams_see_who_is_behind;
mod warm_path_needs_no_round_trip;
mod what_the_departed_wrote_is_kept;
mod what_waits_for_all_is_bounded;
