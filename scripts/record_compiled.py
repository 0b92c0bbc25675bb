#!/usr/bin/env python3
"""Records how many bytes `torch.compile` saves for the backward pass of small models of transformers.

The models are those of `record_eager.py`, on the CPU. Dynamo traces them, AOTAutograd creates joint graphs with Inductor's
decompositions, and Inductor's partitioner cuts these; the graphs run unchanged. Counted are the bytes that pass from the forward to
the backward graph, without inputs, each storage once.

usage: record_compiled.py [--out crates/eager/tests/compiled.txt]
needs: torch, transformers
"""
import argparse
import contextlib
import importlib.util
import pathlib
import sys

sys.path.pop(0)
import torch
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table

aten = torch.ops.aten
VIEWS = {aten.view.default, aten._unsafe_view.default, aten.permute.default, aten.t.default, aten.transpose.int,
         aten.unsqueeze.default, aten.squeeze.dim, aten.expand.default, aten.alias.default, aten.detach.default}


def eager():
    """The other script, which removes the first folder of the module search path."""
    path = pathlib.Path(__file__).with_name("record_eager.py")
    spec = importlib.util.spec_from_file_location("record_eager", path)
    sys.path.insert(0, "")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def saved_bytes(forward, results):
    """Saved bytes of a graph, whose first results are the model's."""
    inputs = {node for node in forward.graph.nodes if node.op == "placeholder"}
    seen, total = set(), 0
    for node in forward.graph.find_nodes(op="output")[0].args[0][results:]:
        while getattr(node, "op", "") == "call_function" and node.target in VIEWS:
            node = node.args[0]
        value = getattr(node, "meta", {}).get("val")
        if node in inputs or node in seen or not isinstance(value, torch.Tensor):
            continue
        seen.add(node)
        total += value.numel() * value.element_size()
    return total


def record(scripts, case):
    model = scripts.build(case).to_empty(device="cpu")
    for buffer in model.buffers():
        buffer.data.zero_()
    sizes = []

    def partition(joint, inputs, *, num_fwd_outputs, **kwargs):
        forward, backward = min_cut_rematerialization_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)
        sizes.append(saved_bytes(forward, num_fwd_outputs))
        return forward, backward

    def backend(graph, inputs):
        as_it_is = lambda graph, _: graph
        return aot_module_simplified(graph, inputs, fw_compiler=as_it_is, bw_compiler=as_it_is, partition_fn=partition,
                                     decompositions=select_decomp_table())

    torch._dynamo.reset()
    ids = torch.zeros(case["batch"], case["length"], dtype=torch.long)
    target = case.get("target")
    labels = torch.zeros(case["batch"], target, dtype=torch.long) if target else ids
    half = case["precision"].startswith("amp")
    with torch.autocast("cpu", torch.bfloat16) if half else contextlib.nullcontext():
        torch.compile(model, backend=backend)(input_ids=ids, labels=labels)
    return sum(sizes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, help="output file; default: stdout")
    a = parser.parse_args()
    scripts = eager()
    names = [f"{family}-sdpa-{precision}" for family in ("gpt2", "llama", "t5") for precision in ("fp32", "bf16", "amp-bf16")]
    lines = [f"{name} {record(scripts, scripts.cases()[name])}\n" for name in names]
    a.out.write_text("".join(lines)) if a.out else print("".join(lines), end="")


if __name__ == "__main__":
    main()
