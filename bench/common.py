"""What the benches share: the programs taking turns, judging against a bar, and records.

A bench compares weir with a peer. Both take turns (A B A B ...), so that they meet the same weather; the best of each counts and the
median is shown. The bar of a speed is the smaller of `factor` times the peer's best and LIMIT_SHARE of the limit that weir measures in its
own process, of a time the peer's best over `factor`; without a peer there is none. A line goes to bench/records/MACHINE.csv for each.
All of this is measurement, not a test: the exit status is 0 whoever is faster, 1 where something gave no figure.
"""
import argparse
import csv
import datetime
import json
import math
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CACHE = os.environ.get("WEIR_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "weir")
LIMIT_SHARE = 0.85
TYPES = "f32,f16,bf16,q8_0,q4_0,q4_1,q5_0,q5_1,q2_k,q3_k_m,q4_k_m,q5_k_m,q6_k,iq4_nl,iq4_xs"  # of SmolLM2-135M
COLUMNS = ["date", "commit", "machine", "what", "unit", "ours_best", "ours_median", "peer_best", "peer_median", "ratio",
           "limit", "share", "bar", "reached", "reps", "load", "command", "peer_command"]


# ---- options

class Missing(Exception):
    """A model that is not here."""


def parser(doc, reps=5, records=True):
    """The options that benches have; doc: its own text, of which the first line goes to --help; reps: 0 for one without rounds."""
    p = argparse.ArgumentParser(description=doc.splitlines()[0])
    p.add_argument("--weir", default=os.path.join(REPO, "weir"), help="the program (%(default)s)")
    if reps:
        p.add_argument("--reps", type=int, default=reps, help="rounds (%(default)s)")
    if records:
        p.add_argument("--records", default=os.path.join(REPO, "bench/records"), help="folder of the CSV; '' keeps none")
    return p


def llama_options(p, types=None):
    p.add_argument("--llama", default=os.environ.get("WEIR_LLAMA") or os.path.join(CACHE, "peers/llama/build/bin"),
                   help="folder of llama.cpp's programs ($WEIR_LLAMA, or what bench/peers llama made)")
    p.add_argument("--models", default=os.environ.get("WEIR_BENCH_MODELS") or os.path.join(CACHE, "bench-models"),
                   help="folder of the models that bench/models made (%(default)s)")
    if types:
        p.add_argument("--types", default=types, help="of SmolLM2-135M, or names of other models (%(default)s)")


def torch_options(p):
    p.add_argument("--torch", default=os.environ.get("WEIR_TORCH") or os.path.join(CACHE, "peers/torch/venv/bin/python"),
                   help="a Python with PyTorch ($WEIR_TORCH, or what bench/peers torch made)")


def begin(args, peers):
    """Is everything there? `peers`: option: (program within it, who sets it up); an option whose program is missing becomes None."""
    if not os.access(args.weir, os.X_OK):
        sys.exit(f"{script()}: there is no program {args.weir}; run make, or name it with --weir")
    for option, (program, remedy) in peers.items():
        path = os.path.join(getattr(args, option), program) if program else getattr(args, option)
        if not os.access(path, os.X_OK):
            say(f"no {path}: weir alone ({remedy} sets it up)")
            setattr(args, option, None)
    load = os.getloadavg()[0]
    if load > 0.5:
        say(f"the load is {load:.1f}: other programs run; trust the ratios more than the figures")


LLAMA = {"llama": ("llama-bench", "bench/peers llama")}
TORCH = {"torch": ("", "bench/peers torch")}


def script():
    return os.path.basename(sys.argv[0])


def say(text):
    print(f"{script()}: {text}", file=sys.stderr, flush=True)


# ---- running

def run(command):
    """What a command writes to standard output."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(command)} ended with {done.returncode}: {done.stderr.decode(errors='replace')[-300:]}")
    return done.stdout


def run_json(command):
    return json.loads(run(command))


def by_turns(reps, *programs):
    """What each program gives, a list for each; a program is a function without arguments, or None: an empty list."""
    given = [[] for _ in programs]
    for _ in range(reps):
        for program, out in zip(programs, given):
            if program:
                out.append(program())
    return given


def model(args, name):
    """File and name in records: of "q4_0" (of SmolLM2-135M) or of another model's whole name."""
    path, shown = (f"{name}.gguf", name) if "-" in name else (f"smollm2-135m-{name}.gguf", f"smollm2-135m {name}")
    path = os.path.join(args.models, path)
    if not os.path.exists(path):
        raise Missing(f"no {path}: left out (bench/models makes it)")
    return path, shown


def model_bench(args, model, threads, prompt_tok, n):
    """weir bench model, one repeat: {"prefill": row, "decode": row}; command and a function that runs it."""
    command = [args.weir, "bench", "model", model, "--prompt-tok", str(prompt_tok), "-n", str(n), "--reps", "1", "--threads", str(threads),
               "--json"]
    return command, lambda: {row["name"]: row for row in run_json(command)}


def llama_bench(args, model, threads, *options):
    """llama-bench, one repeat: command and a function that gives tok/s; (None, None) without llama.cpp."""
    if not args.llama:
        return None, None
    command = [os.path.join(args.llama, "llama-bench"), "-m", model, *map(str, options), "-r", "1", "-t", str(threads), "-o", "json"]
    return command, lambda: run_json(command)[0]["avg_ts"]


def readable(command):
    """A command without this machine's folders."""
    return shlex.join([os.path.basename(word) if os.sep in word else word for word in command])


# ---- records

def machine_name():
    """The processor's name and the number of processors that this process may use, fit for a file name."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as f:
            found = re.search(r"model name\s*: (.*)", f.read())
            model = found.group(1) if found else model
    except OSError:
        pass
    model = re.sub(r"\((R|TM)\)|CPU|@.*", "", model)
    return re.sub(r"[^a-z0-9]+", "-", f"{model} {len(os.sched_getaffinity(0))}".lower()).strip("-")


def commit():
    def git(*what):
        return subprocess.run(["git", "-C", REPO, *what], capture_output=True, text=True).stdout.strip()
    return (git("rev-parse", "--short", "HEAD") or "unknown") + ("+" if git("status", "--porcelain", "-uno") else "")


def stamp():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M")


def append(row, path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    new = not os.path.exists(path)
    with open(path, "a", newline="") as f:
        out = csv.DictWriter(f, COLUMNS, lineterminator="\n")
        if new:
            out.writeheader()
        out.writerow(row)


def threads_text(n):
    return f"{n} thread{'s' if n > 1 else ''}"


def header(first, peer):
    print(f"{first:52}{'weir':>9}{'median':>9}{peer:>10}{'median':>9}{'ratio':>7}{'limit':>9}{'share':>7}{'bar':>9}", flush=True)


def record(args, what, unit, ours, command, peer=(), peer_command=None, factor=1.0, limit=None, share=None, lower=False, bar=None):
    """Judge, print and keep one comparison: a row of COLUMNS.

    ours, peer: what the rounds gave, in `unit`; lower: less is better. limit: in `unit`; share: of it, None: best / limit. bar: in `unit`, where
    it is none of the usual kind."""
    choose = min if lower else max
    best = choose(ours)
    other = choose(peer) if peer else None
    if limit and share is None:
        share = best / limit
    if bar is None and peer:
        bar = other / factor if lower else min(other * factor, LIMIT_SHARE * limit if limit else math.inf)
    verdict = "" if bar is None else "PASS" if choose(best, bar) == best else "short"
    if verdict and share and share > 1:
        verdict += ", share is a measuring error"

    def figure(x):
        return "" if x is None else f"{x:.3f}" if abs(x) < 10 else f"{x:.1f}" if abs(x) < 10000 else f"{x:.0f}"
    row = {"date": stamp(), "commit": commit(), "machine": machine_name(), "what": what, "unit": unit,
           "ours_best": figure(best), "ours_median": figure(statistics.median(ours)),
           "peer_best": figure(other), "peer_median": figure(statistics.median(peer)) if peer else "",
           "ratio": f"{(other / best if lower else best / other):.2f}" if peer else "",
           "limit": figure(limit), "share": f"{share:.3f}" if share else "", "bar": figure(bar), "reached": verdict,
           "reps": len(ours), "load": f"{os.getloadavg()[0]:.1f}", "command": readable(command),
           "peer_command": peer_command if isinstance(peer_command, str) else readable(peer_command) if peer_command else ""}
    print(f"{what:52}{row['ours_best']:>9}{row['ours_median']:>9}{row['peer_best']:>10}{row['peer_median']:>9}{row['ratio']:>7}"
          f"{row['limit']:>9}{row['share']:>7}{row['bar']:>9}  {verdict}", flush=True)
    if args.records:
        append(row, os.path.join(args.records, f"{row['machine']}.csv"))
    return row


def each(items, measure):
    """measure(*item) for all; a failure is said, and the rest goes on to an exit status of 1."""
    failed = False
    for item in items:
        try:
            measure(*item)
        except Missing as missing:
            say(missing)
        except (RuntimeError, KeyError, ValueError, OSError, subprocess.SubprocessError) as error:
            name = " ".join(str(word) for word in item if isinstance(word, (str, int)))
            say(f"{name}: no figure: {error}")
            failed = True
    if failed:
        sys.exit(1)
