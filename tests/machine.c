/* machine.c: the facts about the CPU, the plain read, the measuring of the machine and the file that keeps it. No time is
 * judged. */
#include "test.h"

#include "device/cpu/machine_i.h"

#include <sys/stat.h>
#include <unistd.h>

static char folder[64];
static void cache_begin(void) {
  strcpy(folder, "/tmp/weir-test-XXXXXX");
  if (!mkdtemp(folder)) abort();
  setenv("WEIR_CACHE", folder, 1);
}
static void cache_end(void) {
  char command[128];
  snprintf(command, sizeof command, "rm -r '%s'", folder);
  if (system(command) != 0) abort();
}

static void instruction_sets(void) {
  const char *old = getenv("WEIR_ISA");
  char *kept = old ? strdup(old) : NULL;
  uint32_t isa = 99, best;
  unsetenv("WEIR_ISA");
  REQUIRE(wr_isa_detect(&best) == WEIR_OK);
  setenv("WEIR_ISA", "generic", 1);
  CHECK(wr_isa_detect(&isa) == WEIR_OK && isa == WR_ISA_GENERIC);
  setenv("WEIR_ISA", "", 1);
  CHECK(wr_isa_detect(&isa) == WEIR_OK && isa == best);
  isa = 99;
  setenv("WEIR_ISA", "avx9\x1b", 1);
  CHECK(wr_isa_detect(&isa) == WEIR_EUSAGE && isa == 99);
  CHECK_HAS(weir_last_error(), "WEIR_ISA is \"avx9\\x1B\"; this machine can do: generic");
  setenv("WEIR_ISA", wr_isa_name(1), 1); /* avx2, neon */
  if ((best & WR_ISA_LEVEL_MASK) >= 1)
    CHECK(wr_isa_detect(&isa) == WEIR_OK && isa == 1);
  else
    CHECK_EQ_INT(wr_isa_detect(&isa), WEIR_EUSAGE);
  CHECK_STR(wr_isa_name(best), wr_isa_name(best & WR_ISA_LEVEL_MASK)); /* features have no name of their own */
  CHECK_STR(wr_isa_name(77), "unknown");
#ifdef __x86_64__
  CHECK_STR(wr_isa_missing(WR_ISA_AVX512_AMX, WR_ISA_AVX512 | WR_ISA_AVX512_FP16), "amx");
  CHECK_STR(wr_isa_missing(WR_ISA_AVX512_AMX, WR_ISA_AVX2), "avx512");
  CHECK(!wr_isa_missing(WR_ISA_AVX2, WR_ISA_AVX512) && !wr_isa_missing(WR_ISA_AVX512_AMX, WR_ISA_AVX512_AMX));
#endif
  if (kept)
    setenv("WEIR_ISA", kept, 1);
  else
    unsetenv("WEIR_ISA");
  free(kept);
}

/* The kernel is the witness: it lists a feature only when it can be used. */
static void facts_agree_with_the_kernel(void) {
#if defined(__aarch64__)
  static const char key[] = "Features";
#else
  static const char key[] = "flags";
#endif
  FILE *f = fopen("/proc/cpuinfo", "r");
  char line[8192], name[128] = "", flags[8192] = "";
  if (!f) SKIP("no /proc/cpuinfo");
  while (fgets(line, sizeof line, f)) {
    if (!name[0]) sscanf(line, "model name : %127[^\n]", name);
    if (!flags[0] && strncmp(line, key, sizeof key - 1) == 0) strcpy(flags, line); /* its newline becomes the blank after the last */
  }
  fclose(f);
  if (!flags[0]) SKIP("/proc/cpuinfo says nothing of this processor: another kernel, or an emulator");
  wr_cpu_facts facts;
  wr_cpu_facts_get(&facts);
  for (char *p = flags; *p; p++)
    if (*p == '\n' || *p == '\t') *p = ' ';
#if defined(__aarch64__)
  CHECK_EQ_INT(facts.isa, strstr(flags, " asimd ") && strstr(flags, " asimddp ") ? WR_ISA_NEON : WR_ISA_GENERIC);
#else
  bool avx2 = strstr(flags, " avx2 ") && strstr(flags, " fma ") && strstr(flags, " f16c ");
  bool avx512 = avx2 && strstr(flags, " avx512f ") && strstr(flags, " avx512bw ") && strstr(flags, " avx512vl ") &&
                strstr(flags, " avx512dq ") && strstr(flags, " avx512_vnni ");
  CHECK_EQ_INT(facts.isa & WR_ISA_LEVEL_MASK, avx512 ? WR_ISA_AVX512 : avx2 ? WR_ISA_AVX2 : WR_ISA_GENERIC);
  CHECK_EQ_INT((facts.isa & WR_ISA_AVX512_FP16) != 0, avx512 && strstr(flags, " avx512_fp16 "));
  CHECK_EQ_INT((facts.isa & WR_ISA_AVX512_BF16) != 0, avx512 && strstr(flags, " avx512_bf16 "));
  CHECK_EQ_INT((facts.isa & WR_ISA_AMX_INT8) != 0, avx512 && strstr(flags, " amx_int8 "));
#endif
  if (name[0]) CHECK_HAS(name, strtok(facts.model, " "));
  CHECK(facts.n_cpus >= 1 && facts.threads >= 1 && facts.memory_bytes > 1 << 20 && facts.kernel[0]);
}

