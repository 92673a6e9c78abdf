/* base.c: errors, hooks, memory, strings, random numbers, checksums, files. Outside witnesses: the known answers that
 * Random123, xxHash and rand_xoshiro publish. */
#include "test.h"

#include "base/base_i.h"
#include "heap_i.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
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

/* A folder of this process; removed with what is in it. */
static char folder[64];
static const char *in_folder(const char *name) {
  static char path[4][160];
  static unsigned turn;
  if (!folder[0]) {
    strcpy(folder, "/tmp/weir-test-XXXXXX");
    if (!mkdtemp(folder)) abort();
  }
  char *out = path[turn++ % 4];
  snprintf(out, sizeof path[0], "%s/%s", folder, name);
  return out;
}
static int files_in_folder(void) {
  int n = 0;
  DIR *d = opendir(folder);
  if (!d) return -1;
  for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
  closedir(d);
  return n;
}

/* ---- errors */

static void *other_thread(void *arg) {
  (void)arg;
  CHECK_STR(weir_last_error(), "no error");
  wr_fail(WEIR_EFAIL, "of the other thread");
  return NULL;
}

static void errors(void) {
  CHECK_EQ_INT(wr_fail(WEIR_EFORMAT, "%s: byte %d", "x.gguf", 7), WEIR_EFORMAT);
  CHECK_STR(weir_last_error(), "x.gguf: byte 7");
  CHECK_EQ_INT(wr_fail_prefix(WEIR_EFORMAT, "part %d: ", 2), WEIR_EFORMAT);
  CHECK_STR(weir_last_error(), "part 2: x.gguf: byte 7");
  wr_fail(WEIR_EFAIL, "again: %s", weir_last_error()); /* an argument in the buffer that is written */
  CHECK_STR(weir_last_error(), "again: part 2: x.gguf: byte 7");
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, other_thread, NULL) == 0);
  pthread_join(thread, NULL);
  CHECK_STR(weir_last_error(), "again: part 2: x.gguf: byte 7");
  wr_fail_nomem(98400000, "the KV cache");
  CHECK_STR(weir_last_error(), "no memory for the KV cache (98.4 MB)");
  char longer[3000];
  for (size_t i = 0; i + 1 < sizeof longer; i++) longer[i] = "\xe2\x82\xac"[i % 3];
  longer[sizeof longer - 1] = '\0';
  wr_fail(WEIR_EFAIL, "%s", longer);
  size_t n = strlen(weir_last_error());
  CHECK(n > 900 && wr_utf8_valid(weir_last_error(), n) == n);
}

static void status_names(void) {
  CHECK_STR(weir_status_name(WEIR_ENOMEM), "WEIR_ENOMEM");
  CHECK_STR(weir_status_name(WEIR_OK), "WEIR_OK");
  CHECK_STR(weir_status_name((weir_status)-99), "unknown status");
  CHECK_EQ_INT(weir_status_exit_code(WEIR_OK), 0);
  CHECK_EQ_INT(weir_status_exit_code(WEIR_EUSAGE), 2);
  CHECK_EQ_INT(weir_status_exit_code(WEIR_EUNSUPPORTED), 3);
  CHECK_EQ_INT(weir_status_exit_code(WEIR_ENOMEM), 4);
  CHECK_EQ_INT(weir_status_exit_code(WEIR_ESTOPPED), 130);
  CHECK_EQ_INT(weir_status_exit_code((weir_status)-99), 1);
  CHECK(weir_version()[0] >= '0' && weir_version()[0] <= '9');
}

/* ---- hooks and memory */

typedef struct log_seen {
  char text[64];
  weir_log_level level;
} log_seen;
static uint64_t clock_seven(void *user) {
  (void)user;
  return 7;
}
static void keep_log(void *user, weir_log_level level, const char *message) {
  log_seen *seen = user;
  seen->level = level;
  snprintf(seen->text, sizeof seen->text, "%s", message);
}

static void nothing(void *arg, int tid, int n) {
  (void)arg;
  (void)tid;
  (void)n;
}

