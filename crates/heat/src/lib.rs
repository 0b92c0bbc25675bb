//! Thermal control: decides from GPU sensor readings whether a run computes at full speed, at a reduced duty, pauses,
//! or stops. A pure state machine: the caller passes samples and times, and gets orders and notes back.
//!
//! ```text
//!   readings ─► tracker ─► sensors ─► throttle ─► card ─► guard ─► order
//!    of a card   one        hottest    duty from   fallback several  Run | Slow | Pause | Stop
//!                sensor     sensor     heat                 cards
//! ```
//! Not here: reading sensors (`telemetry`), pausing (`train`), and the text of messages (`plimsoll`). Read next:
//! `guard.rs`.

mod card;
mod clock;
mod digest;
mod guard;
mod limits;
mod note;
mod order;
mod pace;
mod reading;
mod sensors;
mod split;
mod throttle;
mod tracker;
mod trend;

pub use digest::{Digest, Reported};
pub use guard::Guard;
pub use limits::{Band, LimitSource, Limits, LimitsError, Settings, Span, Thresholds};
pub use note::{Note, NoteKind};
pub use order::{Duty, Order, TooHot};
pub use reading::{Reading, Sensor};
pub use split::PowerRange;
