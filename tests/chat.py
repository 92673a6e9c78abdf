#!/usr/bin/env python3
"""weir chat: in a pipe, and in a terminal of its own (pty): editing, history, Ctrl-C, Ctrl-D, long and broken input, a full context."""
import json, os, pty, re, select, signal, stat, subprocess, sys, termios, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import harness
from harness import SECONDS, SHARED, TMP, WEIR, check, refused, run, skip

MODELS = SHARED + "/cases/models"
CHATML, PLAIN = MODELS + "/scripted-chatml.gguf", os.path.dirname(os.path.abspath(__file__)) + "/golden/tiny_llama.gguf"
REAL = os.environ.get("WEIR_TEST_MODEL")
STATE = TMP + "/state"


def chat(text, *args, model=CHATML, **more):
    return run("chat", model, *args, stdin=text if isinstance(text, bytes) else text.encode(), env={"XDG_STATE_HOME": STATE}, **more)


def alone(messages, *args):
    """ids of a prompt of these messages in ChatML, and the answer that generate gives to the last of one"""
    r = run("generate", CHATML, "--chat", "-p", messages[-1], "--json", *args)
    return r.json() or {}


def pipes():
    r = chat("hello\n", "-n", "12")
    check(r.rc == 0 and r.out.decode() == alone(["hello"], "-n", "12").get("text", "?") + "\n", "as generate --chat: %r" % r)
    check(not r.err and b"\x1b" not in r.out and b">" not in r.out, "no prompt, no colour, no speed without a terminal: %r" % r)
    r = chat("hello\n\n   \nagain", "--json", "-n", "5")
    got = [json.loads(x) for x in r.out.splitlines()]
    check(r.rc == 0 and len(got) == 2 and not r.err, "blank lines, no newline at the end: %r" % r)
    first, second = (got + [{}, {}])[:2]
    check(second.get("prompt_tokens", [])[:len(first["prompt_tokens"])] == first["prompt_tokens"] and
          len(second["prompt_tokens"]) > len(first["prompt_tokens"]), "the second prompt does not go on from the first")
    r = chat("a\\\nb\n", "--json", "-n", "1")
    check((r.json() or {}).get("prompt_tokens") == alone(["a\nb"], "-n", "1").get("prompt_tokens"), "a line that goes on: %r" % r)
    r = chat('"""\na\n\n/b\\\n"""\n', "--json", "-n", "1")
    check((r.json() or {}).get("prompt_tokens") == alone(["a\n\n/b\\"], "-n", "1").get("prompt_tokens"), "a block: %r" % r)
    r = chat('"""\nunfinished', "--json", "-n", "1")
    check((r.json() or {}).get("prompt_tokens") == alone(["unfinished"], "-n", "1").get("prompt_tokens"), "a block without an end: %r" % r)
    r = chat("//x\n", "--json", "-n", "1")
    check((r.json() or {}).get("prompt_tokens") == alone(["/x"], "-n", "1").get("prompt_tokens"), "a message with a slash: %r" % r)
    r = chat("x\n", "--system", "be", "--json", "-n", "1")
    check((r.json() or {}).get("prompt_tokens") == alone(["x"], "-n", "1", "--system", "be").get("prompt_tokens"), "--system: %r" % r)
    for text in (b"\xff\xfe\n", b"a\x00b\n", b"\xc3\n", b""):
        r = chat(text, "-n", "2")
        check(r.rc == 0, "%r: %r" % (text, r))


def commands():
    r = chat("/help\n/nope\n/regen\n/save\n/system be\n/reset\n/quit\nnot read\n")
    check(r.rc == 0 and not r.out and all(w in r.err for w in (b"/regen", b"no command /nope", b"no answer yet", b"name of a new file")), "%r" % r)
    path = TMP + "/talk.json"
    r = chat("hello\n/save %s\n/save %s\n" % (path, path), "-n", "6", "--system", "be \"brief\"")
    saved = json.load(open(path))["messages"]
    check([m["role"] for m in saved] == ["system", "user", "assistant"] and saved[0]["content"] == 'be "brief"' and saved[1]["content"] == "hello" and
          saved[2]["content"] + "\n" == r.out.decode() and b"exists" in r.err, "%s, %r" % (saved, r))
    r = chat("hello\n/reset\nhello\n/system be\nhello\n/system\nhello\n", "--json", "-n", "3")
    got = [json.loads(x)["prompt_tokens"] for x in r.out.splitlines()]
    check(len(got) == 4 and got[0] == got[1] == got[3] and got[2] == alone(["hello"], "-n", "1", "--system", "be").get("prompt_tokens"), "reset, system")
    r = chat("dice\n/regen\n/regen\n", "--json", "-n", "20", "--temp", "5", "--seed", "7")
    got = [json.loads(x) for x in r.out.splitlines()]
    check([g["seed"] for g in got] == [7, 8, 9] and got[0]["prompt_tokens"] == got[1]["prompt_tokens"] == got[2]["prompt_tokens"], "regen: %r" % r)


