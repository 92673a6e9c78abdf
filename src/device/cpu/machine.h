/* machine: public API for weir.h, section "machine": what this machine can do, measured. To be lifted there as it stands. */
#ifndef WR_MACHINE_H
#define WR_MACHINE_H

#include "weir/weir.h"

/* -------------------------------------------------------------------------------------------------------------- machine
 * What this machine can do, measured by plain loops that do nothing else: read bandwidth from L1 to memory, arithmetic peaks,
 * the cost of a barrier, the disk. The result is kept in the cache folder ("machine-<hash of the identity>.txt") and used for
 * predictions; the limit of a run is measured in that run. Numbers are the best of several tries: other load makes them too
 * low. */

enum { WEIR_MACHINE_READS = 128, WEIR_MACHINE_PEAKS = 96, WEIR_MACHINE_BARRIERS = 16 };

typedef struct weir_machine_read {
  uint64_t bytes;          /* working set of all threads together, each with its own part, read again and again */
  int threads;
  double gb_s;             /* 10^9 bytes a second, all threads together */
} weir_machine_read;

typedef struct weir_machine_peak {
  char type[8];            /* "fp32", "fp16", "bf16", "int8": of the factors; sums are fp32, fp16, fp32, int32 */
  char how[16];            /* the instruction: "fma 512", "vnni 512", "maddubs 256", … */
  int threads;
  double gop_s;            /* 10^9 operations a second, a multiply and an add being two, all threads together */
} weir_machine_peak;

typedef struct weir_machine_barrier {
  int threads;
  double best_ns, median_ns;
} weir_machine_barrier;

typedef struct weir_machine {
  char cpu[64], kernel[80]; /* identity, with isa, cpus, threads, memory_bytes: a result of another machine is not used */
  char isa[16], features[48]; /* "avx512", "fp16 bf16 amx" ("" for none) */
  int cpus, threads;       /* logical CPUs; threads that weir would use */
  uint64_t memory_bytes, l1d_bytes, l2_bytes, l3_bytes; /* caches: one instance each, 0: unknown */
  int64_t date;            /* when it was measured, seconds since 1970 */
  bool quick;              /* by the quick mode: fewer sets and tries */
  bool cached;             /* read from the cache folder, not measured by this call */
  size_t n_reads, n_peaks, n_barriers;
  weir_machine_read reads[WEIR_MACHINE_READS];      /* by threads, then by bytes, ascending */
  weir_machine_peak peaks[WEIR_MACHINE_PEAKS];
  weir_machine_barrier barriers[WEIR_MACHINE_BARRIERS];
  double disk_gb_s;        /* sequential read of a new file in the cache folder; 0: not measured (quick, no folder, tmpfs) */
} weir_machine;

typedef struct weir_machine_options {
  bool quick;              /* about 1 s instead of 5 to 10; a kept full result is as good */
  bool refresh;            /* measure even if a result is kept */
  bool no_cache;           /* neither look for a kept result nor keep this one */
  int threads;             /* measure 1 … threads; 0: the default number. Another number than that is never kept */
  int (*progress)(void *user, const char *what, double done); /* done: 0 … 1; not 0 back: ESTOPPED. May be NULL */
  void *user;
} weir_machine_options;
/* A kept result of this machine, or a new one. EUSAGE, ENOMEM, ESTOPPED; a cache folder that fails is only logged. *out is
 * large (about 8 KB) and belongs to the caller; nothing in it needs freeing. */
weir_status weir_machine_measure(const weir_machine_options *options, weir_machine *out);
/* GB/s of a read of so many bytes by so many threads: of the nearest measured set that is no smaller (else the largest), and
 * the nearest measured number of threads that is no larger. 0: nothing was measured. */
double weir_machine_gb_s(const weir_machine *m, uint64_t bytes, int threads);
/* The highest peak of a type over all ways to compute it, the number of threads chosen as above; 0: not measured. */
double weir_machine_gop_s(const weir_machine *m, const char *type, int threads);
/* A table for people; as snprintf: at most cap bytes with the NUL, returns the length of the whole text. */
size_t weir_machine_print(const weir_machine *m, char *out, size_t cap);

#endif
