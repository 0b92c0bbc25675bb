#!/usr/bin/env python3
"""Records what eager PyTorch allocates and frees in training steps of small models of transformers, as on a card.

Tensors are on the meta device: they have sizes and owners, autograd is PyTorch's, and nothing is computed. Every storage that an op
returns is tracked until its last owner drops it. Differences between a card and the meta device are mapped here, each with a comment.
A dispatcher cannot see what kernels allocate internally, so that is not recorded.

usage: record_eager.py [--out crates/eager/tests/golden] [--case NAME] [--events]
needs: torch, transformers; other versions of transformers for cases that name one, which are skipped otherwise; peft for cases with adapters, bitsandbytes for 4-bit weights; liger-kernel, which needs triton, for
cases with it
"""
import argparse
import collections
import contextlib
import math
import pathlib
import sys

# Libraries import a package `kernels`, which is not the script of that name in this folder.
sys.path.pop(0)
import torch
import torch.nn.functional as F
import transformers
import transformers.masking_utils
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
HALF = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16, "bf16": torch.bfloat16, "fp16": torch.float16}


# Scalars are not tracked.
SCALAR = 8


class Recorder(TorchDispatchMode):
    """Tracks storages. `live` maps each to its bytes and the op that created it."""

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
        reused = self.sum_of_gradients(func, args) if func is aten.add.Tensor else self.filled_in_place(func, args)
        if reused is not None:
            return reused
        name = func.name().split("::")[1].split(".")[0]
        if name == "_to_copy" and (kwargs or {}).get("device") is not None and str(kwargs["device"]) == "cpu":
            return func(*args, **kwargs)
        if name == "gemm_4bit":
            # An addition of gradients; a formula that adds would be recorded too if a block is recomputed.
            within, IN_BACKWARD[:] = IN_BACKWARD[:], []
            with self:
                result = gemm_4bit(*args, **(kwargs or {}))
            IN_BACKWARD[:] = within
            return result
        result = func(*args, **(kwargs or {}))
        for leaf in torch.utils._pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "meta":
                self.follow(leaf, name)
        return result

    @staticmethod
    def sum_of_gradients(func, args):
        """Where gradients meet, the engine adds in place to one that has no other owner (`input_buffer.cpp`), but not while a mode is
        active, so this function does. No formula of these models adds."""
        if torch.is_grad_enabled() or not IN_BACKWARD:
            return None
        for tensor in args:
            # Three more references than in the engine: the caller's, the dispatcher's, and Python's.
            storage = tensor.untyped_storage()
            others = tensor._use_count() - 4 + torch._C._storage_Use_Count(storage._cdata) - 2
            if others <= 0 and torch._prims_common.is_non_overlapping_and_dense_or_false(tensor):
                return tensor
        return None

    @staticmethod
    def filled_in_place(func, args):
        """Formulas that write rows of zeros do so in place, but not while a mode is active: `index_backward` and
        `value_selecting_reduction_backward` of `FunctionsManual.cpp`."""
        return args[0] if func in (aten.index_put.default, aten.scatter.src) and IN_BACKWARD else None


# Not empty during a backward pass.
IN_BACKWARD = []


class Autocast(TorchFunctionMode):
    """CUDA's autocast, which the meta device lacks: its lists of ops (`autocast_mode.h`), and its cache of weights."""

    LOW = {"linear", "matmul", "__matmul__", "addmm", "bmm", "mm", "baddbmm"}
    HIGH = {"pow", "__pow__", "rsqrt", "layer_norm", "cross_entropy", "nll_loss", "logsumexp"}
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
    """On a card one kernel stores a mask of one byte per element; on other devices it is three ops."""
    return aten.native_dropout(x, p, True)[0] if training and p > 0 else x


