//! Whole files: names, orders of weights, keys, adapters, and what a failure leaves.

use crate::reader::Read;
use plimsoll_gguf::{AdapterFileType, Encoding, FileType, GgufError, ModelParts, TokenizerParts, adapter, model};
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::{Adapter, Adapters, Graph};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Shapes by name.
type Shapes = BTreeMap<String, Vec<usize>>;

/// A tokenizer of the bytes 0 to 7.
pub fn tokenizer() -> Value {
    let vocab = (0..8).map(|id| (char::from(b'a' + id).to_string(), json!(id))).collect::<serde_json::Map<_, _>>();
    let added = json!([{"id": 7, "content": "<end>", "special": true}]);
    let splitter = json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true});
    let mut json =
        json!({"added_tokens": added, "normalizer": null, "pre_tokenizer": splitter, "post_processor": null});
    json["model"] = json!({"type": "BPE", "vocab": vocab, "merges": [["a", "b"]]});
    json
}

/// A model of one block with 8 ids.
pub fn config(changes: &Value) -> ModelConfig {
    let mut keys = json!({
        "model_type": "llama", "vocab_size": 8, "hidden_size": 8, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 16,
        "rms_norm_eps": 1e-5, "attention_bias": true,
    });
    keys.as_object_mut().expect("an object").extend(changes.as_object().expect("an object").clone());
    ModelConfig::from_json(&keys.to_string()).expect("a configuration")
}

/// The number of a tensor's element: of every element of every tensor another one.
fn number(name: &str, place: usize) -> f32 {
    name.bytes().map(u32::from).sum::<u32>() as f32 + place as f32 / 256.0
}

fn numbers(name: &str, places: impl IntoIterator<Item = usize>) -> Vec<f32> {
    places.into_iter().map(|place| number(name, place)).collect()
}

fn write_weights(path: &Path, shapes: &Shapes) {
    let bytes = shapes.iter().map(|(name, shape)| {
        let numbers = numbers(name, 0..shape.iter().product());
        (name, shape, numbers.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<_>>())
    });
    let bytes = bytes.collect::<Vec<_>>();
    let views = bytes.iter().map(|(name, shape, bytes)| {
        (*name, TensorView::new(Dtype::F32, shape.to_vec(), bytes).expect("bytes of this shape"))
    });
    fs::write(path, safetensors::serialize(views, None).expect("a file in memory")).expect("written");
}

/// The weights of a model in a folder.
fn weights(config: &ModelConfig) -> tempfile::TempDir {
    let mut graph = Graph::default();
    config.declare(&mut graph);
    let mut shapes = Shapes::new();
    for parameter in &graph.parameters {
        let tensor = &graph[parameter.tensor];
        if parameter.stored.is_empty() {
            shapes.insert(tensor.name.to_string(), tensor.ty.shape.to_vec());
        }
        shapes.extend(parameter.stored.iter().map(|piece| (piece.tensor.to_string(), piece.shape.clone())));
    }
    let folder = tempfile::tempdir().expect("a folder");
    write_weights(&folder.path().join("model.safetensors"), &shapes);
    folder
}

fn parts(json: &Value) -> ModelParts {
    let tokenizer = TokenizerParts { json: json.to_string(), end: Some(7), ..TokenizerParts::default() };
    ModelParts { name: "tiny".to_owned(), tokenizer, pooling: None }
}

/// The file of a model with these weights.
pub fn exported(config: &ModelConfig, tokenizer: &Value, file: FileType) -> Result<Read, GgufError> {
    let folder = weights(config);
    let out = folder.path().join("tiny.gguf");
    let contents = model(config, folder.path(), false, &parts(tokenizer), file)?;
    contents.write(&out)?;
    let bytes = fs::read(&out).expect("a file");
    assert_eq!(bytes.len() as u64, contents.bytes().0, "the size is known before");
    Ok(Read::of(&bytes))
}

