#!/usr/bin/env python3
"""bits: kernels and logits have the same bits on every instruction set and in every build.

Kernels: `kernels --bits` hashes what each numeric class makes of each case (large ones left out), with every WEIR_ISA that this
machine can do. Or, where WEIR_OTHER is another build's folder, for another kind of machine (one of the two under an emulator): here
and there, and the same of the logits of real models after a few tokens, by `weir logits`.

Needs WEIR, WEIR_BUILD, WEIR_VARIANT (only the release build is looked at); WEIR_EMULATOR, the command before programs of WEIR_BUILD (WEIR has it in it); WEIR_TEST_MODELS.
"""
import json
import os
import re
import subprocess
import sys

WEIR, BUILD, OTHER = (os.environ.get(k) for k in ("WEIR", "WEIR_BUILD", "WEIR_OTHER"))
EMULATOR = [e for e in [os.environ.get("WEIR_EMULATOR")] if e]
MODELS = os.environ.get("WEIR_TEST_MODELS")
KINDS = ("smollm2-135m-q4_0", "smollm2-135m-q4_1", "smollm2-135m-q8_0", "smollm2-135m-f16", "random-k_mix")
TOKENS = "1,504,357,282"
FLOP = "1e5"  # of a case; all rows but the tiled ones of attention have smaller ones

counts = {"passed": 0, "failed": 0, "skipped": 0}


def check(name, good, why):
    counts["passed" if good else "failed"] += 1
    if not good:
        print(f"FAIL {name}: {why}", flush=True)


def skip(name, why):
    counts["skipped"] += 1
    print(f"SKIP bits.{name}: {why}", flush=True)


def kernels(program, isa=None):
    """{"op class | case": hash}, or None where this machine has no such instructions."""
    env = dict(os.environ, **({"WEIR_ISA": isa} if isa else {}))
    done = subprocess.run([*program, "--bits", "--flop", FLOP], capture_output=True, text=True, env=env)
    if "WEIR_ISA is" in done.stderr:
        return None
    return {line[17:]: line[:16] for line in done.stdout.splitlines() if re.match("[0-9a-f]{16} ", line)}


def compare_kernels(name, want, got):
    """What only one of the builds has a class for is not compared."""
    both = want.keys() & got.keys()
    wrong = [k for k in sorted(both) if want[k] != got[k]]
    check(name, len(both) > 100 and not wrong, f"{len(wrong)} of {len(both)} have other bits: {'; '.join(wrong[:5])}")


def logits_hash(program, model):
    done = subprocess.run([program, "logits", model, "--tokens", TOKENS, "--json"], capture_output=True)
    return json.loads(done.stdout)["hash"] if done.returncode == 0 else done.stderr.decode(errors="replace")


def main():
    if os.environ.get("WEIR_VARIANT", "release") != "release":
        skip("all", "bits are compared in the release build")
        print("bits: 0 passed, 0 failed, 1 skipped")
        return
    own = [*EMULATOR, f"{BUILD}/tests/kernels"]
    want = kernels(own)
    for isa in () if OTHER else ("generic", "avx2", "neon"):
        got = kernels(own, isa)
        if got is not None:
            compare_kernels(f"kernels {isa}", want, got)
    if OTHER:
        compare_kernels("kernels of the other build", kernels([f"{OTHER}/tests/kernels"]), want)
    for kind in KINDS if OTHER else ():
        model = f"{MODELS}/{kind}.gguf"
        if not MODELS or not os.path.exists(model):
            skip(f"logits.{kind}", "no such model in WEIR_TEST_MODELS")
            continue
        got, other = logits_hash(WEIR, model), logits_hash(f"{OTHER}/weir", model)
        check(f"logits {kind}", got == other and re.fullmatch("[0-9a-f]+", got), f"{got}, in the other build {other}")
    print(f"bits: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    sys.exit(1 if counts["failed"] else 0)


main()
