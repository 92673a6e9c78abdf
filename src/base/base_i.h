/* base_i.h: what the files of base share with each other and with its tests; nobody else includes it. */
#ifndef WR_BASE_I_H
#define WR_BASE_I_H

#include <sched.h>

#include "base/base.h"

const weir_hooks *wr_hooks(void); /* error.c; every member filled in, except `log`, which may be NULL */

/* ---- limits.c: what this process may use of the machine.
 * `root` stands before /proc and /sys ("" for the real ones), so that tests bring machines of their own. */

/* CPUs as the scheduler may use them: those of `allowed`, one of each physical core first, then the hyper-threads. */
typedef struct wr_cpus {
  int n_cpus;  /* logical CPUs allowed */
  int n_cores; /* physical cores among them; cpu[0..n_cores) are on different cores */
  int cpu[1024];
} wr_cpus;
void wr_cpus_order(const char *root, const int *allowed, int n_allowed, wr_cpus *out);
void wr_cpus_usable(wr_cpus *out);                   /* of the calling thread, as if no team had pinned it */
/* The tightest CPU quota of the cgroups (v1 and v2) around this process, in thousandths of a CPU; 0: none. */
int64_t wr_cgroup_quota_milli(const char *root);
/* What the tightest memory cgroup around this process has left, its cached file pages counted as free; 0: no limit. */
int64_t wr_cgroup_memory_left(const char *root);
int wr_threads_for(int n_cores, int64_t quota_milli, int local_ranks); /* the default number of threads, at least 1 */

/* ---- team.c: true when a team has pinned the calling thread; then the affinity that it had before. */
bool wr_team_unpinned_affinity(cpu_set_t *out);

#endif
