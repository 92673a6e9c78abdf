#!/usr/bin/env python3
"""tests/golden/quantize.gguf: floats, and the blocks that ggml makes of them (ggml_quantize_chunk, without an importance matrix).

quantize.py LLAMA_DIR

Tensors  x         F32, eight rows of 512: normal with a few large elements; one row with steps (ties in rounding), one of zeros
                   but for one element, one of values and zeros too small for an F16 scale, one of one sign, one of equal elements
         raw.TYPE  the same in TYPE
Exact    Q8_0, Q4_0, Q4_1, Q5_0, Q5_1: a definition, every byte. Q4_K, Q5_K, Q6_K come from a search: there what counts is how far
         the values are from x.
"""
import ctypes
import os
import sys

import gguf
import numpy as np

from golden import Golden
from smollm2_logits import version_of

SEED = 20250102
ROWS, WIDTH = 8, 512
TYPES = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]


def values():
    rng = np.random.default_rng(SEED)
    x = rng.standard_normal((ROWS, WIDTH)).astype(np.float32) * 0.05
    x[0, ::37] *= 6
    x[1] = rng.integers(-254, 255, WIDTH).astype(np.float32) / 64  # halves of a level of Q8_0
    x[2], x[2, 300] = 0, -0.7
    x[3] = np.where(rng.random(WIDTH) < 0.5, 0, rng.standard_normal(WIDTH) * 1e-33).astype(np.float32)
    x[4] = np.abs(x[4]) + 0.5
    x[5] = 0.125
    return x


def main():
    llama = sys.argv[1]
    base = ctypes.CDLL(os.path.join(llama, "build/bin/libggml-base.so"))
    chunk = base.ggml_quantize_chunk
    chunk.restype = ctypes.c_size_t
    chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    out = Golden("quantize.gguf", "python tools/oracle/quantize.py LLAMA_DIR", llama_cpp=version_of(llama))
    out.note("seed", SEED)
    x = values()
    out.f32("x", x)
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        elements, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        raw = np.zeros((ROWS, WIDTH // elements * block_bytes), np.uint8)
        n = chunk(int(kind), x.ctypes.data, raw.ctypes.data, 0, ROWS, WIDTH, None)
        assert n == raw.nbytes
        out.tensor(f"raw.{name.lower()}", raw, kind)
    out.write()


if __name__ == "__main__":
    main()
