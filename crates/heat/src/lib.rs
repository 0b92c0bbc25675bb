//! How fast a run may go, from what the sensors of its cards say: freely, for a part of the time, not now, or not any
//! more. A pure state machine: samples and times are handed in, orders and notes come out.
//!
//! ```text
//!   readings ─► tracker ─► sensors ─► throttle ─► card ─► guard ─► order
//!    of a card   one        a card's   how fast    falls    several  Run | Slow | Pause | Stop
//!                sensor     hottest    by heat     back     cards
//! ```
//! Not here: reading sensors (`telemetry`), pausing (`train`), and what people are told. Read next: `guard.rs`.

mod card;
mod clock;
mod digest;
mod guard;
mod limits;
mod note;
mod order;
mod reading;
mod sensors;
mod split;
mod throttle;
mod tracker;
mod trend;

pub use digest::{Digest, Told};
pub use guard::Guard;
pub use limits::{Band, Limits, LimitsError, Settings, Span, Taken, Thresholds};
pub use note::{Note, What};
pub use order::{Duty, Order, TooHot};
pub use reading::{Reading, Sensor};
pub use split::PowerRange;