/* A bit of everything that allocates; every failure must come back as one. */
static weir_status some_work(void) {
  weir_status status = WEIR_OK;
  wr_str s = {0};
  wr_arena a = {0};
  wr_team *t = NULL;
  char *copy = wr_strdup("copy"), *text = NULL;
  size_t n = 0;
  if (!copy) status = wr_fail_nomem(5, "copy");
  for (int i = 0; i < 40; i++) wr_str_printf(&s, "%d and ", i);
  if (s.oom) status = wr_fail_nomem(s.len, "s");
  for (int i = 0; i < 40; i++)
    if (!wr_arena_alloc(&a, 1000) || !wr_arena_printf(&a, "%d", i)) status = wr_fail_nomem(1000, "arena");
  if (status == WEIR_OK) status = wr_team_open(2, false, &t);
  if (status == WEIR_OK) wr_team_run(t, nothing, NULL);
  if (status == WEIR_OK) status = wr_mkdir_p(in_folder("a"));
  if (status == WEIR_OK) status = wr_file_write_atomic(in_folder("a/b"), s.ptr, s.len);
  if (status == WEIR_OK) status = wr_file_read(in_folder("a/b"), 1 << 20, &text, &n);
  if (status == WEIR_OK && (n != s.len || memcmp(text, s.ptr, n) != 0)) status = wr_fail(WEIR_EFAIL, "other bytes");
  wr_free(text);
  wr_free(copy);
  wr_team_close(t);
  wr_arena_free(&a);
  wr_str_free(&s);
  return status;
}

static void nth_allocation_fails(void) {
  in_folder("");
  weir_set_hooks(&(weir_hooks){HEAP_HOOKS});
  heap_fail(0);
  CHECK_EQ_INT(some_work(), WEIR_OK);
  CHECK_EQ_INT(heap.live, 0);
  const long all = heap.calls;
  CHECK(all > 10);
  for (long n = 1; n <= all; n++) {
    heap_fail(n);
    weir_status status = some_work();
    CHECK_MSG(status == WEIR_ENOMEM, "allocation %ld: %s", n, weir_status_name(status));
    CHECK_HAS(weir_last_error(), "no memory for");
    CHECK_EQ_INT(heap.live, 0);
  }
  weir_set_hooks(NULL);
  unlink(in_folder("a/b"));
  rmdir(in_folder("a"));
}

static void log_and_clock(void) {
  log_seen seen = {0};
  weir_set_hooks(&(weir_hooks){.clock_ns = clock_seven, .log = keep_log, .user = &seen});
  CHECK_EQ_INT(wr_now_ns(), 7);
  wr_log(WEIR_LOG_INFO, "not shown");
  CHECK_STR(seen.text, "");
  wr_log(WEIR_LOG_WARN, "shown %d", 1);
  CHECK_STR(seen.text, "shown 1");
  CHECK_EQ_INT(seen.level, WEIR_LOG_WARN);
  weir_set_hooks(&(weir_hooks){.log = keep_log, .log_level = WEIR_LOG_DEBUG, .user = &seen});
  wr_log(WEIR_LOG_DEBUG, "all");
  CHECK_STR(seen.text, "all");
  weir_set_hooks(NULL);
  uint64_t before = wr_now_ns();
  CHECK(wr_now_ns() >= before && before != 7);
}

static void sizes_that_wrap(void) {
  size_t out = 5;
  CHECK(!wr_mul_size(SIZE_MAX / 2, 3, &out) && out == 5);
  CHECK(!wr_mul_size((size_t)1 << 32, (size_t)1 << 32, &out) && out == 5);
  CHECK(!wr_add_size(SIZE_MAX, 1, &out) && out == 5);
  CHECK(wr_mul_size(6, 7, &out) && out == 42);
  CHECK(wr_add_size(SIZE_MAX - 1, 1, &out) && out == SIZE_MAX);
  CHECK(!wr_malloc(SIZE_MAX));
  CHECK(!wr_malloc((size_t)PTRDIFF_MAX + 1));
  CHECK(!wr_calloc(SIZE_MAX / 2, 4));
  void *array = NULL;
  size_t cap = 0;
  CHECK(!wr_grow(&array, &cap, SIZE_MAX / 4, 8) && array == NULL && cap == 0);
  CHECK(wr_grow(&array, &cap, 3, 8) && array && cap >= 3);
  CHECK(!wr_grow(&array, &cap, SIZE_MAX, 8) && array && cap < 1000);
  wr_free(array);
  CHECK(!wr_pages_alloc(SIZE_MAX, false));
  CHECK(!wr_pages_alloc(SIZE_MAX - 5000, true));
  wr_arena a = {0};
  CHECK(!wr_arena_alloc(&a, SIZE_MAX) && !wr_arena_strndup(&a, "", SIZE_MAX));
  wr_arena_free(&a);
  void *ptr = wr_malloc(0);
  CHECK(ptr);
  wr_free(ptr);
  wr_free(NULL);
}

