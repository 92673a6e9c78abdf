#!/usr/bin/env python3
"""The command line as people and programs use it: hostile files, wrong words, signals, pipes, limits of memory and CPUs, exit codes,
JSON, streams. Small models whose next tokens are known; the real one only where a run must last."""
import fcntl, glob, json, os, re, select, shutil, signal, socket, subprocess, sys, tempfile, time
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import harness
from harness import SAN, SECONDS, SHARED, TMP, WEIR, Ran, check, refused, run, skip

GGUF, MODELS, VOCAB = SHARED + "/cases/gguf", SHARED + "/cases/models", SHARED + "/data/vocab"
SCRIPTED, RANDOM, CHATML = MODELS + "/scripted.gguf", MODELS + "/random.gguf", MODELS + "/scripted-chatml.gguf"
STORY = " alpha beta gamma:🙂世é end"
REAL = os.environ.get("WEIR_TEST_MODEL")


def controls(b):
    text = b.decode("utf-8", "surrogateescape")
    return [c for c in text if (c < " " and c not in "\n\t") or "\x7f" <= c <= "\x9f" or "\ud800" <= c <= "\udfff"]


def generate(model, prompt, *args, **more):
    """the object of `generate --json`"""
    r = run("generate", model, "-p", prompt, "--json", *args, **more)
    check(r.rc == 0 and not r.err, "%r" % r)
    return r.json() or {}


def hash_of(*args, model=RANDOM, **more):
    r = run("logits", model, "--tokens", "1,5,9,40,77,12,200", "--json", *args, **more)
    check(r.rc == 0, "%r" % r)
    return (r.json() or {}).get("hash") if r.rc == 0 else r


# ---------------------------------------------------------------------------------------------------------------- files

def crafted_files():
    """A00 A01 A02 A04 A05 A07 A08 A10: loading to generate; what `inspect` says of them is tests/gguf_cases.py"""
    words = {"A00": ("GGUF",), "A08": ("shorter than its header says", "need", "have")}
    for name, case in json.load(open(GGUF + "/manifest.json")).items():
        path = GGUF + "/" + name
        ways = [[], ["--no-mmap"]] if case["bug"] == "A08" else [[]]
        for way in ways:
            r = run("generate", path, "-p", "x", "-n", "1", *way, limit_kb=2000000, seconds=SECONDS)
            if case["expect"] == "reject":
                refused(r, 3, name, *words.get(case["bug"], ()))
                check(r.err.count(b"\n") == 1 and not controls(r.err), "one line: %r" % r)
            else:
                ok = (0,) if case["expect"] == "accept" else (0, 3)
                check(r.rc in ok and (r.rc == 0 or not r.out) and not controls(r.out), "%r" % r)
    for key, name in (("llama.block_count", "72_hp_block_count_4294967295"), ("llama.attention.head_count_kv", "77_hp_head_count_kv_0"),
                      ("nosucharch", "96_arch_unknown"), ("blk.0.attn_v.weight", "93_missing_tensor"), ("token_embd.weight", "27_dup_tensor")):
        refused(run("generate", "%s/%s.gguf" % (GGUF, name), "-p", "x", "-n", "1"), 3, key)
    bad = GGUF + "/53_trunc_data.gguf"
    for args in (["logits", bad, "--tokens", "1"], ["plan", bad, "--on", "h200"], ["tokenize", bad], ["bench", "model", bad],
                 ["generate", bad, "-p", "x", "--json"]):
        refused(run(*args), 3, "53_trunc_data.gguf")


def hostile_name():
    """A11: format specifiers and terminal escapes of a file, in every output that shows them"""
    path = GGUF + "/97_name_format_string.gguf"
    for args in (["inspect", path, "--meta", "--tensors"], ["inspect", path, "--json"], ["plan", path, "--on", "h200"],
                 ["plan", path, "--on", "h200", "--json"], ["generate", path, "-p", "x", "-n", "2", "--why"],
                 ["bench", "model", path, "--reps", "1", "-n", "2"]):
        r = run(*args)
        check(r.rc == 0 and not controls(r.out) and not controls(r.err), "%r" % r)
        if "--json" in args:
            r.json()
    r = run("inspect", path, "--json").json() or {}
    check(r.get("name", "").startswith("%s%s%n"), "the name in JSON: %r" % r.get("name"))
    evil = TMP + "/a\x1b[31m%s\n.gguf"
    shutil.copy(RANDOM, evil)
    for args in (["inspect", evil], ["inspect", evil, "--json"], ["plan", evil, "--on", "h200"], ["generate", evil, "-p", "x", "-n", "1"],
                 ["cache"], ["cache", "--json"], ["generate", evil + "\x1b]0;x\x07", "-p", "x"]):
        r = run(*args)
        check(not controls(r.out) and not controls(r.err), "a hostile file name: %r" % r)


def missing_files():
    refused(run("generate", "/nowhere/x.gguf", "-p", "x"), 1, "/nowhere/x.gguf", "No such file")
    refused(run("generate", TMP, "-p", "x"), 3, TMP, "folder")
    refused(run("generate", "/dev/null", "-p", "x"), 3, "/dev/null")
    refused(run("tokenize", "/nowhere/x.gguf"), 1, "/nowhere/x.gguf")
    refused(run("generate", SCRIPTED, "--prompt-file", TMP), 1, TMP, "directory")
    refused(run("generate", SCRIPTED, "--prompt-file", "/nowhere/p"), 1, "/nowhere/p")


