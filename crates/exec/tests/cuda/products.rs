//! Products by cuBLASLt: the machine's library on a real card, the stand-in for it on the stand-in driver.

use super::machine::Machine;
use super::training::{Run, distance, gpt2, llama, t5};
use plimsoll_exec::cuda::{CublasLt, CublasLtError, CudaDevice, CudaError, CudaOptions, ProductChoices, cublas_lt};
use plimsoll_exec::self_test::{KernelCheck, check_products};
use plimsoll_exec::{Device, DeviceError};
use plimsoll_graph::{MemoryId, OLDEST_WITH_FP8, Products, Target, Targets};
use plimsoll_plan::{Level, Levers, Precision, Recompute};

/// The stand-in's card.
const CARD: Target = Target::Cuda { compute_capability: (8, 6), products: Products::CublasLt };

/// The library of this machine; `None` on a real card without one, with a message.
fn library(machine: &Machine) -> Option<&'static CublasLt> {
    let path = match machine.driver().is_stand_in() {
        true => Some(plimsoll_fake_cuda::library()),
        false => cublas_lt().into_iter().next(),
    };
    if path.is_none() {
        eprintln!("SKIPPED: there is no cuBLASLt");
    }
    path.map(|path| CublasLt::open(&path).expect("a cuBLASLt"))
}

/// The machine's card, with its library for products.
fn device(machine: &Machine, options: CudaOptions) -> Option<CudaDevice> {
    let library = library(machine)?;
    let mut device = machine.device(options).expect("a card");
    device.use_library(library).expect("a library for this card");
    Some(device)
}

#[test]
fn every_family_trains_as_on_the_processor_with_a_library() {
    let machine = Machine::of("");
    for (name, model) in [("GPT-2", gpt2()), ("Llama", llama()), ("T5", t5())] {
        let run = Run::of(model);
        let Some(mut device) = device(&machine, CudaOptions::default()) else { return };
        let (losses, weights) = run.train(&mut device, CARD).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(device.notes(), Vec::<String>::new(), "{name}");
        let (expected_losses, expected_weights) = run.on_processor();
        assert!(distance(&losses, &expected_losses) < 1e-4, "{name}: {losses:?}, not {expected_losses:?}");
        assert!(distance(&weights, &expected_weights) < 2e-2, "{name}: {}", distance(&weights, &expected_weights));
        let (_, plan) = run.plan(CARD);
        assert_eq!(device.memory().arena(MemoryId::DEVICE).touched_bytes, plan.peak().0, "{name}");
    }
}

#[test]
fn invariant_5_levers_and_ways_to_run_change_no_bit_with_a_library() {
    const TF32: CudaOptions = CudaOptions { graphs: true, tf32: true, autotune: false };
    let recompute = Levers { recompute: Recompute::all(Level::Block), ..Levers::default() };
    let machine = Machine::of("");
    for (precision, options) in [
        (Precision::Fp32, CudaOptions::default()),
        (Precision::Fp32, TF32),
        (Precision::Bf16, CudaOptions::default()),
        (Precision::Fp16, CudaOptions::default()),
        (Precision::Fp8, CudaOptions::default()),
    ] {
        let plain = Run::of(gpt2()).levers(Levers { precision, ..Levers::default() });
        let card = if precision == Precision::Fp8 { "card=rtx4090" } else { "card=rtx3060" };
        machine.reset(card);
        let Some(mut first) = device(&machine, options) else { return };
        if precision == Precision::Fp8 && first.card().compute_capability < OLDEST_WITH_FP8 {
            eprintln!("SKIPPED: {} has no products in 8 bits", first.card().name);
            continue;
        }
        let expected = plain.train(&mut first, CARD).expect("trains");
        drop(first);
        for (levers, description, graphs) in
            [(Levers::default(), "execution=late", false), (recompute, "order=backward;mapping=0", true)]
        {
            machine.reset(&format!("{card};{description}"));
            let mut device = device(&machine, CudaOptions { graphs, ..options }).expect("was there before");
            let levers = Levers { precision, ..levers };
            let result = plain.clone().levers(levers).train(&mut device, CARD).expect("trains");
            assert_eq!(result, expected, "{precision:?}, {options:?}, {description}");
            drop(device);
            if machine.driver().is_stand_in() {
                assert_eq!(machine.held(), (0, 0), "{precision:?}, {description}");
            }
        }
    }
}