static void pages(void) {
  for (int huge = 0; huge < 2; huge++) {
    size_t bytes = ((size_t)5 << 20) + 12345;
    uint8_t *p = wr_pages_alloc(bytes, huge);
    REQUIRE(p);
    CHECK((uintptr_t)p % (huge ? (size_t)2 << 20 : 4096) == 0);
    CHECK(p[0] == 0 && p[bytes - 1] == 0);
    p[0] = p[bytes - 1] = 1;
    wr_pages_free(p, bytes);
  }
  void *one = wr_pages_alloc(0, false);
  CHECK(one);
  wr_pages_free(one, 0);
  wr_pages_free(NULL, 100);
}

static void pages_under_a_limit(void) {
  if (SANITIZED) SKIP("a sanitizer needs more address space than the limit");
  struct rlimit before;
  REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
  struct rlimit tight = {(rlim_t)1 << 30, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_AS, &tight) == 0);
  void *big = wr_pages_alloc((size_t)4 << 30, false), *huge = wr_pages_alloc((size_t)4 << 30, true);
  void *fits = wr_pages_alloc((size_t)64 << 20, true);
  setrlimit(RLIMIT_AS, &before);
  CHECK(!big && !huge && fits);
  wr_pages_free(fits, (size_t)64 << 20);
}

static void arena(void) {
  wr_arena a = {0};
  uint8_t *last = NULL;
  for (size_t n = 0; n < 5000; n += 7) {
    uint8_t *p = wr_arena_alloc(&a, n);
    REQUIRE(p);
    CHECK((uintptr_t)p % 16 == 0 && p != last);
    bool zero = true;
    for (size_t i = 0; i < n; i++) zero &= p[i] == 0;
    CHECK(zero);
    memset(p, 0xff, n);
    last = p;
  }
  CHECK_STR(wr_arena_strndup(&a, "abcdef", 3), "abc");
  CHECK_STR(wr_arena_printf(&a, "%s-%d", "x", 12), "x-12");
  CHECK(wr_arena_alloc(&a, 5 << 20));
  CHECK(a.used_bytes > 5 << 20);
  wr_arena_free(&a);
  CHECK(!a.head && a.used_bytes == 0);
  CHECK_STR(wr_arena_strdup(&a, "again"), "again");
  wr_arena_free(&a);
}

/* ---- strings */

static void strings(void) {
  wr_str s = {0};
  wr_str_put(&s, "a\0b", 3);
  wr_str_puts(&s, "cd");
  wr_str_printf(&s, "%05d", 42);
  CHECK_EQ_INT(s.len, 10);
  CHECK(memcmp(s.ptr, "a\0bcd00042", 11) == 0);
  for (int i = 0; i < 1000; i++) wr_str_printf(&s, "%d,", i);
  CHECK(!s.oom && s.ptr[s.len] == '\0' && strlen(s.ptr + 2) == s.len - 2);
  wr_str_clear(&s);
  CHECK(s.len == 0 && s.ptr[0] == '\0');
  wr_str_free(&s);
  heap_fail(1);
  weir_set_hooks(&(weir_hooks){HEAP_HOOKS});
  wr_str_puts(&s, "lost");
  wr_str_puts(&s, "and what follows too");
  CHECK(s.oom && s.len == 0);
  wr_str_free(&s);
  weir_set_hooks(NULL);
}

/* RFC 3629 by its definition: decode, then refuse what the definition refuses. */
static bool is_character(const uint8_t *p, size_t n) {
  static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  if (n == 1) return p[0] < 0x80;
  if ((uint32_t)p[0] >> (7 - n) != (1u << (n + 1)) - 2) return false;
  uint32_t code = p[0] & (0x7fu >> n);
  for (size_t i = 1; i < n; i++) {
    if (p[i] >> 6 != 2) return false;
    code = code << 6 | (p[i] & 0x3f);
  }
  return code >= least[n] && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff);
}

