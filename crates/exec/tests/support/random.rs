//! Random shapes of ops, for the oracles of all devices.

use plimsoll_exec::cases::Noise;
use plimsoll_graph::ops::{
    Activation, Add, Attention, AttentionGrad, ClampedSwiglu, ClampedSwigluGrad, ColumnScale, ColumnScaleGrad, Combine,
    CombineWeightGrad, Dispatch, Dropout, DropoutKey, EmbeddingGrad, Fp8Linear, Gated, GatedGrad, Gelu, GeluGrad,
    GradNorm, HeadAdapterGrads, HeadLogProbs, HeadLogProbsGrad, HeadLoss, HeadLossGrad, KeepGradient, LayerNorm,
    LayerNormGrad, Linear, LinearInputGrad, LinearWeightGrad, LowRankNorm, MovingAverage, PairedHeadLoss,
    PairedHeadLossGrad, ParameterUpdate, PreferenceKind, PreferenceLoss, PreferenceLossGrad, RelativeBias, Relu,
    ReluGrad, RmsNorm, RmsNormGrad, RopeScaling, Rotary, Route, RouteGrad, StateFormat, UniformNoise, WeightFormat,
    WeightLayout,
};
use plimsoll_graph::optimizers::Rule;
use plimsoll_graph::{DType, Example, Fill, Op, Scalars, TensorType};

