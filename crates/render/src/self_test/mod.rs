//! The findings of a card's self-test, and the problems among them. For people in `text.rs`, for programs in
//! `json.rs`.

mod json;
mod text;

pub use text::self_test_text;

use super::DriverFindings;
use crate::printable::printable_line;
use plimsoll_exec::DeviceError;
use plimsoll_exec::cases::Wrong;
use plimsoll_exec::self_test::{Cause, KernelCheck, KernelFailure, Speeds};
use plimsoll_graph::{DType, OLDEST_WITH_FP8, Op};
use plimsoll_plan::Card;
use plimsoll_train::{CalibrationError, LOSS_TOLERANCE, LossCheck};
use plimsoll_units::Bytes;
use std::path::PathBuf;

/// The allowed loss of free memory during the test: memory that a driver keeps for kernels that have run. A plan that is not
/// freed loses more over the whole test.
const KEPT: Bytes = Bytes::mib(128);

/// The findings of a self-test.
#[derive(Debug)]
pub struct SelfTest {
    /// The system that it ran on.
    pub system: String,
    /// The card's driver.
    pub driver: DriverFindings,
    /// Whether the driver is a stand-in.
    pub stand_in: bool,
    /// The card.
    pub card: TestedCard,
    /// Its data sheet, if it is known.
    pub paper: Option<&'static Card>,
    /// Each op in each precision, up to the failure of the card, if any.
    pub kernels: Vec<KernelCheck>,
    /// Training steps compared with the CPU's, or why there are none; `None` if the card failed earlier.
    pub training: Option<Result<LossCheck, CalibrationError>>,
    /// Its measured rates.
    pub speeds: Speeds,
    /// The ops that multiply with NVIDIA's library, if one was found.
    pub library: Option<LibraryFindings>,
    /// The free memory before and after.
    pub memory: MemoryFindings,
    /// The duration of the test.
    pub seconds: f64,
}

/// The card that was tested.
#[derive(Debug)]
pub struct TestedCard {
    /// Its number.
    pub index: usize,
    /// The product.
    pub name: String,
    /// Compute capability.
    pub capability: (u8, u8),
    /// All of its memory.
    pub memory: Bytes,
}

/// Products by NVIDIA's library.
#[derive(Debug)]
pub struct LibraryFindings {
    /// Its path.
    pub path: PathBuf,
    /// Major, minor and patch.
    pub version: (u32, u32, u32),
    /// Each op that multiplies, in each precision.
    pub kernels: Vec<KernelCheck>,
    /// Products.
    pub speeds: Speeds,
}

impl LibraryFindings {
    /// Whether the card can't continue.
    pub fn ended_the_device(&self) -> bool {
        self.kernels.last().is_some_and(KernelCheck::ended_the_device)
            || self.speeds.error.as_ref().is_some_and(DeviceError::ends_the_device)
    }

    fn problems(&self) -> impl Iterator<Item = String> {
        let wrong = self.kernels.iter().filter_map(kernel_problem);
        let failed = self.speeds.error.iter().map(|error| format!("speed: {error}"));
        wrong.chain(failed).map(|problem| format!("by cuBLASLt: {problem}"))
    }
}

/// The card's free memory while an empty plan is loaded.
#[derive(Debug)]
pub struct MemoryFindings {
    /// Before anything was tested.
    pub before: Option<Bytes>,
    /// At the end.
    pub after: Option<Bytes>,
    /// Why that is unknown.
    pub error: Option<DeviceError>,
}

impl MemoryFindings {
    /// The decrease of free memory; zero if it increased.
    fn lost(&self) -> Option<Bytes> {
        Some(self.before?.saturating_sub(self.after?))
    }
}

