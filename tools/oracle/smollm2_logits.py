#!/usr/bin/env python3
"""tests/golden/smollm2_logits.gguf, gemma_logits.gguf, random_logits.gguf and rope_logits.gguf: what llama.cpp computes in F32.

smollm2_logits.py LLAMA_DIR MODELS_DIR [smollm2|gemma|random|rope ...]      without names all: some minutes

LLAMA_DIR is what bench/peers made for llama.cpp (source under src/, libraries under build/bin); MODELS_DIR holds the files of
tools/test-model-variants. The reference of a type is the F32 dequantisation of its file, made here beside it, with the KV cache
in F32 and no flash attention: then every product is F32 and the weights are the type's own. q4_1 has no reference of its own,
because the f32 file is its dequantisation.

smollm2_logits.gguf, for prompt P of golden.prompts (texts in golden.texts; the last is a chat, golden.chat_user its message):
  tokens.P         I32, the prompt's ids. The empty prompt is the BOS token alone: where a vocabulary asks for no BOS, llama.cpp
                   refuses an empty prompt, and one token has to stand there.
  ids.P            I32 [K], the K largest of the f32 reference, largest first
  logits.TYPE.P    F32 [K], the logits of these ids in the reference of TYPE; for f32, f16, q8_0, q4_0 for every prompt, for the
                   other types for the prompts in golden.few
  logsumexp.TYPE   F64 [prompts], over the whole vocabulary (0 where there are no logits)
  greedy.TYPE.P    I32, greedy continuation in the reference of TYPE; it ends with the end-of-text id or has golden.greedy ids
  margin.TYPE.P    F32, at each of these ids the largest logit less the second
  native.TYPE.P    I32, greedy continuation of llama.cpp on the quantised file itself, for comparison
  golden.sha256    of the model files, in the order of golden.types: a file with another sum is another model
  golden.native_kl mean KL of llama.cpp on the type's own file against its reference, in the same order
KL: the K ids and one bucket for all the others, p from the reference, sum p ln(p/q), mean over the prompts.

gemma_logits.gguf: the same of gemma-3-270m, for types f16 and q4_k_m, both against the F32 dequantisation of the latter (logits.f32.P and so
on); the prompt "long" is longer than the window of its layers. Besides:
  hard.N           I32, llama.cpp's ids of golden.hard[N]: texts that a SentencePiece vocabulary can get wrong
  chat.N           I32, its ids of conversation N of golden.conversations (JSON: a list of [role, content]), as llama.cpp's own
                   template "gemma" writes it; without a system's message it is also what jinja2 makes of Gemma 2's template

random_logits.gguf: golden.types of random-TYPE.gguf: tokens.P, logits.TYPE.P F32 [V] whole, sha256.

rope_logits.gguf: for each VARIANT of golden.variants (rope-VARIANT.gguf) and each length N of golden.lengths: logits.VARIANT.N,
F32 [V], whole, after tokens.N, I32 [N]. The models have no checksum: their weights do not depend on versions.
"""
import ctypes
import hashlib
import json
import os
import runpy
import subprocess
import sys
import tempfile

import numpy as np

from golden import REPO, Golden
from prompts import CHAT_USER, CONVERSATIONS, HARD, PROMPTS

K, GREEDY = 1024, 48  # with 1,024 ids the KL is 2 to 4 % below that of the whole vocabulary
FULL = ["f32", "f16", "q8_0", "q4_0"]
NATIVE = ["q8_0", "q4_0", "q4_1"]
PART = ["bf16", "q5_0", "q5_1"]
FEW = ["english", "japanese", "code_c"]
ROPE_LENGTHS = [1, 40, 200]
ROPE_ASK = {"yarn_keys": ("yarn_attn", "0.6", "0.1")}  # keys that llama.cpp does not read: the same by other means
TOOL = os.path.join(REPO, "tools", "test-model-variants")
RANDOM = ["q4_k", "q5_k", "q6_k", "k_mix", "q2_k", "q3_k", "iq4_nl", "iq4_xs"]
CHAT_SYSTEM = "You keep the gauge log of a mill weir."
CHAT = ("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        f"<|im_start|>user\n{CHAT_USER}<|im_end|>\n<|im_start|>assistant\n")


class Special(str):
    """A text whose special tokens count as such."""


def build(llama):
    """Compiles llama_logits.c against the libraries; returns the program's path."""
    program = os.path.join(tempfile.mkdtemp(prefix="oracle"), "llama_logits")
    source, lib = os.path.join(llama, "src/vendor/llama.cpp"), os.path.join(llama, "build/bin")
    here = os.path.dirname(os.path.abspath(__file__))
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, os.path.join(here, "llama_logits.c"),
                    f"-I{source}/include", f"-I{source}/ggml/include", f"-L{lib}", f"-Wl,-rpath,{lib}",
                    "-lllama", "-lggml", "-lggml-base"], check=True)
    return program


