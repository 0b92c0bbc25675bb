//! The ladder: the steps that reduce the memory of a run that ran out of it. One step per attempt, in the order in
//! which users apply them by hand, or as the user's own file lists them.
//! Not here: the meaning of ends (`../ends`), the caller that takes the steps (`../mender`).

mod allocator;
pub mod checkpoints;
mod configuration;
mod own_flags;
mod resume;
mod rung;
mod rungs;
#[cfg(test)]
mod tests;
mod user;

pub(crate) use configuration::Configuration;
pub(crate) use resume::resumed;
pub use user::{LadderError, UserLadder};

use crate::ends::Cause;
use rung::{Rung, Situation, Step};
use std::collections::BTreeSet;
use std::ffi::OsString;

/// The steps of a run.
#[derive(Debug, Clone, Default)]
pub struct Ladder {
    /// The user's steps, instead of the built-in ones.
    pub(crate) user: Option<UserLadder>,
    /// Whether samples may be truncated.
    pub(crate) allow_shorter: bool,
    /// The allocator setting in the environment.
    pub(crate) alloc_conf: String,
}

/// A step that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Its name, under which it is remembered.
    pub(crate) name: String,
    /// The configuration with it.
    pub(crate) configuration: Configuration,
    /// What it changed: one line each.
    pub(crate) notes: Vec<String>,
}

impl Ladder {
    /// The built-in steps. `alloc_conf`: the allocator setting of the run, empty if unset.
    pub fn new(allow_shorter: bool, alloc_conf: &str) -> Self {
        Self { user: None, allow_shorter, alloc_conf: alloc_conf.to_owned() }
    }

    /// Replaces the built-in steps with the user's. Tries each one on the user's command.
    /// Errors: a step can't be applied, or changes nothing.
    pub fn with_user_steps(mut self, user: UserLadder, argv: &[OsString]) -> Result<Self, LadderError> {
        let mut configuration = Configuration::new(argv);
        for step in 0..user.len() {
            configuration = user.take(step, &configuration)?;
        }
        self.user = Some(user);
        Ok(self)
    }

    /// The next step against a cause, or why there is none. `taken`: names of the steps so far. `refused`: names of
    /// steps that the program rejected.
    pub(crate) fn next(
        &self,
        from: &Configuration,
        cause: &Cause,
        taken: &[String],
        refused: &BTreeSet<String>,
    ) -> Result<Taken, String> {
        if let Some(user) = &self.user {
            let next = (taken.len()..user.len()).find(|step| !refused.contains(&user_name(user, *step)));
            let step = next.ok_or("all steps of the ladder were tried")?;
            return self.user_step(user, step, from).map_err(|error| error.to_string());
        }
        let situation =
            Situation { cause: Some(cause), alloc_conf: &self.alloc_conf, allow_shorter: self.allow_shorter };
        let mut missing = Vec::new();
        for rung in Rung::against(cause).iter().filter(|rung| !refused.contains(rung.name())) {
            match rungs::take(*rung, from, &situation) {
                Ok(Some(step)) => return Ok(named(*rung, step)),
                Ok(None) => {}
                Err(error) => missing.push(format!("{}: {error}", rung.name())),
            }
        } // Report one reason once, not for each step that it rules out.
        missing.dedup_by_key(|reason| reason.split_once(": ").map(|(_, why)| why.to_owned()));
        let why = if missing.is_empty() { String::new() } else { format!(" ({})", missing.join("; ")) };
        Err(format!("no steps are left{why}"))
    }

    /// The smallest settings, if any setting can be smaller.
    pub(crate) fn smallest(&self, from: &Configuration) -> Option<Taken> {
        let situation = Situation { cause: None, alloc_conf: &self.alloc_conf, allow_shorter: true };
        Some(named(Rung::Smallest, rungs::take(Rung::Smallest, from, &situation).ok()??))
    }

    /// Retakes a step by its name; `None` if the step is unknown or changes nothing here.
    pub(crate) fn again(&self, name: &str, from: &Configuration) -> Option<Taken> {
        if let Some(user) = &self.user {
            let step = (0..user.len()).find(|step| user_name(user, *step) == name)?;
            return self.user_step(user, step, from).ok();
        }
        let situation = Situation { cause: None, alloc_conf: &self.alloc_conf, allow_shorter: self.allow_shorter };
        let rung = Rung::named(name)?;
        Some(named(rung, rungs::take(rung, from, &situation).ok()??))
    }

    fn user_step(&self, user: &UserLadder, step: usize, from: &Configuration) -> Result<Taken, LadderError> {
        let configuration = user.take(step, from)?;
        let notes = vec![format!("step {} of the ladder: {}", step + 1, user.name(step))];
        Ok(Taken { name: user_name(user, step), configuration, notes })
    }
}

/// The name of a user's step. The number keeps steps of different ladders apart.
fn user_name(user: &UserLadder, step: usize) -> String {
    format!("{}: {}", step + 1, user.name(step))
}

fn named(rung: Rung, (configuration, notes): Step) -> Taken {
    Taken { name: rung.name().to_owned(), configuration, notes }
}
