//! Properties of every run: no modeled run panics, parts add up to the whole, and larger runs never need less memory.

use plimsoll_eager::{Cannot, Estimate, Gpu, Kind, estimate};
use plimsoll_graph::models::ModelConfig;
use plimsoll_trainers::{Attention, Checkpointing, Lora, Loss, Method, Optimizer, Precision, Quantized, Run, Targets};
use plimsoll_units::Bytes;
use proptest::prelude::*;
use proptest::sample::select;

const GPU: Gpu = Gpu { memory: Bytes::gib(80), compute_capability: (8, 0) };

/// Small models of all families, with layers of this many channels in heads of 16.
fn models(channels: u64, layers: u64) -> [ModelConfig; 4] {
    let heads = channels / 16;
    [
        format!(
            r#"{{"model_type": "gpt2", "n_layer": {layers}, "n_embd": {channels}, "n_head": {heads}, "n_positions": 512,
                "vocab_size": 256}}"#
        ),
        format!(
            r#"{{"model_type": "llama", "num_hidden_layers": {layers}, "hidden_size": {channels}, "vocab_size": 256,
                "intermediate_size": {}, "num_attention_heads": {heads}, "num_key_value_heads": {},
                "max_position_embeddings": 512}}"#,
            2 * channels,
            heads / 2
        ),
        format!(
            r#"{{"model_type": "qwen2", "num_hidden_layers": {layers}, "hidden_size": {channels}, "vocab_size": 256,
                "intermediate_size": {}, "num_attention_heads": {heads}, "num_key_value_heads": {heads},
                "max_position_embeddings": 512, "tie_word_embeddings": true}}"#,
            2 * channels
        ),
        format!(
            r#"{{"model_type": "t5", "num_layers": {layers}, "num_decoder_layers": {layers}, "d_model": {channels},
                "d_ff": {}, "num_heads": {heads}, "d_kv": 16, "vocab_size": 256, "feed_forward_proj": "gated-gelu",
                "tie_word_embeddings": false}}"#,
            2 * channels
        ),
    ]
    .map(|json| ModelConfig::from_json(&json).expect("a model"))
}

fn lora(rank: u64, targets: Targets, dropout: bool) -> Lora {
    Lora { rank, targets, dropout }
}

fn methods() -> impl Strategy<Value = Method> {
    let lora = (1u64..9, select(vec![Targets::AllLinear, Targets::Default]), any::<bool>())
        .prop_map(|(rank, targets, dropout)| lora(rank, targets, dropout));
    let quantized =
        (select(vec![32u64, 64, 128]), any::<bool>()).prop_map(|(block, double)| Quantized { block, double });
    prop_oneof![
        Just(Method::Full),
        lora.clone().prop_map(Method::Lora),
        (lora, quantized).prop_map(|(lora, quantized)| Method::Qlora(lora, quantized)),
    ]
}

fn runs() -> impl Strategy<Value = Run> {
    use Precision::{AmpBf16, AmpFp16, Fp32, PureBf16, PureFp16};
    let optimizers = vec![
        Optimizer::AdamWForeach,
        Optimizer::AdamWFused,
        Optimizer::AdamWForLoop,
        Optimizer::AdamW8bit,
        Optimizer::PagedAdamW8bit,
        Optimizer::PagedAdamW,
        Optimizer::Adafactor,
        Optimizer::Sgd { momentum: false },
        Optimizer::Sgd { momentum: true },
    ];
    let checkpointing = vec![Checkpointing::Off, Checkpointing::Reentrant, Checkpointing::NonReentrant];
    let attention = vec![Attention::Eager, Attention::Sdpa, Attention::Flash2];
    let how = (
        methods(),
        select(vec![Fp32, PureBf16, PureFp16, AmpBf16, AmpFp16]),
        select(optimizers),
        select(checkpointing),
        select(attention),
        (any::<bool>(), any::<bool>()),
    );
    let sizes = (1u64..4, 1u64..3, 1u64..40, proptest::option::of(1u64..30));
    (how, sizes).prop_map(|(how, (micro_batch, accumulation, seq_len, target_len))| {
        let (method, precision, optimizer, checkpointing, attention, (clips, dropout)) = how;
        Run {
            method,
            precision,
            micro_batch,
            accumulation,
            seq_len,
            target_len,
            optimizer,
            checkpointing,
            attention,
            clips,
            dropout,
            ..Run::default()
        }
    })
}

