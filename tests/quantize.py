#!/usr/bin/env python3
"""weir quantize: its table, its JSON, what it refuses, a full disk, signals; that what it writes runs, and is what llama-quantize would have
written wherever a type is a definition (tests/codecs.c and tests/convert.c hold the bytes; here it is the command)."""
import os, re, resource, signal, subprocess, sys, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import harness
from harness import SAN, SECONDS, TMP, WEIR, check, refused, run

LLAMA, TEXT = "tests/golden/tiny_llama.gguf", "LICENSE"
REAL = os.environ.get("WEIR_TEST_MODEL")
TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k_m", "q4_k", "q5_k_m", "q5_k", "q6_k")


def leftovers():
    return [f for f in os.listdir(TMP) if f.endswith(".tmp")]


def types():
    """every type: the file is listed as the table says, runs, and is the smaller the fewer bits; perplexity follows the error"""
    nll = {}
    for t in TYPES:
        out = "%s/%s.gguf" % (TMP, t)
        r = run("quantize", LLAMA, t, "--out", out, "--json")
        check(r.rc == 0 and not r.err, "%r" % r)
        said = r.json() or {}
        listed = run("inspect", out, "--tensors", "--json").json() or {}
        rows = [[(e["name"], e["type"], e["bytes"]) for e in table] for table in (said["by_tensor"], listed["tensors"])]
        check(rows[0] == rows[1] and said["tensors"] == len(rows[0]), "%s: the table and the file differ: %s" % (t, rows))
        check(said["bytes"] == os.path.getsize(out) and said["bytes_before"] == os.path.getsize(LLAMA), "%s: sizes %s" % (t, said["bytes"]))
        check(sum(e["bytes"] for e in said["by_type"]) == sum(e["bytes"] for e in said["by_tensor"]), "%s: the sums by type" % t)
        check(all(0 <= e["rms_error"] < 0.2 for e in said["by_tensor"]), "%s: errors %s" % (t, [e["rms_error"] for e in said["by_tensor"]]))
        check(all(e["type"] == "F32" and e["rms_error"] == 0 for e in said["by_tensor"] if "norm" in e["name"]), "%s: norms stay F32" % t)
        r = run("eval", out, "--data", TEXT, "--json")
        check(r.rc == 0, "%r" % r)
        nll[t] = (r.json() or {}).get("nll", 9)
    check(all(abs(nll[t] - nll["f32"]) < 0.05 for t in TYPES), "losses %s" % nll)
    check(os.path.getsize(TMP + "/q8_0.gguf") < os.path.getsize(TMP + "/f16.gguf") < os.path.getsize(TMP + "/f32.gguf"), "sizes")
    check(not leftovers(), "left: %s" % leftovers())


def tables():
    out = TMP + "/t.gguf"
    r = run("quantize", LLAMA, "q4_k_m", "--out", out, "--tensors")
    text = r.out.decode()
    check(r.rc == 0 and not r.err and "rms error" in text and "blk.0.attn_v.weight" in text and re.search(r"bits a weight", text), "%r" % r)
    check("whole blocks" in text and "Q4_K" in text, "what fell back is not told: %r" % r)
    r = run("quantize", LLAMA, "q8_0", "--out", out, "--force")
    check(r.rc == 0 and b"blk.0" not in r.out and b"Q8_0" in r.out and b"F32" in r.out and b"all" in r.out, "%r" % r)
    one, two = TMP + "/one.gguf", TMP + "/two.gguf"
    for path, threads in ((one, 1), (two, 3)):
        check(run("quantize", LLAMA, "q4_k_m", "--out", path, "--threads", threads).rc == 0, "threads %d" % threads)
    check(open(one, "rb").read() == open(two, "rb").read(), "other bytes with other threads")


def refusals():
    out = TMP + "/r.gguf"
    refused(run("quantize", LLAMA, "--out", out), 2, "TYPE")
    refused(run("quantize", LLAMA, "q8_0"), 2, "--out")
    refused(run("quantize", LLAMA, "q3_z", "--out", out), 2, "q3_z", "q4_k_m")
    refused(run("quantize", "/nowhere/m.gguf", "q8_0", "--out", out), 1, "/nowhere/m.gguf")
    refused(run("quantize", TEXT, "q8_0", "--out", out), 3, TEXT)
    refused(run("quantize", LLAMA, "q8_0", "--out", "/nowhere/x/m.gguf"), 1, "/nowhere/x/m.gguf")
    check(not os.path.exists(out), "a refusal wrote a file")
    check(run("quantize", LLAMA, "q8_0", "--out", out).rc == 0, "quantize")
    refused(run("quantize", LLAMA, "q4_0", "--out", out), 2, out, "--force")
    refused(run("quantize", out, "q4_0", "--out", TMP + "/again.gguf"), 2, "Q8_0", "--requantize")
    check(run("quantize", out, "q4_0", "--out", TMP + "/again.gguf", "--requantize").rc == 0, "--requantize")
    check(not leftovers(), "left: %s" % leftovers())


def full_disk():
    """exit 4, nothing left, what was there stays"""
    out = TMP + "/full.gguf"

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10,) * 2)

    refused(run("quantize", LLAMA, "q8_0", "--out", out, preexec=small_files), 4, out)
    check(not os.path.exists(out) and not leftovers(), "left: %s" % leftovers())
    open(out, "w").write("old")
    refused(run("quantize", LLAMA, "q8_0", "--out", out, "--force", preexec=small_files), 4, out)
    check(open(out).read() == "old" and not leftovers(), "what was there is gone")
    os.unlink(out)
    if os.path.exists("/dev/full"):
        r = run("quantize", LLAMA, "q8_0", "--out", out, before=["sh", "-c", 'exec "$@" > /dev/full', "sh"])
        check(r.rc == 1, "the table could not be written: %r" % r)


def stopped():
    """Ctrl-C and SIGTERM: nothing is left"""
    if not REAL:
        harness.skip("stopped", "WEIR_TEST_MODEL is not set")
        return
    out = TMP + "/stopped.gguf"
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        p = subprocess.Popen([WEIR, "quantize", REAL, "q4_k_m", "--requantize", "--pure", "--out", out], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        until = time.time() + SECONDS
        while not leftovers() and p.poll() is None and time.time() < until:
            time.sleep(0.001)
        p.send_signal(number)
        got, err = p.communicate(timeout=SECONDS * 4)
        check(p.returncode == code and not got, "signal %d: exit %s, %r" % (number, p.returncode, err))
        check(not os.path.exists(out) and not leftovers(), "signal %d: left %s" % (number, leftovers()))


if __name__ == "__main__":
    harness.main("quantize", (types, tables, refusals, full_disk, stopped))
