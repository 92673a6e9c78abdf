/* Parsing of .cases lines, typed look-ups, and the filling of inputs. See cases.h. */
#include "ops/cases.h"

#include <math.h>
#include <stdlib.h>

static weir_status bad(wr_case *c, const char *fmt, ...) WR_PRINTF(2, 3);
static weir_status bad(wr_case *c, const char *fmt, ...) {
  char text[256];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  wr_fail(WEIR_EUSAGE, "%s: %s in '%s'", c->file, text, c->text ? c->text : "");
  if (c->status == WEIR_OK) c->status = WEIR_EUSAGE;
  return c->status;
}

static const char *look_up(wr_case *c, const char *key) {
  for (int i = 0; i < c->n_keys; i++)
    if (strcmp(c->keys[i].key, key) == 0) {
      c->keys[i].asked = true;
      return c->keys[i].value;
    }
  return NULL;
}

int64_t wr_case_int(wr_case *c, const char *key, int64_t otherwise) {
  const char *text = look_up(c, key);
  if (!text) return otherwise;
  char *end;
  long long v = strtoll(text, &end, 10);
  if (!*text || *end || v < -(1ll << 40) || v > 1ll << 40) {
    bad(c, "%s=%s is not a whole number", key, text);
    return otherwise;
  }
  return v;
}

double wr_case_float(wr_case *c, const char *key, double otherwise) {
  const char *text = look_up(c, key);
  if (!text) return otherwise;
  char *end;
  double v = strtod(text, &end);
  if (*text && !*end) return v;
  bad(c, "%s=%s is not a number", key, text);
  return otherwise;
}

const char *wr_case_str(wr_case *c, const char *key, const char *otherwise) {
  const char *text = look_up(c, key);
  return text ? text : otherwise;
}

int wr_case_dtype(wr_case *c, const char *key, wr_dtype otherwise) {
  const char *text = look_up(c, key);
  int t = text ? wr_dtype_find(text) : (int)otherwise;
  if (t < 0) {
    bad(c, "%s=%s is no dtype", key, text);
    return (int)otherwise;
  }
  return c->as_double && wr_dtypes[t].kind != WR_INT ? WR_F64 : t;
}

int wr_case_layout(wr_case *c, const char *key, wr_layout otherwise) {
  const char *text = look_up(c, key);
  int found = text ? -1 : (int)otherwise;
  for (int i = 0; text && i < WR_LAYOUT_COUNT; i++)
    if (strcmp(text, wr_layout_name((wr_layout)i)) == 0) found = i;
  if (found < 0) {
    bad(c, "%s=%s is no layout", key, text);
    found = (int)otherwise;
  }
  return c->as_double ? WR_PLAIN : found;
}

int wr_case_input(wr_case *c, wr_program *p, wr_kind kind, const char *name, wr_vtype t, wr_fill fill) {
  if (c->n_inputs == (int)WR_ARRAY_LEN(c->inputs)) {
    bad(c, "too many inputs");
    return WR_NONE;
  }
  int v = wr_value_new(p, kind, name, &t);
  c->inputs[c->n_inputs].value = v;
  c->inputs[c->n_inputs++].fill = fill;
  return v;
}

/* ------------------------------------------------------------------------------------------------------------------ parsing */