fn of(model: &ModelConfig, run: &Run) -> Estimate {
    estimate(model, run, GPU).unwrap_or_else(|cannot| panic!("{cannot}: {run:?}"))
}

/// Bytes of a kind at the peak.
fn share(found: &Estimate, kind: Kind) -> u64 {
    found.breakdown.iter().filter(|share| share.kind == kind).map(|share| share.bytes.0).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_modeled_run_panics_and_parts_add_up(run in runs(), family in 0usize..4, layers in 1u64..3) {
        let found = of(&models(32, layers)[family], &run);
        // Blocks of small storages have the requested size, rounded.
        prop_assert!(found.live.iter().all(|live| live.bytes.0 <= 1 << 20 || live.op == "cuBLAS workspace"));
        let parts = found.breakdown.iter().map(|share| share.bytes.0).sum::<u64>();
        prop_assert_eq!(parts, found.likely.allocated.0);
        prop_assert!(found.likely.allocated <= found.likely.reserved && found.shortfall.is_none());
        prop_assert!(found.range[0].process() <= found.likely.process());
        prop_assert!(found.likely.process() <= found.range[1].process());
    }

    #[test]
    fn more_samples_longer_samples_and_larger_ranks_never_need_less(
        run in runs(), family in 0usize..4, layers in 1u64..3, rank in 1u64..32
    ) {
        let model = &models(32, layers)[family];
        let before = of(model, &run).likely.allocated;
        let samples = Run { micro_batch: 2 * run.micro_batch, ..run.clone() };
        prop_assert!(before <= of(model, &samples).likely.allocated, "samples: {:?}", run);
        let longer = Run { seq_len: 2 * run.seq_len, target_len: run.target_len.map(|len| 2 * len), ..run.clone() };
        prop_assert!(before <= of(model, &longer).likely.allocated, "length: {:?}", run);
        let mut wider = run.clone();
        if let Method::Lora(lora) | Method::Qlora(lora, _) = &mut wider.method {
            lora.rank += rank;
        }
        prop_assert!(before <= of(model, &wider).likely.allocated, "rank: {:?}", run);
    }

    /// With enough layers that activations determine the peak, not the optimizer's step.
    #[test]
    fn checkpointing_never_saves_more(run in runs(), family in 0usize..4, layers in 3u64..5, seq_len in 64u64..96) {
        let model = &models(32, layers)[family];
        let run = Run { micro_batch: 4, seq_len, target_len: None, ..run };
        let [all, reentrant, hooks] = [Checkpointing::Off, Checkpointing::Reentrant, Checkpointing::NonReentrant]
            .map(|checkpointing| of(model, &Run { checkpointing, ..run.clone() }));
        for less in [reentrant, hooks] {
            prop_assert!(share(&less, Kind::Activation) < share(&all, Kind::Activation));
            prop_assert!(less.likely.allocated < all.likely.allocated);
        }
    }

    /// Two matrices per layer, rank times its inputs and its outputs, in single precision; two moments of each.
    #[test]
    fn trained_bytes_are_those_of_the_adapters(
        eighths in 1u64..5, layers in 1u64..3, family in 0usize..4, all in any::<bool>(), quantized in any::<bool>(),
        bf16 in any::<bool>()
    ) {
        let (channels, rank) = (128, 8 * eighths);
        let targets = if all { Targets::AllLinear } else { Targets::Default };
        let lora = lora(rank, targets, false);
        let method = match quantized {
            true => Method::Qlora(lora, Quantized { block: 64, double: true }),
            false => Method::Lora(lora),
        };
        let precision = if bf16 { Precision::PureBf16 } else { Precision::Fp32 };
        let run = Run { method, precision, micro_batch: 1, seq_len: 16, ..Run::default() };
        let found = of(&models(channels, layers)[family], &run);
        let c = channels;
        // Inputs and outputs of the layers of a block; for T5 also those of the decoder's block.
        let (keys, attention) = (c / 2, [(c, c); 4]);
        let sizes: Vec<(u64, u64)> = match (family, all) {
            (0, false) => vec![(c, 3 * c)],
            (0, true) => vec![(c, 3 * c), (c, c), (c, 4 * c), (4 * c, c)],
            (1, false) => vec![(c, c), (c, keys)],
            (1, true) => vec![(c, c), (c, keys), (c, keys), (c, c), (c, 2 * c), (c, 2 * c), (2 * c, c)],
            (2, false) => vec![(c, c); 2],
            (2, true) => [&attention[..], &[(c, 2 * c), (c, 2 * c), (2 * c, c)]].concat(),
            (_, false) => vec![(c, c); 6],
            (_, true) => {
                let feed = [(c, 2 * c), (c, 2 * c), (2 * c, c)];
                [&attention[..], &feed, &attention, &attention, &feed].concat()
            }
        };
        let elements = sizes.iter().map(|(inputs, outputs)| rank * (inputs + outputs)).sum::<u64>() * layers;
        let counts = 2 * sizes.len() as u64 * layers;
        // A step count occupies a block of 512 bytes.
        prop_assert_eq!(share(&found, Kind::OptimizerState), 2 * 4 * elements + 512 * counts);
    }
}