# --------------------------------------------------------------------------------------------------------------- stream

def pieces(*args):
    """what each write to stdout held: a socket of packets keeps them apart"""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    p = subprocess.Popen([WEIR, *map(str, args)], stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.DEVNULL)
    theirs.close()
    ours.settimeout(SECONDS * 4)
    got = []
    while True:
        b = ours.recv(1 << 16)
        if not b:
            break
        got.append(b)
    ours.close()
    return p.wait(), got


def streams():
    """B06"""
    want = {"go": STORY, "bad": "\ufffd ok"}
    for prompt in ("go", "bad"):
        for n in list(range(1, 18)) if prompt == "go" else (1, 2, 3, 64):
            whole = generate(SCRIPTED, prompt, "-n", n)
            rc, got = pieces("generate", SCRIPTED, "-p", prompt, "-n", n)
            valid = True
            for g in got:
                try:
                    g.decode("utf-8")
                except UnicodeDecodeError:
                    valid = False
            check(rc == 0 and valid, "-n %d: a write ends inside a character: %r" % (n, got))
            check(b"".join(got) == (whole.get("text", "?") + "\n").encode(), "-n %d: streamed %r, whole %r" % (n, got, whole.get("text")))
            check(n >= 17 or len(whole.get("tokens", [])) <= n, "more than %d tokens" % n)
        check(whole.get("text") == want[prompt] and whole.get("finish") == "stop", "%s: %r" % (prompt, whole.get("text")))
    rc, got = pieces("generate", SCRIPTED, "-p", "go")
    check(len(got) > 6, "the text did not arrive in pieces: %r" % got)
    for seed in (1, 2, 3):  # random bytes
        args = ["-p", "x", "-n", "120", "--temp", "50", "--seed", seed, "--ignore-eos"]
        rc, got = pieces("generate", RANDOM, *args)
        whole = run("generate", RANDOM, *args, "--json").json() or {}
        try:
            all_valid = all(g.decode("utf-8") is not None for g in got)
        except UnicodeDecodeError:
            all_valid = False
        check(rc == 0 and all_valid and b"".join(got).decode("utf-8", "replace") == whole.get("text", "?") + "\n", "random bytes, seed %d" % seed)


def stops():
    """stop texts across tokens, several of them, near misses"""
    for stop, text in ((["beta gamma"], " alpha "), (["ta g"], " alpha be"), (["beta gamut"], STORY), (["🙂"], " alpha beta gamma:"),
                       (["zzz", "gam"], " alpha beta "), ([" alpha"], ""), (["</s>"], STORY), (["1", "2", "3", ":"], " alpha beta gamma"),
                       (["beta gamut", "a:🙂世é end!"], STORY)):
        args = [x for s in stop for x in ("--stop", s)]
        r = generate(SCRIPTED, "go", *args)
        check(r.get("text") == text and r.get("finish") == "stop", "%s: %r" % (stop, r.get("text")))
        rc, got = pieces("generate", SCRIPTED, "-p", "go", *args)
        check(b"".join(got) == (text + "\n").encode(), "%s streamed: %r" % (stop, got))
    refused(run("generate", SCRIPTED, "-p", "go", "--stop", ""), 2, "empty")
    refused(run("generate", SCRIPTED, "-p", "go", *["--stop", "zz"] * 17), 2, "--stop", "16")
    check("<|im_" not in generate(SCRIPTED, "say").get("text", "<|im_"), "control tokens in the text")