weir_status wr_case_parse(const char *file, const char *line, wr_case *out) {
  *out = (wr_case){.file = "", .text = "", .alone = true, .grad = true, .tol = 1};
  size_t n = strcspn(line, "#\n");
  while (n && (line[n - 1] == ' ' || line[n - 1] == '\t' || line[n - 1] == '\r')) n--;
  out->file = wr_arena_strdup(&out->arena, file);
  out->text = wr_arena_strndup(&out->arena, line, n);
  char *words = wr_arena_strndup(&out->arena, line, n), *save = NULL;
  if (!out->file || !out->text || !words) return wr_fail_nomem(n, "a test case");
  char *name = strtok_r(words, " \t", &save);
  if (!name) return bad(out, "there is no op");
  out->op = wr_op_find(name);
  if (!out->op) return bad(out, "no op is called %s", name);
  for (char *word; (word = strtok_r(NULL, " \t", &save));) {
    char *eq = strchr(word, '=');
    if (!eq || eq == word) return bad(out, "%s is not key=value", word);
    *eq = 0;
    if (look_up(out, word)) return bad(out, "%s stands twice", word);
    if (out->n_keys == WR_CASE_KEYS) return bad(out, "more than %d keys", WR_CASE_KEYS);
    out->keys[out->n_keys].key = word;
    out->keys[out->n_keys++].value = eq + 1;
  }
  for (int i = 0; i < out->n_keys; i++) out->keys[i].asked = false;
  wr_regs *r = &out->regs;
  r->live[WR_LIVE_ROWS] = wr_case_int(out, "live", INT32_MAX);
  r->live[WR_LIVE_OUT] = wr_case_int(out, "live_out", INT32_MAX);
  r->live[WR_LIVE_SEQS] = wr_case_int(out, "live_seqs", INT32_MAX);
  r->step = wr_case_int(out, "step", 1);
  r->lr = (float)wr_case_float(out, "lr", 0.01);
  r->grad_scale = (float)wr_case_float(out, "grad_scale", 0);
  r->found_inf = (int32_t)wr_case_int(out, "found_inf", 0);
  r->loss_scale = (float)wr_case_float(out, "loss_scale", 1);
  r->seed = 1;
  out->pad = wr_case_int(out, "pad", 0);
  out->seed = wr_case_int(out, "seed", 1);
  out->perf = wr_case_int(out, "perf", 0) != 0;
  out->grad = wr_case_int(out, "grad", 1) != 0;
  out->alone = wr_case_int(out, "alone", 1) != 0;
  out->tol = wr_case_float(out, "tol", 1);
  if (out->pad < 0 || out->pad > 4096) return bad(out, "pad=%lld is not within 0..4096", (long long)out->pad);
  return out->status;
}

weir_status wr_case_build(wr_case *c, wr_program *p) {
  c->n_inputs = 0;
  if (!c->op->make_case) return bad(c, "op %s makes no cases", c->op->name);
  WR_TRY(c->op->make_case(c, p));
  if (c->status != WEIR_OK) return bad(c, "malformed value");
  if (wr_program_status(p) != WEIR_OK) return wr_fail_prefix(p->status, "%s: ", c->file);
  for (int i = 0; i < c->n_keys; i++)
    if (!c->keys[i].asked) return bad(c, "op %s has no key %s", c->op->name, c->keys[i].key);
  if (!p->n_instrs || p->instrs[p->n_instrs - 1].op != c->op) return bad(c, "the last instruction is not %s", c->op->name);
  return WEIR_OK;
}

void wr_case_free(wr_case *c) { wr_arena_free(&c->arena); }

bool wr_case_next(wr_case_walk *walk, wr_case *out, weir_status *status) {
  for (;; walk->file++, walk->at = NULL) {
    if (walk->file >= wr_case_files_n) return false;
    const wr_case_file *f = &wr_case_files[walk->file];
    if (!walk->at) walk->at = f->text, walk->line = 0;
    while (*walk->at) {
      const char *line = walk->at;
      size_t n = strcspn(line, "\n");
      walk->at = line + n + (line[n] == '\n');
      walk->line++;
      if (line[strspn(line, " \t\r")] == '#' || strspn(line, " \t\r") >= n) continue;
      snprintf(walk->where, sizeof walk->where, "%s.cases:%d", f->family, walk->line);
      *status = wr_case_parse(walk->where, line, out);
      return true;
    }
  }
}

/* ------------------------------------------------------------------------------------------------------------------ filling */

/* NULL: not an input. */
static const wr_fill *fill_of(const wr_case *c, int value) {
  for (int i = 0; i < c->n_inputs; i++)
    if (c->inputs[i].value == value) return &c->inputs[i].fill;
  return NULL;
}

static double draw(const wr_fill *f, wr_rng *rng) {
  if (f->kind == WR_FILL_NORMAL) return f->a + f->b * wr_rng_normal(rng);
  if (f->kind == WR_FILL_UNIFORM) return f->a + (f->b - f->a) * wr_rng_uniform(rng);
  return f->a + floor((f->b - f->a + 1) * wr_rng_uniform(rng));
}

