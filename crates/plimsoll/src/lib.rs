//! Plimsoll trains language models inside an exact memory budget.
//!
//! This crate is the command line and its views, and the facade through which the rooms behind it are reached as a
//! library: [`graph`] says what is computed, [`plan`] where every byte is stored and when, [`exec`] carries plans out,
//! [`data`] turns text into batches, [`train`] runs the loop, [`telemetry`] says what happened.

pub mod cli;
mod failure;
mod progress;
mod streams;

pub use {
    plimsoll_data as data, plimsoll_exec as exec, plimsoll_graph as graph, plimsoll_plan as plan,
    plimsoll_telemetry as telemetry, plimsoll_train as train, plimsoll_units as units,
};
