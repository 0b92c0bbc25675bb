//! Output of programs: logged, forwarded, and parsed for progress.

mod carrier;
mod log;
mod screen;
mod tail;

pub use screen::Stream;

pub(crate) use carrier::{Carrier, Output, TAIL};
pub(crate) use log::OutputLog;
pub(crate) use screen::Screen;
pub(crate) use tail::Tail;
