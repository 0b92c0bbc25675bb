//! Runs with frozen weights in codes: their losses are those with the decoded weights, and no lever and no stop changes
//! a bit.

use crate::resume::{assert_same_run, last_checkpoint, run_with_stops};
use crate::support::{GLOBAL_BATCH, Setup, bits};
use plimsoll_exec::CodedMatrix;
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::{DType, Parameter, ProgramKind, Scalars, TrainShape, WeightCodes};
use plimsoll_plan::{Level, Levers, Precision, Recompute};
use plimsoll_train::checkpoint::load_weights;
use plimsoll_train::{Engine, Feed};

/// A Llama whose products are large enough for tiles.
const LLAMA: &str = r#""model_type": "llama", "intermediate_size": 96, "attention_dropout": 0.1"#;
/// Experts whose weights have a tensor each in files, with the layout (out, in).
const QWEN3_MOE: &str = r#""model_type": "qwen3_moe", "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 96,
    "intermediate_size": 96, "norm_topk_prob": true"#;
/// Experts whose weights are stacked in files, with the layout (in, out).
const GPT_OSS: &str =
    r#""model_type": "gpt_oss", "num_local_experts": 3, "num_experts_per_tok": 2, "intermediate_size": 96"#;

/// A Llama with frozen blocks in codes.
fn setup(codes: Option<WeightCodes>, precision: Precision) -> Setup {
    setup_of(LLAMA, codes, precision)
}

fn setup_of(family: &str, codes: Option<WeightCodes>, precision: Precision) -> Setup {
    let config = format!(
        r#"{{
        "vocab_size": 61, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "max_position_embeddings": 16, "initializer_range": 0.1, {family}
    }}"#
    );
    let model = ModelConfig::from_json(&config).expect("a sensible model");
    let plain = Setup::default();
    let frozen = model.parameter_names().iter().filter(|name| name.contains("proj")).cloned().collect();
    let shape = TrainShape { frozen, ..plain.shape.clone() };
    Setup { model, shape, levers: Levers { base_weights: codes, precision, ..plain.levers }, ..plain }
}

/// Sets the weights of `plain` to those of `coded`, decoded.
fn decode_into(coded: &Engine, plain: &mut Engine) {
    for (from, to) in coded.parameters().iter().zip(plain.parameters().to_vec()) {
        let Some(format) = from.coded.as_ref() else { continue };
        let shape = from.shape(&coded.plan()[from.tensor].ty);
        let view = |tensor| coded.view(tensor).expect("memory");
        let (codes, scales) = (view(from.tensor), format.scales.iter().map(|&id| view(id)).collect::<Vec<_>>());
        let scales = scales.iter().map(|bytes| &**bytes).collect::<Vec<_>>();
        let mut weights = vec![0.0; shape.iter().product()];
        let [columns, of_matrix] = [1, 2].map(|last| shape[shape.len() - last..].iter().product::<usize>());
        let experts = weights.len() / of_matrix;
        for (expert, weights) in weights.chunks_exact_mut(of_matrix).enumerate() {
            let own = |bytes: &[u8]| bytes.len() / experts * expert..bytes.len() / experts * (expert + 1);
            let scales = scales.iter().map(|bytes| &bytes[own(bytes)]).collect::<Vec<_>>();
            let matrix = CodedMatrix::new(format.format, columns, &codes[own(&codes)], &scales);
            weights.chunks_exact_mut(columns).enumerate().for_each(|(row, weights)| matrix.decode(row, 0, weights));
        }
        let bytes = weights.iter().flat_map(|weight: &f32| weight.to_le_bytes()).collect::<Vec<_>>();
        plain.fill_parameter(&to, 0, DType::F32, &bytes).expect("the same sizes");
    }
}

/// The losses of a few steps.
fn losses(engine: &mut Engine) -> Vec<u32> {
    let step = |step: u64| {
        let ids = |shift: usize| (0..64).map(|i| ((i * 7 + shift + step as usize) % 61) as i32).collect::<Vec<_>>();
        let scalars = Scalars { step, update: step, learning_rate: 1e-2, loss_scale: 1.0 / 64.0, ..Scalars::default() };
        let feed = Feed { tokens: &ids(0), targets: &ids(7), ..Feed::default() };
        engine.run_fed(ProgramKind::MicroStep, &feed, &scalars).expect("a step");
        let loss = engine.ports(ProgramKind::MicroStep).loss.expect("a loss");
        let loss = engine.read_one(loss).expect("memory");
        engine.run(ProgramKind::Update, &scalars).expect("an update");
        loss.to_bits()
    };
    (1..=4).map(step).collect()
}