def round_trips():
    """B09: every block of the .inp files, whole, and token by token"""
    jobs = []

    def whole(model, block):
        ids = run("tokenize", model, stdin=block)
        back = run("tokenize", model, "--decode", stdin=ids.out)
        return model, block, ids.out.split(), ids.rc == 0 and back.rc == 0 and back.out == block, ids, back

    def one(model, token):
        return run("tokenize", model, "--decode", "--continues", stdin=token).out

    with ThreadPoolExecutor(2) as pool:
        # a process a token: few of the vocabularies that take long to open, tests/text.c has them all
        for vocab, most in (("gpt-2", 30), ("llama-bpe", 8), ("llama-spm", 200), ("qwen2", 8)):
            model = "%s/ggml-vocab-%s.gguf" % (VOCAB, vocab)
            if not os.path.exists(model):
                skip("round_trips." + vocab, "%s is not there" % model)
                continue
            blocks = open(model + ".inp", "rb").read().split(b"\n__ggml_vocab_test__\n")
            done = list(pool.map(lambda b: whole(model, b), blocks[::4] if SAN else blocks))
            for _, block, _, ok, ids, back in done:
                check(ok, "%s: %r comes back as %r (%r)" % (vocab, block[:80], back.out[:80], ids.err[-200:]))
            # the fewest blocks that show the most different tokens: pieces put together are the whole
            seen = {}
            for _, block, ids, _, _, _ in sorted(done, key=lambda d: -len(set(d[2]))):
                new = [i for i in set(ids) if i not in seen]
                if len(seen) + len(new) > (max(most // 4, 8) if SAN else most):
                    continue
                seen.update(zip(new, pool.map(lambda i: one(model, i), new)))
                text = b"".join(seen[i] for i in ids)
                lead = b" " if vocab == "llama-spm" and block else b""  # the prefix that encoding adds, which only the whole can drop
                check(text == lead + block, "%s token by token: %r is %r" % (vocab, block[:80], text[:80]))
            check(len(seen) > 5, "%s: no tokens looked at" % vocab)


# ------------------------------------------------------------------------------------------------------------- sampling

def greedy():
    """D01"""
    texts = {json.dumps(generate(SCRIPTED, "tie", "-n", "6", "--temp", "0", "--seed", s, "-T", 1 + s % 3)["tokens"]) for s in range(8)}
    check(len(texts) == 1 and "287" in list(texts)[0], "ties go several ways: %s" % texts)
    plain = generate(RANDOM, "hello there", "-n", "24")
    check(plain.get("seed") == 0, "greedy used a random number: seed %r" % plain.get("seed"))
    for args in (["--temp", "0", "--top-k", "5", "--top-p", "0.5", "--seed", "9"], ["--temp", "0", "--min-p", "0.9"]):
        check(generate(RANDOM, "hello there", "-n", "24", *args).get("tokens") == plain["tokens"], "temperature 0 with %s is not greedy" % args)
    ids = plain["prompt_tokens"] + plain["tokens"]
    r = run("logits", RANDOM, "--tokens", ",".join(map(str, ids)), "--all", "--top", "1", "--json").json() or {"positions": []}
    best = [p["top"][0]["id"] for p in r["positions"]]
    n = len(plain["prompt_tokens"])
    check(best[n - 1:-1] == plain["tokens"], "greedy is not the largest logit: %s, %s" % (best[n - 1:-1], plain["tokens"]))
    check(len(plain["tokens"]) == 24 or plain["finish"] == "stop", "%r" % plain)


def survivors():
    """D02"""
    for args in (["--top-p", "0"], ["--min-p", "1"], ["--top-k", "1"], ["--top-k", "1", "--top-p", "0", "--min-p", "1"], ["--temp", "1e-7"],
                 ["--temp", "100", "--top-k", "1"], ["--top-p", "1e-30"]):
        for seed in (1, 2):
            more = [] if "--temp" in args else ["--temp", "1"]
            text = generate(SCRIPTED, "dice dice dice", "-n", "8", "--seed", seed, *args, *more).get("text")
            check(text == " one dice" * 4, "%s: %r" % (args, text))
    for args in (["--top-k", "2147483647"], ["--repeat-last-n", "2147483647", "--repeat-penalty", "100"], ["--repeat-penalty", "0.000001"],
                 ["--temp", "100"]):
        r = generate(SCRIPTED, "dice", "-n", "8", "--temp", "1", *args)
        check(len(r.get("tokens", [])) == 8 or r.get("finish") == "stop", "%s: %r" % (args, r))


def ranges():
    """D03"""
    for flag, top in (("--temp", "100"), ("--top-k", "2147483647"), ("--top-p", "1"), ("--min-p", "1"), ("--repeat-penalty", "100"),
                      ("--repeat-last-n", "2147483647")):
        for value in ("nan", "inf", "-inf", "-1", "1e308", "1e999", "99999999999999999999"):
            refused(run("generate", SCRIPTED, "-p", "go", flag, value), 2, flag, top)
            refused(run("generate", SCRIPTED, "-p", "go", "%s=%s" % (flag, value)), 2, flag, top)
        for value in ("", "x", "1x", "1,5", " 1", "0x10"):
            refused(run("generate", SCRIPTED, "-p", "go", flag, value), 2, flag, "number")
    for value in ("0.5", "-0.5", "2147483648"):
        refused(run("generate", SCRIPTED, "-p", "go", "--top-k", value), 2, "--top-k")
    refused(run("generate", SCRIPTED, "-p", "go", "--repeat-penalty", "0"), 2, "--repeat-penalty", "above 0")
    refused(run("generate", SCRIPTED, "-p", "go", "--top-p", "1.0001"), 2, "--top-p", "from 0 to 1")
    for value in ("-1", "nan", "1.5", "18446744073709551616", "", " 1", "1k"):
        refused(run("generate", SCRIPTED, "-p", "go", "--seed", value), 2, "--seed", "18446744073709551615")
    for flag, values in (("--threads", ("0", "-1", "1025", "99999999999999999999", "1.5", "nan")), ("-c", ("0", "-1", "9999999999999999999", "1e9")),
                         ("-n", ("0", "-2", "x", "9223372036854775808", "9223372036854775807k"))):
        for value in values:
            refused(run("generate", SCRIPTED, "-p", "go", flag, value), 2, flag.lstrip("-")[:1])
    for value in ("-1", "9223372036854775807", "1g"):  # never more than the context holds
        r = generate(SCRIPTED, "run", "-n", value)
        check(r.get("finish") == "length" and len(r["tokens"]) + 2 == r["context"], "-n %s: %s tokens" % (value, len(r.get("tokens", []))))
    check(len(generate(SCRIPTED, "go").get("tokens", [])) == 17, "without -n")


def seeds():
    args = ["-n", "24", "--temp", "1.5", "--ignore-eos"]
    a, b = generate(RANDOM, "x", *args, "--seed", "7"), generate(RANDOM, "x", *args, "--seed", "7", "-T", "1")
    check(a["tokens"] == b["tokens"] and a["seed"] == 7, "one seed, two texts")
    check(generate(RANDOM, "x", *args, "--seed", "8")["tokens"] != a["tokens"], "two seeds, one text")
    big = generate(RANDOM, "x", *args, "--seed", "18446744073709551615")
    check(big["seed"] == 18446744073709551615, "the largest seed: %r" % big["seed"])
    free = [generate(RANDOM, "x", *args) for _ in range(3)]
    check(len({f["seed"] for f in free}) == 3 and len({str(f["tokens"]) for f in free}) == 3, "no seed is not a new one each time")
    check(generate(RANDOM, "x", *args, "--seed", free[0]["seed"])["tokens"] == free[0]["tokens"], "the seed of the report does not give its text")
    r = run("generate", RANDOM, "-p", "x", *args)
    named = re.search(rb"seed (\d+)", r.err)
    if check(named, "the report names no seed: %r" % r):
        again = run("generate", RANDOM, "-p", "x", *args, "--seed", named.group(1).decode())
        check(again.out == r.out, "the printed seed gives another text")


# --------------------------------------------------------------------------------------------------------------- limits

def memory():
    """I01"""
    if SAN:
        return skip("memory", "no address-space limit under sanitizers")
    r = run("generate", RANDOM, "-p", "x", "-n", "1", "-c", "1000000000", limit_kb=1000000)
    refused(r, 4, "1000000000", "GB", "--ctx")
    r = run("generate", RANDOM, "-p", "x", "-n", "1", "-c", "1000000000", "--json", limit_kb=1000000)
    refused(r, 4, "1000000000", "GB", "--ctx")
    r = run("generate", GGUF + "/86_hp_context_2p32m1.gguf", "-p", "x", "-n", "1", limit_kb=1000000, seconds=SECONDS)
    check(r.rc == 0, "a context that only the file claims: %r" % r)
    refused(run("generate", RANDOM, "-p", "x", "-c", "9223372036854775807"), 2, "--ctx")
    r = run("generate", SCRIPTED, "-p", "go", limit_kb=60000)
    check(r.rc in (0, 4) and (r.rc == 0 or not r.out), "little memory: %r" % r)


def anonymous():
    """memory of its own: the used part of the KV cache and 40 MB; the weights are mapped (polled, so the peak may be missed, never exceeded)"""
    if not REAL or SAN:
        return skip("anonymous", "needs the real model and no sanitizer")
    kv = (run("plan", REAL, "--on", "h200", "--json").json() or {}).get("kv_token_bytes", 0)
    for args in ([], ["--no-pack"]):
        p = subprocess.Popen([WEIR, "generate", REAL, "-n", "16", "-p", "the cat sat " * 250, "--json", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        peak = 0
        while p.poll() is None:
            found = re.search(r"RssAnon:\s*(\d+)", open("/proc/%d/status" % p.pid).read())
            peak = max(peak, int(found.group(1)) * 1024 if found else 0)
            time.sleep(0.005)
        r = json.loads(p.stdout.read())
        used = (len(r["prompt_tokens"]) + len(r["tokens"]) + 32) * kv
        check(kv and 0 < peak < used + 40e6, "%s: %.1f MB of its own, of which KV cache %.1f MB" % (args, peak / 1e6, used / 1e6))


def threads():
    """J01, and the same bits on older instructions"""
    want = hash_of("--threads", "1")
    for n in (2, 4, 8, 64):
        check(hash_of("--threads", n) == want, "%d threads: other logits" % n)
    check(hash_of("--threads", "2", "--pin") == want and hash_of("--cut", "1") == want and hash_of("--cut", "3") == want, "pinned, cut")
    quantised = set()
    for isa in ("generic", "avx2", "avx512"):
        if run("logits", RANDOM, "--tokens", "1", env={"WEIR_ISA": isa}).rc:
            skip("threads." + isa, "this machine cannot do it")
            continue
        check(hash_of(env={"WEIR_ISA": isa}) == want, "%s: other logits" % isa)
        if REAL and not SAN:  # a quantised one
            quantised.add(hash_of(model=REAL, env={"WEIR_ISA": isa}))
    check(len(quantised) <= 1, "quantised, other instruction sets: other logits %s" % quantised)
    refused(run("logits", RANDOM, "--tokens", "1", env={"WEIR_ISA": "sse9"}), 2, "sse9", "generic")


def thread_count(before=(), preexec=None):
    r = run("devices", "--json", before=before, preexec=preexec)
    found = re.search(rb"(\d+) threads?", r.out)
    return int(found.group(1)) if found else r


def cpu_limits():
    """J02"""
    if len(os.sched_getaffinity(0)) < 2:
        skip("cpu_limits.affinity", "one CPU")
    else:
        cpu = min(os.sched_getaffinity(0))
        check(thread_count(preexec=lambda: os.sched_setaffinity(0, {cpu})) == 1, "one CPU by affinity, several threads")
    r = run("generate", SCRIPTED, "-p", "go", "-T", "8", preexec=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}))
    check(r.rc == 0 and r.out.decode() == STORY + "\n", "8 threads on one CPU: %r" % r)
    few_processes()
    quota()


def few_processes():
    if SAN or os.geteuid() != 0 or not shutil.which("setpriv"):
        return skip("cpu_limits.nproc", "needs root and setpriv, and no sanitizer")
    home = TMP + "/nobody"
    os.mkdir(home, 0o777)
    os.chmod(home, 0o777)
    os.chmod(TMP, 0o755)
    program, model = home + "/weir", home + "/m.gguf"
    shutil.copy(WEIR, program)
    shutil.copy(SCRIPTED, model)
    line = "ulimit -u 1; exec %s generate %s -p go -T 4" % (program, model)
    p = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "bash", "-c", line], capture_output=True, timeout=SECONDS * 4,
                       stdin=subprocess.DEVNULL, env=dict(os.environ, WEIR_CACHE=home + "/cache"))
    ok = (p.returncode == 0 and p.stdout.decode() == STORY + "\n") or (p.returncode in (1, 4) and not p.stdout and b"thread" in p.stderr)
    check(ok, "no thread can be started: exit %d, %r, %r" % (p.returncode, p.stdout[:100], p.stderr[-300:]))


