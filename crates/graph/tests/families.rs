//! The families' sizes and configurations: published parameter counts, and every key that requests an unsupported
//! variant.

use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::models::description::{Decoder, Description};
use plimsoll_graph::ops::{RopeScaling, Rotary, inverse_frequencies};
use plimsoll_graph::{Graph, Op, Optimizer, ProgramKind, SampleShape, TrainShape, build_sampling, build_training};
use serde_json::{Value, json};
use std::collections::HashMap;

fn parameters(model: &ModelConfig) -> u64 {
    let mut graph = Graph::default();
    model.declare(&mut graph);
    graph.parameter_count()
}

fn decoder(model: &ModelConfig) -> Decoder {
    let Description::Decoder(decoder) = model.describe() else { unreachable!("a decoder") };
    decoder
}

/// Source: the sum of the tensors' sizes in each model's safetensors on the Hugging Face hub.
#[test]
fn parameter_counts_equal_the_published_ones() {
    for (name, published) in [
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("smollm2-135m", 134_515_008),
        ("smollm2-360m", 361_821_120),
        ("smollm2-1.7b", 1_711_376_384),
        ("tinyllama-1.1b", 1_100_048_384),
        ("open-llama-3b", 3_426_473_600),
        ("open-llama-7b", 6_738_415_616),
        ("open-llama-13b", 13_015_864_320),
        ("llama-7b", 6_738_415_616),
        ("llama-13b", 13_015_864_320),
        ("llama-30b", 32_528_943_616),
        ("llama-65b", 65_285_660_672),
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-13b", 13_015_864_320),
        ("llama-2-70b", 68_976_648_192),
        ("codellama-7b", 6_738_546_688),
        ("codellama-13b", 13_016_028_160),
        ("codellama-34b", 33_743_970_304),
        ("codellama-7b-python", 6_738_415_616),
        ("codellama-13b-python", 13_015_864_320),
        ("r1-distill-qwen-1.5b", 1_777_088_000),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.2-3b", 3_212_749_824),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("llama-3.1-405b", 405_853_388_800),
        ("llama-3.3-70b", 70_553_706_496),
        ("mistral-7b", 7_241_732_096),
        ("mistral-7b-v0.2", 7_241_732_096),
        ("mistral-7b-v0.3", 7_248_023_552),
        ("qwen2-0.5b", 494_032_768),
        ("qwen2-1.5b", 1_543_714_304),
        ("qwen2-7b", 7_615_616_512),
        ("qwen2-72b", 72_706_203_648),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("qwen2.5-3b", 3_085_938_688),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen2.5-14b", 14_770_033_664),
        ("qwen2.5-32b", 32_763_876_352),
        ("qwen2.5-72b", 72_706_203_648),
        ("mistral-nemo-12b", 12_247_782_400),
        ("ministral-8b", 8_019_808_256),
        ("mistral-small-24b", 23_572_403_200),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-1.7b", 1_720_574_976),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-14b", 14_768_307_200),
        ("qwen3-32b", 32_762_123_264),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("olmoe-1b-7b", 6_919_161_856),
        ("mixtral-8x7b", 46_702_792_704),
        ("gpt-oss-20b", 20_914_757_184),
        ("gpt-oss-120b", 116_829_156_672),
        ("gemma-2-2b", 2_614_341_888),
        ("gemma-2-9b", 9_241_705_984),
        ("gemma-2-27b", 27_227_128_320),
        ("gemma-3-270m", 268_098_176),
        ("gemma-3-1b", 999_885_952),
        ("phi-3-mini-4k", 3_821_079_552),
        ("phi-4", 14_659_507_200),
        ("smollm3-3b", 3_075_098_624),
        ("olmo-2-1b", 1_484_916_736),
        ("olmo-2-7b", 7_298_617_344),
        ("olmo-2-13b", 13_716_198_400),
        ("olmo-2-32b", 32_234_279_936),
        ("granite-3.3-2b", 2_533_539_840),
        ("granite-3.3-8b", 8_170_864_640),
        ("t5-small", 60_506_624),
        ("t5-base", 222_903_552),
        ("t5-large", 737_668_096),
        ("t5-xl", 2_851_598_336),
        ("flan-t5-small", 76_961_152),
        ("flan-t5-base", 247_577_856),
        ("flan-t5-large", 783_150_080),
        ("flan-t5-xl", 2_849_757_184),
        ("flan-t5-xxl", 11_135_332_352),
        ("mt5-small", 300_176_768),
        ("mt5-base", 582_401_280),
        ("mt5-large", 1_229_581_312),
        ("mt5-xl", 3_742_619_648),
        ("byt5-small", 299_637_760),
        ("byt5-base", 581_653_248),
        ("byt5-large", 1_228_183_552),
        // Without BERT's pooler, which has C² + C more.
        ("minilm-l6", 22_713_216 - 147_840),
        ("bge-small", 33_360_000 - 147_840),
        ("bert-base", 109_482_240 - 590_592),
        ("bert-large", 335_141_888 - 1_049_600),
        ("modernbert-base", 149_014_272),
        ("modernbert-large", 394_781_696),
    ] {
        let model = ModelConfig::preset(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(parameters(&model), published, "{name}");
        assert_eq!(model.parameters(), u128::from(published), "{name}, without a graph");
    }
}

