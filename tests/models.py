#!/usr/bin/env python3
"""models: logits and greedy text of real models (SmolLM2-135M in every type, Gemma 3 270M) against llama.cpp's exact answers
(golden/*_logits.gguf).

What is compared is in tools/oracle/smollm2_logits.py: KL over the stored ids and one bucket for the others, mean over twelve
prompts; below 1e-5 where the weights are not quantised, 6e-3 where they are (Gemma in Q4_K_M: 1.5e-2). Greedy text must be the reference's as long as the
reference's two largest logits are more than 0.05 apart; where they are closer it may part, and what follows is not compared.
For quantised weights, where the activations are rounded to 8 bits as well, the distance is 0.25: llama.cpp's own text parts
from the same reference at distances up to 0.23, with a mean KL of 3.2e-3 to 3.9e-3. The random models' bar is 1e-3 (llama.cpp:
6e-4). The bits of the logits must not depend on the threads or on how the prompt was cut. The prompts' ids are llama.cpp's too, for Gemma also those of texts that are hard to cut, and of conversations.

Needs WEIR (default ./weir) and WEIR_TEST_MODELS, the folder of tools/test-model-variants; each model that is not there, or is
another one by its checksum, is skipped by name. Types that have only reference rows are slow and get one prompt; so does
everything in a sanitizer build. Under an emulator one prompt's logits of a few types are all. WEIR_TEST_FULL=1: every prompt that
the golden file has.
"""
import hashlib
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
WEIR = os.environ.get("WEIR") or os.path.join(os.path.dirname(HERE), "weir")
MODELS = os.environ.get("WEIR_TEST_MODELS")
FULL = os.environ.get("WEIR_TEST_FULL") == "1"
EMULATED = "WEIR_EMULATOR" in os.environ
SLOW_BUILD = EMULATED or os.environ.get("WEIR_VARIANT") in ("asan", "tsan", "debug")
EXACT = ("f32", "f16", "bf16")
REFERENCE_ONLY = ("bf16", "q5_0", "q5_1")
BAR_KL = {"q4_k_m": 1.5e-2}  # of quantised types: otherwise 6e-3
EMULATED_TYPES = ("f16", "q8_0", "q4_0", "q4_1", "q5_1")
# "</s>" is HTML in Gemma's vocabulary, a token that text makes; llama.cpp takes it for an end of text everywhere, and spells it.
LLAMA_SPELLS = {212: [954, 236751, 236813]}
MARGIN, MARGIN_QUANTISED = 0.05, 0.25
KV_MODEL = "smollm2-135m", "f16"
# Mean KL that each type of the KV cache may cost, with F16 weights: some times what doc/notes/0008-attention.md found.
KV_BARS = {"f32": 1e-8, "bf16": 1e-4, "q8_0": 2e-3, "q4_0": 0.3}
GREEDY_PROMPTS = ("empty", "english", "code_python", "japanese", "numbers", "chat")
GREEDY_QUANTISED = ("empty", "english", "chat")
GREEDY_TOKENS = 24
# The prompt, and the ways to feed it. Gemma's prompt is longer than its windows, and each way takes seconds.
BITS = {"smollm2-135m": ("chat", [("--threads", "1"), ("--threads", "2"), ("--threads", "3"), ("--cut", "1"), ("--cut", "7"),
                                  ("--cut", "64"), ("--cut", "7", "--threads", "1")]),
        "gemma-3-270m": ("long", [("--threads", "1"), ("--cut", "65", "--threads", "3")])}
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"  # what the model's own template puts first

counts = {"passed": 0, "failed": 0, "skipped": 0}


def passed(name, note=""):
    counts["passed"] += 1
    print(f"ok   {name} {note}", flush=True)


def failed(name, why):
    counts["failed"] += 1
    print(f"FAIL {name}: {why}", flush=True)


def skipped(name, why):
    counts["skipped"] += 1
    print(f"SKIP models {name}: {why}", flush=True)


