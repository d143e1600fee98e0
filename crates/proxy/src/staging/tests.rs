use tokio::sync::OwnedSemaphorePermit;
use transport::Outbox;

use super::*;

/// Counted bytes that each client has read when it starts to wait: beyond the amount that every client may hold.
const PIECE: usize = 64 * 1024;
const STAGED: usize = ALWAYS + PIECE;
const PATIENCE: Duration = Duration::from_secs(10);

struct Client {
    link: Arc<ClientLink>,
    budget: BudgetShare,
    /// The time of its next action.
    now: Instant,
}

impl Client {
    fn new(staging: &Arc<Staging>) -> Self {
        let outbox = Arc::new(Outbox::new(1024));
        let capabilities = amqp::Capabilities::default();
        let link = ClientLink::new(1, outbox, 0, capabilities, Arc::default(), Arc::default());
        Self { link: Arc::new(link), budget: BudgetShare::new(staging.clone()), now: transport::now() }
    }

    /// Sends a piece of a message and stops; returns whether there was space.
    fn stop_in_message(&mut self) -> bool {
        self.settle(STAGED)
    }

    fn settle(&mut self, staged: usize) -> bool {
        self.budget.settle(staged, &self.link, self.now)
    }

    fn wait(&mut self) {
        assert!(!self.stop_in_message());
        self.budget.line_up(&self.link);
    }

    /// Receives more of its message, for which there is no space.
    fn wait_with_more(&mut self, more: usize) {
        assert!(!self.settle(STAGED + more));
        self.budget.line_up(&self.link);
    }

    fn grant(&mut self) -> Option<Grant> {
        self.budget.take_grant(&self.link, self.now)
    }

    fn is_asked(&self) -> bool {
        let events = self.link.take_events();
        !events.is_empty() && events.iter().all(|event| matches!(event, Event::GiveWay))
    }

    fn leave(&mut self) {
        self.budget.leave(&self.link);
    }
}

/// Staging with plenty of connection permits for streams.
fn capacity(most: usize, streams_max: usize, patience: Duration) -> Arc<Staging> {
    Staging::new(most, streams_max, patience, Arc::new(Semaphore::new(100)))
}

fn many(staging: &Arc<Staging>, count: usize) -> Vec<Client> {
    (0..count).map(|_| Client::new(staging)).collect()
}

/// Whether a client would get space for this number of counted bytes.
fn finds_capacity(staging: &Arc<Staging>, counted: usize) -> bool {
    let mut client = Client::new(staging);
    let found = client.settle(ALWAYS + counted);
    client.leave();
    found
}

/// Whether no client waits and all `most` bytes are free.
fn is_all_free(staging: &Arc<Staging>, most: usize) -> bool {
    let is_exact = finds_capacity(staging, most) && !finds_capacity(staging, most + 1);
    is_exact && staging.counts() == (0, 0) && staging.bytes() == 0
}

#[test]
fn s2_small_amounts_are_always_staged_and_counted_bytes_are_bounded() {
    let staging = capacity(4 * PIECE, 1, PATIENCE);
    let mut clients = many(&staging, 10);
    let staged = clients.iter_mut().filter_map(|client| client.stop_in_message().then_some(())).count();
    assert_eq!(staged, 4);
    assert!(!finds_capacity(&staging, 1));
    let mut small = Client::new(&staging);
    assert!(small.settle(ALWAYS), "however much others hold");
    clients.push(small);
    clients.iter_mut().for_each(Client::leave);
    assert!(is_all_free(&staging, 4 * PIECE));
    assert!(clients.iter().all(|client| Arc::strong_count(&client.link) == 1), "their links are not kept");
}

#[test]
fn waiting_clients_continue_in_order_when_capacity_is_freed() {
    let staging = capacity(2 * PIECE, 0, PATIENCE);
    let mut holders = many(&staging, 2);
    assert!(holders.iter_mut().all(Client::stop_in_message));
    let mut line = many(&staging, 3);
    line.iter_mut().for_each(Client::wait);
    assert!(line.iter_mut().all(|client| client.grant().is_none() && client.budget.waits()));
    for (at, holder) in holders.iter_mut().enumerate() {
        assert!(holder.settle(0), "it is complete");
        assert_eq!(line[at].grant(), Some(Grant::Capacity));
        assert_eq!(line[at + 1].grant(), None);
    }
    assert!(!finds_capacity(&staging, 1), "a new client does not overtake the wait queue");
    line[0].leave();
    assert_eq!(line[2].grant(), Some(Grant::Capacity));
    assert_eq!(staging.counts(), (0, 0));
    assert!(!finds_capacity(&staging, 1), "two of them hold all of it");
    line[1..].iter_mut().for_each(Client::leave);
    assert!(is_all_free(&staging, 2 * PIECE));
}

