//! Tests of the self-test: a correct device passes, wrong results and failures are named, and sizes grow as far as a
//! device is fast and has memory.

use plimsoll_exec::cuda::{CallError, CudaError, Fault};
use plimsoll_exec::self_test::{
    Cause, KernelCheck, KernelFailure, Speeds, Workload, check_kernels, measure_speeds, room_beside_nothing,
};
use plimsoll_exec::{Capabilities, CpuDevice, Device, DeviceError, MemoryReport, Room};
use plimsoll_graph::{DType, Op, Scalars, Targets, TensorId};
use plimsoll_plan::{Plan, Step};
use plimsoll_units::Bytes;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::Duration;

/// A device's fault in an op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Planted {
    /// None.
    None,
    /// The first element of its results is wrong.
    Wrong(&'static str),
    /// Its kernel writes nothing.
    Idle(&'static str),
    /// Its kernel is refused.
    Refused(&'static str),
    /// Its kernel makes the device unusable.
    Fatal(&'static str),
}

/// The processor, with a fault.
struct Faulty {
    device: CpuDevice,
    planted: Planted,
}

impl Device for Faulty {
    fn capabilities(&self) -> Capabilities {
        self.device.capabilities()
    }

    fn load(&mut self, plan: &Plan) -> Result<(), DeviceError> {
        self.device.load(plan)
    }

    fn write(&mut self, plan: &Plan, tensor: TensorId, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.write(plan, tensor, bytes)
    }

    fn write_part(&mut self, plan: &Plan, tensor: TensorId, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.write_part(plan, tensor, offset, bytes)
    }

    fn read(&mut self, plan: &Plan, tensor: TensorId, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(plan, tensor, bytes)?;
        if self.planted == Planted::Wrong(plan.programs[0].steps[0].op.variant()) {
            // The highest bit of the exponent.
            bytes[plan[tensor].dtype().size_bytes() as usize - 1] ^= 0x40;
        }
        Ok(())
    }

    fn view(&self, plan: &Plan, tensor: TensorId) -> Result<Cow<'_, [u8]>, DeviceError> {
        self.device.view(plan, tensor)
    }

    fn run(&mut self, plan: &Plan, step: &Step, scalars: &Scalars) -> Result<(), DeviceError> {
        let op = step.op.variant();
        let call =
            CallError { function: "cuX", code: 700, name: Some("X".into()), words: Some("x".into()), detail: None };
        match self.planted {
            Planted::Idle(planted) if planted == op => Ok(()),
            Planted::Refused(planted) if planted == op => Err(CudaError::Call(call).into()),
            Planted::Fatal(planted) if planted == op => {
                Err(CudaError::CardFailed { fault: Fault::Kernel, call }.into())
            }
            _ => self.device.run(plan, step, scalars),
        }
    }

    fn memory(&self) -> MemoryReport {
        self.device.memory()
    }
}

fn checks(planted: Planted) -> Vec<KernelCheck> {
    check_kernels(&mut Faulty { device: CpuDevice::new(), planted }, &Targets::cpu(1))
}

/// The ops that failed.
fn failed(checks: &[KernelCheck]) -> BTreeSet<&'static str> {
    checks.iter().filter(|check| check.failure.is_some()).map(|check| check.op).collect()
}

#[test]
fn every_op_is_enrolled_and_right_on_the_processor() {
    let checks = checks(Planted::None);
    let enrolled = checks.iter().map(|check| check.op).collect::<BTreeSet<_>>();
    assert_eq!(enrolled, Op::VARIANTS.iter().copied().collect());
    assert!(failed(&checks).is_empty(), "{:?}", checks.iter().find(|check| check.failure.is_some()));
    for check in &checks {
        // The error comes at the wait, without a result.
        assert_eq!(check.verdict.elements > 0, check.op != "AwaitTransfer", "{check:?}");
        assert!(check.cases > 0 && check.verdict.worst <= 1.0, "{check:?}");
    }
    let halves = checks.iter().filter(|check| check.dtype != DType::F32).count();
    assert_eq!(halves, 2 * (Op::VARIANTS.len() - plimsoll_exec::cases::SINGLE.len()));
}

#[test]
fn wrong_results_are_named_and_other_ops_continue() {
    for planted in [Planted::Wrong("Gelu"), Planted::Idle("Gelu")] {
        let checks = checks(planted);
        assert_eq!(failed(&checks), BTreeSet::from(["Gelu"]), "{planted:?}");
        for check in checks.iter().filter(|check| check.op == "Gelu") {
            let Some(KernelFailure { case: Some(case), cause: Cause::Wrong(wrong) }) = &check.failure else {
                panic!("{check:?}");
            };
            assert!(case.starts_with("Gelu(Gelu) of "), "{case}");
            assert!(check.verdict.worst > 1.0 && (wrong.output, wrong.element) == (0, 0), "{check:?}");
            assert_eq!(wrong.found.is_nan(), planted == Planted::Idle("Gelu"), "{check:?}");
        }
    }
}

#[test]
fn a_refused_kernel_fails_alone_and_a_dead_device_ends_the_list() {
    let refused = checks(Planted::Refused("Linear"));
    assert_eq!(failed(&refused), BTreeSet::from(["Linear"]));
    assert_eq!(refused.last().map(|check| check.op), Op::VARIANTS.last().copied());
    let dead = checks(Planted::Fatal("Linear"));
    let last = dead.last().expect("checks");
    assert_eq!((last.op, last.dtype, last.cases), ("Linear", DType::F32, 0));
    assert!(last.ended_the_device() && failed(&dead).len() == 1, "{last:?}");
    assert!(matches!(&last.failure, Some(KernelFailure { case: Some(_), cause: Cause::Device(_) })), "{last:?}");
}

/// A device that stores and computes nothing; each run takes a given time, and memory is limited.
struct Idle {
    run: Duration,
    room: u64,
}

impl Device for Idle {
    fn capabilities(&self) -> Capabilities {
        Capabilities { name: "idle".to_owned(), kind: None }
    }

    fn room(&self) -> Result<Option<Room>, DeviceError> {
        Ok(Some(Room { free: Bytes(self.room), total: Bytes(self.room) }))
    }

    fn load(&mut self, plan: &Plan) -> Result<(), DeviceError> {
        let no_room =
            DeviceError::NoRoom { needed: plan.peak(), available: None, reason: "full".to_owned(), card: None };
        if plan.peak().0 > self.room { Err(no_room) } else { Ok(()) }
    }

    fn notes(&self) -> Vec<String> {
        vec!["it idles".to_owned()]
    }

    fn write(&mut self, _: &Plan, _: TensorId, _: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn write_part(&mut self, _: &Plan, _: TensorId, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn read(&mut self, _: &Plan, _: TensorId, _: &mut [u8]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn view(&self, _: &Plan, _: TensorId) -> Result<Cow<'_, [u8]>, DeviceError> {
        Ok(Cow::Borrowed(&[]))
    }

    fn run(&mut self, _: &Plan, _: &Step, _: &Scalars) -> Result<(), DeviceError> {
        std::thread::sleep(self.run);
        Ok(())
    }

    fn memory(&self) -> MemoryReport {
        MemoryReport::default()
    }
}

fn sizes(speeds: &Speeds, workload: Workload) -> Vec<&str> {
    speeds.rates.iter().filter(|rate| rate.workload == workload).map(|rate| rate.size.as_str()).collect()
}

#[test]
fn sizes_grow_while_the_device_is_fast_and_has_memory() {
    let targets = Targets::cpu(1);
    let mut slow = Idle { run: Duration::from_millis(60), room: u64::MAX };
    let speeds = measure_speeds(&mut slow, &targets, &[DType::F32]);
    assert_eq!(sizes(&speeds, Workload::Product), ["32 x 32 x 32"]);
    assert_eq!(sizes(&speeds, Workload::ToHost), ["16 KiB"]);
    assert_eq!((speeds.rates.len(), &speeds.error), (6, &None));
    for rate in &speeds.rates {
        assert!((0.06..0.3).contains(&rate.seconds) && rate.times > 0, "{rate:?}");
    }
    assert_eq!(speeds.notes, ["it idles"]);
    let mut fast = Idle { run: Duration::from_micros(200), room: 40 << 20 };
    let speeds = measure_speeds(&mut fast, &targets, &[DType::F32]);
    assert_eq!(sizes(&speeds, Workload::Product), ["128 x 128 x 128", "512 x 512 x 512", "1024 x 1024 x 1024"]);
    assert_eq!(sizes(&speeds, Workload::WithinDevice), ["16 KiB", "512 KiB", "16 MiB"]);
    let mut full = Idle { run: Duration::ZERO, room: 1 << 10 };
    let speeds = measure_speeds(&mut full, &targets, &[DType::F32]);
    assert!(speeds.rates.is_empty() && matches!(speeds.error, Some(DeviceError::NoRoom { .. })), "{speeds:?}");
    assert_eq!(
        room_beside_nothing(&mut full, &targets).map(|room| room.map(|room| room.free)),
        Ok(Some(Bytes(1 << 10)))
    );
}