def finish():
    print(f"models: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    sys.exit(1 if counts["failed"] else 0)


try:
    import gguf
    import numpy as np
except ImportError as missing:
    skipped("all", f"{missing.name} is not installed")
    finish()


class Weir(Exception):
    """The program did not do what it was asked."""


def weir(*args, stdin=b""):
    """Runs weir with --json; the object that it prints."""
    command = [WEIR, *args, "--json"]
    done = subprocess.run(command, input=stdin, capture_output=True)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()[-300:]
        raise Weir(f"`{' '.join(command)[:160]}` ended with {done.returncode}: {said}")
    try:
        return json.loads(done.stdout)
    except ValueError as error:
        raise Weir(f"`{' '.join(command)[:160]}` printed no JSON: {error}") from None


class Golden:
    def __init__(self, file, prefix=None):
        self.prefix = prefix
        reader = gguf.GGUFReader(os.path.join(HERE, "golden", file))
        self.tensors = {t.name: t.data for t in reader.tensors}
        self.meta = {k[7:]: f.contents() for k, f in reader.fields.items() if k.startswith("golden.")}

    def model(self, prefix, kind):
        """Path of a model, or None after a skip."""
        path = os.path.join(MODELS, f"{prefix}-{kind}.gguf")
        if not os.path.exists(path):
            return skipped(f"{prefix}-{kind}", "no such model in WEIR_TEST_MODELS")
        with open(path, "rb") as f:
            if hashlib.file_digest(f, "sha256").hexdigest() != self.meta["sha256"][self.meta["types"].index(kind)]:
                return skipped(f"{prefix}-{kind}", "another model than the golden file was made from (its checksum differs)")
        return path


def tokens_option(tokens):
    return "--tokens", ",".join(map(str, tokens))


def last_logits(path, tokens, *options):
    answer = weir("logits", path, *tokens_option(tokens), *options)
    return np.array(answer["logits"], np.float64), answer["hash"]


def log_sum_exp(x):
    return x.max() + np.log(np.exp(x - x.max()).sum())


def kl(reference, reference_sum, logits, ids):
    """reference: logits of ids; logits: the whole row. Those outside ids are one bucket."""
    log_p = reference.astype(np.float64) - reference_sum
    log_q = logits[ids] - log_sum_exp(logits)
    p, q = np.exp(log_p), np.exp(log_q)
    rest_p, rest_q = max(1 - p.sum(), 1e-12), max(1 - q.sum(), 1e-12)
    return float((p * (log_p - log_q)).sum() + rest_p * np.log(rest_p / rest_q))


def reference_of(golden, kind):
    """The type whose logits are the exact ones of kind: its own, or those of f32, the dequantisation of the file that it came from."""
    return kind if f"logsumexp.{kind}" in golden.tensors else "f32"


def check_kl_of(golden, path, kind, what, bar, *options):
    reference = reference_of(golden, kind)
    names = [n for n in golden.meta["prompts"] if f"logits.{reference}.{n}" in golden.tensors]
    if not FULL and (SLOW_BUILD or kind in REFERENCE_ONLY):
        names = ["english"]
    each = {}
    for name in names:
        logits, _ = last_logits(path, golden.tensors[f"tokens.{name}"], *options)
        total = golden.tensors[f"logsumexp.{reference}"][golden.meta["prompts"].index(name)]
        each[name] = kl(golden.tensors[f"logits.{reference}.{name}"], total, logits, golden.tensors[f"ids.{name}"])
    mean = float(np.mean(list(each.values())))
    worst = max(each, key=each.get)
    note = f"mean KL {mean:.3g} (bar {bar:g}), worst {each[worst]:.3g} ({worst}), {len(each)} prompts"
    (passed if mean < bar else failed)(what, note)


def check_kl(golden, path, kind):
    check_kl_of(golden, path, kind, f"kl {golden.prefix} {kind}", 1e-5 if kind in EXACT else BAR_KL.get(kind, 6e-3))


def check_kv(golden, path, kind):
    for kv, bar in KV_BARS.items():
        check_kl_of(golden, path, kind, f"kl {golden.prefix} {kind}, cache {kv}", bar, "--kv", kv)
        check_bits(golden, path, f"{kind}, cache {kv}", "--kv", kv)


def parts_at(golden, kind, name, tokens, count):
    """Where weir's greedy text may not, but does, part from the first count tokens of the reference: a sentence, or None."""
    of = reference_of(golden, kind)
    reference, margin = golden.tensors[f"greedy.{of}.{name}"], golden.tensors[f"margin.{of}.{name}"]
    bar = MARGIN if kind in EXACT else MARGIN_QUANTISED
    eos = len(reference) < golden.meta["greedy"]  # then the last id is the end of the text, which generate does not print
    for i, want in enumerate(reference[:count]):
        got = tokens[i] if i < len(tokens) else None
        if got == want or (got is None and eos and i == len(reference) - 1):
            continue
        return f"{name}: token {i} is {got}, not {want}, where the margin is {margin[i]:.3f}" if margin[i] > bar else None
    return None


def check_greedy(golden, path, kind):
    wrong = []
    names = GREEDY_PROMPTS if kind in EXACT else GREEDY_QUANTISED
    names = golden.meta["prompts"] if FULL else ["english"] if SLOW_BUILD else names
    count = golden.meta["greedy"] if FULL else GREEDY_TOKENS
    for name in names:
        text = golden.meta["texts"][golden.meta["prompts"].index(name)]
        prompt = ["--chat", "--system", golden.meta.get("chat_system", SYSTEM), "-p", golden.meta["chat_user"]] if name == "chat" else ["-p", text]
        answer = weir("generate", path, *prompt, "-n", str(count), "--temp", "0")
        if list(answer["prompt_tokens"]) != golden.tensors[f"tokens.{name}"].tolist():
            wrong.append(f"{name}: the prompt became {answer['prompt_tokens'][:12]}…")
            continue
        why = parts_at(golden, kind, name, answer["tokens"], count)
        if why:
            wrong.append(why)
    (failed if wrong else passed)(f"greedy {golden.prefix} {kind}", "; ".join(wrong) or f"{len(names)} prompts")


def check_bits(golden, path, kind, *more):
    prompt, options = BITS[golden.prefix]
    tokens = golden.tensors["tokens.english" if SLOW_BUILD else f"tokens.{prompt}"]
    _, want = last_logits(path, tokens, *more)
    wrong = [" ".join(o) for o in options if last_logits(path, tokens, *o, *more)[1] != want]
    (failed if wrong else passed)(f"bits {golden.prefix} {kind}", f"other bits with {', '.join(wrong)}" if wrong else f"{len(options)} ways")


def check_tokens(golden, path):
    wrong = []
    for name, text in zip(golden.meta["prompts"], golden.meta["texts"]):
        want = golden.tensors[f"tokens.{name}"].tolist()
        got = weir("tokenize", path, "--parse-special", stdin=text.encode())["tokens"]
        if got != (want if text else []) and not (not text and got == want):
            wrong.append(f"{name}: {got[:12]}… not {want[:12]}…")
    (failed if wrong else passed)("tokens", "; ".join(wrong))


def check_more_tokens(golden, path):
    """Texts that are hard to cut, and conversations."""
    wrong = []
    for i, text in enumerate(golden.meta["hard"]):
        got = weir("tokenize", path, stdin=text.encode())["tokens"]
        if [j for t in got for j in LLAMA_SPELLS.get(t, [t])] != golden.tensors[f"hard.{i}"].tolist():
            wrong.append(f"{text!r}: {got[:12]}… not {golden.tensors[f'hard.{i}'].tolist()[:12]}…")
        elif weir("tokenize", path, "--decode", stdin=",".join(map(str, got)).encode())["text"] != text.replace("\u2581", " "):
            wrong.append(f"{text!r}: its ids are another text")
    for i, talk in enumerate(map(json.loads, golden.meta["conversations"])):
        system = ["--system", talk[0][1]] if talk[0][0] == "system" else []
        said = [content for role, content in talk if role != "system"]
        if len(said) > 1:
            continue  # generate asks once; tests/text.c has that one
        got = weir("generate", path, "--chat", *system, "-p", said[0], "-n", "1")["prompt_tokens"]
        if got != golden.tensors[f"chat.{i}"].tolist():
            wrong.append(f"conversation {i}: {got} not {golden.tensors[f'chat.{i}'].tolist()}")
    (failed if wrong else passed)("more tokens", "; ".join(wrong))


def check_random(golden, path, kind):
    each = []
    for name in golden.meta["prompts"]:
        reference = golden.tensors[f"logits.{kind}.{name}"]
        logits, _ = last_logits(path, golden.tensors[f"tokens.{name}"])
        each.append(kl(reference, log_sum_exp(reference.astype(np.float64)), logits, np.arange(len(reference))))
    mean = float(np.mean(each))
    (passed if mean < 1e-3 else failed)(f"kl random {kind}", f"mean KL {mean:.3g} (bar 0.001)")


def attempt(name, check, *args):
    start = time.monotonic()
    try:
        check(*args)
    except (Weir, KeyError, IndexError) as error:
        failed(name, error if isinstance(error, Weir) else f"the answer lacks {error}")
    print(f"       {name}: {time.monotonic() - start:.1f} s", flush=True)


def check_model(golden, prefix, only):
    for kind in golden.meta["types"]:
        if EMULATED and kind not in EMULATED_TYPES:
            continue
        path = golden.model(prefix, kind)
        checks = [("kl", check_kl)]
        if kind not in REFERENCE_ONLY and not EMULATED:
            checks.append(("bits", check_bits))
            checks.append(("greedy", check_greedy))
        if (prefix, kind) == KV_MODEL and not EMULATED:
            checks.append(("kv", check_kv))
        for name, check in checks if path else []:
            if only in f"{name} {prefix} {kind}":
                attempt(f"{name} {prefix} {kind}", check, golden, path, kind)
        if path and kind == golden.meta["types"][-1] and not EMULATED and only in f"tokens {prefix}":
            attempt(f"tokens {prefix}", check_tokens, golden, path)
            if "hard" in golden.meta:
                attempt(f"more tokens {prefix}", check_more_tokens, golden, path)


def main():
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    if not MODELS:
        skipped("all", "WEIR_TEST_MODELS is not set")
        finish()
    if not os.access(WEIR, os.X_OK):
        skipped("all", f"there is no program {WEIR}")
        finish()
    commands = subprocess.run([WEIR, "--help"], capture_output=True, text=True).stdout
    if "generate" not in commands or "logits" not in commands:
        skipped("all", f"{WEIR} has no commands generate and logits")
        finish()
    for file, prefix in (("smollm2_logits.gguf", "smollm2-135m"), ("gemma_logits.gguf", "gemma-3-270m")):
        check_model(Golden(file, prefix), prefix, only)
    golden = Golden("random_logits.gguf")
    for kind in golden.meta["types"]:
        path = golden.model("random", kind)
        if path and only in f"kl random {kind}":
            attempt(f"kl random {kind}", check_random, golden, path, kind)
    finish()


if __name__ == "__main__":
    main()
