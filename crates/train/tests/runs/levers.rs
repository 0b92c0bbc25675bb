//! Levers change memory and time, never the result.

use crate::support::{GLOBAL_BATCH, Setup, adapted, all_losses, assert_close, bits, encoders, families, tiny_gpt2};
use plimsoll_graph::models::{Gpt2Config, ModelConfig};
use plimsoll_graph::ops::{GradientFormat, StateFormat};
use plimsoll_graph::{MemoryId, Op, Optimizer, ProgramKind, Scalars, Targets, TrainShape};
use plimsoll_plan::{
    Average, CurvePoint, Level, LeverRequest, Levers, Machine, NodeSet, Plan, Precision, Rates, Recompute, Request,
    curve,
};
use plimsoll_train::{Ending, Engine, Feed, Footprint, LossScale, Start};
use rayon::iter::{IntoParallelIterator, ParallelIterator};

/// Maximum relative difference of losses if only the order of a sum changes.
const ROUNDING: f64 = 1e-5;

/// Long enough for a difference to grow.
fn run_of(shape: TrainShape) -> Setup {
    Setup { shape, steps: 20, ..Setup::default() }
}

/// The run with another micro-batch.
fn with_micro_batch(setup: &Setup, micro_batch: usize) -> Setup {
    let accumulates = micro_batch < GLOBAL_BATCH;
    Setup { shape: TrainShape { micro_batch, accumulates, ..setup.shape.clone() }, steps: 20, ..setup.clone() }
}

fn shape_of(micro_batch: usize) -> TrainShape {
    TrainShape { micro_batch, accumulates: micro_batch < GLOBAL_BATCH, ..Setup::default().shape }
}

fn assert_equal_to_rounding(what: &str, found: &[f64], expected: &[f64]) {
    for (step, (f, e)) in found.iter().zip(expected).enumerate() {
        assert_close(&format!("{what}, step {step}"), &[*f], &[*e], ROUNDING * e);
    }
}

#[test]
fn invariant_5_levers_the_micro_batch_does_not_change_the_losses() {
    for (family, setup) in families().into_iter().chain(adapted()) {
        let whole = with_micro_batch(&setup, GLOBAL_BATCH).losses();
        assert!(whole[19] < 0.95 * whole[0], "{family}: nothing is learned: {whole:?}");
        for micro_batch in [1, 2, 4] {
            let losses = with_micro_batch(&setup, micro_batch).losses();
            assert_equal_to_rounding(&format!("{family}, micro-batch {micro_batch}"), &losses, &whole);
        }
    }
}

#[test]
fn invariant_5_levers_the_head_chunk_does_not_change_the_losses() {
    for (family, setup) in families().into_iter().chain(adapted()) {
        let setup = with_micro_batch(&setup, 4);
        let losses =
            |head_chunk| Setup { shape: TrainShape { head_chunk, ..setup.shape.clone() }, ..setup.clone() }.losses();
        let rows = 4 * setup.shape.objective.rows_of_sample() * setup.shape.target_len.unwrap_or(setup.shape.seq_len);
        let whole = losses(rows);
        for head_chunk in [1, 7, 32, 10 * rows] {
            assert_equal_to_rounding(&format!("{family}, head chunk {head_chunk}"), &losses(head_chunk), &whole);
        }
    }
}

/// Runs of families whose blocks have no dropout after attention, with tiles of this many rows, which do not divide the rows of a
/// micro-batch.
fn in_tiles(rows: usize) -> impl Iterator<Item = (&'static str, Setup)> {
    let tiled = move |(family, setup): (&'static str, Setup)| {
        let shape = TrainShape { sequence_tile: Some(rows), ..setup.shape.clone() };
        let setup = Setup { shape, ..setup };
        let (graph, _) = setup.plan();
        let nodes = graph.programs.iter().flat_map(|program| &program.nodes);
        let tiled = nodes.filter(|node| matches!(node.op, Op::ByRows(_) | Op::ByRowsGrad(_))).count();
        (tiled > 0).then_some((family, setup))
    };
    families().into_iter().chain(adapted()).filter_map(tiled)
}

