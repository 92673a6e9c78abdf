/* machine.c: owns the measuring of this machine: which points, how often, in what order, and when a kept result is used.
 *
 * Every figure is the best of several samples: other programs only ever take away. Samples of a point are taken until its time
 * is spent and at least three (quick: two) were taken. Working sets lie in one buffer of huge pages, so that page walks do not
 * count against the memory; each thread fills a part of its own, so the pages spread over the memory nodes. The largest set is
 * bounded by a quarter of the memory that is left. The disk is read through a new file in the cache folder, past the page
 * cache, deleted as soon as it is open; a memory file system is no disk.
 */
#include "device/cpu/machine_i.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#define READ_BYTES_MIN ((size_t)16 << 10)
#define READ_BYTES_MAX ((size_t)1 << 30)
#define READ_BYTES_STEP 4 /* between two sets */
#define QUICK_BYTES_STEP 16
#define QUICK_BYTES_MAX ((size_t)256 << 20)
#define PREFETCH_FROM ((size_t)1 << 20) /* sets from here on are also tried with prefetch */
#define SAMPLE_BYTES ((size_t)8 << 20)  /* small sets are read over and over until a sample has so many bytes */
#define PEAK_SAMPLE_OPS 5e7             /* operations of one thread in a sample: some milliseconds at most */
#define BARRIER_ROUNDS 64
#define DISK_BYTES ((size_t)128 << 20)
#define DISK_BLOCK ((size_t)4 << 20)
#define FS_RAMFS 0x858458f6
#define FS_TMPFS 0x01021994

typedef struct measuring {
  const weir_machine_options *options;
  weir_machine *m;
  wr_team *team;
  uint8_t *buffer; /* [buffer_bytes] */
  size_t buffer_bytes;
  int thread_counts[16], n_counts;
  uint64_t point_ns; /* time for the samples of one point */
  int least_samples;
  int points, points_done; /* for the progress */
} measuring;

