#!/usr/bin/env python3
"""rope: every way to turn positions, end to end, against llama.cpp's exact answers (golden/rope_logits.gguf).

Small random F32 models, made here by tools/test-model-variants, which lists them: no scaling; linear by each spelling of its
keys; YaRN with and without an original context, with a factor below 1 and with its other keys; Llama 3's rope_freqs; NeoX
order with biases (qwen2), plain and with YaRN. All have the same weights (qwen2 its biases besides). Compared are the logits at
the last position of 1, 40 and 200 tokens, KV cache in F32: KL below 1e-6, no logit further off than 2e-4 of the root mean
square of all. That another turning would be noticed is checked too: the golden logits of a variant are at least a hundred times
the bar away from those without scaling.
"""
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TOOL = os.path.join(os.path.dirname(HERE), "tools", "test-model-variants")
KL_BAR, LOGIT_BAR = 1e-6, 2e-4
AS_PLAIN = ("plain", "none")

try:
    import gguf  # noqa: F401: models and the tool need it
    import numpy as np
except ImportError as missing:
    print(f"SKIP rope all: {missing.name} is not installed\nrope: 0 passed, 0 failed, 1 skipped")
    sys.exit(0)

import models
from models import counts, failed, kl, last_logits, log_sum_exp, passed


def off(reference, logits):
    """The largest difference, in units of the root mean square of the reference."""
    return float(np.abs(logits - reference).max() / np.sqrt(np.mean(reference ** 2)))


def check(golden, folder, variant):
    path = os.path.join(folder, f"rope-{variant}.gguf")
    worst_kl, worst_off, apart = 0.0, 0.0, []
    for n in golden.meta["lengths"]:
        reference = golden.tensors[f"logits.{variant}.{n}"].astype(np.float64)
        logits, _ = last_logits(path, golden.tensors[f"tokens.{n}"], "--kv", "f32")
        if len(logits) != len(reference):
            return failed(variant, f"{len(logits)} logits, not {len(reference)}")
        worst_kl = max(worst_kl, kl(reference, log_sum_exp(reference), logits, np.arange(len(reference))))
        worst_off = max(worst_off, off(reference, logits))
        if n > 1:  # one token alone attends to itself, however it is turned
            apart.append(off(golden.tensors[f"logits.plain.{n}"].astype(np.float64), reference))
    if variant not in AS_PLAIN and min(apart) < 100 * LOGIT_BAR:
        return failed(variant, f"the golden logits are only {min(apart):.3g} rms from those without scaling")
    good = worst_kl < KL_BAR and worst_off < LOGIT_BAR
    note = f"KL {worst_kl:.3g} (bar {KL_BAR:g}), logits off by {worst_off:.3g} rms (bar {LOGIT_BAR:g})"
    return (passed if good else failed)(variant, note)


def main():
    if not os.access(models.WEIR, os.X_OK):
        failed("all", f"there is no program {models.WEIR}")
    else:
        golden = models.Golden("rope_logits.gguf")
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, TOOL, "-", folder, "rope"], stdout=subprocess.DEVNULL, check=True)
            for variant in golden.meta["variants"]:
                try:
                    check(golden, folder, variant)
                except models.Weir as error:
                    failed(variant, error)
    print(f"rope: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    sys.exit(1 if counts["failed"] else 0)


if __name__ == "__main__":
    main()
