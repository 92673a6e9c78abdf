/* report.c: reads what a training run wrote about itself, in memory that does not grow with the run. See report_i.h.
 *
 * Steps go into bins of `width` neighbouring steps, each with least, greatest and mean of every series. When all bins are full,
 * neighbours are merged and `width` doubles: one pass, O(steps), and neither a peak nor a dip is lost. Text samples are kept each
 * samples_each-th in the same way. Lines are hostile: length, types and nesting are the reader's business, and what does not fit is
 * left out and counted. */
#include "train/report_i.h"

#include <errno.h>
#include <math.h>

enum { MAX_LINE = 4 << 20, MAX_CONFIG = 4 << 20 };

static const struct {
  const char *parent, *key;
} series[WR_SERIES_COUNT] = {
#define SERIES(id, parent, key) {parent, key},
#include "train/report_series.def"
#undef SERIES
};

/* ---- lines of a file */

typedef struct line_reader {
  FILE *f;
  char *buf;
  size_t begin, end;
  bool skipping;
} line_reader;

/* The next line without its newline, valid until the next call. Lines beyond MAX_LINE are passed over. NULL: the end. */
static const char *next_line(line_reader *r, size_t *n, uint64_t *bad) {
  for (;;) {
    char *from = r->buf + r->begin, *newline = memchr(from, '\n', r->end - r->begin);
    if (newline) {
      *n = (size_t)(newline - from);
      r->begin += *n + 1;
      if (!r->skipping) return from;
      r->skipping = false;
      (*bad)++;
      continue;
    }
    if (r->begin == 0 && r->end == MAX_LINE) {
      r->skipping = true;
      r->end = 0;
    }
    memmove(r->buf, r->buf + r->begin, r->end - r->begin);
    r->end -= r->begin;
    r->begin = 0;
    const size_t got = fread(r->buf + r->end, 1, MAX_LINE - r->end, r->f);
    r->end += got;
    if (got) continue;
    *n = r->end; /* the last line may lack its newline: a writer that was killed, or is at work */
    r->end = 0;
    return *n && !r->skipping ? r->buf : NULL;
  }
}

static weir_status each_line(wr_report *r, const char *name, void (*take)(wr_report *, const json_t *)) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", r->run, name);
  line_reader lines = {.f = fopen(path, "rb"), .buf = wr_malloc(MAX_LINE)};
  weir_status s = WEIR_OK;
  if (!lines.f)
    s = wr_fail_errno(WEIR_EIO, path, "open it");
  else if (!lines.buf)
    s = wr_fail_nomem(MAX_LINE, "reading the metrics");
  size_t n;
  for (const char *line; s == WEIR_OK && (line = next_line(&lines, &n, &r->bad_lines));) {
    json_t *object = json_loadb(line, n, JSON_ALLOW_NUL, NULL);
    if (json_is_object(object))
      take(r, object);
    else if (n)
      r->bad_lines++;
    json_decref(object);
  }
  wr_free(lines.buf);
  if (lines.f) fclose(lines.f);
  return s;
}

/* ---- values */

static bool number_at(const json_t *object, const char *key, double *out) {
  const json_t *v = json_object_get(object, key);
  const double x = json_is_true(v) ? 1 : json_is_false(v) ? 0 : json_is_number(v) ? json_number_value(v) : NAN;
  if (!isfinite(x)) return false;
  *out = x;
  return true;
}

/* *slot becomes v (owned). */
static void keep(json_t **slot, const json_t *v) {
  json_decref(*slot);
  *slot = json_incref((json_t *)(uintptr_t)v);
}

static void merge(wr_report_value *into, const wr_report_value *from) {
  if (!from->n) return;
  into->min = into->n ? fminf(into->min, from->min) : from->min;
  into->max = into->n ? fmaxf(into->max, from->max) : from->max;
  into->sum += from->sum;
  into->n += from->n;
}

/* All bins are full, and their number is even. */
static void halve(wr_report *r) {
  for (int i = 0; i < r->n_bins; i += 2) {
    wr_report_bin b = r->bins[i];
    for (int k = 0; k < WR_SERIES_COUNT; k++) merge(&b.v[k], &r->bins[i + 1].v[k]);
    b.last = r->bins[i + 1].last;
    r->bins[i / 2] = b;
  }
  r->n_bins /= 2;
  r->width *= 2;
}

static void take_classes(wr_report *r, const json_t *by_class) {
  const char *name;
  json_t *v;
  json_object_foreach((json_t *)(uintptr_t)by_class, name, v) {
    if (!json_is_number(v) || !(json_number_value(v) >= 0)) continue;
    int i = 0;
    while (i < r->n_classes && strcmp(r->classes[i].name, name) != 0) i++;
    if (i == r->n_classes) {
      char *copy = i < WR_REPORT_CLASSES ? wr_strdup(name) : NULL;
      if (!copy) continue;
      r->classes[r->n_classes++] = (wr_report_class){.name = copy};
    }
    r->classes[i].bytes += json_number_value(v);
  }
}

