/* What `weir train` shows: facts before the start, progress, the end. Text for people goes to stderr as the run goes on and to stdout at its
 * end; with --json everything is JSON lines on stdout: {"run": ...}, a line a step with the keys of metrics.jsonl, {"end": ...}. */
#ifndef WR_CLI_TRAIN_I_H
#define WR_CLI_TRAIN_I_H

#include "cli_i.h"
#include "plot_i.h"

typedef struct wr_train_show {
  const wr_options *o;
  weir_trainer *trainer;
  bool live;                  /* a line on a terminal, drawn over itself */
  bool drawn;                 /* it is there now */
  wr_curve loss, val;
  double began_s, shown_s;    /* when; of the monotonic clock */
  weir_train_seconds seconds; /* since the last line was shown */
  double tokens, mfu_seconds;
  int64_t last_step;          /* that was shown as a plain line */
} wr_train_show;

void wr_train_facts(wr_train_show *show);
void wr_train_step_done(wr_train_show *show, const weir_train_report *r);
/* A line of its own, above the progress line. Nothing with --json. */
void wr_train_note(wr_train_show *show, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void wr_train_line_ended(wr_train_show *show); /* the progress line stays as it is; what is printed next stands below it */
void wr_train_end(wr_train_show *show, const weir_train_report *last, int code);

#endif
