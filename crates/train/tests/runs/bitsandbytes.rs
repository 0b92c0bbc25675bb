//! Weights that bitsandbytes quantized: their codes are used as they are, or decoded to its values, and what is damaged is
//! refused by name. `scripts/golden_bitsandbytes.py` makes the files.

use crate::support::assert_close;
use crate::support::weights::{Tensors, deserialize, serialize, with_header, write_shards};
use plimsoll_exec::{CodedMatrix, CpuDevice, Encoder};
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::{DType, Parameter, SampleShape, Targets, WeightCodes};
use plimsoll_plan::plan_sampling;
use plimsoll_train::checkpoint::{CheckpointError, MODEL_FILE, StoredWeights, bitsandbytes_codes, load_weights};
use plimsoll_train::{Engine, TrainError, Writer};
use plimsoll_units::Bytes;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::path::Path;

const NF4: &[u8] = include_bytes!("../golden/bitsandbytes_nf4.safetensors");
const PLAIN: &[u8] = include_bytes!("../golden/bitsandbytes_plain.safetensors");
const INT8: &[u8] = include_bytes!("../golden/bitsandbytes_int8.safetensors");
const DOWN: &str = "model.layers.0.mlp.down_proj.weight";
/// Tolerance for rounding in single precision through the model: absolute difference of logits.
const LOGITS: f64 = 1e-4;

/// A file of the repository.
struct Golden {
    model: ModelConfig,
    tensors: Tensors,
    tokens: Vec<u32>,
    logits: Vec<f64>,
    /// Checksums of the weights that bitsandbytes decodes, by name.
    decoded: HashMap<String, u64>,
}

impl Golden {
    fn read(file: &'static [u8]) -> Self {
        let (_, metadata) = SafeTensors::read_metadata(file).expect("the file in the repository is whole");
        let metadata = metadata.metadata().clone().expect("a configuration");
        assert_eq!(ModelConfig::quantization(&metadata["config"]).as_deref(), Some("bitsandbytes"));
        let model = ModelConfig::from_json(&metadata["config"]).expect("these weights are read");
        assert!(!model.to_json().contains("quantization_config"), "checkpoints are not quantized");
        let mut tensors = deserialize(file);
        let mut expected = |name: &str| tensors.remove(&format!("expected.{name}")).expect("expected values").2;
        let tokens = expected("tokens").as_chunks().0.iter().map(|&id| u32::from_le_bytes(id)).collect();
        let logits = expected("logits").as_chunks().0.iter().map(|&x| f64::from(f32::from_le_bytes(x))).collect();
        let decoded = serde_json::from_str(&metadata["decoded"]).expect("checksums");
        Self { model, tensors, tokens, logits, decoded }
    }

    /// The logits after each token.
    fn logits_of(&self, engine: &mut Engine) -> Vec<f64> {
        let mut writer = Writer::new(engine, None);
        let after = |&token: &u32| {
            let logits = writer.feed(&[&[token]]).expect("tokens of the vocabulary");
            logits.iter().copied().map(f64::from).collect::<Vec<_>>()
        };
        self.tokens.iter().flat_map(after).collect()
    }

    fn engine(&self, codes: Option<WeightCodes>) -> Engine {
        engine(&self.model, codes)
    }
}

/// An engine that computes logits.
fn engine(model: &ModelConfig, codes: Option<WeightCodes>) -> Engine {
    let shape = SampleShape { rows: 1, prefill: 4, capacity: 16, source: 16 };
    let planned = plan_sampling(model, None, &shape, codes, &Targets::cpu(1), Bytes::gib(1));
    let (graph, plan) = planned.expect("a sensible model");
    Engine::new(Box::new(CpuDevice::new()), &graph, plan).expect("memory for a tiny model")
}

fn write(folder: &Path, tensors: &Tensors) {
    fs::write(folder.join(MODEL_FILE), serialize(tensors)).expect("a folder to write to");
}

fn load(engine: &mut Engine, tensors: &Tensors) -> Result<(), TrainError> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write(folder.path(), tensors);
    load_weights(engine, folder.path())
}

