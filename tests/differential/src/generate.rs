//! Writes random programs: mostly legal, so that they get somewhere, and slightly illegal.

mod exchanges;
mod flavours;
mod messages;
mod queues;

use crate::program::{DeclareExchange, DeclareQueue, Op, Program, REPLIES, Step};
use crate::rng::Rng;
use crate::users::{CONNECTIONS, UNLIMITED};
use flavours::Flavours;

/// The program that `seed` stands for, which does not wait.
pub(crate) fn generate(seed: u64) -> Program {
    write(Writer::new(seed, false), MAX_STEPS)
}

/// The program that `seed` stands for, in which time passes once.
pub(crate) fn generate_timed(seed: u64) -> Program {
    let mut writer = Writer::new(seed, true);
    let at = writer.rng.below(MAX_TIMED_STEPS) as usize;
    let mut program = write(writer, MAX_TIMED_STEPS);
    // Towards the end, when there is something to see.
    let at = program.len() / 3 + at % (program.len() * 2 / 3);
    program.insert(at, Step { connection: 0, channel: 1, op: Op::Wait });
    program
}

/// Enough to reach deep states, few enough to read.
const MAX_STEPS: u64 = 40;
/// All steps but the wait must be done before anything short-lived is due.
const MAX_TIMED_STEPS: u64 = 24;

fn write(mut writer: Writer, most: u64) -> Program {
    let mut program = Program::new();
    // A world to begin with, for most operations need one.
    for _ in 0..2 + writer.rng.below(3) {
        program.push(writer.step(Writer::declare_queue));
    }
    for _ in 0..writer.rng.below(4) {
        program.push(writer.step(Writer::declare_exchange));
    }
    let steps = 10 + writer.rng.below(most - 10);
    while (program.len() as u64) < steps {
        let operation = writer.operation();
        program.push(writer.step(operation));
    }
    program
}

type Operation = fn(&mut Writer) -> Op;

/// What may come next, and how often in relation to the others.
const OPERATIONS: &[(u64, Operation)] = &[
    (6, Writer::declare_queue),
    (4, Writer::declare_exchange),
    (7, |w| Op::Bind(w.binding())),
    (2, |w| Op::Unbind(w.binding())),
    (30, Writer::publish),
    (8, Writer::get),
    (11, Writer::consume),
    (3, Writer::cancel),
    (16, Writer::settle),
    (2, |_| Op::Recover),
    (4, Writer::qos),
    (2, |w| Op::Purge { queue: w.queue() }),
    (3, Writer::delete_queue),
    (2, Writer::delete_exchange),
    (2, |_| Op::ConfirmSelect),
    (1, |_| Op::TxSelect),
    (2, |w| w.transaction()),
    (2, |_| Op::CloseChannel),
    (1, |w| if w.rng.chance(50) { Op::CloseConnection } else { Op::DropConnection }),
];

struct Writer {
    rng: Rng,
    flavours: Flavours,
    connections: u8,
    channels: u64,
    /// Declarations so far, for most redeclarations are the same again.
    queues: Vec<DeclareQueue>,
    exchanges: Vec<DeclareExchange>,
    /// Where something is to be done instead of just anywhere: `tx.commit` where `tx.select` was.
    transactional: Option<(u8, u16)>,
    /// Where consumers of direct replies may be.
    requesters: Vec<(u8, u16)>,
}

impl Writer {
    fn new(seed: u64, timed: bool) -> Self {
        let mut rng = Rng::new(seed);
        let flavours = Flavours::choose(&mut rng, timed);
        let most = if flavours.users { CONNECTIONS } else { UNLIMITED };
        let (connections, channels) = (1 + rng.below(most.into()) as u8, 1 + rng.below(3));
        Self {
            rng,
            flavours,
            connections: if flavours.users { connections.max(UNLIMITED + 1) } else { connections },
            channels,
            queues: Vec::new(),
            exchanges: Vec::new(),
            transactional: None,
            requesters: Vec::new(),
        }
    }

