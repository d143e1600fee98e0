//! The states of a channel's message and of a side, and the transitions that the tables at the head of `channel` allow.

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MessageState {
    Gone,
    Between,
    HeaderBuffered,
    HeaderStreamed,
    BodyBuffered,
    BodyStreamed,
    Closing,
    ClosingHalf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PlacementState {
    Nowhere,
    Waiting,
    WaitingOwn,
    Placed,
    PlacedOwn,
    Leaving,
    ClosingSide,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    Open,
    Publish,
    Header,
    EmptyHeader,
    LargeHeader,
    Part,
    Rest,
    Declare,
    Qos,
    /// A consumer that may be on a shared connection.
    Consume,
    /// One that needs the client's own.
    Own,
    Select,
    Close,
    CloseConnection,
    Granted,
    Overflow,
    Ready,
    CloseOk,
    Confirm,
    Answer,
    PeerCloses,
    Lost,
    /// Lost for a fault of one of the clients.
    Faulted,
}

use Cause::*;
use MessageState::*;
use PlacementState::*;

/// All transitions of the incoming message. Any other pair of a state and a cause leaves the state as it is.
pub(super) const MESSAGES: &[(MessageState, Cause, &[MessageState])] = &[
    (Gone, Open, &[Between]),
    (Between, Publish, &[HeaderBuffered]),
    (Between, Close, &[Gone, Closing]),
    (Between, CloseConnection, &[Gone, Closing]),
    (Between, PeerCloses, &[Gone]),
    (HeaderBuffered, Header, &[BodyBuffered]),
    (HeaderBuffered, EmptyHeader, &[Between]),
    (HeaderBuffered, LargeHeader, &[BodyStreamed]),
    (HeaderBuffered, CloseConnection, &[Gone, Closing]),
    (HeaderBuffered, Granted, &[HeaderStreamed]),
    (HeaderBuffered, PeerCloses, &[Gone]),
    (HeaderStreamed, Header, &[BodyStreamed]),
    (HeaderStreamed, EmptyHeader, &[Between]),
    (HeaderStreamed, LargeHeader, &[BodyStreamed]),
    (HeaderStreamed, CloseConnection, &[Gone, ClosingHalf]),
    (HeaderStreamed, PeerCloses, &[Gone]),
    (BodyBuffered, Rest, &[Between]),
    (BodyBuffered, CloseConnection, &[Gone, Closing]),
    (BodyBuffered, Granted, &[BodyStreamed]),
    (BodyBuffered, PeerCloses, &[Gone]),
    (BodyStreamed, Rest, &[Between]),
    (BodyStreamed, CloseConnection, &[Gone, ClosingHalf]),
    (BodyStreamed, PeerCloses, &[Gone]),
    (BodyStreamed, Lost, &[Gone]),
    (Closing, Ready, &[Gone]),
    (Closing, CloseOk, &[Gone]),
    (Closing, Answer, &[Gone]),
    (Closing, PeerCloses, &[Gone]),
    (Closing, Lost, &[Gone]),
    (Closing, Faulted, &[Gone]),
    (ClosingHalf, Ready, &[Gone]),
    (ClosingHalf, CloseOk, &[Gone]),
    (ClosingHalf, Answer, &[Gone]),
    (ClosingHalf, PeerCloses, &[Gone]),
    (ClosingHalf, Lost, &[Gone]),
    (ClosingHalf, Faulted, &[Gone]),
];

/// All transitions of a side, of a channel that stays. One event may lead over several lines of the table in `channel`.
pub(super) const SIDES: &[(PlacementState, Cause, &[PlacementState])] = &[
    (Nowhere, EmptyHeader, &[Waiting, WaitingOwn, Placed, PlacedOwn]),
    (Nowhere, LargeHeader, &[WaitingOwn, PlacedOwn]),
    (Nowhere, Rest, &[Waiting, WaitingOwn, Placed, PlacedOwn]),
    (Nowhere, Declare, &[Waiting, WaitingOwn, Placed, PlacedOwn]),
    (Nowhere, Qos, &[Waiting, WaitingOwn, Placed, PlacedOwn]),
    (Nowhere, Consume, &[WaitingOwn, Placed, PlacedOwn]),
    (Nowhere, Own, &[WaitingOwn, PlacedOwn]),
    (Nowhere, Granted, &[WaitingOwn, PlacedOwn]),
    (Nowhere, Answer, &[Waiting, WaitingOwn, Placed, PlacedOwn, ClosingSide]),
    (Nowhere, PeerCloses, &[Waiting, Placed, ClosingSide]),
    (Nowhere, Lost, &[Waiting, WaitingOwn, PlacedOwn, ClosingSide]),
    (Nowhere, Faulted, &[WaitingOwn, PlacedOwn, ClosingSide]),
    (Waiting, LargeHeader, &[WaitingOwn, PlacedOwn]),
    (Waiting, Rest, &[WaitingOwn, PlacedOwn]),
    (Waiting, Own, &[WaitingOwn, PlacedOwn]),
    (Waiting, Granted, &[WaitingOwn, PlacedOwn]),
    (Waiting, Ready, &[Placed, ClosingSide]),
    (Waiting, Faulted, &[WaitingOwn]),
    (WaitingOwn, Ready, &[PlacedOwn, ClosingSide]),
    (WaitingOwn, CloseOk, &[PlacedOwn, ClosingSide]),
    (WaitingOwn, PeerCloses, &[PlacedOwn, ClosingSide]),
    (WaitingOwn, Lost, &[PlacedOwn, ClosingSide]),
    (WaitingOwn, Faulted, &[PlacedOwn, ClosingSide]),
    (Placed, EmptyHeader, &[Nowhere, Leaving]),
    (Placed, LargeHeader, &[Nowhere, Leaving]),
    (Placed, Rest, &[Nowhere, Leaving]),
    (Placed, Own, &[Nowhere, Leaving]),
    (Placed, Close, &[Nowhere, ClosingSide]),
    (Placed, CloseConnection, &[Nowhere, ClosingSide]),
    (Placed, Granted, &[Nowhere, Leaving]),
    (Placed, Overflow, &[Nowhere, Leaving]),
    (Placed, Ready, &[Nowhere, ClosingSide]),
    (Placed, Answer, &[Nowhere, Leaving, ClosingSide]),
    (PlacedOwn, Answer, &[ClosingSide]),
    // A closing channel had still to send methods behind the messages of a closed one.
    (Placed, Confirm, &[ClosingSide]),
    (PlacedOwn, Confirm, &[ClosingSide]),
    (PlacedOwn, PeerCloses, &[ClosingSide]),
    (PlacedOwn, Faulted, &[ClosingSide]),
    (Placed, PeerCloses, &[Nowhere, ClosingSide]),
    (Placed, Lost, &[Nowhere, Waiting, WaitingOwn, PlacedOwn, ClosingSide]),
    (Placed, Faulted, &[Nowhere, Waiting, WaitingOwn, PlacedOwn, Leaving, ClosingSide]),
    (PlacedOwn, Close, &[ClosingSide]),
    (PlacedOwn, CloseConnection, &[ClosingSide]),
    (PlacedOwn, Lost, &[Nowhere, WaitingOwn, ClosingSide]),
    (Leaving, CloseOk, &[Nowhere, WaitingOwn, Placed, PlacedOwn, ClosingSide]),
    (Leaving, PeerCloses, &[Nowhere, WaitingOwn, PlacedOwn, ClosingSide]),
    (Leaving, Lost, &[Nowhere, WaitingOwn, PlacedOwn, ClosingSide]),
    (Leaving, Faulted, &[Nowhere, WaitingOwn, PlacedOwn, ClosingSide]),
    (ClosingSide, CloseOk, &[Nowhere]),
    (ClosingSide, Lost, &[Nowhere, Waiting, WaitingOwn]),
    (ClosingSide, Faulted, &[Waiting, WaitingOwn]),
];

/// Lines of [`MESSAGES`] that happen too seldom to be met in each run.
pub(super) const RARE_MESSAGES: &[(MessageState, Cause, MessageState)] = &[(ClosingHalf, Faulted, Gone)];

/// Lines of [`SIDES`] that happen too seldom to be met in each run.
pub(super) const RARE: &[(PlacementState, Cause, PlacementState)] = &[
    (Nowhere, Consume, Placed),
    (Nowhere, Answer, WaitingOwn),
    (Nowhere, PeerCloses, ClosingSide),
    (Nowhere, Lost, Waiting),
    (Nowhere, Lost, WaitingOwn),
    (Nowhere, Lost, ClosingSide),
    (Waiting, Rest, WaitingOwn),
    (Waiting, Rest, PlacedOwn),
    (Waiting, Own, PlacedOwn),
    (Waiting, Faulted, WaitingOwn),
    (Placed, Ready, ClosingSide),
    (Placed, Lost, ClosingSide),
    (Placed, Confirm, ClosingSide),
    (PlacedOwn, Confirm, ClosingSide),
    (PlacedOwn, PeerCloses, ClosingSide),
    (PlacedOwn, Lost, ClosingSide),
    (PlacedOwn, Faulted, ClosingSide),
    (Placed, Faulted, ClosingSide),
    (Leaving, CloseOk, Placed),
    (Leaving, PeerCloses, ClosingSide),
    (ClosingSide, Lost, Nowhere),
];
