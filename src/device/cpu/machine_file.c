/* machine_file.c: owns what identifies a machine, and the files that results about it are kept in.
 *
 * A file is lines of text, "key value…", so that a person can read it and another program can cut it:
 *   weir-machine 1
 *   cpu Intel(R) Xeon(R) Processor
 *   …
 *   read <bytes> <threads> <GB/s>
 *   peak <type> <threads> <Gop/s> <how>
 *   barrier <threads> <best ns> <median ns>
 *   check <XXH64 of all before this line, hex>
 * A file is used only if the sum is right, every line is understood, and the identity is that of the machine at hand; otherwise
 * it is as if it were not there, and the next result replaces it. Nobody writes it but weir, so no kinder handling is needed.
 */
#include "device/cpu/machine_i.h"

#include <inttypes.h>
#include <stdlib.h>

#define KIND "machine"
#define FILE_BYTES_MAX ((size_t)1 << 20)

void wr_machine_identify(weir_machine *m) {
  wr_cpu_facts f;
  wr_cpu_facts_get(&f);
  memcpy(m->cpu, f.model, sizeof m->cpu);
  memcpy(m->kernel, f.kernel, sizeof m->kernel);
  wr_machine_set_isa(m, f.isa);
  m->cpus = f.n_cpus;
  m->threads = f.threads;
  m->memory_bytes = f.memory_bytes;
  m->l1d_bytes = f.l1d_bytes;
  m->l2_bytes = f.l2_bytes;
  m->l3_bytes = f.l3_bytes;
}

/* The head of a file: all that must be the same for it to be used. */
static void put_identity(wr_str *s, const char *kind, const weir_machine *m) {
  wr_str_printf(s, "weir-%s 1\n", kind);
  wr_str_printf(s, "cpu %s\nkernel %s\nisa %s\nfeatures %s\n", m->cpu, m->kernel, m->isa, m->features);
  wr_str_printf(s, "cpus %d\nthreads %d\nmemory %" PRIu64 "\n", m->cpus, m->threads, m->memory_bytes);
  wr_str_printf(s, "caches %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", m->l1d_bytes, m->l2_bytes, m->l3_bytes);
}

weir_status wr_kept_path(const char *kind, const weir_machine *identity, char *out, size_t cap) {
  char folder[512];
  WR_TRY(wr_cache_dir(folder, sizeof folder));
  wr_str s = {0};
  put_identity(&s, kind, identity);
  if (s.oom) {
    wr_str_free(&s);
    return wr_fail_nomem(1024, "the identity of the machine");
  }
  int n = snprintf(out, cap, "%s/%s-%016" PRIx64 ".txt", folder, kind, wr_hash64(s.ptr, s.len, 0));
  wr_str_free(&s);
  if (n < 0 || (size_t)n >= cap) return wr_fail(WEIR_EFAIL, "the name of the machine's file is too long");
  return WEIR_OK;
}

weir_status wr_kept_save(const char *path, const char *kind, const weir_machine *identity, const wr_str *body) {
  wr_str s = {0};
  put_identity(&s, kind, identity);
  if (body->len) wr_str_put(&s, body->ptr, body->len);
  if (!s.oom) wr_str_printf(&s, "check %016" PRIx64 "\n", wr_hash64(s.ptr, s.len, 0));
  weir_status status =
      s.oom || body->oom ? wr_fail_nomem(s.len, "the machine's file") : wr_file_write_atomic(path, s.ptr, s.len);
  wr_str_free(&s);
  return status;
}

/* The body of a file's text, ended where its sum began; NULL: not whole, or not of this machine. */
static char *body_of(char *text, size_t n, const char *kind, const weir_machine *identity) {
  static const char tail_form[] = "check 0123456789abcdef\n";
  const size_t tail = sizeof tail_form - 1;
  wr_str head = {0};
  put_identity(&head, kind, identity);
  const size_t at = head.len;
  const bool ours = !head.oom && n >= at + tail && memcmp(text, head.ptr, at) == 0;
  wr_str_free(&head);
  if (!ours) return NULL;
  char *check = text + n - tail, want[sizeof tail_form];
  snprintf(want, sizeof want, "check %016" PRIx64 "\n", wr_hash64(text, (size_t)(check - text), 0));
  if (strcmp(check, want) != 0) return NULL;
  *check = '\0';
  return text + at;
}

