#!/usr/bin/env python3
"""A training step on other devices than the CPU, beside the CPU's own: losses, the norm and the values of gradients, weights after twenty steps. The
emulated device is always there; OpenCL devices are taken where weir devices lists one (DEVICES=emu,opencl names others)."""
import math, os, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import harness
from harness import SAN, SECONDS, TMP, check, devices, refused, run, skip
from runs import lines, weights

TEXT = TMP + "/text"
SHAPE = ("--layers", "2", "--width", "24", "--heads", "2", "--ff", "40", "--ctx", "20", "--batch", "2", "--tokenizer", "bytes", "--threads", "2")
QUIET = ("--sample-tok", "0", "--eval-every", "0", "--dropout", "0.1", "--seed", "3")
LLAMA = ("--arch", "llama", "--kv-heads", "1", "--tied", "no")
GPT2 = ("--arch", "gpt2", "--accumulate", "2", "--remat", "block")
F32 = 2e-6  # the tolerance of the dtype table


def train(device, name, *args):
    out = "%s/%s-%s" % (TMP, name, device.replace(":", ""))
    r = run("train", "--device", device, "--data", TEXT, "--out", out, *SHAPE, *QUIET, *args, seconds=SECONDS * 24)
    return out if check(r.rc == 0, "%r" % r) else None


def rms(x):
    return math.sqrt(math.fsum(v * v for v in x) / len(x))


def worst(what, device, off, tolerance):
    if os.environ.get("SHOW"):
        print("%-6s %-40s %.2g" % (device, what, off))
    check(off <= tolerance, "%s: %s is off by %.2g, %.2g is allowed" % (device, what, off, tolerance))


def alike(name, tolerance, *args, with_weights=True):
    """each device's run against the CPU's: losses and norms of every step, weights at the end"""
    want = train("cpu", name, *args)
    for device in devices():
        got = train(device, name, *args)
        if not want or not got:
            continue
        a, b = lines(want), lines(got)
        check(len(a) == len(b), "%s: %d steps, the CPU has %d" % (device, len(b), len(a)))
        for key in ("loss", "grad_norm"):
            worst(name + " " + key, device, max(abs(x[key] - y[key]) / abs(x[key]) for x, y in zip(a, b)), tolerance)
        a, b = weights(want), weights(got)
        check(a.keys() == b.keys(), "%s: other tensors" % device)
        for tensor in a if with_weights else ():
            worst(tensor, device, rms([x - y for x, y in zip(a[tensor], b[tensor])]) / rms(a[tensor]), tolerance)


# one step of SGD with a rate so high that the weights are then the gradients
GRADIENTS = ("--steps", "1", "--optimizer", "sgd", "--momentum", "0", "--lr", "1000", "--clip", "0", "--warmup", "0")


def step_llama():
    alike("step-llama", F32, *LLAMA, *GRADIENTS)


def step_gpt2():
    alike("step-gpt2", F32, *GPT2, *GRADIENTS)


def steps_adamw():
    alike("adamw", 5 * F32, *LLAMA, "--steps", "20", "--lr", "3e-3")


def steps_muon():
    """without weights: the gradient of a key's bias is 0 but for rounding, of which AdamW makes steps as long as any"""
    alike("muon", 5 * F32, *GPT2, "--steps", "4", "--optimizer", "muon", "--lr", "3e-3", with_weights=False)


def goes_on():
    """a checkpoint of one device is another's beginning"""
    out = train("emu", "on", *LLAMA, "--steps", "2")
    r = run("train", "--device", "cpu", "--out", out, "--steps", "3", seconds=SECONDS * 12)
    check(r.rc == 0 and b"within tolerance" in r.err, "%r" % r)
    check([m["step"] for m in lines(out)] == [1, 2, 3], "steps are missing")


def null():
    refused(run("train", "--device", "null", "--data", TEXT, "--out", TMP + "/null", *SHAPE, seconds=SECONDS * 4), 3, "null", "plans only")


with open(TEXT, "w") as f:
    f.writelines("%d times %d is %d, said the miller's wife to the goat\n" % (i, i + 3, i * (i + 3)) for i in range(200))
harness.main("train_device", [step_llama, step_gpt2, steps_adamw, steps_muon, goes_on, null])
