/* team.c: the team of threads, and the count of CPUs that it starts from. Run under the thread sanitizer too. */
#include "test.h"

#include "base/base_i.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  #define SANITIZED 1
#elif defined(__has_feature)
  #if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    #define SANITIZED 1
  #endif
#endif
#ifndef SANITIZED
  #define SANITIZED 0
#endif

enum { MOST = 16 };

/* Plain memory that all threads write and read on both sides of barriers: a barrier that leaks is a wrong sum, and a race that
 * the thread sanitizer sees. */
typedef struct shared {
  wr_team *team;
  int rounds;
  int64_t cell[MOST];
  int64_t wrong[MOST];
} shared;

static void rounds_of_sums(void *arg, int tid, int n) {
  shared *s = arg;
  for (int round = 0; round < s->rounds; round++) {
    s->cell[tid] = (int64_t)round * (tid + 1);
    wr_team_barrier(s->team, tid);
    int64_t sum = 0;
    for (int i = 0; i < n; i++) sum += s->cell[i];
    s->wrong[tid] += sum != (int64_t)round * n * (n + 1) / 2;
    wr_team_barrier(s->team, tid);
  }
}

static void sums_with(int threads, int runs, int rounds) {
  shared s = {.rounds = rounds};
  REQUIRE(wr_team_open(threads, false, &s.team) == WEIR_OK);
  CHECK_EQ_INT(wr_team_size(s.team), threads);
  for (int i = 0; i < runs; i++) wr_team_run(s.team, rounds_of_sums, &s);
  wr_team_close(s.team);
  for (int i = 0; i < threads; i++) CHECK_EQ_INT(s.wrong[i], 0);
}

static void one_thread(void) { sums_with(1, 100, 10); }
static void two_threads(void) { sums_with(2, 100, 200); }
static void more_threads_than_cpus(void) { sums_with(MOST, 10, 50); }

typedef struct seen {
  int count[MOST];
  int n[MOST];
} seen;
static void note(void *arg, int tid, int n) {
  seen *s = arg;
  s->count[tid]++;
  s->n[tid] = n;
}

static void each_thread_once(void) {
  for (int threads = 1; threads <= 5; threads++) {
    wr_team *t;
    seen s = {0};
    REQUIRE(wr_team_open(threads, false, &t) == WEIR_OK);
    for (int i = 0; i < 2000; i++) wr_team_run(t, note, &s);
    for (int i = 0; i < MOST; i++) {
      CHECK_EQ_INT(s.count[i], i < threads ? 2000 : 0);
      CHECK_EQ_INT(s.n[i], i < threads ? threads : 0);
    }
    wr_team_close(t);
  }
}

/* Runs from two threads must not mix: each run sees its own argument in all threads. */
typedef struct caller {
  wr_team *team;
  seen s;
} caller;
static void *call_often(void *arg) {
  caller *c = arg;
  for (int i = 0; i < 1000; i++) wr_team_run(c->team, note, &c->s);
  return NULL;
}

static void two_callers(void) {
  caller a = {0}, b = {0};
  REQUIRE(wr_team_open(3, false, &a.team) == WEIR_OK);
  b.team = a.team;
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, call_often, &b) == 0);
  call_often(&a);
  pthread_join(thread, NULL);
  for (int i = 0; i < 3; i++) {
    CHECK_EQ_INT(a.s.count[i], 1000);
    CHECK_EQ_INT(b.s.count[i], 1000);
  }
  wr_team_close(a.team);
}

static void two_teams(void) {
  wr_team *a, *b;
  seen s = {0};
  REQUIRE(wr_team_open(2, false, &a) == WEIR_OK);
  REQUIRE(wr_team_open(3, false, &b) == WEIR_OK);
  for (int i = 0; i < 300; i++) {
    wr_team_run(a, note, &s);
    wr_team_run(b, note, &s);
  }
  wr_team_close(a);
  wr_team_run(b, note, &s);
  wr_team_close(b);
  CHECK_EQ_INT(s.count[0], 601);
  CHECK_EQ_INT(s.count[1], 601);
  CHECK_EQ_INT(s.count[2], 301);
}

/* Threads that come to the barrier at very different times: some sleep there, some only read. */
static void late_to_barriers(void *arg, int tid, int n) {
  shared *s = arg;
  for (int i = 0; i < s->rounds; i++) {
    if (i % n == tid) nanosleep(&(struct timespec){0, i % 3 * 100000}, NULL);
    s->cell[tid] = i;
    wr_team_barrier(s->team, tid);
    for (int k = 0; k < n; k++) s->wrong[tid] += s->cell[k] != i;
    wr_team_barrier(s->team, tid);
  }
}