/* The monotonic clock itself: a hooked clock need not advance. */
static uint64_t clock_ns(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static weir_status tell(measuring *k, const char *what) {
  double done = k->points ? WR_MIN((double)k->points_done / k->points, 1.0) : 0;
  k->points_done++;
  if (!k->options->progress || k->options->progress(k->options->user, what, done) == 0) return WEIR_OK;
  return wr_fail(WEIR_ESTOPPED, "measuring the machine was stopped");
}

/* ---- reads */

static size_t step_of(const measuring *k) { return k->options->quick ? QUICK_BYTES_STEP : READ_BYTES_STEP; }

static double best_read(measuring *k, size_t bytes) {
  wr_range range = {k->buffer, bytes};
  int passes = (int)WR_MAX(SAMPLE_BYTES / bytes, (size_t)1);
  int kinds = bytes >= PREFETCH_FROM ? 2 : 1;
  double best = 0;
  uint64_t until = clock_ns() + k->point_ns;
  for (int i = 0; i < k->least_samples * kinds || clock_ns() < until; i++) {
    double rate = wr_read_sample(k->team, i % kinds ? WR_READ_PREFETCH : WR_READ_PLAIN, &range, 1, passes);
    best = WR_MAX(best, rate);
  }
  return best * 1e-9;
}

static weir_status measure_reads(measuring *k, int threads) {
  weir_machine *m = k->m;
  for (size_t bytes = READ_BYTES_MIN; bytes <= k->buffer_bytes; bytes *= step_of(k)) {
    char what[48], size[16];
    if (m->n_reads == WEIR_MACHINE_READS) break;
    wr_size_text(size, bytes);
    snprintf(what, sizeof what, "read of %s by %d thread%s", size, threads, threads > 1 ? "s" : "");
    WR_TRY(tell(k, what));
    m->reads[m->n_reads++] = (weir_machine_read){bytes, threads, best_read(k, bytes)};
  }
  return WEIR_OK;
}

/* ---- arithmetic */

typedef struct peak_run {
  wr_team *team;
  const wr_peak_loop *loop;
  int64_t rounds;
  uint64_t began_ns, ended_ns;
} peak_run;

static void run_peak(void *arg, int tid, int n_threads) {
  peak_run *r = arg;
  (void)n_threads;
  wr_team_barrier(r->team, tid);
  if (tid == 0) r->began_ns = clock_ns();
  r->loop->run(r->rounds);
  wr_team_barrier(r->team, tid);
  if (tid == 0) r->ended_ns = clock_ns();
}

static weir_status measure_peaks(measuring *k, int threads, uint32_t isa) {
  weir_machine *m = k->m;
  for (int i = 0; i < wr_peak_loops_n && m->n_peaks < WEIR_MACHINE_PEAKS; i++) {
    const wr_peak_loop *loop = &wr_peak_loops[i];
    if (wr_isa_missing(loop->isa, isa)) continue;
    char what[48];
    snprintf(what, sizeof what, "%s peak of %d thread%s", loop->type, threads, threads > 1 ? "s" : "");
    WR_TRY(tell(k, what));
    peak_run r = {.team = k->team, .loop = loop, .rounds = (int64_t)(PEAK_SAMPLE_OPS / loop->ops_per_round)};
    double best = 0;
    uint64_t until = clock_ns() + k->point_ns / 2;
    for (int n = 0; n < k->least_samples || clock_ns() < until; n++) {
      wr_team_run(k->team, run_peak, &r);
      double ns = (double)WR_MAX(r.ended_ns - r.began_ns, (uint64_t)1);
      best = WR_MAX(best, loop->ops_per_round * (double)r.rounds * threads / ns);
    }
    weir_machine_peak *p = &m->peaks[m->n_peaks++];
    p->threads = threads;
    p->gop_s = best;
    snprintf(p->type, sizeof p->type, "%s", loop->type);
    snprintf(p->how, sizeof p->how, "%s", loop->how);
  }
  return WEIR_OK;
}

/* ---- barrier */

typedef struct barrier_run {
  wr_team *team;
  double ns[300];
  int n;
} barrier_run;

static void run_barriers(void *arg, int tid, int n_threads) {
  barrier_run *r = arg;
  (void)n_threads;
  for (int sample = 0; sample < r->n; sample++) {
    uint64_t began = tid == 0 ? clock_ns() : 0;
    for (int i = 0; i < BARRIER_ROUNDS; i++) wr_team_barrier(r->team, tid);
    if (tid == 0) r->ns[sample] = (double)(clock_ns() - began) / BARRIER_ROUNDS;
  }
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static weir_status measure_barrier(measuring *k, int threads) {
  weir_machine *m = k->m;
  if (threads < 2 || m->n_barriers == WEIR_MACHINE_BARRIERS) return WEIR_OK;
  WR_TRY(tell(k, "barrier"));
  barrier_run r = {.team = k->team, .n = k->options->quick ? 60 : (int)WR_ARRAY_LEN(r.ns)};
  wr_team_run(k->team, run_barriers, &r);
  qsort(r.ns, (size_t)r.n, sizeof r.ns[0], by_value);
  m->barriers[m->n_barriers++] = (weir_machine_barrier){threads, r.ns[0], r.ns[r.n / 2]};
  return WEIR_OK;
}

/* ---- disk */

static double read_disk(int fd, void *block) {
  uint64_t began = clock_ns();
  size_t total = 0;
  for (;;) {
    ssize_t got = read(fd, block, DISK_BLOCK);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return 0;
    if (got == 0) break;
    total += (size_t)got;
  }
  uint64_t ns = clock_ns() - began;
  return total < DISK_BYTES || ns == 0 ? 0 : (double)total / (double)ns;
}

/* GB/s, or 0 when there is no disk to measure; that is no failure. */
static double measure_disk(const char *folder, void *block) {
  struct statfs fs;
  if (statfs(folder, &fs) != 0 || fs.f_type == FS_TMPFS || fs.f_type == FS_RAMFS) return 0;
  if (fs.f_bavail / 10 < DISK_BYTES / (uint64_t)WR_MAX(fs.f_bsize, 1)) return 0; /* no more than a tenth of what is free */
  char path[640];
  snprintf(path, sizeof path, "%s/disk-%08x.tmp", folder, (unsigned)wr_random_seed());
  int out = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (out < 0) return 0;
  int in = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC); /* past the page cache, where the file system can */
  if (in < 0) in = open(path, O_RDONLY | O_CLOEXEC);
  unlink(path);
  bool written = in >= 0;
  for (size_t done = 0; written && done < DISK_BYTES; done += DISK_BLOCK)
    written = write(out, block, DISK_BLOCK) == (ssize_t)DISK_BLOCK;
  double best = 0;
  if (written && fsync(out) == 0)
    for (int i = 0; i < 2; i++) {
      posix_fadvise(out, 0, 0, POSIX_FADV_DONTNEED);
      double rate = lseek(in, 0, SEEK_SET) == 0 ? read_disk(in, block) : 0;
      best = WR_MAX(best, rate);
    }
  if (in >= 0) close(in);
  close(out);
  return best;
}

/* ---- all together */

/* Each thread touches the part that it will read, with bytes that no disk can compress away. */
static void fill(void *arg, int tid, int n_threads) {
  measuring *k = arg;
  size_t from = k->buffer_bytes / (size_t)n_threads * (size_t)tid;
  size_t to = tid + 1 == n_threads ? k->buffer_bytes : from + k->buffer_bytes / (size_t)n_threads;
  uint64_t x = 0x9E3779B97F4A7C15u * ((uint64_t)tid + 1);
  for (size_t at = from & ~(size_t)7; at + 8 <= to; at += 8) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    memcpy(k->buffer + at, &x, 8);
  }
}

