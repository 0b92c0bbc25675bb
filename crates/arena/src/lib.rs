//! Packs buffers into one range of memory. Buffers with given lifespans and sizes get offsets such that no
//! two overlap in both time and space, and the peak is small.
//!
//! ```text
//!                                 +-> pack.rs -------+       milliseconds, nearly always enough
//!   Problem --> compress.rs ------+                  +--> Solution --> validate.rs
//!   (problem.rs)                  +-> solver.rs -----+       proves its answer, given the time
//!       |
//!       +--> bound.rs: a lower bound of the peak
//!
//!   csv.rs: problems and solutions in the public benchmark's format
//! ```
//!
//! Everything here is pure: no clock, no files, and the same input gives the same bytes. The crate has no tensors or
//! graphs: sizes are bytes, times are the caller's ticks.

mod bound;
mod columns;
mod compress;
mod csv;
mod csv_error;
mod heuristic;
mod nogoods;
mod orders;
mod pack;
mod peel;
mod place;
mod problem;
mod search;
mod skyline;
mod solver;
mod strategy;
#[cfg(test)]
mod tests;
mod validate;

pub use bound::{LowerBound, lower_bound};
pub use csv::{CsvProblem, read_csv, write_csv};
pub use csv_error::{CsvError, Place};
pub use pack::{pack, pack_quickly};
pub use problem::{Buffer, Lifespan, MAX_TOTAL_BYTES, Problem, Solution};
pub use solver::{Outcome, Status, solve};
pub use validate::{Placed, Violation, validate};