/// All types, transpositions, biases and sums of the ops that multiply, those in 8 bits among them.
#[test]
fn products_by_a_library_are_correct() {
    let machine = Machine::of("card=rtx4090");
    let Some(mut device) = device(&machine, CudaOptions::default()) else { return };
    let capability = device.card().compute_capability;
    let targets = Targets::cuda(capability, 1).multiplying_by(Products::CublasLt);
    for tf32 in [false, true] {
        device.set_tf32(tf32);
        let checks = check_products(&mut device, &targets, tf32);
        let is_in_fp8 = |check: &KernelCheck| check.op == "Fp8Linear";
        assert!(!checks.is_empty() && checks.iter().any(is_in_fp8) == targets.device.has_fp8());
        for check in checks {
            assert_eq!(check.failure, None, "{check:?}");
        }
    }
    assert_eq!(device.notes(), Vec::<String>::new());
}

/// Built-in kernels compute the products that the library has no algorithm for, with a note.
#[test]
fn a_product_without_an_algorithm_is_computed_by_a_kernel() {
    let Some(machine) = Machine::stand_in("") else { return };
    let run = Run::of(gpt2());
    let (expected, _) = run.on_processor();
    for call in [1, 2, 7] {
        machine.reset(&format!("fail=cublasLtMatmulAlgoGetHeuristic:{call}:15"));
        let mut device = device(&machine, CudaOptions::default()).expect("the stand-in's");
        let (losses, _) = run.train(&mut device, CARD).expect("trains");
        assert!(distance(&losses, &expected) < 1e-4, "{losses:?}, not {expected:?}");
        let notes = device.notes();
        assert!(notes.len() == 1 && notes[0].contains("no algorithm for products of"), "{notes:?}");
    }
}

/// The next algorithm computes a product whose algorithm fails on the card, and if none is left, a built-in kernel.
#[test]
fn a_product_whose_algorithm_fails_is_computed_by_another_one() {
    let Some(machine) = Machine::stand_in("") else { return };
    let run = Run::of(gpt2());
    let (expected, _) = run.on_processor();
    let all_fail = (1..=400).map(|call| format!("fail=cublasLtMatmul:{call}:15")).collect::<Vec<_>>().join(";");
    for (faults, tunes, words) in [
        ("fail=cublasLtMatmul:1:15", false, "can't run the algorithm that it recommends for products of"),
        ("fail=cublasLtMatmul:1:8;fail=cublasLtMatmul:3:14", false, "another algorithm computes them"),
        ("fail=cublasLtMatmul:1:15", true, "another algorithm computes them"),
        (&*all_fail, false, "has no algorithm for products of"),
        (&*all_fail, true, "has no algorithm for products of"),
    ] {
        machine.reset(faults);
        let options = CudaOptions { autotune: tunes, ..CudaOptions::default() };
        let mut device = device(&machine, options).expect("the stand-in's");
        let (losses, _) = run.train(&mut device, CARD).expect("trains");
        assert!(distance(&losses, &expected) < 1e-4, "{losses:?}, not {expected:?}");
        let notes = device.notes();
        assert!(notes.len() == 1 && notes[0].contains(words), "{notes:?}");
        drop(device);
        assert_eq!(machine.held(), (0, 0));
    }
}

/// Functions of the library that a run calls, except those that free objects.
const FUNCTIONS: [&str; 9] = [
    "cublasLtCreate",
    "cublasLtMatmul",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cuMemsetD8Async",
];

fn train(machine: &Machine, run: &Run, options: CudaOptions) -> Result<(), DeviceError> {
    let mut device = machine.device(options)?;
    let library = CublasLt::open(&plimsoll_fake_cuda::library()).expect("the stand-in's");
    device.use_library(library).map_err(CudaError::from)?;
    run.train(&mut device, CARD).map(|_| ())
}