def softmax(x, dim=None, _stacklevel=3, dtype=None):
    """On a card softmax from fp16 to fp32 is one kernel; other devices cast the operand first."""
    if x.dtype == torch.float16 and (dtype == torch.float32 or Autocast.active):
        return torch._softmax(x, dim, True)
    return SOFTMAX(x, dim, dtype=dtype)


def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """The kernels that PyTorch selects on a card of compute capability 8.0 or later (`sdp_utils.cpp`), but not for meta tensors."""
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


DOCUMENTS = transformers.masking_utils.find_packed_sequence_indices
SKIPS = getattr(transformers.masking_utils, "_ignore_bidirectional_mask_sdpa", None)
ATTENTION, SOFTMAX = F.scaled_dot_product_attention, F.softmax


def reentrant(forward):
    """A recomputed block has the same autocast as in the forward pass."""

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
    asked = torch.is_autocast_enabled
    torch.is_autocast_enabled = lambda *device: asked(*device) if device else bool(Autocast.active)
    # Whether rows contain several documents depends on values; they do not.
    masks.find_packed_sequence_indices = lambda positions: None
    # All tokens of decoders count.
    masks.fast_all = lambda mask: True
    # The meta device has no autocast, which transformers 4 turns off around rotary positions, and PEFT around the sum of
    # experts' weights and adapters.
    torch.autocast = lambda *args, **kwargs: contextlib.nullcontext()
    import torch.optim.optimizer as optimizer

    for name in ("_get_fused_kernels_supported_devices", "_get_foreach_kernels_supported_devices"):
        setattr(optimizer, name, lambda: ["meta"])


def gemm_4bit(x, weight, shape, absmax, block, kind, bias=None, absmax_8bit=None, absmax_code=None, absmax_offset=None):
    """bitsandbytes' product with 4-bit weights as on a card (`backends/cuda/ops.py`, `_dequant_linear_fallback`): dequantizes the
    weight, then a linear layer. Version 0.50.2 has a kernel without dequantization for some cards and shapes with few rows."""
    ops = torch.ops.bitsandbytes
    if absmax_8bit is not None:
        scales = ops.dequantize_blockwise(absmax_8bit, absmax, absmax_code, 256, torch.float32)
        absmax = scales + absmax_offset
    dequantized = ops.dequantize_4bit(weight, absmax, block, kind, shape, x.dtype)
    return F.linear(x, dequantized, bias)


def quantized(case, model):
    """The model as `from_pretrained` loads it in 4 bits, after `prepare_model_for_kbit_training`."""
    import bitsandbytes as bnb
    import transformers.integrations.bitsandbytes as integration
    from peft import prepare_model_for_kbit_training
    from transformers import BitsAndBytesConfig
    from transformers.quantizers.base import HfQuantizer

    dtype = HALF.get(case["precision"], torch.float32)
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype,
                                bnb_4bit_use_double_quant=case["quantized"] == "double")
    kept = HfQuantizer.get_modules_to_not_convert(model, None, model._keep_in_fp32_modules)
    weights = {name: module.weight for name, module in model.named_modules() if hasattr(module, "weight")}
    biases = {name: module.bias for name, module in model.named_modules() if getattr(module, "bias", None) is not None}
    model = integration.replace_with_bnb_linear(model, kept, config)
    for name, module in model.named_modules():
        if isinstance(module, bnb.nn.Linear4bit):
            weight = weights[name].data.to(dtype)
            module.weight.data = weight.T if issubclass(module.source_cls, transformers.pytorch_utils.Conv1D) else weight
            # `to` quantizes, except on the meta device.
            module.weight._quantize("meta")
            if module.bias is not None:
                module.bias = biases[name]
    model.is_loaded_in_4bit = model.is_quantized = True
    how = case.get("checkpointing")
    model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=bool(how),
                                            gradient_checkpointing_kwargs=checkpointing_of(case))
    return model


