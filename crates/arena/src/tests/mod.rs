//! The tests of the arena, and their generators of problems.

mod bound;
mod brute;
mod csv;
mod cut;
mod nogoods;
mod pack;
mod random;
mod rng;
mod solver;
mod speed;
pub(super) mod training;
mod validate;
