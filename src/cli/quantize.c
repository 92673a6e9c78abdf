/* weir quantize: a model's matrices in fewer bits, and what that cost: a table of errors by type, with --tensors by tensor. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli_i.h"

/* A tensor, or the sum of all that became one type. */
typedef struct row {
  char name[72];
  weir_convert_tensor t;
  size_t tensors;
} row;

typedef struct table {
  const wr_options *o;
  row *rows; /* [n]: by tensor */
  size_t n, cap;
  bool full; /* a row found no memory */
} table;

static void add_row(void *user, const weir_convert_tensor *t) {
  table *a = user;
  if (a->n == a->cap) {
    const size_t cap = a->cap ? 2 * a->cap : 256;
    row *more = realloc(a->rows, cap * sizeof *more);
    if (!more) {
      a->full = true;
      return;
    }
    a->rows = more, a->cap = cap;
  }
  row *r = &a->rows[a->n++];
  *r = (row){.t = *t, .tensors = 1};
  snprintf(r->name, sizeof r->name, "%s", t->name);
}

static int show_progress(void *user, double done) {
  const table *a = user;
  wr_progress(a->o, "quantizing", fmin(done, 0.999));
  return wr_interrupted();
}

static void add_to(row *sum, const weir_convert_tensor *t) {
  sum->tensors++;
  sum->t.elements += t->elements;
  sum->t.bytes_before += t->bytes_before, sum->t.bytes_after += t->bytes_after;
  sum->t.square += t->square, sum->t.error_square += t->error_square;
  sum->t.max_error = fmax(sum->t.max_error, t->max_error);
}

/* Rows that agree in `to`, or in `to` and instead_of. The caller frees; NULL: no memory, or none. */
static row *by_type(const table *a, bool fallbacks, size_t *n) {
  row *sums = calloc(a->n ? a->n : 1, sizeof *sums);
  *n = 0;
  for (size_t i = 0; sums && i < a->n; i++) {
    const weir_convert_tensor *t = &a->rows[i].t;
    if (fallbacks && !t->instead_of) continue;
    size_t k = 0;
    while (k < *n && (strcmp(sums[k].t.to, t->to) != 0 || (fallbacks && strcmp(sums[k].t.instead_of, t->instead_of) != 0))) k++;
    if (k == *n) {
      sums[k].t.to = t->to, sums[k].t.instead_of = t->instead_of;
      snprintf(sums[k].name, sizeof sums[k].name, "%s", t->to);
      ++*n;
    }
    add_to(&sums[k], t);
  }
  return sums;
}

static double rms(const weir_convert_tensor *t) { return t->square > 0 ? sqrt(t->error_square / t->square) : 0; }

/* ---- JSON */

static void json_row(wr_json *j, const row *r, bool tensor) {
  wr_json_object(j);
  if (tensor) {
    wr_json_string(j, "name", r->name);
    wr_json_string(j, "from", r->t.from);
    wr_json_string(j, "instead_of", r->t.instead_of);
  }
  wr_json_string(j, "type", r->t.to);
  if (!tensor) {
    wr_json_count(j, "tensors", r->tensors);
  }
  wr_json_count(j, "elements", r->t.elements);
  wr_json_count(j, "bytes_before", r->t.bytes_before);
  wr_json_count(j, "bytes", r->t.bytes_after);
  wr_json_number(j, "rms_error", rms(&r->t));
  wr_json_number(j, "max_error", r->t.max_error);
  wr_json_end(j);
}

static void json_rows(wr_json *j, const char *key, const row *rows, size_t n, bool tensors) {
  wr_json_key(j, key);
  wr_json_array(j);
  for (size_t i = 0; i < n; i++) json_row(j, &rows[i], tensors);
  wr_json_end(j);
}

