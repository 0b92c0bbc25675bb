//! A published gpt-oss, whose experts are in MXFP4: its weights arrive as transformers converts them, bit for bit.
//! `scripts/golden_mxfp4.py` makes the file.

use crate::support::Setup;
use crate::support::weights::{Tensors, deserialize, serialize, write_shards, zeros};
use plimsoll_graph::TrainShape;
use plimsoll_graph::models::ModelConfig;
use plimsoll_train::checkpoint::{CheckpointError, MODEL_FILE, load_weights};
use plimsoll_train::{Engine, TrainError};
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use std::fs;

const GOLDEN: &[u8] = include_bytes!("../golden/gpt_oss_mxfp4.safetensors");
const DOWN: &str = "model.layers.0.mlp.experts.down_proj";

/// An engine with the model of the golden file.
fn engine() -> Engine {
    let (_, metadata) = SafeTensors::read_metadata(GOLDEN).expect("the file in the repository is whole");
    let config = metadata.metadata().as_ref().and_then(|m| m.get("config")).expect("a config.json");
    assert_eq!(ModelConfig::quantization(config).as_deref(), Some("mxfp4"));
    let model = ModelConfig::from_json(config).expect("MXFP4 is read");
    assert!(!model.to_json().contains("quantization_config"), "checkpoints are not quantized");
    Setup { model, shape: TrainShape { micro_batch: 4, seq_len: 16, ..TrainShape::default() }, ..Setup::default() }
        .engine()
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
    let (mut engine, [published, expected]) = (engine(), tensors());
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

#[test]
fn incomplete_blocks_are_refused() {
    let (mut engine, [published, _]) = (engine(), tensors());
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
