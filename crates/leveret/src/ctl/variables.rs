//! The variables of `leveret ctl` and `leveret top`. A mistyped one would leave the default in effect, unnoticed.

use std::env;

use super::secret;
use crate::Failure;
use crate::config::{did_you_mean, nearest};

/// Precedes each of them.
const PREFIX: &str = "LEVERET_CTL_";

/// The variables of `leveret ctl`: one for each global option, and those for passwords.
const KNOWN: [&str; 12] = [
    "LEVERET_CTL_URL",
    "LEVERET_CTL_USER",
    "LEVERET_CTL_VHOST",
    "LEVERET_CTL_PASSWORD_FILE",
    "LEVERET_CTL_CA",
    "LEVERET_CTL_CERT",
    "LEVERET_CTL_KEY",
    "LEVERET_CTL_OTHER_USER",
    "LEVERET_CTL_OTHER_PASSWORD_FILE",
    secret::LOGIN,
    secret::NEW,
    secret::OTHER,
];

/// Refuses variables of the process that none of the commands knows.
pub(super) fn check() -> Result<(), Failure> {
    let set = env::vars_os().filter(|(_, value)| !value.is_empty());
    set.filter_map(|(name, _)| name.into_string().ok()).try_for_each(|name| check_name(&name))
}

fn check_name(name: &str) -> Result<(), Failure> {
    if !name.starts_with(PREFIX) || KNOWN.contains(&name) {
        return Ok(());
    }
    Err(Failure::Usage(format!("{name}: unknown variable{}", did_you_mean(nearest(name, KNOWN)))))
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command};

    use super::super::CtlArguments;
    use super::*;

    #[test]
    fn a_mistyped_variable_is_refused_with_the_one_that_was_meant() {
        let refusal = |name: &str| check_name(name).err().map(Failure::into_line);
        assert_eq!(
            refusal("LEVERET_CTL_USR").as_deref(),
            Some("LEVERET_CTL_USR: unknown variable; did you mean LEVERET_CTL_USER?")
        );
        for name in ["LEVERET_CTL_PASSWORD", "LEVERET_AMQP", "PATH"] {
            assert_eq!(refusal(name), None);
        }
    }

    #[test]
    fn every_variable_of_an_option_is_known() {
        fn visit(command: &Command) {
            let names = command.get_arguments().filter_map(|argument| argument.get_env()?.to_str());
            assert_eq!(names.filter(|name| !KNOWN.contains(name)).collect::<Vec<_>>(), Vec::<&str>::new());
            command.get_subcommands().for_each(visit);
        }
        visit(&CtlArguments::augment_args(Command::new("ctl")));
    }
}
