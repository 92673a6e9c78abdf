#!/usr/bin/env python3
"""tests/golden/train.gguf: small GPT-2 and Llama style models in PyTorch: loss, every gradient of one step, steps of three optimisers.

Models   gpt2 and llama, each with the head tied to the embedding and not: V=37 D=16, 4 heads, two layers, context 16. llama: 2 key heads,
         F=40, RMSNorm, RoPE on the pairs (2i, 2i+1) with base 10000, SwiGLU, no biases. gpt2: F=64, LayerNorm, biases everywhere, learned
         positions, GELU with tanh. eps 1e-5.
Data     B=2 T=12. A sequence holds documents: `first` is where a row's document begins; positions restart there and attention stays inside.
         Targets of -1 do not count; the two sequences count a different number of rows. Loss: mean of the natural-log cross-entropy over
         the rows that count.
Weights  Not stored: element k of all parameters in their order is mean + spread * (u - 1/2), u the upper 24 bits of splitmix64's k-th output
         (seed 0x5eed) over 2^24, rounded to F32; mean 1 for norms' weights, else 0; spread 0.9 for tables, 0.7 for matrices, 0.3 for
         norms and biases. So biases are not zero and no activation is lost in symmetry.
AdamW    20 steps, lr 1e-2, betas 0.9 and 0.95, eps 1e-8, decay 0.1 on matrices and tables.
Muon     5 steps of torch.optim.Muon, adjust_lr_fn match_rms_adamw, lr 1e-2, decay 0.1, on the matrices of the layers; AdamW as above for the
         rest. PyTorch's own code, but in float64 where it has bfloat16.
SGD      5 steps, lr 0.1, momentum 0.9, decay 0.01 on matrices and tables, gradients clipped to a norm of 0.5.
Numbers  Everything is computed in float64 and rounded once.
Tensors  MODEL.grad.NAME; MODEL.adamw.NAME, llama.muon.NAME, llama.sgd.NAME after the steps; MODEL.losses F64 (before each AdamW step); notes
         MODEL.loss, MODEL.norm (of all gradients). MODEL: gpt2, gpt2_untied, llama_tied, llama. tokens, targets, pos, first I32 [B, T].
"""
import numpy as np
import torch

from golden import Golden

V, D, HEADS, KV, LAYERS, CONTEXT, T, B = 37, 16, 4, 2, 2, 16, 12, 2
DH, EPS, ROPE_BASE = D // HEADS, 1e-5, 10000.0
STARTS = [[0, 5], [0, 3, 4]]                    # of documents
UNCOUNTED = [[4, 11], [2, 3, 7, 8, 11]]         # rows whose target is -1


def splitmix64(n, seed):
    out, mask = np.empty(n, dtype=np.uint64), (1 << 64) - 1
    for k in range(n):
        seed = (seed + 0x9E3779B97F4A7C15) & mask
        z = seed
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
        out[k] = z ^ z >> 31
    return out


def shapes(arch, tied):
    """(name, shape, kind) in the order of use."""
    f = 64 if arch == "gpt2" else 40
    yield "token_embd.weight", (V, D), "table"
    if arch == "gpt2":
        yield "position_embd.weight", (CONTEXT, D), "table"
    for i in range(LAYERS):
        p = f"blk.{i}."
        if arch == "gpt2":
            for name, shape in (("attn_norm", None), ("attn_qkv", (3 * D, D)), ("attn_output", (D, D)), ("ffn_norm", None),
                                ("ffn_up", (f, D)), ("ffn_down", (D, f))):
                yield p + name + ".weight", shape or (D,), "matrix" if shape else "norm"
                yield p + name + ".bias", ((shape or (D,))[0],), "bias"
        else:
            for name, shape in (("attn_norm", None), ("attn_q", (D, D)), ("attn_k", (KV * DH, D)), ("attn_v", (KV * DH, D)),
                                ("attn_output", (D, D)), ("ffn_norm", None), ("ffn_gate", (f, D)), ("ffn_up", (f, D)),
                                ("ffn_down", (D, f))):
                yield p + name + ".weight", shape or (D,), "matrix" if shape else "norm"
    yield "output_norm.weight", (D,), "norm"
    if arch == "gpt2":
        yield "output_norm.bias", (D,), "bias"
    if not tied:
        yield "output.weight", (V, D), "table"


def initial(arch, tied):
    rows = list(shapes(arch, tied))
    u = (splitmix64(sum(int(np.prod(s)) for _, s, _ in rows), 0x5eed) >> np.uint64(40)).astype(np.float64) / 2 ** 24
    w, kinds, at = {}, {}, 0
    for name, shape, kind in rows:
        n = int(np.prod(shape))
        spread = {"table": 0.9, "matrix": 0.7, "norm": 0.3, "bias": 0.3}[kind]
        mean = 1.0 if kind == "norm" else 0.0
        x = (mean + spread * (u[at:at + n] - 0.5)).astype(np.float32).astype(np.float64)
        w[name], kinds[name] = torch.tensor(x.reshape(shape)).requires_grad_(), kind
        at += n
    return w, kinds


def data():
    u = splitmix64(B * (T + 1), 0xda7a)
    tokens = torch.tensor([int(v % V) for v in u]).view(B, T + 1)
    first = torch.zeros(B, T, dtype=torch.long)
    for b in range(B):
        for s in STARTS[b]:
            first[b, s:] = s
    targets = tokens[:, 1:].clone()
    for b in range(B):
        targets[b, UNCOUNTED[b]] = -1
    return tokens[:, :-1].contiguous(), targets, torch.arange(T) - first, first


