/* weir inspect FILE: what a model file holds, from its header alone.
 *
 * One screen for people, one object for programs. Everything that comes from the file is escaped; nothing of it is judged.
 * JSON: arrays of more than SHORT_ARRAY elements appear as {"array": type, "count": N, "first": [...]}, with --meta in full.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli_i.h"

#define SHORT_ARRAY 64
#define FIRST_ELEMENTS 8
#define MAX_TYPES 64

/* ---- JSON */

static void json_value(wr_json *j, const weir_value *v) {
  switch (v->kind) {
  case WEIR_VALUE_INT: wr_json_int(j, v->i); break;
  case WEIR_VALUE_UINT: wr_json_uint(j, v->u); break;
  case WEIR_VALUE_FLOAT: v->digits == 9 ? wr_json_float(j, (float)v->f) : wr_json_double(j, v->f); break;
  case WEIR_VALUE_BOOL: wr_json_bool(j, v->b); break;
  case WEIR_VALUE_TEXT: wr_json_bytes(j, v->text.ptr, v->text.bytes); break;
  }
}

static void json_elements(wr_json *j, weir_file *f, size_t i, uint64_t n) {
  weir_value v;
  wr_json_array(j);
  for (uint64_t e = 0; e < n && weir_file_value_at(f, i, e, &v) == WEIR_OK; e++) json_value(j, &v);
  wr_json_end(j);
}

static void json_meta(wr_json *j, weir_file *f, size_t i, bool full) {
  weir_file_meta m;
  weir_value v;
  if (weir_file_meta_at(f, i, &m) != WEIR_OK) return;
  wr_json_key_bytes(j, m.key.ptr, m.key.bytes);
  if (!m.array) {
    if (weir_file_value_at(f, i, 0, &v) == WEIR_OK) json_value(j, &v);
  } else if (full || m.count <= SHORT_ARRAY) {
    json_elements(j, f, i, m.count);
  } else {
    wr_json_object(j);
    wr_json_string(j, "array", m.type);
    wr_json_count(j, "count", m.count);
    wr_json_key(j, "first");
    json_elements(j, f, i, FIRST_ELEMENTS);
    wr_json_end(j);
  }
}

static void json_tensor(wr_json *j, const weir_file_tensor *t) {
  wr_json_object(j);
  wr_json_string(j, "name", t->name);
  wr_json_string(j, "type", t->type);
  wr_json_key(j, "shape");
  wr_json_array(j);
  for (int d = 0; d < t->n_dims; d++) wr_json_uint(j, t->dim[d]);
  wr_json_end(j);
  wr_json_count(j, "bytes", t->bytes);
  wr_json_count(j, "offset", t->offset);
  wr_json_integer(j, "part", t->part);
  wr_json_end(j);
}

static void json_claim(wr_json *j, const char *key, int64_t v) {
  wr_json_key(j, key);
  if (v < 0)
    wr_json_null(j);
  else
    wr_json_int(j, v);
}

static bool print_json(weir_file *f, bool full) {
  weir_file_info info;
  weir_file_tensor t;
  wr_json j;
  weir_file_get_info(f, &info);
  wr_json_begin(&j, stdout);
  wr_json_object(&j);
  wr_json_string(&j, "path", info.path);
  wr_json_string(&j, "format", info.format);
  json_claim(&j, "version", info.version);
  json_claim(&j, "parts", info.parts);
  wr_json_count(&j, "bytes", info.file_bytes);
  wr_json_key(&j, "arch");
  if (info.arch.bytes)
    wr_json_bytes(&j, info.arch.ptr, info.arch.bytes);
  else
    wr_json_null(&j);
  wr_json_key(&j, "name");
  if (info.name.bytes)
    wr_json_bytes(&j, info.name.ptr, info.name.bytes);
  else
    wr_json_null(&j);
  wr_json_count(&j, "parameters", info.parameters);
  json_claim(&j, "layers", info.layers);
  json_claim(&j, "width", info.width);
  json_claim(&j, "ff", info.ff);
  json_claim(&j, "heads", info.heads);
  json_claim(&j, "kv_heads", info.kv_heads);
  json_claim(&j, "context", info.trained_tok);
  json_claim(&j, "vocab", info.vocab);
  wr_json_key(&j, "tensors");
  wr_json_array(&j);
  for (size_t i = 0; weir_file_tensor_at(f, i, &t) == WEIR_OK; i++) json_tensor(&j, &t);
  wr_json_end(&j);
  wr_json_key(&j, "metadata");
  wr_json_object(&j);
  for (size_t i = 0; i < info.n_meta; i++) json_meta(&j, f, i, full);
  wr_json_end(&j);
  wr_json_end(&j);
  return wr_json_done(&j);
}

/* ---- for people */

/* "98.4 MB", "135 M": three digits and a power of 1000; units[0] is that of 1. */
static const char *short_number(char out[24], uint64_t n, const char *const units[7]) {
  double v = (double)n;
  int k = 0;
  for (; v >= 999.5 && k < 6; k++) v /= 1000;
  snprintf(out, 24, "%.*f%s%s", k == 0 || v >= 99.95 ? 0 : v >= 9.995 ? 1 : 2, v, units[k][0] ? " " : "", units[k]);
  return out;
}

static const char *const byte_units[7] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
static const char *const count_units[7] = {"", "k", "M", "G", "T", "P", "E"};

static void print_escaped(const char *bytes, size_t n) {
  char text[512];
  size_t len = weir_escape(bytes, n, text, sizeof text);
  printf("%s%s", text, len >= sizeof text ? "..." : "");
}