static void choose_points(measuring *k) {
  int n = k->m->threads;
  if (k->options->quick) {
    k->thread_counts[k->n_counts++] = 1;
  } else {
    for (int t = 1; t < n && k->n_counts < (int)WR_ARRAY_LEN(k->thread_counts) - 1; t *= 2) k->thread_counts[k->n_counts++] = t;
  }
  if (n > 1 || k->n_counts == 0) k->thread_counts[k->n_counts++] = n;
  size_t most = k->options->quick ? QUICK_BYTES_MAX : READ_BYTES_MAX;
  size_t bound = (size_t)(wr_memory_available() / 4);
  k->buffer_bytes = READ_BYTES_MIN;
  int sets = 1;
  while (k->buffer_bytes * step_of(k) <= WR_MIN(most, bound)) {
    k->buffer_bytes *= step_of(k);
    sets++;
  }
  k->points = k->n_counts * (sets + wr_peak_loops_n + 1) + 1;
}

static weir_status measure_with(measuring *k, int threads, uint32_t isa) {
  wr_team_close(k->team);
  k->team = NULL;
  WR_TRY(wr_team_open(threads, false, &k->team));
  if (wr_team_size(k->team) != threads) return WEIR_OK; /* refused by the system, and logged there */
  wr_team_run(k->team, fill, k);
  WR_TRY(measure_reads(k, threads));
  WR_TRY(measure_peaks(k, threads, isa));
  return measure_barrier(k, threads);
}

static weir_status measure_all(measuring *k, const char *folder) {
  wr_cpu_facts facts;
  wr_cpu_facts_get(&facts);
  weir_status status = WEIR_OK;
  k->buffer = wr_pages_alloc(k->buffer_bytes, true);
  if (!k->buffer) return wr_fail_nomem(k->buffer_bytes, "measuring the machine");
  for (int i = 0; i < k->n_counts && status == WEIR_OK; i++) status = measure_with(k, k->thread_counts[i], facts.isa);
  if (status == WEIR_OK) status = tell(k, "disk");
  if (status == WEIR_OK && !k->options->quick && folder && k->buffer_bytes >= DISK_BLOCK)
    k->m->disk_gb_s = measure_disk(folder, k->buffer);
  wr_team_close(k->team);
  wr_pages_free(k->buffer, k->buffer_bytes);
  return status;
}

/* Measures into *m, whose identity is filled in, and keeps the result at `path` (NULL: nowhere). */
static weir_status measure(const weir_machine_options *options, const char *folder, const char *path, weir_machine *m) {
  measuring k = {.options = options, .m = m};
  k.point_ns = options->quick ? 12000000 : 120000000;
  k.least_samples = options->quick ? 2 : 3;
  choose_points(&k);
  m->quick = options->quick;
  m->date = (int64_t)time(NULL);
  WR_TRY(measure_all(&k, folder));
  if (path && wr_machine_save(path, m) != WEIR_OK)
    wr_log(WEIR_LOG_WARN, "the machine's figures are not kept: %s", weir_last_error());
  return WEIR_OK;
}

weir_status weir_machine_measure(const weir_machine_options *options, weir_machine *out) {
  weir_machine_options o = options ? *options : (weir_machine_options){0};
  if (o.threads < 0 || o.threads > 1024)
    return wr_fail(WEIR_EUSAGE, "threads is %d; 0 (the default) to 1024 are possible", o.threads);
  weir_machine *m = wr_calloc(2, sizeof *m); /* too large for a small stack */
  if (!m) return wr_fail_nomem(2 * sizeof *m, "measuring the machine");
  weir_machine *kept = m + 1;
  wr_machine_identify(m);
  char folder[512], path[640];
  bool usual = !o.threads || o.threads == m->threads;
  bool keeps = !o.no_cache && usual && wr_cache_dir(folder, sizeof folder) == WEIR_OK && wr_mkdir_p(folder) == WEIR_OK &&
               wr_machine_path(m, path, sizeof path) == WEIR_OK;
  if (!o.no_cache && !o.kept && usual && !keeps) wr_log(WEIR_LOG_WARN, "the machine's figures cannot be kept: %s", weir_last_error());
  bool found = keeps && wr_machine_load(path, m, kept);
  weir_status status = WEIR_OK;
  if (found && !o.refresh && (o.quick || o.kept || !kept->quick)) {
    *out = *kept;
  } else if (o.kept) {
    status = wr_fail(WEIR_EUNSUPPORTED, "no figures of this machine are kept: weir bench machine measures them");
  } else {
    if (o.threads) m->threads = o.threads;
    /* a quick result does not take the place of a full one */
    status = measure(&o, keeps ? folder : NULL, keeps && !(o.quick && found && !kept->quick) ? path : NULL, m);
    if (status == WEIR_OK) *out = *m;
  }
  wr_free(m);
  return status;
}

