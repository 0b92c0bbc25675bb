//! The findings for programs.

use super::text::{gb_per_s_on_paper, tflops_on_paper};
use super::{SelfTest, kernel_problem, precision};
use plimsoll_exec::cases::Wrong;
use plimsoll_exec::self_test::{Cause, KernelCheck, KernelFailure, Rate, Workload};
use plimsoll_train::LossCheck;
use serde_json::{Value, json};

impl SelfTest {
    /// All findings. Unknown values and values that are not finite numbers are null.
    pub fn json(&self) -> Value {
        let problems = self.problems();
        let card = &self.card;
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "passed": problems.is_empty(),
            "problems": problems,
            "not_tested": self.untested(),
            "seconds": self.seconds,
            "system": self.system,
            "driver": { "path": self.driver.path, "cuda": self.driver.cuda, "stand_in": self.stand_in },
            "card": {
                "index": card.index,
                "name": card.name,
                "compute_capability": format!("{}.{}", card.capability.0, card.capability.1),
                "memory_bytes": card.memory,
                "known_as": self.paper.map(|paper| paper.name),
            },
            "cublas_lt": self.library.as_ref().map(|found| {
                let (major, minor, patch) = found.version;
                json!({
                    "path": found.path,
                    "version": format!("{major}.{minor}.{patch}"),
                    "kernels": found.kernels.iter().map(kernel).collect::<Vec<_>>(),
                    "speed": found.speeds.rates.iter().map(|rate| self.rate(rate)).collect::<Vec<_>>(),
                    "notes": found.speeds.notes,
                })
            }),
            "kernels": self.kernels.iter().map(kernel).collect::<Vec<_>>(),
            "training": self.training.as_ref().and_then(|training| training.as_ref().ok()).map(losses),
            "speed": self.speeds.rates.iter().map(|rate| self.rate(rate)).collect::<Vec<_>>(),
            "speed_is": "medians by the host's clock, around runs between two waits for the GPU, launches included",
            "notes": self.speeds.notes,
            "memory": {
                "free_before_bytes": self.memory.before,
                "free_after_bytes": self.memory.after,
                "lost_bytes": self.memory.lost(),
            },
        })
    }

    fn rate(&self, rate: &Rate) -> Value {
        let workload = match rate.workload {
            Workload::Product => "product",
            Workload::Attention => "attention",
            Workload::AttentionGrad => "attention_grad",
            Workload::ToDevice => "to_card",
            Workload::ToHost => "from_card",
            Workload::WithinDevice => "within_card",
        };
        let copies = rate.workload.is_copy();
        json!({
            "workload": workload,
            "precision": precision((rate.dtype, rate.tf32)),
            "size": rate.size,
            "run_s_p50": rate.seconds,
            "times": rate.times,
            "tflops": (!copies).then(|| rate.tflops()),
            "tflops_on_paper": self.paper.filter(|_| !copies).and_then(|card| tflops_on_paper(card, (rate.dtype, rate.tf32))),
            "gb_per_s": copies.then(|| rate.gb_per_s()),
            "gb_per_s_on_paper": self.paper.and_then(|card| gb_per_s_on_paper(card, rate.workload)),
        })
    }
}

fn kernel(check: &KernelCheck) -> Value {
    json!({
        "op": check.op,
        "precision": precision((check.dtype, check.tf32)),
        "passed": check.failure.is_none(),
        "cases": check.cases,
        "elements": check.verdict.elements,
        "largest_error_of_allowed": check.verdict.worst,
        "failure": check.failure.as_ref().map(|failure| failed(check, failure)),
    })
}

fn failed(check: &KernelCheck, failure: &KernelFailure) -> Value {
    let message = kernel_problem(check);
    match failure.cause {
        Cause::Device(_) => json!({ "message": message, "case": failure.case }),
        Cause::Wrong(Wrong { output, element, found, expected, allowed }) => json!({
            "message": message,
            "case": failure.case,
            "result": output,
            "element": element,
            "found": found,
            "expected": expected,
            "allowed_error": allowed,
        }),
    }
}

fn losses(check: &LossCheck) -> Value {
    json!({
        "model": check.model,
        "parameters": check.parameters,
        "tokens_per_step": check.tokens_per_step,
        "step_s": check.step_s,
        "losses": check.losses,
        "cpu_losses": check.expected,
        "largest_difference": check.largest_difference(),
        "passed": check.passes(),
    })
}
