use std::net::Ipv4Addr;
use std::time::Duration;

use super::*;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn counter(total: usize, per_ip: usize, per_user: usize) -> Arc<ConnectionCounter> {
    ConnectionCounter::new(ConnectionLimits { total, per_ip, per_user })
}

fn reached(what: Limited, scope: Scope, most: usize) -> LimitReached {
    LimitReached { what, scope, most }
}

#[test]
fn a_released_connection_can_be_admitted_again() {
    let counter = counter(2, 1, 0);
    let place = counter.enter(Some(HERE)).unwrap();
    assert_eq!(counter.enter(Some(HERE)).unwrap_err(), reached(Limited::Connections, Scope::PerIp, 1));
    let _unix = counter.enter(None).unwrap();
    assert_eq!(counter.enter(None).unwrap_err(), reached(Limited::Connections, Scope::Total, 2));
    drop(place);
    let _again = counter.enter(Some(HERE)).unwrap();
    assert_eq!(counter.total(), 2);
}

#[test]
fn a_mapped_address_counts_as_the_one_that_it_maps() {
    let counter = counter(0, 1, 0);
    let _place = counter.enter(Some(HERE)).unwrap();
    let mapped = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
    assert!(counter.enter(Some(mapped.into())).is_err());
}

#[test]
fn the_addresses_of_an_ipv6_network_count_as_one() {
    let counter = counter(0, 1, 0);
    let from = |address: &str| Some(address.parse().unwrap());
    let mut first = counter.enter(from("2001:db8:0:1::1")).unwrap();
    assert_eq!(
        counter.enter(from("2001:db8:0:1:ffff::2")).unwrap_err(),
        reached(Limited::Connections, Scope::PerIp, 1)
    );
    let resumed = counter.resume(from("2001:db8:0:2::1"));
    assert!(counter.enter(from("2001:db8:0:2::2")).is_err());
    first.set_client_address(from("2001:db8:0:3::1")).unwrap();
    assert!(counter.enter(from("2001:db8:0:3::2")).is_err());
    drop((first, resumed));
    assert!(counter.counts.lock().by_ip.members.is_empty());
}

#[test]
fn a_place_is_counted_where_its_client_is() {
    let counter = counter(0, 1, 0);
    let mut first = counter.enter(None).unwrap();
    first.set_client_address(Some(HERE)).unwrap();
    let mut second = counter.enter(None).unwrap();
    assert_eq!(second.set_client_address(Some(HERE)), Err(reached(Limited::Connections, Scope::PerIp, 1)));
    let there = Ipv4Addr::new(192, 0, 2, 1).into();
    second.set_client_address(Some(there)).unwrap();
    first.set_client_address(Some(Ipv4Addr::new(192, 0, 2, 2).into())).unwrap();
    second.set_client_address(Some(HERE)).unwrap();
    drop((first, second));
    assert!(counter.counts.lock().by_ip.members.is_empty());
}

#[test]
fn users_are_counted_apart_and_forgotten() {
    let counter = counter(0, 0, 1);
    let mut first = counter.enter(None).unwrap();
    let mut second = counter.enter(None).unwrap();
    first.log_in("a").unwrap();
    assert_eq!(second.log_in("a"), Err(reached(Limited::Connections, Scope::PerUser, 1)));
    second.log_in("b").unwrap();
    drop((first, second));
    assert!(counter.counts.lock().by_user.members.is_empty());
}

#[test]
fn a_rate_of_connections_outlives_the_connections() {
    let rate = Scopes { total: 0, per_ip: 2, per_user: 0 };
    let counter = ConnectionCounter::new(Limits { connection_rate: rate, ..Limits::default() });
    drop(counter.enter(Some(HERE)).unwrap());
    drop(counter.enter(Some(HERE)).unwrap());
    let refused = counter.enter(Some(HERE)).unwrap_err();
    assert_eq!(refused, reached(Limited::ConnectionRate, Scope::PerIp, 2));
    assert_eq!(refused.to_string(), "connection rate limit per address (2/s) is reached");
    drop(counter.enter(Some(Ipv4Addr::new(192, 0, 2, 1).into())).unwrap());
}

#[test]
fn a_refusal_by_the_rate_of_all_counts_for_nobody() {
    let rate = Scopes { total: 1, per_ip: 0, per_user: 0 };
    let counter = ConnectionCounter::new(Limits { connection_rate: rate, ..Limits::default() });
    let place = counter.enter(Some(HERE)).unwrap();
    let refused = counter.enter(Some(HERE)).unwrap_err();
    assert_eq!(refused, reached(Limited::ConnectionRate, Scope::Total, 1));
    drop(place);
    assert_eq!(counter.total(), 0);
    assert!(counter.counts.lock().by_ip.members.is_empty());
}

