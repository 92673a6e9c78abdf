#!/usr/bin/env python3
"""Decode speed of weir beside llama.cpp's: SmolLM2-135M in several types, 128 tokens, one and two threads.

The two programs take turns (A B A B ...), --reps rounds, so that both meet the same weather. Printed: best and median of each,
the ratio of the bests, the share of the limit that weir measures in its own process, and whether the bar is reached: the
smaller of FACTOR times llama.cpp and 85 % of the limit, FACTOR 2, for F16 1.4. A line goes to bench/records/MACHINE.csv for
each row. This is a measurement, not a test: the exit status is 0 whoever is faster.

llama.cpp is what `bench/peers llama` set up; without it weir is timed alone against its limit. Models come from
tools/test-model-variants.
"""
import argparse
import csv
import datetime
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CACHE = os.environ.get("WEIR_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "weir")
PROMPT = "The river"
TOKENS = 128
LIMIT_SHARE = 0.85
COLUMNS = ["date", "commit", "machine", "what", "unit", "ours_best", "ours_median", "peer_best", "peer_median", "ratio",
           "limit", "share", "bar", "reached", "reps", "load", "command", "peer_command"]


def factor(kind):
    return 1.4 if kind == "f16" else 2.0


def run_json(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(command)} ended with {done.returncode}: {done.stderr.decode(errors='replace')[-300:]}")
    return json.loads(done.stdout)


def weir_command(args, model, threads):
    return [args.weir, "generate", model, "-n", str(TOKENS), "--ignore-eos", "--temp", "0", "--threads", str(threads), "--json",
            "-p", PROMPT]


def peer_command(args, model, threads):
    return [os.path.join(args.llama, "llama-bench"), "-m", model, "-p", "0", "-n", str(TOKENS), "-r", "1", "-t", str(threads),
            "-o", "json"]


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


def measure(args, kind, threads):
    """Both programs in turn; a row of COLUMNS."""
    model = os.path.join(args.models, f"smollm2-135m-{kind}.gguf")
    ours, peer = [], []
    mine, theirs = weir_command(args, model, threads), peer_command(args, model, threads)
    for _ in range(args.reps):
        ours.append(run_json(mine))
        if args.llama:
            peer.append(run_json(theirs)[0]["avg_ts"])
    speeds = [r["decode_tok_s"] for r in ours]
    limit = max(r["limit_tok_s"] for r in ours)
    best = max(ours, key=lambda r: r["decode_tok_s"])
    bars = [LIMIT_SHARE * limit] + ([factor(kind) * max(peer)] if peer else [])
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M"), "commit": commit(),
        "machine": machine_name(), "what": f"decode smollm2-135m {kind}, {threads} thread{'s' if threads > 1 else ''}",
        "unit": "tok/s", "ours_best": f"{max(speeds):.1f}", "ours_median": f"{statistics.median(speeds):.1f}",
        "peer_best": f"{max(peer):.1f}" if peer else "", "peer_median": f"{statistics.median(peer):.1f}" if peer else "",
        "ratio": f"{max(speeds) / max(peer):.2f}" if peer else "", "limit": f"{limit:.1f}",
        "share": f"{best['share_of_limit']:.3f}", "bar": f"{min(bars):.1f}",
        "reached": ("PASS" if max(speeds) >= min(bars) else "short") +
                   (", share is a measuring error" if best["share_of_limit"] > 1 else ""),
        "reps": args.reps, "load": f"{os.getloadavg()[0]:.1f}",
        "command": readable(mine), "peer_command": readable(theirs) if peer else "",
    }


def readable(command):
    """A command without this machine's folders."""
    return shlex.join([os.path.basename(word) if os.sep in word else word for word in command])


def append(row, path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    new = not os.path.exists(path)
    with open(path, "a", newline="") as f:
        out = csv.DictWriter(f, COLUMNS, lineterminator="\n")
        if new:
            out.writeheader()
        out.writerow(row)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weir", default=os.path.join(REPO, "weir"), help="the program (%(default)s)")
    parser.add_argument("--llama", default=os.path.join(CACHE, "peers/llama/build/bin"), help="folder of llama-bench")
    parser.add_argument("--models", default=os.environ.get("WEIR_TEST_MODELS") or os.path.join(CACHE, "test-models"))
    parser.add_argument("--types", default="q4_0,q4_1,q8_0,f16")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--records", default=os.path.join(REPO, "bench/records"), help="folder of the CSV; '' keeps none")
    args = parser.parse_args()
    if not os.access(args.weir, os.X_OK):
        sys.exit(f"decode.py: there is no program {args.weir}; run make, or name it with --weir")
    if not os.access(os.path.join(args.llama, "llama-bench"), os.X_OK):
        print(f"decode.py: no llama-bench in {args.llama}: weir alone (bench/peers llama sets it up)", file=sys.stderr)
        args.llama = None
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"decode.py: the load is {load:.1f}: other programs run; trust the ratios more than the figures", file=sys.stderr)
    print(f"{'type':6}{'threads':>8}{'weir':>9}{'median':>9}{'llama':>9}{'median':>9}{'ratio':>7}{'limit':>9}{'share':>7}"
          f"{'bar':>9}")
    for threads in map(int, args.threads.split(",")):
        for kind in args.types.split(","):
            try:
                row = measure(args, kind, threads)
            except (RuntimeError, KeyError, ValueError) as error:
                print(f"{kind:6}{threads:8}  no figure: {error}")
                continue
            print(f"{kind:6}{threads:8}{row['ours_best']:>9}{row['ours_median']:>9}{row['peer_best']:>9}{row['peer_median']:>9}"
                  f"{row['ratio']:>7}{row['limit']:>9}{row['share']:>7}{row['bar']:>9}  {row['reached']}", flush=True)
            if args.records:
                append(row, os.path.join(args.records, f"{row['machine']}.csv"))


if __name__ == "__main__":
    main()
