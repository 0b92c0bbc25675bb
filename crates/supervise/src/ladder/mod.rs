//! The ladder: what is changed for the next attempt of a run that ran out of memory, step by step, in the order in which
//! people do it by hand, or as a user's own file says.
//! Not here: what an end means (`../ends`), who asks for the next step (`../mender.rs`).

mod allocator;
pub mod checkpoints;
mod configuration;
mod own_flags;
mod resume;
mod rungs;
#[cfg(test)]
mod tests;
mod user;

pub(crate) use configuration::Configuration;
pub(crate) use resume::resumed;
pub use user::{LadderError, UserLadder};

use crate::ends::Cause;
use rungs::{Rung, Situation};
use std::collections::BTreeSet;
use std::ffi::OsString;

/// The steps of a run.
#[derive(Debug, Clone, Default)]
pub struct Ladder {
    /// A user's steps, in place of ours.
    pub(crate) user: Option<UserLadder>,
    /// Whether samples may be cut.
    pub(crate) allow_shorter: bool,
    /// The allocator's setting in the environment.
    pub(crate) alloc_conf: String,
}

/// A step that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Its name, by which it is remembered.
    pub(crate) name: String,
    /// The configuration with it.
    pub(crate) configuration: Configuration,
    /// What differs, a line each.
    pub(crate) notes: Vec<String>,
}

impl Ladder {
    /// Our steps. `alloc_conf`: the allocator's setting that the run is started with, empty for none.
    pub fn new(allow_shorter: bool, alloc_conf: &str) -> Self {
        Self { user: None, allow_shorter, alloc_conf: alloc_conf.to_owned() }
    }

    /// A user's steps in place of ours, each tried on the command as it is given.
    /// Errors: a step can't be made, or changes nothing.
    pub fn with_user_steps(mut self, user: UserLadder, argv: &[OsString]) -> Result<Self, LadderError> {
        let mut configuration = Configuration::new(argv);
        for step in 0..user.len() {
            configuration = user.take(step, &configuration)?;
        }
        self.user = Some(user);
        Ok(self)
    }

    /// The next step against an end, or why there is none. `taken`: names of the steps so far; `refused`: names of steps
    /// that the program did not take.
    pub(crate) fn next(
        &self,
        from: &Configuration,
        cause: &Cause,
        taken: &[String],
        refused: &BTreeSet<String>,
    ) -> Result<Taken, String> {
        if let Some(user) = &self.user {
            let next = (taken.len()..user.len()).find(|step| !refused.contains(&user_name(user, *step)));
            let step = next.ok_or("all steps of the ladder are taken")?;
            return self.user_step(user, step, from).map_err(|error| error.to_string());
        }
        let situation =
            Situation { cause: Some(cause), alloc_conf: &self.alloc_conf, allow_shorter: self.allow_shorter };
        let mut missing = Vec::new();
        for rung in Rung::against(cause).iter().filter(|rung| !refused.contains(rung.name())) {
            match rung.take(from, &situation) {
                Ok(Some(step)) => return Ok(named(*rung, step)),
                Ok(None) => {}
                Err(error) => missing.push(format!("{}: {error}", rung.name())),
            }
        }
        // One reason is said once, not for each step that it forbids.
        missing.dedup_by_key(|reason| reason.split_once(": ").map(|(_, why)| why.to_owned()));
        let why = if missing.is_empty() { String::new() } else { format!(" ({})", missing.join("; ")) };
        Err(format!("nothing is left to change{why}"))
    }

    /// A step that was taken before, by its name. `None`: it is not known, or does nothing here.
    pub(crate) fn again(&self, name: &str, from: &Configuration) -> Option<Taken> {
        if let Some(user) = &self.user {
            let step = (0..user.len()).find(|step| user_name(user, *step) == name)?;
            return self.user_step(user, step, from).ok();
        }
        let situation = Situation { cause: None, alloc_conf: &self.alloc_conf, allow_shorter: self.allow_shorter };
        let rung = Rung::named(name)?;
        Some(named(rung, rung.take(from, &situation).ok()??))
    }

    fn user_step(&self, user: &UserLadder, step: usize, from: &Configuration) -> Result<Taken, LadderError> {
        let configuration = user.take(step, from)?;
        let notes = vec![format!("step {} of the ladder: {}", step + 1, user.name(step))];
        Ok(Taken { name: user_name(user, step), configuration, notes })
    }
}

/// Steps of different ladders must not be taken for each other.
fn user_name(user: &UserLadder, step: usize) -> String {
    format!("{}: {}", step + 1, user.name(step))
}

fn named(rung: Rung, (configuration, notes): rungs::Step) -> Taken {
    Taken { name: rung.name().to_owned(), configuration, notes }
}
