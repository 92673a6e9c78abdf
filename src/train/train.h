/* train: a run. Settings, the programs of a step, the loop over them, what each step cost, and going on after a stop: what
 * weir.h says under training.
 *
 *   settings.c  the table of settings: text to values, config.json        schedule.c  length of a run, learning rate at a step
 *   weights.c   spec, memory of weights and moments, first values         plans.c     the programs of a step and what they move
 *   source.c    tokenizer and data; samples into the inputs of a batch    clock.c     the wall time of a step, divided
 *   trainer.c   open, step, close                                         guard.c     what is not finite; spikes
 *   restart.c   checkpoints, resuming, rollback, snapshots                eval.c      validation, text samples
 *   metrics.c   metrics.jsonl                                             info.c      ledger, prediction, weir_trainer_info
 *
 * A step replays: [zero gradients] -> micro-steps (forward and backward) -> norm -> optimiser. Weights, moments and, with
 * accumulation, gradients are buffers of the trainer's, to which the programs are bound; without accumulation gradients lie where
 * the micro-step's plan put them. Nothing that decides a step depends on time, but for a run whose length is a time.
 */
#ifndef WR_TRAIN_H
#define WR_TRAIN_H

#include "data/data.h"
#include "format/format.h"
#include "infer/infer.h"
#include "model/model.h"
#include "text/text.h"

/* ---- settings.c */
enum { WR_TRAIN_SOURCES = 64 };
typedef struct wr_settings {
  weir_train_options o;        /* resolved: every field has its value, texts are never NULL, strings are the arena's */
  weir_train_data sources[WR_TRAIN_SOURCES];
  int64_t every_steps;         /* of `every`: one of the two, or neither */
  double every_seconds;
  bool decays[WR_PARAM_KIND_COUNT];
  bool length_given;           /* steps, epochs or time came from the caller, so those of config.json do not count */
  wr_arena arena;
} wr_settings;
/* What was given, then RUN/config.json if `run` has one (a fixed setting that differs: EUSAGE), then options->config, then the
 * defaults. *resumes: there was a config.json. */
weir_status wr_settings_resolve(const weir_train_options *given, const char *run, wr_settings *out, bool *resumes);
void wr_settings_free(wr_settings *s);
weir_status wr_settings_write(const wr_settings *s, const char *run);
void wr_settings_json(const wr_settings *s, wr_str *out); /* the object that config.json holds */
static inline bool wr_is(const char *a, const char *b) { return strcmp(a, b) == 0; }

/* ---- everything that changes as a run goes on and decides what comes next, besides weights and moments: what a checkpoint keeps */
typedef struct wr_progress {
  int64_t step;                /* done */
  int64_t applied;             /* of which changed the weights: what AdamW counts */
  int64_t skipped;             /* of which did not */
  int64_t troubles;            /* skips and rollbacks since the last step that was applied and is later than all of them */
  int64_t trouble_at;          /* the latest step that had one */
  uint64_t micro;              /* micro-steps done: the dropout counter */
  uint64_t tokens;
  double seconds;              /* of training */
  double warm_at;              /* progress at which the warm-up ended; < 0: not yet */
  double loss_mean;            /* running, of losses that were no spikes */
  int64_t loss_n;
  double best_val;             /* NaN: none yet */
  uint64_t epoch;              /* of the last sample */
  wr_data_position at;
} wr_progress;

/* ---- weights.c */
typedef enum wr_rule_kind { WR_RULE_ADAMW, WR_RULE_MUON, WR_RULE_SGD } wr_rule_kind; /* which optimiser a parameter has */
typedef struct wr_slot {
  const char *name;            /* GGUF's */
  wr_param_kind kind;
  wr_rule_kind rule;
  wr_vtype t;                  /* as the micro-step sees it */
  bool decays;
  double mean, std;            /* of the first values */
  size_t bytes;                /* of the weight, padding of its layout included */
  size_t at;                   /* in `weights`, and in `grads` */
  size_t m_at, v_at;           /* in `moments`; SIZE_MAX: it has none */
} wr_slot;

