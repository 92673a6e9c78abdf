/* Converting model files: the tensors of a model in another type, written as one GGUF file.
 *
 * Streams: a piece of rows is decoded to FP32 and encoded again; the source stays mapped, nothing else is held. What a converter of
 * llama.cpp leaves in F32 stays so: vectors (norms, biases) and the table of positions. All metadata goes along, but for what
 * says how the tensors are stored.
 * Refuses: folders of safetensors, a target that exists, values that the type cannot hold. */
#include <dirent.h>
#include <math.h>
#include <sys/stat.h>

#include "infer/infer_i.h"

enum { PIECE_ELEMS = 1 << 18 };

typedef struct converting {
  const wr_gguf *in;
  wr_gguf_writer *out;
  const weir_convert_options *o;
  const wr_gguf_type_info *want; /* NULL: each as it is */
  uint64_t done, total;          /* bytes of the source */
  float *values;                 /* [PIECE_ELEMS] */
  void *encoded;
} converting;

/* llama.cpp's numbers of general.file_type */
static const struct {
  wr_gguf_type type;
  uint32_t file_type;
} targets[] = {{WR_GGUF_F32, 0}, {WR_GGUF_F16, 1}, {WR_GGUF_BF16, 32}};

static const wr_gguf_type_info *type_of(const converting *c, const wr_gguf_tensor *t) {
  if (!c->want) return t->type;
  const bool matrix = t->n_dims > 1 && strcmp(t->name, "position_embd.weight") != 0;
  return matrix ? c->want : wr_gguf_type_find(WR_GGUF_F32);
}

static weir_status report(converting *c, uint64_t bytes) {
  c->done += bytes;
  if (c->o->progress && c->o->progress(c->o->user, (double)c->done / (double)WR_MAX(c->total, (uint64_t)1)))
    return wr_fail(WEIR_ESTOPPED, "stopped; nothing was written");
  return WEIR_OK;
}

static weir_status copy_tensor(converting *c, const wr_gguf_tensor *t) {
  const uint64_t step = (uint64_t)PIECE_ELEMS * sizeof(float);
  for (uint64_t at = 0; at < t->bytes; at += step) {
    const size_t n = (size_t)WR_MIN(step, t->bytes - at);
    WR_TRY(wr_gguf_write(c->out, t->data + at, n));
    WR_TRY(report(c, n));
  }
  return WEIR_OK;
}

static weir_status too_large(const converting *c, const wr_gguf_tensor *t, const wr_gguf_type_info *to, const float *x,
                             size_t n) {
  for (size_t i = 0; i < n; i++)
    if (isfinite(x[i]) && fabsf(x[i]) >= 65520)
      return wr_fail(WEIR_EUNSUPPORTED, "%s: tensor %s has the value %g, which %s cannot hold; take --type bf16 or f32",
                     wr_gguf_path(c->in), t->name, (double)x[i], to->name);
  return WEIR_OK;
}

static weir_status convert_tensor(converting *c, const wr_gguf_tensor *t) {
  const wr_gguf_type_info *to = type_of(c, t);
  if (to == t->type) return copy_tensor(c, t);
  const wr_dtype_info *from = &wr_dtypes[wr_weight_dtype(t->type)], *into = &wr_dtypes[wr_weight_dtype(to)];
  const uint64_t step = PIECE_ELEMS / (uint64_t)from->block * (uint64_t)from->block;
  for (uint64_t at = 0; at < t->n_elems; at += step) { /* blocks lie one after another, whatever the rows */
    const size_t n = (size_t)WR_MIN(step, t->n_elems - at);
    const size_t bytes = n / (size_t)from->block * (size_t)from->block_bytes;
    from->to_float(t->data + at / (uint64_t)from->block * (uint64_t)from->block_bytes, c->values, (int64_t)n);
    if (to->number == WR_GGUF_F16) WR_TRY(too_large(c, t, to, c->values, n));
    into->from_float(c->values, c->encoded, (int64_t)n);
    WR_TRY(wr_gguf_write(c->out, c->encoded, n * (size_t)into->block_bytes));
    WR_TRY(report(c, bytes));
  }
  return WEIR_OK;
}

static bool is_key(const wr_gguf_meta *m, const char *key) {
  return m->key.len == strlen(key) && memcmp(m->key.ptr, key, m->key.len) == 0;
}

