"""Shared by the golden_*.py scripts: a random model, AdamW on one fixed batch, and the file that tests read.

Every file contains, in addition to the batch:

    weight.NAME  float32            every parameter before the first step, under the name that save_pretrained writes;
                                    tied parameters once
    grad.NAME    float32            its gradient of the mean cross-entropy at those weights, before clipping, if it is trained
    logits       (B, T, V) float32  at those weights
    losses       (STEPS,) float32   of AdamW steps on that same batch, each before its update
    losses_of_targets           the part of the losses that is cross-entropy, if a model of experts adds a loss on their balance
    grad_norms   (STEPS,) float32   the global norm of each step's gradient before clipping

The mean is over the targets that are not -1.
"""

import argparse
import functools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save

REPOSITORY = Path(__file__).resolve().parents[1]
GOLDEN = REPOSITORY / "crates/train/tests/golden"

SEED = 1337
VOCAB_SIZE = 37
STEPS = 10
LEARNING_RATE = 1e-2
BETAS = (0.9, 0.95)
EPS = 1e-8
WEIGHT_DECAY = 0.1
MAX_GRAD_NORM = 1.0
# Large enough that no gradient is tiny, so that a wrong factor exceeds the rounding errors.
INIT_STD = 0.2
GREEDY_TOKENS = 10

Tensors = dict[str, torch.Tensor]


def one_thread() -> None:
    """Makes torch reproducible to the bit."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


def randomise(model, seed: int, std: float = INIT_STD) -> None:
    """Sets every parameter to random values, including biases and norms; factors of norms are around 1. With a larger
    deviation ten steps would differ between float32 and float64 by more than rounding, and prove nothing."""
    # Gemma adds 1 to the weights of norms.
    mean = 0.0 if type(model).__name__.startswith("Gemma") else 1.0
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, std, generator=generator)
            if parameter.dim() == 1 and name.endswith(".weight"):
                parameter.add_(mean)


def random_batch(vocab_size: int, shape: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets, (B, T) each; targets are random too, not the shifted tokens."""
    generator = torch.Generator().manual_seed(SEED + 1)
    tokens = torch.randint(0, vocab_size, shape, generator=generator)
    targets = torch.randint(0, vocab_size, shape, generator=generator)
    return tokens, targets


