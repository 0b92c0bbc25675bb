//! Runs: trained, stopped, resumed, damaged, compared.

#[path = "../support/power.rs"]
mod power;
#[path = "../support/mod.rs"]
mod support;

mod adapters;
mod allocations;
mod base_weights;
mod bitsandbytes;
mod branches;
mod checkpoints;
mod crash;
mod disk_faults;
mod divergence;
mod foreign;
mod golden;
mod levers;
mod mxfp4;
mod not_finite;
mod optimizers;
mod paced;
mod packing;
mod precision;
mod preferences;
mod remainders;
mod resume;
mod sampling;
mod sft;
