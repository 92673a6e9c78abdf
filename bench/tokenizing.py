#!/usr/bin/env python3
"""Tokenising and BPE training beside tiktoken, Hugging Face's tokenizers and rustbpe, on one and two threads.

  build   weir data build (reads the file, writes and syncs shards) with GPT-2's vocabulary of 50,257; the peers only encode a string
          that is in memory: tiktoken's encode_ordinary(_batch), with the same vocabulary, and Hugging Face's encode_batch
  train   weir tokenizer train, 8k; rustbpe and Hugging Face's trainer on the same string

The programs take turns, --reps rounds, each in a process of its own. Text: Debian's bible-kjv-text (4.4 MB, by `bible -f`), or --data.
That the ids are as many is checked. Bars: twice tiktoken's speed; rustbpe's time. A line goes to bench/records/MACHINE.csv for each
row. This is a measurement, not a test: the exit status is 0 whoever is faster.

Peers live in the Python of --torch ($WEIR_TORCH, or what `bench/peers torch` set up): pip install tiktoken tokenizers rustbpe gguf.
A peer that is not installed is left out.
"""
import json
import os
import shutil
import subprocess
import tempfile

import common

VOCAB = os.path.join(common.REPO, "..", "shared", "data", "vocab", "ggml-vocab-gpt-2.gguf")
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
    done = subprocess.run([args.torch, "-c", PEER, name, path, str(threads), str(vocab), GPT2], capture_output=True, text=True)
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


def compare(args, what, unit, threads, place, make, peers, vocab, factor):
    """The first peer sets the bar, the others are shown beside."""
    path, folder = place
    mb = os.path.getsize(path) * 1e-6
    command = make(args, path, threads, folder)

    def speed(seconds):
        return seconds if unit == "s" else mb / seconds

    def ours():
        mine = common.run_json(make(args, path, threads, folder))  # which clears the way, too
        return speed(mine["seconds"]), mine

    def theirs(name):
        return lambda: peer(args, name, path, threads, vocab)
    names = [name for name in peers if args.torch]
    mine, *others = common.by_turns(args.reps, ours, *map(theirs, names))
    times = [t for t, _ in mine]
    shown = 0
    for name, got in zip(names, others):
        if "missing" in got[0]:
            common.say(f"no {name}: {got[0]['missing']} is not installed")
            continue
        want = mine[0][1]
        if got[0]["tokens"] and got[0]["tokens"] + want["docs"] != want["tokens"]:
            common.say(f"{name} gives {got[0]['tokens']} tokens, weir {want['tokens']} with {want['docs']} ends of text")
        common.header(what, name)
        common.record(args, f"{what}, {common.threads_text(threads)}", unit, times, command, [speed(g["seconds"]) for g in got],
                      "bench/tokenizing.py: " + name, factor if name == peers[0] else 1, lower=unit == "s")
        shown += 1
    if not shown:
        common.header(what, "peer")
        common.record(args, f"{what}, {common.threads_text(threads)}", unit, times, command, lower=unit == "s")


def main():
    parser = common.parser(__doc__)
    common.torch_options(parser)
    parser.add_argument("--vocab", default=VOCAB, help="GGUF with GPT-2's vocabulary (%(default)s)")
    parser.add_argument("--data", help="a text file; without it Debian's bible-kjv-text")
    parser.add_argument("--threads", default="1,2")
    args = parser.parse_args()
    common.begin(args, common.TORCH)
    with tempfile.TemporaryDirectory() as folder:
        path = args.data or os.path.join(folder, "bible.txt")
        if not args.data:
            with open(path, "wb") as f:
                subprocess.run(["bible", "-f", "-l", "1000000", "gen1:1-rev22:21"], stdout=f, check=True)
        name = os.path.basename(path)
        kinds = [(f"data build {name} gpt-2", "MB/s", build, ["tiktoken", "hf"], args.vocab, 2),
                 (f"BPE 8k {name}", "s", train, ["rustbpe", "hf-train"], TRAINED, 1)]
        common.each([(args, what, unit, threads, (path, folder), *rest) for threads in map(int, args.threads.split(",")) for what, unit, *rest in kinds],
                    compare)


if __name__ == "__main__":
    main()
