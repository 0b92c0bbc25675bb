#!/usr/bin/env python3
"""Creates the golden values for tests of Plimsoll's GPT-2 model.

A tiny GPT2LMHeadModel of transformers, on one fixed batch, on the CPU in float32 with one thread.
The file, crates/train/tests/golden/gpt2.safetensors, contains the tensors of golden.py, and:

    tokens       (B, T) int32       the input
    targets      (B, T) int32       the token that each position should predict; not shifted

lm_head.weight is tied to transformer.wte.weight and is not stored; its gradient is part of wte's.
The matrices of attn and mlp are transformers' Conv1D: they are stored as (in, out), and y = x @ W + b.
The gradient of the key third of each attn.c_attn.bias is 0 in exact arithmetic, because softmax ignores a constant added to a row
of scores. The stored values are rounding noise: compare them absolutely, not relatively.

usage:  python scripts/golden_gpt2.py [OUT.safetensors]
needs:  pip install torch transformers safetensors
The committed values were made with torch 2.15.0 and transformers 5.23.0; the file's metadata names the versions too.
"""

import argparse
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import golden

DEFAULT_OUT = golden.GOLDEN / "gpt2.safetensors"

B, T = 3, 10


def tiny_gpt2(seed: int = golden.SEED, vocab_size: int = golden.VOCAB_SIZE) -> GPT2LMHeadModel:
    """A GPT-2 with two layers and random parameters, including biases and LayerNorms."""
    config = GPT2Config(
        n_layer=2,
        n_embd=16,
        n_head=2,
        n_positions=16,
        vocab_size=vocab_size,
        activation_function="gelu_new",
        layer_norm_epsilon=1e-5,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=True,
        use_cache=False,
        # The defaults, 50256, are outside this vocabulary.
        bos_token_id=0,
        eos_token_id=0,
        # The plain formula; fused kernels may sum in another order.
        attn_implementation="eager",
    )
    model = GPT2LMHeadModel(config)
    golden.randomise(model, seed)
    return model


def golden_tensors(model) -> golden.Tensors:
    tokens, targets = golden.random_batch(model.config.vocab_size, (B, T))
    batch = {"tokens": tokens.to(torch.int32), "targets": targets.to(torch.int32)}
    return batch | golden.training_tensors(model, {"input_ids": tokens}, targets)


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the golden values of the GPT-2 model.")
    parser.add_argument("out", nargs="?", type=Path, default=DEFAULT_OUT, help="the safetensors file to write")
    arguments = parser.parse_args()

    golden.one_thread()
    golden.write(golden_tensors(tiny_gpt2()), arguments.out, {"made_with": golden.made_with(__file__)})


if __name__ == "__main__":
    main()