#[test]
fn no_staging_capacity_is_lost_when_clients_leave() {
    let staging = capacity(PIECE, 1, PATIENCE);
    let mut holder = Client::new(&staging);
    assert!(holder.stop_in_message());
    let mut line = many(&staging, 5);
    line.iter_mut().for_each(Client::wait);
    // The first has the streaming connection and has not collected it; the next one leaves the queue, the
    // third gets the room, and so on.
    line[0].leave();
    line[2].leave();
    holder.leave();
    assert_eq!(line[1].grant(), Some(Grant::Stream));
    assert_eq!(staging.counts(), (1, 1));
    line[3].leave();
    assert_eq!(line[4].grant(), Some(Grant::Capacity));
    line[1].leave();
    line[4].leave();
    assert!(is_all_free(&staging, PIECE));
}

#[test]
fn the_number_of_streams_is_bounded() {
    let staging = capacity(PIECE, 3, PATIENCE);
    assert!(Client::new(&staging).stop_in_message());
    let mut line = many(&staging, 10);
    line.iter_mut().for_each(Client::wait);
    let streams = line.iter_mut().filter_map(Client::grant).filter(|grant| *grant == Grant::Stream).count();
    assert_eq!((streams, staging.counts()), (3, (7, 3)));
    let first = &mut line[0];
    first.budget.give_up_stream(&first.link);
    assert_eq!(line[3].grant(), Some(Grant::Stream));
}

#[test]
fn no_stream_is_granted_without_a_connection_permit() {
    let permits = Arc::new(Semaphore::new(0));
    let staging = Staging::new(PIECE, 3, PATIENCE, permits.clone());
    let mut holder = Client::new(&staging);
    assert!(holder.stop_in_message());
    let mut line = many(&staging, 3);
    line.iter_mut().for_each(Client::wait);
    assert_eq!(staging.counts(), (3, 0));
    // Released permits are found the next time the queue is served; the second streaming connection needs one
    // beyond the first's.
    for (free, streams) in [(1, 1), (2, 2)] {
        permits.add_permits(free - permits.available_permits());
        assert!(staging.press(holder.now));
        assert_eq!(staging.counts(), (3 - streams, streams));
    }
    assert_eq!(line[0].grant(), Some(Grant::Stream));
    holder.leave();
    assert_eq!(line[2].grant(), Some(Grant::Capacity));
}

#[test]
fn the_longest_holders_of_capacity_give_way_and_no_more_than_needed() {
    let staging = capacity(5 * PIECE, 0, PATIENCE);
    let mut holders = many(&staging, 5);
    let before = transport::now() + Duration::from_secs(60);
    for (holder, age) in holders.iter_mut().zip([30, 40, 20, 50, 5].map(Duration::from_secs)) {
        holder.now = before - age;
        assert!(holder.stop_in_message());
    }
    assert!(!staging.press(before), "nobody waits");
    let mut line = many(&staging, 2);
    line.iter_mut().for_each(Client::wait);
    assert!(staging.press(before));
    let asked: Vec<bool> = holders.iter().map(Client::is_asked).collect();
    assert_eq!(asked, [false, true, false, true, false]);
    // More waiters: still no client within its patience gives way, and none that waits itself.
    let mut more = many(&staging, 20);
    more.iter_mut().for_each(Client::wait);
    assert!(staging.press(before));
    let asked: Vec<bool> = holders.iter().map(Client::is_asked).collect();
    assert_eq!(asked, [true, true, true, true, false]);
    // One of the holders has sent more meanwhile and waits as well, so it cannot complete its message.
    holders[1].wait_with_more(1);
    assert!(staging.press(before));
    let asked: Vec<bool> = holders.iter().map(Client::is_asked).collect();
    assert_eq!(asked, [true, false, true, true, false]);
    assert!(line.iter().chain(&more).all(|client| client.link.take_events().is_empty()));
}

#[test]
fn a_client_with_more_of_an_admitted_message_is_served_before_new_ones() {
    let staging = capacity(2 * PIECE, 0, PATIENCE);
    let mut holders = many(&staging, 2);
    assert!(holders.iter_mut().all(Client::stop_in_message));
    let mut line = many(&staging, 3);
    line.iter_mut().for_each(Client::wait);
    assert!(holders[0].settle(0));
    assert_eq!(line[0].grant(), Some(Grant::Capacity));
    // It has more of the same message. The next free space is enough for it, or for one of the other waiters.
    line[0].wait_with_more(1);
    assert!(holders[1].settle(0));
    assert_eq!((line[0].grant(), line[1].grant(), line[2].grant()), (Some(Grant::Capacity), None, None));
}

