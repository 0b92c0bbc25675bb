#!/usr/bin/env python3
"""Opens adapters that Plimsoll trained with PEFT, and compares the logits of both programs.

usage:  python scripts/check_adapters.py --plimsoll PROGRAM

Small random models get adapters of linear layers, with dropout, with magnitudes, of embeddings, of output heads and of experts, and are
trained for some steps. Prints the largest difference of a logit for each.

exit:   0 the logits agree, 1 they do not, 2 usage
needs:  pip install torch transformers peft
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM

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
EXPERTS = {"head_dim": 16, "num_experts_per_tok": 2}
# The family of a model, settings in addition to SIZES, and flags of the adapters.
RUNS = {
    "linear layers": ("llama", {}, "--lora-rank-pattern q_proj=2 --lora-dropout 0.1"),
    "magnitudes": ("llama", {}, "--dora --lora-dropout 0.1"),
    "an embedding": ("llama", {}, "--lora-targets embed_tokens,v_proj"),
    "a head": ("llama", {}, "--lora-targets lm_head,v_proj"),
    "a tied head": ("llama", {"tie_word_embeddings": True}, "--lora-targets lm_head,v_proj"),
    "a module that is trained whole": ("llama", {}, "--lora-modules-to-save lm_head"),
    "packed layers": ("phi3", {}, "--lora-targets qkv_proj,down_proj"),
    "experts": ("qwen3_moe", EXPERTS | {"num_experts": 4, "moe_intermediate_size": 48}, "--lora-targets q_proj,*_proj"),
    "experts of Mixtral": ("mixtral", EXPERTS | {"num_local_experts": 4}, "--lora-targets w1,w2,w3"),
    "stacked experts": ("gpt_oss", EXPERTS | {"num_local_experts": 4}, "--lora-targets v_proj,gate_up_proj,down_proj"),
    "stacked experts, one tensor": ("gpt_oss", EXPERTS | {"num_local_experts": 4}, "--lora-targets v_proj,gate_up_proj"),
}
PROMPT = "ships are loaded"
# The largest difference of logits in single precision.
ROUNDING = 1e-4


def check(program: str, name: str, folder: Path) -> bool:
    """Whether the logits agree; prints their largest difference."""
    family, more, flags = RUNS[name]
    config = AutoConfig.for_model(family, **SIZES | more)
    AutoModelForCausalLM.from_config(config).to(torch.float32).save_pretrained(folder / "base")
    (folder / "text.txt").write_text(f"{PROMPT} to their line. " * 60)
    data = "--data text.txt --tokenizer bytes --seq-len 24 --global-batch 4 --sample-tokens 0 --eval-samples 2 --max-steps 8"
    train = f"train --init base {data} --device cpu --name adapted --method lora --lora-rank 3 --learning-rate 0.02 {flags}"
    generate = "generate --checkpoint runs/adapted --device cpu --max-tokens 1 --logits logits.json --prompt"
    for arguments in (train.split(), [*generate.split(), PROMPT]):
        run = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            print(f"{name}: {run.stderr}")
            return False
    written = json.loads((folder / "logits.json").read_text())
    ours = torch.tensor(written["logits"])
    base = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    tokens = torch.tensor(written["tokens"])[None]
    with torch.no_grad():
        before = base(tokens).logits[0]
        theirs = PeftModel.from_pretrained(base, folder / "runs/adapted/model")(tokens).logits[0]
    apart, learned = (ours - theirs).abs().max().item(), (theirs - before).abs().max().item()
    print(f"{name}: logits differ by at most {apart:.1e}; the adapters change them by up to {learned:.1e}")
    return apart < ROUNDING < learned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plimsoll", metavar="PROGRAM", required=True)
    program = os.path.abspath(parser.parse_args().plimsoll)
    transformers.utils.logging.disable_progress_bar()
    agrees = True
    for name in RUNS:
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as folder:
            agrees &= check(program, name, Path(folder))
    sys.exit(0 if agrees else 1)


if __name__ == "__main__":
    main()
