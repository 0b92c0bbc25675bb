//! Weights from other programs: in one file or in shards, with other names and precisions. The model's tensors arrive
//! bit for bit; others are refused, each kind with its own error.

use crate::support::weights::{
    Tensors, right_tensors, serialize, shard_name, with_header, write_index, write_shards, zeros,
};
use crate::support::{Setup, families};
use plimsoll_train::checkpoint::{CheckpointError, INDEX_FILE, MODEL_FILE, has_own_head, load_weights};
use plimsoll_train::{Engine, TrainError};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const TABLE: &str = "transformer.wte.weight";
const NORM: &str = "transformer.h.0.ln_1.weight";
const SHARDS: usize = 3;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// A folder with one file of these tensors.
fn single(tensors: &Tensors) -> TempDir {
    let folder = folder();
    fs::write(folder.path().join(MODEL_FILE), serialize(tensors)).expect("a folder to write to");
    folder
}

/// The engine's weights, in the order of its parameters.
fn weights(engine: &Engine) -> Vec<Vec<u8>> {
    engine.parameters().iter().map(|p| engine.view(p.tensor).expect("a weight").into_owned()).collect()
}

/// The weights of an engine after loading a folder.
fn loaded(engine: &mut Engine, folder: &Path) -> Vec<Vec<u8>> {
    engine.initialize(1).expect("weights can be written");
    load_weights(engine, folder).expect("weights of this model");
    weights(engine)
}

/// The error of loading a folder.
fn refused(engine: &mut Engine, folder: &Path) -> CheckpointError {
    match load_weights(engine, folder).expect_err("not weights of this model") {
        TrainError::Checkpoint(error) => error,
        other => panic!("{other:?}"),
    }
}

