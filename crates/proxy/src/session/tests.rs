mod acks;
mod confirms;
mod pipelining;
mod states;

use amqp::Negotiated;
use amqp::frame::{write_content_header, write_frame, write_method};
use amqp::method::basic;
use amqp::properties::NO_PROPERTIES;
use transport::Outbox;

use super::*;
use crate::PoolConfig;
use crate::config::QUEUED_CLIENT_MAX;
use crate::staging::STAGED_PROGRESS;

/// A session whose upstream does not answer, so that its frames wait for placement.
fn session() -> ProxySession {
    session_of(Pool::new(PoolConfig::new(Vec::new())))
}

fn session_of(pool: Arc<Pool>) -> ProxySession {
    let client = ClientSide {
        outbox: Arc::new(Outbox::new(1024)),
        negotiated: Negotiated { channel_max: 10, frame_max: 131_072, heartbeat_secs: 0 },
        capabilities: amqp::Capabilities::ALL,
        client_properties: amqp::FieldTable::new(),
    };
    let info = ClientInfo { id: 1, peer: "127.0.0.1:1".to_owned() };
    let credentials = Arc::new(Credentials::plain("user", "password"));
    ProxySession::new(pool, credentials, "/", &info, client, transport::now())
}

/// A client's data: a message for each of these channels, as separate frames.
fn frames(numbers: &[u16]) -> Vec<u8> {
    let mut out = Vec::new();
    for &number in numbers {
        write_method(&mut out, number, basic::Publish { routing_key: "q", ..Default::default() });
        write_content_header(&mut out, number, 4, NO_PROPERTIES);
        write_frame(&mut out, FrameKind::Body, number, |out| out.extend_from_slice(b"body"));
    }
    out
}

