#!/usr/bin/env python3
"""generate --parallel as people and programs use it: files of prompts, good and hostile, Ctrl-C, order, exit codes; each answer beside the
one that generate gives alone."""
import json, os, random, signal, subprocess, sys, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import harness
from harness import SECONDS, SHARED, TMP, WEIR, check, refused, run

MODELS = SHARED + "/cases/models"
SCRIPTED, RANDOM = MODELS + "/scripted.gguf", MODELS + "/random.gguf"
STORY = " alpha beta gamma:🙂世é end"


def file(text, name="prompts.txt"):
    path = os.path.join(TMP, name)
    with open(path, "wb") as f:
        f.write(text if isinstance(text, bytes) else text.encode())
    return path


def lines(r):
    """JSON lines of a run: results by index, and the summary"""
    found = [json.loads(x) for x in r.out.splitlines()]
    if not found or "summary" not in found[-1]:
        check(False, "no summary at the end: %r" % r)
        return {}, {}
    return {x["index"]: x for x in found[:-1]}, found[-1]["summary"]


def in_order():
    r = run("generate", SCRIPTED, "--parallel", file("go\n\nbad\r\n  \ngo"))
    check(r.rc == 0 and r.out.decode() == "[1] go\n%s\n\n[2] bad\n\ufffd ok\n\n[3] go\n%s\n\n" % (STORY, STORY), "%r" % r)
    check(b"tok/s" in r.err and b"of the limit" in r.err and b"\r" not in r.err, "%r" % r)
    r = run("generate", SCRIPTED, "--parallel", "-", "--slots", "1", stdin=b"go\nrun\n", )
    check(r.rc == 0 and r.out.startswith(b"[1] go\n") and b"\n[2] run\n x1 x2 x3" in r.out, "%r" % r)
    r = run("generate", SCRIPTED, "--parallel", file("a\x1b[31m" + "b" * 150), "-n", "1")
    check(r.rc == 0 and b"\x1b" not in r.out and b"\\x1B" in r.out and b" ..." in r.out, "a prompt in a heading: %r" % r)
    r = run("generate", SCRIPTED, "--parallel", file("go"), "--why")
    check(r.rc == 0 and b"matmul" in r.err and b"kernels of" in r.err, "%r" % r)


def as_alone():
    """every way of sampling, as keys and as options, in company and alone: the same tokens"""
    rnd = random.Random(5)
    asked = []
    for i in range(24):
        q = {"prompt": "".join(rnd.choice("abc xyz") for _ in range(rnd.randrange(1, 120))), "n": rnd.randrange(1, 40)}
        if i % 2:
            q.update(temp=rnd.choice([0.5, 1, 3]), seed=i + 1)
            q.update(rnd.choice([{}, {"top_k": 7}, {"top_p": 0.7}, {"min_p": 0.05}, {"repeat_penalty": 1.2, "repeat_last_n": 9}]))
        if i % 5 == 0:
            q["stop"] = rnd.choice(["e", ["zz", "a"]])
        if i % 7 == 0:
            q["ignore_eos"] = True
        asked.append(q)
    path = file("\n".join(map(json.dumps, asked)), "asked.jsonl")
    r = run("generate", RANDOM, "--parallel", path, "--json", "--slots", "7")
    check(r.rc == 0 and not r.err, "%r" % r)
    got, summary = lines(r)
    check(sorted(got) == list(range(1, 25)) and summary["ended"] == summary["prompts"] == 24, "not each one once: %s" % sorted(got))
    for i, q in enumerate(asked):
        args = ["-p", q["prompt"]]
        for key, value in q.items():
            flag = "--" + key.replace("_", "-") if key != "n" else "-n"
            if key == "stop":
                args += [x for s in (value if isinstance(value, list) else [value]) for x in (flag, s)]
            elif key == "ignore_eos":
                args.append(flag)
            elif key != "prompt":
                args += [flag, value]
        alone = run("generate", RANDOM, *args, "--json").json() or {}
        here = got.get(i + 1, {})
        check(set(alone) <= set(here) and here.get("line") == i + 1, "keys of generate: %s" % sorted(here))
        for key in ("tokens", "text", "finish", "prompt_tokens", "seed"):
            check(here.get(key) == alone.get(key), "%s of %s: %r, alone %r" % (key, q, here.get(key), alone.get(key)))
    again = run("generate", RANDOM, "--parallel", path, "--json", "--slots", "64", "-T", "1")
    check({i: x["tokens"] for i, x in lines(again)[0].items()} == {i: x["tokens"] for i, x in got.items()}, "slots and threads change an answer")
    r = run("generate", RANDOM, "--parallel", path, "--json", "-c", "170", "--slots", "3")
    check(r.rc == 0 and {i: x["tokens"] for i, x in lines(r)[0].items()} == {i: x["tokens"] for i, x in got.items()}, "a short context")
    options = run("generate", RANDOM, "--parallel", file('{"prompt": "x"}\n{"prompt": "x", "seed": 4}\n{"prompt": "x", "temp": 0}', "o.jsonl"), "--json", "--temp",
                  "1", "--seed", "3", "-n", "9")
    got = lines(options)[0]
    check(got[1]["seed"] == 3 and got[2]["seed"] == 4 and got[3]["seed"] == 0 and len(got[1]["tokens"]) <= 9, "options stand behind keys: %r" % options)


