/* limits.c: owns what this process may use of the machine: how many threads are right here (physical cores), how much memory.
 *
 * Affinity comes from the scheduler, hyper-thread siblings from /sys, quotas from the cgroup files. Inside a container the path
 * in /proc/self/cgroup is often one of the host that does not exist here; walking up from it ends at the mount's root, which is
 * then the container's own group. A quota is rounded down: a thread more than the quota pays for stalls the whole team for the
 * rest of every period.
 *
 * Several processes of one MPI launch on one machine share it: unless the launcher bound each to CPUs of its own (then our
 * affinity differs from our parent's), the cores are divided by the number of local ranks.
 */
#include "base/base_i.h"

#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#define TEXT_FILE_BYTES 4096

/* The file's beginning as text. false: not there. /proc and /sys tell no sizes, and these files are short. */
static bool read_text(const char *root, const char *path, char out[TEXT_FILE_BYTES]) {
  char full[1024];
  int n = snprintf(full, sizeof full, "%s%s", root, path);
  if (n < 0 || (size_t)n >= sizeof full) return false;
  FILE *f = fopen(full, "re");
  if (!f) return false;
  size_t got = fread(out, 1, TEXT_FILE_BYTES - 1, f);
  fclose(f);
  out[got] = '\0';
  return got > 0;
}

/* ---- cores */

/* The first CPU of the list of `cpu`'s siblings ("0,4" or "0-1"), which names the core; `cpu` itself when nothing is known. */
static int core_of(const char *root, int cpu) {
  static const char *const names[] = {"core_cpus_list", "thread_siblings_list"}; /* the new name and the old one */
  char path[128], text[TEXT_FILE_BYTES];
  for (size_t i = 0; i < WR_ARRAY_LEN(names); i++) {
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, names[i]);
    if (!read_text(root, path, text)) continue;
    char *end;
    long first = strtol(text, &end, 10);
    if (end != text && first >= 0 && first < 1 << 20) return (int)first;
  }
  return cpu;
}

void wr_cpus_order(const char *root, const int *allowed, int n_allowed, wr_cpus *out) {
  *out = (wr_cpus){0};
  int core[WR_ARRAY_LEN(out->cpu)], later[WR_ARRAY_LEN(out->cpu)], n_later = 0;
  for (int i = 0; i < n_allowed && out->n_cpus < (int)WR_ARRAY_LEN(out->cpu); i++, out->n_cpus++) {
    int of = core_of(root, allowed[i]), seen = 0;
    while (seen < out->n_cores && core[seen] != of) seen++;
    if (seen < out->n_cores) {
      later[n_later++] = allowed[i];
      continue;
    }
    core[out->n_cores] = of;
    out->cpu[out->n_cores++] = allowed[i];
  }
  for (int i = 0; i < n_later; i++) out->cpu[out->n_cores + i] = later[i];
}

/* ---- cgroups: a limit is a positive number, 0 is none */

static int64_t tighter(int64_t a, int64_t b) { return a == 0 ? b : b == 0 ? a : WR_MIN(a, b); }

/* The limit of one group: `folder` of a mounted hierarchy. */
typedef int64_t (*limit_at_fn)(const char *root, const char *folder);

static bool read_in(const char *root, const char *folder, const char *name, char text[TEXT_FILE_BYTES]) {
  char path[1024];
  int n = snprintf(path, sizeof path, "%s/%s", folder, name);
  return n >= 0 && (size_t)n < sizeof path && read_text(root, path, text);
}

/* The tightest limit from `group` up to the root of the hierarchy mounted at `mount`. */
static int64_t limit_upwards(const char *root, const char *mount, const char *group, limit_at_fn limit_at) {
  char folder[512];
  int n = snprintf(folder, sizeof folder, "%s%s", mount, strstr(group, "..") ? "" : group);
  if (n < 0 || (size_t)n >= sizeof folder) return 0;
  size_t least = strlen(mount);
  int64_t limit = 0;
  for (;;) {
    size_t end = strlen(folder);
    while (end > least && folder[end - 1] == '/') folder[--end] = '\0';
    limit = tighter(limit, limit_at(root, folder));
    if (end <= least) return limit;
    *strrchr(folder, '/') = '\0';
  }
}

