#!/usr/bin/env python3
"""Creates the golden values for tests of low-rank adapters.

The tiny models of golden_gpt2.py, golden_decoders.py and golden_t5.py with PEFT's LoRA adapters, on the same batches. The
files, crates/train/tests/golden/adapters_FAMILY.safetensors, contain the tensors of the family's file. The parameters of the model
are under its names and have no gradients; those of adapters are under the names in PEFT's adapter_model.safetensors. The metadata
contains `adapters`, PEFT's adapter_config.json, in addition. Both matrices of all adapters are random:

    adapters_llama   all linear layers; other ranks and alphas for some; the head is trained whole
    adapters_gpt2    the packed layer of queries, keys and values, whose weight is stored transposed
    adapters_phi3    packed layers, which are several layers in our graph and share an adapter
    adapters_embedding   a layer of a Llama and its embedding
    adapters_tied    the embedding of a Gemma, which scales it and has it as its head too
    adapters_head    a layer of a Llama and its output head
    adapters_head_tied   the same of a Gemma 2, whose head has the weight of its embedding, and whose logits are capped
    adapters_plus    two layers of a Llama and its last norm, with LoRA+: the learning rate of second matrices is 4 times that of the
                     first
    adapters_dora    DoRA of all linear layers of a Qwen2, some of which have a bias
    adapters_dora_gpt2   DoRA of the packed layer of GPT-2
    adapters_dora_phi3   DoRA of packed layers, which are several layers in our graph
    adapters_experts     a layer of a Qwen3-MoE and its experts, each of which has its adapters. PEFT reads such files, which it
                     wrote for transformers 4, but merges gate_proj and up_proj into one adapter of twice the rank; so torch adds
                     the products to the weights here, as PEFT does for experts
    adapters_fused   the same, with adapters that PEFT makes with transformers 5, which has gate_proj and up_proj of all experts in
                     one tensor
    adapters_stacked     a layer of a gpt-oss and its experts, whose weights are stacked
    adapters_t5      layers of the encoder and of the decoder, with the factor for stable ranks

usage:  python scripts/golden_adapters.py [OUT_DIR]
needs:  pip install torch transformers peft safetensors
The committed values were made with torch 2.15.0, transformers 5.24.0 and peft 0.21.2.
"""

import copy
import functools
import json
import tempfile
from pathlib import Path

import peft
import torch

from peft.optimizers import create_loraplus_optimizer

import golden
import golden_decoders
import golden_gpt2
import golden_t5


# The ratio of learning rates of `adapters_plus`, which `golden.rs` has too.
LORA_PLUS = 4.0


