#!/usr/bin/env python3
"""Creates the golden values for tests of Plimsoll's Llama, Mistral and Qwen2 models.

Tiny models of transformers, on one fixed batch, on the CPU in float32 with one thread. The files,
crates/train/tests/golden/llama.safetensors, mistral.safetensors, qwen2.safetensors and qwen2_window.safetensors, contain the
tensors of golden.py, and:

    tokens       (B, T) int32       the input
    targets      (B, T) int32       the token that each position should predict; not shifted
    greedy       (10,) int32        the likeliest tokens after the first sample, one after the other

and in their metadata, as `config`, the config.json that transformers writes.

Llama has an untied head, grouped keys and values, and frequencies scaled as in Llama 3: of its four frequencies one is kept, one is
blended and two are divided. Qwen2 has biases for queries, keys and values, a tied head, which is not stored, and heads whose size is
not hidden_size / num_attention_heads. Mistral attends within a window shorter than the samples, and so does the second layer of the
other Qwen2, whose first layer attends to all tokens. The gradient of k_proj.bias is not 0 in exact arithmetic here, because the
rotary embedding rotates keys before the softmax.

usage:  python scripts/golden_llama.py [OUT_DIR]
needs:  pip install torch transformers safetensors
The committed values were made with torch 2.15.0 and transformers 5.23.0; the files' metadata names the versions too.
"""

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

import golden

B, T = 3, 14
# An untied head makes steps larger.
LLAMA_STD = 0.15


def tiny_llama(seed: int = golden.SEED, vocab_size: int = golden.VOCAB_SIZE) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            # Wavelengths are 6, 63, 628 and 6283 positions: up to 64 / 4 are kept, from 64 on divided.
            "original_max_position_embeddings": 64,
        },
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
        # The plain formula; fused kernels may sum in another order.
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config)
    golden.randomise(model, seed, LLAMA_STD)
    return model


def tiny_mistral(seed: int = golden.SEED, vocab_size: int = golden.VOCAB_SIZE) -> MistralForCausalLM:
    config = MistralConfig(
        vocab_size=vocab_size,
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        max_position_embeddings=64,
        sliding_window=5,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        bos_token_id=0,
        eos_token_id=1,
        attn_implementation="eager",
    )
    model = MistralForCausalLM(config)
    golden.randomise(model, seed, LLAMA_STD)
    return model


def tiny_qwen2(
    seed: int = golden.SEED, vocab_size: int = golden.VOCAB_SIZE, window: int | None = None
) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        max_position_embeddings=64,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        tie_word_embeddings=True,
        use_sliding_window=window is not None,
        sliding_window=window,
        max_window_layers=1,
        bos_token_id=0,
        eos_token_id=1,
        attn_implementation="eager",
    )
    model = Qwen2ForCausalLM(config)
    golden.randomise(model, seed)
    return model


def golden_values(model) -> tuple[golden.Tensors, str]:
    config = golden.config_json(model)
    tokens, targets = golden.random_batch(model.config.vocab_size, (B, T))
    tensors = {
        "tokens": tokens.to(torch.int32),
        "targets": targets.to(torch.int32),
        "greedy": golden.greedy(model, tokens[0]),
    }
    return tensors | golden.training_tensors(model, {"input_ids": tokens}, targets), config


if __name__ == "__main__":
    makers = {
        "llama": lambda: golden_values(tiny_llama()),
        "mistral": lambda: golden_values(tiny_mistral()),
        "qwen2": lambda: golden_values(tiny_qwen2()),
        "qwen2_window": lambda: golden_values(tiny_qwen2(window=4)),
    }
    golden.write_models(__file__, makers)
