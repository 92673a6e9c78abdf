/* The public API of files: a thin view of a GGUF handle, for programs that show what a file holds.
 *
 * Refuses: folders; numbers that are out of range. Does not judge hyper-parameters: what is absent or of another type is -1.
 */
#include "format/format_i.h"

#include <inttypes.h>
#include <stdarg.h>

#define SHOWN_TEXT 96 /* bytes of a text that meta_print shows; of a string in an array SHOWN_ELEMENT */
#define SHOWN_ELEMENT 24
#define SHOWN_ELEMENTS 6

struct weir_file {
  wr_gguf *g;
  uint64_t parameters, tensor_bytes;
  /* Where the last string of an array was read, so that the next one is found without walking from the beginning. */
  const wr_gguf_array *walked; /* NULL: none */
  const uint8_t *walked_at;    /* just after element walked_n - 1 */
  uint64_t walked_n;
};

weir_status weir_file_open(const char *path, const weir_file_options *options, weir_file **out) {
  if (!path) return wr_fail(WEIR_EUSAGE, "no file is named");
  weir_file *f = wr_calloc(1, sizeof *f);
  if (!f) return wr_fail_nomem(sizeof *f, "a file handle");
  weir_status status = wr_gguf_open(path, &(wr_gguf_options){.no_mmap = options && options->no_mmap}, &f->g);
  if (status != WEIR_OK) {
    wr_free(f);
    return status;
  }
  for (size_t i = 0; i < wr_gguf_n_tensors(f->g); i++) {
    const wr_gguf_tensor *t = wr_gguf_tensor_at(f->g, i);
    /* Tensors may overlap, so a crafted file can claim more than 2^64 elements in all: the sums stay at the limit then. */
    if (__builtin_add_overflow(f->parameters, t->n_elems, &f->parameters)) f->parameters = UINT64_MAX;
    if (__builtin_add_overflow(f->tensor_bytes, t->bytes, &f->tensor_bytes)) f->tensor_bytes = UINT64_MAX;
  }
  *out = f;
  return WEIR_OK;
}

void weir_file_close(weir_file *f) {
  if (!f) return;
  wr_gguf_close(f->g);
  wr_free(f);
}

static weir_text text_of(const wr_gguf *g, const char *key) {
  const wr_gguf_meta *m = wr_gguf_find(g, key);
  if (!m || m->type != WR_GGUF_VALUE_STRING) return (weir_text){"", 0};
  return (weir_text){m->v.text.ptr, m->v.text.len};
}

/* The value of "ARCH.name", -1 if it is not there or no integer that fits. */
static int64_t claim(const wr_gguf *g, weir_text arch, const char *name) {
  char key[128];
  if (arch.bytes == 0 || arch.bytes > 64) return -1;
  snprintf(key, sizeof key, "%.*s.%s", (int)arch.bytes, arch.ptr, name);
  const wr_gguf_meta *m = wr_gguf_find(g, key);
  if (!m || (wr_gguf_is_unsigned(m->type) && m->v.u > INT64_MAX)) return -1;
  return wr_gguf_is_unsigned(m->type) || wr_gguf_is_signed(m->type) ? m->v.i : -1;
}

void weir_file_get_info(const weir_file *f, weir_file_info *out) {
  const wr_gguf *g = f->g;
  const wr_gguf_meta *tokens = wr_gguf_find(g, "tokenizer.ggml.tokens");
  weir_text arch = text_of(g, "general.architecture");
  *out = (weir_file_info){
      .path = wr_gguf_path(g),
      .format = "gguf",
      .version = (int)wr_gguf_version(g),
      .parts = wr_gguf_n_parts(g),
      .n_tensors = wr_gguf_n_tensors(g),
      .n_meta = wr_gguf_n_meta(g),
      .file_bytes = wr_gguf_file_bytes(g),
      .tensor_bytes = f->tensor_bytes,
      .parameters = f->parameters,
      .arch = arch,
      .name = text_of(g, "general.name"),
      .layers = claim(g, arch, "block_count"),
      .width = claim(g, arch, "embedding_length"),
      .ff = claim(g, arch, "feed_forward_length"),
      .heads = claim(g, arch, "attention.head_count"),
      .kv_heads = claim(g, arch, "attention.head_count_kv"),
      .trained_tok = claim(g, arch, "context_length"),
      .vocab = claim(g, arch, "vocab_size"),
  };
  if (tokens && tokens->type == WR_GGUF_VALUE_ARRAY) out->vocab = (int64_t)tokens->v.array.count;
}

weir_status weir_file_tensor_at(const weir_file *f, size_t i, weir_file_tensor *out) {
  if (i >= wr_gguf_n_tensors(f->g)) return wr_fail(WEIR_EUSAGE, "tensor %zu of %zu", i, wr_gguf_n_tensors(f->g));
  const wr_gguf_tensor *t = wr_gguf_tensor_at(f->g, i);
  *out = (weir_file_tensor){
      .name = t->name,
      .type = t->type->name,
      .supported = t->type->supported,
      .n_dims = t->n_dims,
      .dim = {t->dim[0], t->dim[1], t->dim[2], t->dim[3]},
      .elements = t->n_elems,
      .bytes = t->bytes,
      .offset = t->offset,
      .part = t->part,
  };
  return WEIR_OK;
}

/* ---- metadata */

static const wr_gguf_meta *entry(const weir_file *f, size_t i) {
  return i < wr_gguf_n_meta(f->g) ? wr_gguf_meta_at(f->g, i) : NULL;
}