#[test]
fn invariant_5_levers_the_sequence_tile_does_not_change_the_losses() {
    let named = in_tiles(11).map(|(family, _)| family).collect::<Vec<_>>();
    assert!(
        ["Llama", "Llama, packed", "Llama on preferences"].iter().all(|family| named.contains(family)),
        "{named:?}"
    );
    for rows in [11, 64] {
        in_tiles(rows).collect::<Vec<_>>().into_par_iter().for_each(|(family, setup)| {
            let tiled = with_micro_batch(&setup, 4);
            let shape = TrainShape { sequence_tile: None, ..tiled.shape.clone() };
            let whole = Setup { shape, ..tiled.clone() }.losses();
            assert_equal_to_rounding(&format!("{family}, {rows} rows"), &tiled.losses(), &whole);
        });
    }
}

/// Every lever setting that saves memory without changing the result, for a step of one micro-batch and of two.
fn ways(setup: &Setup, micro_batch: usize) -> Vec<(String, Setup)> {
    let plain = Setup {
        levers: Levers::default(),
        // Without clipping, so that parameters may be updated in the backward pass.
        optimizer: Optimizer { grad_clip: None, ..Optimizer::default() },
        steps: 20,
        ..with_micro_batch(setup, micro_batch)
    };
    let mut ways = Vec::new();
    let mut add = |what: String, levers: Levers| ways.push((what, Setup { levers, ..plain.clone() }));
    // Some and others, all, and none of the tensors outside blocks.
    let chosen = [0x5555, 0xaaaa, u64::MAX].map(|places| Level::Chosen(NodeSet::of_places(places)));
    let levels = [Level::None, Level::Cheap, Level::Attention, Level::Block];
    for level in levels.into_iter().chain(chosen) {
        add(format!("recompute {level:?}"), Levers { recompute: Recompute::all(level), ..Levers::default() });
    }
    let mixed = [
        (Level::Block, Level::None),
        (Level::None, Level::Attention),
        (Level::Cheap, Level::Block),
        (chosen[0], chosen[1]),
    ];
    for (first, rest) in mixed {
        let recompute = Recompute { blocks: 1, first, rest };
        add(format!("recompute {recompute:?}"), Levers { recompute, ..Levers::default() });
    }
    for optimizer_offload in [0.25, 0.5, 1.0] {
        add(format!("offload {optimizer_offload}"), Levers { optimizer_offload, ..Levers::default() });
    }
    for (weight_offload, level, optimizer_offload) in
        [(0.3, Level::None, 0.0), (0.7, Level::Block, 0.5), (1.0, chosen[0], 1.0), (1.0, Level::Block, 0.0)]
    {
        let levers =
            Levers { weight_offload, recompute: Recompute::all(level), optimizer_offload, ..Levers::default() };
        add(format!("weights {weight_offload}, recompute {level:?}, offload {optimizer_offload}"), levers);
    }
    for (activation_offload, level, optimizer_offload) in
        [(1, Level::None, 0.5), (9, Level::Block, 1.0), (2, chosen[0], 0.0)]
    {
        let levers =
            Levers { activation_offload, recompute: Recompute::all(level), optimizer_offload, ..Levers::default() };
        add(
            format!("activations of {activation_offload} blocks, recompute {level:?}, offload {optimizer_offload}"),
            levers,
        );
    }
    if micro_batch == GLOBAL_BATCH {
        for (optimizer_offload, weight_offload) in [(0.0, 0.0), (0.5, 0.0), (1.0, 0.0), (0.0, 0.6), (1.0, 1.0)] {
            let levers = Levers {
                update_in_backward: true,
                optimizer_offload,
                weight_offload,
                recompute: Recompute::all(Level::Block),
                ..Levers::default()
            };
            add(format!("update in backward, offload {optimizer_offload}, weights {weight_offload}"), levers);
        }
        add("update in backward".into(), Levers { update_in_backward: true, ..Levers::default() });
    }
    for memory in [MemoryId::DEVICE, MemoryId::HOST] {
        let average = Some(Average { decay: 0.9, memory });
        add(format!("average on the {memory:?}"), Levers { average, optimizer_offload: 0.5, ..Levers::default() });
        let levers = Levers { average, optimizer_offload: 0.5, weight_offload: 0.6, ..Levers::default() };
        add(format!("average on the {memory:?}, weights"), levers);
    }
    let levers = Levers { optimizer_offload: 0.5, weight_offload: 0.4, ..Levers::default() };
    add("updates of the host at the end".to_owned(), Levers { host_update_at_end: true, ..levers });
    ways
}

