#!/usr/bin/env python3
"""Training that is killed, on disks that fill up, and from damaged checkpoints (cases H01, H02, H05, H07).

The witness is a run of the same settings that nobody disturbs: the disturbed one must end with the same bytes of weights and moments
and the same losses. WEIR_SOAK=1: 200 kills instead of 8."""
import json, os, random, re, shutil, signal, subprocess, sys, tempfile, time

WEIR = os.path.abspath(os.environ.get("WEIR", "./weir"))
TEXT = os.path.abspath("../shared/cases/corpora/train_small.txt")
SOAK = bool(os.environ.get("WEIR_SOAK"))
SLOW = os.environ.get("WEIR_VARIANT", "") in ("asan", "tsan")
KILLS = 200 if SOAK else 3 if SLOW else 8
SHAPE = "--layers 2 --width 32 --heads 2 --ff 64 --ctx 16 --batch 4 --dropout 0.1 --eval-every 7 --eval-batches 2 --sample-tok 0".split()
passed = failed = skipped = 0
TMP = tempfile.mkdtemp(prefix="weir-crash")
ENV = dict(os.environ, WEIR_CACHE=os.path.join(TMP, "cache"))


def check(ok, why):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    if not ok:
        print("FAIL crash: %s" % why)
    return ok


def skip(name, why):
    global skipped
    skipped += 1
    print("SKIP crash.%s: %s" % (name, why))


def command(run, steps, *more):
    return [WEIR, "train", "--data", os.path.join(TMP, "shards"), "--out", run, "--steps", str(steps), "--threads", "2", *SHAPE, *more]


def train(run, steps, *more):
    p = subprocess.run(command(run, steps, *more), stdin=subprocess.DEVNULL, capture_output=True, env=ENV, timeout=240)
    return p.returncode, p.stderr.decode("utf-8", "replace")


def folder(run):
    return os.path.join(run, "checkpoints")


def names(run):
    return sorted(os.listdir(folder(run))) if os.path.isdir(folder(run)) else []


def newest(run):
    """the step of the checkpoint that `weir inspect` takes a run for; 0: none"""
    p = subprocess.run([WEIR, "inspect", run], capture_output=True, env=ENV)
    at = re.match(rb".*/step-(\d+)/model\.gguf", p.stdout)
    return int(at.group(1)) if at else 0


def lines(run):
    """the whole lines of metrics.jsonl that are steps"""
    path = os.path.join(run, "metrics.jsonl")
    if not os.path.exists(path):
        return []
    with open(path, "rb") as f:
        whole = f.read().split(b"\n")[:-1]
    return [m for m in map(json.loads, whole) if "loss" in m]


def bytes_of(run, step, name):
    with open(os.path.join(folder(run), "step-%d" % step, name), "rb") as f:
        return f.read()


def same_end(run, control, steps, what):
    for name in ("model.gguf", "optimizer.gguf"):
        check(bytes_of(run, steps, name) == bytes_of(control, steps, name), "%s: %s differs from the undisturbed run's" % (what, name))
    mine, theirs = lines(run), lines(control)
    check([m["step"] for m in mine] == list(range(1, steps + 1)), "%s: not every step stands once in metrics.jsonl" % what)
    check([m["loss"] for m in mine] == [m["loss"] for m in theirs], "%s: losses differ from the undisturbed run's" % what)


