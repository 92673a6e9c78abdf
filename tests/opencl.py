#!/usr/bin/env python3
"""The OpenCL device: what weir devices says of whatever is there or is not, kernels and text against the CPU's, a cache of compiled kernels,
and faults of the driver (tests/lib/opencl_faults.c) at every place. Needs an OpenCL driver (Debian: pocl-opencl-icd) and a C compiler."""
import glob, json, math, os, re, shutil, struct, subprocess, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import harness
from harness import SAN, TMP, WEIR, check, refused, run, skip

HERE = os.path.dirname(os.path.abspath(__file__))
TINY = HERE + "/golden/tiny_llama.gguf"
FAULTY, CACHE, COUNT = TMP + "/faulty.so", TMP + "/cache", TMP + "/count"
ALL = os.environ.get("WEIR_OPENCL_ALL")  # what takes minutes to compile, too
SECONDS = 1500 if ALL else 600 if SAN else 240
# what a driver and its compiler keep to the end is no leak of weir's
QUIET = {"LSAN_OPTIONS": "suppressions=%s/lib/opencl.supp:print_suppressions=0" % HERE, "WEIR_CACHE": CACHE, "POCL_CACHE_DIR": TMP + "/pocl"}
PROMPT = ("-p", "a", "-n", "12", "--ctx", "64", "--json")


def cl(*args, **env):
    return run(*args, env=dict(QUIET, **{k: str(v) for k, v in env.items()}), seconds=SECONDS)


def faulty(*args, **env):
    return cl(*args, WEIR_OPENCL=FAULTY, OPENCL_COUNT=COUNT, **env)


def counts():
    """programs built from source, kernels enqueued, in the last faulty()"""
    return [int(x) for x in open(COUNT).read().split()]


def opencl_rows(r):
    found = r.json() if check(r.rc == 0 and not r.err, "%r" % r) else None
    return [d for d in (found or {"devices": []})["devices"] if d["name"].startswith("opencl")]


def says(part, name="opencl", **env):
    rows = opencl_rows(cl("devices", "--json", **env))
    hit = [d for d in rows if part in d["text"] and d["name"] == name and not d["usable"]]
    check(hit, "no line says '%s': %r" % (part, rows))


def listed():
    rows = opencl_rows(cl("devices", "--json"))
    check(rows[0]["name"] == "opencl:0" and rows[0]["usable"] and rows[0]["memory_bytes"] > 1e8 and rows[0]["driver"], "%r" % rows)
    text = cl("devices").out.decode()
    check("opencl:0  yes  " in text and "driver" in text, text)


def nothing_there():
    empty, broken = TMP + "/none", TMP + "/broken"
    for folder in (empty, broken):
        os.makedirs(folder)
    open(broken + "/gone.icd", "w").write("libno-such-driver.so.1\n")
    open(broken + "/void.icd", "w").write("\n")
    says("no OpenCL here", WEIR_OPENCL="/nowhere/libOpenCL.so")
    says("no driver for it", OCL_ICD_VENDORS=empty)
    says("names 'libno-such-driver.so.1'", OCL_ICD_VENDORS=broken)
    says("names ''", OCL_ICD_VENDORS=broken)
    says("names 'libno-such-driver.so.1'", OCL_ICD_VENDORS=broken + "/gone.icd")
    says("OpenCL 1.2", name="opencl:0", WEIR_OPENCL=FAULTY, OPENCL_VERSION="OpenCL 1.1 old")
    says("clGetPlatformIDs says CL_OUT_OF_HOST_MEMORY", WEIR_OPENCL=FAULTY, OPENCL_FAULT="clGetPlatformIDs 1 -6")
    says("too old", WEIR_OPENCL="libz.so.1")
    for env in ({"OCL_ICD_VENDORS": empty}, {"WEIR_OPENCL": FAULTY, "OPENCL_VERSION": "OpenCL 1.1 old"}):
        refused(cl("generate", TINY, *PROMPT[:4], "--device", "opencl", **env), 5, "OpenCL")


