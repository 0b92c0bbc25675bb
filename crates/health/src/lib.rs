//! Health findings about cards and the machine, derived from samples and from the run's own counters. Each finding is
//! reported once when it begins and once when it ends. Pure: the caller passes samples and times.
//!
//! ```text
//!   sample, facts ─► card.rs, usage.rs, machine.rs ─► condition.rs ─► episodes
//!                     bad or good now                  for how long
//! ```
//! Not here: heat that slows a run (`plimsoll-heat`), and the text of messages (`plimsoll`). Read next: `watcher.rs`.

mod card;
mod condition;
mod finding;
mod machine;
mod run;
mod usage;
mod watcher;
mod xid;

pub use finding::{Cause, Episode, Finding, Phase};
pub use run::{Facts, Settings};
pub use watcher::Watcher;
pub use xid::{Xid, xid};
