#!/usr/bin/env python3
"""tests/golden/codecs.gguf: for every block type that weir reads, raw blocks and what the gguf package says they mean in F32.

Tensors  raw.TYPE  four rows of 512 elements in TYPE: random bytes with sane scales; f32.TYPE  gguf.quants.dequantize of it.
         The first row holds the edges: scales of zero, negative scales, the largest and the smallest (denormal) F16; for F16
         and BF16 both infinities, both zeros, denormals. The second row of F16 and BF16 has every exponent.
Rounding The package works in F32, each product and each sum rounded: d*q (Q8_0, Q4_0, Q5_0, IQ4_NL), d*q + m (Q4_1, Q5_1),
         (d*s)*q - dmin*m (Q2_K, Q4_K, Q5_K), (d*s)*q (Q3_K, Q6_K, IQ4_XS). A codec that fuses the product into the sum may differ by an ulp of the
         larger term; every other one agrees bit for bit.
"""
import gguf
import numpy as np
from gguf.quants import dequantize

from golden import Golden

SEED = 20240601
ROWS, WIDTH = 4, 512
T = gguf.GGMLQuantizationType

# type, byte offsets of the F16 scales within a block
BLOCKS = [
    (T.Q8_0, [0]), (T.Q4_0, [0]), (T.Q4_1, [0, 2]), (T.Q5_0, [0]), (T.Q5_1, [0, 2]),
    (T.Q4_K, [0, 2]), (T.Q5_K, [0, 2]), (T.Q6_K, [208]),
    (T.Q2_K, [80, 82]), (T.Q3_K, [108]), (T.IQ4_NL, [0]), (T.IQ4_XS, [0]),
]
EDGE_SCALES = np.array([0.0, -0.0, -0.37, 65504.0, 6e-8, -6.1e-5, 1.0, -2.0], np.float16)


def blocks_of(rng, kind, scale_offsets):
    elements, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    count = WIDTH // elements
    raw = rng.integers(0, 256, (ROWS, count, block_bytes), dtype=np.uint8)
    for nth, offset in enumerate(scale_offsets):
        scale = (rng.standard_normal((ROWS, count)) * 0.05).astype(np.float16)
        at = np.arange(count)
        scale[0] = EDGE_SCALES[(at + 3 * nth) % len(EDGE_SCALES)]
        raw[:, :, offset:offset + 2] = scale.view(np.uint8).reshape(ROWS, count, 2)
    return raw.reshape(ROWS, count * block_bytes)


def main():
    rng = np.random.default_rng(SEED)
    out = Golden("codecs.gguf", "python tools/oracle/codecs.py")
    out.note("seed", SEED)
    out.note("types", ["f16", "bf16"] + [kind.name.lower() for kind, _ in BLOCKS])

    half = rng.standard_normal((ROWS, WIDTH)).astype(np.float16)
    half.view(np.uint16)[0, :16] = [0, 0x8000, 1, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x3C00, 0x3C01,
                                    0x3555, 0x83FF, 0x8400, 0x5640]
    half.view(np.uint16)[1] = rng.integers(0, 0x7C00, WIDTH) | (rng.integers(0, 2, WIDTH) << 15)  # every exponent
    out.tensor("raw.f16", half)
    out.f32("f32.f16", half)

    brain = (rng.standard_normal((ROWS, WIDTH)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    brain[0, :12] = [0, 0x8000, 1, 0x8001, 0x007F, 0x0080, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x3F80, 0x3F81]
    brain[1] = rng.integers(0, 0x7F80, WIDTH) | (rng.integers(0, 2, WIDTH) << 15)
    raw = brain.view(np.uint8).reshape(ROWS, WIDTH * 2)
    out.tensor("raw.bf16", raw, T.BF16)
    out.f32("f32.bf16", dequantize(raw, T.BF16))

    for kind, scale_offsets in BLOCKS:
        raw = blocks_of(rng, kind, scale_offsets)
        name = kind.name.lower()
        out.tensor(f"raw.{name}", raw, kind)
        values = dequantize(raw, kind)
        assert values.shape == (ROWS, WIDTH) and np.isfinite(values).all(), name
        out.f32(f"f32.{name}", values)
    out.write()


if __name__ == "__main__":
    main()