def adapted(case, model):
    """The model with PEFT's adapters."""
    from peft import LoraConfig, get_peft_model

    targets = case.get("targets")
    targets = targets.split(",") if targets and targets != "all-linear" else targets
    config = LoraConfig(r=case["lora"], target_modules=targets, lora_dropout=case.get("lora_dropout", 0.0),
                        fan_in_fan_out=case["family"] == "gpt2" and "quantized" not in case)
    return get_peft_model(model, config)


def checkpointing_of(case):
    how = case.get("checkpointing")
    if not how:
        return None
    kwargs = {"use_reentrant": how == "reentrant", "preserve_rng_state": False}
    half = HALF.get(case["precision"]) if case["precision"].startswith("amp") else None
    if how != "reentrant" and half:
        kwargs["context_fn"] = lambda: (contextlib.nullcontext(), Autocast(half))
    return kwargs


def parameters_of(model):
    """Parameters, buffers, and the quantization state of 4-bit weights, in the order of quantization."""
    for tensor in [*model.parameters(), *model.buffers()]:
        yield tensor
        state = getattr(tensor, "quant_state", None)
        if state is not None and state.nested:
            yield from [state.code, state.offset, state.absmax, state.state2.absmax, state.state2.code]
        elif state is not None:
            yield from [state.absmax, state.code]


class NoKernel:
    """A triton kernel that computes nothing."""

    def __getitem__(self, grid):
        return lambda *args, **kwargs: None


def map_liger_to_card():
    """Liger's functions, except for kernels, which compute nothing, and queries of the device."""
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
    # A product with a type of its own is accumulated in place; the meta device does not support these types.
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
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, GPT2Config, T5Config, T5ForConditionalGeneration

    rate = case.get("dropout", 0.0)
    shape, family = case["shape"], case["family"]
    if family == "gpt2":
        config = GPT2Config(**shape, attn_pdrop=rate, embd_pdrop=rate, resid_pdrop=rate)
    elif family == "t5":
        config = T5Config(**shape, dropout_rate=rate, decoder_start_token_id=0)
    elif family in ENCODERS:
        rates = {"bert": ["hidden_dropout_prob", "attention_probs_dropout_prob"],
                 "modernbert": ["embedding_dropout", "attention_dropout", "mlp_dropout"]}
        config = AutoConfig.for_model(family, **shape, **dict.fromkeys(rates[family], rate))
    else:
        config = AutoConfig.for_model(family, **shape, attention_dropout=rate)
    config.use_cache = False
    config._attn_implementation = case.get("attention", "sdpa")
    with torch.device("meta"):
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(case["precision"], torch.float32)
        if family == "t5":
            model = T5ForConditionalGeneration._from_config(config, dtype=dtype)
            # A new model has a tied head; published weights have an untied one.
            model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
        elif family in ENCODERS:
            model = Encoder(AutoModel.from_config(config, dtype=dtype))
        else:
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.train()


class Encoder(torch.nn.Module):
    """A sentence encoder of sentence-transformers: the model and mean pooling. Its loss is that of `losses.py`."""

    def __init__(self, model):
        super().__init__()
        from sentence_transformers.sentence_transformer.modules import Pooling

        self.model = model
        self.pooling = Pooling(model.config.hidden_size, "mean")

    def gradient_checkpointing_enable(self, kwargs):
        self.model.gradient_checkpointing_enable(kwargs)

    def forward(self, features):
        # As `Transformer.forward`, which keeps no other result of the model.
        embeddings = self.model(**features)["last_hidden_state"]
        features["token_embeddings"] = embeddings
        del embeddings
        return self.pooling(features)


def contrast(case, encoder):
    """The loss of a batch of pairs, whose texts are padded."""
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    names = ["input_ids", "attention_mask"] + (["token_type_ids"] if case["family"] == "bert" else [])
    features = [{name: torch.empty(case["batch"], case["length"], dtype=torch.long, device="meta") for name in names}
                for _ in range(2)]
    return features, MultipleNegativesRankingLoss(encoder)


