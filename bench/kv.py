#!/usr/bin/env python3
"""What each type of the KV cache costs in quality: perplexity of SmolLM2-135M on 100 KB of English, beside llama.cpp's -ctk and -ctv.

Both programs by llama-perplexity's scheme, windows of --ctx tokens. Printed: perplexity of each, and how much above that of its own F32 cache. No bar
and no record: figures for doc/notes/0008-attention.md. The text is the beginning of what tools/fetch-text finds, or of --text.
"""
import os
import re
import subprocess
import tempfile

import common

TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")
TEXT_BYTES = 100_000


def ours(args, model, kv, text):
    return common.run_json([args.weir, "eval", model, "--data", text, "--ctx", str(args.ctx), "--kv", kv, "--threads", args.threads,
                            "--json"])["perplexity"]


def peer(args, model, kv, text):
    if not args.llama:
        return None
    command = [os.path.join(args.llama, "llama-perplexity"), "-m", model, "-f", text, "-c", str(args.ctx), "-b", str(args.ctx), "-ctk", kv,
               "-ctv", kv, "-fa", "on", "-t", args.threads]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    found = re.search(r"Final estimate: PPL = ([0-9.]+)", done.stdout)
    if not found:
        raise RuntimeError(f"{common.readable(command)} gave no estimate: {done.stdout[-300:]}")
    return float(found.group(1))


def main():
    parser = common.parser(__doc__, reps=0, records=False)
    common.llama_options(parser)
    parser.add_argument("--type", default="f16", help="of SmolLM2 (%(default)s)")
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--threads", default="2")
    parser.add_argument("--text", help="a file of English")
    args = parser.parse_args()
    common.begin(args, {"llama": ("llama-perplexity", "bench/peers llama")})
    text = args.text or subprocess.run([os.path.join(common.REPO, "tools/fetch-text")], check=True, stdout=subprocess.PIPE,
                                       text=True).stdout.strip()
    model, _ = common.model(args, args.type)
    first = {}

    def measure(kv, path):
        cells = ""
        for name, run in (("weir", ours), ("llama", peer)):
            ppl = run(args, model, kv, path)
            if ppl is None:
                continue
            first.setdefault(name, ppl)
            cells += f"{ppl:11.4f}{(ppl / first[name] - 1) * 100:+9.3f} %"
        print(f"{kv:6}{cells}", flush=True)

    print(f"{'kv':6}{'weir':>11}{'above F32':>11}{'llama.cpp':>11}{'above F32':>11}")
    with open(text, "rb") as whole, tempfile.NamedTemporaryFile(suffix=".txt") as part:
        part.write(whole.read(TEXT_BYTES))
        part.flush()
        common.each([(kv, part.name) for kv in TYPES], measure)


if __name__ == "__main__":
    main()