/* ---- plans.c */
typedef struct wr_moved {
  const char *what;
  double bytes, share;         /* moved only; of the instruction's time */
} wr_moved;
typedef struct wr_stage {
  wr_program program;
  wr_plan plan;
  bool made;
  int split;                   /* instructions before it are the forward pass */
  wr_moved *moved;             /* [plan.list.n] */
} wr_stage;

/* ---- clock.c */
typedef enum wr_part {
  WR_PART_DATA,
  WR_PART_COPY,
  WR_PART_FORWARD,
  WR_PART_BACKWARD,
  WR_PART_OPTIMIZER,
  WR_PART_CHECKPOINT,
  WR_PART_OTHER,
  WR_PART_COUNT
} wr_part;
typedef struct wr_clock {
  uint64_t begin, mark;        /* of this step; up to where time is accounted for */
  double ns[WR_PART_COUNT];
  weir_train_copied copied[WEIR_TRAIN_COPIED];
  size_t n_copied;
  bool trace;
  weir_span *spans;
  size_t n_spans, cap_spans;
} wr_clock;

/* ---- a run */
struct weir_trainer {
  weir_context *ctx;
  char *folder;                /* NULL: nothing is written */
  wr_settings set;
  wr_arena arena;
  wr_spec spec;
  bool resumes;                /* there was a config.json */

  wr_tokenizer *tokenizer;
  wr_data *data, *val;         /* val NULL: there is none */
  wr_data_info data_info, val_info;
  uint64_t text_bytes;         /* of text whose samples are not known, where the run's length is in epochs */
  wr_sample *samples;          /* [batch * accumulate] */
  int64_t untrained;           /* of them, taken for a step that was given up: the next one has them. 0: none */
  wr_sample *val_samples;      /* [batch] */

  wr_slot *slots;              /* [n_slots], in the order of their use */
  int n_slots;
  wr_buf weights, moments, grads, aside; /* grads: only with accumulation */
  size_t weight_bytes, moment_bytes;
  wr_layout layout;
  wr_remat remat;

  wr_stage micro, valid, norm, rules;
  wr_train_io io, valid_io;
  int *squares;                /* [n_slots] values of `norm`: the sum of squares of each gradient */
  uint64_t fingerprint;

  wr_progress now;
  wr_saver *saver;
  bool saving;                 /* a save was begun whose end nobody saw yet */
  int64_t saved_step;          /* newest step whose checkpoint was begun and has not failed; -1: none */
  int64_t good_step;           /* newest one that is on disk; -1: none */
  size_t aside_bytes;          /* most that a save copied aside */
  bool resumed;                /* went on from a checkpoint */
  wr_save_tensor *weight_tensors, *moment_tensors; /* [n_slots], [n_moments] */
  int n_moments;
  double saved_at;             /* now.seconds then */
  double val_at_step;          /* validation loss of the present weights; NaN: not known */
  int64_t sampled_step;        /* newest checkpoint of which a text sample was written */
  int metrics;                 /* file descriptors, -1: none */
  atomic_int stop;
  bool done;

  wr_clock clock;
  weir_train_report report;
  wr_str event, line;
  double totals[WR_PART_COUNT], total_ns, total_copied;
  uint64_t total_tok;

  double peak_flop_s;
  double predicted_s;
  double flop_tok;
  uint64_t memory_left;        /* before anything of this run was taken */
  size_t used_before[WR_MEM_CLASS_COUNT]; /* of the context by others, as it was then */
  size_t base_bytes;           /* anonymous memory before anything of this run was taken */
  size_t seen_bytes;           /* most that was seen since */
  weir_train_bytes ledger[8];
  size_t n_ledger;
  weir_train_param *public_params;
  size_t planned_bytes;        /* sum of the ledger */
  uint64_t parameters;
  weir_machine machine;        /* as measured; no_machine: nothing in it */
  const char *note;            /* what differs after resuming; "" */
  int skipped_now;             /* this step changed nothing: 1 */
  uint64_t page_ns, page_took_ns; /* when report.html was made last, and how long that took */
};

weir_status wr_train_weights_open(weir_trainer *t);   /* spec and data are known: slots, buffers */
weir_status wr_train_weights_init(weir_trainer *t);   /* first values, or those of `init` */
weir_status wr_train_spec(weir_trainer *t, int64_t vocab, wr_spec *out);
void wr_train_weights_close(weir_trainer *t);