#[test]
fn invariant_5_levers_bytes_and_time_change_but_not_a_bit() {
    let of_families = families()
        .into_iter()
        .chain(adapted())
        .chain(in_tiles(11).take(1))
        .flat_map(|(family, setup)| [4, GLOBAL_BATCH].map(|n| (family, setup.clone(), n)));
    let of_encoders = encoders().into_iter().map(|(family, setup)| (family, setup, GLOBAL_BATCH));
    of_families.chain(of_encoders).collect::<Vec<_>>().into_par_iter().for_each(|(family, setup, micro_batch)| {
        let ways = ways(&setup, micro_batch);
        let (_, plain) = &ways[0];
        let expected = bits(&plain.losses());
        for (what, setup) in &ways[1..] {
            assert_eq!(bits(&setup.losses()), expected, "{family}, micro-batch {micro_batch}, {what}");
        }
    });
}

/// A step whose host has not updated yet.
fn unfinished_step() -> Engine {
    let levers = Levers { optimizer_offload: 1.0, ..Levers::default() };
    let mut engine = Setup { levers, ..with_micro_batch(&Setup::default(), GLOBAL_BATCH) }.engine();
    engine.initialize(7).expect("memory");
    let ids = |shift: i32| {
        (0..(GLOBAL_BATCH * engine.plan().seq_len) as i32).map(|i| (i * 7 + shift) % 61).collect::<Vec<_>>()
    };
    let (tokens, targets) = (ids(0), ids(7));
    let scalars = Scalars { learning_rate: 1e-2, loss_scale: 1.0 / 64.0, ..Scalars::default() };
    let feed = Feed { tokens: &tokens, targets: &targets, ..Feed::default() };
    engine.run_fed(ProgramKind::MicroStep, &feed, &scalars).expect("a step");
    engine.run(ProgramKind::Update, &scalars).expect("an update");
    engine
}

#[test]
#[should_panic(expected = "is not finished")]
fn weights_are_not_viewed_before_the_host_has_updated_them() {
    let engine = unfinished_step();
    let _ = engine.view(engine.parameters()[0].tensor);
}

#[test]
fn weights_are_read_after_the_host_has_updated_them() {
    let mut engine = unfinished_step();
    let weight = engine.parameters()[0].tensor;
    let values = |bytes: &[u8]| bytes.as_chunks().0.iter().map(|&four| f32::from_le_bytes(four)).collect::<Vec<_>>();
    let mut read = vec![0.0; engine.plan()[weight].ty.elements()];
    engine.read(weight, &mut read).expect("memory");
    assert_eq!(read, values(&engine.view(weight).expect("memory")));
    let mut fresh = vec![0.0; read.len()];
    engine.restart(7).expect("memory");
    engine.read(weight, &mut fresh).expect("memory");
    assert_ne!(read, fresh);
}

/// The run with gradients that are kept in bf16.
fn with_rounded_gradients(setup: &Setup) -> Setup {
    Setup { shape: TrainShape { gradients: GradientFormat::Bf16, ..setup.shape.clone() }, ..setup.clone() }
}

#[test]
fn invariant_5_levers_gradients_in_bf16_are_the_same_to_the_bit_wherever_they_rest() {
    let of_families = families().into_iter().chain(adapted());
    let runs = of_families.flat_map(|(family, setup)| [4, GLOBAL_BATCH].map(|n| (family, setup.clone(), n)));
    runs.collect::<Vec<_>>().into_par_iter().for_each(|(family, setup, micro_batch)| {
        let plain = with_rounded_gradients(&with_micro_batch(&setup, micro_batch));
        let plain = Setup { steps: 6, optimizer: Optimizer { grad_clip: None, ..plain.optimizer }, ..plain };
        let (single, expected) = (with_micro_batch(&setup, micro_batch), bits(&plain.losses()));
        let single = Setup { steps: 6, optimizer: plain.optimizer, ..single };
        assert_ne!(bits(&single.losses()), expected, "{family}: nothing was rounded");
        let again = Recompute::all(Level::Block);
        let in_backward = micro_batch == GLOBAL_BATCH;
        for levers in [
            Levers { optimizer_offload: 0.5, recompute: again, ..plain.levers },
            Levers { optimizer_offload: 1.0, update_in_backward: in_backward, ..plain.levers },
            Levers { weight_offload: 0.7, optimizer_offload: 1.0, recompute: again, ..plain.levers },
        ] {
            let found = Setup { levers, ..plain.clone() }.losses();
            assert_eq!(bits(&found), expected, "{family}, micro-batch {micro_batch}, {levers:?}");
        }
    });
}