/// Panics unless loading fails with this variant, and its message has all these words.
macro_rules! check_refused {
    ($engine:expr, $folder:expr, $variant:ident, $words:expr) => {{
        let error = refused($engine, $folder);
        assert!(matches!(error, CheckpointError::$variant { .. }), "{error:?}");
        let message = error.to_string();
        assert!($words.iter().all(|word: &&str| message.contains(*word)), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }};
}

#[test]
fn shards_load_like_one_file() {
    let mut engine = Setup::default().engine();
    let right = right_tensors(&engine);
    let expected = loaded(&mut engine, single(&right).path());
    for count in [1, 2, 3, right.len()] {
        let sharded = folder();
        write_shards(sharded.path(), &right, count);
        assert!(loaded(&mut engine, sharded.path()) == expected, "{count} shards");
    }
    // If both exist, the single file is read.
    let both = single(&right);
    write_index(both.path(), &json!("not an index"));
    assert!(loaded(&mut engine, both.path()) == expected);
}

/// In half precision, in one file or several: the loaded values are the stored ones, widened.
#[test]
fn halves_are_widened() {
    let mut engine = Setup::default().engine();
    let right = right_tensors(&engine);
    // The upper half of a single is a bfloat16.
    let upper = |bytes: &[u8]| bytes.as_chunks::<4>().0.iter().flat_map(|b| [b[2], b[3]]).collect::<Vec<_>>();
    let cut = |bytes: &[u8]| bytes.as_chunks::<4>().0.iter().flat_map(|b| [0, 0, b[2], b[3]]).collect::<Vec<_>>();
    let halves = right.iter().map(|(name, (_, shape, bytes))| {
        let tensor = (Dtype::BF16, shape.clone(), upper(bytes));
        (name.clone(), tensor)
    });
    let halves = halves.collect::<Tensors>();
    let expected = engine.parameters().iter().map(|p| cut(&right[engine.name(p.tensor)].2)).collect::<Vec<_>>();
    assert!(loaded(&mut engine, single(&halves).path()) == expected);
    let sharded = folder();
    write_shards(sharded.path(), &halves, SHARDS);
    assert!(loaded(&mut engine, sharded.path()) == expected);
    // 1.5 in both formats.
    for (dtype, bytes) in [(Dtype::F16, vec![0x00, 0x3e]), (Dtype::BF16, vec![0xc0, 0x3f])] {
        let mut mixed = right.clone();
        mixed.insert(NORM.to_owned(), (dtype, vec![24], bytes.repeat(24)));
        loaded(&mut engine, single(&mixed).path());
        let norm = engine.parameters().iter().find(|p| engine.name(p.tensor) == NORM).expect("a norm").tensor;
        assert_eq!(engine.view(norm).expect("a weight")[..], 1.5f32.to_le_bytes().repeat(24), "{dtype:?}");
    }
}

/// Ignores the tensors that `transformers` ignores: those of google-t5/t5-small to t5-3b, and of Llama in older
/// releases.
#[test]
fn a_t5_encdec_bias() {
    for (family, ignored) in [
        ("T5", "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"),
        ("T5 v1.1 with R-Drop", "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"),
        ("Llama", "model.layers.1.self_attn.rotary_emb.inv_freq"),
        ("GPT-2", "transformer.h.1.attn.masked_bias"),
    ] {
        let setup = families().into_iter().find(|(name, _)| *name == family).expect("a family").1;
        let mut engine = setup.engine();
        let right = right_tensors(&engine);
        let expected = loaded(&mut engine, single(&right).path());
        let mut more = right.clone();
        more.insert(ignored.to_owned(), zeros(Dtype::F32, &[8, 3]));
        assert!(loaded(&mut engine, single(&more).path()) == expected, "{family}");
    }
}

/// The embedding may be stored only under the name of the tied head, and in another shard.
#[test]
fn a_tied_head_stands_for_the_embedding() {
    let mut engine = Setup::default().engine();
    let right = right_tensors(&engine);
    let expected = loaded(&mut engine, single(&right).path());
    let mut tied = right.clone();
    tied.insert("lm_head.weight".to_owned(), right[TABLE].clone());
    let sharded = folder();
    write_shards(sharded.path(), &tied, SHARDS);
    assert!(loaded(&mut engine, sharded.path()) == expected);
    tied.remove(TABLE);
    assert!(loaded(&mut engine, single(&tied).path()) == expected);
}

/// `transformers` 5 writes the same configuration with and without an untied head, so the weights decide.
#[test]
fn a_t5_saved_by_transformers5() {
    let setup = families().into_iter().find(|(name, _)| *name == "T5").expect("a family").1;
    let engine = setup.engine();
    let mut tensors = right_tensors(&engine);
    let has_own = |tensors: &Tensors| has_own_head(single(tensors).path());
    assert!(!has_own(&tensors));
    let same = tensors["shared.weight"].clone();
    tensors.insert("lm_head.weight".to_owned(), same.clone());
    assert!(!has_own(&tensors), "the embedding under another name");
    tensors.insert("lm_head.weight".to_owned(), zeros(Dtype::F32, &same.1));
    assert!(has_own(&tensors));
    let sharded = folder();
    write_shards(sharded.path(), &tensors, SHARDS);
    assert!(has_own_head(sharded.path()));
    tensors.remove("shared.weight");
    assert!(!has_own(&tensors), "the embedding's only name");
    assert!(!has_own_head(folder().path()), "no weights");
}

#[test]
fn each_misfit_has_its_own_name() {
    let mut engine = Setup::default().engine();
    let right = right_tensors(&engine);
    let mut check = |change: &dyn Fn(&mut Tensors)| {
        let mut tensors = right.clone();
        change(&mut tensors);
        let folder = single(&tensors);
        refused(&mut engine, folder.path())
    };
    let lacks = check(&|tensors| drop(tensors.remove(NORM)));
    assert!(matches!(&lacks, CheckpointError::MissingTensor { tensor, .. } if tensor == NORM), "{lacks:?}");
    let extra = check(&|tensors| {
        for layer in 2..5 {
            tensors.insert(format!("transformer.h.{layer}.ln_1.weight"), zeros(Dtype::F32, &[24]));
        }
    });
    let one_line = "has a tensor `transformer.h.2.ln_1.weight` and 2 more that the model does not have";
    assert!(extra.to_string().ends_with(one_line), "{extra}");
    let renamed = check(&|tensors| {
        let names = tensors.keys().map(|name| name.replace("transformer.", "bert.")).collect::<Vec<_>>();
        *tensors = names.into_iter().zip(std::mem::take(tensors).into_values()).collect();
    });
    let OtherNames { found, expected } = other_names(&renamed);
    assert_eq!((found, expected), (Some("bert.h.0.attn.c_attn.bias"), TABLE));
    let nothing = check(&|tensors| tensors.clear());
    assert_eq!(other_names(&nothing).found, None);
    let flat = check(&|tensors| drop(tensors.insert(NORM.to_owned(), zeros(Dtype::F16, &[4, 6]))));
    assert!(flat.to_string().ends_with(&format!("`{NORM}` is F16 [4, 6], but the model needs F32 [24]")), "{flat}");
}

struct OtherNames<'e> {
    found: Option<&'e str>,
    expected: &'e str,
}