/* Is `name` one of the comma-separated `list`? */
static bool in_list(const char *list, const char *name) {
  size_t n = strlen(name);
  for (const char *at = list; (at = strstr(at, name)); at += n)
    if ((at == list || at[-1] == ',') && (at[n] == '\0' || at[n] == ',')) return true;
  return false;
}

/* The tightest limit of all groups around this process. v1 may mount `controller` under any of the names in v1_mounts. */
static int64_t cgroup_limit(const char *root, const char *controller, const char *const v1_mounts[3], limit_at_fn at_v1,
                            limit_at_fn at_v2) {
  static const char *const v2_mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
  char text[TEXT_FILE_BYTES], *rest;
  if (!read_text(root, "/proc/self/cgroup", text)) return 0;
  int64_t limit = 0;
  /* a line: hierarchy-id:controllers:path; v2 has the id 0 and no controllers */
  for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
    char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group) continue;
    *controllers++ = '\0';
    *group++ = '\0';
    if (*controllers == '\0') {
      for (size_t i = 0; i < WR_ARRAY_LEN(v2_mounts); i++)
        limit = tighter(limit, limit_upwards(root, v2_mounts[i], group, at_v2));
    } else if (in_list(controllers, controller)) {
      for (int i = 0; i < 3 && v1_mounts[i]; i++) limit = tighter(limit, limit_upwards(root, v1_mounts[i], group, at_v1));
    }
  }
  return limit;
}

/* ---- CPU quota */

static int64_t quota_milli(int64_t quota_us, int64_t period_us) {
  if (quota_us <= 0 || period_us <= 0 || quota_us > INT64_MAX / 1000) return 0;
  return WR_MAX(quota_us * 1000 / period_us, 1);
}

/* v2: "max 100000" or "<quota> <period>" */
static int64_t quota_v2(const char *root, const char *folder) {
  char text[TEXT_FILE_BYTES];
  int64_t quota, period = 100000;
  if (!read_in(root, folder, "cpu.max", text) || sscanf(text, "%" SCNd64 " %" SCNd64, &quota, &period) < 1) return 0;
  return quota_milli(quota, period);
}

/* v1: a file for the quota (-1: none) and one for the period */
static int64_t quota_v1(const char *root, const char *folder) {
  char text[TEXT_FILE_BYTES];
  if (!read_in(root, folder, "cpu.cfs_quota_us", text)) return 0;
  int64_t quota = strtoll(text, NULL, 10);
  return read_in(root, folder, "cpu.cfs_period_us", text) ? quota_milli(quota, strtoll(text, NULL, 10)) : 0;
}

