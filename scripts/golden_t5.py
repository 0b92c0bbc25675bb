#!/usr/bin/env python3
"""Creates the golden values for tests of Plimsoll's T5 models.

Tiny models of transformers, on one fixed batch of pairs, on the CPU in float32 with one thread. The files,
crates/train/tests/golden/t5_v1_0.safetensors and t5_v1_1.safetensors, contain the tensors of golden.py, and:

    tokens          (B, S) int32    the sources, 0 after their end
    segments        (B, S) int32    1 for tokens of the source, 0 after its end
    decoder_tokens  (B, T) int32    the targets shifted right after the start id 0, and 0 after their end
    targets         (B, T) int32    the token that each position of the decoder should predict, -1 after the end
    greedy          (10,) int32     the likeliest tokens after the start id for the first source, one after the other

and in their metadata, as `config`, the config.json that transformers writes.

v1.0 has a ReLU and a head tied to shared.weight, which is stored once and applied to decoder states divided by the root of d_model.
v1.1 has a gated GELU and an untied head, whose states are not divided. When it reads a T5, transformers 5 always sets
tie_word_embeddings, stores the original value as scale_decoder_outputs, and leaves the head untied if the file has one; here the
head is untied by hand, and `config` has both keys as false. Published files have only tie_word_embeddings; files that transformers 5
writes have it true, and scale_decoder_outputs false. Sequences are longer than relative_attention_max_distance, so that every bucket
is used, except the encoder's bucket for 0 positions ahead: 0 counts as behind, so that bucket's gradient is exactly 0.

usage:  python scripts/golden_t5.py [OUT_DIR]
needs:  pip install torch transformers safetensors
The committed values were made with torch 2.15.0 and transformers 5.23.0; the files' metadata names the versions too.
"""

import torch
from transformers import T5Config, T5ForConditionalGeneration

import golden

B, S, T = 3, 26, 24
SOURCE_LENGTHS = (26, 17, 3)
TARGET_LENGTHS = (24, 5, 14)
# Lower ids are padding, which also starts the decoder, and the end.
FIRST_ID = 2


def tiny_t5(
    v1_1: bool, seed: int = golden.SEED, vocab_size: int = golden.VOCAB_SIZE, of=(T5Config, T5ForConditionalGeneration)
) -> T5ForConditionalGeneration:
    """of: the classes, those of T5 or of mT5, which has the architecture of v1.1."""
    config = of[0](
        vocab_size=vocab_size,
        d_model=16,
        d_kv=6,
        d_ff=24,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=2,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=20,
        dropout_rate=0.0,
        layer_norm_epsilon=1e-6,
        feed_forward_proj="gated-gelu" if v1_1 else "relu",
        tie_word_embeddings=not v1_1,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        # The plain formula; fused kernels may sum in another order.
        attn_implementation="eager",
    )
    model = of[1](config)
    if v1_1:
        model.lm_head.weight = torch.nn.Parameter(torch.empty(config.vocab_size, config.d_model))
        model.all_tied_weights_keys.pop("lm_head.weight")
        config.tie_word_embeddings = False
    golden.randomise(model, seed)
    if not v1_1:
        # The head is divided by 4; otherwise no gradient would be clipped.
        with torch.no_grad():
            model.shared.weight.mul_(3.0)
    return model


def padded_batch(vocab_size: int) -> golden.Tensors:
    """The batch of the files, with torch's type for ids."""
    generator = torch.Generator().manual_seed(golden.SEED + 1)
    tokens = torch.randint(FIRST_ID, vocab_size, (B, S), generator=generator)
    targets = torch.randint(FIRST_ID, vocab_size, (B, T), generator=generator)
    segments = (torch.arange(S) < torch.tensor(SOURCE_LENGTHS)[:, None]).long()
    counts = torch.arange(T) < torch.tensor(TARGET_LENGTHS)[:, None]
    shifted = torch.cat([torch.zeros(B, 1, dtype=torch.long), (targets * counts)[:, :-1]], dim=1)
    return {
        "tokens": tokens * segments,
        "segments": segments,
        "decoder_tokens": shifted,
        "targets": targets.masked_fill(~counts, -1),
    }


def check_batch(model, batch: golden.Tensors) -> None:
    """Checks that transformers derives the same batch from the labels."""
    labels = batch["targets"].masked_fill(batch["targets"] == -1, -100)
    assert torch.equal(model._shift_right(labels), batch["decoder_tokens"])


def golden_tensors(model) -> golden.Tensors:
    batch = padded_batch(model.config.vocab_size)
    check_batch(model, batch)
    inputs = {
        "input_ids": batch["tokens"],
        "attention_mask": batch["segments"],
        "decoder_input_ids": batch["decoder_tokens"],
    }
    tensors = {name: tensor.to(torch.int32) for name, tensor in batch.items()}
    tensors["greedy"] = golden.greedy(model, batch["tokens"][0])
    return tensors | golden.training_tensors(model, inputs, batch["targets"])


def golden_values(v1_1: bool) -> tuple[golden.Tensors, str]:
    model = tiny_t5(v1_1)
    config = golden.config_json(model)
    return golden_tensors(model), config


if __name__ == "__main__":
    golden.write_models(__file__, {"t5_v1_0": lambda: golden_values(False), "t5_v1_1": lambda: golden_values(True)})
