"""Has Hugging Face's own classes read what `plimsoll estimate --export hf` writes.

    python scripts/check_exports.py --venv DIR

Reads the exports that the crate `trainers` is tested with (crates/trainers/tests/exports), parses those of Hugging Face's
trainer with `HfArgumentParser` into `TrainingArguments`, as a script does with a file, and compares what they say with the
keys. The others' files are loaded as YAML or JSON, as their trainers do it. `--venv`: a folder of a virtual environment with
transformers, torch, accelerate and PyYAML.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

EXPORTS = Path(__file__).resolve().parent.parent / "crates/trainers/tests/exports"


def sections(text):
    """The exports of a file, by the name of the trainer."""
    found = {}
    for section in text.split("=== ")[1:]:
        name, _, body = section.partition("\n")
        found[name] = body
    return found


def check(path):
    import yaml
    from transformers import HfArgumentParser, TrainingArguments

    for name, text in sections(path.read_text()).items():
        if name == "env":
            assert "PYTORCH_CUDA_ALLOC_CONF" in text, text
        elif name in ("DeepSpeed", "Unsloth"):
            json.loads(text)
        elif name == "Hugging Face's Trainer":
            told = yaml.safe_load(text)
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder, "arguments.yaml")
                file.write_text(text + "use_cpu: true\n")
                (arguments,) = HfArgumentParser(TrainingArguments).parse_yaml_file(str(file), allow_extra_keys=False)
            for key, value in told.items():
                found = getattr(arguments, key)
                found = getattr(found, "value", found)
                # `fsdp` becomes a list, or a flag with a configuration, by version.
                assert key.startswith("fsdp") or found == value, f"{path.name}: {key}: {value} became {found}"
            print(f"{path.name}: {len(told)} keys of TrainingArguments are taken as they are written")
        else:
            assert isinstance(yaml.safe_load(text), dict), text


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", help="folder of a virtual environment")
    given = parser.parse_args()
    if given.venv and not os.environ.get("PLIMSOLL_IN_VENV"):
        python = Path(given.venv, "bin", "python")
        sys.exit(subprocess.call([python, __file__, "--venv", given.venv], env={**os.environ, "PLIMSOLL_IN_VENV": "1"}))
    for path in sorted(EXPORTS.glob("*.txt")):
        check(path)
