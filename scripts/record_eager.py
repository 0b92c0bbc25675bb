#!/usr/bin/env python3
"""Records what eager PyTorch allocates and frees in training steps of small transformers' models, as a card would see it.

Tensors are on the meta device: they have sizes and owners, autograd is PyTorch's own, and nothing is computed. Every storage
that an op returns is followed until its last owner drops it. What a card does differently from the meta device is mapped
here and said beside each mapping. What kernels allocate for themselves is not seen by a dispatcher, so it is not recorded.

usage: record_eager.py [--out crates/eager/tests/golden] [--case NAME] [--events]
needs: torch, transformers; peft for cases with adapters; liger-kernel, which needs triton, for cases with it
"""
import argparse
import collections
import contextlib
import math
import pathlib
import sys

# Libraries look for a package `kernels`, which is not the script beside this one.
sys.path.pop(0)
import torch
import torch.nn.functional as F
import transformers
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
HALF = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16, "bf16": torch.bfloat16, "fp16": torch.float16}


# Scalars are not followed.
SCALAR = 8


class Recorder(TorchDispatchMode):
    """Follows storages. `live` maps each to its bytes and the op that made it."""

    def __init__(self):
        super().__init__()
        self.live, self.events, self.total = {}, [], 0
        self.peak, self.at_peak, self.phase, self.peak_phase = 0, [], "load", "load"
        self.phases = collections.defaultdict(int)

    def poll(self):
        dead = [key for key, (ref, _, _) in self.live.items() if ref.expired()]
        for key in dead:
            _, size, name = self.live.pop(key)
            self.total -= size
            self.events.append(f"-{size} {name}")

    def follow(self, tensor, name):
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.live or storage.nbytes() <= SCALAR:
            return
        self.live[key] = (torch.multiprocessing.reductions.StorageWeakRef(storage), storage.nbytes(), name)
        self.total += storage.nbytes()
        self.events.append(f"+{storage.nbytes()} {name}")
        self.phases[self.phase] = max(self.phases[self.phase], self.total)
        if self.total > self.peak:
            self.peak, self.peak_phase = self.total, self.phase
            self.at_peak = [(size, name) for _, size, name in self.live.values()]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.poll()
        reused = self.sum_of_gradients(func, args)
        if reused is not None:
            return reused
        name = func.name().split("::")[1].split(".")[0]
        if name == "_to_copy" and (kwargs or {}).get("device") is not None and str(kwargs["device"]) == "cpu":
            return func(*args, **kwargs)
        result = func(*args, **(kwargs or {}))
        for leaf in torch.utils._pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "meta":
                self.follow(leaf, name)
        return result

    @staticmethod
    def sum_of_gradients(func, args):
        """Where gradients meet, the engine adds in place to one that nobody else has (`input_buffer.cpp`). It does not while
        a mode listens, so this does. No formula of these models adds."""
        if func is not aten.add.Tensor or torch.is_grad_enabled() or not IN_BACKWARD:
            return None
        for tensor in args:
            # Three more references than in the engine: its caller's, the dispatcher's, and Python's.
            storage = tensor.untyped_storage()
            others = tensor._use_count() - 4 + torch._C._storage_Use_Count(storage._cdata) - 2
            if others <= 0 and torch._prims_common.is_non_overlapping_and_dense_or_false(tensor):
                return tensor
        return None


# Not empty while a backward pass runs.
IN_BACKWARD = []


class Autocast(TorchFunctionMode):
    """CUDA's autocast, which the meta device has none of: its lists of ops (`autocast_mode.h`), and its cache of weights."""

    LOW = {"linear", "matmul", "__matmul__", "addmm", "bmm", "mm", "baddbmm"}
    HIGH = {"pow", "__pow__", "rsqrt", "layer_norm", "cross_entropy", "nll_loss"}
    HIGH_BY_TYPE = {"softmax", "log_softmax", "sum", "cumsum"}
    active = []

    def __init__(self, dtype):
        super().__init__()
        self.dtype, self.casts = dtype, {}

    def __enter__(self):
        Autocast.active.append(self)
        return super().__enter__()

    def __exit__(self, *error):
        Autocast.active.pop()
        self.casts.clear()
        return super().__exit__(*error)

    def low(self, value):
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dtype == self.dtype:
            return value
        if not (value.is_leaf and value.requires_grad and value.dtype == torch.float32 and not value._is_view()):
            return value.to(self.dtype)
        if id(value) not in self.casts:
            self.casts[id(value)] = value.to(self.dtype)
        return self.casts[id(value)]

    @staticmethod
    def high(value):
        return value.float() if isinstance(value, torch.Tensor) and value.dtype in HALF.values() else value

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name in self.LOW:
            args, kwargs = [self.low(a) for a in args], {k: self.low(v) for k, v in kwargs.items()}
        elif name in self.HIGH:
            args, kwargs = [self.high(a) for a in args], {k: self.high(v) for k, v in kwargs.items()}
        elif name in self.HIGH_BY_TYPE and args[0].dtype in HALF.values():
            kwargs["dtype"] = kwargs.get("dtype") or torch.float32
        return func(*args, **kwargs)


