#!/usr/bin/env python3
"""Byte-level BPE as Hugging Face's trainer makes it, for tests/bpe.c.

Writes tests/golden/bpe.txt: for each pre-tokenizer a line "train PRE VOCAB MIN_COUNT", the merges, one a line, and a line
"ids COUNT HASH": all texts encoded with the result, FNV-1a over the ids as little-endian 32-bit numbers. The texts are those of
tests/golden/vocab.txt (edge cases, and random ones of many scripts), each a text of its own, each twice.

  python3 tools/oracle/bpe.py                needs: pip install tokenizers (made with 0.23.3)
"""
import json
import os

import tokenizers
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "tests", "golden")
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


PRES = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "llama-bpe": split(LLAMA3 % "{1,3}"),
    "qwen2": split(LLAMA3 % ""),
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                       pre_tokenizers.ByteLevel(add_prefix_space=False)]),
}


def main():
    texts = []
    for line in open(os.path.join(GOLDEN, "vocab.txt"), encoding="ascii"):
        if line.startswith("text"):
            texts += [bytes.fromhex(line[4:].strip().strip("-")).decode("utf-8")] * 2
    out = ["# tools/oracle/bpe.py, tokenizers " + tokenizers.__version__]
    for pre, vocab, count in [("gpt-2", 900, 2), ("llama-bpe", 600, 2), ("qwen2", 700, 5), ("smollm", 5000, 3)]:
        tok = Tokenizer(models.BPE())
        tok.pre_tokenizer = PRES[pre]
        tok.train_from_iterator(texts, trainers.BpeTrainer(
            vocab_size=vocab, min_frequency=count, special_tokens=["<|endoftext|>"], show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        model = json.loads(tok.to_str())["model"]
        merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
        out.append("train %s %d %d" % (pre, vocab, count))
        out += merges
        n, hash_ = 0, 0xcbf29ce484222325
        for text in texts:
            for i in tok.encode(text).ids:
                n += 1
                for byte in i.to_bytes(4, "little"):
                    hash_ = (hash_ ^ byte) * 0x100000001b3 % 2**64
        out.append("ids %d %016x" % (n, hash_))
        print(pre, len(model["vocab"]), len(merges), n)
    with open(os.path.join(GOLDEN, "bpe.txt"), "w", encoding="utf-8") as f:
        f.write("\n".join(out) + "\n")


main()
