#!/usr/bin/env python3
"""Times the training step of a language model in PyTorch on the CPU: forward, backward, clipping, fused AdamW.

This is the PyTorch side of compare_torch.py, which also defines the cases and runs it in a process of its own for each
measurement, so that the peak memory is that measurement's. Linux only: reads memory from /proc.

usage:  python bench/torch_step.py --layers 6 --hidden 384 --heads 6 --vocab-size 65 --positions 256 --bias false \\
            --seq-len 256 --micro-batch 12 [--mode eager] [--steps 5] [--warm-up 2] [--threads 2]
        python bench/torch_step.py --model smollm2-135m --seq-len 256 --micro-batch 4 [--mode compile-autocast]
        python bench/torch_step.py --model t5-small --seq-len 256 --target-len 64 --micro-batch 8
        python bench/torch_step.py --model smollm2-135m --seq-len 256 --micro-batch 4 --mode compile --memory-budget 0.5
needs:  pip install torch numpy, for `--model` also transformers; modes with torch.compile need a C++ compiler

A GPT is the module below; named models are those of transformers, with random weights, scaled_dot_product_attention and no dropout.
Weights and optimizer are in float32 in all modes; `autocast` computes in bfloat16 where PyTorch chooses it.

stdout is one JSON object. rss_after_import_bytes is the resident memory before the model is built, after loading PyTorch,
transformers and torch.compile's own code (by compiling a function with one addition), as the mode needs. With --memory-budget
(torch._functorch.config.activation_memory_budget) there is also `activations`: what the forward pass saved in an additional step,
from autograd's graph and from the allocator, and the rise of the step's memory.
"""

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.profiler import record_function

INIT_STD = 0.02
# Layers, channels, inner channels, heads, heads of keys, ids, positions, epsilon and theta. Source: the config.json of
# HuggingFaceTB/SmolLM2-135M.
LLAMA = {"smollm2-135m": (30, 576, 1536, 9, 3, 49152, 8192, 1e-5, 100_000.0)}
# Layers of each side, channels, inner channels, heads, channels of a head and ids. Source: that of google-t5/t5-small.
T5 = {"t5-small": (6, 512, 2048, 8, 64, 32128)}
MODES = ("eager", "autocast", "compile", "compile-autocast")


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


def llama(name: str) -> nn.Module:
    # Imported here, so that a GPT's process does not load it.
    from transformers import LlamaConfig, LlamaForCausalLM

    layers, channels, inner, heads, kv_heads, ids, positions, epsilon, theta = LLAMA[name]
    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=channels,
        intermediate_size=inner,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=ids,
        max_position_embeddings=positions,
        rms_norm_eps=epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        tie_word_embeddings=True,
        attention_dropout=0.0,
        use_cache=False,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


def t5(name: str) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    layers, channels, inner, heads, head_channels, ids = T5[name]
    config = T5Config(
        num_layers=layers,
        num_decoder_layers=layers,
        d_model=channels,
        d_ff=inner,
        num_heads=heads,
        d_kv=head_channels,
        vocab_size=ids,
        feed_forward_proj="relu",
        tie_word_embeddings=True,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        use_cache=False,
        attn_implementation="sdpa",
    )
    return T5ForConditionalGeneration(config)


def build(a: argparse.Namespace) -> nn.Module:
    if a.model is None:
        return Gpt(a.layers, a.hidden, a.heads, a.vocab_size, a.positions, a.bias)
    return t5(a.model) if a.model in T5 else llama(a.model)


def draw_batch(a: argparse.Namespace, model: nn.Module) -> dict[str, torch.Tensor]:
    """Random tokens as keyword arguments of the model."""
    ids = a.vocab_size if a.model is None else model.config.vocab_size
    source = torch.randint(0, ids, (a.micro_batch, a.seq_len))
    labels = torch.randint(0, ids, (a.micro_batch, a.target_len or a.seq_len))
    if a.model is None:
        return {"tokens": source, "targets": labels}
    decoder = {} if a.target_len is None else {"decoder_input_ids": torch.randint(0, ids, labels.shape)}
    return {"input_ids": source, "labels": labels} | decoder


def rss_now_bytes() -> int:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status names no VmRSS")


def rss_peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@dataclass(frozen=True)
class Held:
    """Memory that the CPU allocator held in a step beyond what it held before."""

    peak_bytes: int
    peak_phase: str
    after_forward_bytes: int


