/* machine_i.h: what the files that measure the machine share. */
#ifndef WR_MACHINE_I_H
#define WR_MACHINE_I_H

#include "device/cpu/cpu.h"

/* ---- read.c: one sample of a plain read; bytes per second, 0: nothing to read */
typedef enum wr_read_kind { WR_READ_PLAIN, WR_READ_PREFETCH } wr_read_kind;
double wr_read_sample(wr_team *team, wr_read_kind kind, const wr_range *ranges, size_t n, int passes);

/* ---- peaks.c: loops of one instruction */
typedef struct wr_peak_loop {
  const char *type, *how;
  uint32_t isa;                  /* level and features that it needs */
  double ops_per_round;          /* operations of one thread in one round */
  void (*run)(int64_t rounds);
} wr_peak_loop;
extern const wr_peak_loop wr_peak_loops[];
extern const int wr_peak_loops_n;

/* ---- machine_file.c: a kept result. Loading fills *m only with what was written for the same identity, whole. */
bool wr_machine_load(const char *path, const weir_machine *identity, weir_machine *m);
weir_status wr_machine_save(const char *path, const weir_machine *m);
weir_status wr_machine_path(const weir_machine *identity, char *out, size_t cap);

#endif