def bad_files():
    good = '{"prompt": "x"}\n'
    for name, text, line, words in (
            ("a.jsonl", good + "{", 2, ("column",)), ("a.jsonl", good + "[]", 2, ("object",)), ("a.jsonl", "\n\n7", 3, ("column",)),
            ("a.jsonl", '{"n": 3}', 1, ("prompt", "missing")), ("a.jsonl", '{"prompt": 3}', 1, ("prompt", "string")),
            ("a.jsonl", '{"prompt": "x", "prompt": "y"}', 1, ("duplicate",)), ("a.jsonl", '{"prompt": "x", "nn": 1}', 1, ("nn", "top_k")),
            ("a.jsonl", '{"prompt": "x", "n": 0}', 1, ('"n"',)), ("a.jsonl", '{"prompt": "x", "n": 1.5}', 1, ('"n"',)),
            ("a.jsonl", '{"prompt": "x", "temp": "hot"}', 1, ("temp", "number")), ("a.jsonl", '{"prompt": "x", "top_p": 1.5}', 1, ("top_p", "from 0 to 1")),
            ("a.jsonl", '{"prompt": "x", "top_k": 1.5}', 1, ("top_k", "whole")), ("a.jsonl", '{"prompt": "x", "seed": -1}', 1, ("seed",)),
            ("a.jsonl", '{"prompt": "x", "n": 99999999999999999999}', 1, ("column",)), ("a.jsonl", '{"prompt": "x", "temp": 1e999}', 1, ("column",)),
            ("a.jsonl", '{"prompt": "x", "stop": ""}', 1, ("stop",)), ("a.jsonl", '{"prompt": "x", "stop": [1]}', 1, ("stop",)),
            ("a.jsonl", '{"prompt": "x", "stop": %s}' % json.dumps(["a"] * 17), 1, ("stop", "16")),
            ("a.jsonl", '{"prompt": "x", "system": "y"}', 1, ("chat",)), ("a.jsonl", '{"prompt": "x", "chat": 1}', 1, ("chat", "true or false")),
            ("a.jsonl", b'{"prompt": "\xff"}', 1, ("column",)), ("a.jsonl", '{"prompt": "x"} {}', 1, ("column",)), ("a.jsonl", good + "[" * 100000, 2, ("column",)),
            ("a.jsonl", '{"prompt": "\\ud800"}', 1, ("column",)), ("a.ndjson", good + "x", 2, ("column",)), ("a.jsonl", good + '{"\x1b[31m": 1}', 2, ("column",)),
            ("a.jsonl", '{"prompt": "x", "\\u001b[31m": 1}', 1, ("\\x1B",)), ("a.txt", "\n \n", 0, ("no prompt",)), ("a.txt", "", 0, ("no prompt",))):
        path = file(text, name)
        r = run("generate", RANDOM, "--parallel", path)
        refused(r, 3, "%s:%d: " % (path, line) if line else path + ": ", *words)
        check(b"\x1b" not in r.err, "controls: %r" % r)
    refused(run("generate", RANDOM, "--parallel", file("{"), "--jsonl"), 3, ":1:")
    refused(run("generate", RANDOM, "--parallel", "-", "--jsonl", stdin=b"x"), 3, "standard input:1:")
    refused(run("generate", RANDOM, "--parallel", "/nowhere/x"), 1, "/nowhere/x")
    refused(run("generate", RANDOM, "--parallel", TMP), 1, TMP)
    path = file("x\n" + "long " * 200 + "\ny\n")
    refused(run("generate", RANDOM, "--parallel", path, "-c", "64"), 2, path + ":2:", "--ctx")
    for args in (["-p", "x"], ["--prompt-file", "x"]):
        refused(run("generate", RANDOM, "--parallel", path, *args), 2, "--parallel")
    refused(run("generate", RANDOM, "-p", "x", "--slots", "3"), 2, "--parallel")
    for n in ("0", "65", "x"):
        refused(run("generate", RANDOM, "--parallel", path, "--slots", n), 2, "--slots")
    r = run("generate", RANDOM, "--parallel", file('{"prompt": "a\\u0000b \\ud83d\\ude42", "n": 1}', "nul.jsonl"), "--json")
    check(r.rc == 0, "NUL in a prompt: %r" % r)
    r = run("generate", RANDOM, "--parallel", file(b"\xff\xfe\x00 x\n"), "-n", "2")
    check(r.rc == 0, "bytes that are no text: %r" % r)