def refusals():
    refused(chat("hello\n", model=PLAIN), 3, "ChatML")
    refused(chat("hello\n", model="/nowhere/x.gguf"), 1, "/nowhere/x.gguf")
    refused(chat("hello\n", "-n", "0"), 2, "-n")
    refused(chat("hello\n", "-p", "x"), 2, "--prompt")
    r = chat("x" * 20000 + "\nhello\n", "-n", "3")
    check(r.rc == 2 and r.out and b"no room for an answer" in r.err, "a message that never fits, then one that does: %r" % r)


def full_context():
    r = chat("tell me more\n" * 12, "--json", "-n", "20", "-c", "160")
    got = [json.loads(x) for x in r.out.splitlines()]
    check(r.rc == 0 and len(got) == 12 and all(len(g["prompt_tokens"]) + len(g["tokens"]) <= 160 for g in got), "%r" % r)
    check(b"oldest" in r.err and b"160" in r.err and r.err.count(b"\n") < 8, "the note: %r" % r)
    again = chat("tell me more\n" * 12 + "/regen\n/regen\n", "-n", "20", "-c", "160", "--system", "be")
    check(again.rc == 0 and again.out.count(b"\n") >= 14, "%r" % again)


class Terminal:
    """weir chat in a terminal"""

    def __init__(self, *args, model=CHATML, **env):
        self.pid, self.fd = pty.fork()
        if not self.pid:
            os.environ.update({"XDG_STATE_HOME": STATE, "TERM": "xterm", "LC_ALL": "C.UTF-8", **env})
            os.execv(WEIR, [WEIR, "chat", model, *args])
        self.seen = b""
        self.edited = env.get("TERM") != "dumb" and has_libedit()

    def wait(self, what, seconds=0):
        """reads until `what` has come; what came before it, and it"""
        end = time.time() + (seconds or SECONDS * 4)
        while what not in self.seen:
            ready = select.select([self.fd], [], [], max(0, end - time.time()))[0]
            try:
                more = os.read(self.fd, 65536) if ready else b""
            except OSError:
                more = b""
            if not more:
                check(False, "%r did not come: %r" % (what, self.seen[-300:]))
                return b""
            self.seen += more
        before, self.seen = self.seen.split(what, 1)
        return before + what

    def ready(self, seconds=0):
        """reads until the prompt has come and, where lines are edited, the terminal passes on keys as they are"""
        before = self.wait(b"> ", seconds)
        end = time.time() + SECONDS
        while self.edited and termios.tcgetattr(self.fd)[3] & termios.ICANON and time.time() < end:
            time.sleep(0.01)
        return before

    def type(self, text):
        os.write(self.fd, text if isinstance(text, bytes) else text.encode())

    def end(self):
        """its exit code"""
        left, out = time.time() + SECONDS * 4, b""
        while time.time() < left:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    out += os.read(self.fd, 65536)
                except OSError:
                    pass
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)
        return "it does not end: %r" % out[-200:]


def has_libedit():
    return subprocess.run([sys.executable, "-c", "import ctypes; ctypes.CDLL('libedit.so.2')"], capture_output=True).returncode == 0


