"""A real training with PyTorch on the CPU, with Hugging Face's flags and limited memory.

`TINY_SAVED` limits the bytes that are saved for the backward pass, and fails as PyTorch does on a card; `TINY_RLIMIT` limits
the address space to so many bytes more than the process has after a small step, so that PyTorch's own allocator fails.
"""

import argparse
import json
import os
import resource

import torch
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--per_device_train_batch_size", type=int, default=8)
parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
parser.add_argument("--gradient_checkpointing", action="store_true")
parser.add_argument("--resume_from_checkpoint")
parser.add_argument("--output_dir", default="out")
parser.add_argument("--max_steps", type=int, default=6)
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(7)
WIDTH, HIDDEN, BLOCKS, ROWS = 32, 256, 4, 64
blocks = torch.nn.ModuleList(
    torch.nn.Sequential(torch.nn.Linear(WIDTH, HIDDEN), torch.nn.GELU(), torch.nn.Linear(HIDDEN, WIDTH))
    for _ in range(BLOCKS)
)
optimizer = torch.optim.AdamW(blocks.parameters(), lr=1e-3)
saved = 0


def pack(tensor):
    global saved
    saved += tensor.numel() * tensor.element_size()
    limit = int(os.environ.get("TINY_SAVED", 1 << 62))
    if saved > limit:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 8.00 MiB of which 0 bytes is "
            "free. Of the allocated memory 7.90 MiB is allocated by PyTorch, and 4.00 KiB is reserved by PyTorch but "
            "unallocated."
        )
    return tensor


def loss_of(x):
    global saved
    saved = 0
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        h = x
        for block in blocks:
            h = h + (checkpoint(block, h, use_reentrant=False) if args.gradient_checkpointing else block(h))
        return (h - x.roll(1, -1)).square().mean()


def samples(step, first, count):
    """Draws each sample by its own index, independent of the micro-batch."""
    draw = lambda i: torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(step * 10007 + i))
    return torch.stack([draw(i) for i in range(first, first + count)])


first = 0
if args.resume_from_checkpoint:
    state = torch.load(os.path.join(args.resume_from_checkpoint, "optimizer.pt"))
    blocks.load_state_dict(torch.load(os.path.join(args.resume_from_checkpoint, "pytorch_model.bin")))
    optimizer.load_state_dict(state)
    first = int(args.resume_from_checkpoint.rsplit("-", 1)[1])
    print("resumed at step", first, flush=True)
else:
    loss_of(samples(0, 0, 1)).backward()
    optimizer.zero_grad()
if "TINY_RLIMIT" in os.environ:
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * resource.getpagesize() + int(os.environ["TINY_RLIMIT"])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

micro, accumulation = args.per_device_train_batch_size, args.gradient_accumulation_steps
for step in range(first + 1, args.max_steps + 1):
    total = 0.0
    for part in range(accumulation):
        loss = loss_of(samples(step, part * micro, micro)) / accumulation
        loss.backward()
        total += loss.item()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}/{args.max_steps} | loss {total:.6f}", flush=True)
    folder = os.path.join(args.output_dir, f"checkpoint-{step}")
    os.makedirs(folder, exist_ok=True)
    torch.save(blocks.state_dict(), os.path.join(folder, "pytorch_model.bin"))
    torch.save(optimizer.state_dict(), os.path.join(folder, "optimizer.pt"))
    with open(os.path.join(folder, "trainer_state.json"), "w") as file:
        json.dump({"global_step": step}, file)
print(f"final loss {total:.9f}")
