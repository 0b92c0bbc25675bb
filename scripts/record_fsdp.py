#!/usr/bin/env python3
"""Records when FSDP gathers and frees the weights of a small GPT-2, and when it flattens gradients.

The first version of FSDP as accelerate configures it: a block per unit, bf16 with shards in single precision, no prefetch. It runs on
the CPU in a group of four ranks with only one process, whose communication does nothing. Lines are bytes of a unit's weights that
are gathered (+) and freed (-), and of gradients that are flattened (=).

usage: record_fsdp.py [--out crates/eager/tests/fsdp.txt]
needs: torch, transformers
"""
import argparse
import functools
import pathlib
import sys

sys.path.pop(0)
import torch
import torch.distributed as dist
import transformers
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp._traversal_utils import _get_fsdp_handles
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.gpt2.modeling_gpt2 import GPT2Block


class Recorder(TorchDispatchMode):
    """Checks all units whenever an op runs."""

    def __init__(self, handles):
        super().__init__()
        self.handles, self.there, self.lines = handles, {}, []
        self.sizes = {handle.flat_param._unpadded_unsharded_size.numel() for handle in handles}

    def poll(self):
        for handle in self.handles:
            whole = getattr(handle.flat_param, "_full_param_padded", None)
            size = whole.untyped_storage().nbytes() if whole is not None else 0
            before = self.there.get(handle, 0)
            self.there[handle] = size
            if size != before:
                self.lines.append(f"+{size}" if size else f"-{before}")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.poll()
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.cat.default and result.numel() in self.sizes:
            self.lines.append(f"={result.nbytes}")
        self.poll()
        return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, help="output file; default: stdout")
    a = parser.parse_args()
    transformers.logging.set_verbosity_error()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    config = transformers.GPT2Config(n_layer=3, n_embd=48, n_head=3, n_positions=64, vocab_size=101, attn_pdrop=0, embd_pdrop=0,
                                     resid_pdrop=0, use_cache=False)
    half = torch.bfloat16
    model = FullyShardedDataParallel(
        transformers.GPT2LMHeadModel(config), device_id=torch.device("cpu"), use_orig_params=True, backward_prefetch=None,
        auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={GPT2Block}),
        mixed_precision=MixedPrecision(param_dtype=half, reduce_dtype=half, buffer_dtype=half))
    ids = torch.zeros(2, 16, dtype=torch.long)
    with Recorder(_get_fsdp_handles(model)) as recorder:
        model(input_ids=ids, labels=ids).loss.backward()
        recorder.poll()
    text = "\n".join(recorder.lines) + "\n"
    a.out.write_text(text) if a.out else print(text, end="")


if __name__ == "__main__":
    main()