def names():
    refused(cl("generate", TINY, *PROMPT[:4], "--device", "opencl:99"), 2, "opencl:99")
    for bad in ("opencl:", "opencl:x", "opencl:1x", "opencl0", "cpu:1"):
        refused(cl("generate", TINY, *PROMPT[:4], "--device", bad), 2, "'%s'" % bad)
    refused(cl("generate", TINY, *PROMPT[:4], "--device", "cpu,opencl:99"), 2, "opencl:99")


# Products for tensor cores, of which there are none: PoCL 3.1 takes their barriers within loops wrongly. The emulated device runs them.
MISCOMPILED = "matmul_mma_dev"


def kernel_tests(only, **env):
    """tests/kernels on the device: how many passed; a failure is one of ours"""
    program = os.environ.get("WEIR_BUILD", "build/release") + "/tests/kernels"
    p = subprocess.run([program, "--device", "opencl", "--flop", "2e5", "--only", only, "--but", MISCOMPILED], capture_output=True, text=True, env={**os.environ, **QUIET, **env},
                       timeout=SECONDS)
    m = re.search(r"kernels: (\d+) passed, (\d+) failed", p.stdout)
    check(p.returncode == 0 and m and int(m[1]) > 0 and m[2] == "0", "%s: exit %d: %s %s" % (only, p.returncode, p.stdout[-1500:], p.stderr[-1500:]))
    return p, int(m[1]) if m else 0


def kernels():
    """device rows over their cases; the large ones are for speed, and the emulated device has them"""
    for only in ("_dev",) if ALL else ("rmsnorm_f32_dev", "add_f32_dev", "rope_f32_dev"):
        harness.counts["passed"] += kernel_tests(only)[1]
    if ALL:
        skip("kernels." + MISCOMPILED, "PoCL 3.1 compiles it wrongly; it runs on the emulated device")
    kernel_tests("rmsnorm_f32_dev", WEIR_OPENCL=FAULTY, OPENCL_OWN_MEMORY="1")


def text():
    """the same tokens as the CPU's, by kernels of the device, in place and in memory of its own; times by the device's clock"""
    want = cl("generate", TINY, *PROMPT).json()
    for env in ({}, {"OPENCL_OWN_MEMORY": 1}):
        r = faulty("generate", TINY, *PROMPT, "--device", "opencl:0", **env)
        got = r.json() if check(r.rc == 0, "%r" % r) else None
        check(got and got["text"] == want["text"], "%r" % r)
        check(counts()[1] > 12 * 20, "kernels enqueued: %r" % counts())
        r = faulty("generate", TINY, *PROMPT, "--device", "cpu,opencl:0", **env)
        got = r.json() if check(r.rc == 0, "%r" % r) else None
        check(got and got["text"] == want["text"] and got["moved_bytes_per_token"] > 0 and counts()[1] > 12, "layers on two devices: %r" % r)
    r = cl("generate", TINY, *PROMPT[:-1], "--device", "opencl:0", "--why")
    check(r.rc == 0 and b"_dev" in r.err and b"matmul" in r.err, "%r" % r)


