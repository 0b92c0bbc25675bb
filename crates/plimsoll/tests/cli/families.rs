//! Every family of decoders, by its name on the hub, from a config.json in the cache: planned, trained, resumed, sampled and
//! estimated. Golden values are compared by the crate `train`.

use crate::support::Sandbox;
use serde_json::{Value, json};

/// The families, each with the keys of its own.
fn families() -> Vec<(&'static str, Value)> {
    let windowed = json!({ "sliding_window": 9 });
    vec![
        ("ministral", windowed.clone()),
        ("qwen3", json!({ "attention_bias": true })),
        ("gemma", json!({})),
        ("gemma2", json!({ "sliding_window": 9 })),
        ("gemma3_text", json!({ "sliding_window": 9, "rope_local_base_freq": 1000.0 })),
        ("phi3", windowed.clone()),
        ("smollm3", json!({ "no_rope_layers": [1, 0] })),
        ("olmo2", json!({})),
        ("olmo3", windowed),
        ("olmoe", json!({ "num_experts": 4, "num_experts_per_tok": 2 })),
        ("qwen3_moe", json!({ "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 8 })),
        ("mixtral", json!({ "num_local_experts": 3, "output_router_logits": true })),
        ("gpt_oss", json!({ "num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": 9 })),
        ("granite", json!({ "residual_multiplier": 0.5, "embedding_multiplier": 3.0 })),
    ]
}

fn config(family: &str, more: &Value) -> Value {
    let mut config = json!({
        "model_type": family, "vocab_size": 256, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64,
    });
    config.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    config
}

/// Puts a config.json into the Hugging Face cache of a sandbox.
fn cache(sandbox: &Sandbox, name: &str, config: &Value) {
    let model = format!(".cache/huggingface/hub/models--{}", name.replace('/', "--"));
    sandbox.write(&format!("{model}/snapshots/abc/config.json"), config.to_string());
    sandbox.write(&format!("{model}/refs/main"), "abc");
}

#[test]
fn every_family_is_planned_trained_resumed_sampled_and_estimated_by_its_name() {
    let sandbox = Sandbox::new();
    sandbox.write("text.txt", "ships are loaded to their line. ".repeat(60));
    let must = |command: String| {
        let said = sandbox.run(&command);
        assert_eq!(said.code, Some(0), "{command}: {}", said.stderr);
        said
    };
    for (family, more) in families() {
        let name = format!("org/{family}");
        cache(&sandbox, &name, &config(family, &more));
        let plan = must(format!("plan --model {name} --gpu 3060 --json"));
        assert!(plan.stderr.contains("snapshots/abc"), "the cached file is named: {}", plan.stderr);
        must(format!("estimate --model {name} --gpu 3060 --seq-len 32 --json"));
        let train = format!(
            "train --model {name} --tokenizer bytes --data text.txt --seq-len 24 --global-batch 2 --sample-tokens 0 \
             --eval-samples 2 --device cpu --cache-dir cache"
        );
        must(format!("{train} --name {family} --max-steps 3 --checkpoint-every 3"));
        must(format!("train --resume runs/{family} --max-steps 5"));
        must(format!("{train} --name {family}-whole --max-steps 5 --scheduler constant"));
        let sampled =
            must(format!("generate --checkpoint runs/{family} --prompt ships --max-tokens 4 --temperature 0"));
        assert!(!sampled.stdout.is_empty(), "{family}");
    }
}

#[test]
fn what_a_configuration_lacks_or_has_too_much_is_reported() {
    let sandbox = Sandbox::new();
    let plan = |name: &str, config: &Value| {
        cache(&sandbox, &format!("org/{name}"), config);
        sandbox.run(&format!("plan --model org/{name} --gpu 3060 --seq-len 16"))
    };
    // As Gemma 3's published files do, the text part omits sizes.
    let mut text = config("gemma3_text", &json!({}));
    text.as_object_mut().expect("an object").retain(|key, _| !["vocab_size", "num_attention_heads"].contains(&&**key));
    let whole = json!({ "model_type": "gemma3", "text_config": text, "vision_config": { "hidden_size": 8 } });
    let said = plan("whole", &whole);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    for words in ["describes a `gemma3`; only its text model is used", "num_attention_heads = 8", "vocab_size = 262208"]
    {
        assert!(said.stderr.contains(words), "{}", said.stderr);
    }
    for (name, change, words) in [
        ("code", json!({"model_type": "mine", "auto_map": {"AutoModel": "m.M"}}), "auto_map names is never run"),
        ("gptq", json!({"quantization_config": {"quant_method": "gptq"}}), "`gptq` weights"),
        ("experts", json!({"num_experts": 4}), "`num_experts` is 4"),
        ("heads", json!({"num_key_value_heads": 3}), "`num_key_value_heads` is 3, which does not divide"),
        ("rope", json!({"rope_scaling": {"rope_type": "wavy"}}), "asks for `wavy`"),
        ("capped", json!({"attn_logit_softcapping": 50.0}), "`attn_logit_softcapping` is 50.0"),
    ] {
        let said = plan(name, &config("qwen3", &change));
        assert_eq!(said.code, Some(4), "{name}: {}", said.stderr);
        assert!(said.stderr.contains(words) && said.stderr.contains("config.json"), "{name}: {}", said.stderr);
    }
    let said = sandbox.run("plan --model org/unknown --gpu 3060");
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(said.stderr.contains("`--download` fetches its config.json"), "{}", said.stderr);
}

/// `scripts/families.py` writes the table.
#[test]
fn the_manual_lists_every_family() {
    let sandbox = Sandbox::new();
    sandbox.write("config.json", json!({ "model_type": "unknown" }).to_string());
    let said = sandbox.run("plan --model config.json --gpu 3060");
    let known = said.stderr.lines().find_map(|line| line.split_once("supported: ")).expect("a list").1;
    let page = include_str!("../../../../docs/src/models.md");
    let families = known.split(", ").filter(|family| !["gpt2", "t5", "mt5"].contains(family)).collect::<Vec<_>>();
    assert!(families.len() > 10, "{families:?}");
    for family in families {
        assert!(page.contains(&format!("| `{family}` | `")), "{family} is not in docs/src/models.md");
    }
}