def dropout(x, p=0.5, training=True, inplace=False):
    """On a card one kernel keeps a mask of a byte an element; elsewhere three ops do."""
    return aten.native_dropout(x, p, True)[0] if training and p > 0 else x


def softmax(x, dim=None, _stacklevel=3, dtype=None):
    """On a card softmax of fp16 to fp32 is one kernel; elsewhere the operand is cast first."""
    if x.dtype == torch.float16 and (dtype == torch.float32 or Autocast.active):
        return torch._softmax(x, dim, True)
    return SOFTMAX(x, dim, dtype=dtype)


def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """The kernels that a card of compute capability 8.0 or later chooses (`sdp_utils.cpp`); meta tensors get none."""
    if Autocast.active:
        q, k, v = (Autocast.active[-1].low(x) for x in (q, k, v))
        attn_mask = Autocast.active[-1].low(attn_mask)
    if attn_mask is None and q.dtype in HALF.values() and q.shape[-1] % 8 == 0 and q.shape[-1] <= 256:
        return aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, scale=scale)[0]
    if enable_gqa or q.shape[-1] % 8:
        return ATTENTION(q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.where(attn_mask, torch.zeros((), dtype=q.dtype, device=q.device), -math.inf)
        columns = attn_mask.shape[-1]
        if columns % 8:
            attn_mask = F.pad(attn_mask, (0, 8 - columns % 8))[..., :columns]
        attn_mask = attn_mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    keeps = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    return aten._scaled_dot_product_efficient_attention(
        q, k, v, attn_mask, keeps, dropout_p, is_causal, scale=scale)[0]


ATTENTION, SOFTMAX = F.scaled_dot_product_attention, F.softmax


def reentrant(forward):
    """A block that is run again has autocast as in the forward pass."""

    def wrapped(ctx, run, *rest):
        dtype = Autocast.active[-1].dtype if Autocast.active else None

        def again(*args):
            with Autocast(dtype) if dtype and not Autocast.active else contextlib.nullcontext():
                return run(*args)

        return forward(ctx, again, *rest)

    return staticmethod(wrapped)


def map_to_card():
    import torch.utils.checkpoint as checkpoint
    import transformers.masking_utils as masks

    checkpoint.CheckpointFunction.forward = reentrant(checkpoint.CheckpointFunction.forward)

    F.dropout, F.softmax, F.scaled_dot_product_attention = dropout, softmax, attention
    # Whether rows hold several documents is asked of values; they do not.
    masks.find_packed_sequence_indices = lambda positions: None
    import torch.optim.optimizer as optimizer

    for name in ("_get_fused_kernels_supported_devices", "_get_foreach_kernels_supported_devices"):
        setattr(optimizer, name, lambda: ["meta"])


class NoKernel:
    """A kernel of triton that computes nothing."""

    def __getitem__(self, grid):
        return lambda *args, **kwargs: None


def map_liger_to_card():
    """Liger's functions as they are, but for kernels, which compute nothing, and questions about the device."""
    import importlib
    import types

    import triton
    from liger_kernel.transformers import apply_liger_kernel_to_llama

    card = types.SimpleNamespace(multi_processor_count=132)
    torch.cuda.get_device_properties = lambda device: card
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    torch.is_autocast_enabled = lambda *args: bool(Autocast.active)
    torch.get_autocast_dtype = lambda device: Autocast.active[-1].dtype if Autocast.active else torch.float16
    torch.equal = lambda a, b: True
    torch.Tensor.item = lambda self: 1
    # A product with a type of its own is added where the sum is; the meta device knows no such types.
    addmm = torch.addmm
    torch.addmm = lambda *args, out_dtype=None, **kwargs: kwargs["out"] if out_dtype else addmm(*args, **kwargs)
    for name in ("rms_norm", "swiglu", "rope", "fused_linear_cross_entropy"):
        module = importlib.import_module(f"liger_kernel.ops.{name}")
        text = pathlib.Path(module.__file__).read_text().replace('"cuda"', '"meta"')
        exec(compile(text, module.__file__, "exec"), module.__dict__)
        for key, value in list(vars(module).items()):
            if isinstance(value, triton.runtime.KernelInterface):
                setattr(module, key, NoKernel())
        if hasattr(module, "device_context"):
            module.device_context = lambda device: contextlib.nullcontext()
    from liger_kernel.ops import rope
    from liger_kernel.transformers import functional, monkey_patch, rms_norm, swiglu

    modules = {name: importlib.import_module(f"liger_kernel.ops.{name}") for name in ("rms_norm", "swiglu")}
    rms_norm.LigerRMSNormFunction = modules["rms_norm"].LigerRMSNormFunction
    swiglu.LigerSiLUMulFunction = modules["swiglu"].LigerSiLUMulFunction
    fused = importlib.import_module("liger_kernel.ops.fused_linear_cross_entropy")
    functional.LigerFusedLinearCrossEntropyFunction = fused.LigerFusedLinearCrossEntropyFunction
    monkey_patch.liger_rotary_pos_emb = lambda q, k, cos, sin, **_: rope.LigerRopeFunction.apply(q, k, cos, sin)
    apply_liger_kernel_to_llama()


def build(case):
    from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen2Config, T5Config, T5ForConditionalGeneration

    rate = case.get("dropout", 0.0)
    shape, family = case["shape"], case["family"]
    if family == "gpt2":
        config = GPT2Config(**shape, attn_pdrop=rate, embd_pdrop=rate, resid_pdrop=rate)
    elif family == "t5":
        config = T5Config(**shape, dropout_rate=rate, decoder_start_token_id=0)
    else:
        config = {"llama": LlamaConfig, "qwen2": Qwen2Config}[family](**shape, attention_dropout=rate)
    config.use_cache = False
    config._attn_implementation = case.get("attention", "sdpa")
    with torch.device("meta"):
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(case["precision"], torch.float32)
        if family == "t5":
            model = T5ForConditionalGeneration._from_config(config, dtype=dtype)
            # Made from nothing, models are tied; published weights have a head of their own.
            model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
        else:
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.train()


def optimizer_of(case, model):
    parameters = [p for p in model.parameters() if p.requires_grad]
    name = case.get("optimizer", "adamw-fused")
    if name.startswith("adamw"):
        return torch.optim.AdamW(parameters, fused=name == "adamw-fused", foreach=name == "adamw-foreach")
    if name.startswith("sgd"):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9 if name == "sgd-momentum" else 0.0)
    from transformers.optimization import Adafactor

    return Adafactor(parameters, scale_parameter=False, relative_step=False, lr=1e-3)


