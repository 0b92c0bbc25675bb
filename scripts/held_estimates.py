#!/usr/bin/env python3
"""Compares `plimsoll estimate` with memory that other projects measured on GPUs: each row of a CSV file becomes a command, and the
errors are listed by group.

usage: held_estimates.py CSV [--plimsoll target/debug/plimsoll] [--commands]

The columns are those of the measurements' files: source, gpu, torch, transformers, model, method, rank, targets, precision,
micro_batch, seq_len, attention, gradient_checkpointing, peak_allocated_mib; peak_reserved_mib may be empty. Every row of vramcalc and
fitcheck-llm is from one script of its package, which decides the settings that no column has; `HARNESSES` lists them. Rows of
other sources are an error.
"""
import argparse
import collections
import csv
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

# Whole-number names of data types in the CSV file, and the flag's values without autocast.
PURE = {"bf16": "pure-bf16", "fp16": "pure-fp16", "fp32": "fp32"}
MIB = 1 << 20

# Models that are not among Plimsoll's presets.
CONFIGS = {
    "deepseek-ai/deepseek-coder-1.3b-instruct": {
        "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5504, "num_hidden_layers": 24,
        "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 32256, "max_position_embeddings": 16384,
        "tie_word_embeddings": False},
}


def vramcalc(row):
    """`vramcalc/bench.py` of vramcalc 0.1.2: it deletes the outputs after the backward pass, zeroes gradients in place, and passes
    no attention mask. `amp` is autocast to bf16 over weights in single precision."""
    precision = "amp-bf16" if row["precision"] == "amp" else PURE[row["weights"]]
    return ["--precision", precision, "--attention", row["attention"],
            "--loop", "outputs-until-backward,zeroed-gradients,no-attention-mask"]


def fitcheck(row):
    """`scripts/measure.py` of fitcheck-llm 0.3.1: the outputs are a variable of the function that runs a step, and no attention mask
    is passed. It never turns autocast on: the precision is the type of the weights, or of the computation with 4-bit weights. `sdpa` is
    pinned to the memory-efficient kernel, and a wrapper repeats keys and values for it."""
    precision = PURE[row["precision"].removeprefix("autocast ")]
    attention = "efficient" if row["attention"] == "sdpa" else row["attention"]
    arguments = ["--precision", precision, "--attention", attention, "--loop", "outputs-until-step,no-attention-mask"]
    return arguments + (["--double-quant", "off"] if row["method"] == "qlora" else [])


HARNESSES = {"PyPI vramcalc": vramcalc, "PyPI fitcheck-llm": fitcheck}


def arguments_of(row, folder):
    """The arguments of `plimsoll estimate` for a row."""
    harness = next((of for name, of in HARNESSES.items() if row["source"].startswith(name)), None)
    if harness is None:
        sys.exit(f"error: no harness is known for the source `{row['source']}`: add it to `HARNESSES`")
    model = row["model"]
    if model in CONFIGS:
        path = folder / f"{model.replace('/', '-')}.json"
        path.write_text(json.dumps(CONFIGS[model]))
        model = str(path)
    # Both use PyTorch's AdamW with one op for all parameters, without clipping; vramcalc adapts the same layers.
    arguments = ["--model", model if "/" in model else model.lower(), "--method", row["method"],
                 "--micro-batch", row["micro_batch"], "--seq-len", row["seq_len"],
                 "--optimizer-implementation", "foreach", "--clip", "off", "--gpu", row["gpu"].removeprefix("NVIDIA ")]
    if row["method"] != "full":
        targets = row["targets"] or "q_proj k_proj v_proj o_proj"
        arguments += ["--lora-rank", row["rank"], "--lora-targets", targets.replace(" ", ",")]
    if row["gradient_checkpointing"] == "True":
        arguments.append("--gradient-checkpointing")
    for library in ("torch", "transformers"):
        if row[library]:
            arguments += [f"--{library}", row[library]]
    return arguments + harness(row)


def place_of(estimate):
    """Where the peak is: in the optimizer's step, in the loss, or in a block."""
    if estimate["peak_phase"] == "optimizer step":
        return "optimizer"
    return "loss" if any(live["module"] == "loss" and live["kind"] == "logits" for live in estimate["largest"]) else "block"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=pathlib.Path, help="the measurements")
    parser.add_argument("--plimsoll", default="target/debug/plimsoll", help="the program")
    parser.add_argument("--commands", action="store_true", help="print each row's command")
    a = parser.parse_args()
    if not a.csv.is_file():
        sys.exit(f"error: nothing is compared: {a.csv} is missing")
    groups, too_low = collections.defaultdict(list), 0
    with tempfile.TemporaryDirectory() as folder, a.csv.open(newline="") as file:
        print(f"{'predicted':>9} {'measured':>9} {'error':>7}  {'reserved':>8}  row")
        for row in csv.DictReader(file):
            command = [a.plimsoll, "estimate", "--json", *arguments_of(row, pathlib.Path(folder))]
            if a.commands:
                print(" ".join(command))
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode not in (0, 3):
                sys.exit(f"error: {' '.join(command)}\n{done.stderr}")
            estimate = json.loads(done.stdout)
            predicted, measured = estimate["peak_allocated_bytes"] / MIB, float(row["peak_allocated_mib"])
            error = 100 * (predicted / measured - 1)
            reserved = ""
            if row["peak_reserved_mib"]:
                reserved = f"{100 * (estimate['peak_reserved_bytes'] / MIB / float(row['peak_reserved_mib']) - 1):+.1f} %"
            process = sum(float(row[key] or 0) for key in ("peak_reserved_mib", "context_mib")) or measured
            too_low += estimate["most"]["process_bytes"] / MIB < process
            groups[row["method"], row["attention"], place_of(estimate)].append(error)
            name = f"{row['model'].split('/')[-1]} {row['method']} {row['attention']} {row['micro_batch']} x {row['seq_len']}"
            print(f"{predicted:9.1f} {measured:9.1f} {error:+6.1f}%  {reserved:>8}  {name}, peak in the {place_of(estimate)}")
    print("\n| method | attention | peak in | rows | median error | largest error |\n| --- | --- | --- | ---: | ---: | ---: |")
    for (method, attention, place), errors in sorted(groups.items()):
        sizes = [abs(error) for error in errors]
        print(f"| `{method}` | {attention} | {place} | {len(errors)} | {statistics.median(sizes):.1f} % | {max(errors, key=abs):+.1f} % |")
    everything = [abs(error) for errors in groups.values() for error in errors]
    print(f"\n{len(everything)} rows: median {statistics.median(everything):.1f} %, largest {max(everything):.1f} %; "
          f"{too_low} need more than the upper bound")


if __name__ == "__main__":
    main()