def adamw(model) -> torch.optim.AdamW:
    """AdamW with weight decay for matrices, embeddings and, as in the Trainer of transformers, magnitudes of DoRA, not for biases
    and norms. Biases of experts are in one matrix."""
    decaying, others = [], []
    for name, parameter in model.named_parameters():
        decays = parameter.dim() >= 2 and not name.endswith("_bias") or ".lora_magnitude_vector." in name
        (decaying if decays else others).append(parameter)
    groups = [{"params": decaying, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=EPS)


def stored(model, name: str) -> list[tuple[str, Callable[[torch.Tensor], torch.Tensor]]]:
    """The names under which save_pretrained writes a parameter, and what of it: experts are written one by one."""
    if hasattr(model, "stored"):
        return model.stored(name)
    if hasattr(model, "peft_config"):
        return stored_by_peft(name)
    of_mixtral = model.config.model_type == "mixtral"
    name = name.replace(".mlp.", ".block_sparse_moe.") if of_mixtral else name
    path, _, kind = name.rpartition(".")
    if not path.endswith(".experts") or model.config.model_type == "gpt_oss":
        return [(name, lambda tensor: tensor)]
    layers = ["w1", "w3", "w2"] if of_mixtral else ["gate_proj", "up_proj", "down_proj"]
    written = []
    for expert in range(getattr(model.config, "num_local_experts", None) or model.config.num_experts):
        def half(tensor, number, expert=expert):
            return tensor[expert].chunk(2)[number]
        if kind == "down_proj":
            written.append((f"{path}.{expert}.{layers[2]}.weight", lambda tensor, expert=expert: tensor[expert]))
        else:
            written += [(f"{path}.{expert}.{layers[i]}.weight", functools.partial(half, number=i)) for i in (0, 1)]
    return written


def stored_by_peft(name: str) -> list[tuple[str, Callable[[torch.Tensor], torch.Tensor]]]:
    """Of a parameter of a model with adapters: those of the model have its names, all others PEFT's."""
    if ".original_module." in name:
        return []
    of_base = ".lora_" not in name
    # A list of experts is wrapped once for each of its tensors that has adapters; so are their names.
    while of_base and ".base_layer." in name:
        name = name.replace(".base_layer.", ".")
    name = name.replace(".modules_to_save.default.", ".").replace(".default.", ".").removesuffix(".default")
    name = name.replace(".lora_magnitude_vector.weight", ".lora_magnitude_vector")
    return [(name.removeprefix("base_model.model.") if of_base else name, lambda tensor: tensor)]


def training_tensors(model, inputs: Tensors, targets: torch.Tensor) -> Tensors:
    """inputs: arguments of the model. Trains the model in place."""

    def logits_and_loss():
        out = model(**inputs, use_cache=False)
        loss = F.cross_entropy(out.logits.view(-1, out.logits.shape[-1]), targets.view(-1), ignore_index=-1)
        of_targets.append(loss.detach())
        if is_balanced:
            loss = loss + model.config.router_aux_loss_coef * out.aux_loss
        return out.logits, loss

    is_balanced = getattr(model.config, "output_router_logits", False)
    of_targets = []
    model.train()
    logits, loss = logits_and_loss()
    loss.backward()
    tensors = {"logits": logits.detach().clone()}
    # named_parameters yields a tied parameter once, with its first name, which save_pretrained keeps.
    for parameter_name, parameter in model.named_parameters():
        for name, of in stored(model, parameter_name):
            tensors[f"weight.{name}"] = of(parameter.detach()).clone().contiguous()
            if parameter.grad is not None:
                tensors[f"grad.{name}"] = of(parameter.grad).clone().contiguous()

    of_targets.clear()
    tensors["losses"], tensors["grad_norms"] = steps(model, lambda: logits_and_loss()[1])
    if is_balanced:
        tensors["losses_of_targets"] = torch.stack(of_targets)
    return tensors


def steps(model, loss_of_batch: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses and norms of gradients of STEPS steps of AdamW."""
    optimizer = adamw(model)
    losses, grad_norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of_batch()
        loss.backward()
        losses.append(loss.detach())
        grad_norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM))
        optimizer.step()
    return torch.stack(losses), torch.stack(grad_norms)


def greedy(model, tokens: torch.Tensor) -> torch.Tensor:
    """tokens: (T,) of one sample, a prompt or a source -> the GREEDY_TOKENS likeliest ids that follow, int32."""
    model.eval()
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        written = model.generate(
            inputs=tokens[None], attention_mask=torch.ones_like(tokens[None]), max_new_tokens=GREEDY_TOKENS, do_sample=False
        )
    return written[0, -GREEDY_TOKENS:].to(torch.int32)


def config_json(model) -> str:
    """The config.json that save_pretrained writes."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return (Path(folder) / "config.json").read_text()


def made_with(script: str) -> str:
    return f"scripts/{Path(script).name}, torch {torch.__version__}, transformers {transformers.__version__}"


def save_in_order(tensors: Tensors, path: Path, metadata: dict[str, str]) -> None:
    """Writes a reproducible safetensors file: the library guarantees no order of the metadata's keys."""
    data = save(tensors, metadata=metadata)
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])


def write(tensors: Tensors, path: Path, metadata: dict[str, str]) -> None:
    """Writes such a file, and prints its losses."""
    save_in_order(tensors, path, metadata)
    weights = sum(name.startswith("weight.") for name in tensors)
    print(f"{path.name}: {weights} weights, {path.stat().st_size} bytes")
    print("losses:    ", " ".join(f"{x:.6f}" for x in tensors["losses"].tolist()))
    print("grad norms:", " ".join(f"{x:.6f}" for x in tensors["grad_norms"].tolist()))


def write_models(script: str, makers: dict[str, Callable[[], tuple]]) -> None:
    """The main function of a script that makes several files. makers: file name -> (tensors, config.json), and the
    adapter_config.json if the model has adapters."""
    parser = argparse.ArgumentParser(description="Makes golden values.")
    parser.add_argument("out", nargs="?", type=Path, default=GOLDEN, help="output folder")
    arguments = parser.parse_args()

    one_thread()
    transformers.utils.logging.disable_progress_bar()
    for name, make in makers.items():
        tensors, config, *adapters = make()
        metadata = {"config": config, "made_with": made_with(script)} | ({"adapters": adapters[0]} if adapters else {})
        write(tensors, arguments.out / f"{name}.safetensors", metadata)