static void take_step(wr_report *r, const json_t *object, double step) {
  if (r->in_last == r->width) {
    if (r->n_bins == WR_REPORT_BINS) halve(r);
    r->bins[r->n_bins++] = (wr_report_bin){.first = step};
    r->in_last = 0;
  }
  wr_report_bin *b = &r->bins[r->n_bins - 1];
  b->last = step;
  r->in_last++;
  r->steps++;
  for (int k = 0; k < WR_SERIES_COUNT; k++) {
    const json_t *from = series[k].parent ? json_object_get(object, series[k].parent) : object;
    double x;
    if (!number_at(from, series[k].key, &x) || fabs(x) > 1e30) continue; /* beyond that a float has no room to add */
    merge(&b->v[k], &(wr_report_value){(float)x, (float)x, x, 1});
    r->last[k] = x;
    r->total[k] += x;
    if (k == WR_SERIES_VAL_LOSS && !(r->best_val <= x)) r->best_val = x;
  }
  number_at(object, "tokens", &r->tokens);
  double mfu, seconds;
  if (number_at(object, "mfu", &mfu) && number_at(json_object_get(object, "seconds"), "total", &seconds))
    r->mfu_seconds += mfu * seconds;
  take_classes(r, json_object_get(object, "bytes_copied"));
}

static void take_event(wr_report *r, const json_t *object) {
  enum { HALF = WR_REPORT_EVENTS / 2 };
  r->events_seen++;
  if (r->n_events < WR_REPORT_EVENTS) {
    r->events[r->n_events++] = json_incref((json_t *)(uintptr_t)object);
    return;
  }
  json_decref(r->events[HALF]);
  memmove(r->events + HALF, r->events + HALF + 1, (HALF - 1) * sizeof r->events[0]);
  r->events[WR_REPORT_EVENTS - 1] = json_incref((json_t *)(uintptr_t)object);
}

static void take_metrics(wr_report *r, const json_t *object) {
  double step;
  const json_t *run = json_object_get(object, "run"), *memory = json_object_get(object, "memory");
  if (!memory) memory = json_object_get(run, "memory");
  if (json_is_object(run)) keep(&r->machine, run);
  if (json_is_array(memory)) keep(&r->memory, memory);
  if (json_is_string(json_object_get(object, "event")))
    take_event(r, object);
  else if (number_at(object, "step", &step))
    take_step(r, object, step);
}

static void take_sample(wr_report *r, const json_t *object) {
  keep(&r->newest, object);
  if (r->n_samples == WR_REPORT_SAMPLES) {
    for (int i = 0; i < WR_REPORT_SAMPLES; i += 2) {
      json_decref(r->samples[i + 1]);
      r->samples[i / 2] = r->samples[i];
    }
    r->n_samples = WR_REPORT_SAMPLES / 2;
    r->samples_each *= 2;
  }
  if (r->samples_seen++ % r->samples_each == 0) r->samples[r->n_samples++] = json_incref((json_t *)(uintptr_t)object);
}

static void read_config(wr_report *r) {
  char path[4096], *text = NULL;
  size_t n = 0;
  snprintf(path, sizeof path, "%s/config.json", r->run);
  if (wr_file_read(path, MAX_CONFIG, &text, &n) != WEIR_OK) return;
  r->config = json_loadb(text, n, JSON_ALLOW_NUL, NULL);
  wr_free(text);
}

static void release(wr_report *r) {
  for (int i = 0; i < r->n_samples; i++) json_decref(r->samples[i]);
  for (int i = 0; i < r->n_events; i++) json_decref(r->events[i]);
  for (int i = 0; i < r->n_classes; i++) wr_free(r->classes[i].name);
  json_decref(r->newest);
  json_decref(r->machine);
  json_decref(r->memory);
  json_decref(r->config);
  wr_free(r->bins);
}

weir_status weir_report_write(const char *run) {
  wr_report r = {.run = run, .width = 1, .in_last = 1, .best_val = NAN, .samples_each = 1};
  for (int k = 0; k < WR_SERIES_COUNT; k++) r.last[k] = NAN;
  r.bins = wr_calloc(WR_REPORT_BINS, sizeof *r.bins);
  weir_status s = r.bins ? WEIR_OK : wr_fail_nomem(WR_REPORT_BINS * sizeof *r.bins, "a report");
  if (s == WEIR_OK) s = each_line(&r, "metrics.jsonl", take_metrics);
  if (s == WEIR_OK) {
    each_line(&r, "samples.jsonl", take_sample); /* may be missing */
    read_config(&r);
    wr_str html = {0};
    wr_report_page(&r, &html);
    char path[4096];
    snprintf(path, sizeof path, "%s/report.html", run);
    s = html.oom ? wr_fail_nomem(html.len, "a report") : wr_file_write_atomic(path, html.ptr, html.len);
    wr_str_free(&html);
  }
  release(&r);
  return s;
}
