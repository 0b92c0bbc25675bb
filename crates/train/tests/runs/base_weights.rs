//! Runs with frozen weights in codes: their losses are those with the decoded weights, and no lever and no stop changes
//! a bit.

use crate::resume::{assert_same_run, last_checkpoint, run_with_stops};
use crate::support::{GLOBAL_BATCH, Setup, bits};
use plimsoll_exec::CodedMatrix;
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::{DType, ProgramKind, Scalars, TrainShape, WeightCodes};
use plimsoll_plan::{Level, Levers, Precision, Recompute};
use plimsoll_train::checkpoint::load_weights;
use plimsoll_train::{Engine, Feed};

/// A Llama whose products are large enough for tiles, with frozen blocks in codes.
fn setup(codes: Option<WeightCodes>, precision: Precision) -> Setup {
    let config = r#"{
        "model_type": "llama", "vocab_size": 61, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16, "attention_dropout": 0.1,
        "initializer_range": 0.1
    }"#;
    let model = ModelConfig::from_json(config).expect("a sensible model");
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
        let matrix = CodedMatrix::new(format.format, shape[1], &codes, &scales);
        let mut weights = vec![0.0; shape.iter().product()];
        for (row, weights) in weights.chunks_exact_mut(shape[1]).enumerate() {
            matrix.decode(row, 0, weights);
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
    for format in WeightCodes::ALL {
        for precision in [Precision::Fp32, Precision::Bf16] {
            let [mut coded, mut plain] = [Some(format), None].map(|codes| setup(codes, precision).engine());
            coded.initialize(5).expect("memory");
            plain.initialize(5).expect("memory");
            let unquantized = losses(&mut plain);
            plain.restart(5).expect("memory");
            decode_into(&coded, &mut plain);
            let (found, expected) = (losses(&mut coded), losses(&mut plain));
            assert_eq!(found, expected, "{format:?} {precision:?}");
            assert_ne!(found, unquantized, "{format:?} {precision:?}: the weights were rounded");
        }
    }
}

#[test]
fn levers_and_stops_change_no_bit() {
    for format in WeightCodes::ALL {
        let setup = setup(Some(format), Precision::Fp32);
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
            assert_eq!(bits(&pulled.losses()), expected, "{format:?} {levers:?}");
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