#[test]
fn each_call_of_the_library_can_fail_without_leaks() {
    let Some(machine) = Machine::stand_in("") else { return };
    let run = Run::of(gpt2());
    for (function, graphs) in FUNCTIONS.iter().flat_map(|function| [(function, true), (function, false)]) {
        machine.reset("");
        let options = CudaOptions { graphs, ..CudaOptions::default() };
        train(&machine, &run, options).expect("no fault yet");
        let calls = machine.calls(function);
        assert!(calls > 0, "{function} is not called");
        for (call, status) in [(1, 3), (1, 13), (calls.div_ceil(2), 3), (calls, 13)] {
            machine.reset(&format!("fail={function}:{call}:{status}"));
            let error = train(&machine, &run, options).expect_err(function);
            assert_eq!(machine.held(), (0, 0), "{function}, call {call}: {error}");
            assert!(is_of(function, &error), "{function}, call {call}, status {status}: {error}");
        }
    }
}

/// Whether an error says which function failed.
fn is_of(function: &str, error: &DeviceError) -> bool {
    match error {
        DeviceError::NoRoom { reason, .. } => reason.contains(function),
        DeviceError::Cuda(CudaError::CublasLt(CublasLtError::Failed { function: failed, .. })) => *failed == function,
        DeviceError::Cuda(CudaError::Call(call)) => call.function == function,
        _ => false,
    }
}

/// An algorithm that the library can't run is not chosen; any other failure is an error.
#[test]
fn timing_can_fail_without_leaks() {
    let Some(machine) = Machine::stand_in("") else { return };
    let run = Run::of(gpt2());
    let options = CudaOptions { autotune: true, ..CudaOptions::default() };
    for (function, call, code) in [("cuEventElapsedTime", 1, 1), ("cuEventCreate", 1, 2), ("cublasLtMatmul", 9, 13)] {
        machine.reset(&format!("fail={function}:{call}:{code}"));
        let error = train(&machine, &run, options).expect_err(function);
        assert!(is_of(function, &error), "{function}: {error}");
        assert_eq!(machine.held(), (0, 0), "{function}: {error}");
    }
    machine.reset("fail=cublasLtMatmul:1:15");
    train(&machine, &run, options).expect("another algorithm");
    assert_eq!(machine.held(), (0, 0));
}

/// A resumed run uses its stored choices, and computes the same bits, even if a new choice would differ.
#[test]
fn invariant_7_a_resumed_run_uses_its_stored_algorithms() {
    let machine = Machine::of("");
    let run = Run::of(gpt2());
    let Some(mut first) = device(&machine, CudaOptions::default()) else { return };
    let recommended = run.train(&mut first, CARD).expect("trains");
    let kept_of_recommended = first.product_choices().expect("a library computes");
    drop(first);
    let tuned = CudaOptions { autotune: true, ..CudaOptions::default() };
    let mut second = device(&machine, tuned).expect("was there before");
    let fastest = run.train(&mut second, CARD).expect("trains");
    let kept = second.product_choices().expect("a library computes");
    drop(second);
    if machine.driver().is_stand_in() {
        // Its recommendation is not its fastest algorithm, and rounds differently.
        assert_ne!((&kept, &fastest), (&kept_of_recommended, &recommended));
    }
    for (kept, expected, options) in
        [(kept, fastest, CudaOptions::default()), (kept_of_recommended, recommended, tuned)]
    {
        let text = serde_json::to_string(&kept).expect("plain data");
        let mut again = device(&machine, options).expect("was there before");
        again.keep_products(serde_json::from_str(&text).expect("was just written"));
        assert_eq!(run.train(&mut again, CARD).expect("trains"), expected);
        assert_eq!((again.product_choices(), again.notes()), (Some(kept), vec![]));
    }
}