def kept():
    """compiled kernels are kept, by content, for drivers that do not do so themselves; what is damaged is made anew"""
    def again(**env):
        p = kernel_tests("rmsnorm_f32_dev", WEIR_OPENCL=FAULTY, OPENCL_COUNT=COUNT, OPENCL_NAME="Other", **env)[0]
        return counts()[0], p.stderr

    check(again()[0] == 1, "the first run compiles for its three devices once: %r" % counts())
    files = glob.glob(CACHE + "/opencl/*.bin")
    if not check(len(files) == 1, "%r" % files):
        return
    check(again() == (0, ""), "the second compiles nothing")
    whole = open(files[0], "rb").read()
    for damage in (whole[:-1], whole[:20], b"", whole[:-9] + b"x" + whole[-8:], whole[:8] + b"\1" + whole[9:]):
        open(files[0], "wb").write(damage)
        check(again()[0] == 1 and len(open(files[0], "rb").read()) > len(whole) // 2, "%d bytes: %r" % (len(damage), counts()))
    open(TMP + "/file", "w").write("no folder")
    check(again(WEIR_CACHE=TMP + "/file")[0] == 3, "nothing can be kept: %r" % counts())


def kept_by_the_driver():
    """PoCL's own: the second process leaves its cache as the first did"""
    def compiled():
        return sorted(glob.glob(TMP + "/pocl/**/*.so", recursive=True))

    ask = ("generate", TINY, *PROMPT, "--device", "opencl:0")
    check(cl(*ask).rc == 0, "the first run")
    first = compiled()
    check(cl(*ask).rc == 0 and compiled() == first, "the second run compiled something")
    check(glob.glob(CACHE + "/opencl/*") == [] or harness.counts["failed"], "weir kept them too")


def faults():
    """any call of the driver fails: the right exit code and its name, nothing leaks, and the CPU still works"""
    ask = ("generate", TINY, *PROMPT[:4], "--device", "opencl")
    for function, nth, error, code in (
            ("clCreateContext", 1, -5, 4), ("clCreateContext", 1, -2, 5), ("clCreateCommandQueue", 2, -6, 4), ("clCreateBuffer", 1, -4, 4),
            ("clCreateBuffer", 9, -61, 5), ("clCreateBuffer", 12, -4, 4), ("clCreateSubBuffer", 7, -5, 4), ("clCreateKernel", 4, -46, 5),
            ("clSetKernelArg", 20, -51, 5), ("clEnqueueMapBuffer", 1, -12, 5), ("clEnqueueMapBuffer", 5, -5, 4),
            ("clEnqueueNDRangeKernel", 1, -4, 4), ("clEnqueueNDRangeKernel", 20, -54, 5), ("clFinish", 12, -36, 5)):
        refused(faulty(*ask, OPENCL_FAULT="%s %d %d" % (function, nth, error)), code, function, "CL_")
    shutil.rmtree(CACHE, ignore_errors=True)
    refused(faulty(*ask, OPENCL_FAULT="clBuildProgram 1 -11"), 5, "cannot compile", "_dev.c")


def gguf(path, width, ff):
    """a llama of one layer whose file is a hole: F32, zeros"""
    def text(s):
        return struct.pack("<Q", len(s)) + s.encode()

    meta = [("general.architecture", "llama")] + [("llama." + k, v) for k, v in (
        ("block_count", 1), ("embedding_length", width), ("feed_forward_length", ff), ("attention.head_count", width // 64),
        ("attention.head_count_kv", width // 64), ("context_length", 64), ("attention.layer_norm_rms_epsilon", 1e-5), ("vocab_size", 64))]
    shapes = [("token_embd.weight", (width, 64)), ("output_norm.weight", (width,))] + [("blk.0." + n + ".weight", s) for n, s in (
        ("attn_norm", (width,)), ("attn_q", (width, width)), ("attn_k", (width, width)), ("attn_v", (width, width)),
        ("attn_output", (width, width)), ("ffn_norm", (width,)), ("ffn_gate", (width, ff)), ("ffn_up", (width, ff)), ("ffn_down", (ff, width)))]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(meta))
    for k, v in meta:
        head += text(k) + (struct.pack("<I", 8) + text(v) if isinstance(v, str) else struct.pack("<If", 6, v) if isinstance(v, float) else
                           struct.pack("<II", 4, v))
    at = 0
    for name, shape in shapes:
        n = 1
        for d in shape:
            n *= d
        head += text(name) + struct.pack("<I", len(shape)) + struct.pack("<%dQ" % len(shape), *shape) + struct.pack("<IQ", 0, at)
        at += (4 * n + 31) // 32 * 32
    with open(path, "wb") as f:
        f.write(head)
        f.truncate((len(head) + 31) // 32 * 32 + at)


def too_large():
    """POCL_MEMORY_LIMIT=1 leaves a gigabyte"""
    path = TMP + "/large.gguf"
    gguf(path, 2048, 65536)
    refused(cl("generate", path, *PROMPT[:4], "--device", "opencl:0", POCL_MEMORY_LIMIT=1), 4, "the weights take 1.6", "fit as", "quantize", "cpu")
    gguf(path, 2048, 65536 * 32)
    refused(cl("generate", path, *PROMPT[:4], "--device", "opencl:0", POCL_MEMORY_LIMIT=1), 4, "no type of weights is small enough")
    refused(cl("generate", TINY, "-p", "a", "-n", "1", "--ctx", "100000000", "--device", "opencl:0", POCL_MEMORY_LIMIT=1), 4, "--ctx")


def training():
    """two runs of a few steps, on the CPU and on the device: the same losses within what the order of sums explains"""
    losses = []
    for device in ("cpu", "opencl:0"):
        out = "%s/run-%s" % (TMP, device[:3])
        r = cl("train", "--data", HERE + "/../LICENSE", "--tokenizer", "bytes", "--out", out, "--size", "1m", "--ctx", "32", "--batch", "2",
               "--steps", "20", "--eval-every", "20", "--seed", "1", "--device", device)
        if not check(r.rc == 0, "%r" % r):
            return
        losses.append([json.loads(x)["loss"] for x in open(out + "/metrics.jsonl") if '"loss"' in x])
    check(len(losses[0]) == len(losses[1]) >= 2 and all(abs(a - b) < 2e-3 * a for a, b in zip(*losses)), "%r" % losses)
    refused(faulty("train", "--data", HERE + "/../LICENSE", "--tokenizer", "bytes", "--out", TMP + "/run-own", "--size", "1m", "--steps", "1",
                   "--device", "opencl", OPENCL_OWN_MEMORY=1), 3, "memory of its own")


def nats(a):
    top = max(a)
    total = top + math.log(sum(math.exp(x - top) for x in a))
    return [x - total for x in a]


def models():
    """SmolLM2: the CPU's most likely token wherever it leads by more than 0.05; quantised weights keep within a mean KL of 1e-2"""
    folder, tokens = os.environ.get("WEIR_TEST_MODELS"), "504,3575,282,4649,314,7042,30,198"
    for kind in ("f16", "q8_0", "q4_0"):
        path = "%s/smollm2-135m-%s.gguf" % (folder, kind)
        if SAN or not folder or not os.path.exists(path):
            skip("models." + kind, "no model to run it on, or a build for which it is too large")
            continue
        both = [cl("logits", path, "--tokens", tokens, "--all", "--json", "--ctx", "64", "--device", d) for d in ("cpu", "opencl:0")]
        if not check(all(r.rc == 0 for r in both), "%r" % both):
            continue
        kl, rows = 0, [[p["logits"] for p in r.json()["positions"]] for r in both]
        for a, b in zip(*rows):
            best = sorted(range(len(a)), key=lambda i: -a[i])[:2]
            check(a[best[0]] - a[best[1]] <= 0.05 or b.index(max(b)) == best[0], "%s: the most likely token is another one" % kind)
            kl += sum(math.exp(p) * (p - q) for p, q in zip(nats(a), nats(b))) / len(rows[0])
        check(kl < (1e-5 if kind == "f16" else 1e-2), "%s: mean KL %g" % (kind, kl))
        if os.environ.get("SHOW"):
            print("%s: mean KL %.3g over %d positions" % (kind, kl, len(rows[0])))


def why_not():
    if os.environ.get("WEIR_VARIANT") == "tsan" or os.environ.get("WEIR_EMULATOR"):
        return "drivers are not built for this"
    library = [line.split()[-1] for line in subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout.splitlines()
               if "libOpenCL.so.1 " in line and "x86-64" in line or "libOpenCL.so.1 " in line and "AArch64" in line]
    if not library:
        return "no OpenCL here"
    cc = next((c for c in (os.environ.get("CC"), "cc", "gcc", "clang") if c and shutil.which(c)), None)
    if not cc or subprocess.run([cc, "-shared", "-fPIC", "-O1", HERE + "/lib/opencl_faults.c", "-o", FAULTY, "-Wl,--no-as-needed", library[0], "-ldl"]).returncode:
        return "no compiler here makes a shared library"
    if not any(d["usable"] for d in opencl_rows(cl("devices", "--json"))):
        return "no OpenCL device here"
    return None


def main():
    reason = why_not()
    if reason:
        harness.where = "opencl.device"
        skip("device", reason)
    slow = [models] if ALL or "models" in sys.argv else []
    harness.main("opencl", [] if reason else slow + [listed, nothing_there, names, kernels, text, kept_by_the_driver, kept, faults, too_large, training])


main()
