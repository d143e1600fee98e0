//! Permissions hold regardless of concurrent declarations and deletions.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use amqp::FieldValue;
use broker::*;

use crate::world::*;

/// Rounds of declaring and deleting: each is an opportunity for a race.
const ROUNDS: usize = 20_000;

/// The session of a user who may do everything but write to the exchange `secret`.
fn limited(world: &World) -> AuthorisedSession {
    let password = Some(PasswordHash::new(b"u"));
    world.broker.put_user(UserSpec { name: "u".into(), password, ..UserSpec::guest() });
    let all_but_secret = Permissions { write: "^(?!secret$)".into(), ..Permissions::all() };
    world.vhost.set_permissions("u", Some(&all_but_secret)).unwrap();
    let identity = world.broker.authenticate("u", b"u", true).unwrap();
    world.broker.authorised(&identity, "/").unwrap()
}

/// Runs `attempt` repeatedly while `disturb` is run [`ROUNDS`] times.
fn race(disturb: impl Fn(), attempt: impl Fn() + Sync) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                attempt();
            }
        });
        (0..ROUNDS).for_each(|_| disturb());
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn no_queue_is_created_with_a_forbidden_dead_letter_exchange() {
    let world = world();
    let authorised = limited(&world);
    let arguments = table(&[("x-dead-letter-exchange", FieldValue::text("secret"))]);
    let forbidden = QueueDeclare { name: "q", arguments: raw(&arguments), ..Default::default() };
    let harmless = QueueDeclare { name: "q", ..Default::default() };
    race(
        || {
            let _ = world.vhost.declare_queue(OTHER, &harmless, world.now);
            let _ = world.vhost.delete_queue(OTHER, "q", false, false);
        },
        || {
            let declared = authorised.declare_queue(ME, &forbidden, world.now);
            assert!(
                declared.is_err(),
                "messages of the queue go to an exchange that its owner may not write to"
            );
        },
    );
}

#[test]
fn no_exchange_is_created_with_a_forbidden_alternate() {
    let world = world();
    let authorised = limited(&world);
    let arguments = table(&[("alternate-exchange", FieldValue::text("secret"))]);
    let harmless = ExchangeDeclare { name: "e", kind: "fanout", ..Default::default() };
    let forbidden = ExchangeDeclare { arguments: raw(&arguments), ..harmless };
    race(
        || {
            let _ = world.vhost.declare_exchange(&harmless);
            let _ = world.vhost.delete_exchange("e", false);
        },
        || {
            let declared = authorised.declare_exchange(&forbidden);
            assert!(
                declared.is_err(),
                "what is published to it goes to an exchange that its owner may not write to"
            );
        },
    );
}
