#!/usr/bin/env python3
"""weir data and weir bench data through the command line: the corpora of ../shared/cases, what the shards hold as Python reads them,
the verdicts on bad records, resuming after kill -9, the messages and exit codes."""
import gzip
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
WEIR = os.environ.get("WEIR", str(ROOT / "weir"))
CORPORA = ROOT.parent / "shared/cases/corpora"
VOCAB = ROOT.parent / "shared/data/vocab"
SLOW = os.environ.get("WEIR_VARIANT", "release") in ("asan", "tsan")
passed, failed, skips = 0, 0, []


def check(ok, what, *more):
    global passed, failed
    if ok:
        passed += 1
    else:
        failed += 1
        print(f"FAIL data.{what}", *more)


def weir(*args, data=b"", code=0, **env):
    r = subprocess.run([WEIR, *map(str, args)], input=data, capture_output=True, timeout=200, env={**os.environ, **env})
    check(r.returncode == code, f"exit code of weir {' '.join(map(str, args))}", r.returncode, r.stderr.decode()[-500:])
    return r


def report(*args, **more):
    out = weir(*args, "--json", **more).stdout
    try:
        return json.loads(out)
    except ValueError:
        check(False, f"JSON of weir {args}", out[:200])
        return {}


def unpack(folder, split):
    """The documents of a split as lists of ids, read with nothing of weir."""
    manifest = json.loads((folder / "manifest.json").read_text())
    docs, open_doc = [], []
    for s in manifest["shards"][split]:
        raw = (folder / s["file"]).read_bytes()
        magic, version, width = struct.unpack_from("<8sII", raw)
        vocab, n_tok, n_docs, at, size, _, _, _, continues = struct.unpack_from("<9Q", raw, 16)
        check(magic == b"WEIRTOK\n" and version == 1 and size == len(raw) and vocab == manifest["vocab"], "header", s["file"])
        check(width == (2 if vocab <= 65536 else 4) and n_tok == s["tokens"], "width and counts", s["file"])
        ids = struct.unpack_from(f"<{n_tok}{'H' if width == 2 else 'I'}", raw, 4096)
        begin = 0
        for i, end in enumerate(struct.unpack_from(f"<{n_docs}Q", raw, at)):
            open_doc += ids[begin:end]
            begin = end
            if not (continues and i == n_docs - 1):
                docs.append(open_doc)
                open_doc = []
        check(begin == n_tok, "the last document ends with the shard", s["file"])
    check(not open_doc, "every document ends", str(folder))
    return docs