def ask(program, model, prompts, greedy, *betas):
    """prompts: (name, text or ids) pairs; a dict of name -> (ids, logits, greedy ids, margins)."""
    query = b""
    for name, text in prompts:
        special, text = (1, CHAT) if text is None else (2, text) if isinstance(text, np.ndarray) else \
            (int(isinstance(text, Special)), text)
        data = text.astype(np.int32).tobytes() if special == 2 else text.encode()
        query += b"%d %d %d\n" % (len(data), special, greedy) + data
    reply = subprocess.run([program, model, *betas], input=query, stdout=subprocess.PIPE, check=True).stdout
    at, answers = 0, {}

    def take(dtype, count):
        nonlocal at
        array = np.frombuffer(reply, dtype, count, at)
        at += array.nbytes
        return array

    for name, _ in prompts:
        ids = take(np.int32, int(take(np.int32, 1)[0]))
        logits = take(np.float32, int(take(np.int32, 1)[0]))
        steps = take(np.dtype([("id", np.int32), ("margin", np.float32)]), int(take(np.int32, 1)[0]))
        answers[name] = ids, logits, steps["id"], steps["margin"]
    assert at == len(reply)
    return answers


def log_sum_exp(logits):
    x = logits.astype(np.float64)
    return float(x.max() + np.log(np.exp(x - x.max()).sum()))


def kl(reference, other, ids):
    """Both are whole rows of logits."""
    def parts(logits):
        p = np.exp(logits[ids].astype(np.float64) - log_sum_exp(logits))
        return np.append(p, max(1 - p.sum(), 1e-300))
    p, q = parts(reference), parts(other)
    return float((p * np.log(p / q)).sum())


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def reference_of(models, name):
    """The F32 dequantisation of a model, made if it is not there."""
    source = os.path.join(models, "smollm2-135m-q4_1.gguf")
    wanted = name if name == "smollm2-135m-f32" else f"{name}-f32"
    subprocess.run([sys.executable, TOOL, source, models, name, wanted], check=True)
    return os.path.join(models, f"{wanted}.gguf")


def smollm2(program, models, llama_version):
    out = Golden("smollm2_logits.gguf", "python tools/oracle/smollm2_logits.py LLAMA_DIR MODELS_DIR", llama_cpp=llama_version)
    names = [name for name, _ in PROMPTS]
    out.note("prompts", names)
    out.note("texts", [CHAT if text is None else text for _, text in PROMPTS])
    out.note("chat_user", CHAT_USER)
    out.note("types", FULL + ["q4_1"] + PART)
    out.note("few", FEW)
    out.note("greedy", GREEDY)
    exact = {t: ask(program, reference_of(models, f"smollm2-135m-{t}"), PROMPTS, GREEDY) for t in FULL}
    few = [p for p in PROMPTS if p[0] in FEW]
    exact |= {t: ask(program, reference_of(models, f"smollm2-135m-{t}"), few, 1) for t in PART}
    ids_of = {}
    for name in names:
        tokens, logits, _, _ = exact["f32"][name]
        ids_of[name] = np.argsort(-logits, kind="stable")[:K].astype(np.int32)
        out.i32(f"tokens.{name}", tokens)
        out.i32(f"ids.{name}", ids_of[name])
    native_kl, native = [], {}
    for t in FULL + ["q4_1"] + PART:
        reference = exact["f32" if t == "q4_1" else t]
        asked = [p for p in PROMPTS if p[0] in reference]
        native[t] = ask(program, os.path.join(models, f"smollm2-135m-{t}.gguf"), asked, GREEDY if t in NATIVE else 1)
        each = {name: kl(reference[name][1], native[t][name][1], ids_of[name]) for name in reference}
        native_kl.append(float(np.mean(list(each.values()))))
        apart = [first_apart(reference[n][2], native[t][n][2], reference[n][3]) for n in reference]
        print(f"{t}: llama.cpp's mean KL {native_kl[-1]:.3g}, worst {max(each.values()):.3g};",
              "margins where its greedy text parts:", " ".join(f"{m:.3f}" for m in apart if m is not None), flush=True)
    for t in FULL + PART:
        out.f64(f"logsumexp.{t}", np.array([log_sum_exp(exact[t][n][1]) if n in exact[t] else 0.0 for n in names]))
        for name, (_, logits, greedy, margin) in exact[t].items():
            out.f32(f"logits.{t}.{name}", logits[ids_of[name]])
            if t in FULL:
                out.i32(f"greedy.{t}.{name}", greedy)
                out.f32(f"margin.{t}.{name}", margin)
    for t in NATIVE:
        for name in names:
            out.i32(f"native.{t}.{name}", native[t][name][2])
    out.note("native_kl", native_kl)
    out.note("sha256", [sha256(os.path.join(models, f"smollm2-135m-{t}.gguf")) for t in FULL + ["q4_1"] + PART])
    out.write()


