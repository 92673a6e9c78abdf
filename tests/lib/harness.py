"""What the Python tests of the command line share: running it, counting, and the end of a test's output."""
import functools, json, os, re, resource, shutil, subprocess, sys, tempfile, time

WEIR = os.path.abspath(os.environ.get("WEIR", "./weir"))
SAN = os.environ.get("WEIR_VARIANT", "") in ("asan", "tsan", "fuzz")
SECONDS = 60 if SAN else 5
SHARED = os.path.abspath("../shared")
TMP = tempfile.mkdtemp(prefix="weir-test-")
counts = {"passed": 0, "failed": 0, "skipped": 0}
where = ""  # "cli.streams": the test and its part


def check(ok, why):
    counts["passed" if ok else "failed"] += 1
    if not ok:
        print("FAIL %s: %s" % (where, why), flush=True)
    return ok


def skip(what, why):
    counts["skipped"] += 1
    print("SKIP %s.%s: %s" % (where.partition(".")[0], what, why))


class Ran:
    def __init__(self, args, rc, out, err):
        self.args, self.rc, self.out, self.err = args, rc, out, err
        if re.search(rb"Sanitizer|runtime error:|Assertion", err):  # whatever the exit code
            check(False, "%r" % self)

    def __repr__(self):
        shown = [str(a)[:60] for a in self.args]
        return "%s: exit %s, out %r, err %r" % (" ".join(shown), self.rc, self.out[:200], self.err[-400:])

    def json(self):
        """the object on stdout by RFC 8259: no NaN, no key twice, nothing else there; None: it is not that"""
        def pairs(items):
            if len(dict(items)) != len(items):
                raise ValueError("a key twice")
            return dict(items)

        def constant(name):
            raise ValueError(name)

        try:
            return json.loads(self.out.decode("utf-8"), parse_constant=constant, object_pairs_hook=pairs)
        except ValueError as e:
            check(False, "no strict JSON (%s): %r" % (e, self))
            return None


def run(*args, stdin=b"", env=None, limit_kb=0, before=(), seconds=0, preexec=None):
    def prepare():
        if limit_kb and not SAN:  # sanitizers reserve address space by the terabyte
            resource.setrlimit(resource.RLIMIT_AS, (limit_kb * 1024,) * 2)
        if preexec:
            preexec()

    full = [*before, WEIR, *map(str, args)]
    try:
        p = subprocess.run(full, input=stdin, capture_output=True, timeout=seconds or SECONDS * 4, preexec_fn=prepare,
                           env=dict(os.environ, **(env or {})))
        return Ran(full, p.returncode, p.stdout, p.stderr)
    except subprocess.TimeoutExpired as e:
        return Ran(full, "timeout", e.stdout or b"", e.stderr or b"")


def refused(r, code, *words):
    """the right exit code, nothing on stdout, and a sentence that holds the words"""
    text = r.err.decode("utf-8", "replace")
    return check(r.rc == code and not r.out and len(text) > 20 and all(w in text for w in words),
                 "wanted exit %d and a sentence with %s: %r" % (code, words, r))


@functools.cache
def devices():
    """the devices beside the CPU that run kernels here, by name; $DEVICES names others"""
    if os.environ.get("DEVICES"):
        return os.environ["DEVICES"].split(",")
    found = run("devices", "--json", seconds=SECONDS * 12).json()["devices"]
    opencl = [d["name"] for d in found if d["name"].startswith("opencl") and d["usable"]]
    if not opencl:
        skip("opencl", "no OpenCL device here")
    return ["emu", *opencl]


def main(name, parts):
    """run the parts (all, or those named on the command line), print the counts and leave. A part that breaks is one failure"""
    global where
    only = sys.argv[1:]
    try:
        for fn in parts:
            where = "%s.%s" % (name, fn.__name__)
            if only and fn.__name__ not in only:
                continue
            started = time.time()
            try:
                fn()
            except Exception as e:
                check(False, "%s: %s" % (type(e).__name__, e))
            if os.environ.get("TIMES"):
                print("%6.1f s  %s" % (time.time() - started, fn.__name__), flush=True)
    finally:
        shutil.rmtree(TMP, ignore_errors=True)
    print("%s: %d passed, %d failed, %d skipped" % (name, counts["passed"], counts["failed"], counts["skipped"]))
    sys.exit(counts["failed"] > 0)
