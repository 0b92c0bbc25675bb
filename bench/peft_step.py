#!/usr/bin/env python3
"""Times a training step of LoRA or QLoRA on the CPU by PEFT and bitsandbytes: forward, backward, AdamW of the adapters.

This is the PyTorch side of compare_peft.py, which runs it in a process of its own for each measurement.

usage:  python bench/peft_step.py --method qlora --seq-len 256 --micro-batch 4 [--rank 16] [--steps 5] [--warm-up 2] [--threads 2]
needs:  pip install torch transformers peft bitsandbytes; Linux, for /proc

The model has the sizes of SmolLM2-360M and random weights in bfloat16: with `lora` they stay so, with `qlora` the linear layers of the
blocks are quantized to NF4 with double quantization. Adapters of all linear layers are in float32, computation is in bfloat16.

stdout is one JSON object. rss_after_import_bytes is the resident memory before the model is built.
"""

import argparse
import json
import statistics
import tempfile
import time

import bitsandbytes
import peft
import torch
import transformers

from torch_step import rss_now_bytes, rss_peak_bytes

# Source: the config.json of HuggingFaceTB/SmolLM2-360M.
CONFIG = {
    "num_hidden_layers": 32,
    "hidden_size": 960,
    "intermediate_size": 2560,
    "num_attention_heads": 15,
    "num_key_value_heads": 5,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0},
    "tie_word_embeddings": True,
    "use_cache": False,
}


def base(method: str) -> torch.nn.Module:
    config = transformers.LlamaConfig(**CONFIG, dtype=torch.bfloat16)
    model = transformers.LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
    if method == "lora":
        return model
    # Quantized as users do, while the weights are loaded.
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        del model
        settings = transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
        return transformers.LlamaForCausalLM.from_pretrained(
            folder, quantization_config=settings, device_map="cpu", dtype=torch.bfloat16
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Times a step of LoRA or QLoRA by PEFT on this CPU.")
    parser.add_argument("--method", choices=["lora", "qlora"], required=True)
    parser.add_argument("--seq-len", type=int, required=True)
    parser.add_argument("--micro-batch", type=int, required=True)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(1337)
    rss_after_import_bytes = rss_now_bytes()
    model = base(a.method)
    if a.method == "qlora":
        model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    settings = peft.LoraConfig(r=a.rank, lora_alpha=2 * a.rank, target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, settings).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)

    step_ms = []
    for _ in range(a.warm_up + a.steps):
        ids = torch.randint(0, CONFIG["vocab_size"], (a.micro_batch, a.seq_len))
        start = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step_ms.append((time.perf_counter() - start) * 1e3)
    step_ms_p50 = statistics.median(step_ms[a.warm_up :])
    tokens_per_step = a.micro_batch * a.seq_len
    versions = f"torch {torch.__version__}, peft {peft.__version__}, bitsandbytes {bitsandbytes.__version__}"
    report = {
        "versions": versions,
        "trained": sum(parameter.numel() for parameter in trained),
        "tokens_per_step": tokens_per_step,
        "step_ms_p50": step_ms_p50,
        "tokens_per_s": tokens_per_step / step_ms_p50 * 1e3,
        "rss_after_import_bytes": rss_after_import_bytes,
        "peak_rss_bytes": rss_peak_bytes(),
        "last_loss": loss.item(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
