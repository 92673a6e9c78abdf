#!/usr/bin/env python3
"""Token ids by the tokenizers that models are published with, for tests/text_golden.c.

Writes tests/golden/vocab.txt. Witnesses, each on the vocabularies of ../shared/data/vocab:
  gpt2 kinds   Hugging Face tokenizers, set up as the tokenizer.json of the model that the pre-tokenizer is named after
  llama kind   sentencepiece, over a model rebuilt from the GGUF's pieces, scores and types
  default      llama.cpp, which invented it (LLAMA: its source folder; LIB: the folder of libllama.so)
  smollm       both, over the vocabulary of SmolLM2 too (MODEL: a GGUF of it), and they must agree

The test's texts are fixed edge cases and random ones from blocks of scripts that Unicode filled long ago, so that tables of
different Unicode versions agree on them.

  python3 tools/oracle/vocab.py LLAMA LIB MODEL      needs: pip install gguf tokenizers sentencepiece protobuf, and cc
"""
import importlib.metadata
import os
import random
import subprocess
import sys
import tempfile

import gguf
import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
VOCABS = os.path.join(REPO, "..", "shared", "data", "vocab", "ggml-vocab-%s.gguf")

EDGE = [
    "", " ", "  ", "   ", "\n", "\n\n\n", " \n", "\n ", " \n \n x", "\t", "\r\n", "\r\n\r\n x", " hello", "  hello", "hello  ",
    "a  b   c", "a\tb\nc\r\nd\n\n\ne", "\ufeffhello", "a\u00a0b\u2003c\u3000d", "\u00a0\u00a0x", "\u0085x \u2028y",
    "a\u180eb \u180e x",
    "a\u200bb\u200cc\u200dd", "x\x1cy \x1f z", "\U0001f642\U0001f680",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 ok",
    "1\ufe0f\u20e3", "\U00010348\U0002070e", "شكراً hello שלום", "नमस्ते", "สวัสดีชาวโลก", "你好世界。", "カタカナ ひらがな", "한국어 텍스트",
    "I'm you're we'VE they'd it's DON'T \u2019s 'LL'd''s", "'\u017f 'S \u212a 'll", "3 33 333 3333 1234567890 3.14",
    "a1b22c333 \u00bd\u2167\u0664\u0665",
    "   123   456 ", "!!!??...--__::;;'''\"\"\"", "a$b+c<d=e>f^g~h|i`j", "\tif (x) {\n\t\treturn y[0]; }\n",
    "https://e.example/a?b=c&d=%20#f",
    "<s>", "</s>", "a</s>b", "<unk>", "<0x0A>", "<|im_end|>", "<|endoftext|>", "<|eot_id|> x <|end|>", "[PAD151646]",
    "e\u0301\u0302 n\u0303",
    "\x00", "a\x00b", "\x01\x02\x7f", "\u2581 \u2581a",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "-" * 70, " " * 70,
    "=\n" * 20, "The quick brown fox jumps over the lazy dog. Pack my box with five dozen liquor jugs!",
    "Äpfel, Öl und Übermut; straße, naïve façade, žluťoučký kůň", "def f(x: int) -> str:\n    return f'{x!r}'  # ok\n",
    "pneumonoultramicroscopicsilicovolcanoconiosis",
]
BLOCKS = [
    (0x20, 0x7e), (0x20, 0x7e), (0x20, 0x7e), (0x20, 0x7e), (0x20, 0x7e), (0x20, 0x7e), (0x09, 0x0d), (0x20, 0x20), (0x20, 0x20),
    (0x30, 0x39), (0xa0, 0x17f), (0x391, 0x3a1), (0x3b1, 0x3c9), (0x410, 0x44f), (0x5d0, 0x5ea), (0x627, 0x63a), (0x660, 0x669),
    (0x905, 0x939), (0x93e, 0x94c), (0xe01, 0xe2e), (0x2000, 0x200a), (0x2010, 0x2027), (0x2160, 0x2182), (0x2190, 0x21ff),
    (0x3041, 0x3096), (0x30a1, 0x30fa), (0x4e00, 0x9fa5), (0xac00, 0xd7a3), (0x1f600, 0x1f64f),
]
PIECES = ["'s", "'LL", " the", "\n\n", "  ", " \n", "...", "1234", " =", "://", "ing", "\r\n", "'", " '", "!\n", "\u00a0"]

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

LLAMA_C = r"""
#include "llama.h"
#include <stdio.h>
#include <stdlib.h>
static void quiet(enum ggml_log_level l, const char *s, void *u) { (void)l, (void)s, (void)u; }
int main(int argc, char **argv) {  /* ids of each text on stdin: a length, a newline, the bytes */
  llama_log_set(quiet, NULL);
  struct llama_model_params p = llama_model_default_params();
  p.vocab_only = true;
  struct llama_model *m = argc > 1 ? llama_model_load_from_file(argv[1], p) : NULL;
  if (!m) return 1;
  long n;
  while (scanf("%ld", &n) == 1) {
    char *s = malloc(n + 1);
    llama_token *ids = malloc((4 * n + 16) * sizeof *ids);
    getchar();
    if (fread(s, 1, n, stdin) != (size_t)n) return 1;
    int k = llama_tokenize(llama_model_get_vocab(m), s, (int)n, ids, (int)(4 * n + 16), false, false);
    for (int i = 0; i < k; i++) printf("%s%d", i ? " " : "", ids[i]);
    printf("\n");
    free(s), free(ids);
  }
  return 0;
}
"""


def texts():
    r = random.Random(3)
    out = list(EDGE)
    while len(out) < len(EDGE) + 120:
        s = ""
        for _ in range(r.randint(1, 28)):
            if r.random() < 0.25:
                s += r.choice(PIECES)
            else:
                low, high = r.choice(BLOCKS)
                s += chr(r.randint(low, high)) * r.choice([1, 1, 1, 1, 2, 3])
        out.append(s)
    return out