#[test]
fn a_llama_has_its_rows_in_the_order_that_llama_cpp_rotates() {
    let read = exported(&config(&json!({})), &tokenizer(), FileType::F32).expect("a file");
    let of = |name: &str| format!("model.layers.0.self_attn.{name}");
    // Two heads of four channels: of each, 0 and 2 are rotated together, and 1 and 3.
    let order = [0, 2, 1, 3, 4, 6, 5, 7];
    let rows = |order: &[usize]| order.iter().flat_map(|row| row * 8..row * 8 + 8).collect::<Vec<_>>();
    assert_eq!(read.singles("blk.0.attn_q.weight"), numbers(&of("q_proj.weight"), rows(&order)));
    assert_eq!(read.singles("blk.0.attn_q.bias"), numbers(&of("q_proj.bias"), order));
    assert_eq!(read.singles("blk.0.attn_k.weight"), numbers(&of("k_proj.weight"), rows(&order[..4])));
    assert_eq!(read.singles("blk.0.attn_v.weight"), numbers(&of("v_proj.weight"), 0..32));
    assert_eq!(read.singles("blk.0.ffn_norm.weight"), numbers("model.layers.0.post_attention_layernorm.weight", 0..8));
    assert_eq!(read.tensors["blk.0.ffn_down.weight"].0, [32, 8], "the innermost extent is first");
    let key = |name: &str| read.keys[name].as_str();
    assert_eq!([key("general.architecture"), key("general.name"), key("general.file_type")], ["llama", "tiny", "0"]);
    for (name, value) in [
        ("context_length", "16"),
        ("embedding_length", "8"),
        ("block_count", "1"),
        ("feed_forward_length", "32"),
        ("attention.head_count", "2"),
        ("attention.head_count_kv", "1"),
        ("attention.key_length", "4"),
        ("attention.layer_norm_rms_epsilon", "0.00001"),
        ("rope.dimension_count", "4"),
        ("rope.freq_base", "10000"),
        ("vocab_size", "8"),
    ] {
        assert_eq!(key(&format!("llama.{name}")), value, "{name}");
    }
}

#[test]
fn a_gpt2_is_transposed_and_a_gemma_has_its_norms_plus_one() {
    let gpt2 = json!({"model_type": "gpt2", "vocab_size": 8, "n_positions": 4, "n_embd": 8, "n_layer": 1, "n_head": 2});
    let gpt2 = ModelConfig::from_json(&gpt2.to_string()).expect("a configuration");
    let read = exported(&gpt2, &tokenizer(), FileType::F32).expect("a file");
    let columns = (0..32).flat_map(|output| (0..8).map(move |input| input * 32 + output));
    assert_eq!(read.singles("blk.0.ffn_up.weight"), numbers("transformer.h.0.mlp.c_fc.weight", columns));
    let gemma = config(&json!({"model_type": "gemma", "attention_bias": false, "hidden_act": "gelu_pytorch_tanh"}));
    let read = exported(&gemma, &tokenizer(), FileType::F32).expect("a file");
    let plus_one = numbers("model.norm.weight", 0..8).into_iter().map(|weight| weight + 1.0).collect::<Vec<_>>();
    assert_eq!(read.singles("output_norm.weight"), plus_one);
}

#[test]
fn experts_are_stacked() {
    let mixture =
        json!({"model_type": "mixtral", "num_local_experts": 3, "num_experts_per_tok": 2, "attention_bias": false});
    let read = exported(&config(&mixture), &tokenizer(), FileType::F32).expect("a file");
    let list = "model.layers.0.block_sparse_moe";
    let all = |layer: &str| {
        let experts = (0..3).map(|expert| numbers(&format!("{list}.experts.{expert}.{layer}.weight"), 0..256));
        experts.collect::<Vec<_>>().concat()
    };
    for (name, layer) in [("gate", "w1"), ("down", "w2"), ("up", "w3")] {
        assert_eq!(read.singles(&format!("blk.0.ffn_{name}_exps.weight")), all(layer), "{name}");
    }
    assert_eq!(read.tensors["blk.0.ffn_down_exps.weight"].0, [32, 8, 3]);
    assert_eq!(read.singles("blk.0.ffn_gate_inp.weight"), numbers(&format!("{list}.gate.weight"), 0..24));
}

