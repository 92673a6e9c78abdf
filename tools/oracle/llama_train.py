#!/usr/bin/env python3
"""tests/golden/llama_train.gguf: a two-layer Llama-style model in PyTorch: forward, every gradient, 20 steps of AdamW.

Model    V=97 D=32 Nq=4 Nkv=2 Dh=8 F=48, two layers, T=12 B=2. x = token_embd[token]; a layer is x += Wo attn(norm(x)),
         x += Wdown (silu(Wgate n) * (Wup n)) with n = norm(x); logits = Woutput norm(x). RMSNorm eps 1e-5. RoPE (base 10000)
         turns the pairs (2i, 2i+1), position = index in the sequence. Query head h reads key head h / (Nq / Nkv). Scores are
         scaled by 1/sqrt(Dh), causal. No biases, nothing tied. Loss: mean over B*T of the natural-log cross-entropy.
AdamW    lr 1e-3, betas 0.9 and 0.95, eps 1e-8, decay 0.1 decoupled on the matrices only (the norms' weights do not decay), the
         same batch each time. losses[i] is the loss before step i; loss_after the one after the last.
Numbers  The initial weights are F32. Everything is computed in float64 and rounded once; the run in float32 is beside it, and
         golden.f32_* say how far it is from float64, as a scale for tolerances.
Tensors  GGUF's names for the initial weights; grad.NAME at the initial weights; final.NAME after 20 steps; logits [B,T,V];
         tokens, targets [B,T] I32 (also as the metadata arrays golden.tokens, golden.targets); losses F64, losses_f32 (the
         float32 run).
"""
import numpy as np
import torch

from golden import Golden

SEED = 1234
V, D, NQ, NKV, DH, F, LAYERS, T, B = 97, 32, 4, 2, 8, 48, 2, 12, 2
EPS, ROPE_BASE, STEPS = 1e-5, 10000.0, 20
LR, BETAS, ADAM_EPS, DECAY = 1e-3, (0.9, 0.95), 1e-8, 0.1


def initial():
    gen = torch.Generator().manual_seed(SEED)

    def matrix(rows, cols, std):
        return torch.randn(rows, cols, generator=gen, dtype=torch.float64).mul(std).float()

    def norm():
        return torch.randn(D, generator=gen, dtype=torch.float64).mul(0.1).add(1).float()

    w = {"token_embd.weight": matrix(V, D, 0.7)}
    for i in range(LAYERS):
        w[f"blk.{i}.attn_norm.weight"] = norm()
        w[f"blk.{i}.attn_q.weight"] = matrix(NQ * DH, D, 1.5 * D ** -0.5)
        w[f"blk.{i}.attn_k.weight"] = matrix(NKV * DH, D, 1.5 * D ** -0.5)
        w[f"blk.{i}.attn_v.weight"] = matrix(NKV * DH, D, D ** -0.5)
        w[f"blk.{i}.attn_output.weight"] = matrix(D, NQ * DH, (NQ * DH) ** -0.5)
        w[f"blk.{i}.ffn_norm.weight"] = norm()
        w[f"blk.{i}.ffn_gate.weight"] = matrix(F, D, D ** -0.5)
        w[f"blk.{i}.ffn_up.weight"] = matrix(F, D, D ** -0.5)
        w[f"blk.{i}.ffn_down.weight"] = matrix(D, F, F ** -0.5)
    w["output_norm.weight"] = norm()
    w["output.weight"] = matrix(V, D, D ** -0.5)
    tokens = torch.randint(0, V, (B, T + 1), generator=gen)
    return w, tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def rms_norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


