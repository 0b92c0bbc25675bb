//! Cards under one heat guard: samples in; the speed limit and messages about it out. Not here: the decisions
//! (`plimsoll-heat`), and what slows a run (`pace.rs`, `plimsoll-supervise`).

mod guarded;
mod words;

pub use guarded::{Guarded, HeatMessage};
