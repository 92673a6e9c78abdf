#!/usr/bin/env python3
"""weir eval: perplexity as transformers (in double) and llama.cpp have it (tests/golden/eval.json), as this file works it out of `weir logits`, and as
the trainer has it; schemes, refusals, progress, signals."""
import fcntl, hashlib, json, math, os, pty, re, signal, struct, subprocess, sys, termios, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import harness
from harness import SAN, SECONDS, SHARED, TMP, WEIR, check, refused, run

RANDOM, SMALL = SHARED + "/cases/models/random.gguf", SHARED + "/cases/corpora/train_small.txt"
TINY, TEXT = "tests/golden/tiny_%s.gguf", "LICENSE"
LLAMA = TINY % "llama"


def evaluate(model, data, *args, **more):
    r = run("eval", model, "--data", data, "--json", *args, **more)
    check(r.rc == 0 and not r.err, "%r" % r)
    return (r.json() if r.rc == 0 else None) or {}


def near(a, b, most, what):
    return check(a is not None and abs(a - b) <= most, "%s: %s, wanted %s, which is %s away" % (what, a, b, abs((a or 0) - b)))


def as_others_have_it():
    """GPT-2 is 1e-4 from llama.cpp, whose GELU is a table in F16; both are as near to transformers as FP32 is"""
    golden = json.load(open("tests/golden/eval.json"))
    check(hashlib.sha256(open(TEXT, "rb").read()).hexdigest() == golden["sha256"], "%s is not the text of tests/golden/eval.json" % TEXT)
    for c in golden["cases"]:
        stride = ["--stride", c["stride"]] if c["stride"] else []
        ctx = [] if c["ctx"] == 64 else ["--ctx", c["ctx"]]  # 64: less than 512, since the models have learned no more
        r = evaluate("tests/golden/" + c["model"], TEXT, "--kv", "f32", *ctx, *stride)
        what = "%s, ctx %d, stride %d" % (c["model"], c["ctx"], c["stride"])
        check([r.get(k) for k in ("ctx", "stride", "windows", "tokens", "text_tokens", "bos")] ==
              [c["ctx"], c["stride"], c["windows"], c["tokens"], golden["text_tokens"], False], "%s: %s" % (what, r))
        for key in ("nll", "nll_error"):
            near(r.get(key), c["transformers"][key], 1e-6, "%s: %s, transformers" % (what, key))
            if "llama_cpp" in c:
                near(r.get(key), c["llama_cpp"][key], 4e-4 if "gpt2" in c["model"] else 2e-7, "%s: %s, llama.cpp" % (what, key))
        near(r.get("perplexity"), math.exp(r.get("nll", 0)), 1e-9 * r.get("perplexity", 0), "perplexity")
        near(r.get("perplexity_error"), math.exp(r.get("nll", 0)) * r.get("nll_error", 0), 1e-9 * r.get("perplexity", 0), "its error")
        check(r.get("scheme") == ("sliding" if stride else "llama-perplexity"), "the scheme is not said: %s" % r)