def rope(x):
    """x: [B, heads, T, DH]."""
    angle = torch.arange(T, dtype=torch.float64)[:, None] * ROPE_BASE ** (-torch.arange(0, DH, 2, dtype=torch.float64) / DH)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def forward(w, tokens):
    x = w["token_embd.weight"][tokens]
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    for i in range(LAYERS):
        def p(name):
            return w[f"blk.{i}.{name}.weight"]
        n = rms_norm(x, p("attn_norm"))
        q, k, v = ((n @ p(name).T).view(B, T, -1, DH).transpose(1, 2) for name in ("attn_q", "attn_k", "attn_v"))
        q, k = rope(q), rope(k)
        k, v = (t.repeat_interleave(NQ // NKV, 1) for t in (k, v))
        score = (q @ k.transpose(-1, -2) * DH ** -0.5).masked_fill(future, float("-inf"))
        x = x + (score.softmax(-1) @ v).transpose(1, 2).reshape(B, T, NQ * DH) @ p("attn_output").T
        n = rms_norm(x, p("ffn_norm"))
        x = x + (torch.nn.functional.silu(n @ p("ffn_gate").T) * (n @ p("ffn_up").T)) @ p("ffn_down").T
    return rms_norm(x, w["output_norm.weight"]) @ w["output.weight"].T


def run(start, tokens, targets, dtype):
    """The whole experiment in one dtype: logits, losses, gradients at the start, final weights."""
    w = {name: t.to(dtype).clone().requires_grad_() for name, t in start.items()}
    matrices = [t for t in w.values() if t.dim() == 2]
    others = [t for t in w.values() if t.dim() != 2]
    adamw = torch.optim.AdamW([{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}],
                              lr=LR, betas=BETAS, eps=ADAM_EPS, foreach=False)

    def loss_of():
        logits = forward(w, tokens)
        return logits, torch.nn.functional.cross_entropy(logits.view(B * T, V), targets.view(-1))

    losses, first = [], None
    for _ in range(STEPS):
        adamw.zero_grad()
        logits, loss = loss_of()
        loss.backward()
        if first is None:
            first = logits.detach().clone(), {name: t.grad.clone() for name, t in w.items()}
        losses.append(loss.item())
        adamw.step()
    with torch.no_grad():
        after = loss_of()[1].item()
    return first[0], first[1], losses, after, {name: t.detach() for name, t in w.items()}


def furthest(exact, rough):
    """Largest difference of one tensor, in units of that tensor's largest magnitude; the worst tensor."""
    return max(((exact[n] - rough[n].double()).abs().max() / exact[n].abs().max()).item() for n in exact)


def main():
    torch.set_num_threads(1)
    start, tokens, targets = initial()
    logits, grads, losses, after, final = run(start, tokens, targets, torch.float64)
    _, grads32, losses32, _, final32 = run(start, tokens, targets, torch.float32)

    out = Golden("llama_train.gguf", "python tools/oracle/llama_train.py", torch=torch.__version__)
    for key, value in dict(seed=SEED, V=V, D=D, Nq=NQ, Nkv=NKV, Dh=DH, F=F, layers=LAYERS, T=T, B=B, steps=STEPS).items():
        out.note(key, value)
    for key, value in dict(rms_eps=EPS, rope_base=ROPE_BASE, lr=LR, beta1=BETAS[0], beta2=BETAS[1], adam_eps=ADAM_EPS,
                           weight_decay=DECAY, loss=losses[0], loss_after=after, f32_grad_error=furthest(grads, grads32),
                           f32_final_error=furthest(final, final32),
                           f32_loss_error=max(abs(a - b) for a, b in zip(losses, losses32))).items():
        out.note(key, float(value))
        print(f"{key} {value:.6g}")
    out.note("tokens", tokens.int().numpy())
    out.note("targets", targets.int().numpy())
    out.i32("tokens", tokens)
    out.i32("targets", targets)
    out.f64("losses", np.array(losses))
    out.f32("losses_f32", np.array(losses32))
    out.f32("logits", logits)
    for prefix, tensors in (("", start), ("grad.", grads), ("final.", final)):
        for name, t in tensors.items():
            out.f32(prefix + name, t)
    out.write()


if __name__ == "__main__":
    main()
