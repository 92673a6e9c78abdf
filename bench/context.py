#!/usr/bin/env python3
"""Decode behind a long context, beside llama.cpp's better setting of -fa: SmolLM2-135M, 1,024 and 4,096 tokens, two threads.

Bar: the smaller of 2 times llama.cpp and 85 % of the limit. Then the slope: how much longer a token takes at the longest context than at the
shortest, against the time that a plain read of the KV bytes between them would take; bar 1.5. See common.py.
"""
import common

TOKENS = 32


def depth(args, model, threads, tokens):
    """The rows of weir's decode at this depth, after a record of the comparison."""
    command, run = common.model_bench(args, model, threads, tokens, TOKENS)
    settings = [common.llama_bench(args, model, threads, "-p", 0, "-n", TOKENS, "-d", tokens, "-fa", fa) for fa in (0, 1)]
    ours, *others = common.by_turns(args.reps, run, *[peer for _, peer in settings])
    rows = [r["decode"] for r in ours]
    speeds = [1e6 / r["us"] for r in rows]
    best = max(range(2), key=lambda i: max(others[i], default=0))
    limit = max(r["peak"] * 1e9 / r["bytes"] for r in rows)
    common.record(args, f"decode at {tokens} {args.type}, {common.threads_text(threads)}", "tok/s", speeds, command, others[best],
                  settings[best][0], 2.0, limit)
    return min(rows, key=lambda r: r["us"]), command


def measure(args, threads):
    model, _ = common.model(args, args.type)
    depths = sorted(map(int, args.depths.split(",")))
    rows = [depth(args, model, threads, tokens) for tokens in depths]
    if len(rows) < 2:
        return
    (near, _), (far, command) = rows[0], rows[-1]
    read_us = (far["bytes"] - near["bytes"]) / max(near["peak"], far["peak"]) / 1e3
    common.record(args, f"slope {depths[0]} to {depths[-1]} {args.type}, {common.threads_text(threads)}", "times a read",
                  [(far["us"] - near["us"]) / read_us], command, lower=True, bar=1.5)


def main():
    parser = common.parser(__doc__, reps=3)
    common.llama_options(parser)
    parser.add_argument("--type", default="q8_0", help="of SmolLM2 (%(default)s)")
    parser.add_argument("--depths", default="1024,4096")
    parser.add_argument("--threads", default="2")
    args = parser.parse_args()
    common.begin(args, common.LLAMA)
    common.header("decode behind a context", "llama")
    common.each([(args, int(n)) for n in args.threads.split(",")], measure)


if __name__ == "__main__":
    main()