/* ---- looking up */

/* The largest measured number of threads that is no larger than asked, or the smallest there is. */
static int nearest_threads(const int *threads, size_t stride, size_t n, int asked) {
  int best = 0, least = 0;
  for (size_t i = 0; i < n; i++) {
    int t = *(const int *)((const char *)threads + i * stride);
    if (t <= asked) best = WR_MAX(best, t);
    least = least ? WR_MIN(least, t) : t;
  }
  return best ? best : least;
}

double weir_machine_gb_s(const weir_machine *m, uint64_t bytes, int threads) {
  int t = nearest_threads(&m->reads[0].threads, sizeof m->reads[0], m->n_reads, threads);
  double found = 0;
  for (size_t i = 0; i < m->n_reads; i++) {
    if (m->reads[i].threads != t) continue;
    found = m->reads[i].gb_s; /* ascending: the last is the largest set */
    if (m->reads[i].bytes >= bytes) break;
  }
  return found;
}

double weir_machine_gop_s(const weir_machine *m, const char *type, int threads) {
  int t = nearest_threads(&m->peaks[0].threads, sizeof m->peaks[0], m->n_peaks, threads);
  double best = 0;
  for (size_t i = 0; i < m->n_peaks; i++)
    if (m->peaks[i].threads == t && strcmp(m->peaks[i].type, type) == 0) best = WR_MAX(best, m->peaks[i].gop_s);
  return best;
}

size_t weir_machine_print(const weir_machine *m, char *out, size_t cap) {
  wr_str s = {0};
  char a[16], b[16], c[16], d[16], date[32] = "";
  time_t when = (time_t)m->date;
  struct tm utc;
  if (gmtime_r(&when, &utc)) strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", &utc);
  wr_size_text(a, m->memory_bytes);
  wr_size_text(b, m->l1d_bytes);
  wr_size_text(c, m->l2_bytes);
  wr_size_text(d, m->l3_bytes);
  wr_str_printf(&s, "%s, %d CPUs, %d thread%s used, %s%s%s\n", m->cpu, m->cpus, m->threads, m->threads == 1 ? "" : "s", m->isa,
                m->features[0] ? " " : "", m->features);
  wr_str_printf(&s, "memory %s, L1 %s, L2 %s, L3 %s, %s\n", a, b, c, d, m->kernel);
  wr_str_printf(&s, "measured %s%s%s\n", date, m->quick ? ", quick" : "", m->cached ? ", kept from then" : "");
  wr_str_puts(&s, "\nread of         threads      GB/s\n");
  for (size_t i = 0; i < m->n_reads; i++) {
    wr_size_text(a, m->reads[i].bytes);
    wr_str_printf(&s, "%-15s %7d %9.1f\n", a, m->reads[i].threads, m->reads[i].gb_s);
  }
  wr_str_puts(&s, "\npeak             threads     Gop/s\n");
  for (size_t i = 0; i < m->n_peaks; i++)
    wr_str_printf(&s, "%-4s %-11s %7d %9.0f\n", m->peaks[i].type, m->peaks[i].how, m->peaks[i].threads, m->peaks[i].gop_s);
  for (size_t i = 0; i < m->n_barriers; i++)
    wr_str_printf(&s, "\nbarrier of %d threads: %.0f ns (median %.0f)", m->barriers[i].threads, m->barriers[i].best_ns,
                  m->barriers[i].median_ns);
  if (m->disk_gb_s > 0) wr_str_printf(&s, "\ndisk, sequential read: %.2f GB/s", m->disk_gb_s);
  wr_str_puts(&s, "\n");
  size_t length = s.oom ? 0 : s.len;
  if (cap) {
    size_t n = WR_MIN(length, cap - 1);
    if (n) memcpy(out, s.ptr, n);
    out[n] = '\0';
  }
  wr_str_free(&s);
  return length;
}
