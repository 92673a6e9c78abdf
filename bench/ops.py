#!/usr/bin/env python3
"""Every kernel of this machine's instruction set over its timing cases: share of the limit, kept in bench/records/MACHINE.ops.csv.

The file holds the last run only (bench/report.py draws it): kernel, case, time, bytes, operations, and which bound is the nearer.
"""
import csv
import os
import re

import common

COLUMNS = ["date", "commit", "machine", "op", "kernel", "case", "us", "gb_s", "gflop_s", "peak", "share"]


def main():
    parser = common.parser(__doc__)
    parser.add_argument("--only", default="", help="kernels and cases whose name contains this; keeps nothing")
    args = parser.parse_args()
    common.begin(args, {})
    command = [args.weir, "bench", "ops", "--reps", str(args.reps), "--json"] + (["--only", args.only] if args.only else [])
    rows = common.run_json(command)
    fixed = {"date": common.stamp(), "commit": common.commit(), "machine": common.machine_name()}
    best = {}
    for row in rows:
        op = re.match(r"(\w+?)_(?:f32|f16|bf16|i?q\d\w*|any|codec|ref|cpu|generic)", row["name"])
        key = (op.group(1) if op else row["name"], row["shape"])
        if key not in best or row["us"] < best[key]["us"]:
            best[key] = row
    table = [{**fixed, "op": op, "kernel": r["name"], "case": shape, "us": f"{r['us']:.2f}", "gb_s": f"{r['gb_s']:.2f}",
              "gflop_s": f"{r['gflop_s']:.1f}", "peak": f"{r['peak']:.1f}", "share": f"{r['share']:.3f}"} for (op, shape), r in best.items()]
    for r in table:
        print(f"{r['kernel']:40}{r['case']:60}{r['us']:>12} us {float(r['share']) * 100:4.0f} %")
    if args.records and not args.only:
        os.makedirs(args.records, exist_ok=True)
        with open(os.path.join(args.records, f"{fixed['machine']}.ops.csv"), "w", newline="") as f:
            out = csv.DictWriter(f, COLUMNS, lineterminator="\n")
            out.writeheader()
            out.writerows(table)


if __name__ == "__main__":
    main()