static void sleepers_wake(void) {
  shared s = {.rounds = 60};
  REQUIRE(wr_team_open(4, false, &s.team) == WEIR_OK);
  for (int i = 0; i < 5; i++) {
    wr_team_run(s.team, late_to_barriers, &s);
    nanosleep(&(struct timespec){0, 1000000}, NULL);
  }
  wr_team_close(s.team);
  for (int i = 0; i < 4; i++) CHECK_EQ_INT(s.wrong[i], 0);
}

static void open_and_close_often(void) {
  for (int i = 0; i < 200; i++) {
    wr_team *t;
    REQUIRE(wr_team_open(1 + i % 4, false, &t) == WEIR_OK);
    if (i % 2) wr_team_run(t, note, &(seen){0});
    wr_team_close(t);
  }
  wr_team_close(NULL);
}

static double cpu_ms(void) {
  struct timespec ts;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
  return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec * 1e-6;
}

static void idle_costs_nothing(void) {
  wr_team *t;
  REQUIRE(wr_team_open(2, false, &t) == WEIR_OK);
  wr_team_run(t, note, &(seen){0});
  nanosleep(&(struct timespec){0, 20000000}, NULL);
  double before = cpu_ms();
  nanosleep(&(struct timespec){0, 200000000}, NULL);
  CHECK(cpu_ms() - before < 20);
  wr_team_close(t);
}

static void pinned(void) {
  cpu_set_t before, during, after;
  REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  int threads = wr_default_threads();
  wr_team *t, *second;
  REQUIRE(wr_team_open(threads, true, &t) == WEIR_OK);
  REQUIRE(sched_getaffinity(0, sizeof during, &during) == 0);
  CHECK_EQ_INT(CPU_COUNT(&during), 1);
  CHECK_EQ_INT(wr_default_threads(), threads); /* though this thread now has one CPU only */
  REQUIRE(wr_team_open(0, true, &second) == WEIR_OK);
  CHECK_EQ_INT(wr_team_size(second), threads);
  wr_team_close(second);
  wr_team_close(t);
  REQUIRE(sched_getaffinity(0, sizeof after, &after) == 0);
  CHECK(CPU_EQUAL(&before, &after));
}

static void on_one_cpu(void) {
  cpu_set_t before, one;
  REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  int cpu = 0;
  while (!CPU_ISSET((size_t)cpu, &before)) cpu++;
  CPU_ZERO(&one);
  CPU_SET((size_t)cpu, &one);
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK_EQ_INT(wr_default_threads(), 1);
  sums_with(4, 5, 50);
  sched_setaffinity(0, sizeof before, &before);
}

static void wrong_numbers(void) {
  wr_team *t = NULL;
  CHECK_EQ_INT(wr_team_open(-1, false, &t), WEIR_EUSAGE);
  CHECK_HAS(weir_last_error(), "threads is -1");
  CHECK_EQ_INT(wr_team_open(1 << 20, false, &t), WEIR_EUSAGE);
  CHECK(!t);
}

static void keep_log(void *user, weir_log_level level, const char *message) {
  (void)level;
  snprintf(user, 200, "%s", message);
}

static void fewer_threads_than_asked(void) {
  if (SANITIZED) SKIP("a sanitizer needs more address space than the limit");
  char message[200] = "";
  weir_set_hooks(&(weir_hooks){.log = keep_log, .user = message});
  struct rlimit before;
  REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
  long pages = 0; /* used now */
  FILE *f = fopen("/proc/self/statm", "r");
  REQUIRE(f && fscanf(f, "%ld", &pages) == 1);
  fclose(f);
  /* room for a few stacks of 8 MB, not for sixteen */
  rlim_t limit = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + ((rlim_t)60 << 20);
  setrlimit(RLIMIT_AS, &(struct rlimit){limit, before.rlim_max});
  wr_team *t = NULL;
  weir_status status = wr_team_open(MOST, false, &t);
  setrlimit(RLIMIT_AS, &before);
  weir_set_hooks(NULL);
  REQUIRE(status == WEIR_OK);
  int n = wr_team_size(t);
  CHECK(n >= 1 && n < MOST);
  CHECK_HAS(message, "threads instead of 16");
  seen s = {0};
  wr_team_run(t, note, &s);
  for (int i = 0; i < MOST; i++) CHECK_EQ_INT(s.count[i], i < n);
  wr_team_close(t);
}