#[test]
fn matrices_have_the_encoding_of_the_file_on_any_number_of_threads() {
    let config = config(&json!({"hidden_size": 256, "num_attention_heads": 64}));
    let folder = weights(&config);
    let written = |file: FileType, threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        let out = folder.path().join("tiny.gguf");
        let contents = model(&config, folder.path(), false, &parts(&tokenizer()), file).expect("a file");
        pool.install(|| contents.write(&out)).expect("written");
        fs::read(&out).expect("a file")
    };
    for (file, encoding) in
        [(FileType::F16, Encoding::F16), (FileType::Q8_0, Encoding::Q8_0), (FileType::Q4KM, Encoding::Q4K)]
    {
        let bytes = written(file, 1);
        assert!(bytes == written(file, 3), "{}", file.name());
        let read = Read::of(&bytes);
        let (extents, _, found) = &read.tensors["blk.0.attn_q.weight"];
        assert_eq!(extents[..], [256, 256]);
        let mut expected = vec![0; encoding.block()[1] * (256 * 256 / encoding.block()[0])];
        let order = (0..256).map(|row| row / 4 * 4 + [0, 2, 1, 3][row % 4]);
        let name = "model.layers.0.self_attn.q_proj.weight";
        encoding.encode(&numbers(name, order.flat_map(|row| row * 256..row * 256 + 256)), &mut expected);
        assert!(found[..expected.len()] == expected, "{}", file.name());
    }
}

#[test]
fn adapters_have_one_alpha_and_rows_in_llama_cpps_order() {
    let config = config(&json!({}));
    let folder = tempfile::tempdir().expect("a folder");
    let of = |layer: &str, matrix: &str| format!("base_model.model.{layer}.lora_{matrix}.weight");
    let [queries, down] = ["model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"];
    let shapes = [(queries, [2, 8], [8, 2]), (down, [1, 32], [8, 1])];
    let shapes =
        shapes.into_iter().flat_map(|(layer, a, b)| [(of(layer, "A"), a.to_vec()), (of(layer, "B"), b.to_vec())]);
    write_weights(&folder.path().join("adapter_model.safetensors"), &shapes.collect());
    let layers = [(queries, Adapter { rank: 2, scale: 2.0 }), (down, Adapter { rank: 1, scale: 3.0 })];
    let layers = layers.map(|(name, adapter)| (name.to_owned(), adapter)).into();
    let mut adapters = Adapters { layers, ..Adapters::default() };
    let out = folder.path().join("adapters.gguf");
    let made = |adapters: &Adapters| adapter(&config, adapters, folder.path(), false, "tiny", AdapterFileType::F32);
    made(&adapters).expect("a file").write(&out).expect("written");
    let read = Read::of(&fs::read(&out).expect("a file"));
    assert_eq!([&read.keys["general.type"], &read.keys["adapter.type"]], ["adapter", "lora"]);
    let alpha: f32 = read.keys["adapter.lora.alpha"].parse().expect("a number");
    let order = [0, 2, 1, 3, 4, 6, 5, 7].into_iter().flat_map(|row| [2 * row, 2 * row + 1]);
    let found = |name: &str| read.singles(name);
    // A factor of alpha over the rank, times what B has of it, is the layer's.
    let check = |name: &str, expected: Vec<f32>, rank: f32, scale: f32| {
        for (found, expected) in found(name).into_iter().zip(expected) {
            assert!((found * alpha / rank - expected * scale).abs() < 1e-2, "{name}: {found}, {expected}");
        }
    };
    check("blk.0.attn_q.weight.lora_b", numbers(&of(queries, "B"), order), 2.0, 2.0);
    check("blk.0.ffn_down.weight.lora_b", numbers(&of(down, "B"), 0..8), 1.0, 3.0);
    assert_eq!(found("blk.0.ffn_down.weight.lora_a"), numbers(&of(down, "A"), 0..32));

    adapters.saved.insert("lm_head.weight".to_owned());
    assert!(matches!(made(&adapters), Err(GgufError::Adapters { .. })));
}

