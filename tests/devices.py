#!/usr/bin/env python3
"""A model's layers on several devices (--device cpu,emu): text, several sequences and what moves, against one device."""
import os, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import harness
from harness import TMP, check, refused, run

HERE = os.path.dirname(os.path.abspath(__file__))
TINY = HERE + "/golden/tiny_llama.gguf"
PROMPT = ("-p", "a river runs", "-n", "8", "--ctx", "64", "--temp", "0", "--ignore-eos", "--json")


def generate(device, *args):
    r = run("generate", TINY, *PROMPT, "--device", device, "--threads", "1", *args, seconds=300)
    return r.json() if check(r.rc == 0, "%s: %r" % (device, r)) else {}


def width():
    meta = run("inspect", TINY, "--json").json()["metadata"]
    return int(meta["llama.embedding_length"]), int(meta["llama.block_count"])


def same_text():
    want = generate("cpu")
    check(want.get("moved_bytes_per_token") == 0, "one CPU moves something: %r" % want)
    for device in ("cpu,emu", "emu,cpu", "cpu,cpu"):
        got = generate(device)
        check(got.get("tokens") == want["tokens"], "%s: %r not %r" % (device, got.get("tokens"), want["tokens"]))
        check(got.get("moved_bytes_per_token", 0) > 0, "%s moves nothing" % device)


def moves_little():
    """The hidden row and the table of rotations to the second device; not weights, not the cache."""
    wide, _ = width()
    moved = generate("cpu,cpu")["moved_bytes_per_token"]
    check(4 * wide <= moved <= 4 * 4 * wide, "%g bytes a token, a row has %d" % (moved, 4 * wide))


def several_sequences():
    prompts = TMP + "/prompts.txt"
    with open(prompts, "w") as f:
        f.write("a river runs\na river runs deep\na river\n")
    args = ("generate", TINY, "--parallel", prompts, "-n", "6", "--ctx", "64", "--temp", "0", "--ignore-eos", "--threads", "1", "--json")
    one, two = run(*args), run(*args, "--device", "cpu,emu", seconds=300)
    if check(one.rc == 0 and two.rc == 0, "%r %r" % (one, two)):
        tokens = [[sorted((x["index"], x["tokens"]) for x in map(__import__("json").loads, r.out.splitlines()) if "index" in x)] for r in (one, two)]
        check(tokens[0] == tokens[1] and tokens[0][0], "%r not %r" % (tokens[1], tokens[0]))


def says_what():
    _, layers = width()
    r = run("generate", TINY, *PROMPT[:-1], "--device", "cpu,emu", "--threads", "1", "--why", seconds=300)
    err = r.err.decode()
    check(r.rc == 0 and "devices: cpu has layers 0 to " in err and "emu has layers " in err, err)
    check("moved " in err and "a token between devices" in err, err)
    for device, words in (("cpu,nothing", ("'nothing'", "weir devices")), ("cpu,", ("''",)), ("cpu,null", ("null", "runs nothing")),
                          ("cpu,cpu,cpu,cpu,cpu", ("more than 4",)), (",".join(["cpu"] * (layers + 1)), ("layers",) if layers < 4 else ("more than 4",))):
        refused(run("generate", TINY, *PROMPT, "--device", device), 2, *words)


harness.main("devices", [same_text, moves_little, several_sequences, says_what])