def attention(q, k, v, first):
    """q: [B, T, heads, DH]; k, v: [B, T, key heads, DH]."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(HEADS // t.shape[1], 1) for t in (k, v))
    j = torch.arange(T)
    allowed = (j[None, None, :] <= j[None, :, None]) & (j[None, None, :] >= first[:, :, None])
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed[:, None])
    return y.transpose(1, 2).reshape(B, T, D)


def rope(x, pos):
    angle = pos[..., None].double() * ROPE_BASE ** (-torch.arange(0, DH, 2).double() / DH)
    cos, sin = angle.cos()[:, :, None], angle.sin()[:, :, None]
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def forward(arch, w, batch):
    tokens, targets, pos, first = batch
    F = torch.nn.functional
    x = w["token_embd.weight"][tokens]
    if arch == "gpt2":
        x = x + w["position_embd.weight"][pos]

    def norm(x, name):
        if arch == "gpt2":
            return F.layer_norm(x, (D,), w[name + ".weight"], w[name + ".bias"], EPS)
        return F.rms_norm(x, (D,), w[name + ".weight"], EPS)

    def linear(x, name):
        return F.linear(x, w[name + ".weight"], w.get(name + ".bias"))

    for i in range(LAYERS):
        p = f"blk.{i}."
        n = norm(x, p + "attn_norm")
        if arch == "gpt2":
            q, k, v = (t.view(B, T, HEADS, DH) for t in linear(n, p + "attn_qkv").chunk(3, -1))
        else:
            q, k, v = (linear(n, p + name).view(B, T, -1, DH) for name in ("attn_q", "attn_k", "attn_v"))
            q, k = rope(q, pos), rope(k, pos)
        x = x + linear(attention(q, k, v, first), p + "attn_output")
        n = norm(x, p + "ffn_norm")
        if arch == "gpt2":
            x = x + linear(F.gelu(linear(n, p + "ffn_up"), approximate="tanh"), p + "ffn_down")
        else:
            x = x + linear(F.silu(linear(n, p + "ffn_gate")) * linear(n, p + "ffn_up"), p + "ffn_down")
    x = norm(x, "output_norm")
    logits = x @ w.get("output.weight", w["token_embd.weight"]).T
    return F.cross_entropy(logits.view(-1, V), targets.view(-1), ignore_index=-1)


def adamw(w, kinds, names):
    groups = [{"params": [w[n] for n in names if kinds[n] in ("matrix", "table")], "weight_decay": 0.1},
              {"params": [w[n] for n in names if kinds[n] in ("norm", "bias")], "weight_decay": 0.0}]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=1e-2, betas=(0.9, 0.95), eps=1e-8, foreach=False)


def muon(w, kinds):
    matrices = [w[n] for n in w if kinds[n] == "matrix"]
    return [torch.optim.Muon(matrices, lr=1e-2, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
            adamw(w, kinds, [n for n in w if kinds[n] != "matrix"])]


def sgd(w, kinds):
    groups = [{"params": [w[n] for n in w if kinds[n] in ("matrix", "table")], "weight_decay": 0.01},
              {"params": [w[n] for n in w if kinds[n] in ("norm", "bias")], "weight_decay": 0.0}]
    return [torch.optim.SGD([g for g in groups if g["params"]], lr=0.1, momentum=0.9, foreach=False)]


def train(arch, tied, batch, make, steps, clip=None):
    w, kinds = initial(arch, tied)
    optimisers, losses = make(w, kinds), []
    for _ in range(steps):
        for p in w.values():
            p.grad = None
        loss = forward(arch, w, batch)
        loss.backward()
        losses.append(loss.item())
        if clip:
            torch.nn.utils.clip_grad_norm_(list(w.values()), clip)
        for o in optimisers:
            o.step()
    return w, losses


def main():
    torch.set_num_threads(1)
    torch.Tensor.bfloat16 = lambda t: t.clone()  # Muon's products in float64
    batch = data()
    out = Golden("train.gguf", "python tools/oracle/train.py", torch=torch.__version__)
    for name, t in zip(("tokens", "targets", "pos", "first"), batch):
        out.i32(name, t)
    for model, arch, tied in (("gpt2", "gpt2", True), ("gpt2_untied", "gpt2", False), ("llama_tied", "llama", True),
                              ("llama", "llama", False)):
        w, kinds = initial(arch, tied)
        loss = forward(arch, w, batch)
        loss.backward()
        norm = sum(t.grad.pow(2).sum() for t in w.values()).sqrt().item()
        out.note(f"{model}.loss", loss.item())
        out.note(f"{model}.norm", norm)
        print(f"{model}: {sum(t.numel() for t in w.values())} parameters, loss {loss.item():.6f}, gradients' norm {norm:.4f}")
        for name, t in w.items():
            out.f32(f"{model}.grad.{name}", t.grad)
        if model in ("gpt2_untied", "llama_tied"):
            continue
        w, losses = train(arch, tied, batch, lambda w, kinds: [adamw(w, kinds, list(w))], 20)
        out.f64(f"{model}.losses", np.array(losses))
        print(f"  AdamW: loss {losses[0]:.4f} … {losses[-1]:.4f}")
        for name, t in w.items():
            out.f32(f"{model}.adamw.{name}", t)
    for rule, make, clip in (("muon", muon, None), ("sgd", sgd, 0.5)):
        w, losses = train("llama", False, batch, make, 5, clip)
        print(f"  {rule}: loss {losses[0]:.4f} … {losses[-1]:.4f}")
        for name, t in w.items():
            out.f32(f"llama.{rule}.{name}", t)
    out.write()


if __name__ == "__main__":
    main()