static void plain_read(void) {
  enum { BYTES = 100000 };
  uint8_t *bytes = malloc(BYTES); /* of the heap, so that the address sanitizer sees a read beyond it */
  REQUIRE(bytes);
  memset(bytes, 3, BYTES);
  for (int threads = 1; threads <= 3; threads++) {
    wr_team *t;
    REQUIRE(wr_team_open(threads, false, &t) == WEIR_OK);
    wr_range odd[] = {{bytes + 1, 1000}, {bytes + 63, 2}, {bytes + 5000, 0}, {bytes + 4097, BYTES - 4097}, {bytes, 64}};
    for (int kind = WR_READ_PLAIN; kind <= WR_READ_PREFETCH; kind++)
      CHECK(wr_read_sample(t, (wr_read_kind)kind, odd, WR_ARRAY_LEN(odd), 3) > 0);
    CHECK(wr_read_bandwidth(t, odd, WR_ARRAY_LEN(odd), 1) > 0);
    CHECK(wr_read_bandwidth(t, odd, 0, 1) == 0);
    CHECK(wr_read_bandwidth(t, &odd[2], 1, 1) == 0);
    CHECK(wr_read_bandwidth(t, &odd[1], 1, 5) == 0); /* no whole line in it */
    wr_team_close(t);
  }
  free(bytes);
}

static void check_structure(const weir_machine *m) {
  CHECK(m->cpu[0] && m->kernel[0] && m->isa[0] && m->threads >= 1 && m->date > 1600000000);
  CHECK(m->n_reads >= 2 && m->n_reads <= WEIR_MACHINE_READS && m->n_peaks >= 1 && m->n_peaks <= WEIR_MACHINE_PEAKS);
  for (size_t i = 0; i < m->n_reads; i++) {
    const weir_machine_read *r = &m->reads[i], *before = i ? r - 1 : r;
    CHECK(r->gb_s > 0 && r->threads >= 1 && r->bytes >= 1 << 14);
    if (i) CHECK(r->threads > before->threads || (r->threads == before->threads && r->bytes > before->bytes));
  }
  for (size_t i = 0; i < m->n_peaks; i++) CHECK(m->peaks[i].gop_s > 0 && m->peaks[i].type[0] && m->peaks[i].how[0]);
  CHECK_EQ_INT(m->n_barriers, m->threads > 1);
  CHECK(weir_machine_gop_s(m, "fp32", 1) > 0);
  CHECK(weir_machine_gop_s(m, "fp1", 1) == 0);
}

static int calls;
static double last_done;
static int count_calls(void *user, const char *what, double done) {
  CHECK(user == &calls && what[0] && done >= last_done && done <= 1);
  last_done = done;
  return ++calls < 0;
}
static int stop_at_third(void *user, const char *what, double done) {
  (void)what;
  (void)done;
  return ++*(int *)user == 3;
}

static weir_machine first, second;