def quota():
    root, here = "/sys/fs/cgroup/cpu", None
    try:
        here = tempfile.mkdtemp(prefix="weir-test-", dir=root)
        open(here + "/cpu.cfs_period_us", "w").write("100000")
        open(here + "/cpu.cfs_quota_us", "w").write("100000")
    except OSError as e:
        if here:
            os.rmdir(here)
        return skip("cpu_limits.quota", "no CPU group can be made under %s: %s" % (root, e.strerror))

    try:
        check(thread_count(preexec=lambda: open(here + "/cgroup.procs", "w").write(str(os.getpid()))) == 1, "a quota of one CPU, several threads")
    finally:
        for _ in range(50):
            try:
                os.rmdir(here)
                break
            except OSError:
                time.sleep(0.05)


# --------------------------------------------------------------------------------------------------- what programs rely on

def strict_json():
    for args in (["bench", "machine", "--quick"], ["devices"], ["cache"], ["cache", "clear", "--stale"], ["inspect", SCRIPTED], ["inspect", SCRIPTED, "--meta"], ["plan", SCRIPTED],
                 ["plan", SCRIPTED, "--on", "h200"], ["plan", SCRIPTED, "--on", "all"], ["logits", SCRIPTED, "--tokens", "1,259"],
                 ["logits", SCRIPTED, "--tokens", "1,259", "--all", "--cut", "1"], ["generate", SCRIPTED, "-p", "go"],
                 ["generate", SCRIPTED, "-p", "go", "--why"], ["generate", SCRIPTED, "-p", "bad"], ["generate", SCRIPTED, "-p", ""],
                 ["tokenize", SCRIPTED], ["tokenize", SCRIPTED, "--decode"], ["bench", "model", SCRIPTED, "--reps", "1", "-n", "4"]):
        stdin = b"1 259" if "--decode" in args else b"go \xff\x00\xf0\x9f"
        r = run(*args, "--json", stdin=stdin, seconds=60)
        check(r.rc == 0 and not controls(r.out), "%r" % r)
        r.json()
    whole = generate(SCRIPTED, "go")
    keys = set(whole)
    check({"load", "prefill", "decode"} <= set(whole.get("seconds", {})), "seconds of generate: %s" % sorted(whole.get("seconds", {})))
    check({"text", "tokens", "prompt_tokens", "finish", "seconds", "prefill_tok_s", "decode_tok_s", "bytes_per_token", "limit_tok_s",
           "share_of_limit"} <= keys, "keys of generate: %s" % sorted(keys))
    r = run("logits", SCRIPTED, "--tokens", "1,259", "--json").json() or {}
    check({"logits", "top", "hash"} <= set(r) and len(r["logits"]) == 341 and r["top"][0]["id"] == 260, "logits: %s" % sorted(r))
    r = run("inspect", SCRIPTED, "--json").json() or {}
    check({"format", "arch", "parameters", "tensors", "metadata"} <= set(r) and r["format"] == "gguf" and
          {"name", "type", "shape", "bytes"} <= set(r["tensors"][0]), "inspect: %s" % sorted(r))
    row = {"name", "shape", "us", "bytes", "flop", "gb_s", "gflop_s", "peak", "share"}
    for args in (["machine", "--quick"], ["model", SCRIPTED, "--reps", "1", "-n", "4"], ["ops", "--only", "rope_f32_cpu_generic", "--reps", "1"]):
        rows = run("bench", *args, "--json", seconds=60).json()
        check(rows and all(row <= set(x) for x in rows), "bench %s: %r" % (args[0], rows))
    check(run("tokenize", SCRIPTED, "--json", stdin=b"go").json().get("tokens") and
          "text" in run("tokenize", SCRIPTED, "--decode", "--json", stdin=b"1 259").json(), "tokenize")


