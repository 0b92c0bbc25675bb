//! How gradients are kept from one micro-batch to the next and until the update. In `Bf16` they take half the bytes, and half
//! the time on the link where they rest on the host. A parameter of the graph (`TrainShape::gradients`).
//!
//! ```text
//!   fp32    backward ──────────────────────────────► gradient F32    (set or added to)
//!   bf16    backward ─► transient F32 ─► keep_gradient ─► gradient Bf16    (set or added to, rounded stochastically)
//! ```

use super::{Alternative, Lever};
use crate::request::Request;
use crate::settings::{Levers, Settings};
use plimsoll_graph::ops::GradientFormat;

pub(super) struct GradientPrecisionLever;

/// As flags and files name it.
fn name(format: GradientFormat) -> &'static str {
    match format {
        GradientFormat::F32 => "fp32",
        GradientFormat::Bf16 => "bf16",
    }
}

impl Lever for GradientPrecisionLever {
    fn name(&self) -> &'static str {
        "gradient-precision"
    }

    fn describe(&self, now: &Settings, _: &Request) -> String {
        name(now.levers.gradients).to_owned()
    }

    fn off(&self, now: &Settings, _: &Request) -> Settings {
        Settings { levers: Levers { gradients: GradientFormat::F32, ..now.levers }, ..*now }
    }

    fn coarser(&self, request: &Request) -> Vec<Alternative> {
        if request.levers.gradients.is_some() {
            return Vec::new();
        }
        let format = GradientFormat::Bf16;
        vec![Alternative::of_lever(self, name(format), request, |levers| levers.gradients = Some(format))]
    }
}
