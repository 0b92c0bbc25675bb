#!/usr/bin/env python3
"""Times the training step of a model of `transformers` on an NVIDIA card: forward, backward, clipping, fused AdamW, with autocast.

This is the PyTorch side of compare_card.py, which runs it in a process of its own for each measurement. Weights are random and
in single precision, attention is PyTorch's `scaled_dot_product_attention`, by the kernels that PyTorch chooses or by cuDNN's,
batches are random tokens.

usage:  python bench/torch_card_step.py --model gpt2 --seq-len 1024 --micro-batch 32 --accumulation 1 [--compile]
            [--recompute] [--cudnn-attention] [--budget-gib 8] [--precision bf16|fp16|fp32] [--steps 8] [--warm-up 3]
needs:  pip install torch transformers

stdout is one JSON object; `status` is `ok` or `oom`. With a budget PyTorch's allocator fails above the budget minus the
context's memory.
"""

import argparse
import json
import statistics
import time
from contextlib import nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

# Layers, channels and heads.
GPT2 = {"gpt2": (12, 768, 12), "gpt2-medium": (24, 1024, 16), "gpt2-large": (36, 1280, 20), "gpt2-xl": (48, 1600, 25)}
# Layers, channels, inner channels, heads, heads of keys and ids. Source: the models' config.json.
LLAMA = {"smollm2-135m": (30, 576, 1536, 9, 3, 49152), "llama-3.2-1b": (16, 2048, 8192, 32, 8, 128256)}
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def build(name: str, seq_len: int) -> torch.nn.Module:
    common = {"use_cache": False, "attn_implementation": "sdpa"}
    if name in GPT2:
        layers, channels, heads = GPT2[name]
        rates = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        sizes = {"n_layer": layers, "n_embd": channels, "n_head": heads, "n_positions": max(1024, seq_len)}
        return GPT2LMHeadModel(GPT2Config(**sizes, **rates, **common))
    layers, channels, inner, heads, kv_heads, ids = LLAMA[name]
    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=channels,
        intermediate_size=inner,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=ids,
        max_position_embeddings=max(2048, seq_len),
        tie_word_embeddings=True,
        **common,
    )
    return LlamaForCausalLM(config)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Times a training step of PyTorch on a card.")
    parser.add_argument("--model", required=True, choices=[*GPT2, *LLAMA])
    for name in ("seq-len", "micro-batch", "accumulation"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--precision", choices=["bf16", "fp16", "fp32"], default="bf16")
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    parser.add_argument("--recompute", action="store_true", help="use gradient checkpointing")
    parser.add_argument("--cudnn-attention", action="store_true", help="use cuDNN's attention, and no other")
    parser.add_argument("--budget-gib", type=float, help="limit of the allocator's memory, including the context's")
    parser.add_argument("--steps", type=int, default=8, help="measured steps")
    parser.add_argument("--warm-up", type=int, default=3, help="steps before the measured ones")
    return parser.parse_args()


def step_times(a: argparse.Namespace) -> list[float]:
    model = build(a.model, a.seq_len).to("cuda")
    if a.recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    scaler = torch.amp.GradScaler("cuda", enabled=a.precision == "fp16")
    run = torch.compile(model) if a.compile else model
    vocab_size, times = model.config.vocab_size, []
    for _ in range(a.warm_up + a.steps):
        # Generating the batch is not part of the step.
        tokens = torch.randint(0, vocab_size, (a.accumulation, a.micro_batch, a.seq_len), device="cuda")
        torch.cuda.synchronize()
        start = time.perf_counter()
        for micro in tokens:
            with torch.autocast("cuda", dtype=HALF.get(a.precision), enabled=a.precision in HALF):
                loss = run(input_ids=micro, labels=micro).loss / a.accumulation
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return times[a.warm_up :]


def main() -> None:
    a = parse_arguments()
    torch.manual_seed(1)
    torch.zeros(1, device="cuda")
    free, total = torch.cuda.mem_get_info()
    if a.budget_gib:
        context = total - free
        torch.cuda.set_per_process_memory_fraction(max(0.0, (a.budget_gib * 2**30 - context) / total))
    report = {"torch": torch.__version__, "card": torch.cuda.get_device_name()}
    try:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if a.cudnn_attention else nullcontext():
            seconds = statistics.median(step_times(a))
        report |= {"status": "ok", "tokens_per_s": a.accumulation * a.micro_batch * a.seq_len / seconds}
    except torch.OutOfMemoryError:
        report |= {"status": "oom", "tokens_per_s": None}
    report["reserved_bytes"] = torch.cuda.max_memory_reserved()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