def corpora(tmp):
    if not CORPORA.exists():
        skips.append("data.corpora: no ../shared/cases")
        return
    # F05, F06, F13: 97 documents, each there once, with one end token
    r = report("data", "build", CORPORA / "ids97.jsonl", "--tokenizer", "bytes", "--out", tmp / "ids97", "--val", "0.1")
    want = [json.loads(line)["text"].encode() for line in (CORPORA / "ids97.jsonl").open()]
    train, val = unpack(tmp / "ids97", "train"), unpack(tmp / "ids97", "val")
    check(r.get("docs") == len(train) and r.get("val_docs") == len(val) and 8 <= len(val) <= 11, "ids97: split", len(train), len(val))
    for d in train + val:
        check(d.count(256) == 1 and d[-1] == 256, "ids97: exactly one end token, at the end")
    check(sorted(bytes(d[:-1]) for d in train + val) == sorted(want), "ids97: every document once")
    check([bytes(d[:-1]) for d in train] == [w for w in want if list(w) + [256] in train], "ids97: in order")
    # G03: the verdict on each line
    lines = json.loads((CORPORA / "manifest.json").read_text())["mixed_bad.jsonl"]["lines"]
    r = report("data", "build", CORPORA / "mixed_bad.jsonl", "--tokenizer", "bytes", "--out", tmp / "mixed", "--max-bad", "100%")
    bad = {int(b["where"].split(":")[-2]): b for b in r.get("bad_records", [])}
    for row in lines:
        if row["good"] == "yes":
            check(row["line"] not in bad, f"mixed_bad: line {row['line']} is good: {row['what']}", bad.get(row["line"]))
        if row["good"] == "no":
            check(row["line"] in bad, f"mixed_bad: line {row['line']} is bad: {row['what']}")
    check(sorted(bad) == [2, 3, 4, 5, 6, 7, 11, 12, 14, 15, 17] and r.get("bad") == 11 and r.get("empty") == 1, "mixed_bad: the list", sorted(bad))
    texts = [bytes(d[:-1]) for d in unpack(tmp / "mixed", "train")]
    check(texts[:3] == [b"first good", b"   ", b"nul \0 inside"] and len(texts) == 7 and texts[3] == b"x" * 2000000 and
          texts[4].startswith("é".encode()) and texts[5:] == [b"crlf end", b"last, no newline"], "mixed_bad: the texts", len(texts))
    e = weir("data", "build", CORPORA / "mixed_bad.jsonl", "--tokenizer", "bytes", "--out", tmp / "strict", "--strict", code=3)
    check(b"mixed_bad.jsonl:2:13:" in e.stderr, "mixed_bad: strict names the place", e.stderr)
    e = weir("data", "build", CORPORA / "mixed_bad.jsonl", "--tokenizer", "bytes", "--out", tmp / "share", code=3)
    check(b"11 of 19 records" in e.stderr and b":17:1:" in e.stderr, "mixed_bad: the share is limited", e.stderr)
    # G05
    for name in "empty.jsonl", "newlines.jsonl":
        e = weir("data", "build", CORPORA / name, "--tokenizer", "bytes", "--out", tmp / "none", code=3)
        check(b"no text" in e.stderr and not (tmp / "none/manifest.json").exists(), name, e.stderr)
    r = report("data", "build", CORPORA / "ids97.jsonl", "--tokenizer", "bytes", "--out", tmp / "few", "--val", "0.1%")
    check("validation split is empty" in r.get("note", ""), "an empty validation split is named", r)
    r = report("data", "build", CORPORA / "one_line_4mb.txt", "--tokenizer", "bytes", "--out", tmp / "line")
    check(r.get("tokens", 0) + r.get("val_tokens", 0) == 4200002, "one_line_4mb", r)


def special_tokens(tmp):
    """B02: BOS and EOS as the vocabulary has them, once a document, never out of the text."""
    docs = ["one", "<s>two</s>", "<|begin_of_text|>three<|end_of_text|>", "<|endoftext|>four", ""]
    (tmp / "b02.jsonl").write_text("".join(json.dumps({"text": d}) + "\n" for d in docs))
    for name in "ggml-vocab-llama-spm.gguf", "ggml-vocab-llama-bpe.gguf", "ggml-vocab-gpt-2.gguf":
        if not (VOCAB / name).exists():
            skips.append(f"data.special_tokens: no {name}")
            continue
        folder = tmp / f"b02-{name}"
        weir("data", "build", tmp / "b02.jsonl", "--tokenizer", VOCAB / name, "--out", folder, "--val", 0)
        got = unpack(folder, "train")
        bos, eos = {"ggml-vocab-llama-spm.gguf": (1, 2), "ggml-vocab-llama-bpe.gguf": (128000, 128001),
                    "ggml-vocab-gpt-2.gguf": (None, 50256)}[name]
        check(len(got) == 4, f"{name}: empty documents are none", len(got))
        for d, text in zip(got, docs):
            plain = json.loads(weir("tokenize", VOCAB / name, "--no-special", "--json", data=text.encode()).stdout)["tokens"]
            want = ([bos] if bos is not None else []) + plain + [eos]
            check(d == want, f"{name}: '{text}'", d, want)