def gemma_chat(llama, conversation):
    """llama.cpp's text of a conversation in its template "gemma"; with jinja2 over Gemma 2's, where that takes it, held to be the same."""
    class Message(ctypes.Structure):
        _fields_ = [("role", ctypes.c_char_p), ("content", ctypes.c_char_p)]
    messages = (Message * len(conversation))(*[(role.encode(), content.encode()) for role, content in conversation])
    buffer = ctypes.create_string_buffer(1 << 16)
    apply = ctypes.CDLL(os.path.join(llama, "build/bin/libllama.so")).llama_chat_apply_template
    n = apply(b"gemma", messages, ctypes.c_size_t(len(conversation)), ctypes.c_bool(True), buffer, ctypes.c_int32(len(buffer)))
    text = buffer.raw[:n].decode()
    if conversation[0][0] != "system":
        import jinja2
        with open(os.path.join(REPO, "..", "shared", "data", "templates", "google-gemma-2-2b-it.jinja")) as f:
            template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(f.read())
        other = template.render(bos_token="", add_generation_prompt=True,
                                messages=[{"role": role, "content": content} for role, content in conversation])
        assert other == text, (other, text)
    return text


def gemma(program, models, llama_version):
    out = Golden("gemma_logits.gguf", "python tools/oracle/smollm2_logits.py LLAMA_DIR MODELS_DIR gemma", llama_cpp=llama_version)
    llama = sys.argv[1]
    files = {t: os.path.join(models, f"gemma-3-270m-{t}.gguf") for t in ("f16", "q4_k_m", "q4_k_m-f32")}
    texts = [(n, gemma_chat(llama, [("system", CHAT_SYSTEM), ("user", CHAT_USER)]) if t is None else t) for n, t in PROMPTS]
    names = [name for name, _ in PROMPTS]
    out.note("prompts", names)
    out.note("texts", [text for _, text in texts])
    out.note("chat_user", CHAT_USER)
    out.note("chat_system", CHAT_SYSTEM)
    out.note("types", ["f16", "q4_k_m"])
    out.note("few", FEW)
    out.note("greedy", GREEDY)
    texts = [(n, Special(t) if n == "chat" else t) for n, t in texts]
    exact = ask(program, files["q4_k_m-f32"], texts, GREEDY)
    ids_of = {n: np.argsort(-exact[n][1], kind="stable")[:K].astype(np.int32) for n in names}
    native_kl = []
    for t in ("f16", "q4_k_m"):
        native = ask(program, files[t], texts, 1)
        each = {n: kl(exact[n][1], native[n][1], ids_of[n]) for n in names}
        native_kl.append(float(np.mean(list(each.values()))))
        print(f"gemma {t}: llama.cpp's mean KL {native_kl[-1]:.3g}, worst {max(each.values()):.3g}", flush=True)
    out.f64("logsumexp.f32", np.array([log_sum_exp(exact[n][1]) for n in names]))
    for n in names:
        tokens, logits, greedy, margin = exact[n]
        out.i32(f"tokens.{n}", tokens)
        out.i32(f"ids.{n}", ids_of[n])
        out.f32(f"logits.f32.{n}", logits[ids_of[n]])
        out.i32(f"greedy.f32.{n}", greedy)
        out.f32(f"margin.f32.{n}", margin)
    out.note("hard", HARD)
    out.note("conversations", [json.dumps(c) for c in CONVERSATIONS])
    asked = [(f"hard.{i}", text) for i, text in enumerate(HARD)]
    asked += [(f"chat.{i}", Special(gemma_chat(llama, c))) for i, c in enumerate(CONVERSATIONS)]
    for name, (tokens, _, _, _) in ask(program, files["q4_k_m"], asked, 1).items():
        out.i32(name, tokens)
    out.note("native_kl", native_kl)
    out.note("sha256", [sha256(files[t]) for t in ("f16", "q4_k_m")])
    out.write()


