//! Estimates of mixtures of experts and of encoders: what records do not show.

use plimsoll_eager::{Cannot, Estimate, Gpu, Kind, estimate};
use plimsoll_graph::models::ModelConfig;
use plimsoll_trainers::{Checkpointing, Library, Lora, Method, Precision, Run, Sharding, Targets};
use plimsoll_units::Bytes;

const A100: Gpu = Gpu { memory: Bytes::gib(80), compute_capability: (8, 0) };
const T4: Gpu = Gpu { memory: Bytes::gib(15), compute_capability: (7, 5) };

/// Channels.
const C: u64 = 128;
/// Inner width of an expert.
const F: u64 = 256;
/// Number of experts.
const E: u64 = 16;
const LAYERS: u64 = 2;

fn mixture() -> ModelConfig {
    let json = format!(
        r#"{{"model_type": "qwen3_moe", "num_hidden_layers": {LAYERS}, "hidden_size": {C}, "intermediate_size": 64, "head_dim": 32,
            "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 256, "max_position_embeddings": 512,
            "num_experts": {E}, "num_experts_per_tok": 2, "moe_intermediate_size": {F}}}"#
    );
    ModelConfig::from_json(&json).expect("a model")
}

fn lora(targets: Targets) -> Run {
    let lora = Lora { rank: 8, targets, dropout: false };
    Run { method: Method::Lora(lora), precision: Precision::PureBf16, micro_batch: 1, seq_len: 64, ..Run::default() }
}

fn named(names: &[&str]) -> Targets {
    Targets::Named(names.iter().map(|name| (*name).to_owned()).collect())
}

fn share(found: &Estimate, kind: Kind) -> u64 {
    found.breakdown.iter().filter(|share| share.kind == kind).map(|share| share.bytes.0).sum()
}

/// Two moments of the adapters: of four layers of attention, the router, and each expert's layers, with twice the rank
/// for the two layers that are one tensor.
#[test]
fn all_layers_of_experts_are_adapted() {
    let rank = 8;
    let found = estimate(&mixture(), &lora(Targets::AllLinear), A100).expect("an estimate");
    let attention = 4 * rank * (C + C);
    let experts = E * (2 * rank * (C + 2 * F) + rank * (F + C));
    let elements = LAYERS * (attention + rank * (C + E) + experts);
    let counts = LAYERS * 2 * (4 + 1 + 2);
    assert_eq!(share(&found, Kind::OptimizerState), 2 * 4 * elements + 512 * counts);
}

/// The weights of all experts plus their adapters are saved for the backward pass, unless they are recomputed.
#[test]
fn adapters_of_experts_save_whole_weights() {
    let saved = |targets, checkpointing| {
        let run = Run { checkpointing, ..lora(targets) };
        share(&estimate(&mixture(), &run, A100).expect("an estimate"), Kind::Activation)
    };
    let weights = LAYERS * E * 3 * C * F * 2;
    let without = saved(named(&["q_proj"]), Checkpointing::Off);
    assert!(without < weights, "{without}");
    assert!(saved(named(&["q_proj", "down_proj"]), Checkpointing::Off) > without + weights / 3);
    assert!(saved(Targets::AllLinear, Checkpointing::Off) > without + weights);
    assert!(saved(Targets::AllLinear, Checkpointing::NonReentrant) < weights);
}

#[test]
fn adapters_that_peft_refuses_are_errors() {
    let run = lora(named(&["q_proj", "gate_proj"]));
    let error = estimate(&mixture(), &run, A100).expect_err("the gate is one tensor with the layer that it multiplies");
    assert!(matches!(&error, Cannot::NotModeled(why) if why.contains("only together with `up_proj`")), "{error}");
    let adapters = Lora { rank: 8, targets: Targets::AllLinear, dropout: true };
    let run = Run { method: Method::Lora(adapters), ..run };
    let error = estimate(&mixture(), &run, A100).expect_err("experts have no dropout");
    assert!(matches!(&error, Cannot::NotModeled(why) if why.contains("dropout")), "{error}");
}

/// Without `grouped_mm`, a loop computes gradients of frozen weights too.
#[test]
fn cards_without_grouped_products_need_more() {
    let run = Run { precision: Precision::PureFp16, ..lora(named(&["q_proj"])) };
    let [grouped, looped] = [A100, T4].map(|gpu| estimate(&mixture(), &run, gpu).expect("an estimate"));
    let gradient = E * C * 2 * F * 2;
    assert!(looped.likely.allocated.0 > grouped.likely.allocated.0 + gradient / 2, "{looped:?}\n{grouped:?}");
    let older = |torch: &str| {
        let mut run = run.clone();
        run.libraries.torch = Library::Torch.read(torch).expect("a version");
        estimate(&mixture(), &run, A100).expect("an estimate").likely.allocated
    };
    assert_eq!(older("2.9"), grouped.likely.allocated);
    assert!(older("2.8") > grouped.likely.allocated);
}

#[test]
fn what_is_assumed_of_experts_is_noted() {
    let notes = |run: &Run, part: &str| {
        let found = estimate(&mixture(), run, A100).expect("an estimate");
        found.caveats.iter().filter(|note| note.contains(part)).count()
    };
    let mut run = lora(named(&["q_proj"]));
    assert_eq!(notes(&run, "quantizes"), 0);
    run.libraries.transformers = Library::Transformers.read("4.57").expect("a version");
    assert_eq!(notes(&run, "computes each expert in a loop"), 1);
}

#[test]
fn encoders_take_two_texts_per_sample_on_one_card() {
    let json = r#"{"model_type": "bert", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96,
        "num_attention_heads": 4, "vocab_size": 256, "max_position_embeddings": 128}"#;
    let model = ModelConfig::from_json(json).expect("a model");
    let run = Run { micro_batch: 4, seq_len: 64, ..Run::default() };
    let found = estimate(&model, &run, A100).expect("an estimate");
    assert!(found.caveats.iter().any(|note| note.contains("two texts per sample")), "{:?}", found.caveats);
    let widest = found.live.iter().filter(|live| live.op == "gelu").map(|live| live.count).sum::<u64>();
    assert_eq!(widest, 2 * 2, "each block saves the activations of both texts");
    let run = Run { sharding: Sharding::Ddp { bucket: Bytes::mib(25), views: false }, cards: 2, ..run };
    assert!(matches!(estimate(&model, &run, A100), Err(Cannot::NotModeled(_))));
}
