//! The protocol on the processor: a correct device passes; flipped bits in memory, wrong results of products, attention,
//! transfers and training steps are found, with their places.

use plimsoll_exec::{Capabilities, CpuDevice, Device, DeviceError, MemoryReport};
use plimsoll_graph::{Scalars, Targets, TensorId};
use plimsoll_plan::{Plan, Precision, Step};
use plimsoll_stress::{
    Criteria, DeviceUnderTest, Ending, MatrixUnits, Metric, Mismatch, Outcome, PhaseRange, Protocol, StressError,
    StressOutcome, WrongResults, judge, run,
};
use plimsoll_units::Bytes;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// A fault of the device.
#[derive(Debug, Clone, Copy)]
struct Fault {
    /// Part of the name of the tensor whose first bytes get a wrong bit.
    tensor: &'static str,
    /// The bit.
    bit: usize,
    /// The op after which it does; `None` for a write of the host.
    op: Option<&'static str>,
    /// The number of such writes or ops that are right.
    after: usize,
    /// Whether the device fails then, instead of a wrong bit.
    is_failure: bool,
}

/// The processor with a fault.
struct Faulty {
    device: CpuDevice,
    fault: Option<Fault>,
    /// Writes or ops that could have the fault, over all openings of the device.
    count: Arc<AtomicUsize>,
}

impl Faulty {
    fn hit(&mut self, plan: &Plan, tensor: TensorId, op: Option<&str>) -> Result<(), DeviceError> {
        let Some(fault) = self.fault.filter(|fault| fault.op == op && plan[tensor].name.contains(fault.tensor)) else {
            return Ok(());
        };
        if self.count.fetch_add(1, Ordering::Relaxed) == fault.after {
            if fault.is_failure {
                return Err(DeviceError::BadStep { step: "a step".to_owned(), problem: "planted".to_owned() });
            }
            let mut bytes = self.device.view(plan, tensor)?.into_owned();
            bytes[fault.bit / 8] ^= 1 << (fault.bit % 8);
            self.device.write(plan, tensor, &bytes)?;
        }
        Ok(())
    }
}

impl Device for Faulty {
    fn capabilities(&self) -> Capabilities {
        self.device.capabilities()
    }

    fn load(&mut self, plan: &Plan) -> Result<(), DeviceError> {
        self.device.load(plan)
    }

    fn write(&mut self, plan: &Plan, tensor: TensorId, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.write(plan, tensor, bytes)?;
        self.hit(plan, tensor, None)
    }

    fn write_part(&mut self, plan: &Plan, tensor: TensorId, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.write_part(plan, tensor, offset, bytes)?;
        self.hit(plan, tensor, None)
    }

    fn read(&mut self, plan: &Plan, tensor: TensorId, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(plan, tensor, bytes)
    }

    fn view(&self, plan: &Plan, tensor: TensorId) -> Result<Cow<'_, [u8]>, DeviceError> {
        self.device.view(plan, tensor)
    }

    fn run(&mut self, plan: &Plan, step: &Step, scalars: &Scalars) -> Result<(), DeviceError> {
        self.device.run(plan, step, scalars)?;
        step.outputs.iter().try_for_each(|&output| self.hit(plan, output, Some(step.op.variant())))
    }

    fn memory(&self) -> MemoryReport {
        self.device.memory()
    }
}

fn protocol(phases: &str, duration: Duration) -> Protocol {
    let (memory, budget) = (Bytes::mib(19), Bytes::mib(20));
    Protocol {
        phases: phases.parse::<PhaseRange>().expect("phases"),
        duration,
        memory,
        budget: Some(budget),
        watch: None,
    }
}

fn stress(protocol: &Protocol, fault: Option<Fault>, stop: &AtomicBool) -> Result<StressOutcome, StressError> {
    let count = Arc::new(AtomicUsize::new(0));
    let open = |_| -> Result<Box<dyn Device>, DeviceError> {
        Ok(Box::new(Faulty { device: CpuDevice::new(), fault, count: count.clone() }))
    };
    let device = DeviceUnderTest { open: &open, targets: Targets::cpu(1), precision: Precision::Fp32, has_tf32: false };
    run(protocol, device, stop, &mut |_, _| {})
}

fn outcomes(outcome: &StressOutcome) -> Vec<(Metric, Outcome)> {
    let verdicts = judge(&outcome.findings, &Criteria { matrix_units: MatrixUnits::None });
    verdicts.into_iter().map(|verdict| (verdict.metric, verdict.outcome)).collect()
}

fn failed(outcome: &StressOutcome) -> Vec<Metric> {
    let failed = outcomes(outcome).into_iter().filter(|(_, outcome)| *outcome == Outcome::Fail);
    failed.map(|(metric, _)| metric).collect()
}

const SHORT: Duration = Duration::from_millis(1200);