    fn operation(&mut self) -> Operation {
        let sum: u64 = OPERATIONS.iter().map(|(weight, _)| weight).sum();
        let mut at = self.rng.below(sum);
        for (weight, operation) in OPERATIONS {
            if at < *weight {
                return *operation;
            }
            at -= weight;
        }
        OPERATIONS[0].1
    }

    fn step(&mut self, operation: Operation) -> Step {
        let op = operation(self);
        let mut connection = self.rng.below(self.connections.into()) as u8;
        // Most things are done by those who may.
        if connection >= UNLIMITED && self.rng.chance(30) {
            connection = 0;
        }
        let mut channel = 1 + self.rng.below(self.channels) as u16;
        match &op {
            Op::TxSelect => self.transactional = Some((connection, channel)),
            Op::TxCommit | Op::TxRollback if self.rng.chance(90) => {
                if let Some(place) = self.transactional {
                    (connection, channel) = place;
                }
            }
            Op::Consume(consume) if consume.queue == REPLIES => self.requesters.push((connection, channel)),
            Op::Publish(publish) if publish.reply_to.is_some() && !self.requesters.is_empty() => {
                (connection, channel) =
                    self.requesters[self.rng.below(self.requesters.len() as u64) as usize];
            }
            _ => {}
        }
        Step { connection, channel, op }
    }

    fn transaction(&mut self) -> Op {
        match self.transactional {
            None if self.rng.chance(90) => Op::TxSelect,
            _ if self.rng.chance(60) => Op::TxCommit,
            _ => Op::TxRollback,
        }
    }

    fn name(&mut self, letter: char, of: u64) -> String {
        format!("{letter}{}", self.rng.below(of))
    }

    /// A queue, likely one that exists.
    fn queue(&mut self) -> String {
        if self.flavours.policies && self.rng.chance(60) {
            return self.queue_with_policy();
        }
        match self.rng.below(100) {
            0..4 => String::new(),
            4..7 => "gen0".to_owned(),
            7..12 => self.name('q', 5),
            12..15 if self.flavours.replies => self.reply_queue(),
            _ => self.name('q', 3),
        }
    }

    fn exchange(&mut self) -> String {
        if self.flavours.policies && self.rng.chance(40) {
            return self.rng.pick(&["e5", "e6", "e7"]).to_owned();
        }
        if self.flavours.hash && self.rng.chance(40) {
            return HASH_EXCHANGE.to_owned();
        }
        if self.flavours.users && self.rng.chance(15) {
            return "amq.topic".to_owned();
        }
        match self.rng.below(100) {
            0..3 => String::new(),
            3..8 => "amq.direct".to_owned(),
            8..10 => "amq.topic".to_owned(),
            10..13 => self.name('e', 5),
            _ => self.name('e', 3),
        }
    }
}

/// The only name that a consistent hash exchange has.
const HASH_EXCHANGE: &str = "e8";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::to_text;

    #[test]
    fn a_seed_means_the_same_program() {
        assert_eq!(generate(7), generate(7));
        assert_ne!(generate(7), generate(8));
        assert_eq!(generate_timed(7), generate_timed(7));
    }

    #[test]
    fn a_thousand_programs_use_everything() {
        let text: String = (0..1000).map(|seed| to_text(&generate(seed))).collect();
        for op in ["declare_queue", "unbind", "recover", "tx_commit", "tx_rollback", "drop_connection", "qos"]
        {
            assert!(text.contains(&format!("\"op\":\"{op}\"")), "{op}");
        }
        for part in [
            "\"q5\"",
            "\"connection\":4",
            "reply_to",
            "\"reply0.1\"",
            "x-consistent-hash",
            "quorum",
            "x-delivery-limit",
            "\"BCC\"",
            "x-single-active-consumer",
            "x-max-priority",
        ] {
            assert!(text.contains(part), "{part}");
        }
    }

    #[test]
    fn time_passes_once_in_timed_programs_and_in_no_others() {
        let waits = |program: &Program| program.iter().filter(|step| step.op == Op::Wait).count();
        for seed in 0..200 {
            assert_eq!((waits(&generate(seed)), waits(&generate_timed(seed))), (0, 1), "seed {seed}");
        }
    }
}