/* ---- CPUs and quotas, on machines made of files */

static char root[64];
static void machine_begin(void) {
  strcpy(root, "/tmp/weir-test-XXXXXX");
  if (!mkdtemp(root)) abort();
}
static void machine_file(const char *path, const char *text) {
  char full[512], *slash;
  snprintf(full, sizeof full, "%s%s", root, path);
  slash = strrchr(full, '/');
  *slash = '\0';
  if (wr_mkdir_p(full) != WEIR_OK) abort();
  *slash = '/';
  FILE *f = fopen(full, "w");
  if (!f) abort();
  fputs(text, f);
  fclose(f);
}
static void machine_end(void) {
  char command[128];
  snprintf(command, sizeof command, "rm -r '%s'", root);
  if (system(command) != 0) abort();
}

static void cores_of_siblings(void) {
  machine_begin();
  /* four cores with two threads each, numbered as servers do it: i and i + 4 */
  for (int i = 0; i < 8; i++) {
    char path[100], text[20];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", i);
    snprintf(text, sizeof text, "%d,%d\n", i % 4, i % 4 + 4);
    machine_file(path, text);
  }
  wr_cpus c;
  wr_cpus_order(root, (int[]){0, 1, 2, 3, 4, 5, 6, 7}, 8, &c);
  CHECK_EQ_INT(c.n_cpus, 8);
  CHECK_EQ_INT(c.n_cores, 4);
  for (int i = 0; i < 8; i++) CHECK_EQ_INT(c.cpu[i], i);
  wr_cpus_order(root, (int[]){1, 2, 5, 6, 7}, 5, &c);
  CHECK_EQ_INT(c.n_cores, 3);
  int want[] = {1, 2, 7, 5, 6};
  for (int i = 0; i < 5; i++) CHECK_EQ_INT(c.cpu[i], want[i]);
  wr_cpus_order("/nowhere", (int[]){3, 4, 5}, 3, &c); /* no /sys: each CPU is a core */
  CHECK_EQ_INT(c.n_cores, 3);
  machine_end();
}

static void quotas(void) {
  static const struct {
    const char *says;
    const char *files[8];
    int64_t milli;
  } rows[] = {
      {"no files", {NULL}, 0},
      {"v2 without a limit", {"/proc/self/cgroup", "0::/a\n", "/sys/fs/cgroup/a/cpu.max", "max 100000\n"}, 0},
      {"v2", {"/proc/self/cgroup", "0::/a/b\n", "/sys/fs/cgroup/a/b/cpu.max", "250000 100000\n"}, 2500},
      {"v2, the parent is tighter",
       {"/proc/self/cgroup", "0::/a/b\n", "/sys/fs/cgroup/a/b/cpu.max", "400000 100000\n", "/sys/fs/cgroup/a/cpu.max",
        "150000 100000\n"},
       1500},
      {"v2 in a container, the path is the host's",
       {"/proc/self/cgroup", "0::/docker/0123\n", "/sys/fs/cgroup/cpu.max", "50000 100000\n"},
       500},
      {"v2 in a namespace, not of its root", {"/proc/self/cgroup", "0::/../x\n", "/sys/fs/cgroup/cpu.max", "5000 5000"}, 1000},
      {"v1",
       {"/proc/self/cgroup", "5:cpuset:/\n4:cpu,cpuacct:/d/x\n0::/\n", "/sys/fs/cgroup/cpu,cpuacct/d/x/cpu.cfs_quota_us",
        "300000\n", "/sys/fs/cgroup/cpu,cpuacct/d/x/cpu.cfs_period_us", "100000\n"},
       3000},
      {"v1 without a limit",
       {"/proc/self/cgroup", "1:cpu:/\n", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n", "/sys/fs/cgroup/cpu/cpu.cfs_period_us",
        "100000\n"},
       0},
      {"nonsense", {"/proc/self/cgroup", "::::\n\n0\n0::/\n", "/sys/fs/cgroup/cpu.max", "nonsense"}, 0},
      {"a period of 0", {"/proc/self/cgroup", "0::/\n", "/sys/fs/cgroup/cpu.max", "100000 0"}, 0},
      {"a cpuset is no cpu controller",
       {"/proc/self/cgroup", "2:cpuset:/\n", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "1000",
        "/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000"},
       0}};
  for (size_t i = 0; i < WR_ARRAY_LEN(rows); i++) {
    machine_begin();
    for (int k = 0; k < 8 && rows[i].files[k]; k += 2) machine_file(rows[i].files[k], rows[i].files[k + 1]);
    int64_t milli = wr_cgroup_quota_milli(root);
    CHECK_MSG(milli == rows[i].milli, "%s: %lld", rows[i].says, (long long)milli);
    machine_end();
  }
}

