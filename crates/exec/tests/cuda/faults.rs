//! Every fault at every point: a typed error or success, no panic, and no leak.

use super::machine::Machine;
use super::plans::Sums;
use plimsoll_exec::cuda::{CudaError, CudaOptions, Fault};
use plimsoll_exec::{Device, DeviceError};

/// Functions that free or end objects: if one fails, the object leaks.
const GIVE_BACK: &[&str] = &[
    "cuDevicePrimaryCtxRelease_v2",
    "cuEventDestroy_v2",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuMemAddressFree",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemHostUnregister",
    "cuMemRelease",
    "cuMemUnmap",
    "cuModuleUnload",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
];

/// All other functions, whether or not a run calls them.
const OTHERS: &[&str] = &[
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetUuid_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuEventCreate",
    "cuEventElapsedTime",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphUpload",
    "cuInit",
    "cuLaunchHostFunc",
    "cuLaunchKernel",
    "cuMemAddressReserve",
    "cuMemAlloc_v2",
    "cuMemCreate",
    "cuMemGetAllocationGranularity",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemHostRegister_v2",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadDataEx",
    "cuStreamBeginCapture_v2",
    "cuStreamCreate",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

/// Runs the sums. Returns the device's notes, and the number of calls of each function.
fn run(machine: &Machine, options: CudaOptions) -> Result<(Vec<String>, Vec<u64>), DeviceError> {
    let mut device = machine.device(options)?;
    Sums::on_card().run(&mut device, 2)?;
    Ok((device.notes(), OTHERS.iter().map(|function| machine.calls(function)).collect()))
}

/// All faults that a run on this machine can meet: each call of each function.
fn each_call(machine: &Machine, description: &str, options: CudaOptions, mut check: impl FnMut(&str, u64)) {
    machine.reset(description);
    let (_, calls) = run(machine, options).expect("no fault yet");
    for (function, count) in OTHERS.iter().zip(calls) {
        (1..=count).for_each(|call| check(function, call));
    }
}

#[test]
fn each_call_can_fail_without_leaks() {
    let Some(machine) = Machine::stand_in("") else { return };
    for (description, graphs) in [("", true), ("mapping=0", false)] {
        let options = CudaOptions { graphs, ..CudaOptions::default() };
        each_call(&machine, description, options, |function, call| {
            for code in [1, 2, 46] {
                machine.reset(&format!("{description};fail={function}:{call}:{code}"));
                let about = format!("{function}, call {call}, code {code}");
                match run(&machine, options) {
                    // Optional parts are skipped, with a note.
                    Ok((notes, _)) => assert!(!notes.is_empty(), "{about}: there is no note"),
                    Err(error) => assert!(!matches!(error, DeviceError::BadStep { .. }), "{about}: {error}"),
                }
                assert_eq!(machine.held(), (0, 0), "{about}");
            }
        });
    }
}

/// A code of a newer driver.
#[test]
fn an_unknown_code_is_reported_by_number() {
    let Some(machine) = Machine::stand_in("") else { return };
    let options = CudaOptions::default();
    machine.reset("");
    let (_, calls) = run(&machine, options).expect("no fault yet");
    for (function, _) in OTHERS.iter().zip(calls).filter(|(_, calls)| *calls > 0) {
        machine.reset(&format!("fail={function}:1:9999"));
        let said = match run(&machine, options) {
            Ok((notes, _)) => notes.join("\n"),
            Err(error) => error.to_string(),
        };
        assert!(said.contains(&format!("{function} gives error 9999")), "{function}: {said}");
    }
}

#[test]
fn a_failed_card_stays_failed_and_reports_the_fault() {
    let Some(machine) = Machine::stand_in("") else { return };
    let options = CudaOptions { graphs: false, ..CudaOptions::default() };
    let faults = [(214, Fault::Memory), (719, Fault::Kernel), (702, Fault::Timeout), (999, Fault::Lost)];
    let mut number = 0;
    each_call(&machine, "", options, |function, call| {
        let (code, expected) = faults[number % faults.len()];
        number += 1;
        machine.reset(&format!("stick={function}:{call}:{code}"));
        match run(&machine, options) {
            Err(DeviceError::Cuda(CudaError::CardFailed { fault, call })) => {
                assert_eq!((fault, call.code), (expected, code), "{function}");
            }
            other => panic!("{function}, call {call}: {other:?}"),
        }
    });
}

#[test]
fn functions_that_free_may_fail() {
    let Some(machine) = Machine::stand_in("") else { return };
    for function in GIVE_BACK {
        machine.reset(&format!("fail={function}:1:400"));
        let _ = run(&machine, CudaOptions::default());
    }
}

fn load(description: &str) -> Option<Result<(), DeviceError>> {
    let machine = Machine::stand_in(description)?;
    let outcome = machine.device(CudaOptions::default()).map_err(DeviceError::from);
    let outcome = outcome.and_then(|mut device| device.load(&Sums::on_card().plan));
    assert_eq!(machine.held(), (0, 0), "{description}");
    Some(outcome)
}

#[test]
fn too_little_memory_is_a_value() {
    // The memory left by the driver and two modules is less than a page of the arena, or another process takes it.
    for description in ["others=12038", "others=12020;growth=8", "others=12036;mapping=0;growth=1"] {
        let Some(outcome) = load(description) else { return };
        match outcome {
            Err(DeviceError::NoRoom { needed, available, .. }) => {
                assert_eq!(needed, Sums::on_card().plan.peak());
                assert!(available.is_some(), "{description}");
            }
            other => panic!("{description}: {other:?}"),
        }
    }
    let Some(outcome) = load("others=12288") else { return };
    assert!(matches!(outcome, Err(DeviceError::Cuda(CudaError::NoRoomForDriver { .. }))), "{outcome:?}");
}

#[test]
fn unusable_cards_report_the_reason() {
    let error = |description: &str| load(description).map(|outcome| outcome.expect_err(description));
    let Some(none) = error("cards=0") else { return };
    assert!(matches!(none, DeviceError::Cuda(CudaError::NoCards { .. })), "{none}");
    let old = error("capability=6.1").expect("the stand-in");
    assert!(matches!(old, DeviceError::Cuda(CudaError::CardTooOld { found: (6, 1), .. })), "{old}");
    let refused = error("fail=cuModuleLoadDataEx:1:222").expect("the stand-in");
    assert!(matches!(refused, DeviceError::Cuda(CudaError::ModuleRefused { .. })), "{refused}");
    for (mode, expected) in [(3, "exclusive"), (2, "prohibited")] {
        let error = error(&format!("mode={mode};fail=cuDevicePrimaryCtxRetain:1:46")).expect("the stand-in");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn an_invalid_card_number_is_an_error() {
    let machine = Machine::of("cards=2");
    let error = machine.driver().card(63).expect_err("no machine has this many cards");
    assert!(matches!(error, CudaError::NoSuchCard { index: 63, .. }), "{error}");
    let cards = machine.driver().cards().expect("cards");
    if machine.driver().is_stand_in() {
        assert_eq!(cards.iter().map(|card| card.index).collect::<Vec<_>>(), [0, 1]);
        assert_eq!((cards[1].compute_capability, cards[1].memory.0), ((8, 6), 12_288 << 20));
        let mut device =
            plimsoll_exec::cuda::CudaDevice::open(machine.driver(), cards[1].clone(), CudaOptions::default())
                .expect("the second card");
        assert_eq!(Sums::on_card().run(&mut device, 1), Ok(Sums::expected(1)));
    }
}