/// All tensors that bitsandbytes keeps for a weight, in blocks of 512 bytes; other weights are in single precision.
#[test]
fn weights_in_4_bits_match_bitsandbytes() {
    let block = |bytes: u64| bytes.next_multiple_of(512);
    for double in [false, true] {
        let method = Method::Qlora(
            lora(4, Targets::Named(vec!["down_proj".to_owned()]), false),
            Quantized { block: 64, double },
        );
        let run = Run { method, precision: Precision::PureBf16, micro_batch: 1, seq_len: 16, ..Run::default() };
        let (c, layers) = (128, 2);
        let found = of(&models(c, layers)[1], &run);
        let of_weight = |elements: u64| {
            let scales = elements / 64;
            let of_scales = match double {
                false => block(4 * scales),
                true => block(scales) + block(4 * scales.div_ceil(256)) + block(4) + block(4 * 256),
            };
            block(elements / 2) + block(4 * 16) + of_scales
        };
        let quantized = [c * c, c * c / 2, c * c / 2, c * c, 2 * c * c, 2 * c * c, 2 * c * c].map(of_weight);
        let additions = block(4 * 4 * 2 * c) + block(4 * 4 * c);
        let norms = 2 * block(4 * c);
        let rest = 2 * block(4 * 256 * c) + block(4 * c) + 2 * block(4 * 8);
        let expected = layers * (quantized.iter().sum::<u64>() + additions + norms) + rest;
        assert_eq!(share(&found, Kind::Weight), expected, "double: {double}");
    }
}

