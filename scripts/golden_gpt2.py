#!/usr/bin/env python3
"""Makes the golden values that the GPT-2 model of Plimsoll is tested against.

A tiny GPT2LMHeadModel of transformers, on one fixed batch, on the CPU in float32 with one thread.
The file, crates/train/tests/golden/gpt2.safetensors, holds:

    tokens       (B, T) int32       the input
    targets      (B, T) int32       what each position should predict; nothing is shifted
    weight.NAME  float32            every parameter before the first step, under the name that save_pretrained writes
    grad.NAME    float32            its gradient of the mean cross-entropy at those weights, before clipping
    logits       (B, T, V) float32  at those weights
    losses       (STEPS,) float32   of AdamW steps on that same batch, each taken before its update
    grad_norms   (STEPS,) float32   the global norm of each step's gradient before clipping

lm_head.weight is tied to transformer.wte.weight and is not stored; its gradient is part of wte's.
The matrices of attn and mlp are transformers' Conv1D: they lie as (in, out), and y = x @ W + b.
The gradient of the key third of each attn.c_attn.bias is 0 in exact arithmetic, because softmax ignores a constant
that is added to a row of scores. What is stored there is rounding noise: compare it absolutely, not relatively.

usage:  python scripts/golden_gpt2.py [OUT.safetensors]
needs:  pip install torch transformers safetensors
The committed values were made with torch 2.15.0 and transformers 5.23.0; the file's metadata names the versions too.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

REPOSITORY = Path(__file__).resolve().parents[1]
DEFAULT_OUT = REPOSITORY / "crates/train/tests/golden/gpt2.safetensors"

SEED = 1337
B, T = 3, 10
STEPS = 10
LEARNING_RATE = 1e-2
BETAS = (0.9, 0.95)
EPS = 1e-8
WEIGHT_DECAY = 0.1
MAX_GRAD_NORM = 1.0
# Large enough that no gradient is tiny, so that a wrong factor shows above the rounding.
INIT_STD = 0.2


def tiny_gpt2(seed: int = SEED) -> GPT2LMHeadModel:
    """A GPT-2 of two layers whose every parameter is random, biases and LayerNorms included."""
    config = GPT2Config(
        n_layer=2,
        n_embd=16,
        n_head=2,
        n_positions=16,
        vocab_size=37,
        activation_function="gelu_new",
        layer_norm_epsilon=1e-5,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=True,
        use_cache=False,
        # The defaults, 50256, lie outside this vocabulary.
        bos_token_id=0,
        eos_token_id=0,
        # The plain formula; the fused kernels may sum in another order.
        attn_implementation="eager",
    )
    model = GPT2LMHeadModel(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, INIT_STD, generator=generator)
            if name.split(".")[-2].startswith("ln_") and name.endswith(".weight"):
                parameter.add_(1.0)
    return model


def one_thread() -> None:
    """Makes torch repeat itself bit for bit."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


def random_batch(vocab_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(SEED + 1)
    tokens = torch.randint(0, vocab_size, (B, T), generator=generator)
    targets = torch.randint(0, vocab_size, (B, T), generator=generator)
    return tokens, targets


def logits_and_loss(model, tokens, targets):
    logits = model(input_ids=tokens).logits
    return logits, F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def adamw(model) -> torch.optim.AdamW:
    """AdamW that decays matrices and embeddings, and neither biases nor LayerNorms."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=EPS)


def golden_tensors(model) -> dict[str, torch.Tensor]:
    model.train()
    tokens, targets = random_batch(model.config.vocab_size)
    tensors = {"tokens": tokens.to(torch.int32), "targets": targets.to(torch.int32)}

    logits, loss = logits_and_loss(model, tokens, targets)
    loss.backward()
    tensors["logits"] = logits.detach().clone()
    # named_parameters yields a tied parameter once, under its first name, which is the one that save_pretrained keeps.
    for name, parameter in model.named_parameters():
        tensors[f"weight.{name}"] = parameter.detach().clone()
        tensors[f"grad.{name}"] = parameter.grad.clone()

    optimizer = adamw(model)
    losses, grad_norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        _, loss = logits_and_loss(model, tokens, targets)
        loss.backward()
        losses.append(loss.detach())
        grad_norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM))
        optimizer.step()
    tensors["losses"] = torch.stack(losses)
    tensors["grad_norms"] = torch.stack(grad_norms)
    return tensors


def metadata() -> dict[str, str]:
    # One key only: safetensors does not promise an order for more, and the file should come out the same each time.
    return {
        "made_with": f"scripts/golden_gpt2.py, torch {torch.__version__}, transformers {transformers.__version__}"
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the golden values of the GPT-2 model.")
    parser.add_argument("out", nargs="?", type=Path, default=DEFAULT_OUT, help="the safetensors file to write")
    arguments = parser.parse_args()

    one_thread()
    tensors = golden_tensors(tiny_gpt2())
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, arguments.out, metadata=metadata())

    weights = sum(name.startswith("weight.") for name in tensors)
    print(f"{arguments.out.name}: {weights} weights, {arguments.out.stat().st_size} bytes")
    print("losses:    ", " ".join(f"{x:.6f}" for x in tensors["losses"].tolist()))
    print("grad norms:", " ".join(f"{x:.6f}" for x in tensors["grad_norms"].tolist()))


if __name__ == "__main__":
    main()