static void measured_and_kept(void) {
  cache_begin();
  weir_machine_options o = {.quick = true, .progress = count_calls, .user = &calls};
  const weir_machine_options kept = {.kept = true};
  CHECK_EQ_INT(weir_machine_measure(&kept, &first), WEIR_EUNSUPPORTED);
  REQUIRE(weir_machine_measure(&o, &first) == WEIR_OK);
  CHECK(!first.cached && first.quick && calls > 5);
  check_structure(&first);
  int after = calls;
  REQUIRE(weir_machine_measure(&kept, &second) == WEIR_OK && second.cached);
  REQUIRE(weir_machine_measure(&o, &second) == WEIR_OK);
  CHECK(second.cached && calls == after && second.date == first.date);
  CHECK(second.n_reads == first.n_reads && second.n_peaks == first.n_peaks && second.n_barriers == first.n_barriers);
  for (size_t i = 0; i < first.n_reads; i++) {
    CHECK(second.reads[i].bytes == first.reads[i].bytes && second.reads[i].threads == first.reads[i].threads);
    CHECK_NEAR(second.reads[i].gb_s / first.reads[i].gb_s, 1, 1e-5);
  }
  for (size_t i = 0; i < first.n_peaks; i++) {
    CHECK_STR(second.peaks[i].type, first.peaks[i].type);
    CHECK_STR(second.peaks[i].how, first.peaks[i].how);
    CHECK_NEAR(second.peaks[i].gop_s / first.peaks[i].gop_s, 1, 1e-5);
  }
  check_structure(&second);

  /* a stopped measurement leaves the output and the kept result alone */
  int seen = 0;
  weir_machine_options stop = {.quick = true, .refresh = true, .progress = stop_at_third, .user = &seen};
  CHECK_EQ_INT(weir_machine_measure(&stop, &second), WEIR_ESTOPPED);
  CHECK(second.cached && second.date == first.date);
  REQUIRE(weir_machine_measure(&(weir_machine_options){.quick = true}, &second) == WEIR_OK);
  CHECK(second.cached);
  CHECK_EQ_INT(weir_machine_measure(&(weir_machine_options){.threads = -4}, &second), WEIR_EUSAGE);
  cache_end();
}

/* What no whole and unchanged file of this machine is must be refused, and replaced by the next measurement. */
static void damaged_files(void) {
  if (!first.n_reads) SKIP("nothing was measured");
  cache_begin();
  char path[256], *text;
  size_t n;
  static weir_machine identity;
  wr_machine_identify(&identity);
  REQUIRE(wr_machine_path(&identity, path, sizeof path) == WEIR_OK);
  REQUIRE(wr_machine_save(path, &first) == WEIR_OK);
  CHECK(wr_machine_load(path, &identity, &second) && second.cached);
  REQUIRE(wr_file_read(path, 1 << 16, &text, &n) == WEIR_OK);

  weir_machine other = identity;
  other.memory_bytes++;
  CHECK(!wr_machine_load(path, &other, &second)); /* another machine */
  for (size_t cut = 0; cut < n; cut += 1 + n / 97) {
    REQUIRE(wr_file_write_atomic(path, text, cut) == WEIR_OK);
    CHECK_MSG(!wr_machine_load(path, &identity, &second), "cut at %zu of %zu", cut, n);
  }
  for (size_t at = 0; at < n; at += 1 + n / 97) {
    text[at] ^= 1;
    REQUIRE(wr_file_write_atomic(path, text, n) == WEIR_OK);
    CHECK_MSG(!wr_machine_load(path, &identity, &second), "bit at %zu of %zu", at, n);
    text[at] ^= 1;
  }
  /* a right sum over wrong lines */
  static const char *const lines[] = {"read 1 1\n", "read 1 1 nan\n", "read 1 -1 5\n", "peak fp32 1 1e30 x\n",
                                      "other 1\n",  "disk -1\n",      "quick 7\n",     "read 1 1 5 6\n"};
  char *tail = strstr(text, "check ");
  REQUIRE(tail);
  for (size_t i = 0; i < WR_ARRAY_LEN(lines); i++) {
    wr_str s = {0};
    wr_str_put(&s, text, (size_t)(tail - text));
    wr_str_puts(&s, lines[i]);
    wr_str_printf(&s, "check %016llx\n", (unsigned long long)wr_hash64(s.ptr, s.len, 0));
    REQUIRE(!s.oom && wr_file_write_atomic(path, s.ptr, s.len) == WEIR_OK);
    CHECK_MSG(!wr_machine_load(path, &identity, &second), "accepted: %s", lines[i]);
    wr_str_free(&s);
  }
  /* more lines than there is room for */
  wr_str many = {0};
  wr_str_put(&many, text, (size_t)(tail - text));
  for (int i = 0; i < 300; i++) wr_str_puts(&many, "barrier 2 1 1\n");
  wr_str_printf(&many, "check %016llx\n", (unsigned long long)wr_hash64(many.ptr, many.len, 0));
  REQUIRE(!many.oom && wr_file_write_atomic(path, many.ptr, many.len) == WEIR_OK);
  CHECK(!wr_machine_load(path, &identity, &second));
  wr_str_free(&many);

  weir_machine_options o = {.quick = true};
  REQUIRE(weir_machine_measure(&o, &second) == WEIR_OK);
  CHECK(!second.cached);
  REQUIRE(weir_machine_measure(&o, &second) == WEIR_OK);
  CHECK(second.cached);
  wr_free(text);
  cache_end();
}

