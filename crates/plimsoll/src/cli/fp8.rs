//! `--precision fp8`: which devices have it, and what it would save.

use super::Failure;
use super::answer::Answer;
use super::device::Device;
use ::plimsoll_plan::{Found, LeverRequest, Precision, Request, in_fp8};
use plimsoll_graph::{OLDEST_WITH_FP8, Target};
use plimsoll_units::format_duration;
use serde_json::json;

/// The largest predicted time of a step, relative to that in bf16, for which fp8 is offered.
const WORTH_IT: f64 = 0.95;

/// Checks that a device has products in 8 bits, and that the levers leave some. Errors: it has none; frozen weights are in codes.
pub(super) fn check_fp8(on: &Device, levers: &LeverRequest) -> Result<(), Failure> {
    if levers.precision != Precision::Fp8 {
        return Ok(());
    }
    if let Some(codes) = levers.base_weights {
        let message =
            format!("`--precision fp8` excludes base weights in {}: products with them are in bf16", codes.name());
        return Err(
            Failure::bad_flag(message).hint("use `--precision bf16`, or `--method lora` without `--base-weights`")
        );
    }
    match on.targets.device {
        Target::Cuda { compute_capability, .. } if compute_capability < OLDEST_WITH_FP8 => {
            let ((major, minor), (first, then)) = (compute_capability, OLDEST_WITH_FP8);
            let message = format!(
                "{} has no fp8: its compute capability is {major}.{minor}, fp8 needs {first}.{then} or newer",
                on.name
            );
            Err(Failure::bad_flag(message).hint(format!("use `--precision {}`", on.precision.name())))
        }
        _ => Ok(()),
    }
}

/// What `--precision fp8` would save for a plan in bf16, if it is worth a mention.
pub(super) fn offered_fp8(request: &Request, found: &Found) -> Result<Option<Answer>, Failure> {
    let Target::Cuda { compute_capability, .. } = request.targets.device else { return Ok(None) };
    if compute_capability < OLDEST_WITH_FP8 || request.levers.precision != Precision::Bf16 {
        return Ok(None);
    }
    let (step, peak) = in_fp8(request, found)?;
    let share = step.0 / found.step.0;
    let time = if step.0 < 10.0 { format!("{:.0} ms", step.0 * 1e3) } else { format_duration(step) };
    Ok((share <= WORTH_IT).then(|| Answer {
        key: "fp8",
        value: json!({ "step_ms": step.0 * 1e3, "peak_bytes": peak.0 }),
        words: format!(
            "`--precision fp8`: {time} per step, {share:.2} x the time, with products of linear layers rounded to 8 bits; peak {peak}"
        ),
    }))
}