/// As many roundings as there are: each sample is a micro-batch.
#[test]
fn gradients_in_bf16_take_fewer_bytes_and_train_as_well() {
    for (family, setup) in families() {
        let single = with_micro_batch(&setup, 1);
        let rounded = with_rounded_gradients(&single);
        let kept = |setup: &Setup| setup.plan().1.breakdown.gradients_bytes;
        let (whole, half) = (kept(&single), kept(&rounded));
        // Most of these models' gradients are so small that their padding counts, and one is computed in fp32.
        assert!(half < whole, "{family}: {half} of {whole} bytes");
        let [expected, found] = [&single, &rounded].map(|setup| setup.losses());
        assert!(found[19] < 0.95 * found[0], "{family}: nothing is learned: {found:?}");
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() < 0.01 * expected, "{family}: {found} where {expected} was expected");
        }
    }
}

#[test]
fn each_lever_saves_memory() {
    let plan = |levers: Levers| {
        let optimizer = Optimizer { grad_clip: None, ..Optimizer::default() };
        let run = run_of(shape_of(GLOBAL_BATCH));
        // Deep enough that a block's saved tensors outweigh its working memory.
        let model = ModelConfig::Gpt2(Gpt2Config { n_layer: 6, ..tiny_gpt2() });
        Setup { levers, optimizer, model, ..run }.plan().1.peak().0
    };
    let of_level = |level| plan(Levers { recompute: Recompute::all(level), ..Levers::default() });
    let levels = [Level::None, Level::Cheap, Level::Attention, Level::Block].map(of_level);
    assert!(levels.is_sorted_by(|a, b| a > b), "{levels:?}");
    let plain = levels[0];
    for (what, levers) in [
        ("offload", Levers { optimizer_offload: 1.0, ..Levers::default() }),
        ("weights", Levers { weight_offload: 1.0, ..Levers::default() }),
        ("update in backward", Levers { update_in_backward: true, ..Levers::default() }),
        ("half precision", Levers { precision: Precision::Bf16Pure, ..Levers::default() }),
        ("bf16 moments", Levers { optimizer_state: StateFormat::Bf16, ..Levers::default() }),
        ("attention rows", Levers { attention_rows: 1, ..Levers::default() }),
    ] {
        let peak = plan(levers);
        let may_be_elsewhere = ["update in backward", "attention rows"].contains(&what);
        assert!(peak < plain || may_be_elsewhere && peak == plain, "{what}: {peak} of {plain}");
    }
}

/// The update is part of the micro-step if there is only one; this makes no difference.
#[test]
fn invariant_5_levers_joining_the_update_does_not_change_a_bit() {
    let joined = run_of(shape_of(GLOBAL_BATCH));
    let apart = Setup { shape: TrainShape { accumulates: true, ..joined.shape.clone() }, ..joined.clone() };
    assert!(joined.plan().1.peak().0 < apart.plan().1.peak().0);
    assert_eq!(bits(&joined.losses()), bits(&apart.losses()));
}

/// In every precision, moving or recomputing bytes leaves the result unchanged.
#[test]
fn levers_do_not_change_a_bit_in_other_precisions_either() {
    for precision in [Precision::Bf16, Precision::Fp16, Precision::Bf16Pure, Precision::Fp8] {
        for optimizer_state in [StateFormat::F32, StateFormat::Blockwise8] {
            let plain = Levers { precision, optimizer_state, ..Levers::default() };
            let moved = Levers { optimizer_offload: 0.6, recompute: Recompute::all(Level::Block), ..plain };
            let loss_scale = precision.scales_gradients().then(LossScale::default);
            let [expected, found, streamed] = [plain, moved, Levers { weight_offload: 0.7, ..moved }]
                .map(|levers| bits(&Setup { levers, loss_scale, steps: 8, ..run_of(shape_of(4)) }.losses()));
            assert_eq!(found, expected, "{precision:?} {optimizer_state:?}");
            assert_eq!(streamed, expected, "weights on the host, {precision:?} {optimizer_state:?}");
        }
    }
}

/// The resident memory of the arenas equals the plan, each of its two memories rounded up to whole pages.
fn assert_resident(footprint: &Footprint, plan: &Plan) {
    const PAGE_BYTES: u64 = 4096;
    let pages = plan.peak().0.next_multiple_of(PAGE_BYTES) + plan.host().0.next_multiple_of(PAGE_BYTES);
    match (footprint.arena_resident_bytes, footprint.arena_resident_peak_bytes) {
        // On other systems, pages may be larger.
        (Some(now), Some(peak)) if cfg!(target_arch = "x86_64") => assert_eq!((now, peak), (pages, pages)),
        _ => eprintln!("SKIPPED: this system does not report which pages are in memory"),
    }
}

