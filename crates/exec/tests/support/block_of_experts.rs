//! A whole block of experts against transformers: its results and gradients, with the loss on the balance of experts.

use plimsoll_exec::reference::{Value, interpret};
use plimsoll_graph::ops::{
    Activation, Combine, Dispatch, ExpertLinear, Gated, GradientFormat, Linear, Route, WeightLayout,
};
use plimsoll_graph::{
    Graph, Init, Ports, Program, ProgramBuilder, ProgramKind, Role, Scalars, Storage, TensorId, TensorType,
    differentiate,
};
use std::collections::{BTreeSet, HashMap};

/// Eighths from -1 to 1, in an order that depends on the factor.
fn eighths(count: usize, factor: usize, first: usize) -> Vec<f64> {
    (0..count).map(|i| ((i * factor + first) % 17) as f64 / 8.0 - 1.0).collect()
}

/// The rows of `each` of every expert's 2 · `each` rows of `columns`, the first ones or the second ones.
fn half_of_rows(both: &[f64], second: bool, each: usize, columns: usize) -> Vec<f64> {
    let size = each * columns;
    both.chunks(2 * size).flat_map(|rows| rows[usize::from(second) * size..][..size].to_vec()).collect()
}

/// Five tokens of three channels, four experts of two channels each, two of them for each token. The values are those
/// of `Qwen3MoeSparseMoeBlock` with `norm_topk_prob` of transformers 5.24 in double precision, and the gradients those
/// of Σ y · dy + `load_balancing_loss_func`.
#[test]
fn a_block_of_experts_equals_that_of_transformers() {
    let (tokens, channels, experts, inner) = (5, 3, 4, 2);
    let (mut graph, mut values) = (Graph::default(), HashMap::new());
    let mut parameter = |name: &str, shape: &[usize], contents: Vec<f64>| {
        let id = graph.parameter(name, shape, Init::Zeros, false);
        values.insert(id, Value::Float(contents));
        id
    };
    let both = eighths(experts * 2 * inner * channels, 7, 1);
    let x = parameter("x", &[1, tokens, channels], eighths(tokens * channels, 3, 2));
    let router = parameter("router", &[experts, channels], eighths(experts * channels, 5, 3));
    let gate = parameter("gate", &[experts, inner, channels], half_of_rows(&both, false, inner, channels));
    let up = parameter("up", &[experts, inner, channels], half_of_rows(&both, true, inner, channels));
    let down = parameter("down", &[experts, channels, inner], eighths(experts * channels * inner, 11, 5));
    graph.declare_training_state(&[], GradientFormat::F32, &BTreeSet::new());
    let mut fixed = |name: &str, shape: &[usize], contents: Vec<f64>| {
        let id = graph.tensor(name, TensorType::f32(shape), Role::Activation, Storage::Transient);
        values.insert(id, Value::Float(contents));
        id
    };
    let dy = fixed("dy", &[1, tokens, channels], eighths(tokens * channels, 13, 4));
    // E · counts / N², the gradient of the loss on the balance in the sums of probabilities.
    let slopes = [3.0, 3.0, 2.0, 2.0].map(|count| experts as f64 * count / (tokens * tokens) as f64);
    let dsums = fixed("dsums", &[experts], slopes.to_vec());

    let mut builder = ProgramBuilder::new(&mut graph);
    let layout = WeightLayout::OutIn;
    let linear = ExpertLinear { layout, bias: false };
    let mut push = |op: plimsoll_graph::Op, inputs: &[TensorId]| builder.push(op, inputs).expect("well-typed");
    let logits = push(Linear { layout, bias: false }.into(), &[x, router])[0];
    let routed = push(Route { experts_per_token: 2, normalized: true, sums: true }.into(), &[logits]);
    let [weights, chosen, places, bounds, sums] = routed[..] else { panic!("five results") };
    let rows = push(Dispatch { weighted: false }.into(), &[x, places])[0];
    let gates = push(linear.into(), &[rows, gate, bounds])[0];
    let ups = push(linear.into(), &[rows, up, bounds])[0];
    let hidden = push(Gated { activation: Activation::Silu }.into(), &[gates, ups])[0];
    let results = push(linear.into(), &[hidden, down, bounds])[0];
    let y = push(Combine { weighted: true }.into(), &[results, places, weights])[0];
    let roots = [(y, Some(dy)), (sums, Some(dsums))];
    let gradients = differentiate(&mut builder, &roots, false).expect("all of it is differentiable");
    let program =
        Program { name: ProgramKind::Numbered(0).into(), nodes: builder.nodes.clone(), ports: Ports::default() };
    interpret(&graph, &program, &mut values, &Scalars::default());

    assert_eq!(values[&chosen].ints(), [1, 0, 2, 3, 1, 0, 2, 3, 1, 0]);
    assert_eq!(values[&bounds].ints(), [0, 3, 6, 8, 10]);
    let balance = values[&sums].floats().iter().zip(slopes).map(|(sum, slope)| sum * slope).sum::<f64>();
    assert!((balance - AUX).abs() < 1e-6, "{balance}");
    let accumulators = graph.parameters.iter().filter_map(|p| Some((p.tensor, p.training.as_ref()?.gradient)));
    let accumulators = accumulators.collect::<HashMap<_, _>>();
    let gradient = |id| values[gradients.get(&id).unwrap_or(&accumulators[&id])].floats();
    for (what, found, expected) in [
        ("y", values[&y].floats(), Y),
        ("dx", gradient(x), DX),
        ("drouter", gradient(router), DROUTER),
        ("dgate", gradient(gate), DGATE),
        ("dup", gradient(up), DUP),
        ("ddown", gradient(down), DDOWN),
    ] {
        assert_eq!(found.len(), expected.len(), "{what}");
        let worst = found.iter().zip(expected).map(|(found, expected)| (found - expected).abs()).fold(0.0, f64::max);
        assert!(worst < 1e-7, "{what}: {found:?}, not {expected:?}");
    }
}

