"""Checks that the trainers' own classes accept what `plimsoll estimate --export` writes.

    python scripts/check_exports.py --venv DIR

Reads the exports that the tests of the crate `trainers` use (crates/trainers/tests/exports) and passes each to its trainer's own
parser, as far as that can be installed without a card:

- Hugging Face: `HfArgumentParser` into `TrainingArguments`, and their values are compared with the keys
- axolotl: `AxolotlInputConfig` with its plugins' arguments, which validate; and the keys are compared with their fields
- LLaMA-Factory: its arguments' classes, by `HfArgumentParser`, without remaining keys
- torchtune: classes and their arguments if importable, and the keys are compared with those of its recipes
- Unsloth, whose import needs a card: the keys are compared with the parameters in its source
- DeepSpeed: `DeepSpeedConfig`, and its values are compared with the keys
- accelerate: the loader of `accelerate launch --config_file`, and its values are compared with the keys

`--venv`: a folder of a virtual environment with torch, transformers, accelerate and PyYAML, and any of the others:

    pip install torch transformers accelerate deepspeed omegaconf addict pillow datasets evaluate fire wandb
    pip install --no-deps axolotl llamafactory torchtune unsloth

Trainers that are not installed are not checked, and are listed at the end.
"""

import argparse
import ast
import importlib
import importlib.util
import inspect
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

EXPORTS = Path(__file__).resolve().parent.parent / "crates/trainers/tests/exports"


def sections(text):
    """The exports in a file, by trainer."""
    found = {}
    for section in text.split("=== ")[1:]:
        name, _, body = section.partition("\n")
        found[name] = body
    return found


def load(text):
    import yaml

    told = yaml.safe_load(text)
    assert isinstance(told, dict), text
    return told


def same(found, value):
    """Whether a class has the value of a key; enums are compared by value."""
    found = getattr(found, "value", found)
    return str(found) == str(value) or found == value


def on_disk(text, name):
    folder = tempfile.mkdtemp()
    file = Path(folder, name)
    file.write_text(text)
    return str(file)


def hugging_face(text):
    from transformers import HfArgumentParser, TrainingArguments

    told = load(text)
    file = on_disk(text + "use_cpu: true\n", "arguments.yaml")
    (arguments,) = HfArgumentParser(TrainingArguments).parse_yaml_file(file, allow_extra_keys=False)
    for key, value in told.items():
        # Depending on the version, `fsdp` becomes a list, or a flag with a configuration.
        assert key.startswith("fsdp") or same(getattr(arguments, key), value), f"{key}: {value}"
    return len(told)


def axolotl(text):
    from axolotl.integrations.cut_cross_entropy.args import CutCrossEntropyArgs
    from axolotl.integrations.liger.args import LigerArgs
    from axolotl.utils.schemas.config import AxolotlInputConfig

    told = load(text)
    plugins = told.get("plugins", [])
    bases = [AxolotlInputConfig]
    bases += [LigerArgs] if any("liger" in plugin for plugin in plugins) else []
    bases += [CutCrossEntropyArgs] if any("cut_cross_entropy" in plugin for plugin in plugins) else []
    config = type("Config", tuple(bases), {})
    unknown = set(told) - set(config.model_fields)
    assert not unknown, unknown
    asked = {"learning_rate": 1e-4, "datasets": [{"path": "x", "type": "alpaca"}]}
    checked = config(**told, **asked)
    for key, value in told.items():
        # axolotl replaces its old keys for attention by the new one.
        found = getattr(checked, key, None)
        assert key.endswith("_attention") or same(found, value), f"{key}: {value} became {found}"
    return len(told)


def llama_factory(text):
    os.environ["DISABLE_VERSION_CHECK"] = "1"
    from llamafactory.hparams.parser import _TRAIN_ARGS
    from transformers import HfArgumentParser

    told = load(text)
    asked = {"output_dir": tempfile.mkdtemp(), "use_cpu": True, "dataset": "x", "template": "default"}
    arguments = HfArgumentParser(_TRAIN_ARGS).parse_dict({**asked, **told}, allow_extra_keys=False)
    for key, value in told.items():
        found = [getattr(part, key) for part in arguments if hasattr(part, key)]
        # In the file a list of layers is a string with commas.
        is_said = any(same(value, one) or isinstance(one, list) and ",".join(one) == value for one in found)
        assert is_said or key.startswith("fsdp"), f"{key}: {value} became {found}"
    return len(told)