/// A few dozen combinations on the processor: the resident memory equals the plan, on the device and on the host.
#[test]
fn invariant_3_exact_every_combination_measures_what_was_planned() {
    let precisions = [Precision::Fp32, Precision::Bf16, Precision::Fp16, Precision::Bf16Pure, Precision::Fp8];
    let states = [StateFormat::F32, StateFormat::Bf16, StateFormat::Blockwise8];
    let levels = [Level::None, Level::Cheap, Level::Attention, Level::Block];
    let families = families();
    for case in 0..72 {
        let (family, setup) = &families[if case < 36 { 0 } else { case % families.len() }];
        let precision = precisions[case % 5];
        let micro_batch = [4, GLOBAL_BATCH][case / 4 % 2];
        let memory = [MemoryId::DEVICE, MemoryId::HOST][case / 2 % 2];
        let levers = Levers {
            attention_rows: [64, 4][case / 3 % 2],
            precision,
            base_weights: None,
            sequence_tile: None,
            optimizer_state: states[case % 3],
            gradients: GradientFormat::F32,
            average: (case % 5 == 0).then_some(Average { decay: 0.9, memory }),
            recompute: Recompute { blocks: 1, first: levels[case / 2 % 4], rest: levels[case % 4] },
            activation_offload: [0, 1, 9][case / 6 % 3],
            update_in_backward: micro_batch == GLOBAL_BATCH && !precision.scales_gradients() && case % 7 > 2,
            optimizer_offload: [0.0, 0.5, 1.0][case / 4 % 3],
            weight_offload: [0.0, 0.4, 0.0, 1.0, 0.0][case % 5],
            host_update_at_end: case % 7 == 0,
        };
        let grad_clip = (!levers.update_in_backward).then_some(1.0);
        let setup = Setup {
            levers,
            optimizer: Optimizer { grad_clip, ..Optimizer::default() },
            loss_scale: precision.scales_gradients().then(LossScale::default),
            steps: 3,
            ..with_micro_batch(setup, micro_batch)
        };
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (ending, report, _) = setup.run(&folder.path().join("run"), &Start::Fresh, |_: &_, _: &_| {});
        let (_, plan) = setup.plan();
        assert_eq!(ending, Ending::Finished, "{family}, {levers:?}");
        // These runs do not generate text at the end, so another program must be the peak.
        let touched = (report.measured.touched_bytes, report.measured.host_touched_bytes);
        // With pairs, a few steps may not reach the maximum length.
        let of_what_ran = report.measured.planned_bytes_of_what_ran;
        assert!(of_what_ran == plan.peak().0 || setup.shape.target_len.is_some(), "{family}, {levers:?}");
        assert_eq!(touched.0, of_what_ran, "{family}, {levers:?}");
        let may_touch_less = setup.shape.target_len.is_some();
        assert!(
            touched.1 == plan.host().0 || (may_touch_less && touched.1 < plan.host().0),
            "{} of {}: {family}, {levers:?}",
            touched.1,
            plan.host().0
        );
        assert_eq!(report.measured.device_allocations_after_first_step, 0);
        assert_resident(&report.measured.footprint, &plan);
    }
}

/// The planner's choices within budgets from the smallest sufficient one up to the largest useful one.
fn chosen_within_budgets(setup: &Setup, count: u64) -> Vec<CurvePoint> {
    let shape = setup.shape.clone();
    let request = Request {
        optimizer: setup.optimizer,
        global_batch: GLOBAL_BATCH,
        micro_batch: Some(shape.micro_batch),
        seq_len: shape.seq_len,
        target_len: shape.target_len,
        buckets: shape.buckets,
        packed: shape.packed,
        objective: shape.objective,
        levers: LeverRequest {
            optimizer_offload: Some(0.0),
            // Wherever possible.
            update_in_backward: None,
            // Fewer rows would change the order of sums.
            head_chunk: Some(shape.head_chunk),
            attention_rows: Some(setup.levers.attention_rows),
            ..LeverRequest::default()
        },
        evaluates: shape.evaluates,
        sample_prefill: shape.sample_prefill,
        ..Request::new(setup.model.clone(), Targets::cpu(setup.threads), Machine::of_rates(Rates::guess(setup.threads)))
    };
    curve(&request, count).expect("a sensible request")
}

