//! Programs on streams, captured and not: results, accesses, and that every wait is needed.

use super::machine::Machine;
use super::plans::Sums;
use plimsoll_exec::cuda::{CudaError, CudaOptions};
use plimsoll_exec::{ArenaUse, Device, DeviceError, MemoryReport, run_program_timed};
use plimsoll_graph::{Op, ProgramKind, Scalars, Storage};
use plimsoll_plan::{Plan, PlannedProgram, Region, validate};

const GRAPHS: CudaOptions = CudaOptions { graphs: true, tf32: false, autotune: false };
const STREAMS: CudaOptions = CudaOptions { graphs: false, tf32: false, autotune: false };

/// Machines that differ in the timing of work, and in the allocation of memory.
const MACHINES: &[&str] = &[
    "",
    "execution=late",
    "mapping=0",
    "execution=late;order=backward",
    "fail=cuMemHostAlloc:1:2",
    // The host's memory is pinned in pieces; none of it is pinned.
    "execution=late;fail=cuMemHostRegister_v2:1:2",
    "execution=late;registrable=0",
];

#[test]
fn both_sides_run_a_program_by_streams_and_captured() {
    let sums = Sums::on_card();
    for description in MACHINES {
        for options in [GRAPHS, STREAMS] {
            let machine = Machine::of(description);
            let mut device = machine.device(options).expect("a card");
            let results = sums.run(&mut device, 3);
            assert_eq!(results, Ok(Sums::expected(3)), "{description}, {options:?}");
        }
    }
}

#[test]
fn a_captured_program_is_started_by_one_call() {
    let Some(machine) = Machine::stand_in("") else { return };
    let sums = Sums::on_card();
    let mut device = machine.device(GRAPHS).expect("a card");
    sums.run(&mut device, 3).expect("runs");
    assert_eq!((machine.calls("cuGraphLaunch"), machine.calls("cuGraphInstantiateWithFlags")), (3, 1));
    let kernels = sums.plan.programs[0].steps.iter().filter(|step| step.op.name() == "add").count() as u64 - 1;
    assert_eq!(machine.calls("cuLaunchKernel"), kernels, "only while it was captured");
}

#[test]
fn memory_that_cannot_be_pinned_is_copied_synchronously() {
    let Some(machine) = Machine::stand_in("registrable=0") else { return };
    for execution in ["", ";execution=late"] {
        machine.reset(&format!("registrable=0;fail=cuMemHostAlloc:1:2{execution}"));
        let mut device = machine.device(GRAPHS).expect("a card");
        assert_eq!(Sums::on_card().run(&mut device, 2), Ok(Sums::expected(2)));
        let notes = device.notes();
        assert!(notes.len() == 1 && notes[0].contains("could not be pinned"), "{notes:?}");
        assert_eq!(machine.calls("cuGraphLaunch"), 0, "copies of pageable memory cannot be captured");
    }
}

#[test]
fn invariant_3_exact_what_is_touched_is_what_was_planned_and_nothing_is_allocated_after_the_load() {
    let sums = Sums::on_card();
    for options in [GRAPHS, STREAMS] {
        let machine = Machine::of("");
        let mut device = machine.device(options).expect("a card");
        sums.run(&mut device, 1).expect("runs");
        let first = device.memory();
        let planned = MemoryReport {
            arenas: sums.plan.arenas().map(|_, &bytes| ArenaUse { reserved_bytes: bytes, touched_bytes: bytes }),
            allocations: first.allocations,
        };
        assert_eq!(first, planned);
        for _ in 0..3 {
            device.run_program(&sums.plan, 0, &Scalars::default()).expect("runs");
        }
        device.synchronize().expect("is done");
        assert_eq!(device.memory(), planned);
    }
}

#[test]
fn the_drivers_free_memory_shrinks_by_the_reservation() {
    // The device's memory is allocated in pieces of 2 MiB, the host's is not.
    let Some(machine) = Machine::stand_in("") else { return };
    let sums = Sums::on_card();
    let mut device = machine.device(GRAPHS).expect("a card");
    device.load(&sums.plan).expect("loads");
    let host = sums.plan.host().0.next_multiple_of(4096);
    assert_eq!(device.resident_bytes(), Some(sums.plan.peak().0.next_multiple_of(2 << 20) + host));
    // Memory that another process takes at the same time does not count.
    machine.reset("grab=cuMemCreate:1:500");
    let mut device = machine.device(GRAPHS).expect("a card");
    device.load(&sums.plan).expect("loads");
    assert_eq!((device.resident_bytes(), device.resident_in_process_bytes()), (None, Some(host)));
    machine.reset("mapping=0");
}