weir_status wr_train_plans_open(weir_trainer *t);
void wr_train_plans_close(weir_trainer *t);
uint64_t wr_train_taken(const weir_trainer *t);       /* bytes of the context's memory that this run has */
weir_status wr_stage_run(weir_trainer *t, wr_stage *s, wr_part before, wr_part after); /* and its time is divided */
extern const char *const wr_remat_names[];            /* by wr_remat */

weir_status wr_train_source_open(weir_trainer *t);    /* data and tokenizer; `vocab` of spec is decided here */
void wr_train_source_close(weir_trainer *t);
/* The first `batch` of n samples into a stage's inputs; what they leave over does not count. *counted: targets that do. */
weir_status wr_train_fill(weir_trainer *t, wr_stage *s, const wr_train_io *io, const wr_sample *samples, int64_t n, int64_t *counted);
int64_t wr_samples_tok(const wr_sample *samples, int64_t n);

/* ---- schedule.c */
typedef struct wr_length {
  int64_t steps;               /* of the run, 0: not known */
  double progress;             /* 0 … 1 after `step` steps */
} wr_length;
void wr_length_of(const weir_trainer *t, wr_length *out);
int64_t wr_next_samples(const weir_trainer *t);       /* how many the next step takes: fewer at the end of an epoch */
double wr_rate_factor(const weir_train_options *o, int64_t step, const wr_length *l, double *warm_at);

/* ---- clock.c */
void wr_clock_start(wr_clock *c);
void wr_lap(wr_clock *c, wr_part part, const char *name); /* time since the last lap belongs to `part` */
void wr_count_copy(wr_clock *c, const char *what, double bytes);
void wr_clock_span(wr_clock *c, const char *name, wr_part part, uint64_t begin, uint64_t end);
extern const char *const wr_part_names[WR_PART_COUNT];
size_t wr_anonymous_bytes(void);                      /* RssAnon of this process; 0: not known */

/* ---- guard.c */
typedef enum wr_verdict { WR_FINE, WR_SKIP, WR_ROLLBACK, WR_STOP } wr_verdict;
/* After the micro-steps and the norm. Says in t->event what was found. */
wr_verdict wr_judge(weir_trainer *t, double loss, double norm, bool *spike);
wr_verdict wr_note_trouble(weir_trainer *t, wr_verdict v); /* counted; STOP when there were too many in a row */
const char *wr_weights_not_finite(weir_trainer *t);   /* the first weight that is not; NULL: all are finite */

/* ---- restart.c */
weir_status wr_restart_open(weir_trainer *t);         /* takes the folder; goes on from its newest checkpoint, if any */
weir_status wr_save_begin(weir_trainer *t);
weir_status wr_save_poll(weir_trainer *t, bool wait); /* what became of a save */
weir_status wr_rollback(weir_trainer *t);
void wr_restart_close(weir_trainer *t);

/* ---- eval.c, metrics.c, info.c */
weir_status wr_validate(weir_trainer *t, double *loss);
void wr_text_sample(weir_trainer *t, int64_t step);   /* from that step's checkpoint, into samples.jsonl; a failure is logged */
weir_status wr_metrics_open(weir_trainer *t);         /* cut to now.step */
weir_status wr_metrics_cut(weir_trainer *t);
void wr_metrics_memory(weir_trainer *t);
void wr_report_page_write(weir_trainer *t, bool always); /* report.html, not more often than each half minute */
void wr_metrics_put(weir_trainer *t, const wr_sample *samples, int64_t n_samples);
void wr_metrics_close(weir_trainer *t);
weir_status wr_append_line(const char *path, wr_str *line);
void wr_machine_open(weir_trainer *t);
double wr_bandwidth(const weir_trainer *t, double bytes); /* bytes a second of a working set of that size */
weir_status wr_info_open(weir_trainer *t);
void wr_see_memory(weir_trainer *t);
void wr_number_text(char out[32], double x); /* the fewest of 6, 9 and 17 digits that give x back */
void wr_put_json_number(wr_str *s, double x);             /* the shortest of 17 digits that gives it back; null: not finite */

#endif
