#!/usr/bin/env python3
"""Inference on other devices than the CPU, beside the CPU's own. Quantised weights: the same bits, whatever the type, the cache and the way that the
prompt is cut; float weights: logits within ten times what the dtype table allows one operation. The emulated device is always there; OpenCL devices are taken where weir
devices lists one (DEVICES=emu,opencl names others)."""
import os, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import harness
from harness import SECONDS, TMP, check, devices, run

RUN = TMP + "/run"
TOKENS = ",".join(str(40 + i * 7 % 80) for i in range(12))


def logits(model, device, *args):
    r = run("logits", model, "--tokens", TOKENS, "--json", "--device", device, *args, seconds=SECONDS * 12)
    return r.json() if check(r.rc == 0, "%s %s %s: %r" % (model, device, args, r)) else {}


def quantised(kind):
    out = "%s/%s.gguf" % (TMP, kind)
    r = run("quantize", RUN, kind, "--out", out, seconds=SECONDS * 4)
    check(r.rc == 0, "%r" % r)
    return out


def same_bits(kind, *ways):
    model = quantised(kind)
    for way in ways:
        want = logits(model, "cpu", *[x for x in way if x != "--no-pack"]).get("hash")  # the CPU has another class for plain weights
        for device in devices():
            got = logits(model, device, *way).get("hash")
            check(want and got == want, "%s, %s on %s: %s, the CPU has %s" % (kind, " ".join(way), device, got, want))


def blocks_of_32():
    same_bits("q8_0", (), ("--cut", "5"), ("--kv", "q8_0"), ("--kv", "q4_0"))
    same_bits("q4_0", ())
    same_bits("q4_1", ("--cut", "1",))
    same_bits("q5_0", ())
    same_bits("q5_1", ())


def blocks_of_256():
    same_bits("q4_k_m", (), ("--no-pack",), ("--cut", "3"))
    same_bits("q6_k", ("--no-pack",))


def floats():
    for kind in ("f32", "f16", "bf16"):
        model = quantised(kind)
        want = logits(model, "cpu", "--kv", "f32").get("logits", [])
        rms = (sum(x * x for x in want) / max(len(want), 1)) ** 0.5
        for device in devices():
            got = logits(model, device, "--kv", "f32").get("logits", [])
            worst = max((abs(a - b) for a, b in zip(got, want)), default=1e9)
            check(len(got) == len(want) and worst <= 2e-5 * rms, "%s on %s is off by %.2g of the rms" % (kind, device, worst / (rms or 1)))


with open(TMP + "/text", "w") as f:
    f.writelines("%d geese and %d more are %d, said the miller\n" % (i, i + 3, 2 * i + 3) for i in range(200))
made = run("train", "--data", TMP + "/text", "--out", RUN, "--arch", "llama", "--layers", "2", "--width", "256", "--heads", "4", "--kv-heads", "2", "--ff", "512",
           "--ctx", "64", "--batch", "1", "--tokenizer", "bytes", "--tied", "no", "--steps", "1", "--sample-tok", "0", "--eval-every", "0", "--seed", "3",
           seconds=SECONDS * 4)
check(made.rc == 0, "%r" % made)
harness.main("infer_device", [blocks_of_32, blocks_of_256, floats])