/// Choices of another version or another card, or damaged ones.
#[test]
fn unusable_stored_choices_are_chosen_again_with_a_note() {
    let Some(machine) = Machine::stand_in("") else { return };
    let run = Run::of(gpt2());
    let mut first = device(&machine, CudaOptions::default()).expect("the stand-in's");
    let expected = run.train(&mut first, CARD).expect("trains");
    let kept = first.product_choices().expect("a library computes");
    drop(first);
    let train = |description: &str, kept: &ProductChoices| {
        machine.reset(description);
        let mut again = device(&machine, CudaOptions::default()).expect("the stand-in's");
        again.keep_products(kept.clone());
        let result = run.train(&mut again, CARD).expect("trains");
        assert_ne!(again.product_choices().as_ref(), Some(kept), "{description}");
        (result, again.notes().join("\n"))
    };
    for (description, words) in [
        ("cublas=120803", "by cuBLASLt 13.1.0 on NVIDIA GeForce RTX 3060"),
        ("name=NVIDIA GeForce RTX 3070", "chosen again, by 13.1.0 on NVIDIA GeForce RTX 3070"),
    ] {
        let (result, notes) = train(description, &kept);
        assert_eq!(result, expected, "{description}");
        assert!(notes.contains(words), "{notes}");
    }
    let mut spoilt = serde_json::to_value(&kept).expect("plain data");
    spoilt["products"][0]["algorithm"][1] = 77.into();
    spoilt["products"][1]["algorithm"][0] = 0.into();
    let (result, notes) = train("", &serde_json::from_value(spoilt).expect("still valid JSON"));
    assert_eq!(result, expected);
    assert_eq!(notes.matches("refuses the algorithm that the run had").count(), 2, "{notes}");
}

/// The library's kernels are on the card before the first step, and a step allocates nothing.
#[test]
fn invariant_3_a_step_by_a_library_takes_no_memory() {
    let Some(machine) = Machine::stand_in("") else { return };
    for graphs in [false, true] {
        machine.reset("");
        let run = Run::of(gpt2());
        let (graph, plan) = run.plan(CARD);
        let options = CudaOptions { graphs, ..CudaOptions::default() };
        let mut device = device(&machine, options).expect("the stand-in's");
        device.load(&plan).expect("loads");
        let before = (machine.held(), device.memory().allocations);
        run.steps(&mut device, &graph, &plan).expect("trains");
        assert_eq!((machine.held(), device.memory().allocations), before, "graphs: {graphs}");
    }
}

#[test]
fn a_library_that_cannot_be_used_says_why() {
    let Some(machine) = Machine::stand_in("cublas=10300") else { return };
    let open = || CublasLt::open(&plimsoll_fake_cuda::library());
    assert!(matches!(open(), Err(CublasLtError::TooOld { version: (10, 3), .. })), "{:?}", open());
    machine.reset("cublas=120400");
    let old = open().expect("a library");
    assert_eq!((old.has_kernels_for((8, 9)), old.has_kernels_for((9, 0))), (Ok(()), Ok(())));
    let refused = old.has_kernels_for((12, 0)).expect_err("the card is newer").to_string();
    assert!(refused.contains("too old for compute capability 12.0: it is version 12.4, 12.8 is needed"), "{refused}");
    machine.reset("others=12034");
    let mut device = machine.device(CudaOptions::default()).expect("a card");
    let refused = device.use_library(open().expect("a library")).expect_err("no memory for it");
    assert!(refused.to_string().contains("ALLOC_FAILED"), "{refused}");
    assert_eq!(device.library().map(CublasLt::version), None);
}

/// If there is no memory for the library's kernels, the plan does not fit, as without memory for its arena.
#[test]
fn too_little_memory_for_the_librarys_kernels_is_a_value() {
    let Some(machine) = Machine::stand_in("grab=cuMemSetAccess:1:12288") else { return };
    let error = train(&machine, &Run::of(gpt2()), CudaOptions::default());
    assert!(matches!(error, Err(DeviceError::NoRoom { .. })), "{error:?}");
    assert_eq!(machine.held(), (0, 0));
}
