#!/usr/bin/env python3
"""Times the training step of a GPT in eager PyTorch on the CPU: forward, backward, fused AdamW, in float32.

This is the PyTorch side of compare_torch.py, which also defines the cases, and runs one process of this for each
measurement so that the peak memory is that measurement's own. Linux only: memory is read from /proc.

usage:  python bench/torch_step.py --layers 6 --hidden 384 --heads 6 --vocab-size 65 --positions 256 --seq-len 256 \\
            --micro-batch 12 --bias false [--steps 5] [--warm-up 2] [--threads 2]
needs:  pip install torch numpy

stdout is one JSON object; rss_after_import_bytes is what the process held before it built the model.
"""

import argparse
import json
import resource
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

INIT_STD = 0.02


class Block(nn.Module):
    """A pre-norm transformer block. x: (B, T, C) -> (B, T, C)."""

    def __init__(self, hidden: int, heads: int, bias: bool):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(hidden, bias=bias)
        self.attn_qkv = nn.Linear(hidden, 3 * hidden, bias=bias)
        self.attn_out = nn.Linear(hidden, hidden, bias=bias)
        self.ln_2 = nn.LayerNorm(hidden, bias=bias)
        self.mlp_in = nn.Linear(hidden, 4 * hidden, bias=bias)
        self.mlp_out = nn.Linear(4 * hidden, hidden, bias=bias)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        # (B, T, 3C) -> three of (B, H, T, D)
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.attn_qkv(x).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.attn_out(y.transpose(1, 2).reshape(b, t, c))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.ln_1(x))
        return x + self.mlp_out(F.gelu(self.mlp_in(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """GPT-2 with a tied head. tokens, targets: (B, T) -> the mean cross-entropy."""

    def __init__(self, layers: int, hidden: int, heads: int, vocab_size: int, positions: int, bias: bool):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, hidden)
        self.wpe = nn.Embedding(positions, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads, bias) for _ in range(layers))
        self.ln_f = nn.LayerNorm(hidden, bias=bias)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=INIT_STD)
            if isinstance(module, nn.Linear) and bias:
                nn.init.zeros_(module.bias)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def rss_now_bytes() -> int:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status names no VmRSS")


def rss_peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def boolean(text: str) -> bool:
    return {"true": True, "false": False}[text]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Times the training step of a GPT in eager PyTorch on the CPU.")
    for name in ("layers", "hidden", "heads", "vocab-size", "positions", "seq-len", "micro-batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--bias", type=boolean, required=True, metavar="true|false")
    parser.add_argument("--steps", type=int, default=5, help="steps that count")
    parser.add_argument("--warm-up", type=int, default=2, help="steps before those, which do not")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def main() -> None:
    a = parse_arguments()
    torch.set_num_threads(a.threads)
    torch.manual_seed(1337)
    rss_after_import_bytes = rss_now_bytes()

    model = Gpt(a.layers, a.hidden, a.heads, a.vocab_size, a.positions, a.bias)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    step_ms = []
    for _ in range(a.warm_up + a.steps):
        # Drawing the batch is not part of the step.
        tokens, targets = torch.randint(0, a.vocab_size, (2, a.micro_batch, a.seq_len))
        start = time.perf_counter()
        loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step_ms.append((time.perf_counter() - start) * 1e3)
    step_ms = step_ms[a.warm_up :]

    step_ms_p50 = statistics.median(step_ms)
    report = {
        "torch": torch.__version__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens_per_step": a.micro_batch * a.seq_len,
        "step_ms_p50": step_ms_p50,
        "step_ms_min": min(step_ms),
        "tokens_per_s": a.micro_batch * a.seq_len / step_ms_p50 * 1e3,
        "rss_after_import_bytes": rss_after_import_bytes,
        "peak_rss_bytes": rss_peak_bytes(),
        "last_loss": loss.item(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