def interrupted(json_lines):
    path = file("run\n" * 200)
    args = ["--json"] if json_lines else []
    p = subprocess.Popen([WEIR, "generate", SCRIPTED, "--parallel", path, "-n", "-1", "--slots", "2", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         bufsize=0)
    first = p.stdout.readline()
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=SECONDS * 4)
    return p.returncode, first + out, err


def stops():
    rc, out, err = interrupted(False)
    check(rc == 130 and out.startswith(b"[1] run\n x1 x2 x3") and out.count(b"[") < 200 and b" of 200" in err, "exit %d, %r, %r" % (rc, out[:100], err[-300:]))
    rc, out, err = interrupted(True)
    found = [json.loads(x) for x in out.splitlines()]
    check(rc == 130 and found[-1]["summary"]["ended"] == len(found) - 1 < 200, "exit %d, %d lines, %r" % (rc, len(found), found[-1]))
    check(all(x["finish"] in ("length", "stopped") and x["tokens"] for x in found[:-1]), "what had not begun was printed")


def nobody_reads():
    p = subprocess.Popen([WEIR, "generate", SCRIPTED, "--parallel", file("run\n" * 500), "-n", "-1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdout.readline()
    p.stdout.close()
    started = time.time()
    p.wait(timeout=SECONDS * 4)
    check(p.returncode in (1, -signal.SIGPIPE) and time.time() - started < SECONDS * 4, "exit %s" % p.returncode)
    p.stderr.close()
    if os.path.exists("/dev/full"):
        with open("/dev/full", "w") as full:
            r = subprocess.run([WEIR, "generate", SCRIPTED, "--parallel", file("go\ngo\n")], stdout=full, stderr=subprocess.PIPE, timeout=SECONDS * 4)
        check(r.returncode == 1 and b"standard output" in r.stderr, "a full disk: exit %d, %r" % (r.returncode, r.stderr))


harness.main("parallel", [in_order, as_alone, bad_files, stops, nobody_reads])
