//! The binary, as people and scripts meet it.

mod bad_input;
mod blas;
mod cards;
mod cuda_faults;
mod cuda_interrupt;
mod cuda_run;
mod cuda_visible;
mod devices;
mod hostile;
mod interrupt;
mod memory;
mod outputs;
mod pairs;
mod properties;
mod received;
mod rooms;
mod self_test;
mod support;
