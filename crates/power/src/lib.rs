//! What cards are told of power and clocks. What was before is on disk before anything is set, and is put back at the end, by
//! the next start after a crash, or when somebody asks for it. And the energy that a run used, with its price.
//!
//! ```text
//!   wishes ─► hold ─► record on disk ─► card        hold.rs    a run's settings, as long as it lasts
//!                        │
//!                        └─► put back                record.rs  what a card had, and what it has from us
//!   samples ─► meter ─► energy ─► price              settle.rs  records that a run left behind
//! ```
//! Not here: when a limit is lowered for heat (`plimsoll-heat`), and what people are told. Read next: `hold.rs`.

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
pub use hold::{Held, HoldError, Step, Wish, hold, put_back_all};
pub use knob::{Knob, KnobError, Knobs, Range};
pub use nvml::NvmlCard;
pub use owner::{Life, Owner};
pub use price::{BadPrice, Price};
pub use record::{Kept, PutBack, Record, RecordError};
pub use settle::{Settled, Settlement, settle};
pub use store::Store;