/* A full result serves a quick request; a quick one does not serve a full request. */
static void full_and_quick(void) {
  if (!first.n_reads) SKIP("nothing was measured");
  cache_begin();
  char path[256];
  static weir_machine full;
  full = first;
  full.quick = false;
  full.date = 1700000000;
  REQUIRE(wr_machine_path(&first, path, sizeof path) == WEIR_OK);
  REQUIRE(wr_machine_save(path, &full) == WEIR_OK);
  REQUIRE(weir_machine_measure(&(weir_machine_options){.quick = true}, &second) == WEIR_OK);
  CHECK(second.cached && !second.quick && second.date == 1700000000);
  REQUIRE(weir_machine_measure(NULL, &second) == WEIR_OK);
  CHECK(second.cached);
  REQUIRE(wr_machine_save(path, &first) == WEIR_OK);
  int calls_of_full = 2;
  weir_machine_options stop = {.progress = stop_at_third, .user = &calls_of_full};
  CHECK_EQ_INT(weir_machine_measure(&stop, &second), WEIR_ESTOPPED); /* it began to measure */
  cache_end();
}

static void looked_up(void) {
  static weir_machine m;
  m = (weir_machine){.n_reads = 4, .n_peaks = 3};
  m.reads[0] = (weir_machine_read){1000, 1, 50};
  m.reads[1] = (weir_machine_read){100000, 1, 10};
  m.reads[2] = (weir_machine_read){1000, 4, 200};
  m.reads[3] = (weir_machine_read){100000, 4, 40};
  m.peaks[0] = (weir_machine_peak){"fp32", "a", 1, 5};
  m.peaks[1] = (weir_machine_peak){"fp32", "b", 1, 7};
  m.peaks[2] = (weir_machine_peak){"int8", "c", 1, 9};
  CHECK_NEAR(weir_machine_gb_s(&m, 10, 1), 50, 0);
  CHECK_NEAR(weir_machine_gb_s(&m, 1000, 3), 50, 0);
  CHECK_NEAR(weir_machine_gb_s(&m, 1001, 3), 10, 0);
  CHECK_NEAR(weir_machine_gb_s(&m, 1 << 30, 64), 40, 0);
  CHECK_NEAR(weir_machine_gb_s(&m, 10, 0), 50, 0);
  CHECK_NEAR(weir_machine_gop_s(&m, "fp32", 2), 7, 0);
  m.n_reads = 0;
  CHECK_NEAR(weir_machine_gb_s(&m, 10, 1), 0, 0);
  char small[10], *large = malloc(1 << 16);
  REQUIRE(large);
  size_t n = weir_machine_print(&first, large, 1 << 16);
  CHECK(n == strlen(large) && weir_machine_print(&first, small, sizeof small) == n && strlen(small) == sizeof small - 1);
  CHECK_EQ_INT(weir_machine_print(&first, NULL, 0), n);
  free(large);
}

/* Nowhere to keep it: measured all the same. */
static void without_a_folder(void) {
  setenv("WEIR_CACHE", "/dev/null/x", 1);
  REQUIRE(weir_machine_measure(&(weir_machine_options){.quick = true}, &second) == WEIR_OK);
  CHECK(!second.cached);
  check_structure(&second);
  unsetenv("WEIR_CACHE");
}

TEST_MAIN("machine", TEST(instruction_sets), TEST(facts_agree_with_the_kernel), TEST(plain_read), TEST(measured_and_kept),
          TEST(damaged_files), TEST(full_and_quick), TEST(looked_up), TEST(without_a_folder))
