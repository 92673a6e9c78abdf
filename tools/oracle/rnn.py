#!/usr/bin/env python3
"""tests/golden/lstm.gguf: torch.nn.LSTM, one layer, both biases, over a sequence: forward and every gradient.

Equations  gates i, f, g, o in this order of rows; a = W_ih x_t + b_ih + W_hh h_{t-1} + b_hh;
           c_t = sigmoid(a_f) c_{t-1} + sigmoid(a_i) tanh(a_g);  h_t = sigmoid(a_o) tanh(c_t);  y_t = h_t.
Loss       sum(y dy) + sum(hT dhT) + sum(cT dcT), so dy, dhT, dcT are what arrives at the outputs.
Tensors    x [T,B,D], h0 and c0 [B,H], w_ih [4H,D], w_hh [4H,H], b_ih and b_hh [4H], dy [T,B,H], dhT and dcT [B,H] are given,
           in F32; y [T,B,H], hT, cT, dx, dh0, dc0, dw_ih, dw_hh, db_ih, db_hh are the results, computed in float64 and rounded
           once. Cases: T=7 (no prefix) and T=1 (prefix t1.), B=3 D=5 H=6; the weights are so large that some gates saturate.
"""
import torch

from golden import Golden

SEED = 77
B, D, H = 3, 5, 6


def case(out, prefix, steps, gen):
    def given(name, *shape, scale=1.0):
        t = torch.randn(*shape, generator=gen, dtype=torch.float64).mul(scale).float()
        out.f32(prefix + name, t)
        return t.double()

    lstm = torch.nn.LSTM(D, H).double()
    weights = {"w_ih": lstm.weight_ih_l0, "w_hh": lstm.weight_hh_l0, "b_ih": lstm.bias_ih_l0, "b_hh": lstm.bias_hh_l0}
    with torch.no_grad():
        for name, parameter in weights.items():
            parameter.copy_(given(name, *parameter.shape, scale=0.8 if name[0] == "w" else 0.3))
    x = given("x", steps, B, D).requires_grad_()
    h0, c0 = given("h0", B, H, scale=0.5).requires_grad_(), given("c0", B, H).requires_grad_()
    dy, dh_last, dc_last = given("dy", steps, B, H), given("dhT", B, H), given("dcT", B, H)

    y, (h_last, c_last) = lstm(x, (h0[None], c0[None]))
    ((y * dy).sum() + (h_last[0] * dh_last).sum() + (c_last[0] * dc_last).sum()).backward()
    for name, t in dict(y=y, hT=h_last[0], cT=c_last[0], dx=x.grad, dh0=h0.grad, dc0=c0.grad).items():
        out.f32(prefix + name, t)
    for name, parameter in weights.items():
        out.f32(f"{prefix}d{name}", parameter.grad)


def main():
    torch.set_num_threads(1)
    gen = torch.Generator().manual_seed(SEED)
    out = Golden("lstm.gguf", "python tools/oracle/rnn.py", torch=torch.__version__)
    for key, value in dict(seed=SEED, B=B, D=D, H=H, T=7).items():
        out.note(key, value)
    case(out, "", 7, gen)
    case(out, "t1.", 1, gen)
    out.write()


if __name__ == "__main__":
    main()