weir_status weir_file_meta_at(const weir_file *f, size_t i, weir_file_meta *out) {
  const wr_gguf_meta *m = entry(f, i);
  if (!m) return wr_fail(WEIR_EUSAGE, "metadata entry %zu of %zu", i, wr_gguf_n_meta(f->g));
  bool array = m->type == WR_GGUF_VALUE_ARRAY;
  *out = (weir_file_meta){
      .key = {m->key.ptr, m->key.len},
      .type = wr_gguf_value_name(array ? m->v.array.type : m->type),
      .array = array,
      .count = array ? m->v.array.count : 1,
  };
  return WEIR_OK;
}

/* String `element` of a; goes on where the last call on the same array ended, if that is not behind. */
static weir_text array_text(weir_file *f, const wr_gguf_array *a, uint64_t element) {
  wr_gguf_text text = {"", 0};
  if (f->walked != a || element < f->walked_n) f->walked = a, f->walked_at = NULL, f->walked_n = 0;
  while (f->walked_n <= element && wr_gguf_array_next(a, &f->walked_at, &text)) f->walked_n++;
  return (weir_text){text.ptr, text.len};
}

weir_status weir_file_value_at(weir_file *f, size_t i, uint64_t element, weir_value *out) {
  const wr_gguf_meta *m = entry(f, i);
  const wr_gguf_array *a = m && m->type == WR_GGUF_VALUE_ARRAY ? &m->v.array : NULL;
  if (!m || element >= (a ? a->count : 1))
    return wr_fail(WEIR_EUSAGE, "element %" PRIu64 " of metadata entry %zu does not exist", element, i);
  wr_gguf_value_type type = a ? a->type : m->type;
  if (type == WR_GGUF_VALUE_STRING)
    *out = (weir_value){.kind = WEIR_VALUE_TEXT,
                        .text = a ? array_text(f, a, element) : (weir_text){m->v.text.ptr, m->v.text.len}};
  else if (type == WR_GGUF_VALUE_BOOL)
    *out = (weir_value){.kind = WEIR_VALUE_BOOL, .b = a ? wr_gguf_array_int(a, element) != 0 : m->v.b};
  else if (wr_gguf_is_unsigned(type))
    *out = (weir_value){.kind = WEIR_VALUE_UINT, .u = a ? (uint64_t)wr_gguf_array_int(a, element) : m->v.u};
  else if (wr_gguf_is_signed(type))
    *out = (weir_value){.kind = WEIR_VALUE_INT, .i = a ? wr_gguf_array_int(a, element) : m->v.i};
  else
    *out = (weir_value){.kind = WEIR_VALUE_FLOAT,
                        .digits = type == WR_GGUF_VALUE_F32 ? 9 : 17,
                        .f = a ? wr_gguf_array_float(a, element) : m->v.f};
  return WEIR_OK;
}

static void print_text(wr_str *s, weir_text t, size_t shown) {
  size_t n = t.bytes;
  if (n > shown) n = shown - wr_utf8_partial(t.ptr, shown);
  wr_str_puts(s, "\"");
  wr_str_escape(s, t.ptr, n);
  wr_str_puts(s, n < t.bytes ? "...\"" : "\"");
}

static void print_value(wr_str *s, const weir_value *v, size_t shown_text) {
  switch (v->kind) {
  case WEIR_VALUE_INT: wr_str_printf(s, "%" PRId64, v->i); break;
  case WEIR_VALUE_UINT: wr_str_printf(s, "%" PRIu64, v->u); break;
  case WEIR_VALUE_FLOAT: wr_str_printf(s, "%.6g", v->f); break;
  case WEIR_VALUE_BOOL: wr_str_puts(s, v->b ? "true" : "false"); break;
  case WEIR_VALUE_TEXT: print_text(s, v->text, shown_text); break;
  }
}

/* What was collected, handed out the way snprintf does. */
static size_t hand_out(wr_str *s, char *out, size_t cap) {
  size_t n = s->oom ? 0 : s->len;
  if (cap > 0) {
    size_t fits = WR_MIN(n, cap - 1);
    if (fits > 0) memcpy(out, s->ptr, fits);
    out[fits] = '\0';
  }
  wr_str_free(s);
  return n;
}

size_t weir_file_meta_print(weir_file *f, size_t i, char *out, size_t cap) {
  wr_str s = {0};
  weir_file_meta m;
  weir_value v;
  if (weir_file_meta_at(f, i, &m) == WEIR_OK) {
    uint64_t shown = WR_MIN(m.count, m.array ? (uint64_t)SHOWN_ELEMENTS : 1);
    if (m.array) wr_str_puts(&s, "[");
    for (uint64_t e = 0; e < shown && weir_file_value_at(f, i, e, &v) == WEIR_OK; e++) {
      if (e > 0) wr_str_puts(&s, ", ");
      print_value(&s, &v, m.array ? SHOWN_ELEMENT : SHOWN_TEXT);
    }
    if (shown < m.count) wr_str_puts(&s, ", ...");
    if (m.array) wr_str_printf(&s, "] (%" PRIu64 ")", m.count);
    if (!m.array && v.kind == WEIR_VALUE_TEXT && v.text.bytes > SHOWN_TEXT) wr_str_printf(&s, " (%zu bytes)", v.text.bytes);
  }
  return hand_out(&s, out, cap);
}

size_t weir_escape(const char *bytes, size_t n, char *out, size_t cap) {
  wr_str s = {0};
  wr_str_escape(&s, bytes, n);
  return hand_out(&s, out, cap);
}