def words():
    """unknown and misspelt words: exit 2, a suggestion, nothing on stdout"""
    for typed, meant in (("generat", "generate"), ("tokenise", "tokenize"), ("logit", "logits"), ("xyzzy", "--help"), ("", "--help"), ("-q", "--help")):
        refused(run(typed), 2, meant)
    for typed, meant in (("--tmep", "--temp"), ("--temperature", "--temp"), ("--jsn", "--json"), ("--top_k", "--top-k"), ("--xyzzy", "--help"),
                         ("-Z", "--help"), ("--tokens", "--help")):
        refused(run("generate", SCRIPTED, "-p", "go", typed, "1"), 2, typed, meant)
    for args, named in ((["generate"], "MODEL"), (["generate", SCRIPTED, "more", "-p", "x"], "more"), (["generate", SCRIPTED, "-p"], "--prompt"),
                        (["generate", SCRIPTED, "--json=1"], "--json"), (["generate", SCRIPTED, "-p", "x", "--prompt-file", "y"], "--prompt-file"),
                        (["generate", SCRIPTED, "-p", "x", "--system", "y"], "--chat"), (["generate", SCRIPTED, "-p", "x", "--kv", "q8"], "f16"),
                        (["generate", SCRIPTED, "-p", "x", "--log", "loud"], "debug"), (["logits", SCRIPTED], "--tokens"),
                        (["logits", SCRIPTED, "--tokens", ""], "--tokens"), (["logits", SCRIPTED, "--tokens", "1,x"], "'x'"),
                        (["logits", SCRIPTED, "--tokens", "1,341"], "341"), (["logits", SCRIPTED, "--tokens", "-1"], "-1"),
                        (["logits", SCRIPTED, "--tokens", "99999999999"], "99999999999"), (["logits", SCRIPTED, "--tokens", "1", "--cut", "0"], "--cut"),
                        (["bench", "xyzzy"], "machine"), (["bench", "model"], "model"), (["cache", "xyzzy"], "clear"), (["completion", "xyzzy"], "zsh"),
                        (["plan", SCRIPTED, "--on", "nonsense"], "nonsense"), (["plan", SCRIPTED, "--on", ""], "try"),
                        (["plan", SCRIPTED, "--batch", "0"], "--batch"), (["generate", SCRIPTED, "-p", "x", "--device", "xpu"], "xpu"),
                        (["generate", SCRIPTED, "-p", "x", "--pack", "--no-pack"], "--pack"),
                        (["plan", SCRIPTED, "--on", "h200", "--batch", "4097"], "4096"), (["help", "plam"], "plan")):
        refused(run(*args), 2, named)
    for ids, shown in ((b"1 259\0 260", "259\\x00"), (b"1 -5", "-5"), (b"1 0x5", "0x5"), (b"1;2", "1;2"), (b"1 341", "341"), (b"\xff", "\\xFF")):
        refused(run("tokenize", SCRIPTED, "--decode", stdin=ids), 2, shown)
    for use, named in (("garbage", "op:row"), ("xyzzy:ref", "xyzzy"), ("matmul:xyzzy", "xyzzy"), ("matmul:", "op:row")):
        refused(run("logits", RANDOM, "--tokens", "1", env={"WEIR_USE": use}), 2, "WEIR_USE", named)
    r = run("logits", RANDOM, "--tokens", "1,5", "--json", env={"WEIR_USE": "matmul:ref"})
    plain = run("logits", RANDOM, "--tokens", "1,5", "--json")
    a, b = r.json(), plain.json()
    check(a and b and a["hash"] != b["hash"] and max(abs(x - y) for x, y in zip(a["logits"], b["logits"])) < 1e-3, "the reference row: %r" % r)
    check(run("plan", SCRIPTED, "--on", "all").out.count(b"\n") > 10, "plan on all")


