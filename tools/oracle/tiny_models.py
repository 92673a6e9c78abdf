#!/usr/bin/env python3
"""tests/golden/tiny_ARCH.gguf: a model of each architecture, and what others compute with it.

tiny_models.py LLAMA_DIR [ARCH...]      gpt2, llama, gemma2, gemma3; without names all

Each file is a whole model (F32, random weights, 256 tokens of single bytes but one; Llama with an output matrix of its own, the others with
the embedding as output matrix; all but GPT-2 with grouped queries) with these keys besides:
  golden.tokens     I32 [64]
  golden.rows       I32, the positions that golden.logits is about
  golden.logits     F32 [rows, V], Hugging Face transformers in double: GPT2LMHeadModel, LlamaForCausalLM, Gemma2ForCausalLM,
                    Gemma3ForCausalLM (whose norms and angles are FP32 all the same)
  golden.llama_cpp  F32 [V], llama.cpp's logits of the last position
LLAMA_DIR is what bench/peers made for llama.cpp. The Gemmas' windows are shorter than the prompt and their soft caps low, so that both
tell; Gemma 3 has seven layers, of which the sixth sees everything, and a base of its own in the others.
"""
import os
import sys

import gguf
import numpy as np
import torch
import transformers

from golden import REPO, installed
from smollm2_logits import ask, build, kl

V, D, HEADS, KV, F, LAYERS, T, SEED = 256, 48, 3, 1, 96, 2, 64, 60
GEMMA = dict(D=32, Nq=4, Dh=16, F=64, window=16, attn_cap=3.0, logit_cap=8.0, layers={"gemma2": 2, "gemma3": 7})
ROWS = [0, 6, 39, 63]


def vocabulary(out):
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that GPT-2's vocabulary writes as themselves
    letters = [chr(b) for b in shown] + [chr(256 + i) for i in range(256 - len(shown))]
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(letters[:-1] + ["th"])
    out.add_token_types([gguf.TokenType.NORMAL] * V)
    out.add_token_merges(["t h"])


def randomise(model):
    generator = torch.Generator().manual_seed(SEED)
    for name, p in model.named_parameters():
        x = torch.randn(p.shape, generator=generator)
        norm = "ln_" in name or "norm" in name
        scale = 0.2 if p.ndim == 1 else 0.3 if "wpe" in name else 1.0 if "wte" in name or "embed" in name else 1.5 * D ** -0.5
        one = norm and name.endswith("weight") and "gemma" not in model.config.model_type  # Gemma adds it
        p.data = (x * scale + (1.0 if one else 0.0)).float().double()


def gpt2():
    config = transformers.GPT2Config(vocab_size=V, n_positions=T, n_embd=D, n_layer=LAYERS, n_head=HEADS, n_inner=F)
    model = transformers.GPT2LMHeadModel(config).double().eval()
    randomise(model)
    s = model.state_dict()
    names = {"token_embd.weight": s["transformer.wte.weight"], "position_embd.weight": s["transformer.wpe.weight"],
             "output_norm.weight": s["transformer.ln_f.weight"], "output_norm.bias": s["transformer.ln_f.bias"]}
    for i in range(LAYERS):
        for theirs, ours in (("ln_1", "attn_norm"), ("ln_2", "ffn_norm"), ("attn.c_attn", "attn_qkv"), ("attn.c_proj", "attn_output"),
                             ("mlp.c_fc", "ffn_up"), ("mlp.c_proj", "ffn_down")):
            w = s[f"transformer.h.{i}.{theirs}.weight"]
            names[f"blk.{i}.{ours}.weight"] = w.T if w.ndim == 2 else w  # Conv1D keeps its matrix the other way round
            names[f"blk.{i}.{ours}.bias"] = s[f"transformer.h.{i}.{theirs}.bias"]
    return model, names, lambda out: out.add_layer_norm_eps(config.layer_norm_epsilon)