static weir_status write_all(converting *c, weir_convert_result *r) {
  for (size_t i = 0; i < wr_gguf_n_meta(c->in); i++) {
    const wr_gguf_meta *m = wr_gguf_meta_at(c->in, i);
    if (c->want && (is_key(m, "general.file_type") || is_key(m, "general.quantization_version"))) continue;
    WR_TRY(wr_gguf_put_meta(c->out, m));
  }
  for (size_t i = 0; c->want && i < WR_ARRAY_LEN(targets); i++)
    if ((uint32_t)targets[i].type == c->want->number)
      WR_TRY(wr_gguf_put_u32(c->out, "general.file_type", targets[i].file_type));
  for (size_t i = 0; i < wr_gguf_n_tensors(c->in); i++) {
    const wr_gguf_tensor *t = wr_gguf_tensor_at(c->in, i);
    const wr_gguf_type_info *to = type_of(c, t);
    if (to != t->type && wr_weight_dtype(t->type) < 0)
      return wr_fail(WEIR_EUNSUPPORTED,
                     "%s: tensor %s is of type %s, which cannot be converted; without --type each tensor stays as it is",
                     wr_gguf_path(c->in), t->name, t->type->name);
    WR_TRY(wr_gguf_put_tensor(c->out, t->name, (wr_gguf_type)to->number, t->n_dims, t->dim));
    c->total += t->bytes;
    r->parameters += t->n_elems;
  }
  r->tensors = wr_gguf_n_tensors(c->in);
  for (size_t i = 0; i < wr_gguf_n_tensors(c->in); i++) WR_TRY(convert_tensor(c, wr_gguf_tensor_at(c->in, i)));
  return wr_gguf_writer_finish(c->out);
}

/* ---- what is refused before anything is opened */

static bool ends_with(const char *s, const char *end) {
  const size_t n = strlen(s), k = strlen(end);
  return n >= k && strcmp(s + n - k, end) == 0;
}

static bool holds_safetensors(const char *path) {
  bool found = ends_with(path, ".safetensors");
  DIR *d = found ? NULL : opendir(path);
  for (struct dirent *e; d && !found && (e = readdir(d));) found = ends_with(e->d_name, ".safetensors");
  if (d) closedir(d);
  return found;
}

static weir_status check(const char *in, const char *out, const weir_convert_options *o) {
  struct stat st;
  if (!in || !out) return wr_fail(WEIR_EUSAGE, "converting needs a model to read and a file to write");
  if (holds_safetensors(in))
    return wr_fail(WEIR_EUNSUPPORTED, "%s: safetensors are not read yet; weir converts GGUF files, runs and checkpoints", in);
  if (ends_with(out, ".safetensors"))
    return wr_fail(WEIR_EUNSUPPORTED, "%s: safetensors are not written yet; name a .gguf file", out);
  if (stat(out, &st) != 0) return WEIR_OK;
  if (S_ISDIR(st.st_mode)) return wr_fail(WEIR_EUSAGE, "%s: is a folder; name the .gguf file to write", out);
  return o->force ? WEIR_OK : wr_fail(WEIR_EUSAGE, "%s: exists already; --force (force) replaces it", out);
}

static weir_status find_type(const char *name, const wr_gguf_type_info **out) {
  if (!name) return WEIR_OK;
  const wr_gguf_type_info *t = wr_gguf_type_named(name, strlen(name));
  for (size_t i = 0; t && i < WR_ARRAY_LEN(targets); i++)
    if ((uint32_t)targets[i].type == t->number) {
      *out = t;
      return WEIR_OK;
    }
  return wr_fail(WEIR_EUSAGE, "type (--type) is '%s', but it must be f32, f16 or bf16", name);
}

weir_status weir_convert(const char *in, const char *out, const weir_convert_options *options, weir_convert_result *result) {
  const weir_convert_options none = {0};
  converting c = {.o = options ? options : &none};
  weir_convert_result r = {0};
  wr_gguf *g;
  const uint64_t begin = wr_now_ns();
  WR_TRY(find_type(c.o->type, &c.want));
  WR_TRY(check(in, out, c.o));
  WR_TRY(wr_gguf_open(in, NULL, &g));
  c.in = g;
  c.values = wr_malloc(PIECE_ELEMS * sizeof *c.values);
  c.encoded = wr_malloc(PIECE_ELEMS * sizeof(float));
  weir_status s = c.values && c.encoded ? wr_gguf_writer_open(out, 0, &c.out) : wr_fail_nomem(PIECE_ELEMS * 8, "converting");
  if (s == WEIR_OK) s = write_all(&c, &r);
  if (s == WEIR_OK) {
    r.bytes = wr_gguf_writer_bytes(c.out);
    r.seconds = (double)(wr_now_ns() - begin) * 1e-9;
    if (result) *result = r;
  }
  wr_gguf_writer_close(c.out);
  wr_free(c.values);
  wr_free(c.encoded);
  wr_gguf_close(g);
  return s;
}
