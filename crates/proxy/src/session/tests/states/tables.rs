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
    Unplaced,
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
    /// A consumer that needs the client's own connection.
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
    /// The connection is lost because of a fault of one of the clients.
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

/// All transitions of a side of a channel that stays. One event may combine several transitions of the table in `channel`.
pub(super) const SIDES: &[(PlacementState, Cause, &[PlacementState])] = &[
    (Unplaced, EmptyHeader, &[Waiting, WaitingOwn, Placed, PlacedOwn]),
    (Unplaced, LargeHeader, &[WaitingOwn, PlacedOwn]),
    (Unplaced, Rest, &[Waiting, WaitingOwn, Placed, PlacedOwn]),
    (Unplaced, Declare, &[Waiting, WaitingOwn, Placed, PlacedOwn]),
    (Unplaced, Qos, &[Waiting, WaitingOwn, Placed, PlacedOwn]),
    (Unplaced, Consume, &[WaitingOwn, Placed, PlacedOwn]),
    (Unplaced, Own, &[WaitingOwn, PlacedOwn]),
    (Unplaced, Granted, &[WaitingOwn, PlacedOwn]),
    (Unplaced, Answer, &[Waiting, WaitingOwn, Placed, PlacedOwn, ClosingSide]),
    (Unplaced, PeerCloses, &[Waiting, Placed, ClosingSide]),
    (Unplaced, Lost, &[Waiting, WaitingOwn, PlacedOwn, ClosingSide]),
    (Unplaced, Faulted, &[WaitingOwn, PlacedOwn, ClosingSide]),
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
    (Placed, EmptyHeader, &[Unplaced, Leaving]),
    (Placed, LargeHeader, &[Unplaced, Leaving]),
    (Placed, Rest, &[Unplaced, Leaving]),
    (Placed, Own, &[Unplaced, Leaving]),
    (Placed, Close, &[Unplaced, ClosingSide]),
    (Placed, CloseConnection, &[Unplaced, ClosingSide]),
    (Placed, Granted, &[Unplaced, Leaving]),
    (Placed, Overflow, &[Unplaced, Leaving]),
    (Placed, Ready, &[Unplaced, ClosingSide]),
    (Placed, Answer, &[Unplaced, Leaving, ClosingSide]),
    (PlacedOwn, Answer, &[ClosingSide]),
    // A closing channel still had methods to send after the messages of a closed channel.
    (Placed, Confirm, &[ClosingSide]),
    (PlacedOwn, Confirm, &[ClosingSide]),
    (PlacedOwn, PeerCloses, &[ClosingSide]),
    (PlacedOwn, Faulted, &[ClosingSide]),
    (Placed, PeerCloses, &[Unplaced, ClosingSide]),
    (Placed, Lost, &[Unplaced, Waiting, WaitingOwn, PlacedOwn, ClosingSide]),
    (Placed, Faulted, &[Unplaced, Waiting, WaitingOwn, PlacedOwn, Leaving, ClosingSide]),
    (PlacedOwn, Close, &[ClosingSide]),
    (PlacedOwn, CloseConnection, &[ClosingSide]),
    (PlacedOwn, Lost, &[Unplaced, WaitingOwn, ClosingSide]),
    (Leaving, CloseOk, &[Unplaced, WaitingOwn, Placed, PlacedOwn, ClosingSide]),
    (Leaving, PeerCloses, &[Unplaced, WaitingOwn, PlacedOwn, ClosingSide]),
    (Leaving, Lost, &[Unplaced, WaitingOwn, PlacedOwn, ClosingSide]),
    (Leaving, Faulted, &[Unplaced, WaitingOwn, PlacedOwn, ClosingSide]),
    (ClosingSide, CloseOk, &[Unplaced]),
    (ClosingSide, Lost, &[Unplaced, Waiting, WaitingOwn]),
    (ClosingSide, Faulted, &[Waiting, WaitingOwn]),
];

/// Transitions of [`MESSAGES`] that are too rare to occur in each run.
pub(super) const RARE_MESSAGES: &[(MessageState, Cause, MessageState)] = &[(ClosingHalf, Faulted, Gone)];

/// Transitions of [`SIDES`] that are too rare to occur in each run.
pub(super) const RARE: &[(PlacementState, Cause, PlacementState)] = &[
    (Unplaced, Consume, Placed),
    (Unplaced, Answer, WaitingOwn),
    (Unplaced, PeerCloses, ClosingSide),
    (Unplaced, Lost, Waiting),
    (Unplaced, Lost, WaitingOwn),
    (Unplaced, Lost, ClosingSide),
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
    (ClosingSide, Lost, Unplaced),
];