fn take(session: &mut ProxySession, bytes: &[u8]) {
    let mut taken = 0;
    while let Some(frame) = Frame::parse(&bytes[taken..], 0).unwrap() {
        taken += frame.wire_len();
        taken += session.handle_frame(frame, &bytes[taken..], transport::now()).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn s3_an_idle_session_holds_no_buffer_for_messages() {
    let mut session = session();
    let mut open = Vec::new();
    for number in [1, 2] {
        write_method(&mut open, number, channel_methods::Open::default());
    }
    take(&mut session, &open);
    take(&mut session, &frames(&[1, 2, 2, 1]));
    assert!(session.spare.capacity() > 0, "within a batch there is one for the next message");
    session.flush(transport::now());
    let queued = |session: &ProxySession| {
        let partial = session
            .channels
            .iter()
            .map(|(_, channel)| channel.incoming().map_or(0, |message| message.buffered().len()));
        partial.sum::<usize>() + session.spare.capacity()
    };
    assert_eq!(queued(&session), 0);

    // Only the incomplete message is kept.
    let half = frames(&[2]);
    let body = half.len() - 12;
    take(&mut session, &half[..body]);
    session.flush(transport::now());
    assert_eq!((session.staged, session.spare.capacity()), (body, 0));
    take(&mut session, &half[body..]);
    session.flush(transport::now());
    assert_eq!(queued(&session), 0);
    assert_eq!(session.queued, 5 * frames(&[1]).len());
}

const FRAME: usize = 32 * 1024;

/// The beginning of a message of [`STAGING_LIMIT`], with this number of body frames.
fn beginning(frames: usize) -> Vec<u8> {
    beginning_of(STAGING_LIMIT, frames)
}

fn beginning_of(size: u64, frames: usize) -> Vec<u8> {
    let mut out = Vec::new();
    write_method(&mut out, 1, basic::Publish { routing_key: "q", ..Default::default() });
    write_content_header(&mut out, 1, size, NO_PROPERTIES);
    out.extend(bodies(frames));
    out
}

fn bodies(frames: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..frames {
        write_frame(&mut out, FrameKind::Body, 1, |out| out.extend_from_slice(&[0; FRAME]));
    }
    out
}

/// Feeds a batch from the client to the session.
fn batch(session: &mut ProxySession, bytes: &[u8]) {
    take(session, bytes);
    session.flush(transport::now());
    session.handle_nudge(transport::now()).unwrap();
}

/// Three sessions that have each begun a message: the first holds all the buffer space, the second the only stream, and
/// the third waits.
fn three_that_began() -> [ProxySession; 3] {
    let patience = Duration::from_secs(10);
    let config =
        PoolConfig { staging_total_max: FRAME, staging_patience: patience, ..PoolConfig::new(Vec::new()) };
    let pool = Pool::new(PoolConfig { max_connections: 1, ..config });
    let mut sessions = [0; 3].map(|_| session_of(pool.clone()));
    let mut open = Vec::new();
    write_method(&mut open, 1, channel_methods::Open::default());
    for session in &mut sessions {
        take(session, &open);
        batch(session, &beginning(1));
    }
    sessions
}

#[tokio::test(start_paused = true)]
async fn s2_a_client_without_staging_capacity_is_not_read_until_some_is_free() {
    let [mut holder, stream, mut waiting] = three_that_began();
    assert!(stream.budget.has_stream() && stream.staged == 0);
    assert!(holder.has_capacity() && stream.has_capacity() && !waiting.has_capacity());
    batch(&mut holder, &bodies(STAGING_LIMIT as usize / FRAME - 1));
    assert_eq!(holder.staged, 0);
    waiting.handle_nudge(transport::now()).unwrap();
    assert!(waiting.has_capacity());
}

#[tokio::test(start_paused = true)]
async fn p2_only_clients_that_could_have_completed_their_message_give_way() {
    let [mut holder, mut stream, mut waiting] = three_that_began();
    let now = transport::now();
    let after = |secs| now + Duration::from_secs(secs);
    for session in [&mut holder, &mut stream, &mut waiting] {
        assert_eq!(session.give_way(after(9)), Ok(()));
    }
    assert_eq!(waiting.give_way(after(1000)), Ok(()), "it is not read");
    batch(&mut stream, &bodies(2));
    assert_eq!(stream.give_way(after(11)), Ok(()), "it has used its time");
    batch(&mut stream, &bodies(1));
    assert_eq!(stream.give_way(after(20)), Ok(()));
    assert_eq!(stream.give_way(after(22)), Ok(()), "perhaps it could not be read until a moment ago");
    let fault = stream.give_way(after(24)).unwrap_err();
    assert_eq!(fault.code, ReplyCode::ResourceError);
    assert_eq!(holder.give_way(after(13)), Ok(()));
    let fault = holder.give_way(after(15)).unwrap_err();
    assert_eq!(fault.text, "message incomplete for 15 s while the staging buffer is full");
    drop(waiting);
    assert_eq!(holder.give_way(after(1000)), Ok(()), "nobody waits any more");
}

#[tokio::test(start_paused = true)]
async fn p2_clients_done_with_or_completing_their_messages_do_not_give_way() {
    let [mut holder, _stream, mut waiting] = three_that_began();
    batch(&mut holder, &bodies(STAGING_LIMIT as usize / FRAME - 1));
    drop(waiting);
    let mut client = session_of(holder.pool.clone());
    let mut open = Vec::new();
    write_method(&mut open, 1, channel_methods::Open::default());
    take(&mut client, &open);
    batch(&mut client, &beginning_of(16 * FRAME as u64, 1));
    waiting = session_of(holder.pool.clone());
    take(&mut waiting, &open);
    batch(&mut waiting, &beginning(1));
    assert!(client.has_capacity() && !waiting.has_capacity());
    let after = |secs| transport::now() + Duration::from_secs(secs);
    // A limited rate: a quarter of the largest message within the patience.
    take(&mut client, &bodies(8));
    assert_eq!(client.give_way(after(100)), Ok(()));
    take(&mut client, &bodies(7));
    // It is asked to give way in the middle of a batch, between two messages.
    for secs in [1000, 2000, 3000, 4000] {
        assert_eq!(client.give_way(after(secs)), Ok(()));
    }
    assert!(client.has_capacity() && client.pool.staging().counts().0 == 1);
}

#[tokio::test(start_paused = true)]
async fn p2_time_in_which_a_client_is_not_read_does_not_count() {
    let [mut holder, _stream, _waiting] = three_that_began();
    let now = transport::now();
    let after = |secs| now + Duration::from_secs(secs);
    // The upstream does not answer for long.
    let unanswered = holder.pool.config().replay_client_max;
    holder.link.replay_buffer.add(unanswered);
    assert_eq!(holder.give_way(after(100)), Ok(()));
    holder.link.replay_buffer.release(unanswered);
    assert_eq!(holder.give_way(after(109)), Ok(()), "its time begins when it was read again");
    assert_eq!(holder.give_way(after(111)), Ok(()), "it is warned");
    assert!(holder.give_way(after(113)).is_err());
}

#[tokio::test(start_paused = true)]
async fn p2_progress_of_other_messages_excuses_an_incomplete_message_only_for_a_while() {
    let [mut holder, _stream, _waiting] = three_that_began();
    let now = transport::now();
    let mut give_way = |secs| {
        holder.budget.count_came(STAGED_PROGRESS);
        holder.give_way(now + Duration::from_secs(secs))
    };
    for secs in [10, 20, 30, 40, 49] {
        assert_eq!(give_way(secs), Ok(()));
    }
    assert_eq!(give_way(60), Ok(()), "it is warned");
    assert!(give_way(62).is_err());
}

#[tokio::test(start_paused = true)]
async fn p2_a_client_with_a_connection_of_its_own_streams_instead_of_giving_way() {
    let [mut holder, _stream, mut waiting] = three_that_began();
    let mut more = Vec::new();
    write_method(&mut more, 2, channel_methods::Open::default());
    write_method(&mut more, 2, amqp::method::queue::Declare { exclusive: true, ..Default::default() });
    take(&mut holder, &more);
    assert!(holder.staged > 0 && matches!(holder.own, UpstreamLink::Opening));
    assert_eq!(holder.give_way(transport::now() + Duration::from_secs(11)), Ok(()));
    holder.flush(transport::now());
    assert_eq!(holder.staged, 0);
    waiting.handle_nudge(transport::now()).unwrap();
    assert!(waiting.has_capacity());
}

#[tokio::test(start_paused = true)]
async fn s2_a_client_streams_messages_beyond_its_own_staging_budget() {
    let mut session = session();
    let frames = STAGING_LIMIT as usize / FRAME - 1;
    let most = STAGING_BUDGET / STAGING_LIMIT as usize;
    for number in 1..=most as u16 + 1 {
        assert!(matches!(session.own, UpstreamLink::None), "{} bytes", session.staged);
        let mut begun = Vec::new();
        write_method(&mut begun, number, channel_methods::Open::default());
        write_method(&mut begun, number, basic::Publish { routing_key: "q", ..Default::default() });
        write_content_header(&mut begun, number, STAGING_LIMIT, NO_PROPERTIES);
        for _ in 0..frames {
            write_frame(&mut begun, FrameKind::Body, number, |out| out.extend_from_slice(&[0; FRAME]));
        }
        batch(&mut session, &begun);
    }
    assert!(matches!(session.own, UpstreamLink::Opening) && session.staged < STAGING_BUDGET);
}

#[tokio::test(start_paused = true)]
async fn s2_a_client_is_not_read_while_many_of_its_bytes_wait_for_a_connection() {
    let pool = Pool::new(PoolConfig { queued_total_max: 3 * FRAME, ..PoolConfig::new(Vec::new()) });
    let mut large = Vec::new();
    write_method(&mut large, 1, channel_methods::Open::default());
    large.extend(beginning_of(FRAME as u64, 1));
    let [mut first, mut second] = [0; 2].map(|_| session_of(pool.clone()));
    batch(&mut first, &large);
    batch(&mut second, &large);
    assert!(first.has_capacity() && second.has_capacity());
    batch(&mut first, &beginning_of(FRAME as u64, 1));
    assert!(!first.has_capacity() && !second.has_capacity(), "more than all clients together may have");
    assert!(session_of(pool).has_capacity(), "it has nothing yet");
    let mut alone = session();
    batch(&mut alone, &large[..large.len() - beginning_of(FRAME as u64, 1).len()]);
    while alone.has_capacity() {
        batch(&mut alone, &beginning_of(FRAME as u64, 1));
        assert!(alone.queued < QUEUED_CLIENT_MAX + 2 * FRAME);
    }
}

#[tokio::test(start_paused = true)]
async fn p4_a_stream_is_kept_if_an_exclusive_queue_needs_its_connection() {
    let [_holder, stream, mut waiting] = three_that_began();
    // The client had sent more before it was known that it has to wait.
    let mut more = Vec::new();
    write_method(&mut more, 2, channel_methods::Open::default());
    write_method(&mut more, 2, amqp::method::queue::Declare { exclusive: true, ..Default::default() });
    take(&mut waiting, &more);
    assert!(!waiting.has_capacity() && matches!(waiting.own, UpstreamLink::Opening));
    drop(stream);
    waiting.handle_nudge(transport::now()).unwrap();
    assert!(
        waiting.staged == 0 && !waiting.budget.has_stream(),
        "it streams on its own connection, which it keeps"
    );
    take(&mut waiting, &bodies(STAGING_LIMIT as usize / FRAME - 1));
    waiting.handle_nudge(transport::now()).unwrap();
    assert!(matches!(waiting.own, UpstreamLink::Opening));
}

#[tokio::test(start_paused = true)]
async fn s1_the_number_of_unanswered_secrets_is_bounded() {
    let mut session = session_of(Pool::new(PoolConfig::new(Vec::new())));
    let outcomes: Vec<_> = (0..10).map(|secret| session.update_secret(&[secret])).collect();
    assert!(outcomes[..4].iter().all(|outcome| matches!(outcome, Ok(false))));
    assert!(
        outcomes[4..]
            .iter()
            .all(|outcome| outcome.as_ref().is_err_and(|fault| fault.code == ReplyCode::ResourceError))
    );
}