def optimizer_of(case, model):
    parameters = [p for p in model.parameters() if p.requires_grad]
    name = case.get("optimizer", "adamw-fused")
    if "8bit" in name or "paged" in name:
        return eight_bit(name, model, parameters)
    if name.startswith("adamw"):
        return torch.optim.AdamW(parameters, fused=name == "adamw-fused", foreach=name == "adamw-foreach")
    if name.startswith("sgd"):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9 if name == "sgd-momentum" else 0.0)
    from transformers.optimization import Adafactor

    return Adafactor(parameters, scale_parameter=False, relative_step=False, lr=1e-3)


def eight_bit(name, model, parameters):
    """bitsandbytes' AdamW as transformers' `Trainer.create_optimizer` creates it."""
    import bitsandbytes as bnb

    # Paged memory is managed by the driver, not by PyTorch's allocator.
    bnb.functional.get_paged = lambda *shape, dtype, device: torch.zeros(shape, dtype=dtype)
    # These ops work in place and are not implemented for the meta device.
    for update in ("fill", "prefetch_tensor", "optimizer_update_32bit", "optimizer_update_8bit_blockwise"):
        setattr(bnb.functional, update, lambda *args, **kwargs: None)
    manager = bnb.optim.GlobalOptimManager.get_instance()
    # It identifies parameters by address, which may belong to a parameter of an earlier case.
    manager.initialize()
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})
    return bnb.optim.AdamW(parameters, optim_bits=8 if "8bit" in name else 32, is_paged="paged" in name)


def separates_documents(case):
    """Whether the model masks documents, as transformers 4 does in each sample without a mask."""
    return case.get("transformers", "").startswith("4.") and "no-attention-mask" in case.get("loop", "")


def record(case):
    import transformers.masking_utils as masks

    masks.find_packed_sequence_indices = DOCUMENTS if separates_documents(case) else lambda positions: None
    # Texts of encoders are padded.
    masks._ignore_bidirectional_mask_sdpa = (lambda *args: False) if case["family"] in ENCODERS else SKIPS
    loop = case.get("loop", "").split(",")
    model = build(case)
    half = HALF.get(case["precision"]) if case["precision"].startswith("amp") else None
    autocast = (lambda: Autocast(half)) if half else contextlib.nullcontext
    if "quantized" in case:
        model = quantized(case, model)
    elif "checkpointing" in case:
        model.gradient_checkpointing_enable(checkpointing_of(case))
    if "lora" in case:
        model = adapted(case, model).train()
    optimizer = optimizer_of(case, model)
    recorder = Recorder()
    for tensor in parameters_of(model):
        recorder.follow(tensor, "parameter")
    rows, length, micro_batches = case["batch"], case["length"], case.get("accumulation", 1)
    with recorder:
        for step in range(3):
            for _ in range(micro_batches):
                recorder.phase = "forward"
                if case["family"] in ENCODERS:
                    features, loss_of = contrast(case, model)
                    with autocast():
                        # The trainer drops what the modules add to the features.
                        loss = loss_of([dict(column) for column in features], None)
                    recorder.phase = "backward"
                    IN_BACKWARD.append(True)
                    loss.backward()
                    IN_BACKWARD.pop()
                    del loss, features
                    continue
                ids = torch.empty(rows, length, dtype=torch.long, device="meta")
                target = case.get("target")
                labels = torch.empty(rows, target, dtype=torch.long, device="meta") if target else ids
                # Only the loss of routers uses the mask; all its elements are ones.
                mask = torch.empty(rows, length, dtype=torch.long, device="meta") if case["shape"].get("output_router_logits") else None
                with autocast():
                    outputs = model(input_ids=ids, labels=labels, attention_mask=mask)
                loss = outputs.loss
                if not any(habit.startswith("outputs-until") for habit in loop):
                    del outputs
                if micro_batches > 1:
                    loss = loss / micro_batches
                recorder.phase = "backward"
                IN_BACKWARD.append(True)
                loss.backward()
                IN_BACKWARD.pop()
                del loss, ids, labels, mask
                if "outputs-until-backward" in loop:
                    del outputs
            recorder.phase = "update"
            if case.get("clips"):
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if "outputs-until-step" in loop:
                del outputs
            optimizer.zero_grad(set_to_none="zeroed-gradients" not in loop)
            recorder.poll()
    return recorder


