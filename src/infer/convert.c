/* Converting model files: the tensors of a model in another type, written as one GGUF file.
 *
 * Streams: a window of a tensor is cut into pieces, which the threads take one after another; each is decoded to FP32, encoded,
 * and decoded once more to see what it lost. The first thread to come writes the window before meanwhile, so that the disk does
 * not wait for the processor, nor the other way round. The source stays mapped; two windows and three pieces a thread are held.
 * recipe.c says which tensor gets which type. All metadata goes along, but for what says how the tensors are stored.
 * Refuses: folders of safetensors, a target that exists, values that the type cannot hold, quantising twice unless told to.
 *
 * Invariant: sums are taken piece by piece, in the order of the file: neither bytes nor figures depend on the threads. */
#include <dirent.h>
#include <math.h>
#include <sys/stat.h>

#include "infer/infer_i.h"
#include "ops/ops.h"

/* whole blocks of any type, FP32 at most */
enum { PIECE_ELEMS = 1 << 14, PIECES = 64, WINDOW_BYTES = PIECE_ELEMS * PIECES * 4 };

typedef struct converting {
  const wr_gguf *in;
  wr_gguf_writer *out;
  const weir_convert_options *o;
  const wr_recipe *recipe; /* NULL: each as it is */
  int n_layers;
  uint64_t done, total; /* bytes of the source */
  uint32_t isa;
  wr_team *team;
  float *values;      /* [threads][2][PIECE_ELEMS] */
  uint8_t *window[2]; /* [WINDOW_BYTES]: being filled, being written */
  size_t pending;     /* bytes of the second that are still to be written */

  /* the window that is being filled */
  const wr_gguf_tensor *tensor;
  wr_dtype from, into;
  uint64_t first;  /* element */
  size_t elements; /* <= PIECE_ELEMS * PIECES */
  atomic_size_t next;
  weir_status written; /* of the window before */
  wr_quant_error errors[PIECES];
} converting;

static weir_status report(converting *c, uint64_t bytes) {
  c->done += bytes;
  if (c->o->progress && c->o->progress(c->o->user, (double)c->done / (double)WR_MAX(c->total, (uint64_t)1)))
    return wr_fail(WEIR_ESTOPPED, "stopped; nothing was written");
  return WEIR_OK;
}

/* ---- a window */

static size_t bytes_of(wr_dtype t, uint64_t elements) {
  return (size_t)(elements / (uint64_t)wr_dtypes[t].block) * (size_t)wr_dtypes[t].block_bytes;
}

static size_t piece_elements(const converting *c, size_t piece) {
  return WR_MIN((size_t)PIECE_ELEMS, c->elements - piece * PIECE_ELEMS);
}

static void read_piece(const converting *c, size_t piece, float *x) {
  const uint8_t *src = c->tensor->data + bytes_of(c->from, c->first + piece * PIECE_ELEMS);
  wr_decoder(c->from, (int)(c->isa & WR_ISA_LEVEL_MASK))(src, x, (int64_t)piece_elements(c, piece));
}

static void read_back(const converting *c, size_t piece, float *y) {
  const uint8_t *src = c->window[0] + bytes_of(c->into, piece * PIECE_ELEMS);
  wr_decoder(c->into, (int)(c->isa & WR_ISA_LEVEL_MASK))(src, y, (int64_t)piece_elements(c, piece));
}

static void convert_piece(converting *c, size_t piece, float *x, float *y) {
  const int64_t n = (int64_t)piece_elements(c, piece);
  read_piece(c, piece, x);
  wr_quantizer(c->into, c->isa)(x, c->window[0] + bytes_of(c->into, piece * PIECE_ELEMS), n);
  read_back(c, piece, y);
  c->errors[piece] = (wr_quant_error){0};
  wr_quant_error_of(c->isa)(x, y, n, &c->errors[piece]);
}

static weir_status write_pending(converting *c) {
  const weir_status s = wr_gguf_write(c->out, c->window[1], c->pending);
  c->pending = 0;
  return s;
}

static void work(void *arg, int tid, int n_threads) {
  (void)n_threads;
  converting *c = arg;
  float *x = c->values + (size_t)tid * 2 * PIECE_ELEMS, *y = x + PIECE_ELEMS;
  const size_t pieces = (c->elements + PIECE_ELEMS - 1) / PIECE_ELEMS;
  for (size_t k; (k = atomic_fetch_add(&c->next, 1)) <= pieces;)
    if (k == 0)
      c->written = write_pending(c);
    else
      convert_piece(c, k - 1, x, y);
}

/* A piece whose sums are no numbers: something in it is none, or too large. Among floats only what was finite and is not any more is
 * lost; the blocks' scales are F16, of which nothing comes near values whose squares overflow. */
