//! Compares bf16 with a plan in single precision on the processor, where `--precision auto` means single precision.

use super::Failure;
use super::answer::Answer;
use ::plimsoll_plan::{Found, LeverRequest, Misfit, Precision, Request, search};
use plimsoll_exec::instructions;
use plimsoll_graph::DeviceKind;
use plimsoll_units::format_duration;
use serde_json::{Value, json};

const NO_ARITHMETIC: &str = "this processor has no bf16 arithmetic: bf16 saves memory and costs up to 10 % more time";

/// The plan of the same request in bf16, for comparison with one in single precision. For a plan in bf16, only a note
/// if the processor has no bf16 arithmetic. `None` on GPUs, and for other precisions.
pub(super) fn compared_with_bf16(request: &Request, found: &Found) -> Result<Option<Answer>, Failure> {
    if request.targets.device.kind() != DeviceKind::Cpu {
        return Ok(None);
    }
    let products = instructions();
    let arithmetic = products.multiplies_bf16().then(|| products.name());
    let (mut words, mut value) = match request.levers.precision {
        Precision::Fp32 => {
            let levers = LeverRequest { precision: Precision::Bf16, ..request.levers };
            let result = search(&Request { levers, ..request.clone() })?;
            (vec![compared(found, &result)], as_json(&result))
        }
        Precision::Bf16 | Precision::Bf16Pure | Precision::Fp8 if arithmetic.is_none() => (vec![], json!({})),
        Precision::Bf16 | Precision::Bf16Pure | Precision::Fp8 | Precision::Fp16 => return Ok(None),
    };
    if arithmetic.is_none() {
        words.push(NO_ARITHMETIC.to_owned());
    }
    value["arithmetic"] = json!(arithmetic);
    Ok(Some(Answer { key: "bf16", value, words: words.join("\n") }))
}

fn compared(single: &Found, half: &Result<Found, Box<Misfit>>) -> String {
    match half {
        Ok(half) => format!(
            "`--precision bf16`: {}, {:.2} x the time; peak {} instead of {}",
            match half.step.0 < 10.0 {
                true => format!("{:.0} ms per step", half.step.0 * 1e3),
                false => format!("{} per step", format_duration(half.step)),
            },
            half.step.0 / single.step.0,
            half.plan.peak(),
            single.plan.peak()
        ),
        Err(misfit) => {
            let short = misfit.largest_short();
            format!("`--precision bf16` needs {}, {short} more than the budget", misfit.plan.peak())
        }
    }
}

fn as_json(half: &Result<Found, Box<Misfit>>) -> Value {
    let (plan, predicted) = match half {
        Ok(found) => (&found.plan, Some((found.step.0 * 1e3, found.tokens_per_s()))),
        Err(misfit) => (&misfit.plan, None),
    };
    json!({
        "fits": half.is_ok(),
        "micro_batch": plan.micro_batch,
        "peak_bytes": plan.peak().0,
        "step_ms": predicted.map(|(step_ms, _)| step_ms),
        "tokens_per_s": predicted.map(|(_, tokens_per_s)| tokens_per_s),
    })
}