int64_t wr_cgroup_quota_milli(const char *root) {
  static const char *const mounts[3] = {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpuacct,cpu"};
  return cgroup_limit(root, "cpu", mounts, quota_v1, quota_v2);
}

/* ---- memory */

/* The number after `key` at the beginning of a line; 0: no such line. */
static int64_t number_of(const char *text, const char *key) {
  size_t n = strlen(key);
  for (const char *line = text; line; line = strchr(line, '\n')) {
    line += *line == '\n';
    if (strncmp(line, key, n) == 0 && (line[n] == ' ' || line[n] == ':')) return strtoll(line + n + 1, NULL, 10);
  }
  return 0;
}

/* What a group may still take. Cached pages of files count as used there but go when memory is wanted. */
static int64_t memory_left(const char *root, const char *folder, const char *limit_file, const char *used_file,
                           const char *cache_key) {
  char text[TEXT_FILE_BYTES];
  if (!read_in(root, folder, limit_file, text)) return 0;
  int64_t limit = strtoll(text, NULL, 10); /* "max" is 0; v1 says no limit with a number near 2^63 */
  if (limit <= 0 || limit > INT64_MAX / 2) return 0;
  int64_t used = read_in(root, folder, used_file, text) ? strtoll(text, NULL, 10) : 0;
  int64_t cache = read_in(root, folder, "memory.stat", text) ? number_of(text, cache_key) : 0;
  return WR_MAX(limit - WR_MAX(used - cache, 0), 1);
}

static int64_t memory_v2(const char *root, const char *folder) {
  return memory_left(root, folder, "memory.max", "memory.current", "inactive_file");
}

static int64_t memory_v1(const char *root, const char *folder) {
  return memory_left(root, folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file");
}

int64_t wr_cgroup_memory_left(const char *root) {
  static const char *const mounts[3] = {"/sys/fs/cgroup/memory"};
  return cgroup_limit(root, "memory", mounts, memory_v1, memory_v2);
}

uint64_t wr_memory_available(void) {
  char text[TEXT_FILE_BYTES];
  int64_t left = read_text("", "/proc/meminfo", text) ? number_of(text, "MemAvailable") * 1024 : 0;
  if (left <= 0) left = (int64_t)sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE);
  left = tighter(left, wr_cgroup_memory_left(""));
  struct rlimit space;
  if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur < (rlim_t)INT64_MAX) {
    int64_t mapped = read_text("", "/proc/self/statm", text) ? strtoll(text, NULL, 10) * sysconf(_SC_PAGESIZE) : 0;
    left = tighter(left, WR_MAX((int64_t)space.rlim_cur - mapped, 1));
  }
  return (uint64_t)WR_MAX(left, 1);
}

/* ---- threads */

int wr_threads_for(int n_cores, int64_t quota, int local_ranks) {
  int64_t n = n_cores;
  if (quota > 0) n = WR_MIN(n, quota / 1000);
  if (local_ranks > 1) n /= local_ranks;
  return (int)WR_MAX(n, 1);
}

/* How many processes of one MPI launch share this machine without CPUs of their own; 1 otherwise. */
static int sharing_ranks(const cpu_set_t *own) {
  static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE"};
  long ranks = 1;
  for (size_t i = 0; i < WR_ARRAY_LEN(names); i++) {
    const char *value = getenv(names[i]);
    if (value) ranks = WR_MAX(ranks, strtol(value, NULL, 10));
  }
  cpu_set_t launcher;
  bool bound = sched_getaffinity(getppid(), sizeof launcher, &launcher) == 0 && !CPU_EQUAL(&launcher, own);
  return bound || ranks > 1 << 16 ? 1 : (int)ranks;
}

static void affinity(cpu_set_t *set) {
  if (wr_team_unpinned_affinity(set)) return;
  if (sched_getaffinity(0, sizeof *set, set) == 0) return;
  /* more CPUs than a cpu_set_t holds: as many as it can hold */
  CPU_ZERO(set);
  size_t n = (size_t)WR_MAX(sysconf(_SC_NPROCESSORS_ONLN), 1);
  for (size_t i = 0; i < n && i < CPU_SETSIZE; i++) CPU_SET(i, set);
}

void wr_cpus_usable(wr_cpus *out) {
  cpu_set_t set;
  affinity(&set);
  int allowed[CPU_SETSIZE], n = 0;
  for (size_t i = 0; i < CPU_SETSIZE; i++)
    if (CPU_ISSET(i, &set)) allowed[n++] = (int)i;
  wr_cpus_order("", allowed, n, out);
}

int wr_default_threads(void) {
  wr_cpus cpus;
  cpu_set_t set;
  affinity(&set);
  wr_cpus_usable(&cpus);
  return wr_threads_for(cpus.n_cores, wr_cgroup_quota_milli(""), sharing_ranks(&set));
}