#[test]
fn clients_that_each_hold_some_capacity_do_not_deadlock() {
    // There is no connection permit, so none of them may stream.
    let staging = Staging::new(2 * PIECE, 3, PATIENCE, Arc::new(Semaphore::new(0)));
    // Repeatedly, and whether the other client leaves or not.
    for leaves in [false, true, false] {
        let mut clients = many(&staging, 2);
        assert!(clients.iter_mut().all(Client::stop_in_message));
        clients.iter_mut().for_each(|client| client.wait_with_more(1));
        let [first, second] = &mut clients[..] else { unreachable!() };
        assert_eq!((first.grant(), second.grant()), (Some(Grant::Capacity), None));
        // Alone with more than the maximum, it continues read by read.
        for more in 2..5 {
            first.wait_with_more(more);
            assert_eq!(
                first.grant(),
                Some(Grant::Capacity),
                "the one that has waited with its message comes first"
            );
        }
        if leaves {
            second.leave();
        }
        assert!(first.settle(0));
        assert_eq!(second.grant(), (!leaves).then_some(Grant::Capacity));
        assert!(second.settle(0));
        assert!(is_all_free(&staging, 2 * PIECE));
    }
}

/// A client that stops in the middle of its message, with the permit of its stream's connection.
struct Stopped {
    client: Client,
    began: Instant,
    is_staged: bool,
    connection: Option<OwnedSemaphorePermit>,
}

impl Stopped {
    fn new(staging: &Arc<Staging>, now: Instant) -> Self {
        let mut client = Client { now, ..Client::new(staging) };
        let is_staged = client.stop_in_message();
        if !is_staged {
            client.budget.line_up(&client.link);
        }
        Self { client, began: now, is_staged, connection: None }
    }

    /// Collects its grant, and opens a connection if it may stream.
    fn go_on(&mut self, permits: &Arc<Semaphore>, now: Instant) {
        self.client.now = now;
        match self.client.grant() {
            Some(Grant::Stream) => {
                let permit = permits.clone().try_acquire_owned();
                self.connection = Some(permit.expect("streams are granted as far as permits are free"));
            }
            Some(Grant::Capacity) => self.is_staged = true,
            None => {}
        }
    }

    fn must_be_evicted(&mut self, now: Instant) -> bool {
        let is_asked = self.client.is_asked();
        let Client { link, budget, .. } = &mut self.client;
        is_asked && budget.overdue(Some(self.began), true, link, now).is_some() && budget.must_be_evicted(now)
    }
}

#[test]
fn p2_thousands_of_stopped_clients_leave_connections_free_and_get_capacity_in_turn() {
    const CLIENTS: usize = 15_000;
    const CONNECTIONS: usize = 4096;
    const STREAMS: usize = CONNECTIONS / 8;
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    let most = 256 * 1024 * 1024;
    let staging = Staging::new(most, STREAMS, PATIENCE, permits.clone());
    let (begin, step) = (transport::now(), PATIENCE / CHECKS_PER_TIMEOUT);
    let mut hostile: Vec<_> = (0..CLIENTS).map(|_| Stopped::new(&staging, begin)).collect();
    let (mut polite, mut waits_since, mut served) = (None::<Client>, begin, 0);
    for turn in 1..=60 {
        let now = begin + step * turn;
        hostile.iter_mut().for_each(|stopped| stopped.go_on(&permits, now));
        assert!(permits.available_permits() >= CONNECTIONS - STREAMS, "the rest is for others");
        let holders = hostile.iter().filter(|stopped| stopped.is_staged).count();
        assert!(holders * PIECE <= most, "{holders} hold room");
        // A client that completes its message as soon as it is read again, then another one.
        let client = polite.get_or_insert_with(|| {
            waits_since = now;
            let mut client = Client::new(&staging);
            client.wait();
            client
        });
        if client.grant().is_some() {
            client.leave();
            (polite, served) = (None, served + 1);
        }
        // Clients in front of it give way after the patience and a warning, about 4,600 at a time.
        assert!(now - waits_since <= PATIENCE * 6, "everyone's turn comes");
        staging.press(now);
        for stopped in
            hostile.iter_mut().filter_map(|stopped| stopped.must_be_evicted(now).then_some(stopped))
        {
            // The client is closed, and reconnects at once.
            stopped.client.leave();
            stopped.connection = None;
            *stopped = Stopped::new(&staging, now);
        }
    }
    assert!(served >= 2 && staging.counts().1 == STREAMS, "{served} were served");
}

#[tokio::test(start_paused = true)]
async fn the_wait_queue_is_served_until_it_is_empty() {
    let staging = capacity(PIECE, 0, PATIENCE);
    let mut holder = Client::new(&staging);
    assert!(holder.stop_in_message());
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    // The client that waited becomes the one that holds the capacity.
    for _ in 0..3 {
        let mut waiter = Client::new(&staging);
        waiter.wait();
        tokio::time::sleep(PATIENCE / 2).await;
        assert!(!holder.is_asked(), "its time is not up");
        tokio::time::sleep(PATIENCE).await;
        assert!(holder.is_asked());
        holder.leave();
        waiter.now = transport::now();
        assert_eq!(waiter.grant(), Some(Grant::Capacity));
        tokio::time::sleep(PATIENCE).await;
        assert_eq!(tasks(), 0, "nobody waits");
        holder = Client { now: transport::now(), ..Client::new(&staging) };
        waiter.leave();
        assert!(holder.stop_in_message());
    }
}
