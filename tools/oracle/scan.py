#!/usr/bin/env python3
"""tests/golden/mingru.gguf: minGRU (Feng et al. 2024, "Were RNNs All We Needed?") as a first-order scan, with gradients.

minGRU   h_t = (1 - z_t) h_{t-1} + z_t c_t with z_t = sigmoid(k_t); k are the gate's logits, c the candidates as they are (the
         paper's plain form, no log-space). Given (F32): k, c [T,B,D], h0 [B,D], dh [T,B,D], dhT [B,D]. Results: h [T,B,D],
         hT [B,D], dk, dc, dh0, for the loss sum(h dh) + sum(hT dhT).
layer    the same from an input: k = W_z x, c = W_h x. Prefix layer.: x [T,B,E], w_z and w_h [D,E], h0, dh, dhT; h, hT, dx,
         dw_z, dw_h, dh0.
linear   h_t = a_t h_{t-1} + b_t. Prefix lin.: a, b [T,B,D], h0, dh, dhT; h, hT, da, db, dh0.
Cases    T=9 B=2 D=6, E=5; and the first again with T=1 (prefix t1.). Computed in float64, step by step, rounded once. Some
         logits are large (|k| to about 30), so that a gate is quite open or shut.
"""
import torch

from golden import Golden

SEED = 501
T, B, D, E = 9, 2, 6, 5


class Case:
    """One set of names: what is given, then what comes out of it."""

    def __init__(self, out, prefix, gen):
        self.out, self.prefix, self.gen, self.leaves = out, prefix, gen, {}

    def given(self, name, *shape, scale=1.0, change=lambda t: t):
        t = change(torch.randn(*shape, generator=self.gen, dtype=torch.float64).mul(scale)).float()
        self.out.f32(self.prefix + name, t)
        return t.double()

    def leaf(self, name, *shape, **how):
        t = self.given(name, *shape, **how).requires_grad_()
        self.leaves[name] = t
        return t

    def finish(self, a, b, steps):
        """Run h = a h + b over the steps, and write the results and the gradients of every leaf."""
        h = h0 = self.leaf("h0", B, D)
        dh, dh_last = self.given("dh", steps, B, D), self.given("dhT", B, D)
        states = []
        for t in range(steps):
            h = a[t] * h + b[t]
            states.append(h)
        states = torch.stack(states)
        ((states * dh).sum() + (h * dh_last).sum()).backward()
        self.out.f32(self.prefix + "h", states)
        self.out.f32(self.prefix + "hT", h)
        for name, leaf in self.leaves.items():
            self.out.f32(self.prefix + "d" + name, leaf.grad)
        assert h0.grad is not None


def widen(t):
    """Every seventh logit ten times as far from zero."""
    t.view(-1)[::7] *= 10
    return t


def main():
    torch.set_num_threads(1)
    gen = torch.Generator().manual_seed(SEED)
    out = Golden("mingru.gguf", "python tools/oracle/scan.py", torch=torch.__version__)
    for key, value in dict(seed=SEED, T=T, B=B, D=D, E=E).items():
        out.note(key, value)

    for prefix, steps in (("", T), ("t1.", 1)):
        case = Case(out, prefix, gen)
        z = torch.sigmoid(case.leaf("k", steps, B, D, scale=1.5, change=widen))
        case.finish(1 - z, z * case.leaf("c", steps, B, D), steps)

    case = Case(out, "layer.", gen)
    x, w_z, w_h = case.leaf("x", T, B, E), case.leaf("w_z", D, E, scale=0.7), case.leaf("w_h", D, E, scale=0.7)
    z = torch.sigmoid(x @ w_z.T)
    case.finish(1 - z, z * (x @ w_h.T), T)

    case = Case(out, "lin.", gen)
    a = case.leaf("a", T, B, D, scale=0.9)
    case.finish(a, case.leaf("b", T, B, D), T)
    out.write()


if __name__ == "__main__":
    main()