def torchtune(text):
    import yaml

    spec = importlib.util.find_spec("recipes")
    assert spec and spec.submodule_search_locations, "torchtune's recipes are not installed"
    recipes = Path(list(spec.submodule_search_locations)[0])
    known = {"gradient_accumulation_steps"}
    for file in recipes.rglob("*.yaml"):
        known |= set((yaml.safe_load(file.read_text()) or {}).keys())
    sources = "".join(file.read_text() for file in recipes.glob("*.py"))
    told = load(text)
    for key, value in told.items():
        assert key in known or f'"{key}"' in sources or f"cfg.{key}" in sources, key
        path = value.get("_component_", "") if isinstance(value, dict) else ""
        module, _, name = path.rpartition(".")
        if module and importlib.util.find_spec(module.split(".")[0]):
            parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters
            unknown = set(value) - {"_component_"} - set(parameters)
            assert not unknown, f"{path} has no arguments {unknown}"
    return len(told)


def unsloth(text):
    from transformers import TrainingArguments

    spec = importlib.util.find_spec("unsloth")
    assert spec and spec.submodule_search_locations, "unsloth is not installed"
    models = Path(list(spec.submodule_search_locations)[0], "models")
    known = set(inspect.signature(TrainingArguments).parameters)
    for file, functions in (("loader.py", ["from_pretrained"]), ("llama.py", ["get_peft_model"])):
        for node in ast.walk(ast.parse(Path(models, file).read_text())):
            if isinstance(node, ast.FunctionDef) and node.name in functions:
                known |= {argument.arg for argument in node.args.args + node.args.kwonlyargs}
    told = json.loads(text)
    unknown = set(told) - known
    assert not unknown, unknown
    return len(told)


def deepspeed(text):
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.config import DeepSpeedConfig

    told = json.loads(text)
    config = DeepSpeedConfig(told)
    assert config.train_micro_batch_size_per_gpu == told["train_micro_batch_size_per_gpu"]
    assert config.gradient_accumulation_steps == told["gradient_accumulation_steps"]
    assert config.gradient_clipping == told["gradient_clipping"]
    zero = told["zero_optimization"]
    assert config.zero_config.stage == zero["stage"]
    for part in ("offload_optimizer", "offload_param"):
        found = getattr(config.zero_config, part)
        expected = zero.get(part, {}).get("device", "none")
        assert same(found.device if found else "none", expected), f"{part}: {expected} became {found}"
    for key, found in (("bf16", config.bfloat16_config), ("fp16", config.float16_config)):
        assert found.enabled == told.get(key, {}).get("enabled", False), key
    return len(told)


def accelerate(text):
    from accelerate.commands.config.config_args import load_config_from_file

    told = load(text)
    config = load_config_from_file(on_disk(text, "accelerate.yaml"))
    for key, value in told.items():
        found = getattr(config, key)
        assert same(found, value), f"{key}: {value} became {found}"
    return len(told)


CHECKS = {
    "Hugging Face's Trainer": hugging_face,
    "axolotl": axolotl,
    "LLaMA-Factory": llama_factory,
    "torchtune": torchtune,
    "Unsloth": unsloth,
    "DeepSpeed": deepspeed,
    "accelerate": accelerate,
}

PACKAGES = {
    "Hugging Face's Trainer": "transformers",
    "LLaMA-Factory": "llamafactory",
    "Unsloth": "unsloth",
    "DeepSpeed": "deepspeed",
}


def check_all():
    """Checks every export. Returns the number of failures, and the trainers that are not installed."""
    failed, missing, keys = 0, set(), {}
    for path in sorted(EXPORTS.glob("*.txt")):
        for name, text in sections(path.read_text()).items():
            if name == "env":
                assert "PYTORCH_CUDA_ALLOC_CONF" in text, text
            elif importlib.util.find_spec(PACKAGES.get(name, name)) is None:
                missing.add(name)
            else:
                try:
                    keys[name] = keys.get(name, 0) + CHECKS[name](text)
                # Each trainer raises its own exceptions; report them all.
                except Exception as error:  # noqa: BLE001
                    failed += 1
                    print(f"{path.name}, {name}: {type(error).__name__}: {str(error)[:600]}")
    for name, count in sorted(keys.items()):
        print(f"{name}: {count} keys accepted")
    for name in sorted(missing):
        print(f"{name}: not checked: not installed")
    return failed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", help="folder of a virtual environment")
    given = parser.parse_args()
    if given.venv and not os.environ.get("PLIMSOLL_IN_VENV"):
        python = Path(given.venv, "bin", "python")
        sys.exit(subprocess.call([python, __file__, "--venv", given.venv], env={**os.environ, "PLIMSOLL_IN_VENV": "1"}))
    sys.exit(1 if check_all() else 0)