def with_adapters(model, std: float, **settings):
    """The model with random adapters. Larger ones have gradients that are clipped, and amplify rounding."""
    config = peft.LoraConfig(init_lora_weights=False, **settings)
    model = peft.get_peft_model(model, config)
    generator = torch.Generator().manual_seed(golden.SEED + 2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_magnitude_vector." in name:
                parameter.normal_(1.0, 0.3, generator=generator)
            elif ".lora_" in name:
                parameter.normal_(0.0, std, generator=generator)
    return model


def adapter_json(model) -> str:
    """The adapter_config.json that save_pretrained writes."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = json.loads((Path(folder) / "adapter_config.json").read_text())
    return json.dumps(config | {"target_modules": sorted(config["target_modules"])}, indent=1)


def llama():
    model = golden_decoders.tiny("llama")
    config = golden.config_json(model)
    model = with_adapters(
        model,
        0.15,
        r=3,
        lora_alpha=6,
        target_modules="all-linear",
        rank_pattern={"q_proj": 2, "layers.1.mlp.down_proj": 5},
        alpha_pattern={"up_proj": 9},
        modules_to_save=["lm_head"],
        task_type="CAUSAL_LM",
    )
    return golden_decoders.golden_tensors(model), config, adapter_json(model)


def of_embedding(family: str):
    model = golden_decoders.tiny(family)
    config = golden.config_json(model)
    model = with_adapters(
        model, 0.3, r=3, lora_alpha=6, lora_dropout=0.0, target_modules=["embed_tokens", "v_proj"], task_type="CAUSAL_LM"
    )
    return golden_decoders.golden_tensors(model), config, adapter_json(model)


def embedding():
    return of_embedding("llama")


def tied():
    return of_embedding("gemma")


def of_head(family: str, std: float):
    model = golden_decoders.tiny(family)
    config = golden.config_json(model)
    model = with_adapters(
        model, std, r=3, lora_alpha=6, target_modules=["q_proj", "lm_head"], rank_pattern={"lm_head": 5}, task_type="CAUSAL_LM"
    )
    return golden_decoders.golden_tensors(model), config, adapter_json(model)


def head():
    return of_head("llama", 0.25)


def head_tied():
    return of_head("gemma2", 0.4)


def lora_plus(model) -> torch.optim.AdamW:
    """PEFT's optimizer. PEFT lets norms of this family decay, since it does not know their class; here none do."""
    optimizer = create_loraplus_optimizer(
        model,
        torch.optim.AdamW,
        lr=golden.LEARNING_RATE,
        loraplus_lr_ratio=LORA_PLUS,
        loraplus_weight_decay=golden.WEIGHT_DECAY,
        betas=golden.BETAS,
        eps=golden.EPS,
    )
    _, _, second, second_without_decay = optimizer.param_groups
    second_without_decay["params"] += [parameter for parameter in second["params"] if parameter.dim() == 1]
    second["params"] = [parameter for parameter in second["params"] if parameter.dim() > 1]
    return optimizer


def plus():
    model = golden_decoders.tiny("qwen2")
    config = golden.config_json(model)
    model = with_adapters(
        model, 0.3, r=2, lora_alpha=8, target_modules=["o_proj", "down_proj"], modules_to_save=["model.norm"], task_type="CAUSAL_LM"
    )
    adamw, golden.adamw = golden.adamw, lora_plus
    tensors = golden_decoders.golden_tensors(model)
    golden.adamw = adamw
    return tensors, config, adapter_json(model)


def dora():
    model = golden_decoders.tiny("qwen2")
    config = golden.config_json(model)
    model = with_adapters(
        model, 0.3, r=3, lora_alpha=6, use_dora=True, target_modules="all-linear", rank_pattern={"up_proj": 1}, task_type="CAUSAL_LM"
    )
    return golden_decoders.golden_tensors(model), config, adapter_json(model)


def dora_gpt2():
    model = golden_gpt2.tiny_gpt2()
    config = golden.config_json(model)
    model = with_adapters(
        model, 0.3, r=2, lora_alpha=5, use_dora=True, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM"
    )
    return golden_gpt2.golden_tensors(model), config, adapter_json(model)


def dora_phi3():
    model = golden_decoders.tiny("phi3")
    config = golden.config_json(model)
    model = with_adapters(
        model, 0.15, r=3, lora_alpha=4, use_dora=True, target_modules=["qkv_proj", "down_proj"], task_type="CAUSAL_LM"
    )
    return golden_decoders.golden_tensors(model), config, adapter_json(model)


class AdaptedExperts(torch.nn.Module):
    """A Qwen3-MoE with adapters of each expert's layers and of q_proj, with the names that PEFT gives them in files."""

    def __init__(self, model, rank: int, scale: float):
        super().__init__()
        self.model, self.config, self.generation_config, self.scale = model, model.config, model.generation_config, scale
        model.requires_grad_(False)
        generator = torch.Generator().manual_seed(golden.SEED + 2)
        self.matrices = {}
        for name, parameter in model.named_parameters():
            if not (".experts." in name or name.endswith(".q_proj.weight")):
                continue
            for stored, of in golden.stored(model, name):
                outputs, inputs = of(parameter).shape
                for letter, shape in ("A", (rank, inputs)), ("B", (outputs, rank)):
                    matrix = torch.nn.Parameter(torch.empty(shape).normal_(0.0, 0.2, generator=generator))
                    self.matrices[stored.replace(".weight", f".lora_{letter}.weight")] = matrix

    def stored(self, name: str):
        return [(name, lambda tensor: tensor)] if ".lora_" in name else golden.stored(self.model, name)

    def named_parameters(self, *arguments, **options):
        yield from self.model.named_parameters()
        yield from ((f"base_model.model.{name}", matrix) for name, matrix in self.matrices.items())

    def sums(self) -> dict[str, torch.Tensor]:
        def product(stored: str) -> torch.Tensor:
            a, b = (self.matrices[stored.replace(".weight", f".lora_{letter}.weight")] for letter in "AB")
            return self.scale * (b @ a)

        sums = {}
        for name, parameter in self.model.named_parameters():
            names = [stored for stored, _ in golden.stored(self.model, name)]
            if names[0].replace(".weight", ".lora_A.weight") not in self.matrices:
                continue
            if name.endswith(".gate_up_proj"):
                pairs = zip(names[::2], names[1::2])
                added = torch.stack([torch.cat([product(gate), product(up)]) for gate, up in pairs])
            elif name.endswith(".down_proj"):
                added = torch.stack([product(one) for one in names])
            else:
                added = product(names[0])
            sums[name] = parameter + added
        return sums

    def forward(self, **inputs):
        return torch.func.functional_call(self.model, self.sums(), kwargs=inputs)

    def generate(self, **options):
        merged = copy.deepcopy(self.model)
        merged.load_state_dict(self.sums(), strict=False)
        return merged.generate(**options)


def experts():
    model = golden_decoders.tiny("qwen3_moe")
    config = golden.config_json(model)
    tensors = golden_decoders.golden_tensors(AdaptedExperts(model, rank=4, scale=2.0))
    targets = ["down_proj", "gate_proj", "q_proj", "up_proj"]
    return tensors, config, json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": targets}, indent=1)


def of_parameters(family: str, std: float, targets: list[str], **settings):
    model = golden_decoders.tiny(family)
    config = golden.config_json(model)
    stored_one_by_one = functools.partial(golden.stored, copy.copy(model))
    model = with_adapters(model, std, r=3, lora_alpha=4, target_modules=targets, task_type="CAUSAL_LM", **settings)
    # PEFT's names of parameters of the model are those in its files.
    model.stored = lambda name: [
        (stored, of) for peft, _ in golden.stored_by_peft(name) for stored, of in stored_one_by_one(peft)
    ]
    return golden_decoders.golden_tensors(model), config, adapter_json(model)


def fused():
    return of_parameters("qwen3_moe", 0.25, ["q_proj", "gate_proj", "up_proj", "down_proj"])


def stacked():
    experts = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    return of_parameters("gpt_oss", 0.35, ["v_proj"], target_parameters=experts)


def gpt2():
    model = golden_gpt2.tiny_gpt2()
    config = golden.config_json(model)
    model = with_adapters(
        model, 0.3, r=2, lora_alpha=5, target_modules=["c_attn", "mlp.c_proj"], fan_in_fan_out=True, task_type="CAUSAL_LM"
    )
    return golden_gpt2.golden_tensors(model), config, adapter_json(model)


def phi3():
    model = golden_decoders.tiny("phi3")
    config = golden.config_json(model)
    model = with_adapters(
        model, 0.3, r=3, lora_alpha=4, target_modules=["qkv_proj", "gate_up_proj", "o_proj"], task_type="CAUSAL_LM"
    )
    return golden_decoders.golden_tensors(model), config, adapter_json(model)


def t5():
    model = golden_t5.tiny_t5(v1_1=True)
    config = golden.config_json(model)
    model = with_adapters(
        model, 0.15, r=4, lora_alpha=3, use_rslora=True, target_modules=["q", "v", "wo"], task_type="SEQ_2_SEQ_LM"
    )
    return golden_t5.golden_tensors(model), config, adapter_json(model)


if __name__ == "__main__":
    makers = {"llama": llama, "gpt2": gpt2, "phi3": phi3, "embedding": embedding, "tied": tied, "plus": plus, "t5": t5}
    makers |= {"head": head, "head_tied": head_tied, "dora": dora, "dora_gpt2": dora_gpt2, "dora_phi3": dora_phi3}
    makers |= {"experts": experts, "fused": fused, "stacked": stacked}
    golden.write_models(__file__, {f"adapters_{name}": make for name, make in makers.items()})
