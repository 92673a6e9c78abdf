#!/usr/bin/env python3
"""tokenizer_hf: weir tokenizer train, on the command line, and what it wrote in Hugging Face's own library.

Always: the reports, that threads change nothing, that .json and .gguf give the same ids, refusals and their exit codes. Where the
library `tokenizers` is installed (pip install tokenizers; else counted as skipped): it loads the tokenizer.json, gives equal ids on
text of many scripts, decodes them back, and its own trainer makes the same vocabulary.
"""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
WEIR = os.environ.get("WEIR", os.path.join(os.path.dirname(HERE), "weir"))
PRES = {"gpt-2": 1200, "llama-bpe": 900, "qwen2": 700, "smollm": 700}
passed = failed = skipped = 0


def check(name, good, note=""):
    global passed, failed
    if good:
        passed += 1
    else:
        failed += 1
        print("FAIL tokenizer_hf.%s: %s" % (name, note))
    return good


def skip(name, why):
    global skipped
    skipped += 1
    print("SKIP tokenizer_hf.%s: %s" % (name, why))


def weir(*args, text=b""):
    return subprocess.run([WEIR, *args], input=text, capture_output=True, timeout=60)


def texts():
    """The texts of golden/vocab.txt: edge cases, and random ones of many scripts."""
    out = []
    for line in open(os.path.join(HERE, "golden", "vocab.txt"), encoding="ascii"):
        if line.startswith("text "):
            out.append(bytes.fromhex(line[5:].strip().strip("-")).decode("utf-8"))
    return out


def ids_of(tokenizer, text):
    done = weir("tokenize", tokenizer, "--json", "--no-special", text=text.encode())
    return json.loads(done.stdout)["tokens"] if done.returncode == 0 else done.stderr


def train(folder, pre, vocab, text):
    """A tokenizer.json trained by the program; checks what it says."""
    out = os.path.join(folder, pre + ".json")
    done = weir("tokenizer", "train", "-", "--vocab", str(vocab), "--pre", pre, "--out", out, "--json", text=text.encode())
    if not check("train_" + pre, done.returncode == 0, done.stderr):
        return None
    report = json.loads(done.stdout)
    check("report_" + pre, report["vocab"] == vocab and report["bytes"] == len(text.encode()) and report["docs"] == 1
          and report["out"] == out and 0 < report["tokens_per_byte"] < 1, report)
    check("count_" + pre, report["tokens"] == len(ids_of(out, text)), "the report's tokens are not those of the text")
    return out


def same_whatever_the_threads(folder, text):
    path = os.path.join(folder, "in.txt")
    open(path, "w", encoding="utf-8", newline="").write(text)
    files = []
    for threads in "1", "2", "3":
        out = os.path.join(folder, "threads-%s.json" % threads)
        weir("tokenizer", "train", path, "--vocab", "1000", "--threads", threads, "--out", out)
        files.append(open(out, "rb").read())
    check("threads", files[0] == files[1] == files[2] and len(files[0]) > 10000, "another file with other threads")
    stored = os.path.join(folder, "threads.gguf")
    check("gguf", weir("tokenizer", "train", path, "--vocab", "1000", "--out", stored).returncode == 0)
    check("gguf_ids", ids_of(stored, text) == ids_of(out, text), "other ids from .gguf")


def jsonl(folder, text):
    path = os.path.join(folder, "in.jsonl")
    with open(path, "w", encoding="utf-8") as f:
        for i in range(200):
            f.write(json.dumps({"body": text[i:i + 400]}) + "\n")
        f.write("{broken\n")
    out = os.path.join(folder, "jsonl.json")
    done = weir("tokenizer", "train", path, "--field", "body", "--vocab", "600", "--out", out, "--json")
    check("jsonl", done.returncode == 0 and json.loads(done.stdout)["bad"] == 1, done.stderr)
    done = weir("tokenizer", "train", path, "--field", "body", "--strict", "--vocab", "600", "--out", out)
    check("jsonl_strict", done.returncode == 3 and b"in.jsonl" in done.stderr, done.stderr)


def refusals(folder):
    text = os.path.join(folder, "in.txt")
    for name, args, code, says in [
            ("no_out", [text], 2, b"--out"),
            ("ending", [text, "--out", folder + "/x.txt"], 2, b".json"),
            ("small", [text, "--vocab", "256", "--out", folder + "/x.json"], 2, b"257"),
            ("pre", [text, "--pre", "nonesuch", "--out", folder + "/x.json"], 2, b"llama-bpe"),
            ("no_file", [folder + "/none", "--out", folder + "/x.json"], 1, b"none"),
            ("no_folder", [text, "--out", folder + "/none/x.json"], 1, b"none")]:
        done = weir("tokenizer", "train", *args)
        check("refuses_" + name, done.returncode == code and says in done.stderr, (done.returncode, done.stderr))
    check("refuses_word", weir("tokenizer", "trian", text).returncode == 2)
    check("nothing_left", not os.path.exists(folder + "/x.json"))


def in_the_library(tokenizers, pre, path, text):
    tok = tokenizers.Tokenizer.from_file(path)
    ids = tok.encode(text, add_special_tokens=False).ids
    check("library_ids_" + pre, ids == ids_of(path, text), "the library gives other ids")
    check("library_text_" + pre, tok.decode(ids, skip_special_tokens=False) == text, "the library decodes to other text")
    own = tokenizers.Tokenizer(tokenizers.models.BPE())
    own.pre_tokenizer = tok.pre_tokenizer
    own.train_from_iterator([text], tokenizers.trainers.BpeTrainer(
        vocab_size=PRES[pre], min_frequency=2, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    mine, theirs = json.loads(tok.to_str())["model"], json.loads(own.to_str())["model"]
    check("library_vocab_" + pre, mine["vocab"] == theirs["vocab"] and mine["merges"] == theirs["merges"],
          "the library's trainer makes another vocabulary")


def main():
    # without the special token, which the library finds in any text and weir does not
    text = "\n".join(t for t in texts() if "<|endoftext|>" not in t) * 2
    with tempfile.TemporaryDirectory() as folder:
        paths = {pre: train(folder, pre, vocab, text) for pre, vocab in PRES.items()}
        same_whatever_the_threads(folder, text)
        jsonl(folder, text)
        refusals(folder)
        try:
            import tokenizers
        except ImportError:
            for pre in PRES:
                skip("library_" + pre, "tokenizers is not installed")
        else:
            for pre, path in paths.items():
                if path:
                    in_the_library(tokenizers, pre, path, text)
    print("tokenizer_hf: %d passed, %d failed, %d skipped" % (passed, failed, skipped))
    return failed != 0


sys.exit(main())