impl SelfTest {
    /// All problems, a line each; empty if the card passes.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.kernels.iter().filter_map(kernel_problem).collect::<Vec<_>>();
        match &self.training {
            Some(Ok(check)) if !check.passes() => problems.push(format!(
                "losses of {} are up to {:.1e} apart, {LOSS_TOLERANCE:.0e} is allowed: {:?} on the GPU, {:?} on the CPU",
                check.model,
                check.largest_difference(),
                check.losses,
                check.expected
            )),
            Some(Err(error)) => problems.push(format!("training: {error}")),
            Some(Ok(_)) | None => {}
        }
        problems.extend(self.speeds.error.iter().map(|error| format!("speed: {error}")));
        problems.extend(self.library.iter().flat_map(LibraryFindings::problems));
        problems.extend(self.memory.error.iter().map(|error| format!("memory: {error}")));
        if let (Some(before), Some(after)) = (self.memory.before, self.memory.after)
            && before.saturating_sub(after) > KEPT
        {
            problems.push(format!(
                "memory: {before} were free before, {after} afterwards: not given back, or taken by another process"
            ));
        }
        let untested = self.untested();
        if !untested.is_empty() {
            problems.push(format!("not tested: {}", untested.join(", ")));
        }
        problems.into_iter().map(|problem| printable_line(&problem).into_owned()).collect()
    }

    /// The first failure of the card.
    pub fn device_error(&self) -> Option<&DeviceError> {
        let of_library = self.library.iter().flat_map(|library| &library.kernels);
        let of_kernels =
            self.kernels.iter().chain(of_library).filter_map(|check| match check.failure.as_ref()?.cause {
                Cause::Device(ref error) => Some(error),
                Cause::Wrong(_) => None,
            });
        let of_training = match &self.training {
            Some(Err(error)) => error.of_device(),
            Some(Ok(_)) | None => None,
        };
        let of_library = self.library.as_ref().and_then(|library| library.speeds.error.as_ref());
        of_kernels.chain(of_training).chain(&self.speeds.error).chain(of_library).chain(&self.memory.error).next()
    }

    /// The ops that the card has kernels for.
    fn ops(&self) -> impl Iterator<Item = &'static str> {
        let has_fp8 = self.card.capability >= OLDEST_WITH_FP8;
        Op::VARIANTS.iter().copied().filter(move |op| has_fp8 || *op != "Fp8Linear")
    }

    /// The parts of the test that did not run.
    fn untested(&self) -> Vec<String> {
        let tested = |op: &str| self.kernels.iter().any(|check| check.op == op);
        let ops = self.ops().filter(|op| !tested(op)).collect::<Vec<_>>();
        let counted = ops.first().map(|first| format!("{} ops from {first} on", ops.len()));
        let mut untested = counted.into_iter().collect::<Vec<_>>();
        let parts = [
            ("training", self.training.is_some()),
            ("speed", self.speeds.error.is_some() || !self.speeds.rates.is_empty()),
            ("memory", self.memory.error.is_some() || self.memory.after.is_some()),
        ];
        untested.extend(parts.into_iter().filter(|(_, tested)| !tested).map(|(part, _)| part.to_owned()));
        untested
    }

    /// The number of ops whose checks all passed, and of all ops.
    fn right_ops(&self) -> (usize, usize) {
        let of = |op: &str| self.kernels.iter().filter(move |check| check.op == op).collect::<Vec<_>>();
        let is_right = |op: &&str| {
            let checks = of(op);
            !checks.is_empty() && checks.iter().all(|check| check.failure.is_none())
        };
        (self.ops().filter(is_right).count(), self.ops().count())
    }
}

/// `Gelu in bf16: element 3 of result 0 is 0.5, expected 0.25, …`
fn kernel_problem(check: &KernelCheck) -> Option<String> {
    let KernelFailure { case, cause } = check.failure.as_ref()?;
    let what = match cause {
        Cause::Wrong(Wrong { output, element, found, expected, allowed }) => {
            format!("element {element} of result {output} is {found}, expected {expected}, at most {allowed:.1e} off")
        }
        Cause::Device(error) => error.to_string(),
    };
    let case = case.as_ref().map_or(String::new(), |case| format!("; {case}"));
    Some(format!("{} in {}: {what}{case}", check.op, precision((check.dtype, check.tf32))))
}

/// A precision, and whether products round single precision to TF32.
type Precision = (DType, bool);