def inputs(tmp):
    random.seed(1)
    words = "the water under a stone weir runs é 42 slowly.".split()
    make = lambda n: "".join(random.choice(words) + random.choice("   \n") for _ in range(n))
    folder = tmp / "in"
    (folder / "b").mkdir(parents=True)
    (folder / "a.txt").write_text(make(100))
    (folder / "b/c.txt").write_text(make(50))
    (folder / "b.jsonl").write_text("\n".join(json.dumps({"text": make(20)}) for _ in range(30)))
    (folder / "z.gz").write_bytes(gzip.compress(make(40).encode()) + gzip.compress(make(40).encode()))
    (folder / ".hidden").write_text("no")
    (folder / "picture.png").write_bytes(b"\x89PNG\0\0\0")
    os.symlink(folder, folder / "b/circle")
    r = report("data", "build", folder, "--tokenizer", "bytes", "--out", tmp / "in1", "--val", 0, "--threads", 1)
    check(r.get("docs") == 33 and r.get("binary_files") == 1, "a folder: its texts", r)
    r = report("data", "build", folder, "--tokenizer", "bytes", "--out", tmp / "in4", "--val", 0, "--threads", 4)
    same = all((tmp / "in1" / f.name).read_bytes() == f.read_bytes() for f in (tmp / "in4").iterdir())
    check(same, "any number of threads: the same bytes")
    inside = folder / "shards"  # the folder that is built is inside the one that is read: twice the same
    before = report("data", "build", folder, "--tokenizer", "bytes", "--out", inside, "--val", 0)
    after = report("data", "build", folder, "--tokenizer", "bytes", "--out", inside, "--val", 0)
    check(before.get("tokens") == after.get("tokens") == r.get("tokens") == after.get("resumed_tokens"), "shards inside the folder", after)
    r = report("data", "build", "-", "--tokenizer", "bytes", "--out", tmp / "std", data=make(5000).encode())
    check(r.get("val_tokens", 0) > 0, "standard input: its last part is validation", r)
    lines = "".join(json.dumps({"body": make(3), "n": i}) + "\n" for i in range(50)).encode()
    r = report("data", "build", "-", "--jsonl", "--field", "body", "--tokenizer", "bytes", "--out", tmp / "std2", data=lines)
    check(r.get("docs", 0) + r.get("val_docs", 0) == 50, "standard input: JSONL", r)
    e = weir("data", "build", "-", "--jsonl", "--tokenizer", "bytes", "--out", tmp / "std3", data=lines, code=3)
    check(b"standard input:1:1: the field is missing" in e.stderr, "standard input: a bad line has a name", e.stderr)
    (tmp / "cut.gz").write_bytes(gzip.compress(make(4000).encode())[:-20])
    e = weir("data", "build", tmp / "cut.gz", "--tokenizer", "bytes", "--out", tmp / "cut", code=3)
    check(b"cut.gz: ends in the middle" in e.stderr, "a gzip file that is cut short", e.stderr)
    raw = b"caf\xe9 \0 \xff\xfe end\n" * 300
    (tmp / "latin1.txt").write_bytes(raw)
    r = report("data", "build", tmp / "latin1.txt", "--tokenizer", "bytes", "--out", tmp / "latin1", "--val", 0)
    check(r.get("nul") == 300 and r.get("not_utf8") == 1 and bytes(unpack(tmp / "latin1", "train")[0][:-1]) == raw, "bytes pass", r)


