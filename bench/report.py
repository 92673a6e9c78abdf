#!/usr/bin/env python3
"""bench/report.html from bench/records: one page without network, the same bytes for the same records.

  bench/report.py [--records DIR] [--out FILE]

For each machine: how many bars are reached; every comparison with its ratio, the bar's place and the share of the limit (the newest record
of each counts); the kernels' share of the limit, products by type of weights; and the history where a comparison was recorded more than
once. Drawn with HTML and CSS alone: tables that a screen reader reads, colours never alone, light and dark as the system has it.
"""
import argparse
import csv
import glob
import html
import math
import os
import re

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--dim:#5d6673;--line:#e3e6ea;--card:#f6f7f9;--ok:#1a8754;--no:#c2500e;--bar:#2563c9;--heat:37,99,201}
@media(prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e4e7eb;--dim:#a2abb7;--line:#2b3037;--card:#1c2026;--ok:#4cc38a;--no:#f2994a;--bar:#6ea4ff;
--heat:110,164,255}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1180px;padding:16px;background:var(--bg);color:var(--fg);font:15px/1.45 system-ui,sans-serif}
h1{font-size:1.35rem;margin:.2em 0}h2{font-size:1.2rem;margin:2.4em 0 .4em;padding-top:.8em;border-top:1px solid var(--line)}
h3{font-size:1.02rem;margin:1.8em 0 .5em}p{margin:.3em 0;max-width:80ch}.dim{color:var(--dim)}a{color:var(--bar)}
nav{margin:.8em 0;display:flex;flex-wrap:wrap;gap:4px 16px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:8px;margin:12px 0}
.tile{background:var(--card);border-radius:8px;padding:8px 12px}.tile b{display:block;font-size:1.15rem;font-variant-numeric:tabular-nums}
.tile span{color:var(--dim);font-size:.8rem}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.87rem}caption{text-align:left;color:var(--dim);padding:0 0 6px}
th,td{padding:4px 12px 4px 0;border-bottom:1px solid var(--line);text-align:left;white-space:nowrap}
th{font-weight:600;vertical-align:bottom}tbody th{font-weight:400}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.track{width:34%;min-width:150px;padding-right:20px}
.track .axis{background:none}.axis span{position:absolute;transform:translateX(-50%);bottom:-4px;color:var(--dim);font-weight:400;font-size:.75rem}
.track div{position:relative;height:12px;background:var(--card);border-radius:3px}
.track i{position:absolute;left:0;top:0;bottom:0;border-radius:3px;background:var(--bar)}
.track u{position:absolute;top:-3px;bottom:-3px;width:2px;background:var(--fg)}
.ok{color:var(--ok)}.no{color:var(--no);font-weight:600}
td.heat{text-align:right;font-variant-numeric:tabular-nums}
details{margin:1em 0}summary{cursor:pointer;color:var(--dim)}
svg.line{width:120px;height:22px;display:block}svg.line polyline{fill:none;stroke:var(--bar);stroke-width:1.6;vector-effect:non-scaling-stroke}
@media(max-width:560px){body{padding:10px}.track{min-width:110px}}
"""
TYPES = ["f32", "f16", "bf16", "q8_0", "q6_k", "q5_1", "q5_0", "q5_k", "q4_1", "q4_0", "q4_k", "iq4_nl", "iq4_xs", "q3_k", "q2_k"]


def esc(text):
    return html.escape(str(text), quote=True)


def number(text):
    try:
        x = float(text)
    except (TypeError, ValueError):
        return None
    return x if math.isfinite(x) else None


def read(path):
    with open(path, newline="") as f:
        return list(csv.DictReader(f, restval=""))  # the last line may have been cut


def natural(text):
    """A key that sorts q4_0 before q10 and 1 thread before 16."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)]


def peer_of(row):
    command = row["peer_command"].split(": ")[-1].split(" ")
    name = os.path.basename(command[0])
    return {"python": "PyTorch", "train_gpt2": "llm.c"}.get(name, name)