static void print_claim(int64_t v, const char *before, const char *after) {
  if (v >= 0) printf("%s%" PRId64 "%s", before, v, after);
}

typedef struct type_sum {
  const char *name;
  bool supported;
  uint64_t tensors, elements, bytes;
} type_sum;

/* Sums by type, most bytes first. Returns how many types there are. */
static size_t sum_types(const weir_file *f, type_sum sum[MAX_TYPES]) {
  weir_file_tensor t;
  size_t n = 0;
  for (size_t i = 0; weir_file_tensor_at(f, i, &t) == WEIR_OK; i++) {
    size_t k = 0;
    while (k < n && strcmp(sum[k].name, t.type) != 0) k++;
    if (k == MAX_TYPES) continue;
    if (k == n) sum[n++] = (type_sum){.name = t.type, .supported = t.supported};
    sum[k].tensors++;
    sum[k].elements += t.elements;
    sum[k].bytes += t.bytes;
  }
  for (size_t i = 1; i < n; i++)
    for (size_t k = i; k > 0 && sum[k].bytes > sum[k - 1].bytes; k--) {
      type_sum swap = sum[k];
      sum[k] = sum[k - 1];
      sum[k - 1] = swap;
    }
  return n;
}

static void print_types(const weir_file *f, const weir_file_info *info) {
  type_sum sum[MAX_TYPES];
  size_t n = sum_types(f, sum);
  char elements[24], bytes[24];
  if (n > 0) printf("\n  type       tensors  parameters       bytes   share\n");
  for (size_t k = 0; k < n; k++)
    printf("  %-9s  %7" PRIu64 "  %10s  %10s  %5.1f %%%s\n", sum[k].name, sum[k].tensors,
           short_number(elements, sum[k].elements, count_units), short_number(bytes, sum[k].bytes, byte_units),
           100.0 * (double)sum[k].bytes / (double)info->tensor_bytes,
           sum[k].supported ? "" : "   not supported: such a model cannot be run");
}

static void print_screen(const weir_file *f) {
  weir_file_info info;
  char text[24];
  weir_file_get_info(f, &info);
  print_escaped(info.path, strlen(info.path));
  printf("\n  format      %s version %d, %s", info.format, info.version, short_number(text, info.file_bytes, byte_units));
  if (info.parts > 1) printf(" in %d parts", info.parts);
  printf("\n  name        ");
  if (info.name.bytes)
    print_escaped(info.name.ptr, info.name.bytes);
  else
    printf("(none)");
  printf("\n  arch        ");
  if (info.arch.bytes)
    print_escaped(info.arch.ptr, info.arch.bytes);
  else
    printf("(none)");
  print_claim(info.layers, ", ", info.layers == 1 ? " layer" : " layers");
  print_claim(info.width, ", width ", "");
  print_claim(info.ff, ", feed-forward ", "");
  print_claim(info.heads, ", ", " heads");
  print_claim(info.kv_heads, " (", " of KV)");
  printf("\n  parameters  %s", short_number(text, info.parameters, count_units));
  printf(" in %zu tensors, %s", info.n_tensors, short_number(text, info.tensor_bytes, byte_units));
  if (info.parameters > 0 && info.tensor_bytes < UINT64_MAX)
    printf(" (%.2f bits each)", 8.0 * (double)info.tensor_bytes / (double)info.parameters);
  print_claim(info.trained_tok, "\n  context     ", " tokens");
  print_claim(info.vocab, "\n  vocabulary  ", " tokens");
  printf("\n  metadata    %zu entries\n", info.n_meta);
  print_types(f, &info);
}

static void print_tensors(const weir_file *f) {
  weir_file_tensor t;
  char bytes[24], shape[96];
  printf("\n  tensors (shape: row length first)\n");
  for (size_t i = 0; weir_file_tensor_at(f, i, &t) == WEIR_OK; i++) {
    int n = 0;
    for (int d = 0; d < t.n_dims; d++)
      n += snprintf(shape + n, sizeof shape - (size_t)n, d ? " x %" PRIu64 : "%" PRIu64, t.dim[d]);
    printf("  %-8s %-20s %9s  ", t.type, shape, short_number(bytes, t.bytes, byte_units));
    print_escaped(t.name, strlen(t.name));
    putchar('\n');
  }
}

static void print_meta(weir_file *f) {
  weir_file_meta m;
  char text[1024];
  printf("\n  metadata\n");
  for (size_t i = 0; weir_file_meta_at(f, i, &m) == WEIR_OK; i++) {
    printf("  ");
    print_escaped(m.key.ptr, m.key.bytes);
    weir_file_meta_print(f, i, text, sizeof text);
    printf(" = %s  (%s%s)\n", text, m.array ? "array of " : "", m.type);
  }
}

static bool print_text(weir_file *f, bool tensors, bool meta) {
  print_screen(f);
  if (tensors) print_tensors(f);
  if (meta) print_meta(f);
  return fflush(stdout) == 0 && !ferror(stdout);
}

int wr_cmd_inspect(const wr_options *o) {
  const weir_file_options options = {.no_mmap = o->no_mmap};
  weir_file *f;
  const weir_status status = weir_file_open(o->args[0], &options, &f);
  if (status != WEIR_OK) return wr_failed(o, status);
  const bool ok = o->json ? print_json(f, o->meta) : print_text(f, o->tensors, o->meta);
  weir_file_close(f);
  if (!ok) fprintf(stderr, "weir inspect: the output could not be written\n");
  return ok ? wr_done(o) : 1;
}
