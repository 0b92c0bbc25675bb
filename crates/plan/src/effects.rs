//! What each lever saves and costs in a plan: the plan is compared with the same plan with that one lever off.

use crate::base_graph::{Programs, built};
use crate::candidate::{plan_candidate, predicted_step, pulled};
use crate::levers::{LEVERS, Lever};
use crate::request::{PlanError, Request};
use crate::search::Found;
use crate::settings::{Levers, Precision, Settings};
use plimsoll_units::{Bytes, Seconds};
use rayon::prelude::*;
use serde::Serialize;

/// The difference that a lever makes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LeverEffect {
    /// The lever, in lower case with hyphens.
    pub name: &'static str,
    /// Its setting, in words.
    pub setting: String,
    /// Whether it is on.
    pub on: bool,
    /// Bytes of the device's arena that it saves; negative if it needs more.
    pub saved_bytes: i64,
    /// Bytes of the host's arena that it needs.
    pub host_bytes: i64,
    /// Predicted time that it adds to a step, as a part of the step without it; negative if it saves time.
    pub added_time: f64,
    /// Why it is off, if something excludes it; or a remark, if it is on.
    pub note: Option<String>,
}

/// One for each lever. Each that is on is planned once more without it.
pub fn lever_effects(request: &Request, found: &Found) -> Result<Vec<LeverEffect>, PlanError> {
    LEVERS.par_iter().map(|lever| effect(*lever, request, found)).collect()
}

/// The predicted time of a step, and the peak, of the same plan with products of linear layers in 8 bits.
pub fn in_fp8(request: &Request, found: &Found) -> Result<(Seconds, Bytes), PlanError> {
    let now = &found.settings;
    let rounded = Settings { levers: Levers { precision: Precision::Fp8, ..now.levers }, ..*now };
    let other = pulled(rounded, built(request, &rounded, Programs::All)?)?;
    Ok((predicted_step(request, &other), plan_candidate(request, &other).peak()))
}

fn effect(lever: &dyn Lever, request: &Request, found: &Found) -> Result<LeverEffect, PlanError> {
    let now = &found.settings;
    let off = lever.off(now, request);
    let (name, setting, on) = (lever.name(), lever.describe(now, request), off != *now);
    let mut effect = LeverEffect { name, setting, on, saved_bytes: 0, host_bytes: 0, added_time: 0.0, note: None };
    if on {
        let other = pulled(off, built(request, &off, Programs::All)?)?;
        let plan = plan_candidate(request, &other);
        effect.saved_bytes = plan.peak().0 as i64 - found.plan.peak().0 as i64;
        effect.host_bytes = found.plan.host().0 as i64 - plan.host().0 as i64;
        let without = predicted_step(request, &other);
        effect.added_time = found.step.0 / without.0 - 1.0;
        effect.note = lever.remark(request, &found.plan, Seconds(found.step.0 - without.0));
    } else {
        effect.note = lever.excluded(now, request)?.map(|excluded| excluded.reason.to_owned());
    }
    Ok(effect)
}