const AUX: f64 = 2.047_404_8;
const Y: &[f64] = &[
    0.086_673_021,
    -0.014_063_838,
    -0.140_168_962,
    -0.081_129_960,
    0.309_085_446,
    -0.021_838_978,
    0.069_317_300,
    -0.014_646_581,
    -0.107_479_909,
    -0.068_682_940,
    0.284_157_495,
    -0.021_618_544,
    0.053_417_289,
    -0.014_490_490,
    -0.076_051_006,
];
const DX: &[f64] = &[
    0.163_340_653,
    0.290_707_168,
    -0.226_332_987,
    0.111_112_743,
    -0.227_874_641,
    0.168_342_362,
    -0.165_721_234,
    -0.262_276_553,
    0.244_190_342,
    -0.481_838_981,
    0.564_014_480,
    -0.379_297_770,
    0.096_013_883,
    0.327_106_587,
    -0.184_370_316,
];
const DROUTER: &[f64] = &[
    -0.012_973_742,
    0.017_051_584,
    -0.029_203_350,
    -0.016_794_642,
    0.015_234_093,
    -0.023_335_509,
    0.009_969_517,
    -0.025_873_036,
    0.048_458_258,
    0.019_798_867,
    -0.006_412_641,
    0.004_080_600,
];
const DGATE: &[f64] = &[
    0.059_901_609,
    0.024_350_247,
    -0.011_201_115,
    0.026_579_758,
    0.010_054_959,
    -0.006_469_840,
    0.067_818_442,
    0.030_983_684,
    -0.005_851_074,
    0.019_774_615,
    0.008_038_932,
    -0.003_696_750,
    0.039_240_030,
    0.063_882_732,
    -0.051_116_543,
    0.113_762_860,
    0.181_922_893,
    -0.136_157_263,
    -0.077_225_554,
    -0.132_511_376,
    0.125_489_127,
    -0.002_211_535,
    -0.003_999_124,
    0.004_342_959,
];
const DUP: &[f64] = &[
    -0.092_797_628,
    -0.032_046_507,
    0.028_704_614,
    -0.000_306_771,
    -0.000_584_539,
    -0.000_862_306,
    -0.142_820_777,
    -0.060_653_427,
    0.021_513_924,
    -0.024_102_745,
    -0.011_377_513,
    0.001_347_719,
    -0.006_464_935,
    -0.008_504_621,
    0.001_013_916,
    -0.097_641_615,
    -0.145_798_874,
    0.078_935_002,
    0.030_128_975,
    0.051_075_240,
    -0.046_673_996,
    -0.035_065_467,
    -0.064_566_016,
    0.073_103_213,
];
const DDOWN: &[f64] = &[
    -0.002_790_991,
    0.001_619_895,
    0.101_702_095,
    0.003_216_003,
    -0.088_336_582,
    -0.000_430_921,
    0.002_121_958,
    0.000_845_348,
    0.115_465_587,
    0.005_811_699,
    -0.095_701_194,
    -0.002_999_922,
    0.036_296_300,
    0.100_917_502,
    -0.022_058_358,
    -0.076_458_879,
    0.053_779_642,
    0.095_891_255,
    0.035_960_254,
    -0.053_155_128,
    -0.022_091_603,
    0.045_384_567,
    0.052_439_785,
    -0.032_382_453,
];
