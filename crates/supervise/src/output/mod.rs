//! What programs print: kept, passed on, and read for progress.

mod log;
mod progress;
mod pump;
mod screen;
mod tail;

pub use progress::{Progress, last_progress};
pub use screen::Stream;

pub(crate) use pump::{Output, Pump};
pub(crate) use screen::Screen;
