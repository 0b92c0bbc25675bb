//! Plans that replace each other on a card: the state stays where it is, in the same addresses.

use super::machine::Machine;
use super::training::{CARD, Run, gpt2};
use plimsoll_exec::cuda::CudaOptions;
use plimsoll_exec::{CpuDevice, Device, DeviceError, NullDevice};
use plimsoll_graph::{Graph, MemoryId, Target};
use plimsoll_plan::{Level, Levers, Plan, Recompute};

/// Four plans of a run. The second one recomputes; the arenas are larger than they need to be, by these MiB: the second one has a
/// piece of memory more, the third one ends in the middle of a piece, the last one is as small as the first.
fn plans(run: &Run, on: Target) -> Vec<(Graph, Plan)> {
    let recompute = Levers { recompute: Recompute::all(Level::Block), ..Levers::default() };
    let planned = [(Levers::default(), 0), (recompute, 258), (Levers::default(), 100), (recompute, 0)];
    let plan = |(levers, more): (Levers, u64)| {
        let (graph, mut plan) = run.clone().levers(levers).plan(on);
        plan.memories[MemoryId::DEVICE].peak_bytes += more << 20;
        (graph, plan)
    };
    planned.into_iter().map(plan).collect()
}

/// A run of as many steps as there are plans.
fn run() -> Run {
    Run::of(gpt2()).steps_made(4)
}

#[test]
fn invariant_5_exchanged_plans_change_no_bit() {
    let run = run();
    for (description, graphs) in [("execution=late", false), ("order=backward", true)] {
        let machine = Machine::of(description);
        let options = CudaOptions { graphs, ..CudaOptions::default() };
        let expected = run.train(&mut machine.device(options).expect("a card"), CARD).expect("trains");
        let plans = plans(&run, CARD);
        let mut device = machine.device(options).expect("a card");
        let (result, resident) = run.exchanging(&mut device, &plans).expect("trains");
        assert_eq!(result, expected, "{description}");
        // The host's arena is empty.
        let planned = plans.iter().map(|(_, plan)| Some(plan.peak().0.next_multiple_of(2 << 20)));
        assert_eq!(resident, planned.collect::<Vec<_>>(), "{description}");
        let reserved = device.memory().arenas[MemoryId::DEVICE].reserved_bytes;
        assert_eq!(reserved, plans[3].1.peak().0, "{description}");
    }
}

/// The processor extends its mapping, and the null device checks that nothing is read that the plan before left behind.
#[test]
fn other_devices_exchange_plans_too() {
    let run = run();
    let on = Target::Cpu { threads: 1 };
    let expected = run.on_processor();
    let (result, resident) = run.exchanging(&mut CpuDevice::new(), &plans(&run, on)).expect("trains");
    assert_eq!(result, expected);
    let planned =
        plans(&run, on).iter().map(|(_, plan)| Some(plan.peak().0.next_multiple_of(4096))).collect::<Vec<_>>();
    assert!(resident[0].is_none() || resident == planned, "{resident:?}, not {planned:?}");
    run.exchanging(&mut NullDevice::default(), &plans(&run, CARD)).expect("every access is valid");
}

#[test]
fn a_card_without_mapped_memory_exchanges_plans_of_one_size_only() {
    let run = run();
    let Some(machine) = Machine::stand_in("mapping=0") else { return };
    let plans = plans(&run, CARD);
    let mut device = machine.device(CudaOptions::default()).expect("a card");
    device.load(&plans[0].1).expect("loads");
    let can = plans.iter().map(|(_, plan)| device.can_exchange(&plans[0].1, plan)).collect::<Vec<_>>();
    assert_eq!(can, [true, false, false, plans[3].1.peak() == plans[0].1.peak()]);
}

/// A state that is in the host's memory is saved and loaded instead.
#[test]
fn a_plan_whose_state_is_on_the_host_is_not_exchanged() {
    let run = run().levers(Levers { optimizer_offload: 1.0, ..Levers::default() });
    let machine = Machine::of("");
    let (_, plan) = run.plan(CARD);
    let mut device = machine.device(CudaOptions::default()).expect("a card");
    device.load(&plan).expect("loads");
    assert!(!device.can_exchange(&plan, &plan));
}

/// Each call of the driver during an exchange fails once: the plan before continues with the same state, or the error is the
/// device's. Nothing leaks.
#[test]
fn each_call_of_an_exchange_can_fail_without_losing_the_state() {
    let run = Run::of(gpt2());
    let Some(machine) = Machine::stand_in("") else { return };
    let plans = &plans(&run, CARD)[..2];
    let options = CudaOptions::default();
    let expected = run.train(&mut machine.device(options).expect("a card"), CARD).expect("trains");
    let (mut refused, mut failed) = (0, 0);
    for (function, every) in
        [("cuMemCreate", 1), ("cuMemMap", 1), ("cuMemSetAccess", 1), ("cuModuleLoadDataEx", 5), ("cuStreamCreate", 1)]
    {
        machine.reset("");
        let mut device = machine.device(options).expect("a card");
        device.load(&plans[0].1).expect("loads");
        let loaded = machine.calls(function);
        drop(device);
        machine.reset("");
        run.exchanging(&mut machine.device(options).expect("a card"), plans).expect("trains");
        for call in (loaded + 1..=machine.calls(function)).step_by(every) {
            machine.reset(&format!("fail={function}:{call}:2"));
            let mut device = machine.device(options).expect("a card");
            match run.exchanging(&mut device, plans) {
                Ok((result, _)) => {
                    assert_eq!(result, expected, "{function}, call {call}");
                    refused += 1;
                }
                Err(error) => {
                    assert!(matches!(error, DeviceError::Cuda(_)), "{function}, call {call}: {error}");
                    failed += 1;
                }
            }
            drop(device);
            assert_eq!(machine.held(), (0, 0), "{function}, call {call}");
        }
    }
    assert!(refused > 5 && failed == 0, "{refused} and {failed}");
}
