/* report: RUN/report.html, one page without network that shows a training run. Read from the files of the run folder, so it can be made
 * again at any time, of a run that goes on, was killed or ended.
 *
 * What it reads; whatever is missing, torn or of another type is left out, never an error:
 *   metrics.jsonl  an object a line:
 *     {"run": {...}}             of the machine and the run, shown as a table; a second one (after a resume) replaces the first
 *     {"step": N, "loss": ...}   the keys of report_series.def, and `bytes_copied` {by class}, `tokens` of the run so far
 *     {"event": "nan", "step": N, "text": "a sentence"}
 *     {"memory": [{"what": "gradients", "planned": bytes, "measured": bytes}, ...]}   measured may be absent or null; the last one counts
 *   config.json    the configuration: nested objects become keys with dots
 *   samples.jsonl  {"step": N, "prompt": "...", "text": "..."}
 *
 * Two files: report.c reads and thins, report_page.c draws. */
#ifndef WR_TRAIN_REPORT_I_H
#define WR_TRAIN_REPORT_I_H

#include <jansson.h>

#include "base/base.h"

enum wr_report_series {
#define SERIES(id, parent, key) WR_SERIES_##id,
#include "train/report_series.def"
#undef SERIES
  WR_SERIES_COUNT
};

/* Several neighbouring steps. n 0: the series has no value there. */
typedef struct wr_report_value { float min, max; double sum; uint64_t n; } wr_report_value;
typedef struct wr_report_bin { double first, last; wr_report_value v[WR_SERIES_COUNT]; } wr_report_bin;

enum { WR_REPORT_BINS = 2048, WR_REPORT_CLASSES = 24, WR_REPORT_SAMPLES = 16, WR_REPORT_EVENTS = 200 };

typedef struct wr_report_class { char *name; double bytes; } wr_report_class;

typedef struct wr_report {
  const char *run;             /* the folder */
  wr_report_bin *bins;         /* [n_bins], ascending; each of `width` steps or fewer */
  int n_bins;
  uint64_t width, in_last;     /* steps that a full bin holds; that the last bin holds */
  uint64_t steps, bad_lines;
  double last[WR_SERIES_COUNT]; /* NAN: never */
  double best_val, total[WR_SERIES_COUNT];
  double mfu_seconds;          /* sum of mfu × time */
  double tokens;               /* of the run so far, as the last step says */
  wr_report_class classes[WR_REPORT_CLASSES];
  int n_classes;
  json_t *samples[WR_REPORT_SAMPLES], *newest; /* newest: shown last, if it is not among those kept */
  int n_samples;
  uint64_t samples_seen, samples_each; /* every samples_each-th is kept */
  json_t *events[WR_REPORT_EVENTS]; /* the first half of them stays, of the second one the newest */
  int n_events;
  uint64_t events_seen;
  json_t *machine, *memory, *config; /* NULL: not there. The newest of each */
} wr_report;

void wr_report_page(const wr_report *r, wr_str *html);

#endif
