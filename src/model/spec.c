/* Specs: presets by size, the checks of a configuration, what a spec costs, and its metadata in GGUF.
 *
 * Parameters and FLOPs are counted from the program that is built of the spec, so no second formula can disagree with it. */
#include "model/model.h"
#include "model/train_i.h"

static const struct preset {
  const char *arch, *size;
  int layers, width, heads, kv_heads, ff;
  bool tied;
} presets[] = {
#define PRESET(arch, size, layers, width, heads, kv_heads, ff, tied) {#arch, size, layers, width, heads, kv_heads, ff, tied},
#include "model/presets.def"
#undef PRESET
};

weir_status wr_spec_preset(const char *arch, const char *size, int64_t vocab, int64_t context_tok, wr_spec *out) {
  if (!wr_train_arch_find(arch))
    return wr_fail(WEIR_EUSAGE, "architecture '%s' cannot be trained; those that can are llama and gpt2", arch);
  char known[128] = "";
  for (size_t i = 0; i < WR_ARRAY_LEN(presets); i++) {
    const struct preset *r = &presets[i];
    if (strcmp(r->arch, arch) != 0) continue;
    snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", known[0] ? ", " : "", r->size);
    if (strcmp(r->size, size) != 0) continue;
    wr_spec s = {.layers = r->layers,
                 .width = r->width,
                 .heads = r->heads,
                 .kv_heads = r->kv_heads,
                 .ff = r->ff,
                 .vocab = vocab,
                 .context_tok = context_tok,
                 .tied = r->tied,
                 .eps = 1e-5,
                 .rope_base = 10000};
    snprintf(s.arch, sizeof s.arch, "%s", arch);
    WR_TRY(wr_spec_check(&s));
    *out = s;
    return WEIR_OK;
  }
  return wr_fail(WEIR_EUSAGE, "size '%s' is not one of the sizes of %s: %s", size, arch, known);
}

/* The bounds of hparams.def, and what keeps products of extents within 64 bits. */
weir_status wr_spec_check(const wr_spec *s) {
  const wr_train_arch *arch = wr_train_arch_find(s->arch);
  if (!arch) return wr_fail(WEIR_EUSAGE, "arch is '%.15s', but only llama and gpt2 can be trained", s->arch);
  const struct {
    const char *name;
    int64_t value, max;
  } counts[] = {{"layers", s->layers, 65536},        {"width", s->width, 1048576}, {"heads", s->heads, 65536},
                {"kv_heads", s->kv_heads, 65536},    {"ff", s->ff, 4194304},       {"vocab", s->vocab, 16777216},
                {"context", s->context_tok, 1 << 24}};
  for (size_t i = 0; i < WR_ARRAY_LEN(counts); i++)
    if (counts[i].value < 1 || counts[i].value > counts[i].max)
      return wr_fail(WEIR_EUSAGE, "%s is %lld, but it must be from 1 to %lld", counts[i].name, (long long)counts[i].value,
                     (long long)counts[i].max);
  if (s->width % s->heads)
    return wr_fail(WEIR_EUSAGE, "heads is %lld, but it must divide width (%lld)", (long long)s->heads, (long long)s->width);
  if (s->heads % s->kv_heads)
    return wr_fail(WEIR_EUSAGE, "kv_heads is %lld, but it must divide heads (%lld)", (long long)s->kv_heads,
                   (long long)s->heads);
  if (!(s->eps >= 1e-12 && s->eps <= 1)) return wr_fail(WEIR_EUSAGE, "eps is %g, but it must be from 1e-12 to 1", s->eps);
  if (!(s->dropout >= 0 && s->dropout < 1))
    return wr_fail(WEIR_EUSAGE, "dropout is %g, but it must be at least 0 and below 1", s->dropout);
  return arch->check(s);
}

/* Parameters of each kind of a training program of one token. */
static bool count_kinds(const wr_spec *s, uint64_t counts[WR_PARAM_KIND_COUNT]) {
  const wr_train_shape shape = {.B = 1, .T = 1, .forward_only = true};
  wr_program p;
  wr_train_io io;
  wr_program_init(&p);
  const bool ok = wr_train_build(&p, s, &shape, &io) == WEIR_OK;
  for (int i = 0; ok && i < io.n_params; i++) {
    const wr_vtype *t = wr_type(&p, io.params[i].value);
    counts[io.params[i].kind] += (uint64_t)t->ext[0] * (uint64_t)t->ext[1];
  }
  wr_program_free(&p);
  return ok;
}

uint64_t wr_spec_parameters(const wr_spec *s) {
  uint64_t counts[WR_PARAM_KIND_COUNT] = {0}, sum = 0;
  if (!count_kinds(s, counts)) return 0;
  for (int k = 0; k < WR_PARAM_KIND_COUNT; k++) sum += counts[k];
  return sum;
}

/* Each element of a matrix is multiplied and added once forward and twice backward; so is the head's table. Attention, of a token in the
 * mean: (T + 1) / 2 positions, a product for the score and one for the sum, of `width` elements each. */
double wr_spec_flop_tok(const wr_spec *s) {
  uint64_t counts[WR_PARAM_KIND_COUNT] = {0};
  if (!count_kinds(s, counts)) return 0;
  const double matrices = (double)counts[WR_PARAM_MATRIX] + (double)s->vocab * (double)s->width;
  const double attention = (double)s->layers * ((double)s->context_tok + 1) / 2 * 2 * (double)s->width;
  return 6 * (matrices + attention);
}

weir_status wr_spec_put_meta(const wr_spec *s, const char *name, wr_gguf_writer *w) {
  WR_TRY(wr_spec_check(s));
  const wr_train_arch *arch = wr_train_arch_find(s->arch);
  const struct {
    const char *key;
    int64_t value;
  } counts[] = {{"context_length", s->context_tok},
                {"embedding_length", s->width},
                {"block_count", s->layers},
                {"feed_forward_length", s->ff},
                {"attention.head_count", s->heads},
                {"attention.head_count_kv", s->kv_heads},
                {"vocab_size", s->vocab}};
  char key[128];
  WR_TRY(wr_gguf_put_text(w, "general.architecture", s->arch, strlen(s->arch)));
  WR_TRY(wr_gguf_put_text(w, "general.name", name, strlen(name)));
  WR_TRY(wr_gguf_put_u32(w, "general.file_type", 0)); /* all F32 */
  for (size_t i = 0; i < WR_ARRAY_LEN(counts); i++) {
    snprintf(key, sizeof key, "%s.%s", s->arch, counts[i].key);
    WR_TRY(wr_gguf_put_u32(w, key, (uint32_t)counts[i].value));
  }
  snprintf(key, sizeof key, "%s.%s", s->arch, wr_arch_find(s->arch, strlen(s->arch))->eps_key);
  WR_TRY(wr_gguf_put_f32(w, key, (float)s->eps));
  return arch->put_meta ? arch->put_meta(s, w) : WEIR_OK;
}