def record(case):
    model = build(case)
    how = case.get("checkpointing")
    half = HALF.get(case["precision"]) if case["precision"].startswith("amp") else None
    autocast = (lambda: Autocast(half)) if half else contextlib.nullcontext
    if how:
        kwargs = {"use_reentrant": how == "reentrant", "preserve_rng_state": False}
        if how != "reentrant" and half:
            kwargs["context_fn"] = lambda: (contextlib.nullcontext(), autocast())
        model.gradient_checkpointing_enable(kwargs)
    optimizer = optimizer_of(case, model)
    recorder = Recorder()
    for tensor in [*model.parameters(), *model.buffers()]:
        recorder.follow(tensor, "parameter")
    rows, length, micro_batches = case["batch"], case["length"], case.get("accumulation", 1)
    with recorder:
        for step in range(3):
            for _ in range(micro_batches):
                recorder.phase = "forward"
                ids = torch.empty(rows, length, dtype=torch.long, device="meta")
                target = case.get("target")
                labels = torch.empty(rows, target, dtype=torch.long, device="meta") if target else ids
                with autocast():
                    loss = model(input_ids=ids, labels=labels).loss
                if micro_batches > 1:
                    loss = loss / micro_batches
                recorder.phase = "backward"
                IN_BACKWARD.append(True)
                loss.backward()
                IN_BACKWARD.pop()
                del loss, ids, labels
            recorder.phase = "update"
            if case.get("clips"):
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            recorder.poll()
    return recorder