def path_of(name):
    return name if name.endswith(".gguf") else VOCABS % name


class Vocab:
    """The arrays of a GGUF's tokenizer."""

    def __init__(self, name):
        f = gguf.GGUFReader(path_of(name)).fields
        self.tokens = self.strings(f, "tokenizer.ggml.tokens")
        self.merges = self.strings(f, "tokenizer.ggml.merges")
        self.types = self.numbers(f, "tokenizer.ggml.token_type")
        self.scores = self.numbers(f, "tokenizer.ggml.scores")

    @staticmethod
    def strings(f, key):
        return [bytes(f[key].parts[i]).decode() for i in f[key].data] if key in f else []

    @staticmethod
    def numbers(f, key):
        return [f[key].parts[i][0].item() for i in f[key].data] if key in f else []


def hugging_face(v, pre):
    merges = [tuple(m.split(" ", 1)) for m in v.merges]
    t = Tokenizer(models.BPE({s: i for i, s in enumerate(v.tokens)}, merges, ignore_merges=pre == "llama-bpe"))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    with_regex = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre == "gpt-2":
        t.pre_tokenizer = with_regex
    elif pre == "smollm":
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), with_regex])
    else:
        regex = Regex(LLAMA3 % {"llama-bpe": "{1,3}", "qwen2": ""}[pre])
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(regex, "isolated"), byte_level])
    user = [tokenizers.AddedToken(s, normalized=False) for s, k in zip(v.tokens, v.types) if k == 4]
    t.add_tokens(user)
    return lambda s: t.encode(s, add_special_tokens=False).ids


def sentence_piece(v):
    m = sentencepiece_model_pb2.ModelProto()
    m.trainer_spec.model_type = sentencepiece_model_pb2.TrainerSpec.BPE
    m.trainer_spec.byte_fallback = True
    m.trainer_spec.vocab_size = len(v.tokens)
    m.normalizer_spec.name = "identity"
    m.normalizer_spec.remove_extra_whitespaces = False
    m.normalizer_spec.add_dummy_prefix = True
    for text, score, kind in zip(v.tokens, v.scores, v.types):
        m.pieces.add(piece=text, score=score, type=kind)
    p = sentencepiece.SentencePieceProcessor(model_proto=m.SerializeToString())
    return p.encode


def llama_cpp(source, lib, work, name, pre, all_texts):
    """ids of all texts, with the vocabulary `name` and its tokenizer.ggml.pre, or another one; the file has no tensors then"""
    model, c, program = (os.path.join(work, x) for x in ("m.gguf", "ids.c", "ids"))
    if pre is None:
        model = path_of(name)
    else:
        with open(path_of(name), "rb") as f:
            data = f.read()
        key = b"tokenizer.ggml.pre"
        at = data.index(key) + len(key) + 4
        old = int.from_bytes(data[at:at + 8], "little")
        with open(model, "wb") as f:
            f.write(data[:at] + len(pre).to_bytes(8, "little") + pre.encode() + data[at + 8 + old:])
    with open(c, "w", encoding="utf-8") as f:
        f.write(LLAMA_C)
    subprocess.run(["cc", c, "-o", program, "-I", f"{source}/include", "-I", f"{source}/ggml/include",
    "-L", lib, "-lllama", "-lggml",
                    "-lggml-base", f"-Wl,-rpath,{lib}"], check=True)
    feed = b"".join(b"%d\n%s" % (len(s.encode()), s.encode()) for s in all_texts)
    lines = subprocess.run([program, model], input=feed, stdout=subprocess.PIPE, check=True).stdout.decode().split("\n")
    return [[int(x) for x in line.split()] for line in lines[:len(all_texts)]]


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    all_texts = texts()
    runs = []
    for name, pre in (("gpt-2", "gpt-2"), ("gpt-2", "smollm"), ("llama-bpe", "llama-bpe"), ("qwen2", "qwen2")):
        encode = hugging_face(Vocab(name), pre)
        runs.append((name, pre, [encode(s) for s in all_texts]))
    encode = sentence_piece(Vocab("llama-spm"))
    runs.append(("llama-spm", "-", [encode(s) if s else [] for s in all_texts]))
    with tempfile.TemporaryDirectory() as work:
        source, lib, model = sys.argv[1:]
        runs.append(("gpt-2", "default", llama_cpp(source, lib, work, "gpt-2", "default", all_texts)))
        encode = hugging_face(Vocab(model), "smollm")
        smollm2 = [encode(s) for s in all_texts]
        if smollm2 != llama_cpp(source, lib, work, model, None, all_texts):
            sys.exit("Hugging Face and llama.cpp disagree on SmolLM2")
        runs.append(("smollm2", "smollm", smollm2))
    with open(os.path.join(REPO, "tests", "golden", "vocab.txt"), "w", encoding="ascii") as f:
        f.write("# made by tools/oracle/vocab.py: tokenizers %s, sentencepiece %s, gguf %s\n" %
                (tokenizers.__version__, sentencepiece.__version__, importlib.metadata.version("gguf")))
        f.write("# a text in hex, then for each vocabulary and pre-tokenizer the ids (base 36)\n")
        for i, s in enumerate(all_texts):
            f.write("text %s\n" % (s.encode().hex() or "-"))
            for name, pre, ids in runs:
                f.write(" ".join([name, pre] + [base36(x) for x in ids[i]]) + "\n")


def base36(x):
    s = ""
    while True:
        s = "0123456789abcdefghijklmnopqrstuvwxyz"[x % 36] + s
        x //= 36
        if not x:
            return s


if __name__ == "__main__":
    main()
