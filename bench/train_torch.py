#!/usr/bin/env python3
"""A PyTorch trainer of the shapes that bench/train.py compares, as one would write it to be fast on a CPU: FP32, one product for
q, k and v, scaled_dot_product_attention, one fused AdamW, gradients set to None, torch.compile of the whole model if asked.

It is driven line by line, so that two programs can take turns: 'go N' trains N steps and answers with their seconds as JSON,
'end' answers with the peak of resident memory and leaves. Tokens are random and already in memory: no data costs anything here.

  train_torch.py SHAPE MODE THREADS       SHAPE: gpt2-124m | llama-small; MODE: eager | compile
"""
import json
import math
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

SHAPES = {
    "gpt2-124m": dict(style="gpt2", layers=12, width=768, heads=12, ff=3072, vocab=50257, T=256, B=4),
    "llama-small": dict(style="llama", layers=6, width=288, heads=6, ff=768, vocab=4096, T=256, B=16),
}


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)


def turn(x, cos, sin):
    """RoPE on pairs (2i, 2i + 1)."""
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        D, gpt = s["width"], s["style"] == "gpt2"
        self.heads, self.gpt = s["heads"], gpt
        norm = nn.LayerNorm if gpt else RMSNorm
        self.norm1, self.norm2 = norm(D), norm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D, bias=gpt), nn.Linear(D, D, bias=gpt)
        self.up, self.down = nn.Linear(D, s["ff"] * (1 if gpt else 2), bias=gpt), nn.Linear(s["ff"], D, bias=gpt)

    def forward(self, x, cos, sin):
        B, T, D = x.shape
        q, k, v = (t.view(B, T, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(D, -1))
        if not self.gpt:
            q, k = turn(q, cos, sin), turn(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, D))
        h = self.up(self.norm2(x))
        if self.gpt:
            h = F.gelu(h, approximate="tanh")
        else:
            gate, up = h.chunk(2, -1)
            h = F.silu(gate) * up
        return x + self.down(h)


class Model(nn.Module):
    def __init__(self, s):
        super().__init__()
        D = s["width"]
        self.gpt = s["style"] == "gpt2"
        self.tokens = nn.Embedding(s["vocab"], D)
        self.places = nn.Embedding(s["T"], D) if self.gpt else None
        self.blocks = nn.ModuleList(Block(s) for _ in range(s["layers"]))
        self.norm = nn.LayerNorm(D) if self.gpt else RMSNorm(D)
        angle = torch.arange(s["T"])[:, None] / 10000 ** (torch.arange(0, D // s["heads"], 2) / (D // s["heads"]))
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=math.sqrt(0.4 / D))

    def forward(self, x, target):
        h = self.tokens(x)
        if self.gpt:
            h = h + self.places.weight
        for block in self.blocks:
            h = block(h, self.cos, self.sin)
        logits = self.norm(h) @ self.tokens.weight.T
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), target.reshape(-1))


def peak_rss():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM"))


def main():
    shape, mode, threads = SHAPES[sys.argv[1]], sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    model = Model(shape)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0}], lr=3e-4,
                                  betas=(0.9, 0.95), fused=True)
    run = torch.compile(model) if mode == "compile" else model
    tokens = torch.randint(shape["vocab"], (64, shape["B"], shape["T"] + 1))

    def step(i):
        optimizer.zero_grad(set_to_none=True)
        batch = tokens[i % len(tokens)]
        loss = run(batch[:, :-1], batch[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    first = step(0)  # compiles
    step(1)
    print(json.dumps({"ready": True, "tokens": shape["B"] * shape["T"], "loss": first, "torch": torch.__version__}), flush=True)
    done = 2
    for line in sys.stdin:
        words = line.split()
        if words[0] == "end":
            break
        seconds, cpu = [], []
        for _ in range(int(words[1])):
            begin, used = time.perf_counter(), time.process_time()
            step(done)
            seconds.append(time.perf_counter() - begin)
            cpu.append(time.process_time() - used)
            done += 1
        print(json.dumps({"seconds": seconds, "cpu_seconds": cpu}), flush=True)
    print(json.dumps({"peak_rss": peak_rss()}), flush=True)


if __name__ == "__main__":
    main()
