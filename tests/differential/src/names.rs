//! Names: short in programs, unique on the brokers, and short again in what is compared.

use crate::program::Step;

/// Translates names of one run of one program.
#[derive(Debug)]
pub(crate) struct Names {
    /// In front of every name of this run, so that many programs may run on one broker.
    prefix: String,
    /// Queues that the server named, in order.
    queues: Vec<String>,
    /// Consumer tags that the server made up, in order.
    tags: Vec<String>,
    /// Names of the queues of direct replies, in order, with the connection and channel that they lead to.
    replies: Vec<((u8, u16), String)>,
    /// Connection and channel of each step.
    places: Vec<(u8, u16)>,
}

impl Names {
    pub(crate) fn new(prefix: String, program: &[Step]) -> Self {
        let places = program.iter().map(|step| (step.connection, step.channel)).collect();
        Self { prefix, queues: Vec::new(), tags: Vec::new(), replies: Vec::new(), places }
    }

    /// The name on the wire of a name, routing key or tag in a program.
    pub(crate) fn wire(&self, name: &str) -> String {
        if let Some(known) = name.strip_prefix("gen").and_then(|n| self.queues.get(n.parse::<usize>().ok()?))
        {
            return known.clone();
        }
        if let Some(known) = name.strip_prefix("ctag").and_then(|n| self.tags.get(n.parse::<usize>().ok()?)) {
            return known.clone();
        }
        if let Some(known) = name.strip_prefix("reply").and_then(|place| {
            let (connection, channel) = place.split_once('.')?;
            let place = (connection.parse().ok()?, channel.parse().ok()?);
            self.replies.iter().rev().find(|(of, _)| *of == place)
        }) {
            return known.1.clone();
        }
        if name.starts_with("reply") {
            // Nobody asks there yet.
            return format!("{}{name}", self.prefix);
        }
        match name.as_bytes() {
            [b'q' | b'e', b'0'..=b'9'] | [b'q' | b'e', b'0'..=b'9', b'.', ..] => {
                format!("{}{name}", self.prefix)
            }
            _ => name.to_owned(),
        }
    }

    /// Takes note of the queue for replies that a message names: it is the one of the channel that published it.
    pub(crate) fn learn_reply(&mut self, text: &str) {
        let Some(at) = text.find(REPLIES) else { return };
        let length = text[at..].find([' ', ',']).unwrap_or(text.len() - at);
        let secret = &text[at..at + length];
        let step =
            text.strip_prefix(BODY).and_then(|rest| rest.split_once('.')).and_then(|(n, _)| n.parse().ok());
        let place = step.and_then(|step: usize| self.places.get(step));
        if let Some(&place) = place
            && !self.replies.iter().any(|(_, known)| known == secret)
        {
            self.replies.push((place, secret.to_owned()));
        }
    }

    /// Takes note of a name that the server made up.
    pub(crate) fn learn(&mut self, name: &str) {
        let list = match name {
            _ if name.starts_with(MADE_UP_QUEUE) => &mut self.queues,
            _ if name.starts_with(MADE_UP_TAG) => &mut self.tags,
            _ => return,
        };
        if !list.iter().any(|known| known == name) {
            list.push(name.to_owned());
        }
    }

    /// Text from the server with the names of the program again.
    pub(crate) fn tidy(&self, text: &str) -> String {
        let mut text = text.replace(&self.prefix, "");
        for (made_up, short) in [(&self.queues, "gen"), (&self.tags, "ctag")] {
            for (n, name) in made_up.iter().enumerate() {
                text = text.replace(name.as_str(), &format!("{short}{n}"));
            }
        }
        for (n, ((connection, channel), name)) in self.replies.iter().enumerate() {
            let earlier = self.replies[..n].iter().filter(|(of, _)| *of == (*connection, *channel)).count();
            text = text.replace(name.as_str(), &format!("reply{connection}.{channel} (number {earlier})"));
        }
        // A queue that was named, but refused.
        while let Some(at) = text.find(MADE_UP_QUEUE) {
            let name =
                text[at + MADE_UP_QUEUE.len()..].find(|c: char| !c.is_alphanumeric() && !"-_".contains(c));
            let end = name.map_or(text.len(), |length| at + MADE_UP_QUEUE.len() + length);
            text.replace_range(at..end, "made-up");
        }
        text
    }
}

const MADE_UP_QUEUE: &str = "amq.gen-";
const MADE_UP_TAG: &str = "amq.ctag-";
/// How the name of a queue for direct replies starts, once it has its secret.
const REPLIES: &str = "amq.rabbitmq.reply-to.";
/// How the body of each message starts; the number of its step comes next.
pub(crate) const BODY: &str = "message ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_the_way_to_the_broker_and_back() {
        let mut names = Names::new("p_".into(), &[]);
        assert_eq!(names.wire("q1"), "p_q1");
        assert_eq!(names.wire("a.q1"), "a.q1");
        assert_eq!(names.wire("q1.#"), "p_q1.#");
        assert_eq!(names.wire("gen0"), "gen0", "not known yet");
        names.learn("amq.gen-xyz");
        names.learn("amq.gen-xyz");
        assert_eq!(names.wire("gen0"), "amq.gen-xyz");
        assert_eq!(names.tidy("bad 'amq.gen-a_b-C' in vhost"), "bad 'made-up' in vhost");
        assert_eq!(names.tidy("no queue 'p_q1' or 'amq.gen-xyz'"), "no queue 'q1' or 'gen0'");
    }

    #[test]
    fn a_reply_queue_is_identified_by_its_requester() {
        let step = |connection, channel| Step { connection, channel, op: crate::program::Op::Recover };
        let mut names = Names::new("p_".into(), &[step(0, 1), step(1, 2)]);
        names.learn_reply(
            "message 1.0 (exchange '', key 'q') reply_to=amq.rabbitmq.reply-to.g1.x==, redelivered",
        );
        assert_eq!(names.wire("reply1.2"), "amq.rabbitmq.reply-to.g1.x==");
        assert_eq!(names.wire("reply0.1"), "p_reply0.1", "not known yet");
        assert_eq!(names.tidy("no queue 'amq.rabbitmq.reply-to.g1.x=='"), "no queue 'reply1.2 (number 0)'");
    }
}