#[test]
fn losses_are_those_with_the_decoded_weights_to_the_bit() {
    for (format, family) in
        WeightCodes::ALL.into_iter().flat_map(|format| [LLAMA, QWEN3_MOE, GPT_OSS].map(|family| (format, family)))
    {
        for precision in [Precision::Fp32, Precision::Bf16] {
            let [mut coded, mut plain] = [Some(format), None].map(|codes| setup_of(family, codes, precision).engine());
            let is_of_experts = |parameter: &&Parameter| {
                parameter.coded.is_some() && coded.plan()[parameter.tensor].ty.shape.len() == 3
            };
            let of_experts = if family == GPT_OSS { 2 } else { 3 };
            assert_eq!(
                coded.parameters().iter().filter(is_of_experts).count(),
                if family == LLAMA { 0 } else { 2 * of_experts }
            );
            coded.initialize(5).expect("memory");
            plain.initialize(5).expect("memory");
            let unquantized = losses(&mut plain);
            plain.restart(5).expect("memory");
            decode_into(&coded, &mut plain);
            let (found, expected) = (losses(&mut coded), losses(&mut plain));
            assert_eq!(found, expected, "{format:?} {precision:?} {family}");
            assert_ne!(found, unquantized, "{format:?} {precision:?} {family}: the weights were rounded");
        }
    }
}

#[test]
fn levers_and_stops_change_no_bit() {
    for (format, family) in [
        (WeightCodes::Nf4, LLAMA),
        (WeightCodes::Int8, LLAMA),
        (WeightCodes::Nf4, QWEN3_MOE),
        (WeightCodes::Nf4, GPT_OSS),
    ] {
        let setup = setup_of(family, Some(format), Precision::Fp32);
        let expected = bits(&setup.losses());
        let plain = setup.levers;
        for levers in [
            Levers { recompute: Recompute::all(Level::Block), ..plain },
            Levers { optimizer_offload: 0.5, ..plain },
            Levers { weight_offload: 0.5, ..plain },
            Levers { weight_offload: 1.0, recompute: Recompute::all(Level::Block), ..plain },
            Levers { activation_offload: 1, recompute: Recompute::all(Level::Cheap), ..plain },
        ] {
            let pulled = Setup { levers, ..setup.clone() };
            assert_eq!(bits(&pulled.losses()), expected, "{format:?} {levers:?} {family}");
        }
        let parent = tempfile::tempdir().expect("a temporary folder");
        let whole = run_with_stops(&setup, &parent.path().join("whole"), &[]);
        let stopped = run_with_stops(&setup, &parent.path().join("stopped"), &[5]);
        assert_same_run(&format!("{format:?}"), &setup, &stopped, &whole);
    }
}

/// All of a step's samples at a time instead of half of them.
#[test]
fn micro_batches_change_losses_by_rounding_only() {
    let halves = setup(Some(WeightCodes::Nf4), Precision::Fp32);
    let shape = TrainShape { micro_batch: GLOBAL_BATCH, accumulates: false, ..halves.shape.clone() };
    let whole = Setup { shape, ..halves.clone() };
    for (a, b) in halves.losses().iter().zip(whole.losses()) {
        assert!((a - b).abs() < 1e-5 * a.abs(), "{a} {b}");
    }
}

/// A checkpoint in codes is loaded with the same codes, or refused by name; weights that are not in codes are encoded.
#[test]
fn checkpoints_in_codes_are_loaded_as_they_are_and_no_others_are_mixed_up() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = |name: &str, codes| {
        let setup = setup(codes, Precision::Fp32);
        last_checkpoint(&run_with_stops(&setup, &folder.path().join(name), &[])).clone()
    };
    let engine = |codes| setup(codes, Precision::Fp32).engine();
    let (nf4, plain) = (run("nf4", Some(WeightCodes::Nf4)), run("plain", None));
    for codes in [None, Some(WeightCodes::Int8)] {
        let error = load_weights(&mut engine(codes), &nf4).expect_err("other codes").to_string();
        assert!(error.contains("stored as nf4 codes"), "{error}");
    }
    let mut loaded = engine(Some(WeightCodes::Nf4));
    load_weights(&mut loaded, &plain).expect("weights");
    let mut expected = engine(Some(WeightCodes::Nf4));
    load_weights(&mut expected, &nf4).expect("codes");
    // Both runs began with the same frozen weights.
    for parameter in loaded.parameters().iter().filter(|parameter| parameter.coded.is_some()) {
        let scales = &parameter.coded.as_ref().expect("just chosen").scales;
        for &tensor in scales.iter().chain([&parameter.tensor]) {
            let [found, expected] =
                [&loaded, &expected].map(|engine| engine.view(tensor).expect("memory").into_owned());
            assert!(found == expected, "{}", loaded.name(tensor));
        }
    }
}