def reached(row):
    return row["reached"].startswith("PASS")


LOWER = ("s", "ms", "MB", "%", "times", "times a read")  # units of which less is better


def ratio_of(row):
    """weir's speed in multiples of the peer's, and the bar in the same measure; None where there is none."""
    ours, peer, bar = (number(row[k]) for k in ("ours_best", "peer_best", "bar"))
    if not ours or not peer:
        return None, None
    if row["unit"] in LOWER:
        return peer / ours, peer / bar if bar else None
    return ours / peer, bar / peer if bar else None


# ---- comparisons

def comparisons(rows):
    """The newest record of each comparison, and all of them, oldest first."""
    history = {}
    for row in rows:
        history.setdefault((row["what"], peer_of(row)), []).append(row)
    for line in history.values():
        line.sort(key=lambda r: r["date"])
    return history


GROUPS = [(" sequences ", "Several sequences"), ("decode at ", "Decode behind a context"), ("slope ", "Decode behind a context"), ("decode ", "Decode"),
          ("prompt ", "Prompt"), ("start", "Start"), ("quantize ", "Quantizing"), ("train", "Training"), ("save", "Training"),
          ("data build ", "Tokenizing"), ("BPE ", "Tokenizing")]  # part of `what`, and the table that it belongs to; the first that fits


def group_of(what):
    return next((group for part, group in GROUPS if part in what), "Other")


SCALE = (0.5, 1, 2, 4, 8, 16)  # doublings


def place(ratio):
    """Where a ratio stands on the scale, in percent."""
    low, high = math.log2(SCALE[0]), math.log2(SCALE[-1])
    return min(max((math.log2(max(ratio, 1e-9)) - low) / (high - low), 0), 1) * 100


def scale_head():
    return ("<th class=track><div class=axis>" + "".join(f"<span style='left:{place(x):.0f}%'>{'½' if x < 1 else x}</span>" for x in SCALE) + "</div>")


def ratio_cell(row):
    """A bar, with a mark where the one that was aimed for is."""
    ratio, bar = ratio_of(row)
    if ratio is None:
        return "<td class=track>"
    mark = f"<u style='left:{place(bar):.1f}%' title='the bar: {bar:.2f}'></u>" if bar else ""
    return f"<td class=track><div><i style='width:{place(ratio):.1f}%'></i>{mark}</div>"


def verdict(row):
    if not row["reached"]:
        return "<td></td>"
    return "<td class=ok>✓ reached</td>" if reached(row) else "<td class=no>✗ short</td>"


def percent(text):
    x = number(text)
    return f"{x * 100:.0f} %" if x is not None else ""


def comparison_table(name, lines):
    out = [f"<h3>{esc(name)}</h3><div class=wide><table><thead><tr><th>what<th>peer<th class=n>weir<th class=n>peer<th>unit"
           "<th class=n>ratio" + scale_head() + "<th class=n>of the limit<th class=n>bar<th></thead><tbody>"]
    for key in sorted(lines, key=lambda k: (natural(k[0]), k[1])):
        row = lines[key][-1]
        ratio = ratio_of(row)[0]
        ratio = f"{ratio:.2f}" if ratio else ""
        out.append(f"<tr><th scope=row title='{esc(row['command'])}'>{esc(row['what'])}<td>{esc(key[1])}<td class=n>{esc(row['ours_best'])}"
                   f"<td class=n>{esc(row['peer_best'])}<td>{esc(row['unit'])}<td class=n>{ratio}{ratio_cell(row)}"
                   f"<td class=n>{percent(row['share'])}<td class=n>{esc(row['bar'])}{verdict(row)}")
    return "".join(out) + "</tbody></table></div>"