def edits():
    if not has_libedit():
        return skip("edits", "no libedit.so.2 here")
    history = STATE + "/weir/chat_history"
    if os.path.exists(history):
        os.unlink(history)
    t = Terminal("-n", "4")
    t.ready()
    t.type("hallo\x01\x1b[C\x04e\x05\r")  # to the beginning, right, delete, e
    echoed = t.wait(b"\n")
    t.wait(b"tok")
    t.ready()
    t.type("/save %s/edited.json\r" % TMP)
    t.ready()
    t.type("\x04")
    check(t.end() == 0, "Ctrl-D")
    said = json.load(open(TMP + "/edited.json"))["messages"][0]["content"]
    check(said == "hello", "edited to %r (%r)" % (said, echoed))
    check(os.path.exists(history) and stat.S_IMODE(os.stat(history).st_mode) == 0o600, "the history file")
    t = Terminal("-n", "4")
    t.ready()
    t.type("\x1b[A\x1b[A\r")  # two lines up
    t.wait(b"tok")
    t.ready()
    t.type("/save %s/again.json\r" % TMP)
    t.ready()
    t.type(b"\xc3\xbcn \xff\xfe \xe4\xb8\x96\r")
    t.wait(b"tok")
    t.ready()
    t.type("/save %s/bytes.json\r" % TMP)
    t.ready()
    t.type("/quit\r")
    check(t.end() == 0, "/quit")
    check(json.load(open(TMP + "/again.json"))["messages"][0]["content"] == "hello", "the history of the session before")
    said = json.load(open(TMP + "/bytes.json"))["messages"][2]["content"]
    check(said.startswith("\u00fcn ") and said.endswith(" \u4e16") and "\ufffd" in said, "bytes that are not UTF-8: %r" % said)
    t = Terminal("-n", "1", "--temp", "0")
    t.ready()
    t.type("w" * 300 + "\r")
    t.ready()
    t.type("\x04")
    check(t.end() in (0, 2), "a line longer than the screen")


def interrupts():
    t = Terminal("-n", "4")
    t.ready()
    t.type("half a line\x03")
    t.wait(b"Ctrl-C again")
    t.ready()
    t.type("hello\r")
    t.wait(b"tok")
    t.ready()
    t.type("\x03")
    t.wait(b"Ctrl-C again")
    t.ready()
    t.type("\x03")
    check(t.end() == 130, "twice Ctrl-C")
    t = Terminal("-n", "4")
    t.ready()
    os.kill(t.pid, signal.SIGTERM)
    check(t.end() == 143, "SIGTERM at the prompt")
    t = Terminal("-n", "4", TERM="dumb")
    t.ready()
    t.type("hello\r")
    out = t.wait(b"tok/s") + t.ready()
    check(b"\x1b" not in out, "escapes on a dumb terminal: %r" % out)
    t.type("\x03")
    t.wait(b"Ctrl-C again")
    t.ready()
    t.type("\x04")
    check(t.end() == 0, "Ctrl-D on a dumb terminal")
    t = Terminal("-n", "4", NO_COLOR="1")
    t.ready()
    t.type("hello\r")
    check(b"\x1b[2m" not in t.wait(b"in the context"), "a colour in spite of NO_COLOR")
    t.ready()
    t.type("\x04")
    check(t.end() == 0, "Ctrl-D")


def stops_an_answer():
    """the real model talks long enough"""
    if not REAL:
        return skip("stops_an_answer", "WEIR_TEST_MODEL is not set")
    t = Terminal("--temp", "0", model=REAL)
    t.ready(60)
    t.type("Write a very long story about a river, a mill and a dog, with many chapters.\r")
    t.wait(b"\n")
    t.wait(b" the", 60)
    t.type("\x03")
    t.wait(b"stopped", 60)
    t.ready(60)
    t.type("What is the capital of France?\r")
    t.wait(b"Paris", 60)
    t.ready(60)
    t.type("/save %s/stopped.json\r" % TMP)
    t.ready()
    t.type("\x04")
    check(t.end() == 0, "Ctrl-D")
    said = json.load(open(TMP + "/stopped.json"))["messages"]
    check(len(said) == 4 and said[1]["content"] and said[3]["content"], "%s" % [m["content"][:40] for m in said])
    p = subprocess.Popen([WEIR, "chat", REAL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    p.stdin.write(b"Write a very long story about a river.\nAnd another one.\n")
    p.stdout.read(10)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=SECONDS * 12)
    check(p.returncode == 130 and out, "Ctrl-C without a terminal: exit %s, %r" % (p.returncode, err[-200:]))


harness.main("chat", [pipes, commands, refusals, full_context, edits, interrupts, stops_an_answer])