def killed(control, steps):
    run = os.path.join(TMP, "kills", "run")
    rng, survived, temps, deepest = random.Random(6), 0, 0, 0
    for k in range(KILLS):
        if SOAK and newest(run) >= steps:  # through before all kills were spent: once more from the beginning
            same_end(run, control, steps, "after %d kills" % k)
            shutil.rmtree(run)
        p = subprocess.Popen(command(run, steps, "--every", "1"), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, env=ENV)
        before = newest(run)
        begin, target = time.time(), before + rng.randint(2, 5)
        while time.time() - begin < 30 and p.poll() is None and len(lines(run)) < target and rng.random() < 0.999:
            time.sleep(0.002)  # some steps further; once in a while a kill comes earlier
        time.sleep(rng.random() * 0.02)
        p.send_signal(signal.SIGKILL)
        err = p.communicate()[1].decode("utf-8", "replace")
        survived += p.returncode == -signal.SIGKILL
        check(p.returncode in (0, -signal.SIGKILL), "kill %d: exit code %d: %s" % (k, p.returncode, err))
        done, saved = len(lines(run)), newest(run)
        last = lines(run)[-1]["step"] if done else 0
        check(saved >= last - 1, "kill %d: step %d was reported, but the newest checkpoint is %d" % (k, last, saved))
        check(saved >= before, "kill %d: the newest checkpoint was %d and is %d" % (k, before, saved))
        left = [n for n in names(run) if n.endswith(".tmp")]
        temps += len(left)
        deepest = max(deepest, saved)
        check(len(left) <= 1, "kill %d: %s" % (k, left))
    code, err = train(run, steps, "--every", "1")
    if check(code == 0, "resuming after the kills: exit code %d: %s" % (code, err)):
        same_end(run, control, steps, "after %d kills" % KILLS)
        check(not [n for n in names(run) if n.endswith(".tmp")], "temporary folders are left: %s" % names(run))
    check(survived >= KILLS // 3, "only %d of %d runs were killed" % (survived, KILLS))
    check(SLOW or deepest > 3, "no run came far: step %d" % deepest)
    print("  %d runs killed, %d temporary folders seen, furthest step %d of %d" % (survived, temps, deepest, steps))


def another_rhythm(control, steps):
    """How often a run is saved, and being stopped by a signal, change nothing."""
    run = os.path.join(TMP, "rhythm", "run")
    code, err = train(run, steps // 3, "--every", "5")
    check(code == 0, "a shorter run: exit code %d: %s" % (code, err))
    shutil.rmtree(run)
    p = subprocess.Popen(command(run, steps, "--every", "3"), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL, env=ENV)
    begin = time.time()
    while time.time() - begin < 60 and p.poll() is None and len(lines(run)) < steps // 4:
        time.sleep(0.005)
    code, err = train(run, steps) if p.poll() is None else (1, "another process trains")
    check(code == 1 and "another process trains" in err, "a second trainer in the same folder: exit code %d: %s" % (code, err))
    p.send_signal(signal.SIGTERM)
    check(p.wait(60) in (143, 0), "SIGTERM: exit code %d" % p.returncode)
    check(newest(run) == len(lines(run)), "SIGTERM: %d steps done, the checkpoint is of step %d" % (len(lines(run)), newest(run)))
    code, err = train(run, steps, "--every", "0")
    check(code == 0, "going on after SIGTERM: exit code %d: %s" % (code, err))
    same_end(run, control, steps, "with another --every")


def damaged(control, steps):
    """Each file of the newest checkpoint deleted, cut, flipped in turn: the one before is taken, and says so."""
    def flip(path):
        with open(path, "r+b") as f:
            f.seek(os.path.getsize(path) // 2)
            byte = f.read(1)
            f.seek(-1, 1)
            f.write(bytes([byte[0] ^ 4]))
    ways = {"deleted": os.unlink, "cut": lambda p: os.truncate(p, os.path.getsize(p) // 2), "flipped": flip}
    before = sorted(int(n[5:]) for n in names(control) if re.fullmatch(r"step-\d+", n))[-2]
    for name in ("model.gguf", "optimizer.gguf", "state.json", "manifest.json"):
        for way, do in ways.items():
            run = os.path.join(TMP, "damage", "run")
            shutil.rmtree(run, ignore_errors=True)
            shutil.copytree(control, run)
            do(os.path.join(folder(run), "step-%d" % steps, name))
            what = "%s %s" % (name, way)
            code, err = train(run, steps, "--every", "1")
            check(code == 0, "%s: exit code %d: %s" % (what, code, err))
            check(name in err, "%s: not named: %s" % (what, err))
            check("abandoned-step-%d" % steps in names(run) and "step-%d" % before in names(run), "%s: %s" % (what, names(run)))
            same_end(run, control, steps, what)


def mount(path, option):
    return subprocess.run(["mount", *option.split(), "tmpfs", path], capture_output=True).returncode == 0


def full_disk(steps):
    """A file system that fits one and a half checkpoints: a save fails and says so, the one before stays; with room again saves go on."""
    shape = ["--width", "96", "--ff", "256"]
    control = os.path.join(TMP, "roomy", "run")
    code, err = train(control, 20, "--every", "5", *shape)
    if not check(code == 0, "a larger model: exit code %d: %s" % (code, err)):
        return
    size = sum(os.path.getsize(os.path.join(folder(control), "step-20", n)) for n in os.listdir(os.path.join(folder(control), "step-20")))
    place = os.path.join(TMP, "small")
    os.mkdir(place)
    small, roomy = size * 3 // 2 + (1 << 20), size * 8
    if not mount(place, "-t tmpfs -o size=%d" % small):
        return skip("full_disk", "no file system can be mounted here")
    try:
        run = os.path.join(place, "run")
        code, err = train(run, 20, "--every", "5", *shape)
        check(code == 4, "a full disk: exit code %d: %s" % (code, err))
        check("No space left on device" in err, "a full disk: %s" % err)
        check([n for n in names(run)] == ["step-5"], "a full disk: %s" % names(run))
        check(newest(run) == 5, "a full disk: the newest checkpoint is %d" % newest(run))
        mount(place, "-o remount,size=%d" % roomy)
        code, err = train(run, 20, "--every", "5", *shape)
        check(code == 0, "with room again: exit code %d: %s" % (code, err))
        same_end(run, control, 20, "after a full disk")

        shutil.rmtree(run)
        mount(place, "-o remount,size=%d" % small)
        p = subprocess.Popen(command(run, 400, "--every", "5", *shape), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=open(os.path.join(TMP, "said"), "wb"), env=ENV)
        begin = time.time()
        while time.time() - begin < 60 and p.poll() is None and b"No space left" not in open(os.path.join(TMP, "said"), "rb").read():
            time.sleep(0.01)
        check(p.poll() is None, "the run ended at its first failed save: %d" % (p.returncode or 0))
        mount(place, "-o remount,size=%d" % roomy)
        check(p.wait(120) == 0, "a run that found room again: exit code %d" % p.returncode)
        check(newest(run) == 400, "a run that found room again: the newest checkpoint is %d" % newest(run))

        mount(place, "-o remount,ro")
        code, err = train(run, 500, "--every", "5", *shape)
        check(code == 1 and "Read-only" in err, "a read-only folder: exit code %d: %s" % (code, err))
        mount(place, "-o remount,rw")
        check(newest(run) == 400, "a read-only folder: the newest checkpoint is %d" % newest(run))
    finally:
        subprocess.run(["umount", place])


def main():
    steps = 240 if SOAK else 20 if SLOW else 80
    p = subprocess.run([WEIR, "data", "build", TEXT, "--tokenizer", "bytes", "--out", os.path.join(TMP, "shards")],
                       capture_output=True, env=ENV)
    control = os.path.join(TMP, "control", "run")
    code, err = train(control, steps, "--every", "1") if p.returncode == 0 else (p.returncode, p.stderr.decode())
    if check(code == 0, "the undisturbed run: exit code %d: %s" % (code, err)):
        killed(control, steps)
        another_rhythm(control, steps)
        damaged(control, steps)
        full_disk(steps)
    shutil.rmtree(TMP, ignore_errors=True)
    print("crash: %d passed, %d failed, %d skipped" % (passed, failed, skipped))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
