/* checkpoint_i.h: what reading (checkpoint.c) and writing (saver.c) checkpoints share: names of folders, and the manifest. */
#ifndef WR_CHECKPOINT_I_H
#define WR_CHECKPOINT_I_H

#include "format/format_i.h"

enum { WR_MANIFEST_FILES = 8, WR_MANIFEST_NAME = 63 };
#define WR_MANIFEST "manifest.json"
#define WR_STATE "state.json"
#define WR_MODEL "model.gguf"

typedef struct wr_manifest_file {
  char name[WR_MANIFEST_NAME + 1]; /* a-z 0-9 . _ -, does not begin with a dot */
  uint64_t bytes, hash;            /* hash: XXH64, seed 0 */
} wr_manifest_file;

typedef struct wr_manifest {
  int64_t step;
  double val_loss; /* NaN: not known */
  wr_manifest_file files[WR_MANIFEST_FILES];
  int n_files;
} wr_manifest;

bool wr_manifest_name_ok(const char *name);
weir_status wr_manifest_write(const char *folder, const wr_manifest *m); /* synced */
bool wr_manifest_parse(const char *text, wr_manifest *out);              /* *out is changed also where it returns false */
/* EFORMAT: it is not what wr_manifest_write wrote. */
weir_status wr_manifest_read(const char *folder, wr_manifest *out);
/* Are the files there with their sizes; with `contents` of those files also their checksums (NULL: all of them; "": none)? */
weir_status wr_manifest_check(const char *folder, const wr_manifest *m, const char *contents);

/* "folder/name" into out. EFAIL: too long. */
weir_status wr_join(char *out, size_t cap, const char *folder, const char *name);
int64_t wr_step_of(const char *name, const char *suffix); /* "step-12" + suffix: 12; anything else: -1 */
/* Names in `folder` that are step-N, as numbers, ascending; wr_free. No such folder: none. */
weir_status wr_steps_list(const char *folder, int64_t **out, size_t *n);
/* Removes a checkpoint's files and then the folder. Files that weir does not write stay, and with them the folder. */
bool wr_checkpoint_remove(const char *folder);
/* abandoned-step-N, or the first of abandoned-step-N-2, -3, … that is free. */
weir_status wr_checkpoint_abandon(const char *checkpoints, int64_t step);

#endif
