"""Writes crates/exec/src/weight_codes/golden.json: codes, scales and decoded weights of bitsandbytes.

    python scripts/golden_weight_codes.py

Needs torch and bitsandbytes. Last run with torch 2.15.0 and bitsandbytes 0.50.2. The codes of scales are computed on numbers in
double precision, for which bitsandbytes uses no library: it would look codes up in a table of rounded values.
"""

import json
import math
from pathlib import Path

import torch
from bitsandbytes import functional

FILE = Path(__file__).parent.parent / "crates/exec/src/weight_codes/golden.json"
DTYPES = {"F32": torch.float32, "Bf16": torch.bfloat16, "F16": torch.float16}
SHAPES = [(1, 2), (3, 22), (5, 64), (21, 830)]


def weights(count: int) -> torch.Tensor:
    """Weights of different magnitudes; the third block is zero. `tests.rs` has the same."""
    values = []
    for i in range(count):
        block = i // 64
        uniform = (i * 2654435761 % 2**32 >> 8) / 2**24 - 0.5
        values.append(0.0 if block == 2 else uniform * 2.0 ** (block * 5 % 9 - 4))
    return torch.tensor(values, dtype=torch.float32)


def hexadecimal(tensor: torch.Tensor) -> str:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes().hex()


def checksum(tensor: torch.Tensor) -> int:
    """FNV-1a of the bytes."""
    sum = 0xCBF29CE484222325
    for byte in tensor.contiguous().flatten().view(torch.uint8).tolist():
        sum = (sum ^ byte) * 0x100000001B3 % 2**64
    return sum


def case(shape: tuple[int, int], dtype: str) -> dict:
    source = weights(math.prod(shape)).to(DTYPES[dtype]).reshape(shape)
    codes, state = functional.quantize_4bit(source, blocksize=64, compress_statistics=True, quant_type="nf4")
    absmax = torch.ops.bitsandbytes.quantize_4bit.default(source, 64, "nf4", torch.uint8)[1]
    nested, _ = functional.quantize_blockwise((absmax - state.offset), blocksize=256)
    nested_of_double, nested_absmax = torch.ops.bitsandbytes.quantize_blockwise.default(
        (absmax - state.offset).double(), functional.create_dynamic_map(), 256
    )
    assert torch.equal(nested_absmax, state.state2.absmax)
    different = (nested != nested_of_double).sum().item()
    if different:
        print(f"{shape} {dtype}: the library's codes of {different} of {len(absmax)} scales are not the nearest")
    state.absmax = nested_of_double
    decoded = {}
    for name, to in DTYPES.items():
        state.dtype = to
        decoded[name] = checksum(functional.dequantize_4bit(codes, state))
    integers, rows, _ = functional.int8_vectorwise_quant(source.clone())
    return {
        "shape": shape,
        "dtype": dtype,
        "nf4": {
            "codes": checksum(codes),
            "absmax": checksum(nested_of_double),
            "nested_absmax": hexadecimal(nested_absmax),
            "nested_offset": hexadecimal(state.offset.reshape(1)),
            "plain_absmax": checksum(absmax),
            "decoded": decoded,
        },
        "int8": {
            "codes": checksum(integers),
            "SCB": hexadecimal(rows),
            "decoded": {"F32": checksum(functional.int8_vectorwise_dequant(integers, rows))},
        },
    }


if __name__ == "__main__":
    cases = [case(shape, dtype) for shape in SHAPES for dtype in DTYPES]
    scale_levels = hexadecimal(functional.create_dynamic_map())
    levels = hexadecimal(functional.get_4bit_type("nf4", device="cpu"))
    text = json.dumps({"levels": levels, "scale_levels": scale_levels, "cases": cases}, indent=1)
    FILE.write_text(text + "\n")