/// An example of random shape, with samples of at most `most_tokens` tokens, of each op whose kernel has several code
/// paths.
pub fn random_examples(noise: &mut Noise, most_tokens: usize) -> Vec<Example> {
    let pick = |choices: &[usize], noise: &mut Noise| choices[noise.below(choices.len())];
    let lengths = [1, 2, 7, 16, 33, 64, 65, 130].into_iter().filter(|&tokens| tokens <= most_tokens);
    let lengths = lengths.collect::<Vec<_>>();
    let (b, t) = (pick(&[1, 2, 3], noise), pick(&lengths, noise));
    let (heads, d) = (pick(&[1, 2, 3, 5], noise), pick(&[1, 3, 8, 16, 32, 64, 65], noise));
    let (c, o) = (heads * d, pick(&[1, 5, 16, 48, 129, 300, 400], noise));
    let v = pick(&[2, 50, 257, 1000], noise);
    let [bias, accumulate, residual, causal] = [0; 4].map(|_| noise.unit() < 0.5);
    let layout = if noise.unit() < 0.5 { WeightLayout::InOut } else { WeightLayout::OutIn };
    let weight = if layout == WeightLayout::InOut { [c, o] } else { [o, c] };
    let key = DropoutKey { rate: noise.unit() as f32 * 0.9, site: noise.word() };
    let dropout = (noise.unit() < 0.5).then_some(key);
    let scale = 1.0 / (d as f32).sqrt();
    let rows = pick(&[1, 8, 64], noise);
    let window = (noise.unit() < 0.5).then(|| pick(&[1, 5, 20, 64, 100], noise));
    let packed = Attention {
        heads,
        kv_heads: heads,
        packed: true,
        causal,
        window,
        scale,
        cap: None,
        bias: None,
        has_sinks: false,
        segmented: false,
        dropout,
        rows,
    };
    // Scores with a bias have no cap.
    let capped = (!bias).then_some(1.5);
    let relative = RelativeBias { buckets: 16, max_distance: 40, bidirectional: !causal };
    let grouped = Attention {
        heads: heads * pick(&[1, 2, 4], noise),
        packed: false,
        bias: bias.then_some(relative),
        cap: capped,
        has_sinks: accumulate,
        segmented: residual,
        ..packed
    };
    let keys = if causal || window.is_some() { t } else { pick(&[1, 5, 32, 70], noise) };
    let chunk = pick(&[1, 16, 1000], noise);
    let scalars = Scalars {
        seed: u64::from(noise.word()) << 20,
        step: 1 + noise.below(100) as u64,
        learning_rate: 1e-3,
        first_sample: u64::from(noise.word()),
        loss_scale: 0.5,
        reference_point: 0.2,
        ..Scalars::default()
    };
    let case = |op: Op, shapes: &[&[usize]]| Example {
        op,
        inputs: shapes.iter().map(|s| (TensorType::f32(s), Fill::Uniform)).collect(),
        state: Fill::Uniform,
        scalars,
    };
    let fill = |mut example: Example, index: usize, fill: Fill| {
        if !matches!(fill, Fill::Uniform | Fill::Positive | Fill::Negative) {
            example.inputs[index].0.dtype = DType::I32;
        }
        example.inputs[index].1 = fill;
        example
    };
    let state = [StateFormat::F32, StateFormat::Bf16, StateFormat::Blockwise8][noise.below(3)];
    let kept = [WeightFormat::F32, WeightFormat::Bf16, WeightFormat::Bf16AndRemainder][noise.below(3)];
    let x: &[usize] = &[b, t, c];
    let with_bias = |op: Op, shapes: &[&[usize]], extra: &[usize]| {
        case(op, &if bias { [shapes, &[extra]].concat() } else { shapes.to_vec() })
    };
    let mut norm_inputs: Vec<&[usize]> = vec![x, x, &x[2..], &x[..2], &x[..2]];
    if residual {
        norm_inputs.push(x);
    }
    let activation = [Activation::Silu, Activation::GeluTanh, Activation::Gelu, Activation::Relu][noise.below(4)];
    let swiglu = ClampedSwiglu { alpha: 1.5, limit: 0.8 };
    let smoothing = if noise.unit() < 0.5 { 0.0 } else { 0.2 };
    // The requested gradients: at least one.
    let (input, trained) = [(true, true), (true, false), (false, true)][noise.below(3)];
    let accumulate_loss = residual;
    let pair = PairedHeadLossGrad {
        chunk,
        alpha: 2.0,
        smoothing,
        cap: capped,
        input,
        weight: trained,
        adapter: None,
        accumulate_loss,
        accumulate,
    };
    // Of the head's adapter, either gradient may be the only one.
    let (is_adapted, rank) = (bias, 1 + noise.below(40));
    let of_adapter = is_adapted.then_some(HeadAdapterGrads { low: input || causal, up: trained || !causal });
    let (low, up): ([usize; 3], [usize; 2]) = ([b, t, rank], [v, rank]);
    let adapter: &[&[usize]] = if is_adapted { &[&low, &up] } else { &[] };
    let adapters: &[&[usize]] = if is_adapted { &[&low, &low, &up] } else { &[] };
    let preference = PreferenceLoss { kind: PreferenceKind::Sigmoid, beta: 0.7, smoothing };
    let without_reference = PreferenceLoss { kind: PreferenceKind::Orpo, beta: 0.7, smoothing: 0.0 };
    let single = PreferenceKind::Single { liked: 0.5, disliked: 2.0, has_reference_point: true };
    let single = PreferenceLoss { kind: single, beta: 0.7, smoothing: 0.0 };
    let (split, of_rows) = (causal, [b, 2]);
    let scaling = [RopeScaling::None, RopeScaling::Linear { factor: 4.0 }][noise.below(2)].clone();
    let rotated = if bias { 2 * d } else { 2 * d.div_ceil(2) };
    let rotary = Rotary { head_size: 2 * d, rotated, base: 1e4, scaling, inverse: residual, offset: accumulate };
    let rules = Rule::all();
    let rule = rules[noise.below(rules.len())];
    let update = ParameterUpdate { rule, weight_decay: 0.1, rate: 0.5, weight: kept, state, site: 1 };
    // Of all channels, or of each head.
    let (of_group, unit_offset) = (if bias { d } else { c }, causal);
    let rms_norm_inputs: [&[usize]; 5] = [x, x, &[of_group], &[b, t, c / of_group], x];
    let rms_norm_inputs = &rms_norm_inputs[..if residual { 5 } else { 4 }];
    let rms_norm_grad = RmsNormGrad { unit_offset, weight: trained, residual, accumulate };
    let experts_per_token = 1 + noise.below(o.min(8));
    let (choices, rows_of_experts): (&[usize], &[usize]) =
        (&[b, t, experts_per_token], &[1, b * t * experts_per_token, c]);
    let route = Route { experts_per_token, normalized: bias, sums: residual };
    let route_inputs = [&[b, t, o][..], choices, choices, &[o]];
    let route_grad = RouteGrad { normalized: bias, sums: residual };
    vec![
        case(Add.into(), &[x, x]),
        case(Gelu.into(), &[x]),
        case(GeluGrad.into(), &[x, x]),
        case(Dropout { key }.into(), &[x]),
        case(UniformNoise { amplitude: 0.3, site: key.site }.into(), &[x]),
        with_bias(LayerNorm { eps: 1e-5, bias }.into(), &[x, &x[2..]], &x[2..]),
        fill(
            case(LayerNormGrad { weight: trained, bias, residual, accumulate }.into(), &norm_inputs),
            4,
            Fill::Positive,
        ),
        with_bias(Linear { layout, bias }.into(), &[x, &weight], &[o]),
        case(LinearInputGrad { layout }.into(), &[&[b, t, o], &weight]),
        case(LinearWeightGrad { layout, weight: trained || !bias, bias, accumulate }.into(), &[x, &[b, t, o]]),
        with_bias(Fp8Linear::Forward(Linear { layout, bias }).into(), &[x, &weight], &[o]),
        case(Fp8Linear::InputGrad(LinearInputGrad { layout }).into(), &[&[b, t, o], &weight]),
        case(
            Fp8Linear::WeightGrad(LinearWeightGrad { layout, weight: true, bias, accumulate }).into(),
            &[x, &[b, t, o]],
        ),
        case(packed.into(), &[&[b, t, 3 * c]]),
        case(
            AttentionGrad { accumulate, ..AttentionGrad::of_all(packed) }.into(),
            &[x, &[b, t, 3 * c], x, &[b, heads, t]],
        ),
        Example { scalars, ..grouped.example([b, t, keys, d]) },
        Example {
            scalars,
            ..AttentionGrad { forward: grouped, table: bias && trained, sinks: accumulate && trained, accumulate }
                .example([b, t, keys, d])
        },
        fill(
            case(
                HeadLoss { chunk, smoothing, cap: capped, adapter: is_adapted }.into(),
                &[&[x, &[v, c], &x[..2]], adapter].concat(),
            ),
            2,
            Fill::Target(v as i32),
        ),
        fill(
            case(
                HeadLossGrad {
                    chunk,
                    smoothing,
                    cap: capped,
                    input,
                    weight: trained,
                    adapter: of_adapter,
                    accumulate_loss,
                    accumulate,
                }
                .into(),
                &[&[x, &[v, c], &x[..2]], adapter].concat(),
            ),
            2,
            Fill::Target(v as i32),
        ),
        fill(
            case(
                HeadLogProbs { chunk, cap: capped, split, adapter: is_adapted }.into(),
                &[&[x, &[v, c], &x[..2]], adapter].concat(),
            ),
            2,
            Fill::Grouped(v as i32),
        ),
        fill(
            case(
                HeadLogProbsGrad { chunk, cap: capped, split, input, weight: trained, adapter: of_adapter, accumulate }
                    .into(),
                &[&[x, &[v, c], &x[..2]], adapter, &[&of_rows[..if split { 2 } else { 1 }]]].concat(),
            ),
            2,
            Fill::Grouped(v as i32),
        ),
        fill(case(preference.into(), &[&[2 * b], &[2 * b], &[2 * b, t]]), 2, Fill::Target(v as i32)),
        fill(
            case(
                PreferenceLossGrad { forward: preference, accumulate_loss }.into(),
                &[&[2 * b], &[2 * b], &[2 * b, t]],
            ),
            2,
            Fill::Target(v as i32),
        ),
        fill(
            case(PreferenceLossGrad { forward: single, accumulate_loss }.into(), &[&[b], &[b], &[b, t]]),
            2,
            Fill::Grouped(v as i32),
        ),
        fill(
            fill(
                case(
                    PreferenceLossGrad { forward: without_reference, accumulate_loss }.into(),
                    &[&[2 * b, 2], &[2 * b, t]],
                ),
                0,
                Fill::Negative,
            ),
            1,
            Fill::Grouped(v as i32),
        ),
        fill(
            case(
                PairedHeadLoss { chunk, alpha: 0.7, smoothing, cap: capped, adapter: is_adapted }.into(),
                &[&[x, x, &[v, c], &x[..2]], adapters].concat(),
            ),
            3,
            Fill::Target(v as i32),
        ),
        fill(
            case(
                PairedHeadLossGrad { adapter: of_adapter, ..pair }.into(),
                &[&[x, x, &[v, c], &x[..2]], adapters].concat(),
            ),
            3,
            Fill::Target(v as i32),
        ),
        fill(case(EmbeddingGrad { vocab_size: v, accumulate }.into(), &[x, &x[..2]]), 1, Fill::Index(v as i32)),
        case(GradNorm.into(), &[x, &weight, &[o]]),
        Example { state: Fill::Positive, ..case(update.into(), &[x, &[1]]) },
        case(KeepGradient { accumulate, site: 2 }.into(), &[x]),
        case(MovingAverage { decay: 0.99 }.into(), &[x, &[1]]),
        case(Gated { activation }.into(), &[x, x]),
        case(GatedGrad { activation }.into(), &[x, x, x]),
        case(swiglu.into(), &[&[b, t, 2 * o]]),
        case(ClampedSwigluGrad { forward: swiglu }.into(), &[&[b, t, o], &[b, t, 2 * o]]),
        case(Relu.into(), &[x]),
        case(ReluGrad.into(), &[x, x]),
        case(RmsNorm { eps: 1e-6, unit_offset }.into(), &[x, &[of_group]]),
        case(route.into(), &[&[b, t, o]]),
        fill(case(route_grad.into(), &route_inputs[..if residual { 4 } else { 3 }]), 1, Fill::Distinct(o as i32)),
        fill(case(Dispatch { weighted: true }.into(), &[x, choices, choices]), 1, Fill::Permutation),
        fill(case(Combine { weighted: true }.into(), &[rows_of_experts, choices, choices]), 1, Fill::Permutation),
        fill(case(CombineWeightGrad.into(), &[x, rows_of_experts, choices]), 2, Fill::Permutation),
        case(rotary.into(), &[&[b, t, heads * 2 * d]]),
        fill(case(rms_norm_grad.into(), rms_norm_inputs), 3, Fill::Positive),
        fill(with_bias(ColumnScale { bias }.into(), &[x, &x[2..], &x[2..]], &x[2..]), 2, Fill::Positive),
        fill(
            case(ColumnScaleGrad { magnitude: trained, accumulate }.into(), &[x, x, &x[2..], &x[2..]]),
            3,
            Fill::Positive,
        ),
        fill(case(LowRankNorm { scale: 0.01 }.into(), &[&[c], &[o, c], &[c, o]]), 0, Fill::Positive),
    ]
}