static void utf8_all_short_sequences(void) {
  /* every sequence of 2 bytes, every one of 3, and those of 4 whose last bytes are at the edges */
  static const uint8_t edges[] = {0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xff};
  int64_t wrong = 0;
  for (uint32_t code = 0; code < 1 << 24; code++) {
    uint8_t p[3] = {(uint8_t)(code >> 16), (uint8_t)(code >> 8), (uint8_t)code};
    if (p[0] < 0x80) continue;
    size_t want = is_character(p, 2) ? 2 + (p[2] < 0x80) : is_character(p, 3) ? 3 : 0;
    wrong += wr_utf8_valid(p, 3) != want;
  }
  for (uint32_t lead = 0xe0; lead < 0x100; lead++)
    for (uint32_t second = 0; second < 0x100; second++)
      for (size_t i = 0; i < WR_ARRAY_LEN(edges); i++)
        for (size_t j = 0; j < WR_ARRAY_LEN(edges); j++) {
          uint8_t p[4] = {(uint8_t)lead, (uint8_t)second, edges[i], edges[j]};
          size_t want = is_character(p, 4) ? 4 : is_character(p, 3) ? 3 + (p[3] < 0x80) : 0;
          wrong += wr_utf8_valid(p, 4) != want;
        }
  CHECK_EQ_INT(wrong, 0);
  CHECK_EQ_INT(wr_utf8_valid("", 0), 0);
  CHECK_EQ_INT(wr_utf8_valid("abc\xff", 4), 3);
}

static void utf8_partial(void) {
  CHECK_EQ_INT(wr_utf8_partial("", 0), 0);
  CHECK_EQ_INT(wr_utf8_partial("a", 1), 0);
  CHECK_EQ_INT(wr_utf8_partial("a\xc3", 2), 1);
  CHECK_EQ_INT(wr_utf8_partial("a\xc3\xa4", 3), 0);
  CHECK_EQ_INT(wr_utf8_partial("\xe2\x82", 2), 2);
  CHECK_EQ_INT(wr_utf8_partial("x\xf0\x9f\x98", 4), 3);
  CHECK_EQ_INT(wr_utf8_partial("\xf0\x9f\x98\x80", 4), 0);
  CHECK_EQ_INT(wr_utf8_partial("\xed\xa0", 2), 0); /* half a surrogate never becomes a character */
  CHECK_EQ_INT(wr_utf8_partial("\xf5", 1), 0);
  CHECK_EQ_INT(wr_utf8_partial("\xc0", 1), 0);
  CHECK_EQ_INT(wr_utf8_partial("\x80\x80\x80\x80", 4), 0);
  /* a stream cut anywhere and held back as told gives the text again */
  const char *text = "Gr\xc3\xbc\xc3\x9f"
                     "e \xe2\x82\xac \xf0\x9f\x98\x80!";
  size_t n = strlen(text);
  for (size_t cut = 0; cut <= n; cut++) {
    size_t held = wr_utf8_partial(text, cut);
    CHECK_EQ_INT(wr_utf8_valid(text, cut), cut - held);
  }
}

static void json_strings(void) {
  wr_str s = {0};
  wr_str_json(&s, "a\"\\\n\x7f\0\xc3\xa4\xf0\x9f\x98\x80\xff\xc3", 14);
  CHECK_STR(s.ptr, "\"a\\\"\\\\\\u000a\\u007f\\u0000\xc3\xa4\xf0\x9f\x98\x80\\ufffd\\ufffd\"");
  wr_str_free(&s);
}

static void escapes(void) {
  CHECK_STR(wr_escape("plain \xc3\xa4\xe2\x82\xac", 11), "plain \xc3\xa4\xe2\x82\xac");
  CHECK_STR(wr_escape("\x1b[31mred\n\x7f", 10), "\\x1B[31mred\\x0A\\x7F");
  CHECK_STR(wr_escape("a\0b", 3), "a\\x00b");
  CHECK_STR(wr_escape("\xff\xc3", 2), "\\xFF\\xC3");
  CHECK_STR(wr_escape("\xc2\x9b"
                      "31m",
                      5),
            "\\xC2\\x9B31m"); /* CSI of C1 */
  CHECK_STR(wr_escape("\xe2\x80\xae"
                      "x",
                      4),
            "\\xE2\\x80\\xAEx"); /* right-to-left override */
  CHECK_STR(wr_escape("%s%n", 4), "%s%n");
  char many[1000];
  memset(many, 0x01, sizeof many);
  CHECK(strlen(wr_escape(many, sizeof many)) == 123);
  memset(many, 'a', sizeof many);
  CHECK(strlen(wr_escape(many, 120)) == 120 && strlen(wr_escape(many, 121)) == 123);
  const char *first = wr_escape("1", 1), *second = wr_escape("2", 1), *third = wr_escape("3", 1), *fourth = wr_escape("4", 1);
  CHECK(*first == '1' && *second == '2' && *third == '3' && *fourth == '4');
  wr_str s = {0};
  wr_str_escape(&s, "a\tb", 3);
  CHECK_STR(s.ptr, "a\\x09b");
  wr_str_free(&s);
}

