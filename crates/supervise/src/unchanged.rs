//! The repair that restarts the same command without changes.

use crate::ends::classify;
use crate::hopeless::never_begins;
use crate::repair::{Decision, Ending, Repair, Verdict};
use plimsoll_registry::{Attempt, UNKNOWN};
use std::ffi::OsString;

/// Restarts the same command.
#[derive(Debug, Clone)]
pub struct Unchanged {
    argv: Vec<OsString>,
}

impl Unchanged {
    /// Restarts this program with these arguments.
    pub fn new(argv: Vec<OsString>) -> Self {
        Self { argv }
    }
}

impl Repair for Unchanged {
    fn start(&mut self) -> Attempt {
        Attempt { argv: self.argv.clone(), ..Attempt::default() }
    }

    fn next(&mut self, ending: &Ending) -> Verdict {
        let kind = kind_of(ending);
        let decision = match ending.code {
            Some(0) if !ending.hung => Decision::Stop { why: "it finished".to_owned() },
            _ if ending.is_unknown() => Decision::Stop { why: crate::UNKNOWN_END.to_owned() },
            code => match never_begins(&self.argv, code, &classify(ending)) {
                Some(why) => Decision::Stop { why },
                None => Decision::Again { attempt: self.start(), why: "unchanged".to_owned() },
            },
        };
        Verdict { cause: kind.clone(), kind, decision }
    }
}

/// The kind of an end, from the exit status alone.
fn kind_of(ending: &Ending) -> String {
    match ending {
        Ending { hung: true, .. } => "hang".to_owned(),
        Ending { oom_kills: 1.., signal: Some(9), .. } => "host_memory".to_owned(),
        Ending { signal: Some(signal), .. } => format!("signal_{signal}"),
        Ending { code: Some(0), .. } => "success".to_owned(),
        Ending { code: Some(code), .. } => format!("exit_{code}"),
        Ending { code: None, .. } => UNKNOWN.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ends_that_would_repeat_are_final() {
        let ending = Ending::default;
        for (ending, kind, again) in [
            (Ending { code: Some(0), ..ending() }, "success", false),
            (Ending { code: Some(0), hung: true, ..ending() }, "hang", true),
            (Ending { code: Some(1), ..ending() }, "exit_1", true),
            (Ending { code: Some(127), ..ending() }, "exit_127", false),
            (Ending { signal: Some(9), ..ending() }, "signal_9", true),
            (Ending { signal: Some(9), oom_kills: 1, ..ending() }, "host_memory", true),
            (ending(), "unknown", false),
        ] {
            let verdict = Unchanged::new(vec!["train".into()]).next(&ending);
            assert_eq!(verdict.kind, kind);
            assert_eq!(matches!(verdict.decision, Decision::Again { .. }), again, "{kind}");
        }
    }
}