static weir_status examine(converting *c, size_t piece) {
  const size_t n = piece_elements(c, piece);
  const bool blocks = wr_dtypes[c->into].kind == WR_QUANT;
  float *x = c->values, *y = x + PIECE_ELEMS;
  read_piece(c, piece, x);
  read_back(c, piece, y);
  size_t at = n; /* the first that is no number, or the largest of the lost */
  for (size_t i = 0; i < n && (at == n || isfinite(x[at])); i++)
    if ((blocks || (isfinite(x[i]) && !isfinite(y[i]))) && (at == n || !isfinite(x[i]) || fabsf(x[i]) > fabsf(x[at]))) at = i;
  if (at == n) return WEIR_OK;
  const uint64_t element = c->first + piece * PIECE_ELEMS + at, cols = c->tensor->dim[0];
  char value[32];
  snprintf(value, sizeof value, "%g", (double)x[at]);
  return wr_fail(WEIR_EUNSUPPORTED, "%s: tensor %s has %s in row %llu, column %llu, which %s cannot hold; %s", wr_gguf_path(c->in), c->tensor->name,
                 isnan(x[at]) ? "NaN" : isinf(x[at]) ? "infinity" : value, (unsigned long long)(element / cols),
                 (unsigned long long)(element % cols), wr_dtypes[c->into].name,
                 isfinite(x[at]) ? "take bf16 or f32" : "the model is damaged");
}

static weir_status add_errors(converting *c, weir_convert_tensor *r) {
  for (size_t k = 0; k * PIECE_ELEMS < c->elements; k++) {
    const wr_quant_error *e = &c->errors[k];
    if (!isfinite(e->square) || !isfinite(e->error_square)) {
      WR_TRY(examine(c, k));
      continue; /* NaN among floats: there is no error to speak of */
    }
    r->square += e->square;
    r->error_square += e->error_square;
    r->max_error = fmax(r->max_error, (double)e->max_error);
  }
  return WEIR_OK;
}

static weir_status convert_window(converting *c, weir_convert_tensor *r) {
  atomic_store(&c->next, 0);
  wr_team_run(c->team, work, c);
  if (c->written != WEIR_OK) return wr_gguf_write(c->out, NULL, 0); /* a thread has the sentence, the writer repeats it */
  WR_TRY(add_errors(c, r));
  uint8_t *full = c->window[0];
  c->window[0] = c->window[1], c->window[1] = full;
  c->pending = bytes_of(c->into, c->elements);
  return report(c, bytes_of(c->from, c->elements));
}

/* ---- tensors */

static weir_status copy_tensor(converting *c, const wr_gguf_tensor *t) {
  WR_TRY(write_pending(c));
  for (uint64_t at = 0; at < t->bytes; at += WINDOW_BYTES) {
    const size_t n = (size_t)WR_MIN((uint64_t)WINDOW_BYTES, t->bytes - at);
    WR_TRY(wr_gguf_write(c->out, t->data + at, n));
    WR_TRY(report(c, n));
  }
  return WEIR_OK;
}

static const wr_gguf_type_info *type_of(const converting *c, const wr_gguf_tensor *t, const wr_gguf_type_info **instead_of) {
  *instead_of = NULL;
  return c->recipe ? wr_recipe_type(c->recipe, c->o->pure, c->in, t, c->n_layers, instead_of) : t->type;
}

static weir_status convert_tensor(converting *c, const wr_gguf_tensor *t) {
  const wr_gguf_type_info *instead_of, *to = type_of(c, t, &instead_of);
  weir_convert_tensor r = {.name = t->name,
                           .from = t->type->name,
                           .to = to->name,
                           .instead_of = instead_of ? instead_of->name : NULL,
                           .elements = t->n_elems,
                           .bytes_before = t->bytes};
  if (to == t->type) {
    WR_TRY(copy_tensor(c, t));
    r.bytes_after = t->bytes;
  } else {
    c->tensor = t;
    c->from = (wr_dtype)wr_weight_dtype(t->type), c->into = (wr_dtype)wr_weight_dtype(to);
    for (c->first = 0; c->first < t->n_elems; c->first += c->elements) {
      c->elements = (size_t)WR_MIN((uint64_t)PIECE_ELEMS * PIECES, t->n_elems - c->first);
      WR_TRY(convert_window(c, &r));
    }
    r.bytes_after = bytes_of(c->into, t->n_elems);
  }
  if (c->o->tensor) c->o->tensor(c->o->user, &r);
  return WEIR_OK;
}

static bool is_key(const wr_gguf_meta *m, const char *key) {
  return m->key.len == strlen(key) && memcmp(m->key.ptr, key, m->key.len) == 0;
}

static weir_status put_metadata(converting *c) {
  enum { QUANTIZATION_VERSION = 2 }; /* of the block types, since 2023 */
  for (size_t i = 0; i < wr_gguf_n_meta(c->in); i++) {
    const wr_gguf_meta *m = wr_gguf_meta_at(c->in, i);
    if (c->recipe && (is_key(m, "general.file_type") || is_key(m, "general.quantization_version"))) continue;
    WR_TRY(wr_gguf_put_meta(c->out, m));
  }
  if (!c->recipe) return WEIR_OK;
  WR_TRY(wr_gguf_put_u32(c->out, "general.file_type", c->recipe->file_type));
  if (wr_gguf_type_find((uint32_t)c->recipe->matrix)->block_elems == 1) return WEIR_OK;
  return wr_gguf_put_u32(c->out, "general.quantization_version", QUANTIZATION_VERSION);
}

