#!/usr/bin/env python3
"""tests/golden/eval.json: the perplexity of LICENSE under tests/golden/tiny_gpt2.gguf and tiny_llama.gguf, as others have it.

eval.py LLAMA_DIR

  transformers  the models of tiny_models.py in double, windows cut as llama-perplexity cuts them, or sliding
  llama_cpp     the same from llama.cpp's logits (KV cache in F32)
"""
import hashlib
import json
import os
import sys

import numpy as np
import torch
import transformers

import tiny_models
from golden import REPO
from smollm2_logits import ask, build

SCHEMES = [(64, 0), (33, 0), (32, 16), (16, 15)]  # tokens of a window, stride


def encode(text):
    """the vocabulary of tiny_models.py: a byte a token, and "th" """
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    ids = {b: i for i, b in enumerate(shown + [b for b in range(256) if b not in shown])}
    out, at = [], 0
    while at < len(text):
        th = text[at:at + 2] == b"th"
        out.append(255 if th else ids[text[at]])
        at += 1 + th
    return np.array(out, np.int32)


def windows(n, ctx, stride):
    """where they begin, and the first row that counts"""
    return range(0, n - ctx + 1, stride or ctx), ctx - 1 - stride if stride else ctx // 2


def losses(logits, targets):
    x = np.asarray(logits, np.float64)
    top = x.max(-1)
    return top + np.log(np.exp(x - top[:, None]).sum(-1)) - x[np.arange(len(x)), targets]


def figures(x):
    return {"nll": x.mean(), "nll_error": np.sqrt(((x * x).mean() - x.mean() ** 2) / (len(x) - 1))}


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: eval.py LLAMA_DIR")
    program = build(sys.argv[1])
    text = open(os.path.join(REPO, "LICENSE"), "rb").read()
    ids = encode(text[:-1])  # one newline at the end is left out
    cases = []
    for arch, make in (("gpt2", tiny_models.gpt2), ("llama", tiny_models.llama)):
        model, path = make()[0], os.path.join(REPO, "tests", "golden", f"tiny_{arch}.gguf")
        for ctx, stride in SCHEMES:
            begins, first = windows(len(ids), ctx, stride)
            cut = [ids[b:b + ctx] for b in begins]
            with torch.no_grad():
                ours = [losses(model(torch.tensor(w[None], dtype=torch.long)).logits[0].numpy()[first:-1], w[first + 1:]) for w in cut]
            case = {"model": f"tiny_{arch}.gguf", "ctx": ctx, "stride": stride, "windows": len(cut), "tokens": sum(map(len, ours)),
                    "transformers": figures(np.concatenate(ours))}
            if not stride:
                asked = ask(program, path, [((i, p), w[:p + 1]) for i, w in enumerate(cut) for p in range(first, ctx - 1)], 1)
                rows = np.stack([a[1] for a in asked.values()])
                case["llama_cpp"] = figures(losses(rows, np.concatenate([w[first + 1:] for w in cut])))
            cases.append(case)
            print(case)
    golden = {"command": "python tools/oracle/eval.py LLAMA_DIR", "transformers": transformers.__version__, "torch": torch.__version__,
              "text": "LICENSE", "sha256": hashlib.sha256(text).hexdigest(), "text_tokens": len(ids), "cases": cases}
    with open(os.path.join(REPO, "tests", "golden", "eval.json"), "w") as f:
        json.dump(golden, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