static void size_text(void) {
  static const struct {
    uint64_t bytes;
    const char *text;
  } rows[] = {{0, "0 B"},
              {999, "999 B"},
              {1000, "1.00 kB"},
              {1234, "1.23 kB"},
              {9994, "9.99 kB"},
              {9996, "10.0 kB"},
              {99949, "99.9 kB"},
              {99960, "100 kB"},
              {999499, "999 kB"},
              {999500, "1.00 MB"},
              {98362432, "98.4 MB"},
              {1u << 30, "1.07 GB"},
              {UINT64_MAX, "18.4 EB"}};
  for (size_t i = 0; i < WR_ARRAY_LEN(rows); i++) {
    char text[16];
    wr_size_text(text, rows[i].bytes);
    CHECK_STR(text, rows[i].text);
  }
}

/* ---- random and checksum */

/* the known-answer file of Random123, philox4x32 with 10 rounds */
static void philox(void) {
  static const struct {
    uint64_t key, hi, lo;
    uint32_t out[4];
  } rows[] = {{0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
              {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
              {0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
  for (size_t i = 0; i < WR_ARRAY_LEN(rows); i++) {
    uint32_t out[4];
    wr_philox(rows[i].key, rows[i].hi, rows[i].lo, out);
    for (int k = 0; k < 4; k++) CHECK_MSG(out[k] == rows[i].out[k], "row %zu word %d: %08x", i, k, out[k]);
  }
}

static void sequential_generator(void) {
  wr_rng r = {{1, 2, 3, 4}};
  static const uint64_t want[] = {11520, 0, 1509978240, 1215971899390074240}; /* rand_xoshiro's test of xoshiro256** */
  for (size_t i = 0; i < WR_ARRAY_LEN(want); i++) CHECK(wr_rng_u64(&r) == want[i]);
  wr_rng_seed(&r, 1234567);
  CHECK(r.s[0] == 6457827717110365317u && r.s[1] == 3203168211198807973u && r.s[2] == 9817491932198370423u); /* splitmix64 */
  double sum = 0, normal = 0, square = 0;
  int n = 200000;
  for (int i = 0; i < n; i++) {
    double u = wr_rng_uniform(&r), g = wr_rng_normal(&r);
    CHECK(u >= 0 && u < 1);
    sum += u;
    normal += g;
    square += g * g;
  }
  CHECK_NEAR(sum / n, 0.5, 0.004);
  CHECK_NEAR(normal / n, 0, 0.012);
  CHECK_NEAR(square / n, 1, 0.02);
  CHECK(wr_random_seed() != wr_random_seed());
}

/* the self-test of xxHash: its buffer, its lengths and seeds, its answers */
static void checksum(void) {
  static const struct {
    size_t n;
    uint64_t seed, hash;
  } rows[] = {{0, 0, 0xEF46DB3751D8E999},
              {0, 2654435761u, 0xAC75FDA2929B17EF},
              {1, 0, 0xE934A84ADB052768},
              {1, 2654435761u, 0x5014607643A9B4C3},
              {4, 0, 0x9136A0DCA57457EE},
              {14, 0, 0x8282DCC4994E35C8},
              {14, 2654435761u, 0xC3BD6BF63DEB6DF0},
              {222, 0, 0xB641AE8CB691C174},
              {222, 2654435761u, 0x20CB8AB7AE10C14A}};
  uint8_t bytes[222];
  uint64_t generator = 2654435761u;
  for (size_t i = 0; i < sizeof bytes; i++, generator *= 11400714785074694797u) bytes[i] = (uint8_t)(generator >> 56);
  for (size_t i = 0; i < WR_ARRAY_LEN(rows); i++) CHECK(wr_hash64(bytes, rows[i].n, rows[i].seed) == rows[i].hash);
  for (size_t i = 0; i < WR_ARRAY_LEN(rows); i++) /* the same in pieces of every length */
    for (size_t step = 1; step < 70; step += 3) {
      wr_hash h;
      wr_hash_begin(&h, rows[i].seed);
      for (size_t at = 0; at < rows[i].n; at += step) wr_hash_add(&h, (const char *)bytes + at, WR_MIN(step, rows[i].n - at));
      CHECK(wr_hash_end(&h) == rows[i].hash);
    }
  CHECK(wr_hash64("Nobody inspects the spammish repetition", 39, 0) == 0xFBCEA83C8A378BF1);
}

/* ---- files */

static void put_file(const char *path, const char *text) {
  FILE *f = fopen(path, "w");
  if (!f) abort();
  fputs(text, f);
  fclose(f);
}

static void map(void) {
  const char *path = in_folder("map");
  char text[10001];
  for (size_t i = 0; i < 10000; i++) text[i] = (char)('a' + i % 26);
  text[10000] = '\0';
  put_file(path, text);
  struct stat st;
  REQUIRE(stat(path, &st) == 0);
  for (int no_mmap = 0; no_mmap < 2; no_mmap++) {
    wr_map m;
    REQUIRE(wr_map_open(path, no_mmap, &m) == WEIR_OK);
    CHECK_EQ_INT(m.bytes, 10000);
    CHECK_EQ_INT(m.heap, no_mmap);
    CHECK(memcmp(m.ptr, text, 10000) == 0 && (uintptr_t)m.ptr % 64 == 0);
    CHECK(m.inode == st.st_ino && m.device == st.st_dev && m.mtime_ns / 1000000000u == (uint64_t)st.st_mtim.tv_sec);
    wr_map_close(&m);
    CHECK(!m.ptr && m.bytes == 0);
  }
  put_file(path, "");
  wr_map m = {.bytes = 9};
  CHECK_EQ_INT(wr_map_open(path, false, &m), WEIR_OK);
  CHECK(!m.ptr && m.bytes == 0);
  wr_map_close(&m);
  unlink(path);
}

static void *feed(void *arg) {
  int fd = *(int *)arg;
  char block[1000];
  memset(block, 'z', sizeof block);
  for (int i = 0; i < 300; i++)
    if (write(fd, block, sizeof block) != (ssize_t)sizeof block) break;
  close(fd);
  return NULL;
}

/* Not instrumented: a sanitizer's shadow has faults of its own. */
__attribute__((no_sanitize("address", "thread"))) static long sum_of_pages(const wr_map *m) {
  long sum = 0;
  for (size_t i = 0; i < m->bytes; i += 4096) sum += m->ptr[i];
  return sum;
}

/* Populated, a map has its pages: to touch them all is no fault any more. */
static void map_populated(void) {
  enum { BYTES = 4 << 20 };
  const char *path = in_folder("populated");
  char *text = malloc(BYTES + 1);
  REQUIRE(text);
  memset(text, 'p', BYTES);
  text[BYTES] = '\0';
  put_file(path, text);
  free(text);
  wr_map m;
  REQUIRE(wr_map_open(path, false, &m) == WEIR_OK);
  wr_map_populate(&m);
  struct rusage before, after;
  getrusage(RUSAGE_THREAD, &before);
  const long sum = sum_of_pages(&m);
  getrusage(RUSAGE_THREAD, &after);
  CHECK_EQ_INT(sum, BYTES / 4096 * 'p');
  void *probe = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool known = madvise(probe, 4096, 22) == 0; /* MADV_POPULATE_READ */
  munmap(probe, 4096);
  CHECK_MSG(!known || after.ru_minflt - before.ru_minflt < 8, "%ld faults", after.ru_minflt - before.ru_minflt);
  CHECK(wr_pages_huge(m.ptr, m.bytes) <= m.bytes);
  wr_map_close(&m);
  CHECK_EQ_INT(unlink(path), 0);
  wr_map none = {0};
  wr_map_populate(&none);
  CHECK_EQ_INT(wr_pages_huge(NULL, 0), 0);
}

static void pages_that_are_huge(void) {
  enum { BYTES = 8 << 20 };
  char *p = wr_pages_alloc(BYTES, true);
  REQUIRE(p);
  memset(p, 1, BYTES);
  const bool collapsed = madvise(p, BYTES, 25) == 0; /* MADV_COLLAPSE, Linux 6.1 */
  const uint64_t huge = wr_pages_huge(p, BYTES);
  CHECK_MSG(collapsed ? huge == BYTES : huge <= BYTES, "%llu bytes", (unsigned long long)huge);
  CHECK(wr_pages_huge(p, 2 << 20) <= 2 << 20);
  wr_pages_free(p, BYTES);
}

static void map_of_a_pipe(void) {
  int fds[2];
  pthread_t thread;
  REQUIRE(pipe(fds) == 0);
  REQUIRE(pthread_create(&thread, NULL, feed, &fds[1]) == 0);
  char path[40];
  snprintf(path, sizeof path, "/dev/fd/%d", fds[0]);
  wr_map m = {0};
  weir_status status = wr_map_open(path, false, &m);
  pthread_join(thread, NULL);
  close(fds[0]);
  CHECK_MSG(status == WEIR_OK, "%s", weir_last_error());
  CHECK(m.heap && m.bytes == 300000 && m.ptr && m.ptr[0] == 'z' && m.ptr[299999] == 'z');
  wr_map_close(&m);
  CHECK_EQ_INT(wr_map_open("/proc/self/status", false, &m), WEIR_OK); /* regular, says 0 bytes */
  CHECK(m.heap && m.bytes > 100);
  wr_map_close(&m);
  CHECK_EQ_INT(wr_map_open("/dev/null", false, &m), WEIR_OK);
  CHECK(m.bytes == 0 && !m.ptr);
}

static void map_errors(void) {
  wr_map m = {.bytes = 77};
  CHECK_EQ_INT(wr_map_open(in_folder("missing\x1b[1m"), false, &m), WEIR_EIO);
  CHECK_HAS(weir_last_error(), "missing\\x1B[1m: cannot open: No such file");
  CHECK_EQ_INT(wr_map_open("/tmp", false, &m), WEIR_EIO);
  CHECK_HAS(weir_last_error(), "/tmp: is a folder");
  CHECK_EQ_INT(wr_map_open("", false, &m), WEIR_EIO);
  CHECK_EQ_INT(wr_map_open("/dev/null/x", false, &m), WEIR_EIO);
  CHECK_EQ_INT(m.bytes, 77); /* outputs are untouched on failure */
  if (SANITIZED) return;
  struct rlimit before;
  REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
  setrlimit(RLIMIT_AS, &(struct rlimit){(rlim_t)256 << 20, before.rlim_max});
  weir_status endless = wr_map_open("/dev/zero", false, &m);
  setrlimit(RLIMIT_AS, &before);
  CHECK_EQ_INT(endless, WEIR_ENOMEM);
  CHECK_HAS(weir_last_error(), "/dev/zero");
}

static void read_files(void) {
  const char *path = in_folder("small");
  put_file(path, "0123456789");
  char *text = NULL;
  size_t n = 0;
  CHECK_EQ_INT(wr_file_read(path, 10, &text, &n), WEIR_OK);
  CHECK_STR(text, "0123456789");
  CHECK_EQ_INT(n, 10);
  wr_free(text);
  text = (char *)path;
  CHECK_EQ_INT(wr_file_read(path, 9, &text, &n), WEIR_EFORMAT);
  CHECK_HAS(weir_last_error(), "larger than the 9 B");
  CHECK(text == path);
  CHECK_EQ_INT(wr_file_read(path, SIZE_MAX, &text, &n), WEIR_OK);
  CHECK_EQ_INT(n, 10);
  wr_free(text);
  CHECK_EQ_INT(wr_file_read("/dev/zero", 100000, &text, &n), WEIR_EFORMAT);
  CHECK_EQ_INT(wr_file_read("/proc/self/status", 1 << 20, &text, &n), WEIR_OK);
  CHECK(n > 100 && text[n] == '\0');
  wr_free(text);
  CHECK_EQ_INT(wr_file_read("/tmp", 100, &text, &n), WEIR_EIO);
  unlink(path);
}

static void write_atomic(void) {
  const char *path = in_folder("atomic");
  CHECK_EQ_INT(wr_file_write_atomic(path, "one", 3), WEIR_OK);
  CHECK_EQ_INT(wr_file_write_atomic(path, "two and more", 12), WEIR_OK);
  char *text = NULL;
  size_t n = 0;
  REQUIRE(wr_file_read(path, 100, &text, &n) == WEIR_OK);
  CHECK_STR(text, "two and more");
  wr_free(text);
  CHECK_EQ_INT(files_in_folder(), 1);
  CHECK_EQ_INT(wr_file_write_atomic(in_folder("no/such/folder"), "x", 1), WEIR_EIO);
  CHECK_HAS(weir_last_error(), "no/such/folder: cannot create");
  CHECK_EQ_INT(wr_file_write_atomic(folder, "x", 1), WEIR_EIO);
  CHECK_HAS(weir_last_error(), "not a regular file");
  CHECK_EQ_INT(wr_file_write_atomic("/dev/null", "x", 1), WEIR_EIO);

  /* a write that fails half way leaves the old file and no other */
  struct rlimit before;
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  char *big = calloc(1, 100000);
  REQUIRE(big);
  signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &(struct rlimit){5000, before.rlim_max});
  weir_status status = wr_file_write_atomic(path, big, 100000);
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, SIG_DFL);
  free(big);
  CHECK_EQ_INT(status, WEIR_ENOMEM);
  CHECK_HAS(weir_last_error(), "cannot write");
  CHECK_EQ_INT(files_in_folder(), 1);
  REQUIRE(wr_file_read(path, 100, &text, &n) == WEIR_OK);
  CHECK_STR(text, "two and more");
  wr_free(text);
  unlink(path);
}

static void folders(void) {
  CHECK_EQ_INT(wr_mkdir_p(in_folder("p/q//r/")), WEIR_OK);
  CHECK_EQ_INT(wr_mkdir_p(in_folder("p/q/r")), WEIR_OK);
  put_file(in_folder("p/file"), "x");
  CHECK_EQ_INT(wr_mkdir_p(in_folder("p/file/s")), WEIR_EIO);
  CHECK_HAS(weir_last_error(), "p/file: is a file");
  unlink(in_folder("p/file"));
  rmdir(in_folder("p/q/r"));
  rmdir(in_folder("p/q"));
  rmdir(in_folder("p"));
  rmdir(folder);
}

static void cache_dir(void) {
  char *names[] = {"WEIR_CACHE", "XDG_CACHE_HOME", "HOME"}, *old[3], out[100];
  for (int i = 0; i < 3; i++) old[i] = getenv(names[i]) ? strdup(getenv(names[i])) : NULL;
  setenv("WEIR_CACHE", "/w", 1);
  setenv("XDG_CACHE_HOME", "/x", 1);
  setenv("HOME", "/h", 1);
  CHECK(wr_cache_dir(out, sizeof out) == WEIR_OK && strcmp(out, "/w") == 0);
  setenv("WEIR_CACHE", "", 1);
  CHECK(wr_cache_dir(out, sizeof out) == WEIR_OK && strcmp(out, "/x/weir") == 0);
  CHECK_EQ_INT(wr_cache_dir(out, 5), WEIR_EFAIL);
  setenv("XDG_CACHE_HOME", "relative", 1);
  CHECK(wr_cache_dir(out, sizeof out) == WEIR_OK && strcmp(out, "/h/.cache/weir") == 0);
  unsetenv("HOME");
  CHECK_EQ_INT(wr_cache_dir(out, sizeof out), WEIR_EFAIL);
  CHECK_HAS(weir_last_error(), "WEIR_CACHE");
  for (int i = 0; i < 3; i++) {
    if (old[i])
      setenv(names[i], old[i], 1);
    else
      unsetenv(names[i]);
    free(old[i]);
  }
}

TEST_MAIN("base", TEST(errors), TEST(status_names), TEST(nth_allocation_fails), TEST(log_and_clock), TEST(sizes_that_wrap),
          TEST(pages), TEST(pages_under_a_limit), TEST(arena), TEST(strings), TEST(utf8_all_short_sequences),
          TEST(utf8_partial), TEST(json_strings), TEST(escapes), TEST(size_text), TEST(philox), TEST(sequential_generator),
          TEST(checksum), TEST(map), TEST(map_populated), TEST(pages_that_are_huge), TEST(map_of_a_pipe), TEST(map_errors), TEST(read_files), TEST(write_atomic),
          TEST(cache_dir), TEST(folders))