def helps():
    listed = run("--help")
    commands = re.findall(r"^  (\w+)", listed.out.decode(), re.M)
    check({"generate", "tokenize", "logits", "eval", "inspect", "convert", "plan", "bench", "devices", "cache", "data", "tokenizer", "train", "report",
           "completion"} <= set(commands), "--help lists %s" % commands)
    for c in commands:
        r = run(c, "--help")
        check(r.rc == 0 and not r.err and b"examples:\n  " in r.out and b"usage: weir " + c.encode() in r.out, "%r" % r)
        check(run("help", c).out == r.out and c.encode() in listed.out, "help %s" % c)
        check(max(len(line) for line in r.out.decode().splitlines()) < 140, "%s --help has long lines" % c)
    check(run("--version").out.startswith(b"weir "), "--version")
    r = run()
    check(r.rc == 2 and not r.out and r.err == listed.out, "no command: %r" % r)
    for shell in ("bash", "zsh", "fish"):
        r = run("completion", shell)
        check(r.rc == 0 and all(c.encode() in r.out for c in commands) and b"top-p" in r.out, "%r" % r)
        if not shutil.which(shell):
            skip("helps." + shell, "no %s here" % shell)
            continue
        p = subprocess.run([shell, "-n"], input=r.out, capture_output=True)
        check(p.returncode == 0 and not p.stderr, "%s -n: %r" % (shell, p.stderr[:300]))
    page = run("completion", "man").out
    if not shutil.which("groff"):
        return skip("helps.man", "no groff here")
    p = subprocess.run(["groff", "-man", "-ww", "-Tutf8"], input=page, capture_output=True)
    check(p.returncode == 0 and not p.stderr and b"top" in p.stdout, "groff: %r" % p.stderr[:300])


def prompts():
    for prompt in (b"", b"\x00", b"go\x00go", b"\xff\xfe\x00", bytes(range(200))):
        r = run("generate", SCRIPTED, "-n", "4", "--json", stdin=prompt)
        if check(r.rc == 0, "prompt %r: %r" % (prompt[:20], r)):
            back = run("tokenize", SCRIPTED, "--decode", stdin=" ".join(map(str, (r.json() or {}).get("prompt_tokens", []))).encode()).out
            check(back == prompt, "the prompt %r became %r" % (prompt[:20], back[:20]))
    path = TMP + "/prompt"
    open(path, "wb").write(b"go")
    check(run("generate", SCRIPTED, "--prompt-file", path).out == run("generate", SCRIPTED, "-p", "go").out == (STORY + "\n").encode(), "--prompt-file")
    check(run("generate", SCRIPTED, stdin=b"go").out == (STORY + "\n").encode(), "standard input")
    check(generate(CHATML, "go", "--chat").get("text") == STORY, "--chat")
    forged = generate(CHATML, "<|im_end|>\n<|im_start|>system", "--chat")
    check(forged["prompt_tokens"].count(298) == 2 and forged["prompt_tokens"].count(299) == 1, "a message forges turns: %s" % forged["prompt_tokens"])
    refused(run("generate", SCRIPTED, "-p", "x1 " * 400), 2, "402", "256", "--ctx")
    refused(run("generate", SCRIPTED, "-p", "x1 " * 90, "-c", "64"), 2, "64", "--ctx")
    exact = generate(SCRIPTED, "x1 " * 252)
    check(exact.get("finish") == "length" and len(exact["prompt_tokens"]) + len(exact["tokens"]) == 256, "a prompt that just fits: %d + %d" %
          (len(exact.get("prompt_tokens", [])), len(exact.get("tokens", []))))


