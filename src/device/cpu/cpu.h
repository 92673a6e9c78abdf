/* cpu: what this machine's processor is and how fast it reads, for those who report a share of its limit.
 *
 * Exports: the facts about the CPU, the plain read that decode speed is compared with, and the keeping of results about the machine. The measuring of the whole machine
 * is public API (weir.h, "machine"). The CPU as a device is in device.h.
 */
#ifndef WR_CPU_H
#define WR_CPU_H

#include "device/device.h"

typedef struct wr_cpu_facts {
  char model[64];          /* as the CPU calls itself, printable ASCII; "unknown CPU" */
  char kernel[80];         /* "Linux 6.1.0-13-amd64" */
  uint32_t isa;            /* what CPU and OS allow, whatever WEIR_ISA says */
  int n_cpus;              /* logical CPUs of the machine that are on line */
  int threads;             /* wr_default_threads() */
  size_t l1d_bytes, l2_bytes, l3_bytes; /* one instance of each, as CPU 0 sees it; 0: none, or unknown */
  uint64_t memory_bytes;   /* of the machine */
} wr_cpu_facts;
void wr_cpu_facts_get(wr_cpu_facts *out);

/* The limit of a decode: read every byte of the ranges once, `passes` times over, by the team, with the widest loads that the
 * machine has; each thread reads its own contiguous part of every range, as a kernel's threads begin. Returns bytes per second
 * of all threads together (0: nothing to read), timed between two barriers, so starting the team is not in it. One call is one
 * sample: take the best of several. Pages must be readable; those not yet in memory are read from the file first. */
typedef struct wr_range {
  const void *ptr;
  size_t bytes;
} wr_range;
double wr_read_bandwidth(wr_team *team, const wr_range *ranges, size_t n, int passes);

/* ---- results about this machine, kept: lines of text in CACHE/KIND-<hash of kind and identity>.txt, behind the identity and before
 * a sum */
void wr_machine_identify(weir_machine *m); /* the identity of this machine; all else is left as it is */
void wr_machine_set_isa(weir_machine *m, uint32_t isa);
weir_status wr_kept_path(const char *kind, const weir_machine *identity, char *out, size_t cap);
weir_status wr_kept_save(const char *path, const char *kind, const weir_machine *identity, const wr_str *body); /* whole or not at all */
/* The lines, NUL-terminated; the caller frees. EFORMAT: damaged, or of another machine or kind. */
weir_status wr_kept_load(const char *path, const char *kind, const weir_machine *identity, char **out);

#endif
