#!/usr/bin/env python3
"""Decode speed of weir beside llama.cpp's: SmolLM2-135M in every type and Gemma 3 270M, 128 tokens, one and two threads.

Bar: the smaller of FACTOR times llama.cpp and 85 % of the limit that weir measures in its own process; FACTOR 2, for F16 and BF16
1.4. llama.cpp is what `bench/peers llama` set up, models come from `bench/models`. See common.py.
"""
import os

import common

TOKENS = 128
TYPES = "f32,f16,bf16,q8_0,q4_0,q4_1,q5_0,q5_1,q2_k,q3_k_m,q4_k_m,q5_k_m,q6_k,iq4_nl,iq4_xs"


def model_path(args, name):
    """The file of "q4_0" (of SmolLM2) or of another model's whole name."""
    return os.path.join(args.models, f"{name}.gguf" if "-" in name else f"smollm2-135m-{name}.gguf")


def measure(args, name, threads):
    model = model_path(args, name)
    command = [args.weir, "generate", model, "-n", str(TOKENS), "--ignore-eos", "--temp", "0", "--threads", str(threads), "--json",
               "-p", "The river"]
    theirs, peer = common.llama_bench(args, model, threads, "-p", 0, "-n", TOKENS)
    ours, others = common.by_turns(args.reps, lambda: common.run_json(command), peer)
    best = max(ours, key=lambda r: r["decode_tok_s"])
    stem = os.path.basename(model)[:-5]
    common.record(args, f"decode {stem.replace('135m-', '135m ')}, {common.threads_text(threads)}", "tok/s",
                  [r["decode_tok_s"] for r in ours], command, others, theirs, 1.4 if name in ("f16", "bf16") else 2.0,
                  max(r["limit_tok_s"] for r in ours), best["share_of_limit"])


def main():
    parser = common.parser(__doc__)
    common.llama_options(parser)
    parser.add_argument("--types", default=TYPES + ",gemma-3-270m-q4_k_m", help="of SmolLM2, or names of other models (%(default)s)")
    parser.add_argument("--threads", default="1,2")
    args = parser.parse_args()
    common.begin(args, common.LLAMA)
    common.header("decode", "llama")
    common.each([(args, t, int(n)) for n in args.threads.split(",") for t in args.types.split(",")], measure)


if __name__ == "__main__":
    main()