def first_apart(reference, other, margin):
    """The reference's margin where two greedy texts part; None if they do not."""
    for i, (a, b) in enumerate(zip(reference, other)):
        if a != b:
            return float(margin[i])
    return None


def random_models(program, models, llama_version):
    out = Golden("random_logits.gguf", "python tools/oracle/smollm2_logits.py LLAMA_DIR MODELS_DIR", llama_cpp=llama_version)
    prompts = [p for p in PROMPTS if p[0] in ("english", "emoji")]
    out.note("types", RANDOM)
    out.note("prompts", [name for name, _ in prompts])
    out.note("texts", [text for _, text in prompts])
    for t in RANDOM:
        answers = ask(program, reference_of(models, f"random-{t}"), prompts, 1)
        native = ask(program, os.path.join(models, f"random-{t}.gguf"), prompts, 1)
        every = np.arange(len(answers["english"][1]))
        print(f"random {t}: llama.cpp's mean KL", np.mean([kl(answers[n][1], native[n][1], every) for n in answers]))
        for name, (tokens, logits, _, _) in answers.items():
            if t == RANDOM[0]:
                out.i32(f"tokens.{name}", tokens)
            out.f32(f"logits.{t}.{name}", logits)
    out.note("sha256", [sha256(os.path.join(models, f"random-{t}.gguf")) for t in RANDOM])
    out.write()


def rope_models(program, models, llama_version):
    out = Golden("rope_logits.gguf", "python tools/oracle/smollm2_logits.py LLAMA_DIR MODELS_DIR rope", llama_cpp=llama_version)
    variants = runpy.run_path(TOOL)["ROPE"]
    subprocess.run([sys.executable, TOOL, "-", models, "rope"], check=True)
    ids = np.random.PCG64(11).random_raw(max(ROPE_LENGTHS)) >> np.uint64(56)
    prompts = [(n, ids[:n].astype(np.int32)) for n in ROPE_LENGTHS]
    out.note("variants", list(variants))
    out.note("lengths", ROPE_LENGTHS)
    for n, tokens in prompts:
        out.i32(f"tokens.{n}", tokens)
    plain = {}
    for variant in variants:
        of, *betas = ROPE_ASK.get(variant, (variant,))
        answers = ask(program, os.path.join(models, f"rope-{of}.gguf"), prompts, 1, *betas)
        plain = plain or answers
        every = np.arange(len(answers[1][1]))
        print(f"rope {variant}: KL from plain", *[f"{kl(plain[n][1], answers[n][1], every):.3g}" for n in ROPE_LENGTHS])
        for n in ROPE_LENGTHS:
            out.f32(f"logits.{variant}.{n}", answers[n][1])
    out.write()


MAKERS = {"gemma": gemma, "random": random_models, "rope": rope_models, "smollm2": smollm2}


def version_of(llama):
    with open(os.path.join(llama, "src/llama_cpp/__init__.py")) as f:
        return "llama-cpp-python " + f.read().split('__version__ = "')[1].split('"')[0]


def main():
    if len(sys.argv) < 3 or not set(sys.argv[3:]) <= set(MAKERS):
        sys.exit(f"usage: smollm2_logits.py LLAMA_DIR MODELS_DIR [{'|'.join(MAKERS)} ...]")
    llama, models = sys.argv[1:3]
    program = build(llama)
    for name in sys.argv[3:] or MAKERS:
        MAKERS[name](program, models, version_of(llama))


if __name__ == "__main__":
    main()
