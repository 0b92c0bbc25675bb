#!/usr/bin/env python3
"""Compares the weights that `plimsoll merge` writes with those of PEFT's `merge_and_unload`.

usage:  python scripts/check_merge.py --plimsoll PROGRAM

Small random models, in shards, get random adapters with ranks and alphas by pattern, as PEFT saves them, with DoRA's
magnitudes and without. Prints the largest
difference of a weight and of a logit for each model. PEFT rounds the product before it adds it, Plimsoll rounds the sum alone, so in
bfloat16 a weight may differ by one step of its precision.

exit:   0 the weights agree, 1 they do not, 2 usage
needs:  pip install torch transformers peft
"""

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Phi3Config

SIZES = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# A model's configuration and some of its layers: of weights (out, in), of weights (in, out), of weights that are fused. PEFT adds
# the adapter of a tied head to the embedding, too: then the logits are compared with those of its model before the merge.
MODELS = {
    "llama": (LlamaConfig(**SIZES), ["q_proj", "down_proj", "embed_tokens", "lm_head"]),
    "llama with a tied head": (LlamaConfig(**SIZES, tie_word_embeddings=True), ["q_proj", "lm_head"]),
    "gpt2": (GPT2Config(vocab_size=256, n_embd=64, n_layer=2, n_head=4, n_positions=64), ["c_attn", "c_proj"]),
    "phi3": (Phi3Config(**SIZES), ["qkv_proj", "gate_up_proj"]),
}
# The largest relative step between neighboring weights.
STEPS = {torch.float32: 2**-22, torch.bfloat16: 2**-7}


def check(program: str, name: str, dtype: torch.dtype, dora: bool, folder: Path) -> bool:
    """Whether the merged weights of a model agree; prints the differences."""
    config, layers = MODELS[name]
    # Embeddings and heads can't have magnitudes.
    layers = [layer for layer in layers if not (dora and layer in ("embed_tokens", "lm_head"))]
    is_untied = config.tie_word_embeddings and "lm_head" in layers
    AutoModelForCausalLM.from_config(config).to(dtype).save_pretrained(folder / "base", max_shard_size="60KB")
    base = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=dtype)
    before = [weight.clone() for weight in base.state_dict().values()]
    # A layer of another rank, and one of another alpha.
    first, second = layers[0], layers[-1]
    settings = {"r": 4, "lora_alpha": 12, "use_rslora": True, "rank_pattern": {first: 6}, "alpha_pattern": {second: 20}, "use_dora": dora}
    adapted = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", target_modules=layers, **settings))
    for parameter, values in adapted.named_parameters():
        if "lora_B" in parameter or "lora_embedding" in parameter:
            torch.nn.init.normal_(values, std=0.2)
        elif "lora_magnitude_vector" in parameter:
            values.data *= 1 + 0.3 * torch.randn_like(values)
    adapted.save_pretrained(folder / "adapter")
    command = [program, "merge", "--checkpoint", folder / "adapter", "--out", folder / "merged", "--device", "cpu"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        print(f"{name}: {run.stderr}")
        return False
    ours = AutoModelForCausalLM.from_pretrained(folder / "merged", dtype=dtype)
    tokens = torch.arange(32)[None] * 7 % 256
    if is_untied:
        with torch.no_grad():
            logits, theirs = ours(tokens).logits, adapted(tokens).logits
        apart, largest = (logits - theirs).abs().max().item(), theirs.abs().max().item()
        has_head = not torch.equal(ours.lm_head.weight, ours.model.embed_tokens.weight)
        print(f"{name}, {str(dtype)[6:]}: logits differ by at most {apart:.1e}, the largest is {largest:.1e}")
        return has_head and apart <= 64 * STEPS[dtype] * (1 + largest)
    theirs = adapted.merge_and_unload()
    pairs = list(zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True))
    apart = max((a - b).abs().max().item() for a, b in pairs)
    with torch.no_grad():
        logits = (ours(tokens).logits - theirs(tokens).logits).abs().max().item()
    method = "DoRA" if dora else "LoRA"
    print(f"{name}, {method}, {str(dtype)[6:]}: weights differ by at most {apart:.1e}, logits by {logits:.1e}")
    # A product that nearly cancels a weight was rounded to the precision of the weight.
    largest = [torch.maximum(a.abs(), c.abs()) for (a, _), c in zip(pairs, before, strict=True)]
    # With magnitudes PEFT also rounds the sum, its norm and their ratio.
    step = STEPS[dtype] * (4 if dora else 1)
    return all(((a - b).abs() <= step * most + 1e-6).all() for (a, b), most in zip(pairs, largest, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plimsoll", metavar="PROGRAM", required=True)
    program = os.path.abspath(parser.parse_args().plimsoll)
    agrees = True
    for name in MODELS:
        for dtype, dora in itertools.product(STEPS, (False, True)):
            torch.manual_seed(0)
            with tempfile.TemporaryDirectory() as folder:
                agrees &= check(program, name, dtype, dora, Path(folder))
    sys.exit(0 if agrees else 1)


if __name__ == "__main__":
    main()