static void print_json(const table *a, const row *types, size_t n_types, const weir_convert_result *r) {
  wr_json j;
  wr_json_begin(&j, stdout);
  wr_json_object(&j);
  wr_json_string(&j, "out", a->o->out);
  wr_json_count(&j, "tensors", r->tensors);
  wr_json_count(&j, "parameters", r->parameters);
  wr_json_count(&j, "bytes_before", r->bytes_before);
  wr_json_count(&j, "bytes", r->bytes);
  wr_json_number(&j, "seconds", r->seconds);
  json_rows(&j, "by_type", types, n_types, false);
  json_rows(&j, "by_tensor", a->rows, a->n, true);
  wr_json_end(&j);
  wr_json_done(&j);
}

/* ---- text */

static void print_row(const row *r, bool tensor) {
  char before[16], after[16];
  wr_size(before, (double)r->t.bytes_before), wr_size(after, (double)r->t.bytes_after);
  if (tensor)
    printf("%-28s %6s > %-6s", r->name, r->t.from, r->t.to);
  else
    printf("%-8s %8zu tensors", r->name, r->tensors);
  printf(" %9s %9s", before, after);
  if (r->t.square > 0)
    printf(" %10.3g %10.3g\n", rms(&r->t), r->t.max_error);
  else
    printf(" %10s %10s\n", "-", "-");
}

static void print_head(const char *what, int width) {
  printf("%-*s %9s %9s %10s %10s\n", width, what, "before", "after", "rms error", "max error");
}

static void print_text(const table *a, const row *types, size_t n_types, const weir_convert_result *r) {
  if (a->o->tensors) {
    print_head("tensor", 44);
    for (size_t i = 0; i < a->n; i++) print_row(&a->rows[i], true);
    putchar('\n');
  }
  row all = {.name = "all"};
  for (size_t i = 0; i < a->n; i++) add_to(&all, &a->rows[i].t);
  print_head("type", 25);
  for (size_t i = 0; i < n_types; i++) print_row(&types[i], false);
  print_row(&all, false);
  printf("(errors of what was changed: rms of the difference over rms of the weights, and the largest difference)\n\n");
  size_t n;
  row *other = by_type(a, true, &n);
  for (size_t i = 0; other && i < n; i++)
    printf("%zu %s %s and not %s: %s not whole blocks of it\n", other[i].tensors, other[i].tensors == 1 ? "tensor is" : "tensors are",
           other[i].t.to, other[i].t.instead_of, other[i].tensors == 1 ? "its rows are" : "their rows are");
  free(other);
  char before[16], after[16], took[24];
  wr_size(before, (double)r->bytes_before), wr_size(after, (double)r->bytes), wr_duration(took, r->seconds);
  printf("%s: %llu parameters in %zu tensors, %s of %s, %.2f bits a weight, in %s\n", a->o->out, (unsigned long long)r->parameters,
         r->tensors, after, before, 8 * (double)all.t.bytes_after / (double)(all.t.elements ? all.t.elements : 1), took);
}

int wr_cmd_quantize(const wr_options *o) {
  if (!o->out) return wr_usage(o, "--out is missing: the .gguf file to write");
  table a = {.o = o};
  const weir_convert_options options = {.type = o->args[1],
                                        .pure = o->pure,
                                        .requantize = o->requantize,
                                        .force = o->force,
                                        .threads = (int)o->threads,
                                        .progress = show_progress,
                                        .tensor = add_row,
                                        .user = &a};
  weir_convert_result r;
  wr_on_signal(wr_stop_by_progress, NULL);
  const weir_status s = weir_convert(o->args[0], o->out, &options, &r);
  wr_on_signal(NULL, NULL);
  wr_progress(o, "", 1);
  size_t n = 0;
  row *types = s == WEIR_OK ? by_type(&a, false, &n) : NULL;
  if (types && o->json) print_json(&a, types, n, &r);
  if (types && !o->json) print_text(&a, types, n, &r);
  if (s == WEIR_OK && (!types || a.full)) fprintf(stderr, "weir quantize: %s is whole, but there was no memory for the table of errors\n", o->out);
  free(types);
  free(a.rows);
  return s == WEIR_OK ? wr_done(o) : wr_failed(o, s);
}
