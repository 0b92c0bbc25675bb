#!/usr/bin/env python3
"""Creates crates/train/tests/golden/gpt_oss_mxfp4.safetensors: a tiny gpt-oss as it is published, with experts in MXFP4.

The file has the tensors of such a checkpoint, with random bits in blocks and scales, and for each of its parameters what
transformers makes of it:

    NAME            as in a checkpoint; NAME_blocks and NAME_scales of experts
    expected.NAME   float32    the parameter

and in its metadata, as `config`, the config.json.

usage:  python scripts/golden_mxfp4.py [OUT_DIR]
needs:  pip install torch transformers safetensors
"""

import json
import sys
from pathlib import Path

import torch
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import golden

SIZES = {
    "vocab_size": 19,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
}


def main() -> None:
    golden.one_thread()
    model = GptOssForCausalLM(GptOssConfig(**SIZES))
    golden.randomise(model, golden.SEED)
    generator = torch.Generator().manual_seed(golden.SEED)
    tensors = {}
    for name, parameter in model.named_parameters():
        parameter = parameter.detach()
        if not name.endswith(("gate_up_proj", "down_proj")):
            tensors[name] = parameter.to(torch.bfloat16)
            tensors[f"expected.{name}"] = tensors[name].to(torch.float32)
            continue
        experts, inputs, outputs = parameter.shape
        blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), generator=generator, dtype=torch.uint8)
        # 255 would be NaN.
        scales = torch.randint(0, 255, blocks.shape[:3], generator=generator, dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        tensors[f"expected.{name}"] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    config = json.loads(golden.config_json(model))
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else golden.GOLDEN
    metadata = {"config": json.dumps(config), "made_with": golden.made_with(__file__)}
    golden.save_in_order(tensors, folder / "gpt_oss_mxfp4.safetensors", metadata)


if __name__ == "__main__":
    main()
