#!/usr/bin/env python3
"""report.html: made from fabricated runs, read back by Python's HTML parser. Hostile text stays text; nothing is fetched; a long run is thinned
without losing a peak; what is torn or missing is left out."""
import json, math, os, sys, time
from html.parser import HTMLParser

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import harness
from harness import SAN, TMP, WEIR, check, refused, run

VOID = ("meta", "input", "path", "polyline", "polygon", "br", "img")
EVIL = "</p><script>alert(1)</script><img src=x onerror=alert(2)> \" ' & \u202e\u0000\x1b[31m 🙂世é\n"
STAGES = ("data", "copy", "forward", "backward", "optimizer", "checkpoint", "other")


class Page(HTMLParser):
    """tags, the text of each element, and whether they nest"""
    def __init__(self, html):
        super().__init__()
        self.tags, self.open, self.wrong, self.text, self.cells = [], [], [], {}, []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        if self.open:
            self.text.setdefault(self.open[-1], []).append(data)

    def all(self, tag, **attrs):
        return [a for t, a in self.tags if t == tag and all(a.get(k.rstrip("_")) == v for k, v in attrs.items())]

    def __contains__(self, words):
        return any(words in d for parts in self.text.values() for d in parts)


def folder(name, metrics, config=None, samples=()):
    path = "%s/%s" % (TMP, name)
    os.makedirs(path, exist_ok=True)
    with open(path + "/metrics.jsonl", "w") as f:
        f.writelines(line if isinstance(line, str) else json.dumps(line) + "\n" for line in metrics)
    if config is not None:
        open(path + "/config.json", "w").write(config if isinstance(config, str) else json.dumps(config))
    if samples:
        with open(path + "/samples.jsonl", "w") as f:
            f.writelines(json.dumps(s) + "\n" for s in samples)
    return path


def step(n, loss, **more):
    seconds = dict(zip(STAGES, (.001, .002, .03, .06, .005, 0, .002)))
    return dict({"step": n, "loss": loss, "lr": 1e-3, "grad_norm": 1.5, "tokens": n * 100, "tok_s": 1000.0, "mfu": .5, "loss_scale": 1, "skipped": 0,
                 "payload_copied": 0, "bytes_copied": {"widen": 400, "gather": 600}, "seconds": dict(seconds, total=sum(seconds.values()))}, **more)


def page(path):
    r = run("report", path, seconds=60)
    if not check(r.rc == 0 and r.out.decode().strip() == path + "/report.html", "%r" % r):
        return None
    html = open(path + "/report.html", encoding="utf-8").read()
    p = Page(html)
    check(not p.open and not p.wrong, "tags that do not nest: %s %s" % (p.open, p.wrong[:5]))
    check(len(p.all("script")) == 1 and not p.all("img") and not p.all("link") and not p.all("iframe"), "elements that are not ours: %s" % path)
    check("://" not in html and "url(" not in html and "@import" not in html, "something would be fetched")
    check(any("default-src 'none'" in a.get("content", "") for a in p.all("meta")), "no policy")
    check(not [c for c in html if (c < " " and c not in "\n\t") or c in "\x7f\u202e"], "control characters")
    p.html = html
    return p


def points(p, name):
    """of the line of this name over the linear axis: [(x, y)] in 0 … 1000"""
    line = [a for a in p.all("polyline") + p.all("polygon") if a.get("data-n") == name][0]
    return [tuple(map(float, xy.split(","))) for xy in line["points"].split()]


def value(p, title, y):
    """what a y of the chart stands for"""
    svg = [a for a in p.all("svg") if a["aria-label"].startswith(title)][0]
    low, high = float(svg["data-y0"]), float(svg["data-y1"])
    v = low + (1 - y / 1000) * (high - low)
    return math.exp(v) if "data-ylog" in svg else v


def everything():
    """each part is there, with the right numbers"""
    steps = [step(i, 5 - i * .03, **({"val_loss": 5.5 - i * .03} if i % 10 == 0 else {})) for i in range(1, 101)]
    run_line = {"run": {"cpu": "a processor", "threads": 2, "fingerprint": "00ff"}}
    memory = {"memory": [{"what": "weights", "planned": 5000000, "measured": 5200000}, {"what": "moments", "planned": 10000000, "measured": None}]}
    p = page(folder("whole", [run_line, memory] + steps + [{"event": "spike", "step": 50, "text": "the loss 9 is a spike"}],
                    {"arch": "llama", "optimizer": {"name": "adamw", "lr": 0.001}}, [{"step": 100, "prompt": "Once", "text": " upon a time"}]))
    if not p:
        return
    for words in ("2.000", "2.500", "10,000", "copying", "waiting for data", "Loss", "Learning rate", "Gradient norm", "Throughput", "Where a step's time goes",
                  "5.00 MB", "5.20 MB", "10.0 MB", "widen", "gather", "40.0 kB", "60.0 kB", "the loss 9 is a spike", "Once", " upon a time", "a processor",
                  "00ff", "optimizer.name", "adamw", "0.001"):
        check(words in p, "not in the page: %s" % words)
    check("2.00 %" in p and "1.00 %" in p and "10 B" in p, "shares of copying and waiting, bytes a token")
    got = points(p, "training")
    check(len(got) == 100 and abs(value(p, "Loss", got[0][1]) - 4.97) < .01 and abs(value(p, "Loss", got[-1][1]) - 2) < .01,
          "the curve of the loss: %s" % got[:2])
    check(len(points(p, "validation")) == 10, "the validation's")
    xs = [x for x, _ in got]
    check(xs == sorted(xs) and xs[0] == 0 and xs[-1] == 1000, "from the first to the last step")
    top = points(p, "other")[:100]
    check(all(abs(value(p, "Where", y) - 100) < .5 for _, y in top), "the stages add up to the step's 100 ms")