#[test]
fn a_failure_leaves_what_was_there() {
    let config = config(&json!({}));
    let folder = weights(&config);
    let contents = model(&config, folder.path(), false, &parts(&tokenizer()), FileType::F16).expect("a file");
    let out = folder.path().join("tiny.gguf");
    fs::write(&out, "older").expect("written");
    let missing = contents.write(&folder.path().join("none/tiny.gguf"));
    assert!(matches!(missing, Err(GgufError::Io { .. })), "{missing:?}");
    let is_folder = contents.write(folder.path());
    assert!(is_folder.is_err(), "a folder is not replaced");
    // The kernel's file systems have no space.
    #[cfg(target_os = "linux")]
    assert!(matches!(contents.write(Path::new("/proc/self/tiny.gguf")), Err(GgufError::NoRoom { .. })));
    assert_eq!(fs::read(&out).expect("a file"), b"older");
    let names = fs::read_dir(folder.path()).expect("a folder").count();
    assert_eq!(names, 2, "no temporary file is left");
    contents.write(&out).expect("written");
    assert_eq!(Read::of(&fs::read(&out).expect("a file")).keys["general.file_type"], "1");
}

/// gpt-oss is published in MXFP4, whose numbers share a power of two in groups of 32 inputs; gates and ups alternate.
#[test]
fn packed_experts_are_unpacked() {
    const NUMBERS: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let mixture = json!({
        "model_type": "gpt_oss", "hidden_size": 32, "intermediate_size": 32, "num_local_experts": 2, "num_experts_per_tok": 1,
        "swiglu_limit": 7.0, "sliding_window": 8, "layer_types": ["sliding_attention"],
    });
    let config = config(&mixture);
    let folder = weights(&config);
    let path = folder.path().join("model.safetensors");
    let file = fs::read(&path).expect("weights");
    let archive = safetensors::SafeTensors::deserialize(&file).expect("tensors");
    let list = "model.layers.0.mlp.experts";
    let [blocks, scales] =
        [2 * 64 * 16, 2 * 64].map(|count: usize| (0..count).map(|at| (at * 37 % 119) as u8).collect::<Vec<_>>());
    let mut views =
        archive.tensors().into_iter().filter(|(name, _)| !name.ends_with("gate_up_proj")).collect::<Vec<_>>();
    for (end, shape, bytes) in [("blocks", vec![2, 64, 1, 16], &blocks), ("scales", vec![2, 64, 1], &scales)] {
        let view = TensorView::new(Dtype::U8, shape, bytes).expect("bytes of this shape");
        views.push((format!("{list}.gate_up_proj_{end}"), view));
    }
    let packed = safetensors::serialize(views, None).expect("a file in memory");
    fs::write(&path, packed).expect("written");
    let out = folder.path().join("tiny.gguf");
    model(&config, folder.path(), false, &parts(&tokenizer()), FileType::F32)
        .expect("a file")
        .write(&out)
        .expect("written");
    let read = Read::of(&fs::read(&out).expect("a file"));
    let number = |expert: usize, output: usize, input: usize| {
        let row = expert * 64 + output;
        let code = blocks[row * 16 + input / 2] >> (input % 2 * 4) & 15;
        let sign = if code >= 8 { -1.0 } else { 1.0 };
        sign * NUMBERS[usize::from(code & 7)] * 2_f32.powi(i32::from(scales[row]) - 127)
    };
    for (first, name) in ["gate", "up"].into_iter().enumerate() {
        let rows = (0..2).flat_map(|expert| (0..32).map(move |row| (expert, 2 * row + first)));
        let expected = rows.flat_map(|(expert, output)| (0..32).map(move |input| (expert, output, input)));
        let expected = expected.map(|(expert, output, input)| number(expert, output, input)).collect::<Vec<_>>();
        assert_eq!(read.singles(&format!("blk.0.ffn_{name}_exps.weight")), expected, "{name}");
    }
}