def vocabulary(path, n):
    """A tokenizer.json of the 256 bytes, names that nobody uses, the end of text, and LASTONE as its last id."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = plain + [256 + i for i in range(256 - len(plain))]
    vocab = {chr(c): i for i, c in enumerate(names)} | {f"<pad{i}>": i for i in range(256, n - 2)}
    flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False)
    added = [{"id": n - 2, "content": "<|endoftext|>", "special": True, **flags},
             {"id": n - 1, "content": "LASTONE", "special": False, **flags}]
    path.write_text(json.dumps({
        "version": "1.0", "added_tokens": added, "normalizer": None, "post_processor": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "unk_token": None, "byte_fallback": False, "vocab": vocab, "merges": []}}))


def widths(tmp):
    """G07: vocabularies around 65,536 and text with their last id; a document of 70,000 tokens."""
    (tmp / "last.txt").write_text("x LASTONE yLASTONE")
    for n in 65535, 65536, 65537:
        vocabulary(tmp / "v.json", n)
        r = report("data", "build", tmp / "last.txt", "--tokenizer", tmp / "v.json", "--out", tmp / f"w{n}", "--val", 0)
        d = unpack(tmp / f"w{n}", "train")
        check(len(d) == 1 and d[0].count(n - 1) == 2 and d[0][-1] == n - 2 and len(d[0]) == 7, f"vocabulary of {n}", d)
        check(r.get("token_bytes") == (4 if n > 65536 else 2), f"vocabulary of {n}: width", r)
    (tmp / "long.txt").write_bytes(b"w" * 70000)
    weir("data", "build", tmp / "long.txt", "--tokenizer", "bytes", "--out", tmp / "long", "--val", 0)
    d = unpack(tmp / "long", "train")
    check(len(d) == 1 and d[0] == [119] * 70000 + [256], "a document of 70,000 tokens")


def check_and_stats(tmp):
    text = "".join(f"{i} bottles\n" for i in range(5000))
    (tmp / "t.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in text.split("\n")[:-1]))
    folder = tmp / "cs"
    weir("data", "build", tmp / "t.jsonl", "--tokenizer", "bytes", "--out", folder)
    r, s = report("data", "check", folder), report("data", "stats", folder)
    docs = unpack(folder, "train") + unpack(folder, "val")
    counts = {}
    for d in docs:
        for i in d:
            counts[i] = counts.get(i, 0) + 1
    check(r.get("docs", 0) + r.get("val_docs", 0) == 5000 == len(docs), "check: documents", r)
    check(s["unused"] == 257 - len(counts), "stats: unused ids", s["unused"])
    check({f["id"]: f["count"] for f in s["frequent"]} == counts, "stats: how often each id occurs")
    check(s["doc_tokens"]["least"] == min(map(len, docs)) and s["doc_tokens"]["most"] == max(map(len, docs)), "stats: lengths")
    check(sum(s["doc_tokens"]["by_power_of_2"]) == 5000, "stats: histogram")
    text = weir("data", "stats", folder).stdout.decode()
    check("█" in text and "do not occur" in text, "stats: pictures", text)
    shard = folder / "train-00000.bin"
    good = shard.read_bytes()
    for at, says in ((100, b"checksum"), (5000, b"checksum"), (len(good) - 3, b"checksum")):
        bad = bytearray(good)
        bad[at] ^= 1
        shard.write_bytes(bad)
        e = weir("data", "check", folder, code=3)
        check(says in e.stderr and b"train-00000.bin" in e.stderr, f"check: a bit at {at}", e.stderr)
    shard.write_bytes(good[:-8])
    e = weir("data", "check", folder, code=3)
    check(b"cut short" in e.stderr, "check: cut short", e.stderr)
    shard.unlink()
    e = weir("data", "check", folder, code=1)
    check(b"train-00000.bin" in e.stderr, "check: a shard is missing", e.stderr)
    shard.write_bytes(good)
    (folder / "tokenizer.gguf").unlink()
    weir("data", "check", folder, code=1)
    e = weir("data", "check", tmp, code=1)
    check(b"manifest.json" in e.stderr, "check: no folder of shards", e.stderr)


def usage(tmp):
    for args, says in ((["build"], b"which text"), (["build", "x"], b"--tokenizer"), (["build", "x", "--tokenizer", "bytes"], b"--out"),
                       (["mend"], b"none of build"), (["check"], b"one folder"),
                       (["build", "x", "--tokenizer", "bytes", "--out", "y", "--val", "2"], b"--val"),
                       (["build", "x", "--tokenizer", "bytes", "--out", "y", "--max-bad", "lots"], b"--max-bad")):
        e = weir("data", *args, code=2)
        check(says in e.stderr, f"usage: {args}", e.stderr)
    e = weir("data", "build", tmp / "nowhere", "--tokenizer", "bytes", "--out", tmp / "y", code=1)
    check(b"nowhere" in e.stderr, "usage: a file that is not there", e.stderr)
    (tmp / "nothing").mkdir()
    e = weir("data", "build", tmp / "nothing", "--tokenizer", "bytes", "--out", tmp / "y", code=2)
    check(b"no text file" in e.stderr, "usage: an empty folder", e.stderr)


def listens(p, sig):
    """has the program come to where it handles the signal?"""
    with open("/proc/%d/status" % p.pid) as f:
        return any(int(line.split()[1], 16) >> (sig - 1) & 1 for line in f if line.startswith("SigCgt"))


def killed(tmp):
    """kill -9 and SIGINT at some moments, then the same command: the bytes of an undisturbed build."""
    random.seed(2)
    (tmp / "k.txt").write_text(" ".join(random.choice(["alpha", "beta", "gamma", "delta"]) for _ in range(600000)))
    args = ["data", "build", tmp / "k.txt", "--tokenizer", "bytes", "--shard-size", "300k", "--out"]
    begin = time.time()
    weir(*args, tmp / "k0")
    took = time.time() - begin
    stopped = 0
    for i, sig in enumerate([signal.SIGKILL, signal.SIGINT, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL]):
        p = subprocess.Popen([WEIR, *map(str, args), str(tmp / "k1")], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while sig != signal.SIGKILL and p.poll() is None and not listens(p, sig):
            time.sleep(0.002)
        time.sleep(took * random.uniform(0.1, 0.7))
        p.send_signal(sig)
        err = p.communicate(timeout=60)[1]
        check(p.returncode in (0, {signal.SIGKILL: -9, signal.SIGINT: 130, signal.SIGTERM: 143}[sig]), f"killed by {sig}", p.returncode, err)
        stopped += p.returncode != 0
    weir(*args, tmp / "k1")
    a, b = sorted(f.name for f in (tmp / "k0").iterdir()), sorted(f.name for f in (tmp / "k1").iterdir())
    check(a == b, "killed: the same files", a, b)
    check(all((tmp / "k0" / f).read_bytes() == (tmp / "k1" / f).read_bytes() for f in a), "killed: the same bytes")
    if not stopped:
        skips.append("data.killed: every build was done before it was killed")
    e = weir("data", "build", tmp / "in/a.txt", "--tokenizer", "bytes", "--out", tmp / "k1", code=2)
    check(b"other text or options" in e.stderr, "another build in the same folder", e.stderr)


def bench(tmp):
    rows = {r["name"]: r for r in json.loads(weir("bench", "data", tmp / "k0", "--reps", 2, "--json", WEIR_TORCH="").stdout)}
    check(set(rows) == {"weir: views", "weir: widened", "naive"}, "bench: rows", list(rows))
    want = 0
    for shard in sorted((tmp / "k0").glob("train-*.bin")):
        raw = shard.read_bytes()
        n = struct.unpack_from("<Q", raw, 24)[0]
        ids = struct.unpack_from(f"<{n}H", raw, 4096)
        want += 2 * sum(ids) - ids[0] - ids[-1]  # each is an input and a target, but for the ends of a shard
    check({r["sum"] for r in rows.values()} == {want}, "bench: every row received every token", rows, want)
    check(rows["weir: views"]["copied_per_tok"] == 0 and 16 <= rows["weir: widened"]["copied_per_tok"] < 17, "bench: bytes copied")
    check(rows["naive"]["copied_per_tok"] > 50, "bench: what the usual pipeline copies")


def main():
    tmp = pathlib.Path(tempfile.mkdtemp(prefix="weir-data-"))
    try:
        for part in (corpora, special_tokens, inputs, widths, check_and_stats, usage, killed, bench):
            part(tmp)
    finally:
        shutil.rmtree(tmp)
    for s in skips:
        print("SKIP", s)
    print(f"data-cli: {passed} passed, {failed} failed, {len(skips)} skipped")
    return failed != 0


sys.exit(main())
