//! What a person should know of cards and machine, from samples and from what a run says of itself: findings, each told once when
//! it begins and once when it is over. Pure: samples and times are handed in.
//!
//! ```text
//!   sample, facts ─► card.rs, usage.rs, machine.rs ─► condition.rs ─► episodes
//!                     what is bad or good now          for how long
//! ```
//! Not here: heat that slows a run (`plimsoll-heat`), and what people are told. Read next: `watcher.rs`.

mod card;
mod condition;
mod finding;
mod machine;
mod usage;
mod watcher;
mod xid;

pub use finding::{Cause, Episode, Finding, Phase};
pub use watcher::{Facts, Settings, Watcher};
pub use xid::{Xid, xid};