def spark(values):
    """A small line of the values, oldest first."""
    low, high = min(values), max(values)
    span = (high - low) or 1
    points = " ".join(f"{100 * i / (len(values) - 1):.1f},{20 - 18 * (v - low) / span:.1f}" for i, v in enumerate(values))
    return f"<svg class=line viewBox='0 0 100 22' preserveAspectRatio=none aria-hidden=true><polyline points='{points}'/></svg>"


def history_table(history):
    lines = {k: [r for r in rows if number(r["ours_best"])] for k, rows in history.items()}
    lines = {k: rows for k, rows in lines.items() if len({r["commit"] for r in rows}) > 1}
    if not lines:
        return ""
    out = ["<details><summary>History by commit</summary><div class=wide><table><thead><tr><th>what<th>peer<th>weir's best<th></thead><tbody>"]
    for key in sorted(lines, key=lambda k: (natural(k[0]), k[1])):
        rows = lines[key]
        steps = " → ".join(f"<span title='{esc(r['date'])}'>{esc(r['commit'])}: {esc(r['ours_best'])}"
                           f"{f' ({ratio:.2f} ×)' if (ratio := ratio_of(r)[0]) else ''}</span>" for r in rows)
        out.append(f"<tr><th scope=row>{esc(key[0])}<td>{esc(key[1])}<td style='white-space:normal'>{steps} {esc(rows[-1]['unit'])}"
                   f"<td>{spark([float(r['ours_best']) for r in rows])}")
    return "".join(out) + "</tbody></table></div></details>"


# ---- kernels

def keys(case):
    return dict(word.split("=", 1) for word in case.split() if "=" in word)


def heat_cell(row):
    if row is None:
        return "<td class=heat>"
    share = number(row["share"]) or 0
    title = f"{row['kernel']}: {row['us']} us, {row['gb_s']} GB/s, {row['gflop_s']} GFLOP/s"
    return f"<td class=heat title='{esc(title)}' style='background:rgba(var(--heat),{min(share, 1) * .55:.2f})'>{share * 100:.0f} %"


def products_table(rows):
    """Products: a line for each shape, a column for each type of weights."""
    table, types = {}, set()
    for row in rows:
        k = keys(row["case"])
        if row["op"] != "matmul" or "w" not in k:
            continue
        extra = " ".join(f"{a}" for a in ("bias", "res", "norm", "up") if k.get(a, "0") != "0")
        packed = "" if k.get("layout") == "pack16" else "plain"
        shape = (int(k.get("m", 1)), int(k.get("n", 16)), int(k.get("k", 64)), " ".join(filter(None, (extra, packed))))
        table.setdefault(shape, {})[k["w"]] = row
        types.add(k["w"])
    if not table:
        return ""
    columns = [t for t in TYPES if t in types] + sorted(types - set(TYPES))
    out = ["<div class=wide><table><caption>y = x wᵀ, x of M rows of K, w of N rows: share of the nearer bound, memory or arithmetic</caption><thead><tr>"
           "<th class=n>M<th class=n>N<th class=n>K<th>with" + "".join(f"<th class=n>{esc(t)}" for t in columns) + "</thead><tbody>"]
    for shape in sorted(table):
        m, n, k, extra = shape
        out.append(f"<tr><th class=n scope=row>{m}<td class=n>{n}<td class=n>{k}<td>{esc(extra)}"
                   + "".join(heat_cell(table[shape].get(t)) for t in columns))
    return "".join(out) + "</tbody></table></div>"