/* Where the blocks of a type that weir only reads keep their F16 scales; -1: none. Random bits elsewhere are valid blocks. */
static const struct {
  wr_dtype dtype;
  int at[2];
} scale_places[] = {{WR_Q2_K, {80, 82}},  {WR_Q3_K, {108, -1}}, {WR_Q4_K, {0, 2}},   {WR_Q5_K, {0, 2}},
                    {WR_Q6_K, {208, -1}}, {WR_IQ4_NL, {0, -1}}, {WR_IQ4_XS, {0, -1}}};

static void random_blocks(wr_dtype t, uint8_t *dst, size_t bytes, wr_rng *rng) {
  for (size_t i = 0; i < bytes; i++) dst[i] = (uint8_t)(wr_rng_u64(rng) >> 40);
  for (size_t k = 0; k < WR_ARRAY_LEN(scale_places); k++) {
    if (scale_places[k].dtype != t) continue;
    for (size_t b = 0; b + (size_t)wr_dtypes[t].block_bytes <= bytes; b += (size_t)wr_dtypes[t].block_bytes)
      for (int j = 0; j < 2; j++) {
        if (scale_places[k].at[j] < 0) continue;
        uint16_t h = wr_float_to_f16((float)(0.0005 + 0.002 * wr_rng_uniform(rng)));
        memcpy(dst + b + (size_t)scale_places[k].at[j], &h, sizeof h);
      }
  }
}

/* Quantised rows: from random floats where weir can write the type, else random blocks. */
static weir_status fill_quantised(const wr_fill *f, const wr_arg *a, wr_rng *rng) {
  int64_t rows = a->ext[0], cols = wr_inner(a);
  const wr_dtype_info *d = &wr_dtypes[a->dtype];
  size_t row_bytes = wr_layout_row_bytes(WR_PLAIN, (wr_dtype)a->dtype, cols);
  uint8_t *plain = wr_calloc((size_t)rows, row_bytes);
  float *row = wr_calloc((size_t)cols, sizeof *row);
  if (plain && row)
    for (int64_t r = 0; r < rows; r++) {
      if (d->from_float) {
        for (int64_t i = 0; i < cols; i++) row[i] = (float)draw(f, rng);
        d->from_float(row, plain + (size_t)r * row_bytes, cols);
      } else
        random_blocks((wr_dtype)a->dtype, plain + (size_t)r * row_bytes, row_bytes, rng);
      if (a->layout == WR_PLAIN) memcpy((char *)a->data + r * a->stride_bytes, plain + (size_t)r * row_bytes, row_bytes);
    }
  if (plain && row && a->layout == WR_PACK16)
    wr_pack16((wr_dtype)a->dtype, plain, rows, cols, a->data, 0, (rows + WR_PACK_ROWS - 1) / WR_PACK_ROWS);
  bool ok = plain && row;
  wr_free(plain);
  wr_free(row);
  return ok ? WEIR_OK : wr_fail_nomem((size_t)rows * row_bytes, "the inputs of a test case");
}

weir_status wr_case_fill(wr_case *c, const wr_program *p, int value, const wr_arg *a) {
  const wr_fill *f = fill_of(c, value);
  if (!f) return bad(c, "value %d (%s) is an input without a rule to fill it", value, p->values[value].name);
  wr_rng rng;
  wr_rng_seed(&rng, (uint64_t)c->seed * 1000 + (uint64_t)value);
  const wr_dtype_info *d = &wr_dtypes[a->dtype];
  int64_t rows = a->ext[0], cols = wr_inner(a);
  if (f->kind == WR_FILL_CUSTOM)
    f->fn(c, a, &rng);
  else if (a->layout != WR_PLAIN || d->kind == WR_QUANT)
    return fill_quantised(f, a, &rng);
  else
    for (int64_t r = 0; r < rows; r++)
      for (int64_t i = 0; i < cols; i++) wr_set(a, r, i, draw(f, &rng));
  if (!a->live) return WEIR_OK;
  for (int64_t r = c->regs.live[a->live]; r < rows; r++)
    for (int64_t i = 0; i < cols; i++) wr_set(a, r, i, d->kind == WR_INT ? (double)INT32_MIN : (double)NAN);
  return WEIR_OK;
}
