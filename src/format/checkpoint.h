/* Checkpoints of a run: written beside training, verified before they are read. Included by format.h.
 *
 *   RUN/checkpoints/step-N/  model.gguf  optimizer.gguf  state.json  manifest.json
 *
 * manifest.json: {"version": 1, "step": N, "val_loss": x or null, "files": [{"name", "bytes", "xxh64"}, …]}. A checkpoint is complete
 * when its manifest can be read and all files that it names have its sizes and checksums; nothing else counts as one. No pointer file
 * exists: the newest complete folder is found by looking.
 *
 * Writing: step-N.tmp/ is filled, each file synced, then the folder, then it is renamed to step-N and checkpoints/ is synced. A crash
 * at any moment leaves step-N.tmp (removed by the next saver of this run) or nothing.
 */
#ifndef WR_CHECKPOINT_H
#define WR_CHECKPOINT_H

#include "format/format.h"

/* A tensor of FP32 values in host memory, as it is written or read. */
typedef struct wr_save_tensor {
  const char *name;              /* GGUF's */
  int n_dims;                    /* 1..4 */
  uint64_t dim[WR_GGUF_MAX_DIMS]; /* GGUF's order: dim[0] is a row */
  int lanes;                     /* 0: plain rows. n: groups of n rows interleaved, element (k, r) of a group at n * k + r, the missing rows
                                    of the last group zero (pack16: n = 16). The file always has plain rows */
  void *data;                    /* plain: all elements; interleaved: whole groups */
} wr_save_tensor;

typedef struct wr_save_file {
  const char *name;              /* "model.gguf", "optimizer.gguf" */
  weir_status (*put_meta)(void *user, wr_gguf_writer *w); /* metadata; called inside wr_saver_begin, on its thread. NULL: none */
  void *user;
  const wr_save_tensor *tensors; /* copied by wr_saver_begin, names too; what `data` points to is read later */
  size_t n_tensors;
} wr_save_file;

typedef struct wr_save {
  int64_t step;
  double val_loss;               /* of these weights; NaN: not known. The checkpoint with the lowest one is kept besides the newest */
  const wr_save_file *files;
  int n_files;
  const char *state;             /* state.json: text, copied */
  size_t state_bytes;
} wr_save;

typedef struct wr_saver_options {
  int keep;                      /* the newest that stay; 0: 2, which is also the least */
  void *aside;                   /* host memory of the caller (its ledger's) for what must be copied away before it was written */
  size_t aside_bytes;            /* best: the bytes of one save. Less: wr_saver_before_change waits for the writer; 0: always */
  double share;                  /* of one core that the writer takes while training goes on; 0: 1/20 */
} wr_saver_options;

/* What became of a save. */
typedef struct wr_save_result {
  int64_t step;
  weir_status status;            /* ENOMEM: the disk is full; EIO. Nothing of a failed save remains, the checkpoints before it are whole */
  char sentence[512];            /* of a failure, else "" */
  uint64_t bytes;                /* of all files */
  uint64_t aside_bytes;          /* copied away */
  double seconds;                /* from begin until it was safe on disk */
  double cpu_seconds;            /* of the writer thread */
  double waited_seconds;         /* that wr_saver_begin and wr_saver_before_change took of the caller */
} wr_save_result;

/* One saver a run. Takes the run's lock (released when the process ends, however it ends): EIO names the folder when another process
 * trains in it. Makes RUN/checkpoints, removes step-*.tmp that a killed process left; other files are not touched. */
typedef struct wr_saver wr_saver;
weir_status wr_saver_open(const char *run, const wr_saver_options *options, wr_saver **out);
/* Starts a save and returns while it is written by a thread of its own. One at a time: waits for the one before, at full speed. A
 * failure is returned here or by poll and wait; the next save may be tried after either. */
weir_status wr_saver_begin(wr_saver *s, const wr_save *save);
/* Before anything changes the tensors (before the optimiser runs): afterwards they may be changed. No save under way, or all was written
 * or copied already: returns at once. `team` copies (NULL: the caller alone). *copied: bytes copied aside by this call; may be NULL. */
void wr_saver_before_change(wr_saver *s, wr_team *team, uint64_t *copied);
/* Has a save ended that nobody was told of? true once for each. */
bool wr_saver_poll(wr_saver *s, wr_save_result *out);
/* Waits, at full speed, for the save under way. The status of the last save that was begun, its sentence as weir_last_error(). */
weir_status wr_saver_wait(wr_saver *s, wr_save_result *out); /* out: may be NULL */
void wr_saver_close(wr_saver *s);                            /* waits; NULL allowed */

/* ---- reading */
typedef struct wr_checkpoint {
  char *path;                    /* RUN/checkpoints/step-N */
  int64_t step;
  double val_loss;               /* NaN: not known */
  char *state;                   /* state.json, ends with NUL */
  size_t state_bytes;
} wr_checkpoint;
/* The newest complete checkpoint of a run; each newer one that is not is named in a warning (wr_log). *out NULL: it has
 * none. EFORMAT: it has some, and none is complete: what a run was must not be begun anew, nor written over, unasked. */
weir_status wr_checkpoint_newest(const char *run, wr_checkpoint **out);
/* The newest complete one of at most this step. */
weir_status wr_checkpoint_before(const char *run, int64_t step, wr_checkpoint **out);
/* A folder step-N itself. EFORMAT names the file and what is wrong with it. */
weir_status wr_checkpoint_open(const char *folder, wr_checkpoint **out);
void wr_checkpoint_close(wr_checkpoint *c); /* NULL allowed */
/* Reads tensors of one of its files into `data` of each. EFORMAT: one is absent, has another shape or type; then nothing was read. */
weir_status wr_checkpoint_load(const wr_checkpoint *c, const char *file, const wr_save_tensor *tensors, size_t n);
/* Going on from `step`: folders of later steps become abandoned-step-N, so that they are neither taken for newer nor written over. */
weir_status wr_checkpoint_rollback(const char *run, int64_t step);

/* What a user calls a model, as the path of a GGUF file (wr_free): a file is itself; a run folder stands for model.gguf of its newest
 * complete checkpoint, a checkpoint's folder for its own. EIO, EFORMAT: neither. */
weir_status wr_model_path(const char *path, char **out);

#endif