/// Values that parameter counts do not cover. Source: litgpt 0.5.13, `config.py`; Llama 1: EasyLM,
/// `LLAMA_STANDARD_CONFIGS`; the base models of Qwen2.5: torchtune, `qwen2_5/_model_builders.py`; Qwen2: NeMo,
/// `qwen2.py`, and the models' config.json.
#[test]
fn positions_and_constants_equal_the_published_ones() {
    let llama3 = |factor| RopeScaling::Llama3 {
        factor,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_positions: 8192,
    };
    let mut left = ModelConfig::preset_names();
    for (names, positions, epsilon, theta, scaling) in [
        ("smollm2-135m smollm2-360m", 8192, 1e-5, 1e5, RopeScaling::None),
        ("smollm2-1.7b", 8192, 1e-5, 130_000.0, RopeScaling::None),
        ("tinyllama-1.1b", 2048, 1e-5, 1e4, RopeScaling::None),
        ("open-llama-3b open-llama-7b open-llama-13b", 2048, 1e-6, 1e4, RopeScaling::None),
        ("llama-7b llama-13b llama-30b", 2048, 1e-6, 1e4, RopeScaling::None),
        ("llama-65b", 2048, 1e-5, 1e4, RopeScaling::None),
        ("llama-2-7b llama-2-13b llama-2-70b", 4096, 1e-5, 1e4, RopeScaling::None),
        ("codellama-7b-python codellama-13b-python", 16_384, 1e-5, 1e6, RopeScaling::None),
        ("codellama-7b codellama-13b codellama-34b", 16_384, 1e-5, 1e6, RopeScaling::None),
        ("llama-3-8b llama-3-70b", 8192, 1e-5, 5e5, RopeScaling::None),
        ("llama-3.1-8b llama-3.1-70b llama-3.1-405b llama-3.3-70b", 131_072, 1e-5, 5e5, llama3(8.0)),
        ("llama-3.2-1b llama-3.2-3b", 131_072, 1e-5, 5e5, llama3(32.0)),
        ("mistral-7b", 32_768, 1e-5, 1e4, RopeScaling::None),
        ("mistral-7b-v0.2 mistral-7b-v0.3", 32_768, 1e-5, 1e6, RopeScaling::None),
        ("mistral-nemo-12b", 131_072, 1e-5, 1e6, RopeScaling::None),
        ("ministral-8b mistral-small-24b", 32_768, 1e-5, 1e8, RopeScaling::None),
        ("qwen2-0.5b qwen2-1.5b qwen2-7b", 131_072, 1e-6, 1e6, RopeScaling::None),
        ("qwen2-72b", 131_072, 1e-5, 1e6, RopeScaling::None),
        ("qwen2.5-0.5b qwen2.5-3b", 32_768, 1e-6, 1e6, RopeScaling::None),
        ("qwen2.5-1.5b qwen2.5-7b", 131_072, 1e-6, 1e6, RopeScaling::None),
        ("qwen2.5-14b qwen2.5-32b qwen2.5-72b", 131_072, 1e-5, 1e6, RopeScaling::None),
        ("r1-distill-qwen-1.5b", 131_072, 1e-6, 1e4, RopeScaling::None),
    ] {
        for name in names.split(' ') {
            let config = decoder(&ModelConfig::preset(name).expect("a preset"));
            let attention = &config.blocks[0].attention;
            let rotary = attention.rotary.clone().expect("rotary positions");
            let found = (config.max_positions, config.last_norm.epsilon, rotary.base, rotary.scaling);
            assert_eq!(found, (positions, epsilon, theta, scaling.clone().into()), "{name}");
            let window =
                [("mistral-7b", 4096), ("ministral-8b", 32_768)].iter().find(|(windowed, _)| *windowed == name);
            assert_eq!(attention.window, window.map(|(_, window)| *window), "{name}");
            let small =
                ["smollm2", "llama-3.2", "qwen2-0.5b", "qwen2-1.5b", "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b"];
            assert_eq!(config.head.is_none(), small.iter().any(|small| name.starts_with(small)), "{name}");
            let biases = attention.inputs.layers().iter().map(|layer| layer.bias);
            assert!(biases.eq([name.contains("qwen"); 3]), "{name}");
            assert!(!attention.output.bias && !config.blocks[0].feed_forward.down.bias, "{name}");
            left.retain(|other| *other != name);
        }
    }
    left.retain(|name| {
        let model = ModelConfig::preset(name).expect("a preset");
        ["llama", "mistral", "qwen2"].contains(&model.model_type())
    });
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn every_preset_survives_its_config_json() {
    for name in ModelConfig::preset_names() {
        let model = ModelConfig::preset(name).expect("a listed name");
        model.validate().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(ModelConfig::from_json(&model.to_json()).expect("a generated file"), model, "{name}");
    }
}

fn changed(preset: &str, change: &Value) -> Result<ModelConfig, plimsoll_graph::GraphError> {
    let model = ModelConfig::preset(preset).expect("a preset");
    let mut config: Value = serde_json::from_str(&model.to_json()).expect("a generated file");
    let map = config.as_object_mut().expect("an object");
    for (key, value) in change.as_object().expect("an object literal") {
        if value.is_null() {
            map.remove(key)
        } else {
            map.insert(key.clone(), value.clone())
        };
    }
    ModelConfig::from_json(&config.to_string())
}

#[test]
fn unsupported_variants_are_rejected_by_key() {
    for (preset, change, key) in [
        ("gpt2", json!({"activation_function": "relu"}), "activation_function"),
        ("gpt2", json!({"n_embd": null}), "n_embd"),
        ("gpt2", json!({"n_head": 7}), "n_head"),
        ("gpt2", json!({"n_ctx": 512}), "n_ctx"),
        ("flan-t5-small", json!({"is_gated_act": false}), "is_gated_act"),
        ("llama-3.2-1b", json!({"hidden_act": "gelu_10"}), "hidden_act"),
        ("llama-3.2-1b", json!({"hidden_size": null}), "hidden_size"),
        ("llama-3.2-1b", json!({"num_key_value_heads": 5}), "num_key_value_heads"),
        ("llama-3.2-1b", json!({"head_dim": 63}), "head_dim"),
        ("llama-3.2-1b", json!({"num_attention_heads": 31, "head_dim": null}), "num_attention_heads"),
        ("llama-3.2-1b", json!({"rope_scaling": {"rope_type": "longrope"}}), "rope_scaling"),
        ("llama-3.2-1b", json!({"rope_scaling": {"rope_type": "linear"}}), "rope_scaling"),
        ("llama-3.2-1b", json!({"rope_scaling": longrope(31)}), "rope_scaling"),
        ("llama-3.2-1b", json!({"rope_scaling": {"rope_type": "ntk"}}), "rope_scaling"),
        ("llama-3.2-1b", json!({"rope_scaling": {"rope_type": "yarn", "truncate": 0}}), "rope_scaling"),
        ("llama-3.2-1b", json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor"),
        ("llama-3.2-1b", json!({"rope_parameters": {"partial_rotary_factor": 0.75}}), "partial_rotary_factor"),
        ("llama-3.2-1b", json!({"rope_parameters": {"partial_rotary_factor": 1.5}}), "partial_rotary_factor"),
        ("llama-3.2-1b", json!({"rope_parameters": {"rope_type": "yarn", "factor": -1}}), "rope_parameters"),
        ("llama-3.2-1b", json!({"quantization_config": {"bits": 4}}), "quantization_config"),
        ("llama-3.2-1b", json!({"pretraining_tp": 2}), "pretraining_tp"),
        ("llama-3.2-1b", json!({"attention_bias": "yes"}), "attention_bias"),
        ("llama-3.2-1b", json!({"model_type": "deepseek_v3"}), "model_type"),
        ("flan-t5-small", json!({"feed_forward_proj": "gated-relu"}), "feed_forward_proj"),
        ("flan-t5-small", json!({"dense_act_fn": "gelu"}), "dense_act_fn"),
        ("t5-small", json!({"dense_act_fn": "gelu_new"}), "dense_act_fn"),
        ("flan-t5-small", json!({"d_kv": null}), "d_kv"),
        ("flan-t5-small", json!({"d_kv": 1u64 << 40}), "d_kv"),
        ("flan-t5-small", json!({"num_layers": 0}), "num_layers"),
        ("flan-t5-small", json!({"dropout_rate": 1.0}), "dropout_rate"),
        ("flan-t5-small", json!({"is_encoder_decoder": false}), "is_encoder_decoder"),
        ("flan-t5-small", json!({"relative_attention_num_buckets": 6}), "relative_attention_num_buckets"),
        ("flan-t5-small", json!({"relative_attention_max_distance": 16}), "relative_attention_max_distance"),
        ("flan-t5-small", json!({"eos_token_id": 40_000}), "eos_token_id"),
    ] {
        let error = changed(preset, &change).expect_err("an unsupported variant");
        assert!(error.to_string().contains(&format!("`{key}`")), "{preset} with {change}: {error}");
    }
}

/// Keys of a scaling with this number of factors.
fn longrope(pairs: usize) -> Value {
    json!({
        "rope_type": "longrope", "short_factor": vec![1.5; pairs], "long_factor": vec![3.0; pairs],
        "original_max_position_embeddings": 4096,
    })
}

/// Attention factors of `ROPE_INIT_FUNCTIONS` of `transformers` 5.24.0.
#[test]
fn scalings_of_rotary_positions_are_read_as_by_transformers() {
    let read = |change: Value| {
        let model = changed("llama-3.2-1b", &change).expect("a supported scaling");
        let written = ModelConfig::from_json(&model.to_json()).expect("its own file");
        assert_eq!(decoder(&written), decoder(&model), "{change}");
        decoder(&model).blocks[0].attention.rotary.clone().expect("rotary positions").scaling
    };
    let near = |scaling: &RopeScaling, expected: f64| {
        let found = inverse_frequencies(64, 1e4, scaling).1;
        assert!((found - expected).abs() < 1e-6, "{scaling:?}: {found}, not {expected}");
    };
    for (change, factor, short) in [
        (json!({}), 1.190_238_07, 4096),
        (json!({"factor": 4.0}), 1.080_123_45, 4096),
        (json!({"factor": 4.0, "attention_factor": 1.25}), 1.25, 4096),
    ] {
        let mut keys = longrope(32);
        keys.as_object_mut().expect("an object").extend(change.as_object().expect("an object").clone());
        let scaling = read(json!({"rope_scaling": keys}));
        for (tokens, divisor) in [(1, 1.5), (short, 1.5), (short + 1, 3.0)] {
            let RopeScaling::LongRope { factors, .. } = scaling.at(tokens) else { unreachable!("{scaling:?}") };
            assert_eq!(factors, &[divisor; 32]);
            near(scaling.at(tokens), factor);
        }
    }
    // Phi-3 has the original positions outside of the other keys.
    let mut keys = longrope(32);
    keys["type"] = json!("su");
    keys["rope_type"] = json!(null);
    let outside = read(json!({"rope_scaling": keys, "original_max_position_embeddings": 1024}));
    assert_eq!(outside.longer.as_ref().expect("two lists").0, 1024);

    let yarn = |change: Value| {
        let mut keys = json!({"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096});
        keys.as_object_mut().expect("an object").extend(change.as_object().expect("an object").clone());
        read(json!({"rope_parameters": keys, "max_position_embeddings": 163_840})).scaling
    };
    near(&yarn(json!({"mscale": 0.707, "mscale_all_dim": 1.0})), 0.921_042_355);
    near(&yarn(json!({"mscale": 0.707})), 1.368_887_95);
    near(&yarn(json!({"factor": null})), 1.368_887_95);
    near(&yarn(json!({"mscale": 0.707, "mscale_all_dim": 1.0, "attention_factor": 2.0})), 2.0);
    let truncates = |scaling| matches!(scaling, RopeScaling::Yarn { truncate: true, .. });
    assert!(truncates(yarn(json!({}))) && !truncates(yarn(json!({"truncate": false}))));

    let proportional = json!({"rope_type": "proportional", "partial_rotary_factor": 0.25, "factor": 8.0});
    let expected = RopeScaling::Proportional { factor: 8.0, share: 0.25 };
    assert_eq!(read(json!({"rope_parameters": proportional})).scaling, expected);
}

/// A graph has the scaling for its sequences, and one that samples that for the longest sequence of its cache.
#[test]
fn longer_sequences_have_the_other_factors() {
    let config = changed("llama-3.2-1b", &json!({"rope_scaling": longrope(32), "num_hidden_layers": 1}));
    let config = config.expect("a supported scaling");
    let divisors = |graph: &Graph| {
        let ops = graph.programs.iter().flat_map(|program| &program.nodes).map(|node| &node.op);
        let scalings = ops.filter_map(|op| match op {
            Op::Rotary(Rotary { scaling: RopeScaling::LongRope { factors, .. }, .. }) => Some(factors[0]),
            _ => None,
        });
        scalings.collect::<Vec<_>>()
    };
    for (tokens, divisor) in [(4096, 1.5), (4097, 3.0)] {
        let shape = SampleShape { rows: 1, prefill: 16, capacity: tokens, source: 0 };
        let graph = build_sampling(&config, None, &shape).expect("a graph");
        let found = divisors(&graph);
        assert!(found.len() == 4 && found.iter().all(|found| *found == divisor), "{tokens}: {found:?}");
    }
}

#[test]
fn keys_of_older_and_newer_files_are_equivalent() {
    let older = json!({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}});
    let newer = json!({
        "rope_theta": null, "rope_scaling": null,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0},
    });
    let read = |change: &Value| changed("tinyllama-1.1b", change).expect("both are accepted");
    assert_eq!(read(&older), read(&newer));
    assert_ne!(read(&older), read(&json!({})));

    // Older files with an untied head also disable its scaling; newer ones leave the head to the weights.
    let untied = changed("t5-small", &json!({"tie_word_embeddings": false, "scale_decoder_outputs": null}));
    let untied = untied.expect("both keys are accepted");
    assert_eq!(parameters(&untied), 60_506_624 + 32_128 * 512);
    let mut newer = changed("t5-small", &json!({"scale_decoder_outputs": false})).expect("both keys are accepted");
    assert_eq!(parameters(&newer), 60_506_624);
    assert!(newer.leaves_head_to_weights() && !untied.leaves_head_to_weights());
    let [older, newer_scales] = [&changed("t5-small", &json!({})).expect("a preset"), &newer].map(scales_of_head);
    assert_eq!((older, newer_scales), (1, 0));
    newer.untie_head();
    assert_eq!(newer, untied);
}

/// The windows that `transformers` gives the layers for such files.
#[test]
fn windows_equal_those_of_transformers() {
    let windows = |preset: &str, change: &Value| {
        let model = changed(preset, change).expect("windows are accepted");
        let again = ModelConfig::from_json(&model.to_json()).expect("a generated file is accepted");
        assert_eq!(again, model, "{preset} with {change}");
        decoder(&model).blocks[..3.min(model.blocks())].iter().map(|block| block.attention.window).collect::<Vec<_>>()
    };
    let all = |window: usize| vec![Some(window); 3];
    assert_eq!(windows("mistral-7b", &json!({})), all(4096));
    assert_eq!(windows("mistral-7b", &json!({"sliding_window": 1000})), all(1000));
    assert_eq!(windows("mistral-7b-v0.2", &json!({})), [None; 3]);
    // These families ignore the key.
    assert_eq!(windows("tinyllama-1.1b", &json!({"sliding_window": 1000, "use_sliding_window": true})), [None; 3]);
    assert_eq!(windows("qwen2.5-0.5b", &json!({"sliding_window": 1000, "max_window_layers": 0})), [None; 3]);
    let slides = |more: &Value| {
        let mut change = json!({"use_sliding_window": true, "sliding_window": 1000, "num_hidden_layers": 3});
        change.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        windows("qwen2.5-0.5b", &change)
    };
    assert_eq!(slides(&json!({})), [None; 3], "the first 28 layers have none");
    assert_eq!(slides(&json!({"max_window_layers": 0})), all(1000));
    assert_eq!(slides(&json!({"max_window_layers": 1})), [None, Some(1000), Some(1000)]);
    let types = json!(["sliding_attention", "full_attention", "sliding_attention"]);
    assert_eq!(slides(&json!({"max_window_layers": 1, "layer_types": types})), [Some(1000), None, Some(1000)]);
    for (change, key) in [
        (json!({"layer_types": ["sliding_attention"]}), "layer_types"),
        (json!({"num_hidden_layers": 1, "layer_types": ["chunked_attention"]}), "layer_types"),
        (json!({"num_hidden_layers": 1, "layer_types": ["sliding_attention"]}), "layer_types"),
        (json!({"use_sliding_window": true, "max_window_layers": -1}), "max_window_layers"),
    ] {
        let error = changed("qwen2.5-0.5b", &change).expect_err("a window without effect").to_string();
        assert!(error.contains(&format!("`{key}`")), "{change}: {error}");
    }
    // `changed` removes keys that are null.
    assert_eq!(windows("mistral-7b-v0.2", &json!({"sliding_window": null})), all(4096));
}

/// Number of multiplications by a constant in a model's evaluation.
fn scales_of_head(model: &ModelConfig) -> usize {
    let shape = TrainShape { seq_len: 8, target_len: Some(8), evaluates: true, ..TrainShape::default() };
    let graph = build_training(model, &Optimizer::default(), &shape).expect("a valid model");
    let nodes = &graph.program(ProgramKind::Evaluate).expect("it evaluates").nodes;
    nodes.iter().filter(|node| matches!(node.op, Op::Scale(_))).count()
}

/// Aliases of keys and activations are equivalent.
/// Source: `attribute_map` of the families' configurations, and `ACT2CLS` of `transformers`.
#[test]
fn aliases_of_keys_and_activations_are_equivalent() {
    for (preset, aliases) in [
        ("gpt2", &[("n_embd", "hidden_size"), ("n_layer", "num_hidden_layers")][..]),
        ("gpt2", &[("n_head", "num_attention_heads"), ("n_positions", "max_position_embeddings")]),
        ("flan-t5-small", &[("d_model", "hidden_size"), ("num_layers", "num_hidden_layers")]),
        ("flan-t5-small", &[("num_heads", "num_attention_heads"), ("d_kv", "head_dim")]),
    ] {
        let model = ModelConfig::preset(preset).expect("a preset");
        let config = serde_json::from_str::<Value>(&model.to_json()).expect("a generated file");
        for (key, alias) in aliases {
            let renamed = json!({*key: null, *alias: config[*key]});
            assert_eq!(changed(preset, &renamed).expect("an alias"), model, "{preset}, {alias}");
            let both = json!({*alias: config[*key]});
            assert_eq!(changed(preset, &both).expect("they agree"), model, "{preset}, {alias}");
            let error = changed(preset, &json!({*alias: 7})).expect_err("contradictory keys").to_string();
            assert!(error.contains(&format!("`{alias}` is 7, which contradicts {key} = ")), "{error}");
        }
    }
    for (preset, change) in [
        ("gpt2", json!({"activation_function": "gelu_pytorch_tanh"})),
        ("gpt2", json!({"activation_function": "gelu_fast"})),
        ("tinyllama-1.1b", json!({"hidden_act": "swish"})),
        ("flan-t5-small", json!({"feed_forward_proj": "gated-gelu_new", "dense_act_fn": "gelu_pytorch_tanh"})),
    ] {
        let model = ModelConfig::preset(preset).expect("a preset");
        assert_eq!(changed(preset, &change).expect("the same function"), model, "{change}");
    }
}

/// A key without any supported value is rejected without a list of accepted values.
#[test]
fn a_key_without_supported_values_is_not_supported() {
    for (preset, change, words) in [
        ("gpt2", json!({"quantization_config": {}}), "`quantization_config` asks for `quantized` weights, but"),
        ("qwen3-8b", json!({"quantization_config": {"quant_method": "gptq"}}), "asks for `gptq` weights, but"),
        ("qwen3-8b", json!({"quantization_config": {"quant_method": "mxfp4"}}), "asks for `mxfp4` weights, but"),
        ("gpt-oss-20b", json!({"quantization_config": {"quant_method": "gptq"}}), "asks for `gptq` weights, but"),
        ("qwen3-8b", json!({"model_type": "qwen4", "kv_lora_rank": 8}), "closest to `llama`, which does not have kv_l"),
        ("qwen3-8b", json!({"model_type": "x", "auto_map": {}}), "the code that its auto_map names is never run"),
        ("olmoe-1b-7b", json!({"num_experts": 1 << 24}), "at most 65,536 experts are supported"),
        ("qwen3-8b", json!({"num_experts": 8}), "`num_experts` is 8, which `qwen3` models do not support here"),
        ("gpt2", json!({"activation_function": "gelu"}), "`activation_function` is \"gelu\"; only \"gelu_new\" or"),
    ] {
        let error = changed(preset, &change).expect_err("an unsupported variant").to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// Numbers whose products would overflow are rejected before a graph is built.
#[test]
fn sizes_that_would_overflow_are_rejected() {
    for (preset, key) in [("gpt2", "n_embd"), ("llama-3.2-1b", "intermediate_size"), ("t5-small", "d_ff")] {
        for huge in [json!(u64::MAX), json!(1u64 << 25), json!(0), json!(-3), json!(1.5)] {
            let error = changed(preset, &json!({key: huge})).expect_err("an implausible size");
            assert!(error.to_string().contains(key), "{preset}, {key} = {huge}: {error}");
        }
    }
}

/// Rates decrease from the head to the embedding, by block.
#[test]
fn layer_wise_rates_fall_towards_the_embedding() {
    let optimizer = Optimizer { layer_decay: 0.5, ..Optimizer::default() };
    let rates = |name: &str, target_len: Option<usize>| {
        let shape = TrainShape { seq_len: 8, target_len, ..TrainShape::default() };
        let model = ModelConfig::preset(name).expect("a preset");
        let graph = build_training(&model, &optimizer, &shape).expect("a valid model");
        let update = graph.program(ProgramKind::Update).expect("a training graph has an update").nodes.clone();
        let of_node = update.into_iter().filter_map(|node| match node.op {
            Op::ParameterUpdate(op) => Some((graph[node.outputs[0]].name.to_string(), op.rate)),
            _ => None,
        });
        of_node.collect::<HashMap<_, _>>()
    };
    let nano = rates("nano", None);
    for (name, halvings) in
        [("ln_f.weight", 0), ("h.3.ln_1.weight", 1), ("h.0.attn.c_attn.weight", 4), ("wte.weight", 5)]
    {
        assert_eq!(nano[&format!("transformer.{name}")], 0.5f32.powi(halvings), "{name}");
    }
    let t5 = rates("t5-small", Some(8));
    for (name, halvings) in [
        ("decoder.final_layer_norm.weight", 0),
        ("decoder.block.5.layer.2.DenseReluDense.wo.weight", 1),
        ("decoder.block.0.layer.1.EncDecAttention.k.weight", 6),
        ("encoder.block.5.layer.0.SelfAttention.q.weight", 7),
        ("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", 12),
        ("shared.weight", 13),
    ] {
        assert_eq!(t5[name], 0.5f32.powi(halvings), "{name}");
    }
}

/// The widest row of each block, which bounds a run's activations.
#[test]
fn elements_per_token_are_those_of_the_widest_rows() {
    for (name, elements) in [("t5-small", 2048 * 12), ("gpt2", 3072 * 12), ("smollm2-135m", 1536 * 30)] {
        assert_eq!(ModelConfig::preset(name).expect("a preset").elements_per_token(), elements, "{name}");
    }
}

#[test]
fn a_decoder_starts_and_ends_with_the_tokenizers_tokens() {
    let mut model = ModelConfig::preset("t5-small").expect("a preset");
    model.set_special_tokens(7, 9);
    let config = serde_json::from_str::<Value>(&model.to_json()).expect("an object");
    assert_eq!(model.decoder_start(), Some(7));
    assert_eq!((&config["pad_token_id"], &config["eos_token_id"]), (&json!(7), &json!(9)));
}