def llama():
    config = transformers.LlamaConfig(vocab_size=V, hidden_size=D, intermediate_size=F, num_hidden_layers=LAYERS, rms_norm_eps=1e-5,
                                      num_attention_heads=HEADS, num_key_value_heads=KV, max_position_embeddings=T,
                                      tie_word_embeddings=False)
    model = transformers.LlamaForCausalLM(config).double().eval()
    randomise(model)
    s = model.state_dict()
    names = {"token_embd.weight": s["model.embed_tokens.weight"], "output_norm.weight": s["model.norm.weight"],
             "output.weight": s["lm_head.weight"]}

    def pairs(w, heads):  # GGUF turns neighbours, Hugging Face halves
        return w.reshape(heads, 2, D // HEADS // 2, D).transpose(1, 2).reshape(w.shape)

    for i in range(LAYERS):
        at = f"model.layers.{i}."
        names[f"blk.{i}.attn_q.weight"] = pairs(s[at + "self_attn.q_proj.weight"], HEADS)
        names[f"blk.{i}.attn_k.weight"] = pairs(s[at + "self_attn.k_proj.weight"], KV)
        for theirs, ours in (("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"), ("self_attn.v_proj", "attn_v"),
                             ("self_attn.o_proj", "attn_output"), ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"),
                             ("mlp.down_proj", "ffn_down")):
            names[f"blk.{i}.{ours}.weight"] = s[at + theirs + ".weight"]

    def keys(out):
        out.add_layer_norm_rms_eps(config.rms_norm_eps)
        out.add_rope_dimension_count(D // HEADS)
    return model, names, keys


def gemma(arch):
    G = GEMMA
    common = dict(vocab_size=V, hidden_size=G["D"], intermediate_size=G["F"], num_hidden_layers=G["layers"][arch], head_dim=G["Dh"],
                  num_attention_heads=G["Nq"], num_key_value_heads=KV, max_position_embeddings=T, sliding_window=G["window"],
                  query_pre_attn_scalar=G["Dh"], attn_implementation="eager")
    if arch == "gemma2":
        config = transformers.Gemma2Config(attn_logit_softcapping=G["attn_cap"], final_logit_softcapping=G["logit_cap"], **common)
        model = transformers.Gemma2ForCausalLM(config).double().eval()
    else:
        rope = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
        config = transformers.Gemma3TextConfig(rope_parameters=rope, **common)
        model = transformers.Gemma3ForCausalLM(config).double().eval()
    randomise(model)
    s = model.state_dict()
    names = {"token_embd.weight": s["model.embed_tokens.weight"], "output_norm.weight": s["model.norm.weight"] + 1}
    norms = [("input_layernorm", "attn_norm"), ("post_attention_layernorm", "post_attention_norm"),
             ("pre_feedforward_layernorm", "ffn_norm"), ("post_feedforward_layernorm", "post_ffw_norm")]
    if arch == "gemma3":
        norms += [("self_attn.q_norm", "attn_q_norm"), ("self_attn.k_norm", "attn_k_norm")]
    for i in range(config.num_hidden_layers):
        at = f"model.layers.{i}."
        for theirs, ours in norms:
            names[f"blk.{i}.{ours}.weight"] = s[at + theirs + ".weight"] + 1  # as converters do
        for theirs, ours in (("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"), ("self_attn.v_proj", "attn_v"),
                             ("self_attn.o_proj", "attn_output"), ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"),
                             ("mlp.down_proj", "ffn_down")):
            names[f"blk.{i}.{ours}.weight"] = s[at + theirs + ".weight"]

    def keys(out):
        out.add_layer_norm_rms_eps(config.rms_norm_eps)
        out.add_key_length(G["Dh"])
        out.add_value_length(G["Dh"])
        out.add_sliding_window(G["window"])
        if arch == "gemma2":
            out.add_attn_logit_softcapping(G["attn_cap"])
            out.add_final_logit_softcapping(G["logit_cap"])
        else:
            out.add_rope_freq_base(1e6)
            out.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            out.add_rope_scaling_factor(8.0)
    return model, names, keys


def write(path, arch, tensors, keys, notes):
    out = gguf.GGUFWriter(path, arch)
    out.add_name(f"tiny {arch}")
    out.add_file_type(0)
    small = arch in GEMMA["layers"]
    out.add_block_count(GEMMA["layers"].get(arch, LAYERS))
    out.add_context_length(T)
    out.add_embedding_length(GEMMA["D"] if small else D)
    out.add_feed_forward_length(GEMMA["F"] if small else F)
    out.add_head_count(GEMMA["Nq"] if small else HEADS)
    out.add_head_count_kv(HEADS if arch == "gpt2" else KV)
    out.add_vocab_size(V)
    keys(out)
    vocabulary(out)
    for key, value in notes.items():
        if isinstance(value, str):
            out.add_string(f"golden.{key}", value)
        else:
            kind = gguf.GGUFValueType.INT32 if value.dtype == np.int32 else gguf.GGUFValueType.FLOAT32
            out.add_key_value(f"golden.{key}", value.ravel().tolist(), gguf.GGUFValueType.ARRAY, kind)
    for name, w in tensors.items():
        out.add_tensor(name, np.ascontiguousarray(w.numpy().astype(np.float32)))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def main():
    makers = {"gpt2": gpt2, "llama": llama, "gemma2": lambda: gemma("gemma2"), "gemma3": lambda: gemma("gemma3")}
    if len(sys.argv) < 2 or not makers.keys() >= set(sys.argv[2:]):
        sys.exit(f"usage: tiny_models.py LLAMA_DIR [{'|'.join(makers)} ...]")
    program = build(sys.argv[1])
    tokens = torch.randint(0, V, (T,), generator=torch.Generator().manual_seed(SEED + 1))
    for arch in sys.argv[2:] or makers:
        model, tensors, keys = makers[arch]()
        with torch.no_grad():
            logits = model(tokens[None]).logits[0].numpy()
        path = os.path.join(REPO, "tests", "golden", f"tiny_{arch}.gguf")
        notes = {"command": "python tools/oracle/tiny_models.py LLAMA_DIR", "version.transformers": transformers.__version__,
                 "version.torch": torch.__version__, "version.gguf": installed("gguf"), "tokens": tokens.numpy().astype(np.int32),
                 "rows": np.array(ROWS, np.int32), "logits": logits[ROWS].astype(np.float32)}
        write(path + ".tmp", arch, tensors, keys, notes)
        notes["llama_cpp"] = ask(program, path + ".tmp", [("all", notes["tokens"])], 1)["all"][1]
        write(path + ".tmp", arch, tensors, keys, notes)
        os.replace(path + ".tmp", path)
        exact, other = logits[-1].astype(np.float32), notes["llama_cpp"]
        print(f"{arch}: {os.path.getsize(path)} bytes, rms of logits {logits.std():.3g}; llama.cpp: largest difference "
              f"{np.abs(exact - other).max():.3g}, KL {kl(exact, other, np.arange(V)):.3g}")


if __name__ == "__main__":
    main()
