#!/usr/bin/env python3
"""Prompt speed of weir beside llama.cpp's: 512 tokens of SmolLM2-135M in every type and of Gemma 3 270M, two threads.

Bar: FACTORS times llama.cpp. The limit is the machine's peak in the operations that the products of the type are made of (int8 for
quantised weights, else FP32; `weir bench machine`) over the operations of a token: matrices, the logits of the last token, attention. See
common.py.
"""
import common

TOKENS = 512
FACTORS = {"q4_0": 1.4, "f16": 1.4, "bf16": 1.4, "f32": 1.2}


def operations(args, model):
    """Of a prompt of TOKENS, a multiply and an add being two."""
    about = common.run_json([args.weir, "inspect", model, "--json"])
    meta, arch = about["metadata"], about["arch"]
    shapes = {t["name"]: t["shape"] for t in about["tensors"]}
    sizes = {name: shape[0] * shape[1] for name, shape in shapes.items() if len(shape) == 2}
    embedding = sizes["token_embd.weight"]
    blocks = sum(n for name, n in sizes.items() if name.startswith("blk."))
    layers = int(meta[f"{arch}.block_count"])
    attention = layers * 2 * 2 * shapes["blk.0.attn_q.weight"][1] * TOKENS * (TOKENS + 1) / 2
    return 2 * blocks * TOKENS + 2 * sizes.get("output.weight", embedding) + attention


def peak(machine, kind, threads):
    return max((row["gflop_s"] for row in machine if row["name"] == kind and row["shape"].endswith(f"threads={threads}")), default=0) * 1e9


def measure(args, machine, name, threads):
    model, shown = common.model(args, name)
    command, run = common.model_bench(args, model, threads, TOKENS, 1)
    theirs, peer = common.llama_bench(args, model, threads, "-p", TOKENS, "-n", 0)
    ours, others = common.by_turns(args.reps, run, peer)
    speeds = [1e6 / r["prefill"]["us"] for r in ours]
    limit = peak(machine, "fp32" if name in ("f32", "f16", "bf16") else "int8", threads) / operations(args, model) * TOKENS
    factor = FACTORS.get(name, 2.0)
    common.record(args, f"prompt {shown}, {common.threads_text(threads)}", "tok/s", speeds, command,
                  others, theirs, limit=limit or None, bar=factor * max(others) if others else None)


def main():
    parser = common.parser(__doc__)
    common.llama_options(parser, common.TYPES + ",gemma-3-270m-q4_k_m")
    parser.add_argument("--threads", default="2")
    args = parser.parse_args()
    common.begin(args, common.LLAMA)
    machine = common.run_json([args.weir, "bench", "machine", "--json"])
    common.header(f"prompt of {TOKENS}; limit: peak of the operations", "llama")
    common.each([(args, machine, t, int(n)) for n in args.threads.split(",") for t in args.types.split(",")], measure)


if __name__ == "__main__":
    main()
