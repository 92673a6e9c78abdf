#!/usr/bin/env python3
"""Training through the command line: the failure cases B02 B11, F05 F06 F08 F09 F13, G01-G07, H01 H02 H05 H07, J07 J08 (shared/cases/CASES.md) as a
user meets them, with models that train in a second; signals, exit codes, JSON, the trace. Longer loops are in `make soak`; what needs the C API
(H11, failing writes) is in the C tests."""
import array, collections, fcntl, glob, json, math, os, pty, random, re, resource, shutil, signal, struct, subprocess, sys, termios, threading, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import harness
from harness import SAN, SECONDS, SHARED, TMP, WEIR, check, refused, run, skip
from runs import checkpoints, lines, weights

CORPORA, VOCAB = SHARED + "/cases/corpora", SHARED + "/data/vocab"
IDS97, SMALL = CORPORA + "/ids97.jsonl", CORPORA + "/train_small.txt"
SHAPE = ("--layers", "2", "--width", "32", "--heads", "2", "--ff", "64", "--ctx", "32", "--threads", "2")
BYTES = ("--tokenizer", "bytes")
QUIET = ("--sample-tok", "0", "--eval-every", "0")
KILLS = 4 if SAN else 10
random.seed(int(os.environ.get("SEED", "1")))


def folder(name):
    return "%s/%s" % (TMP, name)


def train(out, data, *args, **more):
    given = ("--data", data) if data else ()
    return run("train", *given, "--out", out, *SHAPE, *QUIET, *args, seconds=more.pop("seconds", SECONDS * 12), **more)


def trained(out, data, *args, **more):
    r = train(out, data, *args, **more)
    check(r.rc == 0, "%r" % r)
    return r


def events(out):
    with open(out + "/metrics.jsonl") as f:
        return [m for m in map(json.loads, f) if "event" in m]


def same_run(a, b):
    """the figures that a run is made of, without its times"""
    keys = ("step", "loss", "lr", "grad_norm", "tokens", "step_tok", "samples", "val_loss")
    return [[m.get(k) for k in keys] for m in lines(a)] == [[m.get(k) for k in keys] for m in lines(b)]


def norm(x):
    return math.sqrt(math.fsum(v * v for v in x))


def logits(model):
    r = run("logits", model, "--tokens", "72,101,108,108,111", "--json", seconds=SECONDS * 4)
    check(r.rc == 0, "%r" % r)
    return (r.json() or {}).get("hash") if r.rc == 0 else None