fn other_names(error: &CheckpointError) -> OtherNames<'_> {
    match error {
        CheckpointError::OtherFamily { found, expected, .. } => OtherNames { found: found.as_deref(), expected },
        other => panic!("{other:?}"),
    }
}

#[test]
fn unsupported_dtypes_are_named() {
    let mut engine = Setup::default().engine();
    let right = right_tensors(&engine);
    for (dtype, said) in [
        (Dtype::F8_E4M3, "F8_E4M3 [24]"),
        (Dtype::F8_E5M2, "F8_E5M2 [24]"),
        (Dtype::F64, "F64 [24]"),
        (Dtype::U8, "U8 [24]"),
    ] {
        let mut tensors = right.clone();
        tensors.insert(NORM.to_owned(), zeros(dtype, &[24]));
        check_refused!(&mut engine, single(&tensors).path(), UnsupportedDtype, [NORM, said, "F32, F16 and BF16"]);
    }
    // A dtype that the format does not define.
    let folder = single(&right);
    let path = folder.path().join(MODEL_FILE);
    fs::write(&path, with_header(&serialize(&right), |header| header[NORM]["dtype"] = json!("I4"))).expect("a file");
    check_refused!(&mut engine, folder.path(), UnsupportedDtype, [NORM, "I4 [24]"]);
    // Four-bit weights packed into words have another name.
    for name in ["h.0.attn.c_attn.qweight", "h.0.attn.c_attn.weight_packed"] {
        let bare = right.iter().map(|(name, tensor)| (name.replacen("transformer.", "", 1), tensor.clone()));
        let mut tensors = bare.collect::<Tensors>();
        tensors.remove("h.0.attn.c_attn.weight").expect("a matrix");
        tensors.insert(name.to_owned(), zeros(Dtype::I32, &[24, 9]));
        let words = [name, "I32 [24, 9] of packed integers"];
        check_refused!(&mut engine, single(&tensors).path(), UnsupportedDtype, words);
    }
}

/// A folder of shards, and its index.
fn sharded(engine: &Engine) -> (TempDir, Value) {
    let folder = folder();
    let index = write_shards(folder.path(), &right_tensors(engine), SHARDS);
    (folder, index)
}

#[test]
fn a_missing_shard_is_named_with_its_tensors() {
    let mut engine = Setup::default().engine();
    let (folder, index) = sharded(&engine);
    let file = shard_name(1, SHARDS);
    fs::remove_file(folder.path().join(&file)).expect("a shard");
    let inside = index["weight_map"].as_object().expect("a map").iter().filter(|(_, f)| **f == file);
    let inside = inside.map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let more = format!("and {} more", inside.len() - 1);
    check_refused!(&mut engine, folder.path(), MissingShard, [file.as_str(), "is missing", &inside[0], &more]);
}

