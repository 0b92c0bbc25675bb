#!/usr/bin/env python3
"""Checks the GGUF files of `plimsoll export` with the package `gguf`, and with llama.cpp.

For a small random model of each family that transformers makes, PROGRAM writes files of all types. The package reads them back:

    names      those of the package's own table for the architecture, and no others
    F32        the numbers of the model, to the bit; rows of queries and keys in the order of the converter, norms plus one
    F16, BF16  the same, rounded to the nearest
    Q8_0       the bytes of the package's own quantization
    Q4_K_M     the error of each tensor, relative to its numbers: at most 0.09 with 4 bits, 0.06 with 5 bits, 0.03 with 6

With --llama, llama.cpp opens each file and its log-probabilities of all tokens after a prompt are compared with those of
`plimsoll generate --logits`, and the ten likeliest ASCII tokens after it, one after the other, with those of transformers; for some
families, also with adapters that PROGRAM trains, and for two kinds of tokenizers, after texts. PYTHON is a Python that has the package `xllamacpp`, whose wheel contains llama.cpp.

usage:  python scripts/check_gguf.py --plimsoll PROGRAM [--family NAME]... [--type TYPE]... [--llama PYTHON]
exit:   0 all agree, 1 they do not, 2 usage
needs:  pip install gguf numpy tokenizers torch transformers safetensors
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import tokenizers
import torch
import transformers
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFReader
from safetensors import safe_open
from transformers import AutoConfig

SEED = 2024
VOCAB_SIZE = 256
PROMPT = "Load line, 1876"
# What tokenizers are trained on, and texts for them.
TEXT = "A ship that is loaded below her line, 1876, doesn't leave the harbour.  She'll wait there, at 52 degrees north."
TEXTS = ["A ship's line,  1876", "She waits: na\u00efve \u6f22\u5b57\n\n  at 52 degrees", " the LINE"]
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_K_M"]
# The largest relative error of a tensor.
ERRORS = {"Q4_K": 0.09, "Q5_0": 0.08, "Q5_K": 0.06, "Q6_K": 0.03, "Q8_0": 0.01}
# The largest divergence of llama.cpp's probabilities of the next token from Plimsoll's, in nats: llama.cpp looks up GELU in a table of
# F16, and multiplies integers by inputs that it rounds to integers. Random models have larger ones than trained models.
DIVERGENCE = {"F32": 1e-4, "F16": 2e-2, "Q4_K_M": 2.0}

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 128,
    "vocab_size": VOCAB_SIZE,
    "initializer_range": 0.1,
    "bos_token_id": 1,
    "eos_token_id": 0,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
EVERY_SIXTH = ["sliding_attention"] * 5 + ["full_attention"]

# Family -> model_type, architecture, the values that differ from SIZES.
FAMILIES = {
    "gpt2": ("gpt2", MODEL_ARCH.GPT2, {"n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 128}),
    "llama": ("llama", MODEL_ARCH.LLAMA, {"rope_parameters": LLAMA3, "attention_bias": True}),
    "mistral": ("mistral", MODEL_ARCH.LLAMA, {"sliding_window": None}),
    "mixtral": ("mixtral", MODEL_ARCH.LLAMA, {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    "qwen2": ("qwen2", MODEL_ARCH.QWEN2, {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", MODEL_ARCH.QWEN3, {"tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen3_moe": ("qwen3_moe", MODEL_ARCH.QWEN3MOE, EXPERTS | {"norm_topk_prob": True}),
    "olmoe": ("olmoe", MODEL_ARCH.OLMOE, {"num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": False, "num_key_value_heads": 4}),
    "olmo2": ("olmo2", MODEL_ARCH.OLMO2, {}),
    "olmo3": ("olmo3", MODEL_ARCH.OLMO2, {"sliding_window": 5}),
    "granite": (
        "granite",
        MODEL_ARCH.GRANITE,
        {"embedding_multiplier": 2.0, "logits_scaling": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.1},
    ),
    "smollm3": ("smollm3", MODEL_ARCH.SMOLLM3, {"tie_word_embeddings": True}),
    "phi3": ("phi3", MODEL_ARCH.PHI3, {"sliding_window": None}),
    "gemma": ("gemma", MODEL_ARCH.GEMMA, {"tie_word_embeddings": True}),
    "gemma2": ("gemma2", MODEL_ARCH.GEMMA2, {"tie_word_embeddings": True, "sliding_window": 5, "query_pre_attn_scalar": 64}),
    "gemma3": (
        "gemma3_text",
        MODEL_ARCH.GEMMA3,
        {
            "tie_word_embeddings": True, "sliding_window": 5, "query_pre_attn_scalar": 64, "num_hidden_layers": 6,
            "layer_types": EVERY_SIXTH,
        },
    ),
    "gpt_oss": ("gpt_oss", MODEL_ARCH.GPT_OSS, {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 5}),
    "t5": ("t5", MODEL_ARCH.T5, {"d_model": 256, "d_kv": 64, "d_ff": 512, "num_layers": 2, "num_heads": 4, "feed_forward_proj": "relu"}),
    "t5_gated": (
        "t5",
        MODEL_ARCH.T5,
        {
            "d_model": 256, "d_kv": 64, "d_ff": 512, "num_layers": 2, "num_heads": 4, "feed_forward_proj": "gated-gelu",
            "scale_decoder_outputs": False,
        },
    ),
    "bert": ("bert", MODEL_ARCH.BERT, {"type_vocab_size": 2}),
    "modernbert": ("modernbert", MODEL_ARCH.MODERN_BERT, {"local_attention": 8, "global_attn_every_n_layers": 3}),
}  # fmt: skip
INTERLEAVED = {"llama", "mistral", "mixtral", "granite", "smollm3"}
# Adapters are compared for these; the layers that have them, where it is not all linear layers that every token passes.
ADAPTED = {
    "gpt2": None, "llama": None, "qwen3": None, "qwen3_moe": "q_proj,gate_proj,up_proj,down_proj",
    "mixtral": "v_proj,w1,w2,w3",
}  # fmt: skip
# Not compared with llama.cpp: its server has no encoders' states and no decoder with a source.
WITHOUT_TEXT = {"t5", "bert", "modernbert"}
# The layers of experts, by their names in the model's files.
EXPERT_LAYERS = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}


def make(family: str, folder: Path, vocab_size: int = VOCAB_SIZE):
    """Saves a random model, and returns its configuration."""
    model_type, _, changes = FAMILIES[family]
    torch.manual_seed(SEED)
    sizes = {"vocab_size": vocab_size} if model_type in ("gpt2", "t5") else SIZES | {"vocab_size": vocab_size}
    config = AutoConfig.for_model(model_type, **(sizes | changes))
    auto = {"t5": transformers.AutoModelForSeq2SeqLM, "bert": transformers.AutoModel, "modernbert": transformers.AutoModel}
    model = auto.get(model_type, transformers.AutoModelForCausalLM).from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Initial norms and biases are ones and zeros, which hide errors.
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif model_type == "gpt2":
                parameter.mul_(3)
    model.save_pretrained(folder)
    return config


def run(program: str, *arguments) -> str:
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"error: plimsoll {' '.join(map(str, arguments))}\n{done.stderr}")
    return done.stdout


def tensors_of(folder: Path) -> dict[str, np.ndarray]:
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            tensors |= {name: file.get_tensor(name).float().numpy() for name in file.keys()}
    return tensors


def interleaved(weight: np.ndarray, head: int) -> np.ndarray:
    """The halves of each head's rows in turn, as the converter of llama.cpp orders them."""
    heads = weight.shape[0] // head
    return weight.reshape(heads, 2, head // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def experts_of(name: str, tensors: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    """Puts the tensor of an expert into that of all experts. False if it is not one of an expert."""
    parts = name.split(".")
    if "experts" not in parts:
        return False
    layer, place = parts[2], parts.index("experts")
    if parts[place + 1].isdigit():
        stacked = f"blk.{layer}.ffn_{EXPERT_LAYERS[parts[place + 2]]}_exps.weight"
        if stacked not in expected:
            names = [".".join([*parts[: place + 1], str(expert), *parts[place + 2 :]]) for expert in range(4)]
            expected[stacked] = np.stack([tensors[name] for name in names])
        return True
    kind = "bias" if parts[-1].endswith("_bias") else "weight"
    both = tensors[name] if kind == "bias" else tensors[name].swapaxes(1, 2)
    if parts[-1].startswith("gate_up"):
        expected[f"blk.{layer}.ffn_gate_exps.{kind}"] = both[:, 0::2]
        expected[f"blk.{layer}.ffn_up_exps.{kind}"] = both[:, 1::2]
    else:
        expected[f"blk.{layer}.ffn_down_exps.{kind}"] = both
    return True


def expected_tensors(family: str, folder: Path, config) -> dict[str, np.ndarray]:
    """The numbers of each tensor that the file must have, by the names of the package's table."""
    model_type, architecture, _ = FAMILIES[family]
    layers = getattr(config, "num_hidden_layers", 4)
    table = gguf.get_tensor_name_map(architecture, layers)
    tensors, expected = tensors_of(folder), {}
    for name, numbers in tensors.items():
        if experts_of(name, tensors, expected) or name.startswith("pooler."):
            continue
        if name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
            continue
        if config.tie_word_embeddings and name == "lm_head.weight" or name.endswith("embeddings.position_ids"):
            continue
        whole = f"{name}.weight" if name.endswith("sinks") else name
        found = table.get_name(whole, try_suffixes=(".weight", ".bias"))
        if found is None:
            sys.exit(f"error: {family}: the package has no name for {name}")
        if family in INTERLEAVED and (".q_proj." in name or ".k_proj." in name):
            numbers = interleaved(numbers, config.head_dim if getattr(config, "head_dim", None) else 64)
        if model_type == "gpt2" and numbers.ndim == 2 and ".h." in f".{name}":
            numbers = numbers.T
        if model_type.startswith("gemma") and name.endswith("norm.weight"):
            numbers = numbers + np.float32(1)
        expected[found] = numbers
    if model_type == "t5" and config.tie_word_embeddings and config.scale_decoder_outputs:
        # llama.cpp does not scale the head's input.
        expected["output.weight"] = tensors["shared.weight"] * np.float32(config.d_model**-0.5)
    return expected


def compare(what: str, file: Path, file_type: str, expected: dict[str, np.ndarray]) -> None:
    reader = GGUFReader(file)
    found = {tensor.name: tensor for tensor in reader.tensors}
    computed = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}
    if set(found) - computed != set(expected):
        sys.exit(f"error: {what}: {sorted(set(found) - computed ^ set(expected))} differ")
    worst = {}
    for name, numbers in expected.items():
        tensor = found[name]
        kind = tensor.tensor_type
        numbers = np.ascontiguousarray(numbers)
        if tuple(reversed(tensor.shape)) != numbers.shape:
            sys.exit(f"error: {what}: {name} is {tuple(reversed(tensor.shape))} instead of {numbers.shape}")
        read = gguf.quants.dequantize(tensor.data, kind).reshape(numbers.shape)
        norm = np.sqrt(np.mean(numbers**2)) or 1
        error = float(np.sqrt(np.mean((read - numbers) ** 2)) / norm)
        worst[kind.name] = max(worst.get(kind.name, 0), error)
        if kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16, GGMLQuantizationType.Q8_0):
            exact = gguf.quants.quantize(numbers, kind)
            if not np.array_equal(exact.view(np.uint8).ravel(), tensor.data.view(np.uint8).ravel()):
                sys.exit(f"error: {what}: {name} in {kind.name} is not that of the package")
        elif not error <= ERRORS[kind.name]:
            sys.exit(f"error: {what}: {name} in {kind.name} has an error of {error:.4f}")
    counts = ", ".join(f"{kind} {error:.1e}" for kind, error in sorted(worst.items()))
    print(f"{what}: {len(found)} tensors; largest relative error: {counts}", flush=True)