/// Budgets are met by recomputing alone: each plan is within its budget, the device uses exactly the planned bytes, and
/// no loss differs from the run without recomputing.
#[test]
fn choices_at_any_budget_use_planned_memory_and_change_no_bit() {
    let of_families =
        families().into_iter().flat_map(|(family, setup)| [4, GLOBAL_BATCH].map(|n| (family, setup.clone(), n)));
    of_families.collect::<Vec<_>>().into_par_iter().for_each(|(family, setup, micro_batch)| {
        let joined = micro_batch == GLOBAL_BATCH;
        // Steps only, so that no other program is the peak.
        let shape = TrainShape { evaluates: false, sample_prefill: None, ..setup.shape.clone() };
        let plain = Setup {
            levers: Levers { update_in_backward: joined, ..Levers::default() },
            optimizer: Optimizer { grad_clip: None, ..Optimizer::default() },
            eval_every: None,
            steps: 6,
            ..with_micro_batch(&Setup { shape, ..setup }, micro_batch)
        };
        let (expected, most) = (bits(&plain.losses()), plain.plan().1.peak().0);
        let mut peaks = Vec::new();
        for CurvePoint { budget, found } in chosen_within_budgets(&plain, 9) {
            let what = format!("{family}, micro-batch {micro_batch}, within {budget}: {:?}", found.settings.levers);
            let setup = Setup { levers: found.settings.levers, ..plain.clone() };
            let folder = tempfile::tempdir().expect("a temporary folder");
            let (_, report, _) = setup.run(&folder.path().join("run"), &Start::Fresh, |_: &_, _: &_| {});
            assert_eq!(bits(&all_losses(&report, setup.steps)), expected, "{what}");
            let measured = &report.measured;
            assert!(found.plan.peak() <= budget, "{what}");
            // With pairs, a few steps may not reach the maximum length.
            let is_whole = measured.planned_bytes_of_what_ran == found.plan.peak().0;
            assert!(is_whole || setup.shape.target_len.is_some(), "{what}");
            assert_eq!(measured.touched_bytes, measured.planned_bytes_of_what_ran, "{what}");
            assert_resident(&measured.footprint, &found.plan);
            peaks.push(found.plan.peak().0);
        }
        peaks.dedup();
        assert!(
            peaks.is_sorted() && peaks.len() >= 3 && peaks[0] < most,
            "{family}, {micro_batch}: {peaks:?} of {most}"
        );
    });
}

#[test]
fn invariant_5_levers_threads_do_not_change_a_bit() {
    // Wide enough that kernels use several threads.
    let model = ModelConfig::Gpt2(Gpt2Config { n_embd: 96, vocab_size: 300, ..tiny_gpt2() });
    let wide = Setup { model, ..run_of(shape_of(GLOBAL_BATCH)) };
    let one = wide.losses();
    for threads in [2, 3] {
        assert_eq!(bits(&Setup { threads, ..wide.clone() }.losses()), bits(&one), "{threads} threads");
    }
}

#[test]
fn invariant_5_levers_other_programs_of_the_plan_do_not_change_a_bit() {
    let with = |evaluates, sample_prefill, eval_every| {
        let setup = run_of(TrainShape { evaluates, sample_prefill, ..shape_of(4) });
        bits(&Setup { eval_every, ..setup }.losses())
    };
    let all = with(true, Some(8), Some(3));
    for (evaluates, sample_prefill, eval_every) in
        [(false, None, None), (false, Some(1), Some(1)), (true, None, None), (true, Some(16), Some(1))]
    {
        assert_eq!(with(evaluates, sample_prefill, eval_every), all, "{evaluates} {sample_prefill:?} {eval_every:?}");
    }
}

/// The other tests would prove nothing if dropout were off or ignored the seed.
#[test]
fn the_seed_does_change_the_losses() {
    let setup = run_of(shape_of(4));
    let other_seed = Setup { seed: 8, ..setup.clone() };
    let model = ModelConfig::Gpt2(Gpt2Config { attn_pdrop: 0.0, ..tiny_gpt2() });
    let no_dropout = Setup { model, ..setup.clone() };
    let losses = setup.losses();
    assert_ne!(bits(&losses), bits(&other_seed.losses()));
    assert_ne!(bits(&losses), bits(&no_dropout.losses()));
}
