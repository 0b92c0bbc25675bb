//! How tightly the arenas of real training graphs are packed, wherever the levers stand, and how long it takes.
//! Settings are drawn from all that there are, the same ones every time.

use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::ops::{GradientFormat, StateFormat};
use plimsoll_graph::{Graph, Lengths, MemoryId, Targets};
use plimsoll_plan::{
    Average, Level, Levers, Machine, NodeSet, Plan, Precision, Rates, Recompute, Request, Settings, default_head_chunk,
    lay_out, plan_settings, validate,
};
use std::time::Instant;

/// Arenas may be so much larger than what lives at once. Most are not larger by a thousandth.
const MOST: f64 = 1.002;
/// Those few may be that are the hardest to pack: large models whose optimizer and activations are on the host.
const MOST_OF_HARDEST: f64 = 1.012;
/// The same where weights are on the host, or gradients are rounded after they are computed: a few tensors, each as large as a
/// good part of the arena, follow each other.
const MOST_WITH_COPIES: f64 = 1.2;
/// And most of those.
const MOST_WITH_FEW_COPIES: f64 = 1.02;

/// The whole run of a preset with some setting of the levers, and its plan.
struct Drawn {
    settings: Settings,
    graph: Graph,
    targets: Targets,
    plan: Plan,
}

impl Drawn {
    fn ratio(&self) -> f64 {
        self.plan.peak().0 as f64 / self.plan.lower_bound_bytes as f64
    }

    /// The least of some runs, because others use the machine too.
    fn layout_ms(&self) -> f64 {
        let once = |_| {
            let start = Instant::now();
            std::hint::black_box(lay_out(&self.graph, &self.targets));
            start.elapsed().as_secs_f64() * 1e3
        };
        (0..5).map(once).fold(f64::INFINITY, f64::min)
    }
}

/// Numbers without a pattern, the same for the same start (SplitMix64).
struct Dice(u64);

impl Dice {
    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        choices[((z ^ (z >> 31)) % choices.len() as u64) as usize]
    }
}

fn draw_request(preset: &str, dice: &mut Dice) -> Request {
    let model = ModelConfig::preset(preset).expect("a preset");
    let targets = Targets::cpu(2);
    let request = Request::new(model, targets, Machine::of_rates(Rates::guess(2)));
    let micro_batch = dice.pick(&[1, 2, 8]);
    let seq_len = request.seq_len / dice.pick(&[1, 1, 1, 2, 4]);
    let target_len = request.target_len.map(|_| seq_len / dice.pick(&[1, 1, 4]));
    let shorter = Lengths { tokens: seq_len / 2, target: target_len.map(|tokens| tokens / 2) };
    Request {
        micro_batch: Some(micro_batch),
        global_batch: micro_batch * dice.pick(&[1, 2]),
        seq_len,
        target_len,
        buckets: if dice.pick(&[true, false, false, false]) { vec![shorter] } else { vec![] },
        evaluates: dice.pick(&[true, false]),
        sample_prefill: dice.pick(&[Some(32), None]),
        ..request
    }
}

fn draw_levers(blocks: usize, dice: &mut Dice) -> Levers {
    const LEVELS: [Level; 5] = [
        Level::None,
        Level::Cheap,
        Level::Attention,
        Level::Block,
        Level::Chosen(NodeSet::of_places(0x5a5a_a5a5_0ff0_c33c)),
    ];
    let (first, rest) = (dice.pick(&LEVELS), dice.pick(&LEVELS));
    let mixed = Recompute { blocks: blocks / dice.pick(&[2, 3, 4]), first, rest };
    let average = Average { decay: 0.999, memory: dice.pick(&[MemoryId::DEVICE, MemoryId::HOST]) };
    Levers {
        attention_rows: dice.pick(&[64, 32, 16]),
        precision: dice.pick(&[Precision::Fp32, Precision::Bf16, Precision::Fp16, Precision::Bf16Pure]),
        base_weights: None,
        sequence_tile: None,
        optimizer_state: dice.pick(&[StateFormat::F32, StateFormat::Bf16, StateFormat::Blockwise8]),
        average: dice.pick(&[Some(average), None, None, None]),
        recompute: dice.pick(&[mixed, Recompute::all(first), Recompute::all(first)]),
        update_in_backward: dice.pick(&[true, false]),
        activation_offload: dice.pick(&[0, 0, 1, 9]),
        optimizer_offload: dice.pick(&[0.0, 0.0, 0.5, 1.0]),
        weight_offload: dice.pick(&[0.0, 0.0, 0.4, 1.0]),
        gradients: GradientFormat::F32,
        host_update_at_end: false,
    }
}