def held(step: Callable[[], None]) -> Held:
    """Measures a step whose parts are record_functions: forward, backward, optimizer."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    events = sorted(profiled.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    forward_end_ns = next(e.start_ns() + e.duration_ns() for e in events if e.name() == "forward")
    total_bytes, peak_bytes, phase, peak_phase, after_forward_bytes = 0, 0, "", "", 0
    for event in events:
        if event.name() in ("forward", "backward", "optimizer"):
            phase = event.name()
        if event.name() != "[memory]":
            continue
        total_bytes += event.nbytes()
        if event.start_ns() <= forward_end_ns:
            after_forward_bytes = total_bytes
        if total_bytes > peak_bytes:
            peak_bytes, peak_phase = total_bytes, phase
    # A step frees everything that it allocates; otherwise the profiler lost events.
    if peak_bytes == 0 or total_bytes != 0:
        sys.exit(f"error: the profiler's events sum to {total_bytes} bytes after the step, {peak_bytes} at the peak")
    return Held(peak_bytes, peak_phase, after_forward_bytes)


def saved_bytes(loss: torch.Tensor, model: nn.Module, batch: dict[str, torch.Tensor]) -> int:
    """Bytes of the storages that autograd's graph holds for the backward pass, each counted once; without those of parameters
    and batch, which exist anyway."""
    inputs = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *batch.values()]}
    found, seen, waiting = {}, set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [following for following, _ in node.next_functions]
        # Tensors saved by compiled functions, and by the operations around them.
        names = [name for name in dir(node) if name == "saved_tensors" or name.startswith("_saved_")]
        for value in (getattr(node, name) for name in names):
            for tensor in value if isinstance(value, (tuple, list)) else [value]:
                if isinstance(tensor, torch.Tensor):
                    storage = tensor.untyped_storage()
                    found[storage.data_ptr()] = storage.nbytes()
    return sum(size for pointer, size in found.items() if pointer not in inputs)


def boolean(text: str) -> bool:
    return {"true": True, "false": False}[text]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Times a training step in PyTorch on the CPU.")
    parser.add_argument("--model", choices=[*LLAMA, *T5], help="model of transformers; without it, a GPT with these sizes:")
    sizes = ("layers", "hidden", "heads", "vocab-size", "positions")
    for name in sizes:
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--bias", type=boolean, metavar="true|false")
    parser.add_argument("--seq-len", type=int, required=True)
    parser.add_argument("--target-len", type=int, help="tokens per target, for T5")
    parser.add_argument("--micro-batch", type=int, required=True)
    parser.add_argument("--mode", choices=MODES, default="eager")
    parser.add_argument("--steps", type=int, default=5, help="measured steps")
    parser.add_argument("--warm-up", type=int, default=2, help="steps before the measured ones")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--grad-clip", type=float, default=1.0, help="limit of the gradients' norm; 0 does not clip")
    parser.add_argument("--memory-budget", type=float, metavar="0..1", help="activation_memory_budget of torch.compile")
    a = parser.parse_args()
    missing = [name for name in (*sizes, "bias") if getattr(a, name.replace("-", "_")) is None]
    if a.model is None and missing:
        parser.error(f"a GPT needs --{missing[0]}")
    if (a.target_len is not None) != (a.model in T5):
        parser.error("T5 needs --target-len, and no other model has it")
    if a.memory_budget is not None and not a.mode.startswith("compile"):
        parser.error("--memory-budget needs a mode with torch.compile")
    return a


def load(a: argparse.Namespace) -> None:
    """Imports everything that the mode and the model need."""
    if a.model is not None:
        import transformers  # noqa: F401
    if a.mode.startswith("compile"):
        torch.compile(lambda x: x + 1)(torch.zeros(1))


def main() -> None:
    a = parse_arguments()
    torch.set_num_threads(a.threads)
    torch.manual_seed(1337)
    load(a)
    rss_after_import_bytes = rss_now_bytes()

    model = build(a).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    if a.memory_budget is not None:
        torch._functorch.config.activation_memory_budget = a.memory_budget
    run = torch.compile(model) if a.mode.startswith("compile") else model
    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.mode.endswith("autocast"))

    def forward(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with autocast:
            result = run(**batch)
        # Free the logits at the end of the forward pass.
        return result if a.model is None else result.loss

    def step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with record_function("forward"):
            loss = forward(batch)
        with record_function("backward"):
            loss.backward()
        with record_function("optimizer"):
            if a.grad_clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), a.grad_clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    step_ms = []
    for _ in range(a.warm_up + a.steps):
        # Generating the batch is not part of the step.
        batch = draw_batch(a, model)
        start = time.perf_counter()
        loss = step(batch)
        step_ms.append((time.perf_counter() - start) * 1e3)
    step_ms = step_ms[a.warm_up :]

    step_ms_p50 = statistics.median(step_ms)
    tokens_per_step = a.micro_batch * (a.seq_len + (a.target_len or 0))
    report = {
        "torch": torch.__version__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens_per_step": tokens_per_step,
        "step_ms_p50": step_ms_p50,
        "step_ms_min": min(step_ms),
        "tokens_per_s": tokens_per_step / step_ms_p50 * 1e3,
        "rss_after_import_bytes": rss_after_import_bytes,
        "peak_rss_bytes": rss_peak_bytes(),
        "last_loss": loss.item(),
    }
    if a.memory_budget is not None:
        by_graph = saved_bytes(forward(batch), model, batch)
        report["activations"] = {"saved_bytes": by_graph} | asdict(held(lambda: step(batch)))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