weir_status wr_kept_load(const char *path, const char *kind, const weir_machine *identity, char **out) {
  char *text;
  size_t n;
  WR_TRY(wr_file_read(path, FILE_BYTES_MAX, &text, &n));
  const char *body = body_of(text, n, kind, identity);
  if (body) {
    memmove(text, body, strlen(body) + 1);
    *out = text;
    return WEIR_OK;
  }
  wr_free(text);
  return wr_fail(WEIR_EFORMAT, "it is damaged, or of another machine");
}

weir_status wr_machine_path(const weir_machine *identity, char *out, size_t cap) {
  return wr_kept_path(KIND, identity, out, cap);
}

weir_status wr_machine_save(const char *path, const weir_machine *m) {
  wr_str s = {0};
  wr_str_printf(&s, "date %" PRId64 "\nquick %d\n", m->date, m->quick);
  for (size_t i = 0; i < m->n_reads; i++)
    wr_str_printf(&s, "read %" PRIu64 " %d %.6g\n", m->reads[i].bytes, m->reads[i].threads, m->reads[i].gb_s);
  for (size_t i = 0; i < m->n_peaks; i++)
    wr_str_printf(&s, "peak %s %d %.6g %s\n", m->peaks[i].type, m->peaks[i].threads, m->peaks[i].gop_s, m->peaks[i].how);
  for (size_t i = 0; i < m->n_barriers; i++)
    wr_str_printf(&s, "barrier %d %.6g %.6g\n", m->barriers[i].threads, m->barriers[i].best_ns, m->barriers[i].median_ns);
  wr_str_printf(&s, "disk %.6g\n", m->disk_gb_s);
  weir_status status = wr_kept_save(path, KIND, m, &s);
  wr_str_free(&s);
  return status;
}

static bool sane(double x) { return x >= 0 && x < 1e12; /* and not NaN */ }

/* One line after the identity. */
static bool parse_line(const char *line, weir_machine *m) {
  int quick, end = 0;
  if (sscanf(line, "date %" SCNd64 "%n", &m->date, &end) == 1) return line[end] == '\0';
  if (sscanf(line, "quick %d%n", &quick, &end) == 1) {
    m->quick = quick != 0;
    return line[end] == '\0' && (quick & ~1) == 0;
  }
  if (sscanf(line, "disk %lf%n", &m->disk_gb_s, &end) == 1) return line[end] == '\0' && sane(m->disk_gb_s);
  if (strncmp(line, "read ", 5) == 0) {
    if (m->n_reads == WEIR_MACHINE_READS) return false;
    weir_machine_read *r = &m->reads[m->n_reads++];
    return sscanf(line, "read %" SCNu64 " %d %lf%n", &r->bytes, &r->threads, &r->gb_s, &end) == 3 && line[end] == '\0' &&
           r->threads > 0 && sane(r->gb_s);
  }
  if (strncmp(line, "peak ", 5) == 0) {
    if (m->n_peaks == WEIR_MACHINE_PEAKS) return false;
    weir_machine_peak *p = &m->peaks[m->n_peaks++];
    return sscanf(line, "peak %7s %d %lf %15[^\n]%n", p->type, &p->threads, &p->gop_s, p->how, &end) == 4 &&
           line[end] == '\0' && p->threads > 0 && sane(p->gop_s);
  }
  if (strncmp(line, "barrier ", 8) == 0) {
    if (m->n_barriers == WEIR_MACHINE_BARRIERS) return false;
    weir_machine_barrier *b = &m->barriers[m->n_barriers++];
    return sscanf(line, "barrier %d %lf %lf%n", &b->threads, &b->best_ns, &b->median_ns, &end) == 3 && line[end] == '\0' &&
           b->threads > 0 && sane(b->best_ns) && sane(b->median_ns);
  }
  return false;
}

/* The lines after the identity. */
static bool parse(char *text, const weir_machine *identity, weir_machine *m) {
  *m = *identity;
  for (char *line = text, *next; *line; line = next) {
    next = strchr(line, '\n');
    if (!next) return false;
    *next++ = '\0';
    if (!parse_line(line, m)) return false;
  }
  return m->n_reads > 0;
}

bool wr_machine_load(const char *path, const weir_machine *identity, weir_machine *m) {
  char *text;
  if (wr_kept_load(path, KIND, identity, &text) != WEIR_OK) return false;
  weir_machine *read = wr_malloc(sizeof *read);
  bool ok = read && parse(text, identity, read);
  if (ok) {
    *m = *read;
    m->cached = true;
  }
  wr_free(read);
  wr_free(text);
  return ok;
}