static void memory_limits(void) {
  static const struct {
    const char *says;
    const char *files[8];
    int64_t left;
  } rows[] = {
      {"no files", {NULL}, 0},
      {"v2 without a limit", {"/proc/self/cgroup", "0::/a\n", "/sys/fs/cgroup/a/memory.max", "max\n"}, 0},
      {"v2, file cache is free",
       {"/proc/self/cgroup", "0::/a\n", "/sys/fs/cgroup/a/memory.max", "1000000\n", "/sys/fs/cgroup/a/memory.current",
        "600000\n", "/sys/fs/cgroup/a/memory.stat", "anon 100\nactive_file 7\ninactive_file 500000\nslab 9\n"},
       900000},
      {"v2, over the limit",
       {"/proc/self/cgroup", "0::/\n", "/sys/fs/cgroup/memory.max", "1000\n", "/sys/fs/cgroup/memory.current", "2000\n"},
       1},
      {"v1",
       {"/proc/self/cgroup", "3:memory:/d\n", "/sys/fs/cgroup/memory/d/memory.limit_in_bytes", "5000\n",
        "/sys/fs/cgroup/memory/d/memory.usage_in_bytes", "1000\n"},
       4000},
      {"v1 without a limit",
       {"/proc/self/cgroup", "3:memory:/\n", "/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
       0}};
  for (size_t i = 0; i < WR_ARRAY_LEN(rows); i++) {
    machine_begin();
    for (int k = 0; k < 8 && rows[i].files[k]; k += 2) machine_file(rows[i].files[k], rows[i].files[k + 1]);
    int64_t left = wr_cgroup_memory_left(root);
    CHECK_MSG(left == rows[i].left, "%s: %lld", rows[i].says, (long long)left);
    machine_end();
  }
  uint64_t before = wr_memory_available();
  CHECK(before > 1 << 20);
  if (SANITIZED) return;
  struct rlimit space;
  REQUIRE(getrlimit(RLIMIT_AS, &space) == 0);
  setrlimit(RLIMIT_AS, &(struct rlimit){(rlim_t)300 << 20, space.rlim_max});
  uint64_t limited = wr_memory_available();
  setrlimit(RLIMIT_AS, &space);
  CHECK(limited <= (uint64_t)300 << 20);
}

static void threads_from_limits(void) {
  CHECK_EQ_INT(wr_threads_for(8, 0, 1), 8);
  CHECK_EQ_INT(wr_threads_for(8, 2500, 1), 2);
  CHECK_EQ_INT(wr_threads_for(8, 500, 1), 1);
  CHECK_EQ_INT(wr_threads_for(8, 64000, 1), 8);
  CHECK_EQ_INT(wr_threads_for(8, 0, 4), 2);
  CHECK_EQ_INT(wr_threads_for(2, 0, 4), 1);
  CHECK_EQ_INT(wr_threads_for(0, 0, 1), 1);
  CHECK(wr_default_threads() >= 1);
  /* ranks of an MPI launch that share our CPUs */
  int alone = wr_default_threads();
  setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2", 1);
  cpu_set_t own, parent;
  bool same = sched_getaffinity(0, sizeof own, &own) == 0 && sched_getaffinity(getppid(), sizeof parent, &parent) == 0 &&
              CPU_EQUAL(&own, &parent);
  CHECK_EQ_INT(wr_default_threads(), same ? WR_MAX(alone / 2, 1) : alone);
  unsetenv("OMPI_COMM_WORLD_LOCAL_SIZE");
}

TEST_MAIN("team", TEST(one_thread), TEST(two_threads), TEST(more_threads_than_cpus), TEST(each_thread_once), TEST(two_callers),
          TEST(two_teams), TEST(sleepers_wake), TEST(open_and_close_often), TEST(idle_costs_nothing), TEST(pinned),
          TEST(on_one_cpu), TEST(wrong_numbers), TEST(fewer_threads_than_asked), TEST(cores_of_siblings), TEST(quotas),
          TEST(memory_limits), TEST(threads_from_limits))
