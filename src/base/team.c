/* team.c: owns the team: a fixed set of threads that run one function together and meet at barriers inside it.
 *
 * Waiting. Every wait is for a 32-bit word to change. A thread first reads it in a loop (a barrier every few tens of
 * microseconds is the normal case, and a sleep costs more than that), then sleeps in the kernel on the word (futex). How long
 * it reads is a budget of its own: it starts at SPIN_NS, is halved when the time ran out before the word changed, and doubled
 * when it did not. So a team whose peer has lost its core to another process soon hands its cores over, which is what lets the
 * scheduler bring the peer back. A team with more threads than usable CPUs never spins.
 *
 * Waking. The one who changes the word does so with a full fence and then looks for sleepers; a sleeper counts itself with a
 * full fence and then looks at the word again (the kernel does, in futex). One of the two sees the other, so no wake is lost
 * and no system call is made when nobody sleeps.
 *
 * Invariants: `fn`, `arg` and `n` change only while all workers wait for `run.word`; that word's increment publishes them.
 * A run ends when `left` is 0, which acquires all that the workers wrote.
 * Refuses: a run from inside a run (it would wait for itself).
 */
#include "base/base_i.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define TEAM_MAX 1024
#define SPIN_NS 40000u    /* the longest a thread reads before it sleeps: about what sleeping and waking cost */
#define SPIN_NS_MIN 1000u /* the shortest, so that the budget can grow again */
#define SPINS_A_LOOK 32   /* reads between two looks at the clock */

/* A word that threads wait for, alone in its cache line with its sleepers. */
typedef struct gate {
  _Alignas(WR_CACHE_LINE) _Atomic uint32_t word;
  _Atomic uint32_t sleepers;
} gate;

typedef struct member {
  _Alignas(WR_CACHE_LINE) wr_team *team;
  int tid;
  uint32_t spin_ns; /* this thread's budget at barriers */
  pthread_t thread; /* not of member 0, which is whoever calls wr_team_run */
} member;

struct wr_team {
  gate run;                                         /* counts runs */
  gate barrier;                                     /* counts barriers passed */
  gate left;                                        /* workers that still run; the caller waits for 0 */
  _Alignas(WR_CACHE_LINE) _Atomic uint32_t arrived; /* at the barrier */
  _Alignas(WR_CACHE_LINE) wr_team_fn fn;            /* NULL: the workers end */
  void *arg;
  int n;
  bool crowded; /* more threads than CPUs: never spin */
  bool pinned;  /* the thread that opened the team is bound to a CPU until it closes it */
  pthread_t opener;
  pthread_mutex_t turn; /* held for a whole run */
  member *members;      /* n_asked of them */
  void *members_alloc, *team_alloc;
};

/* ---- waiting */

