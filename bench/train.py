#!/usr/bin/env python3
"""Training speed and peak memory of weir beside PyTorch's (eager and torch.compile) and llm.c's, FP32, AdamW, two shapes:

  gpt2-124m     GPT-2's own shape, T 256, B 4        bar 1.15 times PyTorch's best, llm.c 8 times
  llama-small   6 layers, 288 wide, V 4096, T 256, B 16                      bar 1.3 times PyTorch's best

The programs take turns (A B C A B C ...), --reps rounds of --steps steps, so that all meet the same weather; a peer that waits sleeps.
A step's first is left out (pages are touched for the first time). Printed: best and median step in tokens a second, the ratio of the
bests, the share of the FP32 peak that weir measures itself, and peak resident memory: bars a tenth below PyTorch's least, a quarter
with recomputation (--remat block). A line goes to bench/records/MACHINE.csv for each. This is a measurement, not a test: the
exit status is 0 whoever is faster.

weir is the program itself, `weir train` on text that this script makes up, with a vocabulary of the wanted size; its data, clipping
and metrics are in its steps, random tokens in memory are what the peers get. PyTorch's side is bench/train_torch.py in the Python of `bench/peers
torch`. llm.c's is a checkout of karpathy/llm.c named with --llmc; it is built here with T and steps of this comparison and random
weights.
"""
import json
import os
import random
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile

import common

SHAPES = {
    "gpt2-124m": dict(vocab=50257, B=4, factor=1.15,
                      options="--arch gpt2 --size 124m --ctx 256 --batch 4 --clip 1 --lr 3e-4"),
    "llama-small": dict(vocab=4096, B=16, factor=1.3,
                        options="--arch llama --layers 6 --width 288 --heads 6 --kv-heads 6 --ff 768 --tied yes --ctx 256 "
                                "--batch 16 --clip 1 --lr 3e-4"),
}
T = 256


def byte_symbols():
    """The characters that byte-level BPE writes bytes as."""
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    others = iter(range(256, 512))
    return [chr(b if b in plain else next(others)) for b in range(256)]


def write_tokenizer(path, size):
    """All bytes, then as many pairs of them as the size wants, then the end of a text."""
    symbols = byte_symbols()
    pairs = [(a, b) for a in symbols for b in symbols][:size - 257]
    vocab = {token: i for i, token in enumerate(symbols + [a + b for a, b in pairs] + ["<|endoftext|>"])}
    end = {"id": size - 1, "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
           "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": [f"{a} {b}" for a, b in pairs]}
    with open(path, "w") as f:
        json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [end], "normalizer": None,
                   "pre_tokenizer": level, "post_processor": None, "decoder": level, "model": model}, f)


def write_text(path, n_bytes):
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(5000)]
    with open(path, "w") as f:
        while f.tell() < n_bytes:
            f.write(" ".join(draw.choices(words, k=200)) + "\n")


class Weir:
    """A run of its own each round; metrics say what its steps took."""

    def __init__(self, args, shape, folder, remat=None):
        self.name = "weir" + (f" --remat {remat}" if remat else "")
        self.folder, self.rss, self.speeds, self.info, self.copy = folder, 0, [], {}, None
        self.command = [args.weir, "train", "--data", f"{folder}/text.txt", "--tokenizer", f"{folder}/tokenizer.json",
                        *SHAPES[shape]["options"].split(), "--eval-every", "0", "--every", "0", "--sample-tok", "0", "--remat",
                        remat or "none", "--threads", str(args.threads), "--json"]

    def go(self, steps):
        out = os.path.join(self.folder, "run")
        child = subprocess.Popen([*self.command, "--steps", str(steps + 1), "--out", out], stdout=subprocess.PIPE, text=True)
        rows = [json.loads(line) for line in child.stdout]
        _, status, usage = os.wait4(child.pid, 0)
        shutil.rmtree(out, ignore_errors=True)
        if status != 0:
            raise RuntimeError(f"{common.readable(self.command)} ended with status {status}")
        self.rss = max(self.rss, usage.ru_maxrss * 1024)
        self.info = next((r["run"] for r in rows if "run" in r), {})
        self.copy = next((r["end"].get("copy_share") for r in rows if "end" in r), None)
        timed = [r for r in rows if r.get("step", 0) > 1]
        # a step's own work: the checkpoint that ends a run is not training
        self.speeds += [r["tokens"] / r["step"] / (r["seconds"]["total"] - r["seconds"]["checkpoint"]) for r in timed]

    def end(self):
        pass


class Torch:
    def __init__(self, args, shape, mode):
        self.name, self.rss, self.speeds = f"torch {mode}", 0, []
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "train_torch.py")
        self.command = [args.torch, script, shape, mode, str(args.threads)]
        self.child = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                      text=True, env={**os.environ, "OMP_WAIT_POLICY": "passive"})
        self.tokens = json.loads(self.child.stdout.readline() or "null")
        if not self.tokens:
            raise RuntimeError(f"{common.readable(self.command)} did not start")
        self.tokens = self.tokens["tokens"]

    def ask(self, line):
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()
        return json.loads(self.child.stdout.readline())

    def go(self, steps):
        self.speeds += [self.tokens / s for s in self.ask(f"go {steps}")["seconds"]]

    def end(self):
        self.rss = self.ask("end")["peak_rss"]
        self.child.wait()