/// `None` if the levers exclude each other.
fn draw(preset: &str, number: u64) -> Option<Drawn> {
    let mut dice = Dice(number);
    let request = draw_request(preset, &mut dice);
    let gradients = if number % 3 == 2 { GradientFormat::Bf16 } else { GradientFormat::F32 };
    let mut levers = Levers { gradients, ..draw_levers(request.model.blocks(), &mut dice) };
    if levers.precision == Precision::Bf16 && number % 2 == 1 {
        levers.precision = Precision::Fp8;
    }
    let micro_batch = request.micro_batch.expect("it was just drawn");
    let rows = micro_batch * request.target_len.unwrap_or(request.seq_len);
    let device = request.targets.device.kind();
    let most = default_head_chunk(rows, request.model.vocab_size(), device);
    let head_chunk = most.div_ceil(dice.pick(&[1, 4, 32])).max(16);
    let settings = Settings { micro_batch, head_chunk, levers };
    let (graph, plan) = plan_settings(&request, settings).ok()?;
    Some(Drawn { settings, graph, targets: request.targets, plan })
}

/// Valid, all of them; and how many are hard to pack.
fn assert_packed_tightly(preset: &str, numbers: std::ops::Range<u64>) -> usize {
    let mut hard = 0;
    for number in numbers {
        let Some(drawn) = draw(preset, number) else { continue };
        let (ratio, settings) = (drawn.ratio(), drawn.settings);
        let has_copies = settings.levers.weight_offload > 0.0 || settings.levers.gradients != GradientFormat::F32;
        let most = if has_copies { MOST_WITH_COPIES } else { MOST_OF_HARDEST };
        assert!(ratio <= most, "{preset}, number {number}: {ratio} x the lower bound with {settings:?}");
        assert_eq!(validate(&drawn.plan), Ok(()), "{preset}, number {number}");
        let is_hard = ratio > if has_copies { MOST_WITH_FEW_COPIES } else { MOST };
        if is_hard {
            println!("{preset}, number {number}: {ratio} x the lower bound with {settings:?}");
        }
        hard += usize::from(is_hard);
    }
    hard
}

/// A single tensor is several thousandths of so small an arena.
#[test]
fn the_smallest_presets_are_packed_tightly() {
    assert!(assert_packed_tightly("nano", 0..300) < 6);
    assert_eq!(assert_packed_tightly("t5-nano", 0..100), 0);
}

#[test]
fn small_presets_are_packed_tightly() {
    for preset in ["gpt2", "smollm2-135m", "t5-small", "flan-t5-small"] {
        assert_eq!(assert_packed_tightly(preset, 0..16), 0, "{preset}");
    }
}

/// The larger ones repeat the same block more often.
#[test]
fn all_presets_are_packed_tightly() {
    let (mut hard, mut drawn) = (0, 0);
    for (number, preset) in (0..).zip(ModelConfig::preset_names()) {
        // Other draws for each preset, so that many combinations of the levers are tried.
        hard += assert_packed_tightly(preset, 2 * number..2 * number + 2);
        drawn += 2;
    }
    // With 54 presets 5 of 108 are, with 29 of them 2 of 58 were.
    assert!(hard * 20 <= drawn, "{hard} of {drawn} are hard");
}

/// Large, mixed and half on the host: 1.003 x the bound before the search was given more patience.
#[test]
fn what_is_hard_to_pack_is_packed_tightly() {
    assert_eq!(assert_packed_tightly("flan-t5-large", 53..54), 0);
}

#[test]
fn the_same_graph_is_laid_out_the_same() {
    for number in 0..20 {
        let Some(drawn) = draw("nano", number) else { continue };
        assert_eq!(lay_out(&drawn.graph, &drawn.targets), lay_out(&drawn.graph, &drawn.targets), "number {number}");
    }
}

/// A table of ratios and times: `cargo test --release -p plimsoll-plan --test planner packing -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement, for release builds"]
fn measure_all_presets() {
    println!("{:16} {:>9} {:>8} {:>9} {:>9}", "preset", "settings", "worst", "ms p50", "ms most");
    for preset in ModelConfig::preset_names() {
        let all: Vec<_> = (0..40).filter_map(|number| draw(preset, number)).collect();
        let worst = all.iter().map(Drawn::ratio).fold(0.0, f64::max);
        let hard = all.iter().filter(|drawn| drawn.ratio() > MOST).count();
        let mut times_ms: Vec<_> = all.iter().map(Drawn::layout_ms).collect();
        times_ms.sort_by(f64::total_cmp);
        let (p50, longest) = (times_ms[times_ms.len() / 2], times_ms[times_ms.len() - 1]);
        println!("{preset:16} {:9} {worst:8.6} {p50:9.2} {longest:9.2}", all.len());
        assert!(worst <= MOST_OF_HARDEST && hard * 6 <= all.len(), "{preset}: {hard} are hard");
    }
}