static inline void cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* The monotonic clock itself, not the hook: a test's frozen clock must not make a wait endless. */
static uint64_t real_now_ns(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Reads until the word is not `old`, for at most `ns`. The pause instruction comes late because on newer cores it takes longer
 * than a whole barrier should. */
static bool spin_while(gate *g, uint32_t old, uint64_t ns) {
  for (int i = 0; i < SPINS_A_LOOK; i++)
    if (atomic_load_explicit(&g->word, memory_order_acquire) != old) return true;
  for (uint64_t until = real_now_ns() + ns;;) {
    for (int i = 0; i < SPINS_A_LOOK; i++) {
      if (atomic_load_explicit(&g->word, memory_order_acquire) != old) return true;
      cpu_relax();
    }
    if (real_now_ns() >= until) return false;
  }
}

static void sleep_while(gate *g, uint32_t old) {
  atomic_fetch_add(&g->sleepers, 1);
  while (atomic_load(&g->word) == old) syscall(SYS_futex, &g->word, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
  atomic_fetch_sub(&g->sleepers, 1);
}

static void wake(gate *g) {
  if (atomic_load(&g->sleepers) != 0) syscall(SYS_futex, &g->word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* Waits until the word is not `old`, with the budget of `m`. */
static void wait_while(gate *g, uint32_t old, member *m) {
  if (!m->team->crowded) {
    if (spin_while(g, old, m->spin_ns)) {
      if (m->spin_ns < SPIN_NS) m->spin_ns = WR_MIN(m->spin_ns * 2, SPIN_NS);
      return;
    }
    m->spin_ns = WR_MAX(m->spin_ns / 2, SPIN_NS_MIN);
  }
  sleep_while(g, old);
}

void wr_team_barrier(wr_team *t, int tid) {
  if (t->n == 1) return;
  /* the count cannot pass while we have not arrived, so reading it before arriving is safe */
  uint32_t passed = atomic_load_explicit(&t->barrier.word, memory_order_relaxed);
  if (atomic_fetch_add_explicit(&t->arrived, 1, memory_order_acq_rel) + 1 == (uint32_t)t->n) {
    atomic_store_explicit(&t->arrived, 0, memory_order_relaxed); /* published with the word */
    atomic_fetch_add(&t->barrier.word, 1);
    wake(&t->barrier);
    return;
  }
  wait_while(&t->barrier, passed, &t->members[tid]);
}

/* ---- runs */

static void *worker(void *arg) {
  member *m = arg;
  wr_team *t = m->team;
  uint32_t seen = 0;
  for (;;) {
    /* Between runs the wait has no peer that could be slow, so the budget does not adapt. */
    if (t->crowded || !spin_while(&t->run, seen, SPIN_NS)) sleep_while(&t->run, seen);
    seen++;
    if (!t->fn) return NULL;
    t->fn(t->arg, m->tid, t->n);
    if (atomic_fetch_sub(&t->left.word, 1) == 1) wake(&t->left);
  }
}

static void start_run(wr_team *t, wr_team_fn fn, void *arg) {
  t->fn = fn;
  t->arg = arg;
  atomic_store_explicit(&t->left.word, (uint32_t)t->n - 1, memory_order_relaxed);
  atomic_fetch_add(&t->run.word, 1);
  wake(&t->run);
}

void wr_team_run(wr_team *t, wr_team_fn fn, void *arg) {
  pthread_mutex_lock(&t->turn);
  if (t->n == 1) {
    fn(arg, 0, 1);
  } else {
    start_run(t, fn, arg);
    fn(arg, 0, t->n);
    for (uint32_t left; (left = atomic_load_explicit(&t->left.word, memory_order_acquire)) != 0;)
      wait_while(&t->left, left, &t->members[0]);
  }
  pthread_mutex_unlock(&t->turn);
}

int wr_team_size(const wr_team *t) { return t->n; }

/* ---- opening and closing */

/* The affinity that the calling thread had before a team pinned it; kept so that a second team sees the whole machine. */
static _Thread_local int pins;
static _Thread_local cpu_set_t unpinned;

bool wr_team_unpinned_affinity(cpu_set_t *out) {
  if (pins == 0) return false;
  *out = unpinned;
  return true;
}

static bool pin_thread(pthread_t thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET((size_t)cpu, &set);
  return pthread_setaffinity_np(thread, sizeof set, &set) == 0;
}

static void pin_team(wr_team *t, const wr_cpus *cpus) {
  if (t->n > cpus->n_cpus) {
    wr_log(WEIR_LOG_WARN, "threads are not pinned: %d threads, %d usable CPUs", t->n, cpus->n_cpus);
    return;
  }
  cpu_set_t before;
  if (pthread_getaffinity_np(pthread_self(), sizeof before, &before) != 0) return;
  bool all = true;
  for (int i = 1; i < t->n; i++) all &= pin_thread(t->members[i].thread, cpus->cpu[i]);
  if (pin_thread(pthread_self(), cpus->cpu[0])) {
    if (pins++ == 0) unpinned = before;
    t->pinned = true;
    t->opener = pthread_self();
  } else {
    all = false;
  }
  if (!all) wr_log(WEIR_LOG_WARN, "some threads could not be pinned");
}

/* Starts workers until the system refuses one. They take no signals: those are for the program's own threads. */
static void start_workers(wr_team *t, int n_asked) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int n = 1, err = 0;
  for (; n < n_asked; n++) {
    t->members[n] = (member){.team = t, .tid = n, .spin_ns = SPIN_NS};
    err = pthread_create(&t->members[n].thread, NULL, worker, &t->members[n]);
    if (err) break;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  t->n = n; /* the workers read it only after the first run began */
  if (err) {
    char reason[128];
    wr_log(WEIR_LOG_WARN, "%d threads instead of %d: %s", n, n_asked, strerror_r(err, reason, sizeof reason));
  }
}

/* `bytes` zeroed at a cache line; `*alloc` is what to free. */
static void *line_calloc(size_t bytes, void **alloc) {
  *alloc = wr_calloc(1, bytes + WR_CACHE_LINE);
  if (!*alloc) return NULL;
  uintptr_t at = (uintptr_t)*alloc;
  return (uint8_t *)*alloc + (WR_CACHE_LINE - at % WR_CACHE_LINE) % WR_CACHE_LINE;
}

weir_status wr_team_open(int threads, bool pin, wr_team **out) {
  if (threads < 0 || threads > TEAM_MAX)
    return wr_fail(WEIR_EUSAGE, "threads is %d; 0 (the default) to %d are possible", threads, TEAM_MAX);
  int n = threads ? threads : wr_default_threads();
  n = WR_MIN(n, TEAM_MAX);
  void *team_alloc, *members_alloc;
  wr_team *t = line_calloc(sizeof *t, &team_alloc);
  if (!t) return wr_fail_nomem(sizeof *t, "the team of threads");
  member *members = line_calloc((size_t)n * sizeof *members, &members_alloc);
  if (!members) {
    wr_free(team_alloc);
    return wr_fail_nomem((size_t)n * sizeof *members, "the team of threads");
  }
  t->team_alloc = team_alloc;
  t->members_alloc = members_alloc;
  t->members = members;
  t->members[0] = (member){.team = t, .spin_ns = SPIN_NS};
  pthread_mutex_init(&t->turn, NULL);
  wr_cpus cpus;
  wr_cpus_usable(&cpus);
  int64_t quota = wr_cgroup_quota_milli("");
  t->crowded = n > cpus.n_cpus || (quota > 0 && (int64_t)n * 1000 > quota);
  start_workers(t, n);
  if (pin) pin_team(t, &cpus);
  *out = t;
  return WEIR_OK;
}

void wr_team_close(wr_team *t) {
  if (!t) return;
  if (t->n > 1) start_run(t, NULL, NULL);
  for (int i = 1; i < t->n; i++) pthread_join(t->members[i].thread, NULL);
  if (t->pinned && pthread_equal(t->opener, pthread_self()) && --pins == 0)
    pthread_setaffinity_np(pthread_self(), sizeof unpinned, &unpinned);
  pthread_mutex_destroy(&t->turn);
  wr_free(t->members_alloc);
  wr_free(t->team_alloc);
}
