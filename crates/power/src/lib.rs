//! Sets power limits and clocks of cards. Records the old values on disk first and restores them at the end of the run,
//! at the next start after a crash, or on the user's request. Also measures the energy of a run and its price.
//!
//! ```text
//!   wishes ─► hold ─► record on disk ─► card        hold.rs    settings of a run while it lasts
//!                        │
//!                        └─► restore                 record.rs  old and new values of a card
//!   samples ─► meter ─► energy ─► price              settle.rs  records of runs that crashed
//! ```
//! Not here: lowering a limit for heat (`plimsoll-heat`), and messages (`plimsoll`). Read next: `hold.rs`.

mod energy;
mod hold;
mod knob;
mod nvml;
mod owner;
mod price;
mod record;
mod settle;
mod store;

pub use energy::Meter;
pub use hold::{HeldSettings, HoldError, StepOutcome, Wish, hold, put_back_all};
pub use knob::{Knob, KnobError, Knobs, Range};
pub use nvml::NvmlCard;
pub use owner::{Life, Owner};
pub use price::{BadPrice, Price};
pub use record::{PutBack, Record, RecordError, SavedSetting};
pub use settle::{Settled, Settlement, settle};
pub use store::Store;