def with_bos():
    """BOS in front of the text and in the place of each window's first token: the loss from `weir logits`, worked out here"""
    text = open(SMALL, "rb").read(400)
    ids = [int(i) for i in run("tokenize", RANDOM, stdin=text).out.split()]
    check(ids[0] == 1, "random.gguf has no BOS")
    for ctx, stride in ((64, 0), (50, 0), (40, 17)):
        x = []
        for at in range(0, len(ids) - ctx + 1, stride or ctx):
            window = [1] + ids[at + 1:at + ctx]
            r = run("logits", RANDOM, "--kv", "f32", "--all", "--json", "--tokens", ",".join(map(str, window))).json() or {}
            for p in range(ctx - 1 - stride if stride else ctx // 2, ctx - 1):
                l = r["positions"][p]["logits"]
                x.append(max(l) + math.log(math.fsum(math.exp(v - max(l)) for v in l)) - l[window[p + 1]])
        r = evaluate(RANDOM, "-", "--ctx", ctx, "--kv", "f32", *(["--stride", stride] if stride else []), stdin=text)
        mean = math.fsum(x) / len(x)
        check(r.get("tokens") == len(x) and r.get("bos") is True and r.get("text_tokens") == len(ids), "ctx %d: %s" % (ctx, r))
        near(r.get("nll"), mean, 1e-9, "ctx %d, stride %d: nll" % (ctx, stride))
        near(r.get("nll_error"), math.sqrt(math.fsum((v - mean) ** 2 for v in x) / len(x) / (len(x) - 1)), 1e-9, "its error")


def same_bits():
    """threads, packing, mapping, a file or standard input, one newline at the end: nothing of it changes a bit"""
    text = open(SMALL, "rb").read(5000)
    path = TMP + "/text"
    open(path, "wb").write(text)

    def nll(*args, data=path, **more):
        return [evaluate(LLAMA, data, *args, **more).get(k) for k in ("nll", "nll_error", "tokens")]

    want = nll("-T", "2")
    for got in (nll("-T", "1"), nll("-T", "3"), nll("--no-mmap"), nll(data="-", stdin=text), nll(data="-", stdin=text.rstrip(b"\n") + b"\n")):
        check(got == want, "%s is not %s" % (got, want))
    plain = nll("--no-pack")
    near(plain[0], want[0], 1e-6, "packed and plain weights")


def as_the_trainer():
    """a run's validation loss: windows of ctx + 1 tokens, every ctx, whose last ctx tokens count; the run is the model"""
    text = re.sub(rb"[^ -~\n]", b"", open(SMALL, "rb").read())[:24000]
    source, shards, out = TMP + "/source.txt", TMP + "/shards", TMP + "/run"
    open(source, "wb").write(text)
    check(run("data", "build", source, "--tokenizer", "bytes", "--val", "0.2", "--out", shards).rc == 0, "data build")
    t = run("train", "--data", shards, "--out", out, "--layers", "2", "--width", "32", "--heads", "2", "--ff", "64", "--ctx", "32", "--steps", "30",
            "--lr", "3e-3", "--eval-every", "30", "--eval-batches", "0", "--sample-tok", "0", "--threads", "2", "--json", seconds=SECONDS * 12)
    check(t.rc == 0, "%r" % t)
    steps = [json.loads(line) for line in open(out + "/metrics.jsonl")]
    want = [m["val_loss"] for m in steps if m.get("val_loss") is not None][-1]
    raw = open(shards + "/val-00000.bin", "rb").read()[4096:]
    n = raw.index(struct.pack("<H", 256)) // 2  # <|endoftext|> ends the one document
    held_out = bytes(raw[0:2 * n:2])
    check(held_out and held_out in text, "the held-out part is no part of the text")
    r = evaluate(out, "-", "--ctx", "33", "--stride", "32", "--kv", "f32", stdin=held_out + b"\n")
    # the trainer's last window also has the end of the text in it
    near(r.get("nll"), want, 0.01, "the trainer's validation loss (%d of %d tokens count)" % (r.get("tokens", 0), n))
    gguf = TMP + "/model.gguf"
    check(run("convert", out, "--out", gguf).rc == 0, "convert")
    check(evaluate(gguf, "-", "--ctx", "33", "--stride", "32", "--kv", "f32", stdin=held_out + b"\n").get("nll") == r.get("nll"), "a run and its GGUF")
    check(evaluate(out, source).get("ctx") == 32, "the default is the context that the run was trained with")


def refusals():
    two = ("592", "600")
    refused(run("eval", LLAMA, "--data", TEXT, "--ctx", "300"), 2, *two)
    refused(run("eval", LLAMA, "--data", TEXT, "--ctx", "300", "--stride", "10", "--json"), 2, *two)
    refused(run("eval", LLAMA, "--data", "-"), 2, "0 tokens", "128")
    refused(run("eval", LLAMA, "--data", "/nowhere/x"), 1, "/nowhere/x", "No such file")
    refused(run("eval", LLAMA, "--data", TMP), 1, TMP, "directory")
    refused(run("eval", LLAMA), 2, "--data")
    refused(run("eval", LLAMA, "--data", TEXT, "--stride", "64"), 2, "64", "63")
    refused(run("eval", LLAMA, "--data", TEXT, "--stride", "0"), 2, "--stride", "out of range")
    refused(run("eval", LLAMA, "--data", TEXT, "--ctx", "3"), 2, "--ctx", "out of range")
    refused(run("eval", TINY % "gpt2", "--data", TEXT, "--ctx", "66"), 2, "66", "64 positions")
    check(evaluate(TINY % "gpt2", TEXT, "--ctx", "65").get("windows") == 9, "a window may be one longer than the table of positions: its last token is not fed")
    refused(run("eval", LLAMA, "--data", TEXT, "--device", "null"), 3, "null")
    refused(run("eval", "/nowhere/m.gguf", "--data", TEXT), 1, "/nowhere/m.gguf")
    r = run("eval", LLAMA, "--data", TEXT, "--ctx", "128")
    check(r.rc == 0 and b"128" in r.err and b"64" in r.err and b"warning" in r.err, "longer than trained: %r" % r)


def not_a_number():
    """a weight that is NaN: a sentence, no figure"""
    data = bytearray(open(LLAMA, "rb").read())
    data[-4:] = struct.pack("<f", math.nan)
    path = TMP + "/nan.gguf"
    open(path, "wb").write(data)
    refused(run("eval", path, "--data", TEXT, "--json"), 1, "not finite")


def for_people():
    r = run("eval", LLAMA, "--data", TEXT, "--kv", "f32")
    check(r.rc == 0 and all(w in r.out for w in (b"perplexity 677.24", b"+/- 63.18", b"llama-perplexity's", b"9 chunks of 64", b"no BOS")), "%r" % r)
    r = run("eval", RANDOM, "--data", "-", "--ctx", "64", "--stride", "32", stdin=open(SMALL, "rb").read(2000))
    check(r.rc == 0 and b"sliding" in r.out and b"begins with BOS" in r.out, "%r" % r)
    main_fd, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    p = subprocess.Popen([WEIR, "eval", LLAMA, "--data", TEXT, "--ctx", "16"], stdout=subprocess.PIPE, stderr=side, env=dict(os.environ, TERM="xterm"))
    os.close(side)
    out, seen = p.stdout.read(), b""
    try:
        while chunk := os.read(main_fd, 4096):
            seen += chunk
    except OSError:
        pass
    check(p.wait() == 0 and b"after" in seen and b"%" in seen and b"perplexity" in out, "a bar on a terminal: %r, %r" % (seen, out))


def signals():
    """Ctrl-C: soon, with the estimate so far, no result"""
    path = TMP + "/long"
    open(path, "wb").write(open(SMALL, "rb").read() * 10)
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        p = subprocess.Popen([WEIR, "eval", LLAMA, "--data", path, "--ctx", "8", "--stride", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(2 if SAN else .5)
        sent = time.time()
        p.send_signal(number)
        out, err = p.communicate(timeout=SECONDS * 4)
        check(p.returncode == code and not out and time.time() - sent < SECONDS, "signal %d: exit %s, %r, %r" % (number, p.returncode, out, err))
        check(b"stopped: perplexity" in err, "no estimate: %r" % err)


harness.main("eval", [as_others_have_it, with_bos, same_bits, as_the_trainer, refusals, not_a_number, for_people, signals])
