/* Hyper-parameters: read by the table hparams.def, then held against each other.
 *
 * Refuses whatever the builders would compute wrongly or not at all: unknown architectures and RoPE scalings, experts,
 * head counts that do not divide. Every sentence names the key and its value. */
#include "model/model.h"

#include <math.h>

#include "model/step_i.h"

static const wr_arch archs[] = {
#define ARCH(name, block, step, rope, eps_key, every, doc) \
  {name, WR_BLOCK_##block, wr_step_##step, WR_ROPE_##rope, eps_key, every, doc},
#include "model/architectures.def"
#undef ARCH
};

typedef struct reader {
  const wr_gguf *g;
  const char *arch;
  char key[128];
} reader;

static const char *key_of(reader *r, const char *suffix) {
  snprintf(r->key, sizeof r->key, "%s.%s", r->arch, suffix);
  return r->key;
}

const wr_arch *wr_arch_find(const char *name, size_t n) {
  for (size_t i = 0; i < WR_ARRAY_LEN(archs); i++)
    if (strlen(archs[i].name) == n && memcmp(archs[i].name, name, n) == 0) return &archs[i];
  return NULL;
}

static weir_status find_arch(const wr_gguf *g, const wr_arch **out) {
  wr_gguf_text name;
  WR_TRY(wr_gguf_get_text(g, "general.architecture", true, &name));
  const wr_arch *found = wr_arch_find(name.ptr, name.len);
  if (found) {
    *out = found;
    return WEIR_OK;
  }
  wr_str known = {0};
  for (size_t i = 0; i < WR_ARRAY_LEN(archs); i++) wr_str_printf(&known, "%s%s", i ? ", " : "", archs[i].name);
  const weir_status s = wr_fail(WEIR_EUNSUPPORTED, "%s: general.architecture is '%s', which weir does not know (it knows: %s)",
                                wr_gguf_path(g), wr_escape(name.ptr, name.len), known.ptr ? known.ptr : "");
  wr_str_free(&known);
  return s;
}

static weir_status get_float(reader *r, const char *suffix, bool required, double min, double max, double *out) {
  const char *key = key_of(r, suffix);
  WR_TRY(wr_gguf_get_float(r->g, key, required, out));
  if (*out >= min && *out <= max) return WEIR_OK;
  if (!wr_gguf_find(r->g, key)) return WEIR_OK; /* a default of 0: derived later */
  return wr_fail(WEIR_EFORMAT, "%s: %s is %g, but it must be from %g to %g", wr_gguf_path(r->g), key, *out, min, max);
}

/* "linear", "yarn" or "none". A file that gives a factor and no type means linear, and old files call the factor
 * rope.scale_linear; with "none" neither counts. */
static weir_status read_scaling(reader *r, wr_hparams *h) {
  if (!(h->rope_factor > 0)) h->rope_factor = h->rope_scale_linear > 0 ? h->rope_scale_linear : 1;
  wr_gguf_text type = {"linear", 6};
  WR_TRY(wr_gguf_get_text(r->g, key_of(r, "rope.scaling.type"), false, &type));
  static const char *const names[] = {[WR_SCALING_NONE] = "none", [WR_SCALING_LINEAR] = "linear", [WR_SCALING_YARN] = "yarn"};
  for (size_t i = 0; i < WR_ARRAY_LEN(names); i++) {
    if (strlen(names[i]) != type.len || memcmp(names[i], type.ptr, type.len) != 0) continue;
    h->scaling = (wr_rope_scaling)i;
    if (h->yarn_ext_factor < 0) h->yarn_ext_factor = 1; /* "not set" */
    return WEIR_OK;
  }
  return wr_fail(WEIR_EUNSUPPORTED, "%s: %s is '%s', which weir does not know (it knows: none, linear, yarn)",
                 wr_gguf_path(r->g), key_of(r, "rope.scaling.type"), wr_escape(type.ptr, type.len));
}

static weir_status check_heads(reader *r, wr_hparams *h) {
  const char *path = wr_gguf_path(r->g), *arch = r->arch;
  if (!h->key_width || !h->value_width) {
    if (h->width % h->heads)
      return wr_fail(WEIR_EFORMAT, "%s: %s.attention.head_count is %lld, which does not divide %s.embedding_length (%lld)",
                     path, arch, (long long)h->heads, arch, (long long)h->width);
    if (!h->key_width) h->key_width = h->width / h->heads;
    if (!h->value_width) h->value_width = h->width / h->heads;
  }
  if (!h->kv_heads) h->kv_heads = h->heads;
  if (h->heads % h->kv_heads)
    return wr_fail(WEIR_EFORMAT, "%s: %s.attention.head_count_kv is %lld, which does not divide %s.attention.head_count (%lld)",
                   path, arch, (long long)h->kv_heads, arch, (long long)h->heads);
  if (h->arch->rope == WR_ROPE_NONE) return WEIR_OK;
  if (!h->rope_dims) h->rope_dims = h->key_width;
  if (h->rope_dims % 2 || h->rope_dims > h->key_width)
    return wr_fail(WEIR_EFORMAT, "%s: %s.rope.dimension_count is %lld, but it must be even and at most the head width (%lld)",
                   path, arch, (long long)h->rope_dims, (long long)h->key_width);
  return WEIR_OK;
}

weir_status wr_hparams_read(const wr_gguf *g, wr_hparams *out) {
  wr_hparams h = {0};
  WR_TRY(find_arch(g, &h.arch));
  reader r = {.g = g, .arch = h.arch->name};
#define INT(field, key, required, min, max, def) \
  h.field = def; \
  WR_TRY(wr_gguf_get_int(g, key_of(&r, key), required, min, max, &h.field));
#define FLOAT(field, key, required, min, max, def) \
  h.field = def; \
  WR_TRY(get_float(&r, key, required, min, max, &h.field));
#include "model/hparams.def"
#undef INT
#undef FLOAT
  if (h.experts > 0)
    return wr_fail(WEIR_EUNSUPPORTED, "%s: %s.expert_count is %lld; weir does not run mixtures of experts yet", wr_gguf_path(g),
                   r.arch, (long long)h.experts);
  /* A layer has at least 9 tensors; a count that the file cannot hold would only make the next error harder to read. */
  if ((uint64_t)h.layers > wr_gguf_n_tensors(g))
    return wr_fail(WEIR_EFORMAT, "%s: %s.block_count is %lld, but the file has only %zu tensors", wr_gguf_path(g), r.arch,
                   (long long)h.layers, wr_gguf_n_tensors(g));
  WR_TRY(check_heads(&r, &h));
  WR_TRY(read_scaling(&r, &h));
  const wr_gguf_tensor *embd = wr_gguf_tensor_find(g, "token_embd.weight");
  if (!embd) return wr_fail(WEIR_EFORMAT, "%s: the tensor token_embd.weight is missing", wr_gguf_path(g));
  if (embd->n_dims != 2 || embd->dim[1] > INT32_MAX)
    return wr_fail(WEIR_EFORMAT, "%s: token_embd.weight has %d dimensions and %llu rows; it must have 2 and at most 2^31 - 1",
                   wr_gguf_path(g), embd->n_dims, (unsigned long long)embd->dim[1]);
  h.vocab = (int64_t)embd->dim[1];
  if (h.vocab_key > h.vocab)
    return wr_fail(WEIR_EFORMAT, "%s: %s.vocab_size is %lld, but token_embd.weight has %lld rows", wr_gguf_path(g), r.arch,
                   (long long)h.vocab_key, (long long)h.vocab);
  *out = h;
  return WEIR_OK;
}

int64_t wr_layer_window(const wr_hparams *h, int64_t layer) {
  if (h->window > INT32_MAX) return 0; /* longer than any context */
  return h->window_every && layer % h->window_every == h->window_every - 1 ? 0 : h->window;
}

weir_status wr_context_check(const wr_hparams *h, int64_t context_tok) {
  if (h->arch->rope != WR_ROPE_NONE || context_tok <= h->trained_tok) return WEIR_OK;
  return wr_fail(WEIR_EUSAGE,
                 "a context (context_tok, --ctx) of %lld tokens: this model has learned %lld positions and no more",
                 (long long)context_tok, (long long)h->trained_tok);
}