#[test]
fn addresses_are_forgotten_once_their_rate_has_recovered() {
    let limits = Limits { connection_rate: Scopes { total: 0, per_ip: 1, per_user: 0 }, ..Limits::default() };
    let mut members: Members<usize> = Members::default();
    let counter = ConnectionCounter::new(limits);
    let now = Instant::now();
    let visit = |members: &mut Members<usize>, stranger: usize, at: Instant| {
        counter.add(members, &stranger, Scope::PerIp, at).unwrap();
        members.remove(&stranger, &limits, Scope::PerIp, at);
    };
    for stranger in 0..SWEEP_AT_LEAST {
        visit(&mut members, stranger, now);
    }
    assert_eq!(members.members.len(), SWEEP_AT_LEAST);
    visit(&mut members, SWEEP_AT_LEAST, now + Duration::from_secs(1));
    assert_eq!(members.members.len(), 1);
}

#[test]
fn channels_are_counted_by_scope_and_given_back() {
    let channels = Scopes { total: 0, per_ip: 0, per_user: 3 };
    let counter = ConnectionCounter::new(Limits { channels, ..Limits::default() });
    let enter = || {
        let mut place = counter.enter(None).unwrap();
        place.log_in("a").unwrap();
        place
    };
    let (mut first, mut second) = (enter(), enter());
    first.open_channel().unwrap();
    first.open_channel().unwrap();
    second.open_channel().unwrap();
    assert_eq!(second.open_channel(), Err(reached(Limited::Channels, Scope::PerUser, 3)));
    first.keep_channels(1);
    second.open_channel().unwrap();
    drop(first);
    second.open_channel().unwrap();
    assert!(second.open_channel().is_err());
}

#[test]
fn a_client_over_its_receive_rates_waits_for_the_longest_debt() {
    let receive_rate = Scopes { total: 1000, per_ip: 100, per_user: 0 };
    let counter = ConnectionCounter::new(Limits { receive_rate, ..Limits::default() });
    let place = counter.enter(Some(HERE)).unwrap();
    let now = Instant::now();
    assert_eq!(place.received(100, now), None);
    let wait = place.received(200, now).unwrap() - now;
    assert!(wait > Duration::from_millis(1900) && wait <= Duration::from_secs(2), "{wait:?}");
    drop(place);
    // Reconnecting does not pay off the debt.
    let place = counter.enter(Some(HERE)).unwrap();
    assert!(place.received(1, now).is_some());
}

#[test]
fn an_alarm_counts_and_refuses_nobody() {
    let scopes = Scopes { total: 1, per_ip: 0, per_user: 0 };
    let limits = Limits { connections: scopes, channels: scopes, receive_rate: scopes, ..Limits::default() };
    let counter = ConnectionCounter::new(Limits { alarm_only: true, ..limits });
    let _first = counter.enter(None).unwrap();
    let mut second = counter.enter(None).unwrap();
    second.open_channel().unwrap();
    second.open_channel().unwrap();
    assert_eq!(second.received(1000, Instant::now()), None);
    let counts: HashMap<_, _> = counter.exceeded().iter().collect();
    assert_eq!((counts["connections"], counts["channels"], counts["receive_rate"]), (1, 1, 1));
    assert_eq!(counts["connections_per_ip"], 0);
}

#[test]
fn connections_admitted_by_another_process_are_counted_beyond_the_limits() {
    let one = Scopes { total: 1, per_ip: 1, per_user: 1 };
    let limits = Limits { connections: one, connection_rate: one, ..Limits::default() };
    let counter = ConnectionCounter::new(limits);
    let mut places: Vec<_> = (0..3).map(|_| counter.resume(Some(HERE))).collect();
    places.iter_mut().for_each(|place| place.resume("ada"));
    assert_eq!(counter.in_use().connections, Scopes { total: 3, per_ip: 3, per_user: 3 });
    assert!(counter.enter(Some(HERE)).is_err());
    places.clear();
    assert_eq!(counter.in_use(), InUse::default());
    // Nor does it take from the rate of those who come.
    counter.enter(Some(HERE)).unwrap().log_in("ada").unwrap();
}

#[test]
fn new_limits_apply_to_new_connections_and_channels_and_count_existing_ones() {
    let counter = ConnectionCounter::new(Limits::default());
    let mut first = counter.enter(Some(HERE)).unwrap();
    first.open_channel().unwrap();
    let scopes = Scopes { total: 0, per_ip: 1, per_user: 0 };
    counter.set_limits(Limits { connections: scopes, channels: scopes, ..Limits::default() });
    assert_eq!(counter.enter(Some(HERE)).unwrap_err(), reached(Limited::Connections, Scope::PerIp, 1));
    assert_eq!(first.open_channel(), Err(reached(Limited::Channels, Scope::PerIp, 1)));
    counter.set_limits(Limits::default());
    first.open_channel().unwrap();
    assert!(counter.enter(Some(HERE)).is_ok());
}
