//! Names: short in programs, unique on the brokers, and short again in what is compared.

/// Translates names of one run of one program.
#[derive(Debug)]
pub(crate) struct Names {
    /// In front of every name of this run, so that many programs may run on one broker.
    prefix: String,
    /// Queues that the server named, in order.
    queues: Vec<String>,
    /// Consumer tags that the server made up, in order.
    tags: Vec<String>,
}

impl Names {
    pub(crate) fn new(prefix: String) -> Self {
        Self { prefix, queues: Vec::new(), tags: Vec::new() }
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
        match name.as_bytes() {
            [b'q' | b'e', b'0'..=b'9'] => format!("{}{name}", self.prefix),
            _ => name.to_owned(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_the_way_to_the_broker_and_back() {
        let mut names = Names::new("p_".into());
        assert_eq!(names.wire("q1"), "p_q1");
        assert_eq!(names.wire("a.q1"), "a.q1");
        assert_eq!(names.wire("gen0"), "gen0", "not known yet");
        names.learn("amq.gen-xyz");
        names.learn("amq.gen-xyz");
        assert_eq!(names.wire("gen0"), "amq.gen-xyz");
        assert_eq!(names.tidy("bad 'amq.gen-a_b-C' in vhost"), "bad 'made-up' in vhost");
        assert_eq!(names.tidy("no queue 'p_q1' or 'amq.gen-xyz'"), "no queue 'q1' or 'gen0'");
    }
}