def kernels_table(rows):
    others = [r for r in rows if not (r["op"] == "matmul" and "w" in keys(r["case"]))]
    if not others:
        return ""
    out = ["<details><summary>All other kernels</summary><div class=wide><table><thead><tr><th>kernel<th>case<th class=n>us<th class=n>GB/s<th class=n>GFLOP/s"
           "<th class=n>share<th></thead><tbody>"]
    for row in sorted(others, key=lambda r: (r["op"], natural(r["case"]))):
        share = number(row["share"]) or 0
        case = re.sub(r"\bperf=1 ?", "", row["case"])
        out.append(f"<tr><th scope=row>{esc(row['kernel'])}<td style='white-space:normal'>{esc(case)}<td class=n>{esc(row['us'])}"
                   f"<td class=n>{esc(row['gb_s'])}<td class=n>{esc(row['gflop_s'])}<td class=n>{share * 100:.0f} %"
                   f"<td class=track><div><i style='width:{min(share, 1) * 100:.0f}%'></i></div></td>")
    return "".join(out) + "</tbody></table></div></details>"


# ---- the page

def machine_section(name, rows, ops):
    history = comparisons(rows)
    newest = [line[-1] for line in history.values()]
    judged = [r for r in newest if r["reached"]]
    met = sum(map(reached, judged))
    ratios = [ratio_of(r)[0] for r in newest if ratio_of(r)[0] and r["unit"] != "MB"]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None
    dates = sorted(r["date"] for r in rows + ops)
    tiles = [(f"{met} of {len(judged)}", "bars reached"), (f"{mean:.2f} ×" if mean else "–", "the peers' speed, geometric mean"),
             (str(len(newest)), "comparisons"), (str(len(ops)), "timed calls of kernels"), (dates[-1][:10] if dates else "–", "newest record")]
    out = [f"<h2 id='{esc(name)}'>{esc(name)}</h2><div class=tiles>"]
    out += [f"<div class=tile><b>{esc(value)}</b><span>{esc(label)}</span></div>" for value, label in tiles]
    out.append("</div>")
    groups = {}
    for key, line in history.items():
        groups.setdefault(group_of(key[0]), {})[key] = line
    out += [comparison_table(group, groups[group]) for group in sorted(groups)]
    out.append(history_table(history))
    if ops:
        out.append(f"<h3>Kernels, at {esc(ops[0]['commit'])}, {esc(ops[0]['date'])}</h3>{products_table(ops)}{kernels_table(ops)}")
    return "".join(out)


def page(folder):
    machines = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.csv"))):
        name = os.path.basename(path)
        kind, stem = ("ops", name[:-8]) if name.endswith(".ops.csv") else ("rows", name[:-4])
        machines.setdefault(stem, {"rows": [], "ops": []})[kind] = read(path)
    out = ["<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width,initial-scale=1'>"
           "<meta http-equiv=Content-Security-Policy content=\"default-src 'none';style-src 'unsafe-inline'\">"
           f"<title>weir: benches</title><style>{STYLE}</style><h1>weir: benches</h1>"
           "<p>Drawn by <code>bench/report.py</code> from <code>bench/records</code>, which <code>make bench</code> writes. The programs took turns on the same "
           "machine; the best of the rounds is shown. <em>Ratio</em>: weir's speed in multiples of the peer's (for times and memory: the peer's over weir's, above 1 "
           "is better), as a bar on a scale of doublings, the bar that was aimed for marked on it. <em>Of the limit</em>: of what a plain read of the same bytes, or the peak of "
           "the arithmetic, would allow. Figures are weather, ratios are results: nobody else should have been at the machine, and sometimes somebody was.</p>"]
    out.append("<nav aria-label=Machines>" + "".join(f"<a href='#{esc(m)}'>{esc(m)}</a>" for m in machines) + "</nav>")
    out += [machine_section(name, m["rows"], m["ops"]) for name, m in machines.items()]
    if not machines:
        out.append("<p>No records yet.</p>")
    return "\n".join(out) + "</html>\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", default=os.path.join(REPO, "bench/records"))
    parser.add_argument("--out", default=os.path.join(REPO, "bench/report.html"))
    args = parser.parse_args()
    text = page(args.records)
    with open(args.out, "w") as f:
        f.write(text)
    print(f"report.py: {args.out}, {len(text) / 1e3:.0f} KB")


if __name__ == "__main__":
    main()
