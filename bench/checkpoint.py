#!/usr/bin/env python3
"""What saving costs: steps of a GPT-2 of 124M parameters (AdamW, T=256 B=4) beside a save and without one, in one run.

checkpoint.py [--every 20] [--saves 2] [-- more options of weir train]

A save is begun after every --every steps and written while training goes on. Steps that were made between the beginning of a save and
its end count as beside it, the others are the measure. Printed: the median of both and their ratio (bar: 1.1), the longest beside a
save, and the extra time of a save, all that its steps took longer, as a share of --every steps (bar: 5 %). With PyTorch: how long torch.save of
the same tensors stops training there. This is a measurement, not a test.
"""
import json
import os
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import common

V = 50257
TORCH = """
import sys, time, torch
folder, threads = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(threads)
shapes = [(50257, 768), (1024, 768)] + 12 * [(2304, 768), (768, 768), (3072, 768), (768, 3072)]
params = [torch.nn.Parameter(torch.randn(s)) for s in shapes]
opt = torch.optim.AdamW(params)
for p in params: p.grad = torch.zeros_like(p)
opt.step()
for i in range(3):
    begin = time.time()
    torch.save({"model": params, "optimizer": opt.state_dict()}, f"{folder}/torch-{i % 2}.pt")
    print(f"{time.time() - begin:.3f}", flush=True)
"""


def vocabulary(path):
    """A GGUF of V tokens, of which text only ever gives the single bytes: the shape of the model is what counts here."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in shown] + [chr(256 + i) for i in range(256 - len(shown))]
    def text(s):
        return struct.pack("<Q", len(s.encode())) + s.encode()
    def entry(key, kind, value):
        return text(key) + struct.pack("<I", kind) + value
    def array(kind, items):
        return struct.pack("<IQ", kind, len(items)) + b"".join(items)
    tokens = letters + ["\u0100x%d" % i for i in range(V - 256)]
    entries = [entry("general.architecture", 8, text("gpt2")), entry("tokenizer.ggml.model", 8, text("gpt2")),
               entry("tokenizer.ggml.pre", 8, text("gpt-2")), entry("tokenizer.ggml.tokens", 9, array(8, [text(t) for t in tokens])),
               entry("tokenizer.ggml.token_type", 9, array(5, [struct.pack("<i", 1)] * V)),
               entry("tokenizer.ggml.merges", 9, array(8, [])), entry("tokenizer.ggml.eos_token_id", 4, struct.pack("<I", V - 1))]
    with open(path, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(entries))


def watch(command, run):
    """[(when a step's line was there, the line)], {step of a checkpoint: when it was there}"""
    p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    path, folder, seen, ends = os.path.join(run, "metrics.jsonl"), os.path.join(run, "checkpoints"), [], {}
    ended = False
    while not ended:
        ended = p.poll() is not None  # then once more, for the last lines
        if os.path.exists(path):
            with open(path) as f:
                rows = [json.loads(line) for line in f.read().split("\n")[:-1] if '"loss"' in line]
            seen += [(time.time(), r) for r in rows[len(seen):]]
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            if name.startswith("step-") and not name.endswith(".tmp") and name not in ends:
                ends[name] = time.time()
        time.sleep(0.01)
    if p.returncode:
        sys.exit("checkpoint.py: weir train ended with %d: %s" % (p.returncode, p.stderr.read().decode()))
    return seen, {int(n[5:]): t for n, t in ends.items()}


def main():
    parser = common.parser(__doc__, reps=0)
    common.torch_options(parser)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--saves", type=int, default=2)
    parser.add_argument("--threads", default="2")
    parser.add_argument("--folder", default="/tmp", help="where the run is written; its disk is what is measured (%(default)s)")
    parser.add_argument("more", nargs="*", help="other options of weir train, after --")
    args = parser.parse_args()
    common.begin(args, common.TORCH)
    place = tempfile.mkdtemp(prefix="weir-bench-checkpoint", dir=args.folder)
    try:
        vocabulary(os.path.join(place, "vocabulary.gguf"))
        with open(os.path.join(place, "text"), "w") as f:
            words = random.Random(1)
            f.write(" ".join("".join(words.choice("abcdefgh") for _ in range(5)) for _ in range(100000)))
        subprocess.run([args.weir, "data", "build", os.path.join(place, "text"), "--tokenizer", os.path.join(place, "vocabulary.gguf"),
                        "--out", os.path.join(place, "shards")], check=True, capture_output=True)
        run, steps = os.path.join(place, "run"), args.every * (args.saves + 1) - 1
        shape = args.more or ["--arch", "gpt2", "--size", "124m", "--ctx", "256", "--batch", "4"]
        command = [args.weir, "train", "--data", os.path.join(place, "shards"), "--out", run, "--steps", str(steps), "--every",
                   str(args.every), "--threads", args.threads, "--eval-every", "0", "--sample-tok", "0", *shape]
        seen, ends = watch(command, run)
        beside, plain, extra = [], [], []
        saving = {}
        for k in range(1, args.saves + 1):
            for at, row in seen:  # a step ends at `at`; those that ended before the save did, and the one after them
                if row["step"] > k * args.every and at - row["seconds"]["total"] < ends[k * args.every]:
                    saving[row["step"]] = k
        for _, row in seen[2:]:  # the first ones make the plans' memory real
            (beside if row["step"] in saving else plain).append(row["seconds"]["total"])
        base = statistics.median(plain)
        for k in range(1, args.saves + 1):
            mine = [r["seconds"]["total"] - base for _, r in seen if saving.get(r["step"]) == k]
            begin = [r["seconds"]["checkpoint"] for _, r in seen if r["step"] == k * args.every]
            extra.append(sum(mine) + sum(begin))
        size = sum(os.path.getsize(os.path.join(run, "checkpoints", n, f)) for n in os.listdir(os.path.join(run, "checkpoints"))[:1]
                   for f in os.listdir(os.path.join(run, "checkpoints", n)))
        print("checkpoint      %.0f MB, %d saves, one in %d steps" % (size / 1e6, args.saves, args.every))
        print("step            %.3f s without a save (median of %d), %.3f s beside one (median of %d)" % (
            base, len(plain), statistics.median(beside), len(beside)))
        print("longest step beside a save %.3f times one without; extra of a save %s s" % (max(beside) / base, ", ".join("%.2f" % x for x in extra)))
        common.header("saving beside training", "")
        common.record(args, "a step beside a save, of one without", "times", [statistics.median(beside) / base], command, lower=True, bar=1.1)
        common.record(args, f"what a save costs, one in {args.every} steps", "%", [100 * statistics.mean(extra) / (base * args.every)], command,
                      lower=True, bar=5.0)
        print("written in      %s s" % ", ".join("%.1f" % (ends[k * args.every] - next(at for at, r in seen if r["step"] == k * args.every))
                                                  for k in range(1, args.saves + 1)))
        if args.torch:
            out = subprocess.run([args.torch, "-c", TORCH, place, args.threads], capture_output=True, text=True, check=True).stdout.split()
            print("torch.save      %s s, training stands still" % ", ".join(out))
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