#[test]
fn steps_can_be_timed_one_by_one() {
    let machine = Machine::of("execution=late");
    let sums = Sums::on_card();
    let mut device = machine.device(GRAPHS).expect("a card");
    let once = sums.run(&mut device, 1).expect("runs");
    let mut steps = Vec::new();
    device.load(&sums.plan).expect("loads again");
    assert_eq!(once, sums.run(&mut device, 0).map(|_| Sums::expected(1)).expect("loads again"));
    let mut observe = |step, _| steps.push(step);
    run_program_timed(&mut device, &sums.plan, ProgramKind::Numbered(0), &Scalars::default(), &mut observe)
        .expect("runs");
    assert_eq!(steps, (0..sums.plan.programs[0].steps.len()).collect::<Vec<_>>());
    let names = ["result", "home"];
    for (name, expected) in names.iter().zip(Sums::expected(1)) {
        let id = sums.plan.tensors.iter().position(|tensor| tensor.name == *name).expect("a tensor");
        let bytes = device.view(&sums.plan, plimsoll_graph::TensorId(id as u32)).expect("is there");
        assert_eq!(&*bytes, bytemuck::cast_slice::<f32, u8>(&expected), "{name}");
    }
}

/// Every plan without one of the waits, with a description of it.
pub fn without_a_wait(plan: &Plan) -> Vec<(Plan, String)> {
    let mut damaged = Vec::new();
    for (program, planned) in plan.programs.iter().enumerate() {
        for (index, step) in planned.steps.iter().enumerate().filter(|(index, _)| orders(plan, planned, *index)) {
            for (number, on) in step.waits.iter().enumerate() {
                let mut without = plan.clone();
                without.programs[program].steps[index].waits.remove(number);
                assert!(validate(&without).is_err(), "a wait that orders nothing");
                damaged.push((without, format!("{} (step {index} of {}) on step {on}", step.op.name(), planned.name)));
            }
        }
    }
    damaged
}

/// Whether any later work depends on a step's waits. Awaited memory may be overwritten afterwards, but need not be.
fn orders(plan: &Plan, program: &PlannedProgram, index: usize) -> bool {
    let step = &program.steps[index];
    let Op::AwaitTransfer(_) = step.op else { return true };
    let sent = plan[step.inputs[0]].region();
    let meets = |region: Region| region.offset < sent.end() && sent.offset < region.end();
    let later = program.steps[index..].iter().filter(|later| plan.queue(later) == plan.queue(step));
    let mut written = later.flat_map(|later| {
        let outputs = later.outputs.iter().filter(|id| plan[**id].memory == step.memory);
        outputs.map(|&id| plan[id].region()).chain(later.scratch)
    });
    written.any(meets)
}

#[test]
fn every_wait_is_needed() {
    let Some(machine) = Machine::stand_in("") else { return };
    let sums = Sums::on_card();
    let mut waits = 0;
    for (damaged, what) in without_a_wait(&sums.plan) {
        waits += 1;
        let damaged = Sums::of(damaged);
        for (options, execution) in [
            (GRAPHS, ""),
            (STREAMS, ""),
            (GRAPHS, "execution=late"),
            (STREAMS, "execution=late"),
            (GRAPHS, "execution=late;registrable=0"),
            (STREAMS, "registrable=0"),
        ] {
            machine.reset(execution);
            let mut device = machine.device(options).expect("a card");
            let error = damaged.run(&mut device, 2).expect_err(&what);
            // Either two operations are not ordered, or one comes too early for what it reads.
            let found = |detail: &str| detail.contains("hazard") || detail.contains("unwritten");
            assert!(
                matches!(&error, DeviceError::Cuda(CudaError::CardFailed { call, .. })
                    if call.detail.as_deref().is_some_and(found)),
                "{what}: {error}"
            );
        }
    }
    assert!(waits >= 4, "{waits} waits");
}

/// The joins of the streams at both ends order the first program's writes before the next one's reads.
#[test]
fn persistent_tensors_are_zero_after_the_load() {
    let machine = Machine::of("");
    let sums = Sums::on_card();
    let mut device = machine.device(GRAPHS).expect("a card");
    device.load(&sums.plan).expect("loads");
    let kept = sums.plan.tensors.iter().enumerate().filter(|(_, tensor)| tensor.storage == Storage::Persistent);
    for (index, tensor) in kept {
        let bytes = device.view(&sums.plan, plimsoll_graph::TensorId(index as u32)).expect("is there");
        assert!(bytes.iter().all(|byte| *byte == 0), "{}", tensor.name);
    }
}