# Run by the Python that has llama.cpp: the log-probabilities of all tokens after a prompt, and the likeliest ones after it.
LLAMA = """
import json, sys
import xllamacpp as x
path, tokens, count, adapters = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
params = x.CommonParams()
params.model.path = path
for adapter in adapters:
    info = x.CommonAdapterLoraInfo()
    info.path, info.scale = adapter, 1.0
    params.lora_adapters = [info]
params.n_ctx, params.warmup = 128, False
params.cpuparams.n_threads = 1
# Keys and values in single precision.
params.cache_type_k = params.cache_type_v = x.ggml_type.GGML_TYPE_F32
params.flash_attn_type = x.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
server = x.Server(params)
# Text that is not ASCII would be kept back until a character is complete.
banned = [[token, False] for token in [0, *range(128, 256)]]
request = {"prompt": tokens, "n_predict": 10, "temperature": 0, "n_probs": count, "cache_prompt": False, "logit_bias": banned}
answer = server.handle_completions(request)
print(json.dumps(answer))
"""


def of_llama(
    python: str, file: Path, tokens: list[int] | str, *adapters: Path, size: int = VOCAB_SIZE
) -> tuple[np.ndarray, list[int]]:
    """The log-probabilities after a prompt, and the likeliest tokens."""
    arguments = [python, "-c", LLAMA, str(file), json.dumps(tokens), str(size), *map(str, adapters)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        sys.exit(f"error: llama.cpp does not run {file.name}:\n{done.stderr[-3000:]}{done.stdout[-500:]}")
    steps = json.loads(lines[-1])["choices"][0]["logprobs"]["content"]
    logprobs = np.full(size, -np.inf)
    for entry in steps[0]["top_logprobs"]:
        logprobs[entry["id"]] = entry["logprob"]
    return logprobs, [step["id"] for step in steps]


def greedy(folder: Path, tokens: list[int]) -> list[int]:
    """The ten likeliest ASCII tokens after a prompt, one after the other, by the logits of transformers."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    tokens = list(tokens)
    for _ in range(10):
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0, -1].clone()
        logits[0] = -torch.inf
        logits[128:] = -torch.inf
        tokens.append(int(logits.argmax()))
    return tokens[-10:]


def logprobs_of(program: str, checkpoint: Path) -> tuple[np.ndarray, list[int]]:
    """The log-probabilities of the token after PROMPT, and PROMPT's tokens."""
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "logits.json"
        run(program, "generate", "--checkpoint", checkpoint, "--tokenizer", "bytes", "--prompt", PROMPT, "--logits", path)
        answer = json.loads(path.read_text())
    logits = np.array(answer["logits"][-1])
    logprobs = logits - logits.max()
    return logprobs - np.log(np.exp(logprobs).sum()), answer["tokens"]


def differences(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """The largest difference of log-probabilities, and the divergence."""
    if not np.isfinite(theirs).sum() >= len(theirs) - 1:
        sys.exit("error: llama.cpp gives no log-probabilities of all tokens")
    known = np.isfinite(theirs)
    return float(np.abs(ours - theirs)[known].max()), float((np.exp(ours) * (ours - theirs))[known].sum())


def compare_with_llama(program: str, python: str, what: str, file: Path, file_type: str, folder: Path) -> None:
    ours, prompt = logprobs_of(program, folder)
    theirs, tokens = of_llama(python, file, prompt)
    difference, divergence = differences(ours, theirs)
    expected = greedy(folder, prompt)
    agree = next((n for n, pair in enumerate(zip(tokens, expected)) if pair[0] != pair[1]), len(expected))
    print(
        f"{what}: llama.cpp's log-probabilities differ by {difference:.1e}, divergence {divergence:.1e}; the first {agree} of "
        f"{len(expected)} greedy tokens agree",
        flush=True,
    )
    if not divergence <= DIVERGENCE[file_type]:
        sys.exit(f"error: {what}: more than {DIVERGENCE[file_type]}")
    if file_type == "F32" and tokens != expected:
        sys.exit(f"error: {what}: other tokens")


def check_adapters(program: str, python: str, family: str, folder: Path) -> None:
    """Trains adapters of a model, and compares llama.cpp's results with them and without."""
    (folder / "text.txt").write_text("Ships are loaded to their line. " * 100)
    targets = ["--lora-targets", ADAPTED[family]] if ADAPTED[family] else []
    run(
        program, "train", "--init", folder, "--data", folder / "text.txt", "--tokenizer", "bytes", "--method", "lora", "--lora-rank", 4, *targets,
        "--lora-rank-pattern", {"gpt2": "c_proj=2", "mixtral": "w2=2"}.get(family, "down_proj=2"), "--learning-rate", 0.01, "--max-steps", 8, "--seq-len", 32, "--global-batch", 2,
        "--sample-tokens", 0, "--device", "cpu", "--cache-dir", folder / "cache", "--runs-dir", folder / "runs", "--name", "adapted",
    )  # fmt: skip
    base, adapters = folder / "base.gguf", folder / "adapters.gguf"
    for checkpoint, out in [(folder, base), (folder / "runs/adapted", adapters)]:
        run(program, "export", "--checkpoint", checkpoint, "--tokenizer", "bytes", "--gguf", "F32", "--out", out)
    ours, prompt = logprobs_of(program, folder / "runs/adapted")
    without, _ = differences(ours, of_llama(python, base, prompt)[0])
    difference, divergence = differences(ours, of_llama(python, base, prompt, adapters)[0])
    print(f"{family}, adapters: llama.cpp's log-probabilities differ by {difference:.1e}, without adapters {without:.1e}", flush=True)
    if not divergence <= DIVERGENCE["F32"] or without < 0.1:
        sys.exit(f"error: {family}: more than {DIVERGENCE['F32']}, or the adapters change nothing")


def byte_level() -> tokenizers.Tokenizer:
    """A byte-level encoding as of Llama 3."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    pattern = tokenizers.Regex(LLAMA3_PATTERN)
    split = tokenizers.pre_tokenizers.Split(pattern, "isolated")
    bytes_only = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, bytes_only])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator([TEXT] * 20, trainer)
    return tokenizer


def pieces() -> tokenizers.Tokenizer:
    """An encoding with byte tokens as of Llama 2."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    normalizers = tokenizers.normalizers
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    special = ["<s>", "</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer.train_from_iterator([TEXT] * 20, tokenizers.trainers.BpeTrainer(vocab_size=400, special_tokens=special))
    # The byte tokens are not special: they are only in the vocabulary.
    text = json.loads(tokenizer.to_str())
    text["added_tokens"] = [token for token in text["added_tokens"] if not token["content"].startswith("<0x")]
    # SentencePiece merges all pairs that make a token; the token's first merge gives the order.
    vocab, model = text["model"]["vocab"], text["model"]
    order = dict.fromkeys("".join(pair) for pair in model["merges"])
    splits = lambda name: ((name[:at], name[at:]) for at in range(1, len(name)))
    model["merges"] = [pair for name in order for pair in splits(name) if pair[0] in vocab and pair[1] in vocab]
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(text))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    decoders = tokenizers.decoders
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def check_tokenizer(program: str, python: str, make_tokenizer) -> None:
    """Compares llama.cpp's log-probabilities after a text with Plimsoll's: they agree only if the tokens do."""
    name = make_tokenizer.__name__
    with tempfile.TemporaryDirectory() as temporary:
        folder, tokenizer = Path(temporary), make_tokenizer()
        size = tokenizer.get_vocab_size()
        make("llama", folder, vocab_size=size)
        tokenizer.save(str(folder / "tokenizer.json"))
        file, path = folder / "model.gguf", folder / "logits.json"
        run(program, "export", "--checkpoint", folder, "--gguf", "F32", "--out", file)
        for text in TEXTS:
            run(program, "generate", "--checkpoint", folder, "--prompt", text, "--logits", path)
            answer = json.loads(path.read_text())
            logits = np.array(answer["logits"][-1])
            ours = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
            theirs, _ = of_llama(python, file, text, size=size)
            difference, divergence = differences(ours, theirs)
            print(f"tokenizer {name}, {len(answer['tokens'])} tokens of {text!r}: differ by {difference:.1e}", flush=True)
            if not divergence <= DIVERGENCE["F32"]:
                sys.exit(f"error: tokenizer {name}: llama.cpp has other tokens of {text!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Checks GGUF files with the package gguf and with llama.cpp.")
    parser.add_argument("--plimsoll", metavar="PROGRAM", required=True)
    parser.add_argument("--family", action="append", choices=FAMILIES, help="only these families [default: all]")
    parser.add_argument("--type", action="append", choices=TYPES, help="only these types [default: all]")
    parser.add_argument("--llama", metavar="PYTHON", help="a Python with xllamacpp")
    arguments = parser.parse_args()
    program = str(Path(arguments.plimsoll).resolve())
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    if arguments.llama and not arguments.family:
        for make_tokenizer in [byte_level, pieces]:
            check_tokenizer(program, arguments.llama, make_tokenizer)
    for family in arguments.family or FAMILIES:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            config = make(family, folder)
            expected = expected_tensors(family, folder, config)
            for file_type in arguments.type or TYPES:
                file = folder / f"{family}.gguf"
                run(program, "export", "--checkpoint", folder, "--tokenizer", "bytes", "--gguf", file_type, "--out", file)
                compare(f"{family}, {file_type}", file, file_type, expected)
                if arguments.llama and file_type in DIVERGENCE and FAMILIES[family][0] not in WITHOUT_TEXT:
                    compare_with_llama(program, arguments.llama, f"{family}, {file_type}", file, file_type, folder)
            if arguments.llama and family in ADAPTED:
                check_adapters(program, arguments.llama, family, folder)


if __name__ == "__main__":
    main()
