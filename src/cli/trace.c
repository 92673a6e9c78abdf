/* Writes a trace: see trace_i.h. The format is the JSON array of "trace events" (ph "X": a name, a begin and a duration in
 * microseconds; ph "M": the name of a lane). */
#include <errno.h>
#include <string.h>

#include "trace_i.h"

enum { SKIPPED = 2, TRACED = 3 };

static const char *const lanes[] = {"step", "data", "copy", "forward", "backward", "optimizer", "checkpoint", "other"};
enum { N_LANES = sizeof lanes / sizeof lanes[0] };

static int lane_of(const char *stage) {
  for (int i = 0; i < N_LANES; i++)
    if (strcmp(lanes[i], stage) == 0) return i;
  return N_LANES - 1;
}

static void begin_event(wr_trace *t, const char *kind, const char *name, int lane) {
  wr_json_object(&t->json);
  wr_json_string(&t->json, "ph", kind);
  wr_json_string(&t->json, "name", name);
  wr_json_key(&t->json, "pid");
  wr_json_int(&t->json, 1);
  wr_json_key(&t->json, "tid");
  wr_json_int(&t->json, lane);
}

static void begin_args(wr_trace *t) {
  wr_json_key(&t->json, "args");
  wr_json_object(&t->json);
}

static void end_event(wr_trace *t) {
  wr_json_end(&t->json);
  wr_json_end(&t->json);
  fputc('\n', t->f);
}

int wr_trace_open(const wr_options *o, wr_trace *t) {
  *t = (wr_trace){.left = SKIPPED + TRACED};
  if (!o->trace) return 0;
  t->f = fopen(o->trace, "wb");
  if (!t->f) { return wr_failed_file(o, o->trace, errno); }
  wr_json_begin(&t->json, t->f);
  wr_json_object(&t->json);
  wr_json_string(&t->json, "displayTimeUnit", "ms");
  wr_json_key(&t->json, "traceEvents");
  wr_json_array(&t->json);
  for (int i = 0; i < N_LANES; i++) {
    begin_event(t, "M", "thread_name", i);
    begin_args(t);
    wr_json_string(&t->json, "name", lanes[i]);
    end_event(t);
    begin_event(t, "M", "thread_sort_index", i);
    begin_args(t);
    wr_json_key(&t->json, "sort_index");
    wr_json_int(&t->json, i);
    end_event(t);
  }
  return 0;
}

static void put_span(wr_trace *t, const char *name, const char *stage, uint64_t begin_ns, uint64_t end_ns, int64_t step) {
  begin_event(t, "X", name, lane_of(stage));
  wr_json_string(&t->json, "cat", stage);
  wr_json_number(&t->json, "ts", (double)(begin_ns - t->first_ns) / 1000);
  wr_json_number(&t->json, "dur", (double)(end_ns - begin_ns) / 1000);
  begin_args(t);
  wr_json_key(&t->json, "step");
  wr_json_int(&t->json, step);
  end_event(t);
}

/* errno is asked for at once, before anything else changes it. */
static void keep_error(wr_trace *t, bool good) {
  if (t->err == 0 && (!good || ferror(t->f))) t->err = errno ? errno : EIO;
}

void wr_trace_step(wr_trace *t, const weir_trainer *trainer, int64_t step) {
  if (!t->f || t->left == 0) return;
  size_t n;
  const weir_span *s = weir_trainer_spans(trainer, &n); /* asking for them is what makes the trainer note them */
  if (t->left-- > TRACED) return;
  uint64_t begin = UINT64_MAX, end = 0;
  for (size_t i = 0; i < n; i++) {
    if (s[i].begin_ns < begin) begin = s[i].begin_ns;
    if (s[i].end_ns > end) end = s[i].end_ns;
  }
  if (n == 0) return;
  errno = 0;
  if (t->first_ns == 0) t->first_ns = begin;
  char name[40];
  snprintf(name, sizeof name, "step %lld", (long long)step);
  put_span(t, name, "step", begin, end, step);
  for (size_t i = 0; i < n; i++) put_span(t, s[i].name, s[i].stage, s[i].begin_ns, s[i].end_ns, step);
  keep_error(t, fflush(t->f) == 0);
}

int wr_trace_close(const wr_options *o, wr_trace *t) {
  if (!t->f) return 0;
  errno = 0;
  wr_json_end(&t->json);
  wr_json_end(&t->json);
  keep_error(t, wr_json_done(&t->json));
  if (fclose(t->f) != 0 && t->err == 0) t->err = errno;
  t->f = NULL;
  return t->err ? wr_failed_file(o, o->trace, t->err) : 0;
}