/// The name of a precision in flags.
fn precision((dtype, tf32): Precision) -> &'static str {
    match dtype {
        DType::F32 if tf32 => "tf32",
        DType::F32 => "fp32",
        DType::F16 => "fp16",
        DType::Bf16 => "bf16",
        DType::I32 => "int32",
        DType::I16 => "int16",
        DType::U8 => "uint8",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_exec::cases::Verdict;
    use plimsoll_exec::self_test::{Rate, Workload};

    /// A card whose checks all passed.
    fn passed() -> SelfTest {
        let check = |op: &&'static str| KernelCheck {
            op,
            dtype: DType::F32,
            tf32: false,
            cases: 2,
            verdict: Verdict { elements: 10, worst: 0.5, wrong: None },
            failure: None,
        };
        let losses = vec![5.5, 5.25];
        let (model, parameters, tokens_per_step, step_s) = ("nano", 834_304, 512, 0.01);
        let training =
            LossCheck { model, parameters, tokens_per_step, step_s, losses: losses.clone(), expected: losses };
        SelfTest {
            system: "linux".to_owned(),
            driver: DriverFindings { path: "libcuda.so.1".to_owned(), cuda: "12.8".to_owned() },
            stand_in: false,
            card: TestedCard { index: 0, name: "RTX 3060".to_owned(), capability: (8, 6), memory: Bytes::gib(12) },
            paper: None,
            kernels: Op::VARIANTS.iter().map(check).collect(),
            training: Some(Ok(training)),
            speeds: Speeds { rates: vec![], notes: vec![], error: None },
            library: None,
            memory: MemoryFindings { before: Some(Bytes::gib(11)), after: Some(Bytes::gib(11)), error: None },
            seconds: 3.0,
        }
    }

    /// The only problem of a card, without the missing speeds.
    fn problem(change: impl FnOnce(&mut SelfTest)) -> String {
        let mut found = passed();
        change(&mut found);
        let problems = found.problems();
        assert!(problems.len() == 2 && problems[1] == "not tested: speed", "{problems:?}");
        assert_eq!(found.json()["passed"], false);
        problems[0].clone()
    }

    #[test]
    fn each_problem_is_reported() {
        assert_eq!(passed().problems(), ["not tested: speed"]);
        let wrong = Wrong { output: 1, element: 7, found: 0.5, expected: 0.25, allowed: 0.001 };
        let cause = Cause::Wrong(wrong);
        let kernel = problem(|found| {
            found.kernels[3].failure = Some(KernelFailure { case: Some("X of F32 [2]".to_owned()), cause });
        });
        let op = Op::VARIANTS[3];
        assert_eq!(
            kernel,
            format!("{op} in fp32: element 7 of result 1 is 0.5, expected 0.25, at most 1.0e-3 off; X of F32 [2]")
        );
        let losses = problem(|found| {
            if let Some(Ok(check)) = &mut found.training {
                check.losses[1] = 5.26;
            }
        });
        assert!(losses.starts_with("losses of nano are up to 1.9e-3 apart, 1e-4 is allowed"), "{losses}");
        let not_a_number = problem(|found| {
            if let Some(Ok(check)) = &mut found.training {
                check.losses[0] = f64::NAN;
            }
        });
        assert!(not_a_number.starts_with("losses of nano are up to inf apart"), "{not_a_number}");
        let error = DeviceError::BadStep { step: "Add".to_owned(), problem: "refused".to_owned() };
        let refused = CalibrationError::Device(error.clone());
        let training = problem(|found| {
            found.training = Some(Err(refused));
            assert_eq!(found.device_error(), Some(&error));
        });
        assert_eq!(training, "training: Add: refused");
        let memory = problem(|found| found.memory.after = Some(Bytes::gib(10)));
        assert!(memory.starts_with("memory: 11.0 GiB were free before, 10.0 GiB afterwards"), "{memory}");
    }

    #[test]
    fn tables_and_block_fit_80_columns() {
        let mut found = passed();
        let rate = |workload, size: &str| Rate {
            workload,
            dtype: DType::Bf16,
            tf32: false,
            size: size.to_owned(),
            flops: 1 << 40,
            bytes: 1 << 30,
            seconds: 0.01,
            times: 5,
        };
        found.speeds.rates =
            vec![rate(Workload::AttentionGrad, "16 x 64, 4096 tokens"), rate(Workload::WithinDevice, "256 MiB")];
        let text = self_test_text(&found);
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        let all = found.ops().count();
        let right = format!("{all} of {all} ops are right\n          largest error 0.50");
        for words in ["self-test: passed", &right, "110", "107"] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}