static weir_status put_tensor(converting *c, const wr_gguf_tensor *t) {
  const wr_gguf_type_info *instead_of, *to = type_of(c, t, &instead_of);
  const int from = wr_weight_dtype(t->type);
  if (to != t->type && from < 0)
    return wr_fail(WEIR_EUNSUPPORTED, "%s: tensor %s is of type %s, which cannot be converted; without a type each tensor stays as it is",
                   wr_gguf_path(c->in), t->name, t->type->name);
  if (to != t->type && !c->o->requantize && wr_dtypes[from].kind == WR_QUANT && to->block_elems > 1)
    return wr_fail(WEIR_EUSAGE, "%s: tensor %s is %s already; to make it %s adds the errors of both, which --requantize (requantize) allows",
                   wr_gguf_path(c->in), t->name, t->type->name, to->name);
  return wr_gguf_put_tensor(c->out, t->name, (wr_gguf_type)to->number, t->n_dims, t->dim);
}

static weir_status write_all(converting *c, weir_convert_result *r) {
  WR_TRY(put_metadata(c));
  r->tensors = wr_gguf_n_tensors(c->in);
  for (size_t i = 0; i < r->tensors; i++) {
    const wr_gguf_tensor *t = wr_gguf_tensor_at(c->in, i);
    WR_TRY(put_tensor(c, t));
    c->total += t->bytes;
    r->parameters += t->n_elems;
  }
  for (size_t i = 0; i < r->tensors; i++) WR_TRY(convert_tensor(c, wr_gguf_tensor_at(c->in, i)));
  WR_TRY(write_pending(c));
  return wr_gguf_writer_finish(c->out);
}

/* ---- what is refused before anything is opened */

static bool holds_safetensors(const char *path) {
  bool found = wr_ends_with(path, ".safetensors");
  DIR *d = found ? NULL : opendir(path);
  for (struct dirent *e; d && !found && (e = readdir(d));) found = wr_ends_with(e->d_name, ".safetensors");
  if (d) closedir(d);
  return found;
}

static weir_status check(const char *in, const char *out, const weir_convert_options *o) {
  struct stat st;
  if (!in || !out) return wr_fail(WEIR_EUSAGE, "converting needs a model to read and a file to write");
  if (holds_safetensors(in))
    return wr_fail(WEIR_EUNSUPPORTED, "%s: safetensors are not read yet; weir converts GGUF files, runs and checkpoints", in);
  if (wr_ends_with(out, ".safetensors"))
    return wr_fail(WEIR_EUNSUPPORTED, "%s: safetensors are not written yet; name a .gguf file", out);
  if (stat(out, &st) != 0) return WEIR_OK;
  if (S_ISDIR(st.st_mode)) return wr_fail(WEIR_EUSAGE, "%s: is a folder; name the .gguf file to write", out);
  return o->force ? WEIR_OK : wr_fail(WEIR_EUSAGE, "%s: exists already; --force (force) replaces it", out);
}

static weir_status take_memory(converting *c) {
  const size_t threads = (size_t)wr_team_size(c->team), bytes = threads * 2 * PIECE_ELEMS * sizeof *c->values;
  c->values = wr_malloc(bytes);
  for (int i = 0; i < 2; i++) c->window[i] = wr_malloc(WINDOW_BYTES);
  return c->values && c->window[0] && c->window[1] ? WEIR_OK : wr_fail_nomem(bytes + 2 * (size_t)WINDOW_BYTES, "converting");
}

static weir_status run(converting *c, const char *out, weir_convert_result *r) {
  WR_TRY(wr_isa_detect(&c->isa));
  WR_TRY(wr_team_open(c->o->threads, false, &c->team));
  WR_TRY(take_memory(c));
  WR_TRY(wr_gguf_writer_open(out, 0, &c->out));
  return write_all(c, r);
}

weir_status weir_convert(const char *in, const char *out, const weir_convert_options *options, weir_convert_result *result) {
  const weir_convert_options none = {0};
  converting c = {.o = options ? options : &none};
  weir_convert_result r = {0};
  wr_gguf *g;
  const uint64_t begin = wr_now_ns();
  if (c.o->type) WR_TRY(wr_recipe_find(c.o->type, &c.recipe));
  WR_TRY(check(in, out, c.o));
  WR_TRY(wr_gguf_open(in, NULL, &g));
  c.in = g;
  c.n_layers = wr_recipe_layers(g);
  const weir_status s = run(&c, out, &r);
  if (s == WEIR_OK) {
    r.bytes_before = wr_gguf_file_bytes(g);
    r.bytes = wr_gguf_writer_bytes(c.out);
    r.seconds = (double)(wr_now_ns() - begin) * 1e-9;
    if (result) *result = r;
  }
  wr_gguf_writer_close(c.out);
  wr_team_close(c.team);
  wr_free(c.values);
  for (int i = 0; i < 2; i++) wr_free(c.window[i]);
  wr_gguf_close(g);
  return s;
}
