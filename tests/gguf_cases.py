#!/usr/bin/env python3
"""`weir inspect` on crafted files (../shared/cases/gguf) within limits of memory and time, and on good ones against the
gguf package."""
import glob, json, math, os, resource, subprocess, sys

WEIR = os.environ.get("WEIR", "./weir")
SAN = os.environ.get("WEIR_VARIANT", "") in ("asan", "tsan", "fuzz")
SECONDS = 60 if SAN else 5
CASES = "../shared/cases/gguf"
passed = failed = skipped = 0


def check(name, ok, why=""):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    if not ok:
        print("FAIL gguf_cases.%s: %s" % (name, why))


def skip(name, why):
    global skipped
    skipped += 1
    print("SKIP gguf_cases.%s: %s" % (name, why))


def limit():
    if not SAN:  # sanitizers reserve address space by the terabyte
        resource.setrlimit(resource.RLIMIT_AS, (2000000 * 1024,) * 2)


def inspect(*args):
    """exit code, stdout, stderr; -1 for a timeout"""
    try:
        p = subprocess.run([WEIR, "inspect", *args], stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS,
                           preexec_fn=limit)
    except subprocess.TimeoutExpired:
        return -1, b"", b""
    return p.returncode, p.stdout, p.stderr


def strict(text):
    """JSON as RFC 8259 has it: UTF-8, no NaN, no key twice in an object"""
    def pairs(items):
        assert len(dict(items)) == len(items), "a key twice"
        return dict(items)

    def constant(name):
        raise ValueError(name)

    return json.loads(text.decode("utf-8"), parse_constant=constant, object_pairs_hook=pairs)


def controls(b):
    """what a terminal might obey, and bytes that are not UTF-8 (which come as lone surrogates)"""
    text = b.decode("utf-8", "surrogateescape")
    return [c for c in text if (c < " " and c != "\n") or "\x7f" <= c <= "\x9f" or "\ud800" <= c <= "\udfff"]


def good(name, path):
    """both outputs of a sound file: exit 0, valid, escaped; gives the object"""
    rc, out, err = inspect(path, "--tensors", "--meta")
    check(name, rc == 0 and out and not err and not controls(out), "text: exit %d, %r" % (rc, err[:300]))
    rc, out, err = inspect(path, "--json")
    try:
        check(name, rc == 0 and not err and not controls(out), "json: exit %d, %r" % (rc, err[:300]))
        found = strict(out)
        check(name, {"format", "arch", "parameters", "tensors", "metadata"} <= set(found), "keys %s" % list(found))
        return found
    except (ValueError, AssertionError) as e:
        check(name, False, "no valid JSON: %s" % e)
        return None


def crafted():
    if not os.path.isdir(CASES):
        return skip("crafted", "%s is not there" % CASES)
    for name, case in json.load(open(CASES + "/manifest.json")).items():
        path = os.path.join(CASES, name)
        # impossible parameters and hostile templates are the loader's to refuse: their container is sound
        if case["bug"] in ("A10", "I01", "C01") or case["expect"] == "accept":
            good(name, path)
            continue
        for form in ([], ["--json"]):
            rc, out, err = inspect(path, *form)
            one_line = err.count(b"\n") == 1 and len(err) > 20 and os.path.basename(name).encode() in err
            check(name, rc == 3 and not out and one_line and not controls(err),
                  "exit %d, out %r, err %r" % (rc, out[:200], err[:300]))
    shown = good("A11", CASES + "/97_name_format_string.gguf")
    check("A11", shown and shown["metadata"]["general.name"].startswith("%s%s%n"), "general.name")


def usage():
    for args, want in (([], 2), (["--what"], 2), (["a", "b"], 2), (["/nowhere/x.gguf"], 1), (["tests"], 3), (["Makefile"], 3)):
        rc, out, err = inspect(*args)
        check("usage", rc == want and not out and err, "%s: exit %d, not %d" % (args, rc, want))


def same(ours, theirs):
    if isinstance(theirs, float):  # nine digits of a float32 give back the float, not the double
        return ours is None if not math.isfinite(theirs) else abs(ours - theirs) <= abs(theirs) * 1e-8
    return ours == theirs


def witness():
    try:
        import gguf
    except ImportError:
        return skip("witness", "no Python package gguf")
    # the package says 40 bytes for a block of Q8_1, which is never stored; ggml's structure has 36
    sizes = {t: s for t, s in gguf.constants.GGML_QUANT_SIZES.items() if t.name != "Q8_1"}
    # few and small ones: the package takes seconds for a long list of tokens
    files = sorted(glob.glob("tests/golden/*.gguf") + glob.glob("../shared/cases/models/*.gguf"))
    files += glob.glob("../shared/data/vocab/ggml-vocab-llama-spm.gguf")
    for path in files:
        name, reader, found = os.path.basename(path), gguf.GGUFReader(path), good(os.path.basename(path), path)
        if not found:
            continue
        ours = {t["name"]: (t["type"], t["shape"], t["bytes"], t["offset"]) for t in found["tensors"]}
        theirs = {t.name: (t.tensor_type.name, [int(x) for x in t.shape], int(t.n_bytes), int(t.data_offset))
                  for t in reader.tensors}
        check(name, ours == theirs, "tensors differ")
        check(name, found["parameters"] == sum(int(t.n_elements) for t in reader.tensors), "parameters")
        rc, out, _ = inspect(path, "--json", "--meta")
        meta = strict(out)["metadata"]
        keys = [k for k in reader.fields if not k.startswith("GGUF.")]
        check(name, list(meta) == keys, "keys of metadata: %s" % (set(meta) ^ set(keys)))
        for key in keys:
            field = reader.fields[key]
            value = field.contents()
            if field.types[-1] == gguf.GGUFValueType.STRING:  # the package decodes strictly: the same text
                check(name, meta[key] == value, key)
            elif isinstance(value, list):
                check(name, len(meta[key]) == len(value) and all(map(same, meta[key], value)), key)
            else:
                check(name, same(meta[key], value), key)
    # the type table, through files that hold one block of each type
    made = os.path.join(os.environ.get("WEIR_CACHE", "/tmp"), "types.gguf")
    w = gguf.GGUFWriter(made, "types")
    for t, (elements, nbytes) in sizes.items():
        w.add_tensor_info(t.name, [2, nbytes], __import__("numpy").dtype("uint8"), 2 * nbytes, raw_dtype=t)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    with open(made, "ab") as f:
        f.write(bytes(sum(2 * n + 32 for _, n in sizes.values())))
    found = good("types", made)
    for t in (found or {"tensors": []})["tensors"]:
        elements, nbytes = sizes[gguf.GGMLQuantizationType[t["name"]]]
        check("types", t["type"] == t["name"] and t["shape"] == [elements, 2] and t["bytes"] == 2 * nbytes, "%s" % t)
    check("types", found and len(found["tensors"]) == len(sizes), "count")
    os.unlink(made)


crafted()
usage()
witness()
print("gguf_cases: %d passed, %d failed, %d skipped" % (passed, failed, skipped))
sys.exit(failed > 0)
