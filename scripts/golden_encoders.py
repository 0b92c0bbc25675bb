#!/usr/bin/env python3
"""Creates the golden values for tests of Plimsoll's encoders.

Tiny models of transformers, on one fixed batch of pairs of texts, on the CPU in float32 with one thread. The files,
crates/train/tests/golden/bert.safetensors, modernbert.safetensors and bert_negatives.safetensors, contain the tensors of
golden.py without logits, and:

    tokens            (B, S) int32    the anchors, 0 after their end
    segments          (B, S) int32    1 for tokens of the anchor, 0 after its end
    decoder_tokens    (N, T) int32    the N candidates: the positives of all anchors, and with negatives N = 2B, their negatives
    decoder_segments  (N, T) int32    the same of the candidates
    targets           (B,) int32      the number of each row
    embeddings        (B + N, C)      means over the tokens of anchors and candidates, float32

and in their metadata, as `config`, the config.json that transformers writes. The loss is MultipleNegativesRankingLoss of
sentence-transformers with a scale of 1: the cross-entropy of the cosines of each anchor with all candidates. With a larger scale the
gradients of later steps would be tiny. Anchors are longer than ModernBERT's window, and BERT's pooler, which has no part in the
loss, is left out.

usage:  python scripts/golden_encoders.py [OUT_DIR]
needs:  pip install torch transformers safetensors
"""

import torch
import torch.nn.functional as F
from transformers import BertConfig, BertModel, ModernBertConfig, ModernBertModel

import golden

B, S, T = 3, 26, 19
ANCHOR_LENGTHS = (26, 17, 3)
# The first two samples have the same positive, so that no weights make the loss tiny.
POSITIVE_LENGTHS = (19, 19, 12)
NEGATIVE_LENGTHS = (7, 1, 15)
SCALE = 1.0


def tiny_bert(seed: int = golden.SEED, vocab_size: int = golden.VOCAB_SIZE):
    config = BertConfig(
        vocab_size=vocab_size, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=32, type_vocab_size=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        # The plain formula; fused kernels may sum in another order.
        attn_implementation="eager",
    )
    model = BertModel(config, add_pooling_layer=False)
    golden.randomise(model, seed)
    return model


def tiny_modernbert(seed: int = golden.SEED, vocab_size: int = golden.VOCAB_SIZE):
    config = ModernBertConfig(
        vocab_size=vocab_size, hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=12,
        max_position_embeddings=32, local_attention=10, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1,
        sep_token_id=2, attn_implementation="eager",
    )
    model = ModernBertModel(config)
    golden.randomise(model, seed)
    return model


def batch_of_pairs(vocab_size: int) -> golden.Tensors:
    generator = torch.Generator().manual_seed(golden.SEED + 1)

    def texts(tokens: int, lengths: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        segments = (torch.arange(tokens) < torch.tensor(lengths)[:, None]).long()
        return torch.randint(3, vocab_size, (B, tokens), generator=generator) * segments, segments

    (tokens, segments), (others, of_others) = texts(S, ANCHOR_LENGTHS), texts(T, POSITIVE_LENGTHS)
    others[1] = others[0]
    return {
        "tokens": tokens, "segments": segments, "decoder_tokens": others, "decoder_segments": of_others,
        "targets": torch.arange(B),
    }


def batch_of_triplets(vocab_size: int) -> golden.Tensors:
    """The same pairs, each with a hard negative: candidates B to 2B - 1."""
    batch = batch_of_pairs(vocab_size)
    generator = torch.Generator().manual_seed(golden.SEED + 2)
    segments = (torch.arange(T) < torch.tensor(NEGATIVE_LENGTHS)[:, None]).long()
    negatives = torch.randint(3, vocab_size, (B, T), generator=generator) * segments
    return batch | {
        "decoder_tokens": torch.cat([batch["decoder_tokens"], negatives]),
        "decoder_segments": torch.cat([batch["decoder_segments"], segments]),
    }


def embeddings(model, batch: golden.Tensors) -> torch.Tensor:
    """(B + N, C): means over the tokens of each text, of the anchors and of their N candidates."""
    means = []
    for side in ("", "decoder_"):
        mask = batch[f"{side}segments"]
        states = model(input_ids=batch[f"{side}tokens"], attention_mask=mask).last_hidden_state
        means.append((states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))
    return torch.cat(means)


def loss_of(vectors: torch.Tensor) -> torch.Tensor:
    anchors, candidates = F.normalize(vectors, dim=-1).split([B, len(vectors) - B])
    return F.cross_entropy(SCALE * anchors @ candidates.T, torch.arange(B))


def golden_values(model, make_batch=batch_of_pairs) -> tuple[golden.Tensors, str]:
    config = golden.config_json(model)
    batch = make_batch(model.config.vocab_size)
    tensors = {name: tensor.to(torch.int32) for name, tensor in batch.items()}
    model.train()
    vectors = embeddings(model, batch)
    loss_of(vectors).backward()
    tensors["embeddings"] = vectors.detach().clone()
    for name, parameter in model.named_parameters():
        tensors[f"weight.{name}"] = parameter.detach().clone()
        tensors[f"grad.{name}"] = parameter.grad.clone()
    losses, norms = golden.steps(model, lambda: loss_of(embeddings(model, batch)))
    return tensors | {"losses": losses, "grad_norms": norms}, config


if __name__ == "__main__":
    golden.write_models(
        __file__,
        {
            "bert": lambda: golden_values(tiny_bert()),
            "modernbert": lambda: golden_values(tiny_modernbert()),
            "bert_negatives": lambda: golden_values(tiny_bert(), batch_of_triplets),
        },
    )
