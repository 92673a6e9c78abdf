#!/usr/bin/env python3
"""From the start of a process to its first token, warm: weir beside llama.cpp, and weir with the files taken out of the page cache.

`weir generate MODEL -p Hello -n 1` and `llama-completion -m MODEL -p Hello -n 1`, timed from outside until the first byte of the answer is on
standard output (llama.cpp prints the prompt, too: until the byte after it; with its warm-up run left out). Bar: a third of llama.cpp's time.
The cold line has no peer: both then wait for the disk. The first run line is weir without its packed file: what packing costs, once.
"""
import glob
import os
import shutil
import subprocess
import tempfile
import time

import common

PROMPT = "Hello"


def first_byte(command, after=b"", env=None):
    """Seconds until standard output has a byte beyond the text `after`."""
    begin = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=env) as process:
        got = b""
        while len(got.partition(after)[2] if after else got) == 0:
            piece = os.read(process.stdout.fileno(), 4096)
            if not piece:
                break
            got += piece
        seconds = time.monotonic() - begin
        process.stdout.read()
    if not got or process.returncode:
        raise RuntimeError(f"{command[0]} ended with {process.returncode} and wrote {len(got)} bytes")
    return seconds * 1e3


def forget(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def measure(args, name):
    model, shown = common.model(args, name)
    what = f"start to first token {shown}"
    command = [args.weir, "generate", model, "-p", PROMPT, "-n", "1", "--threads", str(args.threads)]
    theirs = args.llama and [os.path.join(args.llama, "llama-completion"), "-m", model, "-p", PROMPT, "-n", "1", "-t", str(args.threads),
                             "--no-warmup", "-no-cnv"]
    cache = tempfile.mkdtemp(prefix="weir-startup-")
    env = dict(os.environ, WEIR_CACHE=cache)
    try:
        run = lambda: first_byte(command, env=env)  # noqa: E731
        first = run()
        run()
        ours, others = common.by_turns(args.reps, run, theirs and (lambda: first_byte(theirs, PROMPT.encode())))
        common.record(args, what, "ms", ours, command, others, theirs, factor=3.0, lower=True)
        cold = []
        for _ in range(min(args.reps, 3)):
            for file in [model] + glob.glob(cache + "/packed/*.pack"):
                forget(file)
            cold.append(run())
        common.record(args, what + ", cold", "ms", cold, command, lower=True)
        common.record(args, what + ", first run", "ms", [first], command, lower=True)
    finally:
        shutil.rmtree(cache)


def main():
    parser = common.parser(__doc__)
    common.llama_options(parser, "q4_0,f16,gemma-3-270m-q4_k_m")
    parser.add_argument("--threads", default=2, type=int)
    args = parser.parse_args()
    common.begin(args, {"llama": ("llama-completion", "bench/peers llama")})
    common.header("process start to first token", "llama")
    common.each([(args, t) for t in args.types.split(",")], measure)


if __name__ == "__main__":
    main()
