#!/usr/bin/env python3
"""Tokenising and BPE training beside tiktoken, Hugging Face's tokenizers and rustbpe, on one and two threads.

  build   weir data build (reads the file, writes and syncs shards) with GPT-2's vocabulary of 50,257; the peers only encode a string
          that is in memory: tiktoken's encode_ordinary(_batch), with the same vocabulary, and Hugging Face's encode_batch
  train   weir tokenizer train, 8k; rustbpe and Hugging Face's trainer on the same string

The programs take turns, --reps rounds, each in a process of its own. Text: Debian's bible-kjv-text (4.4 MB, by `bible -f`), or --data.
That the ids are as many is checked. Bars: twice tiktoken's speed; rustbpe's time. A line goes to bench/records/MACHINE.csv for each
row. This is a measurement, not a test: the exit status is 0 whoever is faster.

Peers live in the Python of --python ($WEIR_TORCH, or what `bench/peers torch` set up): pip install tiktoken tokenizers rustbpe gguf.
A peer that is not installed is left out.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

import decode
from decode import CACHE, REPO, append, commit, machine_name, readable

VOCAB = os.path.join(REPO, "..", "shared", "data", "vocab", "ggml-vocab-gpt-2.gguf")
TRAINED = 8192
GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"

# Runs in the peers' Python: PEER FILE THREADS VOCAB TOKENIZER_JSON; prints {"seconds", "tokens"} or {"missing"}.
PEER = r'''
import json, os, sys, time
peer, path, threads, vocab, pattern = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5]
os.environ["RAYON_NUM_THREADS"] = str(threads)
os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
text = open(path, encoding="utf-8", errors="replace", newline="").read()
def parts():  # for a batch: lines, in as many groups as keep the threads busy
    lines, n = text.split("\n"), 16 * threads
    size = len(lines) // n + 1
    return ["\n".join(lines[i:i + size]) for i in range(0, len(lines), size)]
def vocabulary():
    import gguf
    fields = gguf.GGUFReader(vocab).fields
    return fields["tokenizer.ggml.tokens"].contents(), fields["tokenizer.ggml.merges"].contents()
def timed(run):
    start = time.perf_counter()
    out = run()
    return time.perf_counter() - start, out
try:
    if peer == "tiktoken":
        import tiktoken
        plain = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
        rest = [b for b in range(256) if b not in plain]
        byte = {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(rest)}
        ranks = {bytes(byte[c] for c in t): i for i, t in enumerate(vocabulary()[0]) if t != "<|endoftext|>"}
        enc = tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256})
        if threads == 1:
            seconds, ids = timed(lambda: enc.encode_ordinary(text))
            tokens = len(ids)
        else:
            batch = parts()
            seconds, ids = timed(lambda: enc.encode_ordinary_batch(batch, num_threads=threads))
            tokens = None
    elif peer == "hf":
        from tokenizers import Tokenizer, models, pre_tokenizers
        names, merges = vocabulary()
        tok = Tokenizer(models.BPE({t: i for i, t in enumerate(names)}, [tuple(m.split(" ")) for m in merges]))
        tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        batch = parts()
        seconds, ids = timed(lambda: tok.encode_batch_fast(batch) if hasattr(tok, "encode_batch_fast") else tok.encode_batch(batch))
        tokens = None
    elif peer == "rustbpe":
        import rustbpe
        tok = rustbpe.Tokenizer()
        batch = parts()
        seconds, _ = timed(lambda: tok.train_from_iterator(iter(batch), int(vocab), pattern=pattern))
        tokens = None
    else:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers
        tok = Tokenizer(models.BPE())
        tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(vocab_size=int(vocab), min_frequency=2, special_tokens=["<|endoftext|>"], show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        batch = parts()
        seconds, _ = timed(lambda: tok.train_from_iterator(batch, trainer))
        tokens = None
    print(json.dumps({"seconds": seconds, "tokens": tokens}))
except ImportError as missing:
    print(json.dumps({"missing": missing.name}))
'''


def peer(args, name, path, threads, vocab):
    done = subprocess.run([args.python, "-c", PEER, name, path, str(threads), str(vocab), GPT2], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError("%s: %s" % (name, done.stderr[-300:]))
    return json.loads(done.stdout)


def build(args, path, threads, folder):
    out = os.path.join(folder, "shards")
    shutil.rmtree(out, ignore_errors=True)
    return [args.weir, "data", "build", path, "--tokenizer", args.vocab, "--out", out, "--val", "0", "--threads", str(threads), "--json"]


def train(args, path, threads, folder):
    out = os.path.join(folder, "tokenizer.json")
    return [args.weir, "tokenizer", "train", path, "--vocab", str(TRAINED), "--out", out, "--threads", str(threads), "--json"]


def row(args, what, unit, threads, command, ours, theirs, better, bar, peer_name):
    best, peer_best = better(ours), better(theirs) if theirs else None
    reached = "" if not theirs else "PASS" if better(best, bar(peer_best)) == best else "short"
    figure = "%.3f" if unit == "s" else "%.1f"
    out = {"date": decode.datetime.datetime.now(decode.datetime.timezone.utc).strftime("%Y-%m-%d %H:%M"), "commit": commit(),
           "machine": machine_name(), "what": "%s, %d thread%s" % (what, threads, "s" if threads > 1 else ""), "unit": unit,
           "ours_best": figure % best, "ours_median": figure % statistics.median(ours),
           "peer_best": figure % peer_best if theirs else "", "peer_median": figure % statistics.median(theirs) if theirs else "",
           "ratio": "%.2f" % (peer_best / best if unit == "s" else best / peer_best) if theirs else "", "limit": "", "share": "",
           "bar": figure % bar(peer_best) if theirs else "", "reached": reached, "reps": args.reps,
           "load": "%.1f" % os.getloadavg()[0], "command": readable(command), "peer_command": "bench/tokenizing.py: " + peer_name}
    print("%-44s%10s%10s  %-9s%10s%10s%8s%10s  %s" % (out["what"], out["ours_best"], out["ours_median"], peer_name,
                                                     out["peer_best"], out["peer_median"], out["ratio"], out["bar"], reached), flush=True)
    if args.records:
        append(out, os.path.join(args.records, out["machine"] + ".csv"))


def compare(args, what, unit, threads, path, folder, make, peers, vocab, better, bar):
    mb = os.path.getsize(path) * 1e-6
    speed = (lambda s: s) if unit == "s" else (lambda s: mb / s)
    ours, theirs = [], {name: [] for name in peers}
    for _ in range(args.reps):
        command = make(args, path, threads, folder)
        mine = decode.run_json(command)
        ours.append(speed(mine["seconds"]))
        for name in list(theirs):
            got = peer(args, name, path, threads, vocab) if args.python else {"missing": "python"}
            if "missing" in got:
                print("tokenizing.py: no %s: %s is not installed" % (name, got["missing"]), file=sys.stderr)
                del theirs[name]
                continue
            theirs[name].append(speed(got["seconds"]))
            if got["tokens"] and got["tokens"] + mine["docs"] != mine["tokens"]:
                print("tokenizing.py: %s gives %d tokens, weir %d with %d ends of text" % (name, got["tokens"], mine["tokens"], mine["docs"]))
    for name in theirs or {"": []}:
        row(args, what, unit, threads, command, ours, theirs.get(name, []), better, bar if name in peers[:1] else (lambda v: v), name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weir", default=os.path.join(REPO, "weir"), help="the program (%(default)s)")
    parser.add_argument("--python", default=os.environ.get("WEIR_TORCH") or os.path.join(CACHE, "peers/torch/venv/bin/python"))
    parser.add_argument("--vocab", default=VOCAB, help="GGUF with GPT-2's vocabulary (%(default)s)")
    parser.add_argument("--data", help="a text file; without it Debian's bible-kjv-text")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--records", default=os.path.join(REPO, "bench/records"), help="folder of the CSV; '' keeps none")
    args = parser.parse_args()
    if not os.access(args.python, os.X_OK):
        print("tokenizing.py: no Python %s: weir alone (bench/peers torch sets it up)" % args.python, file=sys.stderr)
        args.python = None
    load = os.getloadavg()[0]
    if load > 0.5:
        print("tokenizing.py: the load is %.1f: other programs run; trust the ratios more than the figures" % load, file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        path = args.data or os.path.join(folder, "bible.txt")
        if not args.data:
            with open(path, "wb") as f:
                subprocess.run(["bible", "-f", "-l", "1000000", "gen1:1-rev22:21"], stdout=f, check=True)
        name = os.path.basename(path)
        print("%-44s%10s%10s  %-9s%10s%10s%8s%10s" % (name, "weir", "median", "peer", "best", "median", "ratio", "bar"))
        for threads in map(int, args.threads.split(",")):
            compare(args, "data build " + name + " gpt-2", "MB/s", threads, path, folder, build,
                    ["tiktoken", "hf"], args.vocab, max, lambda v: 2 * v)
            compare(args, "BPE 8k " + name, "s", threads, path, folder, train,
                    ["rustbpe", "hf-train"], TRAINED, min, lambda v: v)


if __name__ == "__main__":
    main()