/// FNV-1a of values in single precision.
fn checksum(values: &[f32]) -> u64 {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes());
    bytes.fold(0xCBF2_9CE4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

/// The tensors of a parameter's codes and scales.
fn coded(engine: &Engine, parameter: &Parameter) -> Vec<Vec<u8>> {
    let scales = &parameter.coded.as_ref().expect("weights in codes").scales;
    [parameter.tensor].iter().chain(scales).map(|&id| engine.view(id).expect("memory").into_owned()).collect()
}

#[test]
fn decoded_weights_and_logits_are_those_of_bitsandbytes() {
    for file in [NF4, PLAIN, INT8] {
        let golden = Golden::read(file);
        let mut engine = golden.engine(None);
        let folder = tempfile::tempdir().expect("a temporary folder");
        for shards in [1, 3] {
            match shards {
                1 => write(folder.path(), &golden.tensors),
                _ => drop(write_shards(folder.path(), &golden.tensors, shards)),
            }
            engine.initialize(1).expect("weights can be written");
            load_weights(&mut engine, folder.path()).expect("weights of this model");
            let weights = StoredWeights::open(folder.path(), &golden.model, false).expect("weights of this model");
            let mut compared = 0;
            for parameter in engine.parameters() {
                let name = engine.name(parameter.tensor);
                let Some(&expected) = golden.decoded.get(name) else { continue };
                let bytes = engine.view(parameter.tensor).expect("memory");
                let loaded = bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect::<Vec<_>>();
                assert_eq!(checksum(&loaded), expected, "{name}");
                let mut read = vec![0.0; loaded.len()];
                weights.read(name, 0, 1, &mut read).expect("a weight");
                assert_eq!(read, loaded, "{name}");
                let mut apart = vec![0.0; loaded.len() / 65];
                weights.read(name, 3, 65, &mut apart).expect("a weight");
                assert!(apart.iter().eq(loaded[3..].iter().step_by(65).take(apart.len())), "{name}");
                compared += 1;
            }
            assert_eq!(compared, 7, "all linear layers of the block");
        }
        let found = golden.logits_of(&mut engine);
        assert_close("logits", &found, &golden.logits, LOGITS);
    }
}

#[test]
fn codes_of_the_same_format_are_used_as_they_are() {
    for (file, format, ends) in [
        (NF4, WeightCodes::Nf4, &[".weight.absmax", ".weight.nested_absmax"][..]),
        (INT8, WeightCodes::Int8, &[".SCB"]),
    ] {
        let golden = Golden::read(file);
        let mut engine = golden.engine(Some(format));
        load(&mut engine, &golden.tensors).expect("weights of this model");
        let mut compared = 0;
        for parameter in engine.parameters().iter().filter(|parameter| parameter.coded.is_some()) {
            let name = engine.name(parameter.tensor);
            let stem = name.strip_suffix(".weight").expect("a weight");
            let mut expected = vec![golden.tensors[name].2.clone()];
            expected.extend(ends.iter().map(|end| golden.tensors[&format!("{stem}{end}")].2.clone()));
            if format == WeightCodes::Nf4 {
                let state = &golden.tensors[&format!("{name}.quant_state.bitsandbytes__nf4")].2;
                let state: Value = serde_json::from_slice(state).expect("JSON");
                let offset = state["nested_offset"].as_f64().expect("an offset") as f32;
                expected.push(offset.to_ne_bytes().to_vec());
            }
            assert!(coded(&engine, parameter) == expected, "{name}");
            compared += 1;
        }
        assert_eq!(compared, 7, "all linear layers of the block");
        assert_close("logits", &golden.logits_of(&mut engine), &golden.logits, LOGITS);
    }
}

/// Codes without quantized scales keep their values, and those of another format are encoded again.
#[test]
fn other_codes_are_encoded_from_the_decoded_weights() {
    for (file, format) in [(PLAIN, WeightCodes::Nf4), (INT8, WeightCodes::Nf4), (NF4, WeightCodes::Int8)] {
        let golden = Golden::read(file);
        let [mut engine, mut plain] = [Some(format), None].map(|codes| golden.engine(codes));
        load(&mut engine, &golden.tensors).expect("weights of this model");
        load(&mut plain, &golden.tensors).expect("weights of this model");
        for parameter in engine.parameters().iter().filter(|parameter| parameter.coded.is_some()) {
            let name = engine.name(parameter.tensor);
            let decoded = plain.parameters().iter().find(|other| plain.name(other.tensor) == name).expect("the same");
            let decoded = plain.view(decoded.tensor).expect("memory");
            let decoded = decoded.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect::<Vec<_>>();
            let shape = parameter.shape(&engine.plan()[parameter.tensor].ty);
            let mut encoder = Encoder::new(format, shape[1]);
            let codes = encoder.encode(&decoded);
            let found = coded(&engine, parameter);
            assert!(found[0] == codes && found[1..] == encoder.scales(), "{name}");
            if file == PLAIN {
                assert!(codes == golden.tensors[name].2, "{name}: the codes stay");
            }
        }
    }
}

/// The tensors in which a model's files store the parameters of an engine: zeros.
fn zeros_of(engine: &Engine) -> Tensors {
    let tensors = engine.parameters().iter().flat_map(|parameter| {
        let shape = engine.plan()[parameter.tensor].ty.shape.to_vec();
        let whole = (engine.name(parameter.tensor).to_owned(), shape);
        let pieces = parameter.stored.iter().map(|piece| (piece.tensor.to_string(), piece.shape.clone()));
        pieces.chain(parameter.stored.is_empty().then_some(whole)).collect::<Vec<_>>()
    });
    tensors
        .map(|(name, shape)| (name, (Dtype::F32, shape.clone(), vec![0; 4 * shape.iter().product::<usize>()])))
        .collect()
}

/// The matrix of each expert has scales of its own, in files and in a run.
#[test]
fn experts_keep_their_codes() {
    let config = r#"{"model_type": "qwen3_moe", "vocab_size": 37, "hidden_size": 34, "intermediate_size": 48,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "max_position_embeddings": 64, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 46,
        "norm_topk_prob": true}"#;
    let model = ModelConfig::from_json(config).expect("a sensible model");
    let golden = Golden::read(NF4);
    let mut tensors = zeros_of(&engine(&model, None));
    let mut expected = HashMap::<String, Vec<Vec<u8>>>::new();
    for layer in ["gate_proj", "up_proj", "down_proj"] {
        for expert in 0..3 {
            let name = format!("model.layers.0.mlp.experts.{expert}.{layer}.weight");
            let shape = tensors[&name].1.clone();
            let count = shape[0] * shape[1];
            let values = (0..count).map(|i| ((i * 37 + 11 * expert) % 101) as f32 / 64.0 - expert as f32 / 3.0);
            let mut encoder = Encoder::new(WeightCodes::Nf4, shape[1]);
            let codes = encoder.encode(&values.collect::<Vec<_>>());
            let scales = encoder.scales();
            let all = expected.entry(layer.to_owned()).or_insert_with(|| vec![Vec::new(); 4]);
            all.iter_mut().zip([&codes].into_iter().chain(&scales)).for_each(|(all, own)| all.extend(own));
            let offset = f32::from_ne_bytes(scales[2][..].try_into().expect("one number"));
            let state = json!({"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": shape,
                "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset});
            let state = state.to_string().into_bytes();
            tensors.insert(format!("{name}.absmax"), (Dtype::U8, vec![scales[0].len()], scales[0].clone()));
            tensors.insert(format!("{name}.nested_absmax"), (Dtype::F32, vec![scales[1].len() / 4], scales[1].clone()));
            for map in ["quant_map", "nested_quant_map"] {
                tensors.insert(format!("{name}.{map}"), golden.tensors[&format!("{DOWN}.{map}")].clone());
            }
            tensors.insert(format!("{name}.quant_state.bitsandbytes__nf4"), (Dtype::U8, vec![state.len()], state));
            tensors.insert(name, (Dtype::U8, vec![codes.len(), 1], codes));
        }
    }
    let mut of_codes = engine(&model, Some(WeightCodes::Nf4));
    load(&mut of_codes, &tensors).expect("weights of this model");
    for (layer, expected) in expected {
        let parameter = of_codes.parameters().iter().find(|parameter| {
            parameter.stored.first().is_some_and(|piece| piece.tensor.ends_with(&format!("experts.0.{layer}.weight")))
        });
        assert!(coded(&of_codes, parameter.expect("a parameter of experts")) == expected, "{layer}");
    }
}

/// Three matrices in one tensor: scales of rows are apart, those of blocks are shared.
#[test]
fn layers_in_one_tensor_are_taken_apart() {
    let config = r#"{"model_type": "phi3", "vocab_size": 37, "hidden_size": 64, "intermediate_size": 48,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}"#;
    let model = ModelConfig::from_json(config).expect("a sensible model");
    let name = "model.layers.0.self_attn.qkv_proj.weight";
    let values = (0..128 * 64).map(|i| ((i * 37 % 101) as f32 - 50.0) / 64.0).collect::<Vec<_>>();
    let mut encoder = Encoder::new(WeightCodes::Int8, 64);
    let codes = encoder.encode(&values);
    let scales = encoder.scales().remove(0);
    let mut tensors = zeros_of(&engine(&model, None));
    tensors.insert(name.to_owned(), (Dtype::I8, vec![128, 64], codes.clone()));
    tensors.insert(name.replace("weight", "SCB"), (Dtype::F32, vec![128], scales.clone()));
    let mut of_codes = engine(&model, Some(WeightCodes::Int8));
    load(&mut of_codes, &tensors).expect("weights of this model");
    let mut of_blocks = engine(&model, Some(WeightCodes::Nf4));
    load(&mut of_blocks, &tensors).expect("weights of this model");
    let parts = of_codes.parameters().iter().filter(|part| part.stored.iter().any(|piece| *piece.tensor == *name));
    let parts = parts.collect::<Vec<_>>();
    assert_eq!(parts.len(), 3);
    let (mut row, matrix) = (0, CodedMatrix::new(WeightCodes::Int8, 64, &codes, &[&scales]));
    for part in parts {
        let found = coded(&of_codes, part);
        let rows = found[0].len() / 64;
        assert!(found[0] == codes[row * 64..][..rows * 64] && found[1] == scales[row * 4..][..rows * 4]);
        let mut decoded = vec![0.0; rows * 64];
        decoded.chunks_exact_mut(64).zip(row..).for_each(|(values, row)| matrix.decode(row, 0, values));
        let mut encoder = Encoder::new(WeightCodes::Nf4, 64);
        let mut expected = vec![encoder.encode(&decoded)];
        expected.extend(encoder.scales());
        let part = of_blocks.parameters().iter().find(|other| other.tensor == part.tensor).expect("the same graph");
        assert!(coded(&of_blocks, part) == expected);
        row += rows;
    }
}

/// The error of loading changed tensors, by each of the readers.
fn refused(golden: &Golden, change: impl FnOnce(&mut Tensors)) -> CheckpointError {
    let mut tensors = golden.tensors.clone();
    change(&mut tensors);
    let folder = tempfile::tempdir().expect("a temporary folder");
    write(folder.path(), &tensors);
    let of_stored = StoredWeights::open(folder.path(), &golden.model, false).err().expect("no weights of this model");
    match load_weights(&mut golden.engine(None), folder.path()).expect_err("no weights of this model") {
        TrainError::Checkpoint(error) => {
            assert_eq!(std::mem::discriminant(&error), std::mem::discriminant(&of_stored), "{error}");
            error
        }
        other => panic!("{other:?}"),
    }
}

/// Changes the state of a weight.
fn with_state(tensors: &mut Tensors, change: impl FnOnce(&mut Value)) {
    let (_, shape, bytes) = tensors.get_mut(&format!("{DOWN}.quant_state.bitsandbytes__nf4")).expect("a state");
    let mut state = serde_json::from_slice(bytes).expect("JSON");
    change(&mut state);
    *bytes = state.to_string().into_bytes();
    *shape = vec![bytes.len()];
}

#[test]
fn damaged_codes_are_refused_by_name() {
    let (nf4, int8) = (Golden::read(NF4), Golden::read(INT8));
    let name = |end: &str| format!("{DOWN}{end}");
    let scb = DOWN.replace("weight", "SCB");
    let check = |golden: &Golden, change: &dyn Fn(&mut Tensors), words: &[&str]| {
        let error = refused(golden, change);
        assert!(matches!(error, CheckpointError::BadCodes { .. }), "{error:?}");
        let message = error.to_string();
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    };
    for end in [".absmax", ".nested_absmax", ".quant_map", ".nested_quant_map"] {
        check(&nf4, &|tensors| drop(tensors.remove(&name(end))), &[&name(end), "is missing"]);
        let halved = |tensors: &mut Tensors| {
            let (_, shape, bytes) = tensors.get_mut(&name(end)).expect("a tensor");
            (shape[0], *bytes) = (shape[0] / 2, bytes[..bytes.len() / 2].to_vec());
        };
        check(&nf4, &halved, &[&name(end), "its weight needs"]);
    }
    let stateless = |tensors: &mut Tensors| drop(tensors.remove(&name(".quant_state.bitsandbytes__nf4")));
    check(&nf4, &stateless, &[DOWN, "has no", "quant_state"]);
    for (key, value, words) in [
        ("blocksize", json!(128), "blocks of 128 weights"),
        ("nested_blocksize", json!(64), "64 scales"),
        ("shape", json!([64, 64]), "has the shape [64, 64], the model [64, 320]"),
        ("shape", json!([u64::MAX, 2]), "has the shape"),
        ("shape", json!("x"), "is not the state of a weight"),
        ("dtype", json!("float64"), "float64"),
        ("nested_offset", json!(1e300), "not finite"),
        ("nested_offset", Value::Null, "its weight needs F32"),
        ("blocksize", Value::Null, "is not the state of a weight"),
    ] {
        check(&nf4, &|tensors| with_state(tensors, |state| state[key] = value.clone()), &[DOWN, words]);
    }
    let state = name(".quant_state.bitsandbytes__nf4");
    for text in ["", "{", "\u{ff}", &"9".repeat(5000)] {
        let bytes = text.as_bytes().to_vec();
        let tensor = (Dtype::U8, vec![bytes.len()], bytes);
        check(&nf4, &|tensors| drop(tensors.insert(state.clone(), tensor.clone())), &[&state, "is not the state"]);
    }
    for (golden, tensor) in [(&nf4, name(".nested_absmax")), (&int8, scb.clone())] {
        for scale in [f32::NAN, f32::INFINITY] {
            let set = |tensors: &mut Tensors| {
                let bytes = &mut tensors.get_mut(&tensor).expect("scales").2;
                bytes[..4].copy_from_slice(&scale.to_le_bytes());
            };
            check(golden, &set, &[DOWN, "not finite"]);
        }
    }
    let other_levels = |tensors: &mut Tensors| {
        tensors.get_mut(&name(".quant_map")).expect("levels").2[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    };
    check(&nf4, &other_levels, &[&name(".quant_map"), "other values than those of nf4"]);
    check(
        &nf4,
        &|tensors| drop(tensors.insert(DOWN.into(), (Dtype::U8, vec![64], vec![0; 64]))),
        &[DOWN, "10240 bytes"],
    );
    check(&int8, &|tensors| drop(tensors.remove(&scb)), &[DOWN, "has no", "down_proj.SCB"]);
    check(&int8, &|tensors| drop(tensors.insert(scb.clone(), (Dtype::F32, vec![1], vec![0; 4]))), &[&scb, "[64]"]);
    let narrow = (Dtype::I8, vec![64, 47], vec![0; 64 * 47]);
    check(&int8, &|tensors| drop(tensors.insert(DOWN.into(), narrow.clone())), &[DOWN, "I8 [64, 48]"]);
}

#[test]
fn formats_that_are_not_read_are_named() {
    let (nf4, int8) = (Golden::read(NF4), Golden::read(INT8));
    let fp4 = |tensors: &mut Tensors| {
        let state = tensors.remove(&format!("{DOWN}.quant_state.bitsandbytes__nf4")).expect("a state");
        tensors.insert(format!("{DOWN}.quant_state.bitsandbytes__fp4"), state);
    };
    let tiles = |tensors: &mut Tensors| {
        tensors.get_mut(&format!("{DOWN}_format")).expect("an order").2[0] = 2;
    };
    for error in [
        refused(&nf4, fp4),
        refused(&nf4, |tensors| with_state(tensors, |state| state["quant_type"] = json!("fp4"))),
        refused(&int8, tiles),
    ] {
        assert!(matches!(&error, CheckpointError::UnsupportedCodes { tensor, .. } if tensor == DOWN), "{error:?}");
    }
    let codes = |tensors: &Tensors| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        write(folder.path(), tensors);
        bitsandbytes_codes(folder.path())
    };
    assert_eq!(codes(&nf4.tensors).expect("these are read"), Some(WeightCodes::Nf4));
    assert_eq!(codes(&int8.tensors).expect("these are read"), Some(WeightCodes::Int8));
    let mut tensors = nf4.tensors.clone();
    fp4(&mut tensors);
    let error = codes(&tensors).expect_err("another format").to_string();
    assert!(error.contains(DOWN) && error.contains("fp4"), "{error}");
    tensors.retain(|name, _| !name.contains("down_proj") && !name.contains("quant_state"));
    assert_eq!(codes(&tensors).expect("nothing to refuse"), None);
}

/// Damage to any byte of the headers, states and scales, and to any number of the header.
#[test]
fn no_file_makes_loading_panic() {
    for file in [NF4, INT8] {
        let golden = Golden::read(file);
        let right = serialize(&golden.tensors);
        let (header, _) = SafeTensors::read_metadata(&right).expect("a right file");
        let states = right.windows(12).enumerate().filter(|(_, text)| text == b"\"quant_type\"");
        let mut places = states.flat_map(|(at, _)| at - 2..at + 150).collect::<Vec<_>>();
        places.extend(8..8 + header);
        let engine = RefCell::new(golden.engine(Some(WeightCodes::Nf4)));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let hit = (0..places.len(), any::<u8>());
        let result = TestRunner::default().run(&prop::collection::vec(hit, 1..4), |hits| {
            let mut bytes = right.clone();
            hits.into_iter().for_each(|(place, byte)| bytes[places[place].min(right.len() - 1)] = byte);
            fs::write(folder.path().join(MODEL_FILE), bytes).expect("a folder to write to");
            let _ = load_weights(&mut engine.borrow_mut(), folder.path());
            let _ = StoredWeights::open(folder.path(), &golden.model, false);
            let _ = bitsandbytes_codes(folder.path());
            Ok(())
        });
        assert!(result.is_ok(), "{result:?}");
        for shape in [json!([u64::MAX, u64::MAX]), json!([0]), json!([]), json!([1u64 << 63, 2])] {
            let changed = with_header(&right, |header| header[DOWN]["shape"] = shape.clone());
            fs::write(folder.path().join(MODEL_FILE), changed).expect("a folder to write to");
            assert!(load_weights(&mut engine.borrow_mut(), folder.path()).is_err(), "{shape}");
        }
    }
}

/// Weights that were not quantized next to quantized ones keep their precision.
#[test]
fn the_other_weights_are_as_in_the_file() {
    let golden = Golden::read(PLAIN);
    let mut engine = golden.engine(Some(WeightCodes::Nf4));
    load(&mut engine, &golden.tensors).expect("weights of this model");
    let head = engine.parameters().iter().find(|p| engine.name(p.tensor) == "lm_head.weight").expect("a head");
    assert_eq!(engine.plan()[head.tensor].dtype(), DType::F32);
    let (dtype, _, bytes) = &golden.tensors["lm_head.weight"];
    assert_eq!(*dtype, Dtype::BF16);
    let widened = bytes.as_chunks::<2>().0.iter().flat_map(|half| [0, 0, half[0], half[1]]).collect::<Vec<_>>();
    assert!(engine.view(head.tensor).expect("memory")[..] == widened);
}
