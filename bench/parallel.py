#!/usr/bin/env python3
"""Several sequences at once: weir generate --parallel beside llama-batched-bench, prompts and answers of equal length.

Two rows for each number of sequences: decode (tokens a second of the steps that take only next tokens, beside S_TG), and all (tokens generated a
second of all the time, prompts included). Prompts are digits, each of which is a token in both vocabularies here, and differ from the first one
on: nothing is shared. Bar: FACTOR 2. The limit is one of reading; with many sequences arithmetic is the tighter one. See common.py.
"""
import json
import os
import random
import tempfile

import common


def lines(command):
    return [json.loads(x) for x in common.run(command).splitlines() if x.startswith(b"{")]


def ours(args, command, n):
    *answers, last = lines(command)
    if len(answers) != n or any(len(a["tokens"]) != args.tg or abs(len(a["prompt_tokens"]) - args.pp) > 1 for a in answers):
        raise RuntimeError("prompts or answers do not have the length asked for")
    return last["summary"]


def prompts(args, n, folder):
    rng = random.Random(1)
    path = os.path.join(folder, f"{n}-prompts.txt")
    with open(path, "w") as f:
        for _ in range(n):
            f.write("".join(rng.choice("0123456789") for _ in range(args.pp)) + "\n")
    return path


def measure(args, name, n):
    model, shown = common.model(args, name)
    with tempfile.TemporaryDirectory() as folder:
        command = [args.weir, "generate", model, "--parallel", prompts(args, n, folder), "--slots", str(n), "-n", str(args.tg), "--ignore-eos", "--temp",
                   "0", "--threads", str(args.threads), "--json"]
        peer = args.llama and [os.path.join(args.llama, "llama-batched-bench"), "-m", model, "-c", str(n * (args.pp + args.tg)), "-npp", str(args.pp),
                               "-ntg", str(args.tg), "-npl", str(n), "-t", str(args.threads), "-fa", args.fa, "--output-format", "jsonl"]
        we, they = common.by_turns(args.reps, lambda: ours(args, command, n), peer and (lambda: lines(peer)[-1]))
    what = f"{n} sequences {shown}, {args.pp} + {args.tg} tokens, {common.threads_text(args.threads)}"
    best = max(we, key=lambda r: r["decode_tok_s"])
    common.record(args, f"decode {what}", "tok/s", [r["decode_tok_s"] for r in we], command, [r["speed_tg"] for r in they], peer, 2.0,
                  max(r["limit_tok_s"] for r in we), best["share_of_limit"])
    common.record(args, f"all {what}", "tok/s", [r["tok_s"] for r in we], command, [n * args.tg / r["t"] for r in they], peer, 2.0)


def main():
    parser = common.parser(__doc__)
    common.llama_options(parser, "q4_0,q8_0,f16")
    parser.add_argument("--sequences", default="4,16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pp", type=int, default=128, help="tokens of a prompt (%(default)s)")
    parser.add_argument("--tg", type=int, default=128, help="tokens of an answer (%(default)s)")
    parser.add_argument("--fa", default="auto", help="llama.cpp's flash attention: on, off, auto (%(default)s)")
    args = parser.parse_args()
    common.begin(args, {"llama": ("llama-batched-bench", "bench/peers llama")})
    common.header("several sequences", "llama")
    common.each([(args, t, int(n)) for t in args.types.split(",") for n in args.sequences.split(",")], measure)


if __name__ == "__main__":
    main()