#[test]
fn damaged_shards_are_named() {
    let mut engine = Setup::default().engine();
    let (folder, _) = sharded(&engine);
    let path = folder.path().join(shard_name(2, SHARDS));
    let whole = fs::read(&path).expect("a shard");
    for length in [0, 7, 100, whole.len() - 1] {
        fs::write(&path, &whole[..length]).expect("a shard");
        check_refused!(&mut engine, folder.path(), Damaged, ["model-00003-of-00003.safetensors"]);
    }
    fs::write(&path, b"version https://git-lfs.github.com/spec/v1").expect("a shard");
    let words = ["model-00003-of-00003.safetensors", "Git LFS pointer", "`git lfs pull`"];
    check_refused!(&mut engine, folder.path(), Io, words);
    // A valid file of other tensors: the index lists tensors that are not there.
    fs::copy(folder.path().join(shard_name(0, SHARDS)), &path).expect("a shard");
    check_refused!(&mut engine, folder.path(), MissingTensor, ["model-00003-of-00003.safetensors"]);
    fs::write(&path, whole).expect("a shard");
    load_weights(&mut engine, folder.path()).expect("all is well again");
}

#[test]
fn an_inconsistent_index_is_refused() {
    let mut engine = Setup::default().engine();
    let (folder, index) = sharded(&engine);
    let write = |text: &str| fs::write(folder.path().join(INDEX_FILE), text).expect("an index");
    for text in ["", "{", "[]", "null", "{}", r#"{"weight_map": 7}"#, r#"{"weight_map": {"a": 7}}"#, "\u{1}"] {
        write(text);
        check_refused!(&mut engine, folder.path(), BadIndex, [INDEX_FILE, "is not a shard index"]);
    }
    fs::write(folder.path().join(INDEX_FILE), b"\xff\xfe{").expect("an index");
    check_refused!(&mut engine, folder.path(), BadIndex, [INDEX_FILE]);
    write(r#"{"weight_map": {}}"#);
    check_refused!(&mut engine, folder.path(), OtherFamily, [INDEX_FILE]);
    let absolute = folder.path().join(shard_name(0, SHARDS));
    for outside in ["../model.safetensors", "..", "", ".", "a/../../b", "/etc/passwd", &absolute.to_string_lossy()] {
        let mut index = index.clone();
        index["weight_map"][NORM] = json!(outside);
        write_index(folder.path(), &index);
        check_refused!(&mut engine, folder.path(), ShardOutside, [INDEX_FILE, NORM, "outside its folder"]);
    }
    // A tensor missing from the index is not searched for.
    let mut index = index;
    index["weight_map"].as_object_mut().expect("a map").remove(NORM);
    write_index(folder.path(), &index);
    check_refused!(&mut engine, folder.path(), MissingTensor, [INDEX_FILE, NORM]);
}

/// Any text as an index, and random damage to a valid one.
#[test]
fn no_index_makes_loading_panic() {
    let engine = RefCell::new(Setup::default().engine());
    let (folder, index) = sharded(&engine.borrow());
    let right = index.to_string().into_bytes();
    let hits = prop::collection::vec((0..right.len(), any::<u8>()), 1..4);
    let hit = hits.prop_map(move |hits| {
        let mut text = right.clone();
        hits.into_iter().for_each(|(place, byte)| text[place] = byte);
        text
    });
    let any_index = prop_oneof![prop::collection::vec(any::<u8>(), 0..60), hit];
    let result = TestRunner::default().run(&any_index, |text| {
        fs::write(folder.path().join(INDEX_FILE), text).expect("an index");
        let _ = load_weights(&mut engine.borrow_mut(), folder.path());
        Ok(())
    });
    assert!(result.is_ok(), "{result:?}");
}