def start(out, data, *args, env=None):
    given = ("--data", data) if data else ()
    return subprocess.Popen([WEIR, "train", *given, "--out", out, *SHAPE, *QUIET, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, env=dict(os.environ, **(env or {})))


def wait_for_step(out, step, p, seconds=60):
    """until metrics.jsonl has this step, or the process ended"""
    end = time.time() + seconds
    while time.time() < end and p.poll() is None:
        try:
            m = lines(out)
            if m and m[-1]["step"] >= step:
                return True
        except (OSError, ValueError):
            pass
        time.sleep(.003)
    return False


def killed_and_resumed(out, data, last, *args):
    """kill -9 at KILLS random steps, then to the end; how often it was killed"""
    kills = 0
    for at in sorted(random.sample(range(2, last), KILLS)):
        p = start(out, data, *args)
        wait_for_step(out, at, p)
        time.sleep(random.random() * .02)
        kills += p.poll() is None
        p.kill()
        p.communicate()
    trained(out, data, *args)
    return kills


def shards(name, data, *args):
    out = folder(name)
    if not os.path.isdir(out):
        r = run("data", "build", data, "--out", out, *(args or BYTES), seconds=SECONDS * 12)
        check(r.rc == 0, "%r" % r)
    return out


def write(name, text):
    path = folder(name)
    with open(path, "wb") as f:
        f.write(text if isinstance(text, bytes) else text.encode())
    return path


# ------------------------------------------------------------------------------------------------------------------- the command

def whole_run():
    """what a run prints and leaves; that it learns; that its folder is a model"""
    out = folder("whole")
    r = run("train", "--data", SMALL, *BYTES, "--out", out, *SHAPE, "--steps", "60", "--eval-every", "20", "--every", "20", "--sample-tok", "8", "--lr", "3e-3",
            "--sample-prompt", "The", seconds=SECONDS * 12)
    if not check(r.rc == 0, "%r" % r):
        return
    err, text = r.err.decode(), r.out.decode()
    for words in ("parameters", "FLOP a token", "memory", "decays", "does not", "token_embd.weight", "blk.*.attn_norm.weight", "validation", "step 1/60", "step 60/60"):
        check(words in err, "stderr lacks %s: %s" % (words, err))
    check("\r" not in err and "\x1b" not in err + text, "no drawing where there is no terminal")
    check(re.search(r"copying [\d.e+-]+ %, waiting for data [\d.e+-]+ %, \d+ bytes a token", text) and "whole/report.html" in text and "weir generate " in text and
          "loss" in text, "stdout: %s" % text)
    m = lines(out)
    check([x["step"] for x in m] == list(range(1, 61)), "a line a step")
    keys = {"step", "loss", "lr", "grad_norm", "tokens", "tok_s", "mfu", "loss_scale", "skipped", "seconds", "payload_copied", "bytes_copied"}
    for x in m:
        s = x["seconds"]
        parts = sum(s[k] for k in ("data", "copy", "forward", "backward", "optimizer", "checkpoint", "other"))
        if not check(keys <= set(x) and abs(parts - s["total"]) <= .01 * s["total"], "keys, or the parts of a step's time: %s" % x):
            break
    check([x["step"] for x in m if "val_loss" in x] == [20, 40, 60], "validations")
    check(math.fsum(x["loss"] for x in m[-5:]) < .75 * math.fsum(x["loss"] for x in m[:5]), "it does not learn: %s" % [x["loss"] for x in m[::10]])
    for f in ("config.json", "metrics.jsonl", "report.html", "samples.jsonl"):
        check(os.path.exists(out + "/" + f), "no " + f)
    check(checkpoints(out)[-1] == 60 and 2 <= len(checkpoints(out)) <= 4, "checkpoints: %s" % checkpoints(out))
    g = run("generate", out, "-p", "The", "-n", "8", "--json", seconds=SECONDS * 4)
    check(g.rc == 0 and len((g.json() or {}).get("tokens", [])) == 8, "a run is a model: %r" % g)
    again = train(out, SMALL, *BYTES, "--steps", "60", "--lr", "3e-3")
    check(again.rc == 0 and len(lines(out)) == 60 and b"length already" in again.err, "a run that is done: %r" % again)
    more = run("train", "--data", SMALL, "--out", out, "--steps", "64", seconds=SECONDS * 12)
    check(more.rc == 0 and len(lines(out)) == 64 and b"goes on after step 60" in more.err, "made longer: %r" % more)
    other = run("train", "--data", SMALL, "--out", out, "--steps", "70", "--width", "64")
    refused(other, 2, "width")
    refused(run("train", "--out", out, "--lr", "1e-3"), 2, "says lr 0.003,")
    check(len(lines(out)) == 64, "a refused run changed something")


def json_lines():
    """--json: JSON lines alone on stdout, nothing on stderr"""
    out, trace = folder("json"), folder("trace.json")
    r = trained(out, SMALL, *BYTES, "--steps", "8", "--json", "--trace", trace)
    objects = [json.loads(x, parse_constant=lambda c: check(False, "constant " + c)) for x in r.out.decode().splitlines()]
    check(not r.err and "run" in objects[0] and "end" in objects[-1] and [x["step"] for x in objects[1:-1]] == list(range(1, 9)), "%r" % r)
    facts = objects[0]["run"]
    check(facts["parameters"] == sum(t["elements"] for t in facts["tensors"]) and sum(facts["memory"].values()) == facts["planned_bytes"] and facts["flop_tok"] > 0,
          "facts that do not add up: %s" % facts)
    spans = [e for e in json.load(open(trace))["traceEvents"] if e["ph"] == "X"]
    steps = {e["name"]: e for e in spans if e["cat"] == "step"}
    check(len(steps) == 3 and {"forward", "backward", "optimizer"} <= {e["cat"] for e in spans}, "trace: %s" % [e["name"] for e in spans][:20])
    covered = []
    for name, whole in steps.items():
        inside = [e for e in spans if e["args"] == whole["args"] and e is not whole]
        check(all(whole["ts"] - 1 <= e["ts"] and e["ts"] + e["dur"] <= whole["ts"] + whole["dur"] + 1 for e in inside), "%s of the trace: a span outside" % name)
        covered.append(sum(e["dur"] for e in inside) / whole["dur"])
    check(covered and max(covered) > .8, "what the spans of a step cover of it: %s" % covered)  # a busy machine leaves gaps in some
    full = train(folder("trace-full"), SMALL, *BYTES, "--steps", "6", "--trace", "/dev/full")
    check(full.rc == 4 and b"/dev/full: No space left" in full.err and checkpoints(folder("trace-full")) == [6], "a trace on a full disk: %r" % full)
    dry = run("train", "--data", SMALL, *BYTES, *SHAPE, "--dry-run", seconds=SECONDS * 4)
    check(dry.rc == 0 and b"parameters" in dry.err and b"memory" in dry.err and not dry.out, "%r" % dry)


def words():
    """wrong usage is exit 2 and names what is wrong; nothing is left behind"""
    out = folder("words")
    for args, parts in ((("--lr", "fast"), ("lr", "fast")), (("--lr", "nan"), ("lr",)), (("--batch", "0"), ("batch",)), (("--arch", "llma"), ("arch", "llama")),
                        (("--size", "7"), ("size",)), (("--schedule", "cos"), ("cosine",)), (("--decay-kinds", "all"), ("decay",)), (("--heads", "3"), ("heads",)),
                        (("--every", "often"), ("every",)), (("--kv-heads", "7"), ("kv",)), (("--steps", "-1"), ("steps",)), (("--dropout", "1"), ("dropout",)),
                        (("--stpes", "1"), ("--steps",)), (("--temp", "1"), ("--temp",))):
        refused(train(out, SMALL, *BYTES, *args), 2, *parts)
    refused(run("train", "--data", SMALL), 2, "--out")
    refused(run("train", "--out", out, *SHAPE), 2, "data")
    refused(train(out, folder("nowhere.txt"), *BYTES), 1, "nowhere.txt")
    refused(train(out, SMALL, "--tokenizer", SMALL), 3, "train_small.txt")
    refused(train(out, SMALL, *BYTES, "--config", folder("none.json")), 1, "none.json")
    for text, code, parts in (("{\"steps\": 3, \"lr\": \"x\"}", 2, ("lr",)), ("{\"stepps\": 3}", 2, ("stepps",)), ("{\"steps\": ", 3, ())):
        refused(train(out, SMALL, *BYTES, "--config", write("c.json", text)), code, *parts)
    trained(folder("config"), SMALL, *BYTES, "--config", write("c.json", "{\"steps\": 3, \"lr\": 0.5, \"batch\": 2}"), "--lr", "0.25", "--schedule", "constant", "--warmup", "0")
    m = lines(folder("config"))
    check(len(m) == 3 and m[-1]["lr"] == .25 and m[0]["step_tok"] == 64, "a configuration file under the command line: %s" % m)


def signals():
    """Ctrl-C and SIGTERM save and leave; the second one does not wait; the run goes on with the same bits"""
    args = (SMALL, *BYTES, "--steps", "400", "--every", "0", "--batch", "2")
    for name, number, code in (("int", signal.SIGINT, 130), ("term", signal.SIGTERM, 143)):
        out = folder(name)
        p = start(out, *args)
        wait_for_step(out, 20, p)
        p.send_signal(number)
        text, err = p.communicate(timeout=60)
        last = lines(out)[-1]["step"]
        check(p.returncode == code and 20 <= last < 400 and checkpoints(out) == [last], "%s: exit %d at step %d, checkpoints %s: %r" %
              (name, p.returncode, last, checkpoints(out), err[-300:]))
        check(b"which is saved" in err and b"weir train --out" in text, "%s: %r %r" % (name, err[-300:], text[-300:]))
    r = trained(folder("int"), *args)
    check(b"goes on after step" in r.err, "it says from which step: %r" % r)
    check([e["event"] for e in events(folder("int"))] == ["resume"], "events: %s" % events(folder("int")))
    trained(folder("control"), *args)
    check(same_run(folder("int"), folder("control")) and weights(folder("int")) == weights(folder("control")), "another run after Ctrl-C")


def nobody_there():
    """the terminal is closed, or what reads the lines has ended: saves and leaves, too; nohup is heeded"""
    args = (SMALL, *BYTES, "--every", "0", "--batch", "2")
    for name, ignored in (("hup", False), ("nohup", True)):
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
        p = start(folder(name), *args, "--steps", "200")
        signal.signal(signal.SIGHUP, before)
        wait_for_step(folder(name), 5, p)
        p.send_signal(signal.SIGHUP)
        text, err = p.communicate(timeout=60)
        check(p.returncode == (0 if ignored else 129) and checkpoints(folder(name)) == [lines(folder(name))[-1]["step"]], "%s: exit %d: %r" % (name, p.returncode, err[-300:]))
    p = start(folder("pipe"), *args, "--steps", "100000", "--json")
    p.stdout.readline()
    p.stdout.close()
    err = p.stderr.read()
    check(p.wait(60) == 141 and checkpoints(folder("pipe")) == [lines(folder("pipe"))[-1]["step"]], "exit %d: %r" % (p.returncode, err[-300:]))


def file_size_limit():
    """ulimit -f: a sentence and the exit code of a full disk, no signal"""
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    for name, args in (("data", ("data", "build", SMALL, *BYTES, "--out", folder("fsize-shards"))), ("bench", ("bench", "data")),
                       ("train", ("train", "--data", SMALL, *BYTES, "--out", folder("fsize"), *SHAPE, *QUIET, "--steps", "3"))):
        p = subprocess.run([WEIR, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=limit, timeout=60)
        check(p.returncode == 4 and b"File too large" in p.stderr, "%s: exit %d: %r" % (name, p.returncode, p.stderr[-300:]))


def second_signal():
    """a second Ctrl-C ends at once; the run goes on from the checkpoint before"""
    out = folder("twice")
    args = (SMALL, *BYTES, "--steps", "12", "--every", "5", "--batch", "2")
    p = start(out, *args, "--width", "128", "--ff", "512", "--layers", "8")
    wait_for_step(out, 6, p)
    p.send_signal(signal.SIGSTOP)  # so that both are there before it can do anything
    p.send_signal(signal.SIGINT)
    p.send_signal(signal.SIGTERM)
    p.send_signal(signal.SIGCONT)
    started = time.time()
    p.communicate(timeout=60)
    check(p.returncode in (130, 143) and (SAN or time.time() - started < 2), "exit %d after %.1f s" % (p.returncode, time.time() - started))
    r = run("train", "--out", out, seconds=SECONDS * 12)
    check(r.rc == 0 and lines(out)[-1]["step"] == 12, "%r" % r)


def on_a_terminal():
    """the line that is drawn over itself fits the width and speaks the locale; the plot too"""
    for locale, columns, cell, kind in (("C.UTF-8", 100, "█", "xterm"), ("C", 90, "#", "xterm"), ("C.UTF-8", 40, "", "xterm"), ("C", 80, "", "dumb")):
        out = folder("tty-%s-%d" % (locale, columns))
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
        p = subprocess.Popen([WEIR, "train", "--data", SMALL, *BYTES, "--out", out, *SHAPE, "--steps", "200", "--batch", "2", "--eval-every", "100", "--sample-tok", "0"],
                             stdin=subprocess.DEVNULL, stdout=slave, stderr=slave, env=dict(os.environ, LC_ALL=locale, TERM=kind))
        os.close(slave)
        got = b""
        try:
            while True:
                got += os.read(master, 65536)
        except OSError:
            os.close(master)
        text = got.decode("utf-8", "surrogateescape")
        check(("\x1b" in text) == (kind != "dumb"), "%s: sequences: %r" % (kind, text[-300:]))
        drawn = [x.split("\x1b")[0] for x in re.split("[\r\n]", text) if "tok/s" in x and "loss" in x]
        check(p.wait() == 0 and drawn and all(len(x) < columns or kind == "dumb" for x in drawn), "%s %d: %s" % (locale, columns, drawn[:3]))
        check(not cell or any(cell in x for x in drawn), "no bar: %s" % drawn[:3])
        plot = [x.rstrip("\r") for x in text.split("\n") if re.match(r" *[\d.]+ [┤|]", x)]
        check(len(plot) >= 4 and all(len(x) <= columns for x in plot) and (locale != "C" or text.isascii()), "%s: the plot %s" % (locale, plot))
        check(re.search("validation loss [0-9.]+\r?\n", text), "a validation has a line of its own")


# ---------------------------------------------------------------------------------------------------------------------- training

def partial_group():
    """F05: the last group of an epoch is stepped with its true size; no token is lost or counted twice; three documents with accumulation 4 train"""
    data = shards("ids97", IDS97)
    tokens = json.loads(run("data", "stats", data, "--json").out)
    out = folder("f05")
    trained(out, data, "--batch", "4", "--accumulate", "5", "--epochs", "2", "--log-sample-ids", "on")
    m = lines(out)
    per_epoch = collections.Counter(tuple(s) for x in m for s in x["samples"])
    samples = {k for k in per_epoch if k[1] == 0}
    check(set(per_epoch.values()) == {1} and len([k for k in per_epoch if k[1] == 1]) == len(samples), "each sample once an epoch")
    check(len(m) == 2 * math.ceil(len(samples) / 20), "%d steps for 2 epochs of %d samples, 20 a step" % (len(m), len(samples)))
    sizes = [len(x["samples"]) for x in m]
    check(set(sizes[:len(m) // 2 - 1]) == {20} and sizes[len(m) // 2 - 1] == len(samples) - 20 * (len(m) // 2 - 1), "sizes of the steps: %s" % sizes)
    check(sum(x["step_tok"] for x in m) == m[-1]["tokens"], "tokens of the steps and of the run: %s" % tokens)
    three = write("three.jsonl", "".join(json.dumps({"text": "document %d, a short one of a few words" % i}) + "\n" for i in range(3)))
    runs = {}
    for lr in ("0", "1e-2"):
        trained(folder("f05-" + lr), three, *BYTES, "--batch", "1", "--accumulate", "4", "--steps", "1", "--warmup", "0", "--lr", lr)
        runs[lr] = weights(folder("f05-" + lr))
    check(all(runs["0"][k] != runs["1e-2"][k] for k in runs["0"]), "parameters that did not change: %s" % [k for k in runs["0"] if runs["0"][k] == runs["1e-2"][k]])


def other_data_after_resume():
    """F06, H01 (short): kill -9 at random steps over three epochs; samples, losses and final weights are the undisturbed run's"""
    data = shards("ids97", IDS97)
    args = ("--batch", "8", "--epochs", "3", "--log-sample-ids", "on", "--every", "3", "--dropout", "0.1", "--schedule", "wsd")
    control, out = folder("f06-control"), folder("f06")
    trained(control, data, *args)
    last = lines(control)[-1]["step"]
    kills = killed_and_resumed(out, data, last, *args)
    check(kills >= KILLS // 2, "killed only %d times" % kills)
    check([m.get("samples") for m in lines(control)] == [m.get("samples") for m in lines(out)], "other samples after a resume")
    check(same_run(control, out) and weights(control) == weights(out), "other figures or weights after a resume")
    check(checkpoints(out)[-1] == last, "checkpoints: %s" % checkpoints(out))
    # text that is tokenised as it is read, with other numbers of workers after each kill
    control, out = folder("f06-text-control"), folder("f06-text")
    args = (SMALL, *BYTES, "--batch", "4", "--steps", "40", "--log-sample-ids", "on", "--every", "5", "--shuffle-window", "64")
    trained(control, *args)
    for at, workers in ((7, "1"), (18, "3"), (29, "2")):
        p = start(out, *args, "--workers", workers)
        wait_for_step(out, at, p)
        p.kill()
        p.communicate()
    trained(out, *args, "--workers", "4")
    check(same_run(control, out) and weights(control) == weights(out), "text: other samples or weights after a resume")


def not_finite():
    """a learning rate that breaks everything: named by its first tensor, stopped, skipped or rolled back, and no checkpoint holds it"""
    data = shards("small", SMALL)
    args = ("--batch", "4", "--steps", "40", "--lr", "1e6", "--schedule", "constant", "--warmup", "0", "--clip", "0", "--every", "1", "--max-skips", "4")
    for how in ("stop", "skip", "rollback"):
        out = folder("nan-" + how)
        r = train(out, data, *args, "--on-nan", how)
        told = [e for e in events(out) if e["event"] == "nan"]
        check(r.rc == 1 and re.search(r"(gradient|weights) of \S+\.(weight|bias) (is|are) not finite", r.err.decode()) and b"run stops" in r.err, "%s: %r" % (how, r))
        check(len(told) >= 1 and all("not finite" in e["text"] for e in told), "%s: events %s" % (how, told))
        check(os.path.exists(out + "/report.html"), "%s: no report of the run that failed" % how)
        check(how == "stop" or b"in a row" in r.err, "%s does not say how often: %r" % (how, r))
        for step in checkpoints(out):
            check(all(math.isfinite(math.fsum(x)) for x in weights(out, step).values()), "%s: the checkpoint of step %d is not finite" % (how, step))
        check(checkpoints(out) and logits(out), "%s: no checkpoint to use" % how)


def tied_embeddings():
    """F08: tied is stored once, untied twice; both reload with the same logits, also as one GGUF file"""
    found = {}
    for arch in ("llama", "gpt2"):
        for tied in ("yes", "no"):
            out = folder("f08-%s-%s" % (arch, tied))
            r = trained(out, SMALL, *BYTES, "--arch", arch, "--tied", tied, "--steps", "2", "--batch", "2", "--json")
            facts = json.loads(r.out.splitlines()[0])["run"]
            w = weights(out)
            check(("output.weight" in w) == (tied == "no"), "%s tied %s: %s" % (arch, tied, list(w)))
            check(sum(map(len, w.values())) == facts["parameters"], "parameters: %d in the file, %d said" % (sum(map(len, w.values())), facts["parameters"]))
            found[arch, tied] = facts["parameters"]
            want, gguf = logits(out), "%s.gguf" % out
            check(run("convert", out, "--out", gguf).rc == 0 and logits(gguf) == want, "%s tied %s: other logits after convert" % (arch, tied))
        vocab = len(weights(folder("f08-%s-no" % arch))["output.weight"])
        check(found[arch, "no"] - found[arch, "yes"] == vocab, "the tied table counts once: %s" % found)


def decay_by_kind():
    """F09: with a decay of 100 and a tiny learning rate, norms and biases stay and matrices shrink; the kinds are listed and can be chosen"""
    constant = write("constant.txt", "a" * 20000)
    for arch in ("llama", "gpt2"):
        runs = {}
        for name, args in (("still", ("--lr", "0")), ("decayed", ("--lr", "1e-5")), ("norms", ("--lr", "1e-5", "--decay-kinds", "norm"))):
            out = folder("f09-%s-%s" % (arch, name))
            r = trained(out, constant, *BYTES, "--arch", arch, "--weight-decay", "100", "--steps", "50", "--batch", "2", "--schedule", "constant", "--warmup", "0",
                        *args)
            runs[name] = weights(out)
            listed = r.err.decode()
            check("decays" in listed and "does not" in listed, "the lists: %s" % listed)
        factor = (1 - 1e-3) ** 50
        for key, x in runs["still"].items():
            y, z = runs["decayed"][key], runs["norms"][key]
            vector = "norm" in key or key.endswith(".bias")
            step = 60e-5 * math.sqrt(len(x))  # 50 steps of AdamW move an element by at most about 50 lr
            want = norm(x) * (1 if vector else factor)
            check(abs(norm(y) - want) <= step and (vector or norm(y) < norm(x)), "%s %s: %.5f, wanted %.5f" % (arch, key, norm(y), want))
            gain = "norm" in key and key.endswith("weight")
            check(abs(norm(z) - norm(x) * (factor if gain else 1)) <= step, "%s %s with norms only: %.5f of %.5f" % (arch, key, norm(z), norm(x)))


def validation_loss():
    """F13: the same for every batch size"""
    ragged = write("ragged.jsonl", "".join(json.dumps({"text": "word " * random.randint(1, 60) + str(i)}) + "\n" for i in range(120)))
    for name, data in (("ragged", ragged), ("ids97", IDS97)):
        built = shards("val-" + name, data, *BYTES, "--val", "0.3")
        got = []
        for batch in ("1", "3", "16", "97"):
            out = folder("f13-%s-%s" % (name, batch))
            trained(out, built, "--batch", batch, "--steps", "1", "--lr", "0", "--eval-every", "1", "--eval-batches", "0")
            got.append(lines(out)[-1]["val_loss"])
        check(max(got) - min(got) <= 1e-6, "%s: %s" % (name, got))


def other_tokenizer():
    """B11: a model and data of other tokenizers are refused, with both numbers; so is a run that goes on with other shards"""
    small, data = folder("b11-model"), shards("ids97", IDS97)
    trained(small, SMALL, *BYTES, "--steps", "1", "--batch", "2")
    other = shards("b11-spm", SMALL, "--tokenizer", VOCAB + "/" + os.path.basename(sorted(glob.glob(VOCAB + "/*spm*.gguf"))[0]))
    refused(train(folder("b11"), other, "--init", small + "/checkpoints/step-1/model.gguf", "--steps", "1"), 3, "tokenizer")
    r = train(folder("b11-rows"), data, "--vocab", "100", "--steps", "1")
    check(r.rc in (2, 3) and b"entries" in r.err and b"100" in r.err, "%r" % r)
    trained(folder("b11-run"), data, "--steps", "2", "--batch", "2")
    refused(train(folder("b11-run"), other, "--steps", "4", "--batch", "2"), 3, "tokenizer")


# -------------------------------------------------------------------------------------------------------------------------- data

def bos():
    """B02: shards have one BOS a document where the tokenizer asks for it, else one EOS; never two"""
    for path in sorted(glob.glob(VOCAB + "/*.gguf")):
        out = folder("b02-" + os.path.basename(path))
        r = run("data", "build", IDS97, "--tokenizer", path, "--out", out, "--val", "0", seconds=SECONDS * 4)
        if r.rc:
            check(r.rc == 3 and b"supported are" in r.err, "%r" % r)
            continue
        ids = []
        for shard in sorted(glob.glob(out + "/train-*.bin")):
            ids += shard_tokens(shard)
        plain = json.loads(run("tokenize", path, "--json", stdin=b"x").out)["tokens"]
        bare = json.loads(run("tokenize", path, "--json", "--no-special", stdin=b"x").out)["tokens"]
        counts = collections.Counter(ids)
        if len(plain) > len(bare) and plain[1:] == bare:
            check(counts[plain[0]] == 97 and ids[0] == plain[0], "%s: %d times BOS %d in 97 documents" % (path, counts[plain[0]], plain[0]))
        else:
            check(counts[ids[-1]] == 97, "%s: %d times EOS %d in 97 documents" % (path, counts[ids[-1]], ids[-1]))


def shard_tokens(path):
    head = open(path, "rb").read(4096)
    width, = struct.unpack_from("<I", head, 12)
    count, = struct.unpack_from("<Q", head, 24)
    with open(path, "rb") as f:
        f.seek(4096)
        return array.array("H" if width == 2 else "I", f.read(count * width)).tolist()


def shared_memory():
    """G01: text is tokenised into shared memory that may be too small, and nothing of it is left after kill -9"""
    before = set(os.listdir("/dev/shm"))
    p = start(folder("g01"), SMALL, *BYTES, "--workers", "4", "--steps", "100000")
    wait_for_step(folder("g01"), 3, p)
    p.kill()
    p.communicate()
    check(set(os.listdir("/dev/shm")) <= before, "left in /dev/shm: %s" % (set(os.listdir("/dev/shm")) - before))
    line = 'mount -t tmpfs -o size=1m none /dev/shm || exit 99; exec "$@"'
    full = ["unshare", "-m", "sh", "-c", line, "sh", WEIR, "train", "--data", SMALL, *BYTES, "--out", folder("g01-full"), *SHAPE, *QUIET, "--workers", "4",
            "--steps", "3"]
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return skip("shared_memory.full", "needs root, and unshare that may mount")
    p = subprocess.run(full, capture_output=True, stdin=subprocess.DEVNULL, timeout=60)
    if p.returncode == 99 or p.returncode == 1 and b"unshare" in p.stderr:
        return skip("shared_memory.full", "needs unshare that may mount")
    check(p.returncode == 0 or (p.returncode == 4 and b"shared memory" in p.stderr), "with 1 MB of /dev/shm: exit %d, %r" % (p.returncode, p.stderr[-400:]))


def workers_and_threads():
    """G02: many starts with workers while other threads are busy; none hangs"""
    stop = threading.Event()
    busy = [threading.Thread(target=lambda: [sum(range(1000)) for _ in iter(stop.is_set, True)]) for _ in range(4)]
    for t in busy:
        t.start()
    try:
        for i in range(KILLS):
            started = time.time()
            r = train(folder("g02-%d" % i), SMALL, *BYTES, "--steps", "1", "--batch", "1", "--workers", "4", "--every", "0", "--threads", "16" if i % 2 else "2")
            if not check(r.rc == 0 and (SAN or time.time() - started < 10), "run %d took %.1f s: %r" % (i, time.time() - started, r)):
                break
            shutil.rmtree(folder("g02-%d" % i))
    finally:
        stop.set()


def bad_records():
    """G03: strict: file, line, column and rule; else counted, the first ones shown, refused above a share"""
    want = json.load(open(CORPORA + "/manifest.json"))["mixed_bad.jsonl"]["lines"]
    mixed = CORPORA + "/mixed_bad.jsonl"
    refused(run("data", "build", mixed, *BYTES, "--out", folder("g03-strict"), "--strict", seconds=SECONDS * 4), 3, "mixed_bad.jsonl:2:")
    r = run("data", "build", mixed, *BYTES, "--out", folder("g03"), "--max-bad", "1", "--json", seconds=SECONDS * 4)
    if not check(r.rc == 0, "%r" % r):
        return
    report = json.loads(r.out)
    shown = {int(re.search(r":(\d+):\d+$", b["where"]).group(1)) for b in report["bad_records"]}
    sure = {x["line"] for x in want if x["good"] == "no"}
    good = {x["line"] for x in want if x["good"] == "yes"}
    check(sure <= shown and not good & shown and report["bad"] >= len(sure), "bad lines %s, shown %s" % (sorted(sure), sorted(shown)))
    check(report["docs"] + report["val_docs"] >= len(good), "documents: %s" % report)
    many = write("many_bad.jsonl", "".join("{\"text\": \"line %d\"}\n" % i if i % 2 else "{\"text\": 5}\n" for i in range(3000)))
    refused(run("data", "build", many, *BYTES, "--out", folder("g03-many"), seconds=SECONDS * 4), 3, "many_bad.jsonl")


def tiny_data():
    """G05: too few tokens are said, with both numbers; an empty split is named; nothing loops or is left"""
    for name, ctx in (("empty.jsonl", "32"), ("newlines.jsonl", "32"), ("one_token.txt", "32"), ("ids97.txt", "100000")):
        out = folder("g05-" + name)
        r = train(out, CORPORA + "/" + name, *BYTES, "--steps", "2", "--batch", "1", "--ctx", ctx)
        check(r.rc in (2, 3) and (b"token" in r.err or b"no text" in r.err) and not r.out, "%s: %r" % (name, r))
        if name == "ids97.txt":
            check(b"100001" in r.err, "it wants context + 1: %r" % r)
        b = run("data", "build", CORPORA + "/" + name, *BYTES, "--out", folder("g05-shards-" + name), "--json", seconds=SECONDS * 4)
        check(b.rc in (0, 3), "%s: %r" % (name, b))
        if b.rc == 0:
            r = train(folder("g05-from-" + name), folder("g05-shards-" + name), "--steps", "2", "--batch", "1", "--ctx", ctx)
            check(r.rc in (2, 3) and b"token" in r.err, "shards of %s: %r" % (name, r))
    b = run("data", "build", IDS97, *BYTES, "--out", folder("g05-split"), "--val", "0.001", seconds=SECONDS * 4)
    r = train(folder("g05-run"), folder("g05-split"), "--steps", "2", "--eval-every", "1")
    check(b.rc == 0 and r.rc == 0 and (b"validation" in b.err + b.out), "a split of 99.9 and 0.1: %r %r" % (b, r))


def token_width():
    """G07: ids at the boundary of 16 bits, and a document of 70,000 tokens"""
    for vocab, width in ((65535, 2), (65536, 2), (65537, 4)):
        last = "<|last%d|>" % vocab
        alphabet = [c for c in bytes_alphabet()]
        tokens = {c: i for i, c in enumerate(alphabet)}
        added = [{"id": i, "content": "<|pad%d|>" % i if i < vocab - 1 else last, "special": False, "normalized": False, "single_word": False, "lstrip": False,
                  "rstrip": False} for i in range(256, vocab)]
        path = write("t%d.json" % vocab, json.dumps({
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None, "post_processor": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}, "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
                      "byte_fallback": False, "ignore_merges": False, "vocab": tokens, "merges": []}}))
        text = write("t%d.txt" % vocab, "x" * 70000 + last + "y" + last)
        out = folder("g07-%d" % vocab)
        r = run("data", "build", text, "--tokenizer", path, "--out", out, "--val", "0", "--json", seconds=SECONDS * 6)
        if not check(r.rc == 0, "%r" % r):
            continue
        shard = glob.glob(out + "/train-*.bin")[0]
        ids = shard_tokens(shard)
        x, y = tokens["x"], tokens["y"]
        check(ids[:70003] == [x] * 70000 + [vocab - 1, y, vocab - 1], "%d: ids %s … %s" % (vocab, ids[:3], ids[-5:]))
        check(struct.unpack_from("<I", open(shard, "rb").read(16), 12)[0] == width and json.loads(r.out)["token_bytes"] == width, "width of %d" % vocab)


def bytes_alphabet():
    """the characters by which GPT-2 shows bytes"""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    odd = [b for b in range(256) if b not in plain]
    return [chr(b) if b in plain else chr(256 + odd.index(b)) for b in range(256)]


# ------------------------------------------------------------------------------------------------------------------- checkpoints

def full_disk():
    """H02: on a disk that fits one checkpoint and a half a save fails loudly, leaves nothing half, and the one before stays; with room again the
    run goes on"""
    out, disk = folder("h02"), folder("h02-disk")
    os.makedirs(disk, exist_ok=True)
    trained(out, SMALL, *BYTES, "--steps", "2", "--batch", "2")
    one = sum(os.path.getsize(f) for f in glob.glob(out + "/checkpoints/step-2/*"))
    script = 'mount -t tmpfs -o size=%dk none "$0" || exit 99; "$@"; rc=$?; find "$0" | sort; "$1" logits "$0/run" --tokens 72 --json >/dev/null || echo no model; ' \
             'mount -o remount,size=64m "$0"; "$@"; echo again: $?; exit $rc' % (one * 3 // 2 // 1024 + 64)
    command = ["unshare", "-m", "sh", "-c", script, disk, WEIR, "train", "--data", SMALL, *BYTES, "--out", disk + "/run", *SHAPE, *QUIET, "--steps", "12",
               "--every", "3", "--batch", "2"]
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return skip("full_disk", "needs root, and unshare that may mount")
    p = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=90)
    if p.returncode == 99 or p.returncode == 1 and b"unshare" in p.stderr:
        return skip("full_disk", "needs unshare that may mount")
    text = p.stdout.decode()
    check(p.returncode == 4 and b"disk" in p.stderr.lower() and b"o space" in p.stderr, "exit %d: %r" % (p.returncode, p.stderr[-600:]))
    check("checkpoints/step-3\n" in text and ".tmp" not in text and "no model" not in text, "what is left: %s" % text[-1500:])
    check("again: 0" in text, "with room again: %s %r" % (text[-300:], p.stderr[-300:]))


def broken_checkpoint():
    """H05: with any file of the newest checkpoint missing, cut or changed in one bit, the one before it is taken, with a warning"""
    base = folder("h05")
    args = (SMALL, *BYTES, "--batch", "2", "--every", "4", "--keep", "2", "--schedule", "constant", "--warmup", "1")
    trained(base, *args, "--steps", "8")
    control = folder("h05-control")
    trained(control, *args, "--steps", "10")
    check(checkpoints(base) == [4, 8], "checkpoints: %s" % checkpoints(base))
    for name in sorted(os.listdir(base + "/checkpoints/step-8")):
        for how in ("gone", "cut", "flipped"):
            out = "%s-%s-%s" % (base, name, how)
            shutil.copytree(base, out)
            path = "%s/checkpoints/step-8/%s" % (out, name)
            bad = bytearray(open(path, "rb").read())
            if how == "gone":
                os.remove(path)
            else:
                bad[len(bad) // 2] ^= 4
                open(path, "wb").write(bad if how == "flipped" else bad[:-1])
            r = train(out, *args, "--steps", "10")
            check(r.rc == 0 and b"warning" in r.err and b"step-8" in r.err and b"after step 4" in r.err, "%s %s: %r" % (name, how, r))
            check(same_run(control, out) and weights(control) == weights(out), "%s %s: another run" % (name, how))
            shutil.rmtree(out)


def hostile_run():
    """a run's folder as somebody else may have left it: no complete checkpoint, counters that cannot be, a damaged validation split"""
    base = folder("hostile")
    trained(base, SMALL, *BYTES, "--batch", "2", "--steps", "4", "--every", "2")
    before = open(base + "/metrics.jsonl", "rb").read()
    for step in (2, 4):
        with open("%s/checkpoints/step-%d/model.gguf" % (base, step), "ab") as f:
            f.write(b"x")
    refused(run("train", "--out", base, "--steps", "5", seconds=SECONDS * 6), 3, "none of its checkpoints is complete")
    check(checkpoints(base) == [2, 4] and open(base + "/metrics.jsonl", "rb").read() == before, "the damaged run was written over")
    for step in (2, 4):
        os.truncate("%s/checkpoints/step-%d/model.gguf" % (base, step), os.path.getsize("%s/checkpoints/step-%d/model.gguf" % (base, step)) - 1)
    for change, word in (({"applied": -1}, "applied"), ({"loss_n": 2**63 - 1}, "loss_n"), ({"step": 3}, "step 3"), ({"position": {"taken": 10**9}}, "1000000000")):
        out = folder("hostile-state")
        shutil.copytree(base, out)
        forge(out, 4, 1, change)
        refused(run("train", "--out", out, "--steps", "5", seconds=SECONDS * 6), 3, word)
        shutil.rmtree(out)
    data = shards("hostile-shards", SMALL)
    os.truncate(data + "/val-00000.bin", 5000)
    refused(train(folder("hostile-val"), data, "--steps", "2", "--eval-every", "1"), 3, "val-00000.bin")
    check(train(folder("hostile-val"), data, "--steps", "2").rc == 0, "without validation its split is not needed")


def settings_that_do_not_fit():
    """what cannot be is said before anything is written; a window smaller than a step's samples is as large as they are"""
    out = folder("settings")
    refused(train(out, SMALL, *BYTES, "--batch", "65536", "--ctx", "1m"), 2, "2^31")
    check(not os.path.exists(out), "something was written")
    trained(out, SMALL, *BYTES, "--steps", "2", "--batch", "3", "--accumulate", "2", "--shuffle-window", "1")


def leftovers():
    """H07: temporary files of a killed save are removed by the next start, those of others stay"""
    out = folder("h07")
    args = (SMALL, *BYTES, "--batch", "2", "--every", "1")
    most = 0
    for i in range(3):
        p = start(out, *args, "--steps", "100000")
        wait_for_step(out, 5 * i + 5, p)
        p.kill()
        p.communicate()
        most = max(most, len(glob.glob(out + "/checkpoints/*.tmp")))
    check(most <= 1, "%d temporary folders" % most)
    step = checkpoints(out)[-1]
    os.makedirs(out + "/checkpoints/step-99999.tmp")
    foreign = [out + "/checkpoints/notes.txt", out + "/notes.tmp", out + "/checkpoints/mine.tmp"]
    for f in foreign:
        open(f, "w").close()
    trained(out, *args, "--steps", str(step + 3))
    left = glob.glob(out + "/checkpoints/step-*.tmp")
    check(not left and all(map(os.path.exists, foreign)), "left %s, foreign there: %s" % (left, [os.path.exists(f) for f in foreign]))


def two_at_once():
    """two processes in one folder: the second is refused and changes nothing"""
    out = folder("two")
    p = start(out, SMALL, *BYTES, "--steps", "100000", "--every", "0", "--batch", "1")
    wait_for_step(out, 3, p)
    refused(train(out, SMALL, *BYTES, "--steps", "100000"), 1, "two")
    check(p.poll() is None, "the first one ended")
    p.kill()
    p.communicate()


def from_another_folder():
    """data named by a relative path is found when the run goes on from elsewhere"""
    out, home = folder("moved"), folder("moved-home")
    os.mkdir(home)
    shutil.copy(SMALL, home + "/book.txt")
    r = train(out, "book.txt", *BYTES, "--steps", "2", preexec=lambda: os.chdir(home))
    check(r.rc == 0, "%r" % r)
    r = train(out, None, "--steps", "3", preexec=lambda: os.chdir("/"))
    check(r.rc == 0 and len(lines(out)) == 3, "%r" % r)


# ------------------------------------------------------------------------------------------------------------------------- speed

def resume_by_seeking():
    """J07: going on after step 100,000 takes no longer than after step 10"""
    data, out = shards("ids97", IDS97), folder("j07")
    args = ("--batch", "8", "--schedule", "constant")
    trained(out, data, *args, "--steps", "10")
    at = {}
    for name, times in (("10", 1), ("far", 100000)):
        copy = folder("j07-" + name)
        shutil.copytree(out, copy)
        if times > 1:
            forge(copy, 10, times)
        started = time.time()
        r = run("train", "--data", data, "--out", copy, "--steps", str(10 * times + 1), "--json", seconds=SECONDS * 6)
        at[name] = time.time() - started
        m = [json.loads(x) for x in r.out.splitlines()]
        check(r.rc == 0 and m[1]["step"] == 10 * times + 1, "%r" % r)
    check(SAN or at["far"] < 2 + at["10"], "seconds: %s" % at)


def forge(out, step, times, change={}):
    """the checkpoint of `step` as that of step * times: counters multiplied, then changed, checksums made anew"""
    folder_of = "%s/checkpoints/step-%d" % (out, step)
    state = json.load(open(folder_of + "/state.json"))
    for key in ("step", "applied", "micro", "tokens"):
        state[key] *= times
    state["position"]["taken"] *= times
    state["position"].update(change.get("position", {}))
    state.update({key: value for key, value in change.items() if key != "position"})
    text = json.dumps(state).encode()
    open(folder_of + "/state.json", "wb").write(text)
    manifest = open(folder_of + "/manifest.json").read()
    manifest = re.sub(r'"step": \d+', '"step": %d' % (step * times), manifest)
    manifest = re.sub(r'("state.json", "bytes": )\d+(, "xxh64": )"\w+"', r'\g<1>%d\g<2>"%016x"' % (len(text), xxh64(text)), manifest)
    body, own = manifest[:manifest.rindex(' "xxh64"')], ' "xxh64": "%016x"\n}\n'
    open(folder_of + "/manifest.json", "w").write(body + own % xxh64(body.encode()))
    os.rename(folder_of, "%s/checkpoints/step-%d" % (out, step * times))


def xxh64(data):
    """of the public specification, with seed 0"""
    p1, p2, p3, p4, p5 = 11400714785074694791, 14029467366897019727, 1609587929392839161, 9650029242287828579, 2870177450012600261
    mask = (1 << 64) - 1
    rotate = lambda x, r: ((x << r) | (x >> (64 - r))) & mask
    lane = lambda acc, x: rotate((acc + x * p2) & mask, 31) * p1 & mask
    n, at = len(data), 0
    if n >= 32:
        v = [(p1 + p2) & mask, p2, 0, -p1 & mask]
        while at + 32 <= n:
            for k, x in enumerate(struct.unpack_from("<4Q", data, at)):
                v[k] = lane(v[k], x)
            at += 32
        h = sum(rotate(x, r) for x, r in zip(v, (1, 7, 12, 18))) & mask
        for x in v:
            h = ((h ^ lane(0, x)) * p1 + p4) & mask
    else:
        h = p5
    h = (h + n) & mask
    while at + 8 <= n:
        h = (rotate(h ^ lane(0, struct.unpack_from("<Q", data, at)[0]), 27) * p1 + p4) & mask
        at += 8
    if at + 4 <= n:
        h = (rotate(h ^ struct.unpack_from("<I", data, at)[0] * p1 & mask, 23) * p2 + p3) & mask
        at += 4
    for b in data[at:]:
        h = rotate(h ^ b * p5 & mask, 11) * p1 & mask
    h = (h ^ h >> 33) * p2 & mask
    h = (h ^ h >> 29) * p3 & mask
    return h ^ h >> 32


def waiting_for_data():
    """J08: the share of time that a run waits is there, and small from shards, where no sample is copied"""
    data = shards("j08", SMALL)
    for name, source, args in (("shards", data, ()), ("text", SMALL, BYTES)):
        out = folder("j08-" + name)
        trained(out, source, *args, "--steps", "40", "--batch", "8", "--width", "64")
        m = lines(out)[3:]
        total, waited = (math.fsum(x["seconds"][k] for x in m) for k in ("total", "data"))
        check(SAN or name == "text" or waited < .05 * total, "%s: waited %.2f %% of the time" % (name, 100 * waited / total))
        if name == "shards":
            check(all(x["payload_copied"] == 0 for x in m), "samples were copied")


PARTS = (whole_run, json_lines, words, signals, nobody_there, file_size_limit, second_signal, on_a_terminal, partial_group, not_finite, other_data_after_resume, tied_embeddings, decay_by_kind, validation_loss, other_tokenizer, bos,
         shared_memory, workers_and_threads, bad_records, tiny_data, token_width, full_disk, broken_checkpoint, hostile_run, settings_that_do_not_fit, leftovers, two_at_once, from_another_folder, resume_by_seeking,
         waiting_for_data)
if not os.path.isdir(CORPORA):
    harness.where = "train_cli"
    skip("all", "%s is not there" % CORPORA)
    PARTS = ()
os.environ.setdefault("WEIR_CACHE", folder("cache"))  # what was measured of the machine, once
harness.main("train_cli", PARTS)