def hostile():
    """nothing from a file becomes markup"""
    key = EVIL.replace("\u0000", "")
    odd = {key: EVIL, "nested": {key: {key: [EVIL]}}}
    metrics = [{"run": odd}, {"memory": [{"what": EVIL, "planned": 1e6, "measured": 2e6}, {"what": 5}, 7]}, {"event": EVIL, "step": 1, "text": EVIL},
               {"event": EVIL, "text": EVIL * 2000}, {"event": "x", "step": "y"}, step(1, 2.0, bytes_copied={key: 5, "b": "c"}), step(2, 1.0)]
    p = page(folder("hostile<b>", metrics, odd, [{"step": 1, "prompt": EVIL, "text": EVIL * 1000}, {"step": None, "text": [1]}, {}]))
    if not p:
        return
    check(any("alert(1)" in d for tag, parts in p.text.items() if tag not in ("script", "style") for d in parts), "the text itself is shown")
    check("onerror" not in "".join(k for _, a in p.tags for k in a), "an attribute of a stranger's")
    check(len(p.html) < 400000, "long text is not cut: %d bytes" % len(p.html))


def torn():
    """lines that are no JSON, of other types, too deep, cut; no steps at all; no file"""
    good = [step(i, 3.0) for i in range(1, 6)]
    bad = ["{\"step\": 6, \"lo\n", "\n", "[1, 2]\n", "null\n", "\xff\xfe\n", "{\"step\": \"7\"}\n", "{\"step\": 8, \"loss\": null, \"seconds\": 5}\n",
           "[" * 100000 + "\n", "{\"step\": 9, \"loss\": 1e400}\n", "{\"a\": \"" + "x" * (5 << 20) + "\"}\n", json.dumps(step(10, 2.5)) + "\n", "{\"step\": 11, \"loss\""]
    p = page(folder("torn", good + bad, "{\"arch\": ", [5, "x"]))
    check(p and len(points(p, "training")) == 6 and "2.500" in p and "could not be read" in "".join(p.text["p"]), "what was good is shown")
    page(folder("one", good[:1]))
    page(folder("none", []))
    refused(run("report", TMP + "/nowhere"), 1, "metrics.jsonl")
    refused(run("report", WEIR), 1, "metrics.jsonl")
    r = run("report", TMP + "/one", "--json")
    check((r.json() or {}).get("report") == TMP + "/one/report.html", "%r" % r)


def thinned():
    """30,000 steps become at most 2,048 points; the one peak and the one dip among them stay"""
    n, peak, dip = 30000, 12345, 23456
    steps = (json.dumps({"step": i, "loss": 90.0 if i == peak else 1.0 if i == dip else 10 + (i % 7) * .1, "lr": i * 1e-6, "tokens": i}) + "\n"
             for i in range(1, n + 1))
    started = time.time()
    p = page(folder("long", steps, None, [{"step": i, "text": "sample %d." % i} for i in range(1, 102)]))
    check(SAN or time.time() - started < 5, "a report of %d steps took %.1f s" % (n, time.time() - started))
    if not p:
        return
    got = points(p, "training")
    check(1000 <= len(got) <= 2048, "%d points" % len(got))
    band = [a for a in p.all("polygon", class_="band")][0]["points"].split()
    values = [value(p, "Loss", float(xy.split(",")[1])) for xy in band]
    check(len(band) == 2 * len(got) and abs(max(values) - 90) < .1 and abs(min(values) - 1) < .1, "least and greatest: %.2f %.2f" % (min(values), max(values)))
    shown = [w for parts in p.text.values() for d in parts for w in d.split() if d.startswith("sample ")]
    shown = [int(w[:-1]) for w in shown if w[:-1].isdigit()]
    check(shown[0] == 1 and shown[-1] == 101 and len(shown) <= 17 and shown == sorted(shown), "samples from first to last: %s" % shown)


harness.main("report", (everything, hostile, torn, thinned))