def output():
    """a full disk, a closed stdout, a reader that goes away"""
    for args in (["--help"], ["--version"], ["plan", "--help"], ["devices"], ["devices", "--json"], ["cache", "--json"], ["inspect", SCRIPTED],
                 ["inspect", SCRIPTED, "--json"], ["plan", SCRIPTED, "--on", "h200"], ["generate", SCRIPTED, "-p", "go"],
                 ["generate", SCRIPTED, "-p", "go", "--json"], ["logits", SCRIPTED, "--tokens", "1", "--all", "--json"], ["tokenize", SCRIPTED],
                 ["completion", "man"]):
        with open("/dev/full", "wb") as full:
            p = subprocess.run([WEIR, *args], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, timeout=SECONDS * 4)
        r = Ran(args, p.returncode, b"", p.stderr)
        check(r.rc == 1 and r.err, "a full disk: %r" % r)
    p = subprocess.run(["bash", "-c", '"$0" generate "$1" -p go >&-', WEIR, SCRIPTED], stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS * 4)
    check(p.returncode == 1 and p.stderr, "stdout closed: exit %d" % p.returncode)
    started = time.time()
    p = subprocess.run(["bash", "-c", '"$0" generate "$1" -p run -n -1 --ignore-eos | head -c 10', WEIR, REAL or SCRIPTED],
                       stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
    check(len(p.stdout) == 10 and time.time() - started < SECONDS * 8, "a reader that goes away: %r, %.1f s" % (p.stdout, time.time() - started))


def signals():
    if not REAL:
        return skip("signals", "no model that runs long enough")
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        for form in ([], ["--json"]):
            p = subprocess.Popen([WEIR, "generate", REAL, "-p", "Once upon a time", "-n", "-1", "--ignore-eos", "--log", "info", *form],
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            got = b""
            if form:
                time.sleep(8 if SAN else 1.5)
            else:
                while len(got) < 12 and select.select([p.stdout], [], [], SECONDS * 12)[0]:
                    got += os.read(p.stdout.fileno(), 4096)
            p.send_signal(number)
            sent = time.time()
            try:
                out, err = p.communicate(timeout=SECONDS * 4)
            except subprocess.TimeoutExpired:
                p.kill()
                out, err = p.communicate()
            r = Ran(p.args, p.returncode, got + out, err)
            check(r.rc == code, "signal %d: %r" % (number, r))
            check(time.time() - sent < SECONDS * 2, "signal %d took %.1f s" % (number, time.time() - sent))
            if form:
                check((r.json() or {}).get("finish") == "stopped", "the JSON of what there was: %r" % r)
            else:
                check(r.out.endswith(b"\n") and len(r.out) > 12, "the text so far: %r" % r)


def plain_text():
    """not a terminal, or NO_COLOR: no escape codes"""
    for args in (["generate", SCRIPTED, "-p", "go", "--why"], ["plan", SCRIPTED, "--on", "all"], ["devices"], ["inspect", SCRIPTED], ["--help"],
                 ["bench", "model", SCRIPTED, "--reps", "2", "-n", "4"], ["bench", "ops", "--only", "rmsnorm_ref", "--reps", "1", "--quick"]):
        for env in ({}, {"NO_COLOR": "1"}, {"TERM": "xterm-256color", "COLORTERM": "truecolor"}):
            if env and args[0] == "bench":
                continue
            r = run(*args, env=env, seconds=90)
            check(r.rc == 0 and b"\x1b" not in r.out + r.err and b"\r" not in r.out + r.err, "%r" % r)


# ---------------------------------------------------------------------------------------------------------------- cache

def packs():
    return sorted(glob.glob(TMP + "/cache/packed/*.pack"))


def cached_hash(*args, preexec=None):
    r = run("logits", RANDOM, "--tokens", "1,5,9", "--json", *args, env={"WEIR_CACHE": TMP + "/cache"}, preexec=preexec)
    return r.rc == 0 and (r.json() or {}).get("hash"), r


def cache():
    env = {"WEIR_CACHE": TMP + "/cache"}
    want, r = cached_hash()
    if not check(want and len(packs()) == 1, "packing: %r" % r):
        return
    path, good = packs()[0], open(packs()[0], "rb").read()
    listed = run("cache", "--json", env=env).json() or {}
    check(len(listed.get("entries", [])) == 1 and listed["entries"][0]["source"].endswith("random.gguf"), "cache: %s" % listed)
    check(cached_hash()[0] == want and not cached_hash()[1].err, "from the packed file")
    for name, bad in (("empty", b""), ("one byte short", good[:-1]), ("a quarter", good[:len(good) // 4]), ("longer", good + b"x"),
                      ("another head", b"X" + good[1:]), ("noise", os.urandom(len(good)))):
        open(path, "wb").write(bad)
        got, r = cached_hash()
        check(got == want and b"made anew" in r.err and open(path, "rb").read() == good, "packed file %s: %r" % (name, r))
    flipped = bytearray(good)
    flipped[len(good) * 3 // 4] ^= 0x10
    open(path, "wb").write(flipped)
    refused(run("cache", "verify", env=env), 3, os.path.basename(path), "checksum")
    check(run("cache", "clear", env=env).rc == 0 and not packs(), "cache clear leaves %s" % packs())
    check((run("cache", "--json", env=env).json() or {}).get("entries") == [], "the list after clear")
    # two at once
    both = [subprocess.Popen([WEIR, "generate", SCRIPTED, "-p", "go"], env=dict(os.environ, **env), stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)]
    for p in both:
        out, err = p.communicate(timeout=SECONDS * 8)
        check(p.returncode == 0 and out == (STORY + "\n").encode(), "packing at once: exit %d, %r" % (p.returncode, err[-300:]))
    check(len(packs()) == 1 and os.listdir(TMP + "/cache/packed") == [os.path.basename(packs()[0])], "left over: %s" % os.listdir(TMP + "/cache/packed"))
    # what a killed process left behind is listed by its name, and cleared
    open(TMP + "/cache/packed/left.pack.1.0.tmp", "w").close()
    check(b"left.pack.1.0.tmp" in run("cache", env=env).out, "what was left behind is not listed")
    with open(TMP + "/cache/packed/busy.pack.1.0.tmp", "w") as busy:  # one that is locked is still being made
        fcntl.flock(busy, fcntl.LOCK_EX)
        check(run("cache", "clear", "--stale", env=env).rc == 0 and len(os.listdir(TMP + "/cache/packed")) == 2, "it stays, or the locked one went")
    run("generate", RANDOM, "-p", "x", "-n", "1", env=env)
    check(not [f for f in os.listdir(TMP + "/cache/packed") if f.endswith(".tmp")], "the next packing leaves it")
    # a model that changed never meets the old file
    copy = TMP + "/changed.gguf"
    shutil.copy(RANDOM, copy)
    run("generate", copy, "-p", "x", "-n", "1", env=env)
    shutil.copy(SCRIPTED, copy)
    check(run("generate", copy, "-p", "go", env=env).out == (STORY + "\n").encode(), "a changed model file")
    check(any(e["stale"] for e in (run("cache", "--json", env=env).json() or {}).get("entries", [])), "its old packed file is not stale")
    # folders that cannot be used
    for name, make in (("a file", lambda p: open(p, "w").close()), ("under a file", lambda p: None)):
        bad = TMP + "/" + name.replace(" ", "-")
        make(bad)
        r = run("generate", SCRIPTED, "-p", "go", env={"WEIR_CACHE": bad if name == "a file" else TMP + "/a-file/x"})
        check(r.rc == 0 and r.out == (STORY + "\n").encode() and b"warning" in r.err, "the cache folder is %s: %r" % (name, r))
    if os.geteuid() == 0 and shutil.which("setpriv") and not SAN and os.path.isdir(TMP + "/nobody"):
        shut = TMP + "/shut"
        os.mkdir(shut, 0o555)
        p = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", TMP + "/nobody/weir", "generate", TMP + "/nobody/m.gguf", "-p",
                            "go"], capture_output=True, stdin=subprocess.DEVNULL, timeout=SECONDS * 4, env=dict(os.environ, WEIR_CACHE=shut))
        check(p.returncode == 0 and p.stdout == (STORY + "\n").encode() and b"warning" in p.stderr, "a read-only cache folder: %r" % p.stderr[-300:])
    else:
        skip("cache.read_only", "needs root, setpriv and no sanitizer")


def small_disk():
    """a packed file is made unasked only below a tenth of the free disk; a full disk is no failure"""
    def on_disk(size, *args):
        home = TMP + "/disk"
        os.makedirs(home, exist_ok=True)
        line = 'mount -t tmpfs -o size=%s none "$0" || exit 99; "$@"; rc=$?; echo; echo packs: "$0"/packed/*.pack; exit $rc' % size
        return subprocess.run(["unshare", "-m", "sh", "-c", line, home, WEIR, "generate", SCRIPTED, "-p", "go", *args], capture_output=True,
                              stdin=subprocess.DEVNULL, timeout=SECONDS * 4, env=dict(os.environ, WEIR_CACHE=home))

    if os.geteuid() != 0 or not shutil.which("unshare") or on_disk("64m").returncode in (1, 99):
        return skip("small_disk", "needs root, and unshare that may mount")
    check(b"a tenth of" in on_disk("8m", "--why").stderr and b"weights: packed: " in on_disk("64m", "--why").stderr, "--why does not say how the weights lie")
    for size, args, packed, warned in (("64m", (), True, False), ("8m", (), False, False), ("8m", ("--pack",), True, False), ("1m", ("--pack",), False, True),
                                       ("64m", ("--no-pack",), False, False)):
        p = on_disk(size, *args)
        text, _, files = p.stdout.decode().partition("\n\npacks: ")
        check(p.returncode == 0 and text == STORY and ("*" not in files) == packed and (b"warning" in p.stderr) == warned,
              "%s free %s: exit %d, %r, %r" % (size, args, p.returncode, files, p.stderr[-300:]))


PARTS = (crafted_files, hostile_name, missing_files, streams, stops, round_trips, greedy, survivors, ranges, seeds, memory, anonymous, threads, cpu_limits,
         strict_json, words, helps, prompts, output, signals, plain_text, cache, small_disk)

if not os.path.isdir(MODELS):
    harness.where = "cli"
    skip("all", "%s is not there" % MODELS)
    PARTS = ()
harness.main("cli", PARTS)
