//! Where every byte of a run is stored, and when: from a graph and a budget to a Plan.
//!
//! Pure: the same input gives the same Plan, byte for byte, on any number of threads; no clock, no files. Running a plan
//! is the business of `exec`. Read next: `plan.rs` (the result), `layout.rs` (how it is made), `search/` (how a
//! configuration is chosen), `validate.rs` (what proves it sound). Buffers are packed by the crate `arena`.

mod base_graph;
mod budget;
mod candidate;
mod cards;
mod cost;
mod curve;
mod effects;
mod elastic;
mod explain;
mod failures;
mod find;
mod layout;
mod levers;
mod lifetimes;
mod plan;
mod queue;
mod recomputed;
mod request;
mod saved;
mod search;
mod settings;
mod stored;
mod validate;
mod waits;

pub use budget::{Budget, Limit, PlannedMemory};
pub use candidate::{plan_embedding, plan_sampling, plan_settings, sampling_graph};
pub use cards::{
    Card, UnknownCard, assumed_card, card, card_like, card_of_memory, card_with_memory, cards, is_memory_of_card,
};
pub use cost::{Machine, Rates, Sample, Work};
pub use curve::{CurvePoint, curve, saved_with_more};
pub use effects::{LeverEffect, in_fp8, lever_effects};
pub use elastic::{BudgetRange, ElasticBudget, HeldMemory, MemoryAction, MemoryReading, OnPressure, Refusal};
pub use explain::{Alive, Moment, alike, moment_of_peak};
pub use failures::{DeviceFailure, DeviceFailures, FailureKind, PinLimit, SafeDevice, SafeLevel};
pub use find::{MOST_WORKERS, RuleOfThumb, first_that_fits, largest_that_fits, most_workers, rule_of_thumb, shared};
pub use layout::lay_out;
pub use levers::{Change, NodeSet, default_head_chunk, divisors, head_chunk_choices, recompute_ladder};
pub use plan::{Breakdown, Plan, PlannedProgram, PlannedTensor, Region, Step};
pub use plimsoll_graph::ALIGNMENT;
pub use queue::Queue;
pub use recomputed::{Recomputed, recomputed};
pub use request::{PlanError, Request};
pub use saved::saved_activations;
pub use search::{Found, Misfit, Nearest, can_fit, search};
pub use settings::{Average, Excluded, Level, LeverRequest, Levers, Precision, Recompute, SequenceTile, Settings};
pub use validate::{PlanViolation, validate};