#[test]
fn a_correct_device_passes_every_phase() {
    let outcome = stress(&protocol("1..3", SHORT), None, &AtomicBool::new(false)).expect("it runs");
    let findings = &outcome.findings;
    assert_eq!(failed(&outcome), [], "{findings:?}");
    assert_eq!((&findings.ending, outcome.error.is_none()), (&Ending::Finished, true));
    let judged = outcomes(&outcome).into_iter().filter(|(_, outcome)| *outcome == Outcome::Pass);
    let expected = [Metric::MemoryUse, Metric::WrongBits, Metric::Uninterrupted];
    assert_eq!(judged.map(|(metric, _)| metric).collect::<Vec<_>>(), expected);
    assert_eq!(findings.phases.iter().map(|phase| phase.number).collect::<Vec<_>>(), [1, 2, 3]);
    let workloads = findings.series.iter().map(|series| series.workload.as_str()).collect::<BTreeSet<_>>();
    let expected = BTreeSet::from([
        "attention, bf16",
        "attention, fp16",
        "attention, fp32",
        "memory, moves",
        "memory, patterns",
        "product, bf16",
        "product, fp16",
        "product, fp32",
        "training",
        "transfers",
    ]);
    assert_eq!(workloads, expected);
    assert!(findings.memory.compared >= findings.memory.patterned, "the last check compares all patterns");
    assert!(findings.memory.used.as_f64() > 0.9 * findings.memory.of.as_f64(), "{:?}", findings.memory);
}

/// Runs a phase with a fault, and returns the findings. Fails unless the fault is found, in this workload alone.
fn found(phase: &str, workload: &str, fault: Fault) -> WrongResults {
    let outcome = stress(&protocol(phase, SHORT / 2), Some(fault), &AtomicBool::new(false)).expect("it runs");
    let wrong = &outcome.findings.wrong;
    assert_eq!(failed(&outcome), [Metric::WrongBits], "{fault:?}: {wrong:?}");
    assert!(wrong.first.iter().all(|mismatch| mismatch.workload == workload), "{fault:?}: {wrong:?}");
    wrong.clone()
}

#[test]
fn a_flipped_bit_in_memory_or_a_copy_is_found_with_its_place() {
    for (workload, tensor, op) in [
        ("memory, patterns", "block 8", None),
        ("memory, patterns", "mirror", Some("Scale")),
        ("transfers", "transfer, host", Some("Transfer")),
        ("transfers", "transfer, device", Some("Transfer")),
    ] {
        let wrong = found("1", workload, Fault { tensor, bit: 5, op, after: 0, is_failure: false });
        // The device may have copied a wrong block to its mirror.
        let most = if tensor == "mirror" { 2 } else { 1 };
        assert!((1..=most).contains(&wrong.values) && wrong.bits == wrong.values, "{wrong:?}");
        for mismatch in &wrong.first {
            let expected = (1 << 5, workload == "transfers");
            assert_eq!((mismatch.differing(), mismatch.on_host), expected, "{tensor}: {wrong:?}");
        }
    }
}

/// The second result is wrong, and the later ones are right.
#[test]
fn a_single_wrong_result_of_a_product_or_of_attention_is_found() {
    for (workload, op) in [
        ("product, fp32", "Linear"),
        ("product, fp16", "Linear"),
        ("product, bf16", "Linear"),
        ("attention, fp32", "Attention"),
        ("attention, bf16", "Attention"),
    ] {
        let wrong = found("1", workload, Fault { tensor: workload, bit: 0, op: Some(op), after: 1, is_failure: false });
        assert_eq!(wrong.values, 1, "{workload}");
    }
    // If the first result is wrong, the known answer shows it, and the second result differs from it.
    let wrong = found(
        "1",
        "product, bf16",
        Fault { tensor: "product, bf16", bit: 3, op: Some("Linear"), after: 0, is_failure: false },
    );
    let Mismatch { bits: Some([found, expected]), .. } = wrong.first[0] else { panic!("{wrong:?}") };
    assert_eq!(found ^ expected, 1 << 3);
}

#[test]
fn a_wrong_gradient_changes_a_lap_of_training() {
    found(
        "3",
        "training",
        Fault { tensor: "grad", bit: 22, op: Some("LinearWeightGrad"), after: 10, is_failure: false },
    );
}

#[test]
fn a_device_that_fails_has_the_verdicts_until_then_and_its_error() {
    let op = Some("LinearWeightGrad");
    let fault = Fault { tensor: "grad", bit: 0, op, after: 3, is_failure: true };
    let outcome = stress(&protocol("1", SHORT), Some(fault), &AtomicBool::new(false)).expect("it begins");
    assert!(outcome.error.as_ref().is_some_and(|error| error.to_string().contains("planted")));
    assert!(matches!(&outcome.findings.ending, Ending::Failed(why) if why.contains("planted")));
    assert_eq!(failed(&outcome), [Metric::Uninterrupted]);
    assert_eq!(outcome.findings.wrong.bits, 0);
}

#[test]
fn an_interrupted_test_has_the_verdicts_until_then() {
    let outcome = stress(&protocol("1..3", Duration::from_secs(3600)), None, &AtomicBool::new(true)).expect("it runs");
    assert_eq!((&outcome.findings.ending, failed(&outcome)), (&Ending::Interrupted, vec![]));
    let (_, wrong_bits) = &outcomes(&outcome)[2];
    assert_eq!(*wrong_bits, Outcome::Pass, "the preparation compares first results");
}

#[test]
fn too_little_memory_is_an_error_with_the_needed_bytes() {
    let protocol = Protocol { memory: Bytes(64 << 10), ..protocol("1", SHORT) };
    let Err(StressError::DoesNotFit { needed, available }) = stress(&protocol, None, &AtomicBool::new(false)) else {
        panic!("it fits");
    };
    assert!(available == Bytes(64 << 10) && needed > available && needed < Bytes::mib(4), "{needed}");
    let enough = Protocol { memory: needed, ..protocol };
    assert!(stress(&enough, None, &AtomicBool::new(true)).is_ok());
}
