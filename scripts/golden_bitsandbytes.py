#!/usr/bin/env python3
"""Creates the golden values for weights that bitsandbytes quantized: crates/train/tests/golden/bitsandbytes_FORMAT.safetensors.

Each file has the tensors that save_pretrained writes of a tiny random Llama, and:

    expected.tokens (1, T) int32
    expected.logits (1, T, V) float32   of the quantized model; for int8, whose products also quantize activations, of the
                                        model with the decoded weights

and in its metadata `config`, the config.json, and `decoded`, a checksum of each weight that bitsandbytes decodes:

    bitsandbytes_nf4     with double quantization; the scales of the largest weights have two scales of their own
    bitsandbytes_plain   nf4 without double quantization, of weights in bfloat16
    bitsandbytes_int8

usage:  python scripts/golden_bitsandbytes.py [OUT_DIR]
needs:  pip install torch transformers bitsandbytes accelerate safetensors
The committed values were made with torch 2.15.0, transformers 5.24.0 and bitsandbytes 0.50.2.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from bitsandbytes import functional
from bitsandbytes.nn import Linear4bit, Linear8bitLt
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

import golden
from golden_weight_codes import checksum

SIZES = {
    "vocab_size": 37,
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# Rows of nf4 have whole blocks of 64 weights: on processors bitsandbytes 0.50.2 decodes all other rows with wrong scales.
FOUR_BITS = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
FORMATS = {
    "nf4": (320, torch.float32, {**FOUR_BITS, "bnb_4bit_use_double_quant": True}),
    "plain": (64, torch.bfloat16, FOUR_BITS),
    "int8": (48, torch.float32, {"load_in_8bit": True}),
}


def decoded(layer: torch.nn.Module) -> torch.Tensor | None:
    """The weight of a quantized layer, in single precision."""
    if isinstance(layer, Linear4bit):
        state = layer.weight.quant_state
        state.dtype = torch.float32
        return functional.dequantize_4bit(layer.weight.data, state)
    if isinstance(layer, Linear8bitLt):
        return functional.int8_vectorwise_dequant(layer.weight.data, layer.weight.SCB)
    return None


def main() -> None:
    golden.one_thread()
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else golden.GOLDEN
    for name, (intermediate, dtype, settings) in FORMATS.items():
        model = LlamaForCausalLM(LlamaConfig(**SIZES, intermediate_size=intermediate))
        golden.randomise(model, golden.SEED)
        plain = LlamaForCausalLM(model.config)
        plain.load_state_dict(model.state_dict())
        with tempfile.TemporaryDirectory() as path:
            model.to(dtype).save_pretrained(f"{path}/plain")
            settings = BitsAndBytesConfig(**settings, bnb_4bit_compute_dtype=torch.float32)
            model = AutoModelForCausalLM.from_pretrained(
                f"{path}/plain", quantization_config=settings, device_map="cpu", dtype=dtype
            )
            model.save_pretrained(f"{path}/quantized")
            tensors = load_file(f"{path}/quantized/model.safetensors")
            config = Path(f"{path}/quantized/config.json").read_text()
        tokens = golden.random_batch(SIZES["vocab_size"], (1, 8))[0]
        sums = {}
        plain.load_state_dict({key: value.float() for key, value in tensors.items() if value.dtype == dtype}, strict=False)
        for path, layer in model.named_modules():
            weight = decoded(layer)
            if weight is not None:
                sums[f"{path}.weight"] = checksum(weight)
                plain.get_submodule(path).weight.data = weight
        with torch.no_grad():
            logits = plain(tokens).logits
            if name == "nf4":
                # In evaluation, processors with instructions for bfloat16 compute in it.
                of_codes = model.train()(tokens).logits
                print("logits of codes and of decoded weights differ by at most", (logits - of_codes).abs().max().item())
                logits = of_codes
        tensors |= {"expected.tokens": tokens.to(torch.int32), "expected.logits": logits.float().clone()}
        metadata = {"config": config, "decoded": json.dumps(sums), "made_with": golden.made_with(__file__)}
        golden.save_in_order(tensors, folder / f"bitsandbytes_{name}.safetensors", metadata)


if __name__ == "__main__":
    main()