GPT2 = {"n_layer": 2, "n_embd": 48, "n_head": 3, "n_positions": 64, "vocab_size": 101}
LLAMA = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 131, "max_position_embeddings": 128}
T5 = {"num_layers": 2, "num_decoder_layers": 2, "d_model": 48, "d_ff": 80, "num_heads": 3, "d_kv": 16, "vocab_size": 101,
      "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}


def cases():
    """Name: what the trainer is told."""
    families = {
        "gpt2": {"family": "gpt2", "shape": GPT2, "batch": 3, "length": 40},
        "llama": {"family": "llama", "shape": LLAMA, "batch": 3, "length": 40},
        "t5": {"family": "t5", "shape": T5, "batch": 3, "length": 40, "target": 24},
    }
    all_cases = {}

    def add(family, name, **options):
        case = families[family] | {"precision": "fp32"} | options
        # Attention in ops drops inside one op, by more than one that a card has: there are no heads to share then.
        if "dropout" in case and family == "llama":
            case["shape"] = case["shape"] | {"num_key_value_heads": 4}
        all_cases[f"{family}-{name}"] = case

    for family in families:
        for attention in ("sdpa", "eager"):
            for precision in ("fp32", "bf16", "fp16", "amp-bf16", "amp-fp16"):
                add(family, f"{attention}-{precision}", attention=attention, precision=precision)
        for precision in ("fp32", "amp-bf16"):
            for attention in ("sdpa", "eager"):
                add(family, f"dropout-{attention}-{precision}", attention=attention, precision=precision, dropout=0.1)
            for how in ("reentrant", "hooks"):
                add(family, f"{how}-{precision}", precision=precision, checkpointing=how, dropout=0.1)
        add(family, "accumulation", accumulation=2, precision="amp-bf16")
        for optimizer in ("adamw-foreach", "adamw-loop", "adafactor", "sgd", "sgd-momentum"):
            add(family, optimizer, optimizer=optimizer, batch=1, length=8, **({"target": 8} if family == "t5" else {}))
        add(family, "clip", clips=True, batch=1, length=8, **({"target": 8} if family == "t5" else {}))
    for precision in ("fp32", "bf16", "amp-bf16"):
        add("llama", f"liger-{precision}", precision=precision, loss="liger")
    add("llama", "liger-hooks-amp-bf16", precision="amp-bf16", loss="liger", checkpointing="hooks")
    return all_cases


def digest(events):
    """How many allocations, and FNV-1a of their bytes and of what is live then: equal ones are the same run, event by event."""
    count, total, value = 0, 0, 0xCBF29CE484222325
    for event in events:
        size = int(event.split()[0])
        total += size
        if size > 0:
            count += 1
            for byte in f"{size} {total};".encode():
                value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{count} {value:016x}"


def written(name, case, recorder):
    told = {k: v for k, v in case.items() if k != "shape"}
    lines = [f"case {name}", "run " + " ".join(f"{k}={v}" for k, v in sorted(told.items()))]
    lines.append("shape " + " ".join(f"{k}={v}" for k, v in sorted(case["shape"].items())))
    lines.append(f"peak {recorder.peak} {recorder.peak_phase}")
    lines.append(f"events {digest(recorder.events)}")
    lines += [f"most {phase} {size}" for phase, size in sorted(recorder.phases.items())]
    groups = collections.defaultdict(collections.Counter)
    for size, name in recorder.at_peak:
        groups[size][name] += 1
    for size, names in sorted(groups.items(), reverse=True):
        lines.append(f"live {size} {sum(names.values())} " + ",".join(sorted(names)))
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, help="folder of the records; without it, they are printed")
    parser.add_argument("--case", help="the one case; without it, all")
    parser.add_argument("--events", action="store_true", help="print every allocation and free")
    a = parser.parse_args()
    map_to_card()
    transformers.logging.set_verbosity_error()
    # Liger stays in place once it is.
    for name, case in sorted(cases().items(), key=lambda entry: "loss" in entry[1]):
        if a.case not in (None, name):
            continue
        if case.get("loss") == "liger":
            map_liger_to_card()
        recorder = record(case)
        if a.events:
            print("\n".join(recorder.events))
        text = written(name, case, recorder)
        if a.out:
            (a.out / f"{name}.txt").write_text(text)
        elif not a.events:
            print(text)


if __name__ == "__main__":
    main()
