#!/usr/bin/env python3
"""Decode speed of weir beside llama.cpp's: SmolLM2-135M in every type and Gemma 3 270M, 128 tokens, one and two threads.

Bar: the smaller of FACTOR times llama.cpp and 85 % of the limit that weir measures in its own process; FACTOR 2, for F16 and BF16
1.4. llama.cpp is what `bench/peers llama` set up, models come from `bench/models`. See common.py.
"""
import common

TOKENS = 128


def measure(args, name, threads):
    model, shown = common.model(args, name)
    command = [args.weir, "generate", model, "-n", str(TOKENS), "--ignore-eos", "--temp", "0", "--threads", str(threads), "--json",
               "-p", "The river"]
    theirs, peer = common.llama_bench(args, model, threads, "-p", 0, "-n", TOKENS)
    ours, others = common.by_turns(args.reps, lambda: common.run_json(command), peer)
    best = max(ours, key=lambda r: r["decode_tok_s"])
    common.record(args, f"decode {shown}, {common.threads_text(threads)}", "tok/s",
                  [r["decode_tok_s"] for r in ours], command, others, theirs, 1.4 if name in ("f16", "bf16") else 2.0,
                  max(r["limit_tok_s"] for r in ours), best["share_of_limit"])


def main():
    parser = common.parser(__doc__)
    common.llama_options(parser, common.TYPES + ",gemma-3-270m-q4_k_m")
    parser.add_argument("--threads", default="1,2")
    args = parser.parse_args()
    common.begin(args, common.LLAMA)
    common.header("decode", "llama")
    common.each([(args, t, int(n)) for n in args.threads.split(",") for t in args.types.split(",")], measure)


if __name__ == "__main__":
    main()
