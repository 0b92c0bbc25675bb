//! A published gpt-oss, whose experts are in MXFP4: its weights arrive as transformers converts them, bit for bit.
//! `scripts/golden_mxfp4.py` makes the file.

use crate::support::Setup;
use crate::support::weights::{Tensors, deserialize, serialize, write_shards, zeros};
use plimsoll_exec::Encoder;
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::{TrainShape, WeightCodes};
use plimsoll_plan::Levers;
use plimsoll_train::checkpoint::{CheckpointError, MODEL_FILE, load_weights};
use plimsoll_train::{Engine, TrainError};
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use std::collections::BTreeSet;
use std::fs;

const GOLDEN: &[u8] = include_bytes!("../golden/gpt_oss_mxfp4.safetensors");
const DOWN: &str = "model.layers.0.mlp.experts.down_proj";

/// The model of the golden file.
fn setup() -> Setup {
    let (_, metadata) = SafeTensors::read_metadata(GOLDEN).expect("the file in the repository is whole");
    let config = metadata.metadata().as_ref().and_then(|m| m.get("config")).expect("a config.json");
    assert_eq!(ModelConfig::quantization(config).as_deref(), Some("mxfp4"));
    let model = ModelConfig::from_json(config).expect("MXFP4 is read");
    assert!(!model.to_json().contains("quantization_config"), "checkpoints are not quantized");
    Setup { model, shape: TrainShape { micro_batch: 4, seq_len: 16, ..TrainShape::default() }, ..Setup::default() }
}

/// The tensors of the published file, and the parameters that transformers makes of them.
fn tensors() -> [Tensors; 2] {
    let (expected, published) =
        deserialize(GOLDEN).into_iter().partition::<Tensors, _>(|(name, _)| name.starts_with("expected."));
    [published, expected]
}

fn load(engine: &mut Engine, published: &Tensors, shards: usize) -> Result<(), TrainError> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    if shards > 1 {
        write_shards(folder.path(), published, shards);
    } else {
        fs::write(folder.path().join(MODEL_FILE), serialize(published)).expect("a folder to write to");
    }
    load_weights(engine, folder.path())
}

#[test]
fn blocks_and_scales_are_those_weights_that_transformers_makes_of_them() {
    let (mut engine, [published, expected]) = (setup().engine(), tensors());
    let bare = published.iter().map(|(name, tensor)| (name.trim_start_matches("model.").to_owned(), tensor.clone()));
    for (published, shards) in [(&published, 1), (&published, 4), (&bare.collect(), 1)] {
        engine.initialize(1).expect("weights can be written");
        load(&mut engine, published, shards).expect("weights of this model");
        assert_eq!(engine.parameters().len(), expected.len());
        for parameter in engine.parameters() {
            let name = engine.name(parameter.tensor);
            let (_, shape, bytes) = &expected[&format!("expected.{name}")];
            assert_eq!(&engine.plan()[parameter.tensor].ty.shape[..], &shape[..], "{name}");
            assert!(engine.view(parameter.tensor).expect("a weight")[..] == bytes[..], "{name}");
        }
    }
}

/// Experts that are loaded into codes have those of the weights that transformers makes of them.
#[test]
fn blocks_and_scales_are_encoded_expert_by_expert() {
    let [published, expected] = tensors();
    let setup = setup();
    let frozen: BTreeSet<String> =
        setup.model.parameter_names().into_iter().filter(|name| name.contains("proj")).collect();
    for format in WeightCodes::ALL {
        let levers = Levers { base_weights: Some(format), ..setup.levers };
        let shape = TrainShape { frozen: frozen.clone(), ..setup.shape.clone() };
        let mut engine = Setup { levers, shape, ..setup.clone() }.engine();
        load(&mut engine, &published, 1).expect("weights of this model");
        for end in ["gate_up_proj", "down_proj"] {
            let name = format!("model.layers.0.mlp.experts.{end}");
            let (dtype, shape, bytes) = &expected[&format!("expected.{name}")];
            assert_eq!(*dtype, Dtype::F32);
            let weights = bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect::<Vec<_>>();
            let mut tensors = vec![Vec::new(); 1 + format.scale_count()];
            for weights in weights.chunks(shape[1] * shape[2]) {
                let mut encoder = Encoder::new(format, shape[2]);
                tensors[0].extend(encoder.encode(weights));
                tensors[1..].iter_mut().zip(encoder.scales()).for_each(|(all, own)| all.extend(own));
            }
            let parameter = engine.parameters().iter().find(|parameter| engine.name(parameter.tensor) == name);
            let parameter = parameter.expect("a parameter of experts");
            let scales = &parameter.coded.as_ref().expect("in codes").scales;
            for (&tensor, expected) in [parameter.tensor].iter().chain(scales).zip(&tensors) {
                assert!(engine.view(tensor).expect("memory")[..] == expected[..], "{}", engine.name(tensor));
            }
        }
    }
}

#[test]
fn incomplete_blocks_are_refused() {
    let (mut engine, [published, _]) = (setup().engine(), tensors());
    let [blocks, scales] = ["blocks", "scales"].map(|kind| format!("{DOWN}_{kind}"));
    let mut check = |change: &dyn Fn(&mut Tensors)| {
        let mut tensors = published.clone();
        change(&mut tensors);
        match load(&mut engine, &tensors, 1).expect_err("not weights of this model") {
            TrainError::Checkpoint(error) => error,
            other => panic!("{other:?}"),
        }
    };
    let error = check(&|tensors| drop(tensors.remove(&scales)));
    assert!(matches!(&error, CheckpointError::MissingTensor { tensor, .. } if *tensor == scales), "{error:?}");
    let error = check(&|tensors| drop(tensors.remove(&blocks)));
    assert!(matches!(&error, CheckpointError::MissingTensor { tensor, .. } if tensor == DOWN), "{error:?}");
    for (name, dtype, shape) in [
        (&blocks, Dtype::U8, &[3, 64, 1, 8][..]),
        (&blocks, Dtype::I8, &[3, 64, 1, 16]),
        (&scales, Dtype::U8, &[3, 64]),
        (&scales, Dtype::U8, &[3, 32, 2]),
    ] {
        let error = check(&|tensors| drop(tensors.insert(name.clone(), zeros(dtype, shape))));
        assert!(matches!(&error, CheckpointError::WrongTensor { tensor, .. } if tensor == name), "{error:?}");
    }
}
