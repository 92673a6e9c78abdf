#!/usr/bin/env python3
"""weir quantize beside llama-quantize: SmolLM2-135M from F16 and from F32, two threads, to each type.

Whole commands, from start to end; weir's also measures what was lost and syncs the file to the disk, which llama-quantize does not. Bar: half of
llama-quantize's time.
"""
import os
import tempfile
import time

import common


def seconds(command):
    begin = time.monotonic()
    common.run(command)
    return time.monotonic() - begin


def measure(args, source, kind):
    model, shown = common.model(args, source)
    with tempfile.TemporaryDirectory(prefix="weir-quantize-", dir=args.models) as folder:
        command = [args.weir, "quantize", model, kind, "--out", folder + "/ours.gguf", "--force", "--threads", str(args.threads)]
        theirs = args.llama and [os.path.join(args.llama, "llama-quantize"), model, folder + "/theirs.gguf", kind.upper(), str(args.threads)]
        ours, others = common.by_turns(args.reps, lambda: seconds(command), theirs and (lambda: seconds(theirs)))
    common.record(args, f"quantize {shown} to {kind}", "s", ours, command, others, theirs, factor=2.0, lower=True)


def main():
    parser = common.parser(__doc__)
    common.llama_options(parser)
    parser.add_argument("--types", default="q8_0,q4_0,q4_1,q4_k_m,q6_k", help="to make (%(default)s)")
    parser.add_argument("--sources", default="f16,f32", help="of SmolLM2 (%(default)s)")
    parser.add_argument("--threads", default=2, type=int)
    args = parser.parse_args()
    common.begin(args, {"llama": ("llama-quantize", "bench/peers llama")})
    common.header("whole command", "llama")
    common.each([(args, s, t) for s in args.sources.split(",") for t in args.types.split(",")], measure)


if __name__ == "__main__":
    main()
