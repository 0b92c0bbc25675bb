#!/usr/bin/env python3
"""Creates the golden values for tests of the decoders that share Llama's keys.

Tiny models of transformers, on one fixed batch, on the CPU in float32 with one thread. The files,
crates/train/tests/golden/FAMILY.safetensors, contain the tensors of golden.py, and:

    tokens       (B, T) int32       the input
    targets      (B, T) int32       the token that each position should predict; not shifted
    greedy       (10,) int32        the likeliest tokens after the first sample, one after the other

and in their metadata, as `config`, the config.json that transformers writes. Each model has every feature of its family on, and
windows shorter than the samples:

    llama          an untied head, grouped keys and values, frequencies scaled as in Llama 3: of its four frequencies one is kept,
                   one is blended and two are divided
    mistral        a window in all layers
    ministral      a window in the first layer
    qwen2          biases of queries, keys and values, a tied head, which is not stored, and heads whose size is not
                   hidden_size / num_attention_heads; qwen2_window has a window in the second layer. The gradient of k_proj.bias is
                   not 0 in exact arithmetic here, because the rotary embedding rotates keys before the softmax
    qwen3          norms of queries and keys, biases
    gemma          offset weights of norms, a scaled embedding
    gemma2         soft caps that change scores and logits, norms after each part, a window in every other layer
    gemma3         norms of queries and keys, two rotary bases, scaled positions of the layers without a window
    phi3           packed layers, grouped keys and values, a part of each head rotated, factors for long sequences
    smollm3        a layer without positions
    olmo2, olmo3   norms after each part, norms of all queries and all keys; in olmo3 windows and YaRN
    granite        four factors, biases
    qwen3_moe      experts whose weights sum to one, a layer without experts
    olmoe, mixtral experts; their routers differ
    gpt_oss        experts with biases, whose gates and other channels exceed their limit, sinks, a window in the first layer, YaRN
                   without whole numbers as bounds
    qwen3_moe_balanced, gpt_oss_balanced
                   with the loss on the balance of experts

usage:  python scripts/golden_decoders.py [OUT_DIR]
needs:  pip install torch transformers safetensors
The committed values were made with torch 2.15.0 and transformers 5.23.0 or 5.24.0; the files' metadata names the versions.
"""

import torch
import transformers

import golden

B, T = 3, 14
# An untied head makes steps larger.
UNTIED_STD = 0.15

SIZES = {
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
    # The plain formula; fused kernels may sum in another order.
    "attn_implementation": "eager",
}

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    # Wavelengths are 6, 63, 628 and 6283 positions: up to 64 / 4 are kept, from 64 on divided.
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "attention_factor": 1.1,
}
QWEN2 = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "head_dim": 6,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
    "tie_word_embeddings": True,
    "max_window_layers": 1,
}
GEMMA = {"head_dim": 8, "tie_word_embeddings": True}

# For each file: the class's name without its ending, and the values that differ from SIZES.
MODELS = {
    "llama": (
        "Llama",
        {"hidden_size": 32, "intermediate_size": 40, "max_position_embeddings": 256, "rope_parameters": LLAMA3},
    ),
    "mistral": ("Mistral", {"head_dim": 6, "sliding_window": 5}),
    "ministral": (
        "Ministral",
        {"head_dim": 6, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "qwen2": ("Qwen2", QWEN2 | {"use_sliding_window": False, "sliding_window": None}),
    "qwen2_window": ("Qwen2", QWEN2 | {"use_sliding_window": True, "sliding_window": 4}),
    "qwen3": ("Qwen3", {"head_dim": 8, "attention_bias": True, "tie_word_embeddings": True}),
    "gemma": ("Gemma", GEMMA),
    "gemma2": (
        "Gemma2",
        GEMMA
        | {
            "sliding_window": 5,
            "query_pre_attn_scalar": 12,
            "attn_logit_softcapping": 1.5,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3": (
        "Gemma3",
        GEMMA
        | {
            "num_hidden_layers": 3,
            "sliding_window": 5,
            "query_pre_attn_scalar": 12,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 100000.0, "factor": 2.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
            },
        },
    ),
    "phi3": (
        "Phi3",
        {
            "sliding_window": 6,
            "original_max_position_embeddings": 8,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                # Four of a head's six channels.
                "partial_rotary_factor": 0.67,
                "short_factor": [1.0, 1.5],
                "long_factor": [1.25, 4.0],
            },
        },
    ),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0], "tie_word_embeddings": True}),
    "olmo2": ("Olmo2", {}),
    "olmo3": (
        "Olmo3",
        {
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
    "granite": (
        "Granite",
        {
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "embedding_multiplier": 2.0,
            "logits_scaling": 1.5,
            "residual_multiplier": 0.7,
            "attention_multiplier": 0.4,
        },
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            "num_hidden_layers": 3,
            "head_dim": 8,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 12,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "olmoe": ("Olmoe", {"num_experts": 4, "num_experts_per_tok": 3, "norm_topk_prob": False}),
    "mixtral": ("Mixtral", {"num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": 7, "head_dim": 6}),
    "gpt_oss": (
        "GptOss",
        {
            "head_dim": 6,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "swiglu_limit": 0.8,
            "sliding_window": 5,
            "max_position_embeddings": 256,
            # The second of three frequencies is blended in two to one; with whole bounds it would be one to one.
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "truncate": False}
            | {"original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0},
        },
    ),
}

# Large enough that a wrong loss changes gradients by more than rounding.
for name in ("qwen3_moe", "gpt_oss"):
    MODELS[f"{name}_balanced"] = (MODELS[name][0], MODELS[name][1] | {"output_router_logits": True, "router_aux_loss_coef": 0.5})


def tiny(name: str, seed: int = golden.SEED, vocab_size: int = golden.VOCAB_SIZE) -> transformers.PreTrainedModel:
    family, differing = MODELS[name]
    kind = f"{family}TextConfig" if family == "Gemma3" else f"{family}Config"
    config = getattr(transformers, kind)(**SIZES | {"vocab_size": vocab_size} | differing)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    golden.randomise(model, seed, golden.INIT_STD if config.tie_word_embeddings else UNTIED_STD)
    return model


def golden_tensors(model) -> golden.Tensors:
    tokens, targets = golden.random_batch(model.config.vocab_size, (B, T))
    tensors = {
        "tokens": tokens.to(torch.int32),
        "targets": targets.to(torch.int32),
        "greedy": golden.greedy(model, tokens[0]),
    }
    return tensors | golden.training_tensors(model, {"input_ids": tokens}, targets)


def golden_values(model) -> tuple[golden.Tensors, str]:
    config = golden.config_json(model)
    return golden_tensors(model), config


if __name__ == "__main__":
    golden.write_models(__file__, {name: lambda name=name: golden_values(tiny(name)) for name in MODELS})