class Llmc:
    """train_gpt2.c with this comparison's T, two steps, no validation; weights at random, tokens too."""

    def __init__(self, args, folder):
        self.name, self.rss, self.speeds, self.folder = "llm.c", 0, [], folder
        self.threads = args.threads
        with open(os.path.join(args.llmc, "train_gpt2.c")) as f:
            source = f.read()
        for old, new in (("int T = 64;", f"int T = {T};"), ("int val_num_batches = 5;", "int val_num_batches = 0;"),
                         ("step <= 40", "step <= 1"), ("val_loss /= val_num_batches;", "")):
            if old not in source:
                raise RuntimeError(f"train_gpt2.c has no '{old}': another version of llm.c")
            source = source.replace(old, new)
        with open(f"{folder}/train_gpt2.c", "w") as f:
            f.write(source)
        self.command = [f"{folder}/train_gpt2"]
        subprocess.run(["cc", "-Ofast", "-march=native", "-fopenmp", "-DOMP", "-w", f"-I{args.llmc}", f"{folder}/train_gpt2.c", "-o",
                        self.command[0], "-lm"], check=True)
        V, Vp, L, H, C = 50257, 50304, 12, 12, 768
        parameters = Vp * C + T * C + L * (12 * C * C + 13 * C) + 2 * C
        with open(f"{folder}/gpt2_124M.bin", "wb") as f:
            f.write(struct.pack("256i", 20240326, 3, T, V, L, H, C, Vp, *[0] * 248))
            piece = struct.pack("4096f", *(random.gauss(0, 0.02) for _ in range(4096)))
            f.write((piece * (parameters // 4096 + 1))[:4 * parameters])
        data = f"{folder}/dev/data/tinyshakespeare"
        os.makedirs(data)
        for part in "train", "val":
            with open(f"{data}/tiny_shakespeare_{part}.bin", "wb") as f:
                f.write(struct.pack("256i", 20240520, 1, 32768, *[0] * 253))
                f.write(struct.pack("32768H", *(random.randrange(V) for _ in range(32768))))

    def go(self, steps):
        if self.speeds:
            return  # a step takes half a minute: once is enough
        child = subprocess.Popen(self.command, cwd=self.folder, stdout=subprocess.PIPE, text=True,
                                 env={**os.environ, "OMP_NUM_THREADS": str(self.threads)})
        said = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        self.rss = usage.ru_maxrss * 1024
        times = [float(ms) for ms in re.findall(r"took ([0-9.]+) ms", said)]
        if status or not times:
            raise RuntimeError(f"llm.c ended with status {status}")
        self.speeds = [4 * T / (ms * 1e-3) for ms in times]

    def end(self):
        pass


def compare(args, shape):
    folder = tempfile.mkdtemp(prefix="weir-bench-")
    programs = []
    try:
        write_tokenizer(f"{folder}/tokenizer.json", SHAPES[shape]["vocab"])
        write_text(f"{folder}/text.txt", 64 * T * SHAPES[shape]["B"])
        weir, again = Weir(args, shape, folder), Weir(args, shape, folder, "block")
        programs = [weir, again]
        modes = [m for m in args.modes.split(",") if m] if args.torch else []
        programs += [Torch(args, shape, mode) for mode in modes]
        if args.llmc and shape == "gpt2-124m":
            programs.append(Llmc(args, folder))
        for _ in range(args.reps):
            for program in programs:
                program.go(args.steps)
        for program in programs:
            program.end()
    finally:
        for program in programs:
            if isinstance(program, Torch) and program.child.poll() is None:
                program.child.kill()
        shutil.rmtree(folder, ignore_errors=True)
    report(args, shape, weir, again, [p for p in programs if isinstance(p, Torch)], [p for p in programs if isinstance(p, Llmc)])


def report(args, shape, weir, again, torches, others):
    limit = weir.info.get("peak_gflop_s", 0) * 1e9 / weir.info["flop_tok"]
    print(f"{shape}, {args.threads} threads: FP32 peak {weir.info.get('peak_gflop_s', 0):.0f} GFLOP/s = {limit:.0f} tok/s")
    for p in [weir, again, *torches, *others]:
        best = max(p.speeds)
        print(f"  {p.name:22} best {best:8.1f} median {statistics.median(p.speeds):8.1f} tok/s   {best / limit * 100 if limit else 0:4.0f}% of the peak"
              f"   {p.rss / 1e6:7.0f} MB")
    if weir.copy is not None:
        print(f"  weir copies {100 * weir.copy:.2f}% of the time")
    common.header("training", "peer")
    beside = []
    if torches:
        peer = max(torches, key=lambda p: max(p.speeds))
        least = min(torches, key=lambda p: p.rss)
        beside.append((f"train {shape}", peer, SHAPES[shape]["factor"]))
        for p, bar in ((weir, 0.9), (again, 0.75)):
            common.record(args, f"memory of training {shape}{p.name[4:]}", "MB", [p.rss / 1e6], p.command, [least.rss / 1e6], least.command,
                          1 / bar, lower=True)
    beside += [(f"train {shape} beside llm.c", p, 8) for p in others]
    for what, peer, factor in beside:
        common.record(args, f"{what}, {common.threads_text(args.threads)}", "tok/s", weir.speeds, weir.command, peer.speeds, peer.command,
                      limit=limit or None, bar=factor * max(peer.speeds))
    if not beside:
        common.record(args, f"train {shape}, {common.threads_text(args.threads)}", "tok/s", weir.speeds, weir.command, limit=limit or None)


def main():
    parser = common.parser(__doc__, reps=3)
    common.torch_options(parser)
    parser.add_argument("--llmc", help="a checkout of karpathy/llm.c")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--modes", default="eager,compile", help="of PyTorch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3, help="of a program in a round")
    args = parser.parse_args()
    common.begin(args, common.TORCH)
    common.each([(args, shape) for shape in args.shapes.split(",")], compare)


if __name__ == "__main__":
    main()