GPT2 = {"n_layer": 2, "n_embd": 48, "n_head": 3, "n_positions": 64, "vocab_size": 101}
LLAMA = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 131, "max_position_embeddings": 128}
T5 = {"num_layers": 2, "num_decoder_layers": 2, "d_model": 48, "d_ff": 80, "num_heads": 3, "d_kv": 16, "vocab_size": 101,
      "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}

# What decoders add to Llama's sizes: windows shorter than the samples, and every factor.
WINDOWED = LLAMA | {"head_dim": 24, "sliding_window": 16}
DECODERS = {
    "qwen3": LLAMA | {"head_dim": 24},
    "gemma": LLAMA | {"head_dim": 24},
    "gemma2": WINDOWED | {"tie_word_embeddings": True},
    "gemma3_text": WINDOWED | {"sliding_window_pattern": 2, "pad_token_id": 0},
    "ministral": WINDOWED,
    "phi3": LLAMA | {"pad_token_id": 0},
    "smollm3": LLAMA | {"no_rope_layer_interval": 2, "pad_token_id": 0},
    "olmo2": LLAMA,
    "granite": LLAMA | {"embedding_multiplier": 2.0, "logits_scaling": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.3},
}

# Mixtures of experts. The implementation is `grouped_mm`, whose memory does not depend on the routing.
EXPERTS = LLAMA | {"num_experts_per_tok": 2, "pad_token_id": 0}
MIXTURES = {
    "qwen3_moe": EXPERTS | {"head_dim": 24, "num_experts": 4, "moe_intermediate_size": 48},
    "olmoe": EXPERTS | {"num_experts": 4},
    "mixtral": EXPERTS | {"num_local_experts": 4},
    "gpt_oss": EXPERTS | {"head_dim": 16, "num_local_experts": 4, "sliding_window": 16},
}

# Encoders, whose batches are pairs of texts.
ENCODERS = {
    "bert": {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "vocab_size": 131,
             "max_position_embeddings": 128},
    "modernbert": {"num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "vocab_size": 131,
                   "max_position_embeddings": 128, "local_attention": 16, "pad_token_id": 0},
}

# Weights on both sides of bitsandbytes' limits for paged and for 8-bit state.
WIDE = {"gpt2": {"n_embd": 192, "vocab_size": 701}, "llama": {"hidden_size": 256, "intermediate_size": 500},
        "t5": {"d_model": 256, "d_ff": 500}}
# Suffixes of the names of some layers.
SOME = {"gpt2": "mlp.c_proj,c_fc", "llama": "o_proj,down_proj", "t5": "k,wi_0,wo"}


def cases():
    """Cases by name, with the trainer's settings."""
    families = {
        "gpt2": {"family": "gpt2", "shape": GPT2, "batch": 3, "length": 40},
        "llama": {"family": "llama", "shape": LLAMA, "batch": 3, "length": 40},
        "t5": {"family": "t5", "shape": T5, "batch": 3, "length": 40, "target": 24},
    }
    all_cases = {}

    def add(family, name, **options):
        case = families[family] | {"precision": "fp32"} | options
        # Attention made of ops drops out within one op, which needs more memory than a card's kernel: no heads are
        # shared then.
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
        for optimizer in ("adamw-8bit", "paged-adamw-8bit", "paged-adamw"):
            wide = WIDE[family]
            add(family, optimizer, optimizer=optimizer, batch=1, length=8, shape=families[family]["shape"] | wide,
                **({"target": 8} if family == "t5" else {}))
        add(family, "clip", clips=True, batch=1, length=8, **({"target": 8} if family == "t5" else {}))
        for precision in ("fp32", "bf16", "amp-bf16"):
            for how in (None, "reentrant", "hooks"):
                options = {"precision": precision, "lora": 4} | ({"checkpointing": how} if how else {})
                name = f"{precision}-{how or 'plain'}"
                add(family, f"lora-{name}", **options)
                add(family, f"lora-all-{name}", targets="all-linear", lora_dropout=0.05, dropout=0.1, **options)
                add(family, f"qlora-{name}", targets="all-linear", quantized="double", **options)
        add(family, "lora-eager-fp16", attention="eager", precision="fp16", lora=8, targets="all-linear")
        add(family, "lora-some-amp-fp16", precision="amp-fp16", lora=8, targets=SOME[family])
        add(family, "lora-head-bf16", precision="bf16", lora=4, targets="lm_head")
        add(family, "qlora-single-amp-fp16", precision="amp-fp16", lora=8, lora_dropout=0.05, quantized="single")
        add(family, "qlora-eager-fp16", attention="eager", precision="fp16", lora=8, quantized="double", dropout=0.1)
        for name, options in {
            "outputs-until-backward": {"precision": "amp-bf16"}, "outputs-until-step": {"precision": "fp16"},
            "outputs-until-next": {"precision": "bf16"},
        }.items():
            add(family, name, loop=name, **options)
    add("gpt2", "zeroed-gradients", loop="zeroed-gradients", precision="bf16")
    # What a notebook for 4-bit weights does: no autocast, and outputs in a variable.
    for attention in ("sdpa", "eager"):
        add("llama", f"notebook-qlora-{attention}-fp16", attention=attention, precision="fp16", lora=8, quantized="single",
            targets="q_proj,k_proj,v_proj,o_proj", checkpointing="hooks", loop="outputs-until-step", optimizer="adamw-foreach")
    # transformers 4 masks documents if it receives no mask.
    older = {"transformers": "4.57", "loop": "no-attention-mask"}
    for family in ("gpt2", "llama"):
        for attention in ("sdpa", "eager"):
            for precision in ("bf16", "amp-bf16"):
                add(family, f"documents-{attention}-{precision}", attention=attention, precision=precision, **older)
    add("llama", "documents-lora-hooks-bf16", precision="bf16", lora=4, checkpointing="hooks", **older)
    all_cases["mistral-documents-bf16"] = families["llama"] | older | {
        "family": "mistral", "precision": "bf16", "shape": LLAMA | {"sliding_window": 16}}
    # Biases of 4-bit layers that are not `Conv1D`.
    for name, options in {"full": {}, "lora": {"lora": 4}, "qlora": {"lora": 4, "quantized": "double"}}.items():
        all_cases[f"qwen2-{name}-bf16"] = families["llama"] | {"family": "qwen2", "precision": "bf16"} | options
    # Windows shorter than the samples, in all layers and in the second one only.
    for attention in ("sdpa", "eager"):
        for precision in ("fp32", "bf16", "amp-bf16"):
            options = {"attention": attention, "precision": precision}
            windowed = LLAMA | {"sliding_window": 16}
            all_cases[f"mistral-window-{attention}-{precision}"] = families["llama"] | options | {
                "family": "mistral", "shape": windowed}
            all_cases[f"qwen2-window-{attention}-{precision}"] = families["llama"] | options | {
                "family": "qwen2", "shape": windowed | {"use_sliding_window": True, "max_window_layers": 1}}
    all_cases["mistral-wide-window-bf16"] = families["llama"] | {
        "family": "mistral", "precision": "bf16", "shape": LLAMA | {"sliding_window": 41}}
    for family, shape in DECODERS.items():
        # PyTorch's kernels have no soft cap.
        attentions = ("eager",) if family == "gemma2" else ("sdpa", "eager")
        of_family = families["llama"] | {"family": family, "shape": shape}
        for attention in attentions:
            for precision in ("fp32", "bf16", "amp-bf16"):
                options = {"attention": attention, "precision": precision}
                all_cases[f"{family}-{attention}-{precision}"] = of_family | options
        for name, options in {"lora": {}, "qlora": {"quantized": "double"}}.items():
            options = options | {"precision": "bf16", "lora": 4, "checkpointing": "hooks", "targets": "all-linear"}
            options = options | {"attention": attentions[0]}
            all_cases[f"{family}-{name}-hooks-bf16"] = of_family | options
    # A mask for windows that no block has.
    all_cases["gemma3_text-full-eager-bf16"] = families["llama"] | {
        "family": "gemma3_text", "attention": "eager", "precision": "bf16",
        "shape": DECODERS["gemma3_text"] | {"sliding_window_pattern": 1}}
    for family, shape in MIXTURES.items():
        # GPT-OSS's sinks need eager attention.
        of_family = families["llama"] | {"family": family, "shape": shape}
        kinds = {
            "eager-fp32": {"attention": "eager", "precision": "fp32"},
            "eager-bf16": {"attention": "eager", "precision": "bf16"},
        } if family == "gpt_oss" else {
            "eager-fp32": {"attention": "eager", "precision": "fp32"},
            "sdpa-bf16": {"precision": "bf16"},
        }
        attention = "eager" if family == "gpt_oss" else "sdpa"
        kinds[f"{attention}-amp-bf16"] = {"precision": "amp-bf16"}
        for name, options in {"lora": {}, "qlora": {"quantized": "double"}}.items():
            kinds[f"{name}-hooks-bf16"] = options | {
                "precision": "bf16", "lora": 4, "checkpointing": "hooks", "targets": "all-linear"}
        for name, options in kinds.items():
            all_cases[f"{family}-{name}"] = of_family | {"attention": attention} | options
    for family, shape in ENCODERS.items():
        of_family = families["llama"] | {"family": family, "shape": shape}
        for name, options in {
            "sdpa-bf16": {"precision": "bf16"}, "sdpa-amp-bf16": {"precision": "amp-bf16", "dropout": 0.1},
            "eager-fp32": {"precision": "fp32", "attention": "eager"},
            "hooks-amp-bf16": {"precision": "amp-bf16", "checkpointing": "hooks"},
        }.items():
            all_cases[f"{family}-{name}"] = of_family | options
    all_cases["qwen3_moe-router-loss-amp-bf16"] = families["llama"] | {
        "family": "qwen3_moe", "precision": "amp-bf16",
        "shape": MIXTURES["qwen3_moe"] | {"output_router_logits": True, "norm_topk_prob": True}}
    for precision in ("fp32", "bf16", "amp-bf16"):
        add("llama", f"liger-{precision}", precision=precision, loss="liger")
    add("llama", "liger-hooks-amp-bf16", precision="amp-bf16", loss="liger", checkpointing="hooks")
    return all_cases


def digest(events):
    """Number of allocations, and FNV-1a hash of their bytes and of the live bytes: equal digests mean equal events."""
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
    parser.add_argument("--out", type=pathlib.Path, help="output folder; default: stdout")
    parser.add_argument("--case", help="record only this case; default: all")
    parser.add_argument("--events", action="store_true", help="print every allocation and free")
    a = parser.parse_args()
    map_to_card()
    transformers.logging.set_verbosity_error()
    # Liger's patches cannot be undone.
    for name, case in sorted(cases().items(), key=lambda entry: "loss" in entry[1]):
        if a.case not in (None, name):
            continue
        if not transformers.__version__.startswith(case.get("transformers", "5") + "."):
            print(f"skipped: {name} needs another version than {transformers.__version__}", file=sys.stderr)
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