#[test]
fn unknown_layer_names_are_errors_unless_others_match() {
    let model = &models(32, 1)[1];
    let named = |names: &[&str]| {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let run = Run { method: Method::Lora(lora(4, Targets::Named(names), false)), seq_len: 8, ..Run::default() };
        estimate(model, &run, GPU)
    };
    let error = named(&["c_attn", "proj"]).expect_err("no layer has these names");
    assert!(
        matches!(&error, Cannot::NoSuchLayer { names, has }
        if names == "`c_attn` or `proj`" && has.contains("q_proj") && has.contains("lm_head")),
        "{error}"
    );
    let some = named(&["q_proj", "c_attn"]).expect("one name matches");
    assert!(some.caveats.iter().any(|caveat| caveat.contains("`c_attn`")), "{:?}", some.caveats);
    let whole = named(&["model.layers.0.self_attn.q_proj"]).expect("the layer exists");
    assert_eq!(whole.likely, named(&["self_attn.q_proj"]).expect("the layer exists").likely);
    assert!(matches!(named(&["embed_tokens"]), Err(Cannot::NotModeled(_))));
    let run = Run { method: Method::Lora(lora(0, Targets::Default, false)), ..Run::default() };
    assert!(matches!(estimate(model, &run, GPU), Err(Cannot::Zero("the rank"))));
}

#[test]
fn families_without_default_layers_need_names() {
    let of = |family: &str, targets| {
        let run = Run { method: Method::Lora(lora(4, targets, false)), seq_len: 8, ..Run::default() };
        estimate(&of_family(family, r#", "pad_token_id": 0"#), &run, GPU)
    };
    for family in ["ministral", "phi3", "smollm3", "olmo2", "olmo3", "granite"] {
        let error = of(family, Targets::Default).expect_err("PEFT requires names");
        assert!(matches!(&error, Cannot::NoDefaultLayers { has } if has.contains("o_proj")), "{family}: {error}");
        assert!(of(family, Targets::AllLinear).is_ok(), "{family}");
    }
    for family in ["qwen3", "gemma", "gemma2", "gemma3_text"] {
        assert!(of(family, Targets::Default).is_ok(), "{family}");
    }
}

/// The small Llama as a model of another family, with these keys too.
fn of_family(family: &str, keys: &str) -> ModelConfig {
    let json = format!(
        r#"{{"model_type": "{family}", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "head_dim": 16,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 512{keys}}}"#
    );
    ModelConfig::from_json(&json).expect("a model")
}

#[test]
fn families_without_sdpa_are_estimated_with_eager_attention_and_a_note() {
    let model = of_family("gemma2", "");
    let of = |attention| {
        let run = Run { attention, micro_batch: 4, seq_len: 256, ..Run::default() };
        estimate(&model, &run, GPU).expect("an estimate")
    };
    let [eager, sdpa, flash] = [Attention::Eager, Attention::Sdpa, Attention::Flash2].map(of);
    let notes = |found: &Estimate| found.caveats.iter().filter(|note| note.contains("eager attention")).count();
    assert_eq!((sdpa.likely, notes(&eager)), (eager.likely, 0));
    assert!(sdpa.caveats.iter().any(|note| note.contains("rejects `sdpa`")), "{:?}", sdpa.caveats);
    assert!(flash.likely.allocated < eager.likely.allocated, "FlashAttention has soft caps");
}

#[test]
fn losses_that_are_not_modeled_for_a_family_are_noted_and_change_nothing() {
    let of = |family: &str, loss| {
        let run = Run { loss, precision: Precision::PureBf16, seq_len: 64, ..Run::default() };
        estimate(&of_family(family, r#", "pad_token_id": 0"#), &run, GPU).expect("an estimate")
    };
    let cases = [
        (Loss::Liger, ["llama", "qwen3", "smollm3"].as_slice(), ["gemma2", "phi3", "olmo2", "granite"].as_slice()),
        (Loss::CutCrossEntropy, &["llama", "gemma2", "phi3"], &["qwen3", "smollm3", "gemma", "olmo2"]),
    ];
    for (loss, modeled, others) in cases {
        for family in modeled.iter().chain(others) {
            let [plain, found] = [Loss::Plain, loss].map(|loss| of(family, loss));
            let is_noted = found.caveats.iter().any(|note| note.contains("not modeled for this family"));
            assert_eq!(is_noted, others.contains(family), "{family} {loss:?}: {:?}", found.caveats);
            assert_eq!(found.likely == plain.likely, is_noted, "{family} {loss:?}");
        }
    }
}
