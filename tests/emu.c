/* emu.c: the emulated device finds what is planted (tests/emu_dev.h), and leaves alone what is right.
 *
 * What only a sanitizer can say is looked for in a child process, in the build that has it, and skipped in the others. */
#include "test.h"

#include "core/core.h"
#include "emu_dev.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#if WR_EMU_ASAN
enum { HAS_ASAN = 1, HAS_TSAN = 0 };
#elif WR_EMU_TSAN
enum { HAS_ASAN = 0, HAS_TSAN = 1 };
#else
enum { HAS_ASAN = 0, HAS_TSAN = 0 };
#endif

enum { ORDERS = 4 }; /* forwards, backwards, two shuffles */

/* ---- a call of one kernel */
typedef struct work {
  const wr_dev_kernel *kernel;
  int64_t groups[3], number;
} work;

static void launch(const wr_call *c, wr_launch *out) {
  const work *w = c->params;
  out->n[0] = w->number;
  wr_launch_add(out, w->kernel, w->groups[0], w->groups[1], w->groups[2]);
}

static weir_status run_on(wr_device *d, const work *w, void *const *args, int n_args) {
  static const wr_regs regs;
  wr_step step = {.launch = launch, .name = "a test", .call = {.params = w, .regs = &regs}};
  for (int i = 0; i < n_args; i++) step.call.args[i].data = args[i];
  return d->api->run(d, &(wr_list){.steps = &step, .n = 1});
}

static wr_device *emu(int order) {
  wr_device *d = NULL;
  if (wr_device_emu.open(&(wr_device_options){.threads = 1, .order = order}, &d) != WEIR_OK) abort();
  return d;
}

/* x = 1, 2, 3, ...; y all NaN, exactly as long as said, so that a sanitizer knows its end. */
static weir_status run(const wr_dev_kernel *k, int order, int groups, int64_t number, float *y, int n_y) {
  float *x = malloc((size_t)k->items * sizeof *x);
  if (!x) abort();
  for (int i = 0; i < k->items; i++) x[i] = (float)(i + 1);
  for (int i = 0; i < n_y; i++) y[i] = NAN;
  wr_device *d = emu(order);
  const weir_status s = run_on(d, &(work){k, {groups, 1, 1}, number}, (void *[]){x, y}, 2);
  d->api->close(d);
  free(x);
  return s;
}

/* Orders whose result has other bits than the first one's. */
static int orders_that_differ(const wr_dev_kernel *k, int groups, int n_y) {
  float *first = malloc((size_t)n_y * sizeof *first), *y = malloc((size_t)n_y * sizeof *y);
  int differ = 0;
  if (!first || !y) abort();
  CHECK(run(k, 0, groups, 0, first, n_y) == WEIR_OK);
  for (int order = 1; order < ORDERS; order++) {
    CHECK(run(k, order, groups, 0, y, n_y) == WEIR_OK);
    differ += memcmp(first, y, (size_t)n_y * sizeof *y) != 0;
  }
  free(first);
  free(y);
  return differ;
}

/* ---- without a sanitizer */

static void right_kernels_have_one_result(void) {
  float y[ITEMS];
  CHECK_EQ_INT(orders_that_differ(&neighbours, 3, ITEMS), 0);
  CHECK(run(&neighbours, 2, 1, 0, y, ITEMS) == WEIR_OK);
  for (int i = 0; i < ITEMS; i++) CHECK_EQ_INT(y[i], i + 1 + (i + 1) % ITEMS + 1);
}

static void missing_barrier(void) {
  if (HAS_TSAN) SKIP("the thread sanitizer ends it: see thread_sanitizer");
  CHECK(orders_that_differ(&planted_missing_barrier, 1, ITEMS) >= 2);
  CHECK(orders_that_differ(&planted_missing_second_barrier, 1, ITEMS) >= 2);
}

static void conflict_of_groups(void) { CHECK(orders_that_differ(&planted_group_conflict, 8, 8) >= 2); }

static void divergent_barrier(void) {
  char low[32], high[32];
  float y[ITEMS];
  snprintf(low, sizeof low, "emu_dev.h:%d", BARRIER_OF_LOW);
  snprintf(high, sizeof high, "emu_dev.h:%d", BARRIER_OF_HIGH);
  for (int order = 0; order < ORDERS; order++) {
    CHECK_EQ_INT(run(&planted_divergent_barrier, order, 1, 0, y, ITEMS), WEIR_EDEVICE);
    CHECK_HAS(weir_last_error(), "kernel planted_divergent_barrier: item 0 waits at");
    CHECK_HAS(weir_last_error(), "but item 32 at");
    CHECK_HAS(weir_last_error(), low);
    CHECK_HAS(weir_last_error(), high);
  }
  CHECK(run(&neighbours, 0, 1, 0, y, ITEMS) == WEIR_OK); /* what was left in the middle is gone */
}

static void item_that_returns(void) {
  char place[32];
  float y[ITEMS];
  snprintf(place, sizeof place, "emu_dev.h:%d", BARRIER_OF_ALL_BUT_3);
  for (int order = 0; order < ORDERS; order++) {
    CHECK_EQ_INT(run(&planted_early_return, order, 1, 0, y, ITEMS), WEIR_EDEVICE);
    CHECK_HAS(weir_last_error(), "kernel planted_early_return: item 0 waits at");
    CHECK_HAS(weir_last_error(), place);
    CHECK_HAS(weir_last_error(), "but item 3 has returned");
  }
}

static void unwritten_shared_memory(void) {
  float y[ITEMS];
  if (HAS_ASAN) SKIP("with AddressSanitizer SHARED memory has guards and is not filled");
  for (int groups = 1; groups < 3; groups++) {
    CHECK(run(&planted_unwritten_shared, 0, groups, 0, y, ITEMS) == WEIR_OK);
    CHECK(isnan(y[0]));
    CHECK(y[1] == 1.0f);
  }
}

static void most_items(void) {
  float y[2];
  CHECK_EQ_INT(orders_that_differ(&largest, 2, 2), 0);
  CHECK(run(&largest, 0, 2, 0, y, 2) == WEIR_OK);
  CHECK(y[0] == 1024.0f * 1025 / 2 && y[1] == y[0]);
  y[0] = NAN;
  CHECK_EQ_INT(run(&too_large, 0, 1, 0, y, 1), WEIR_EFAIL);
  CHECK_HAS(weir_last_error(), "too_large has groups of 1025 items, a device takes 1024");
  CHECK(isnan(y[0]));
}

/* One run after another on the same fibers, with an odd number of barriers before. */
static void groups_of_several_sizes(void) {
  static float x[1024], y[1024];
  wr_device *d = emu(0);
  for (int i = 0; i < 3; i++) {
    CHECK(run_on(d, &(work){&neighbours, {1, 1, 1}, 0}, (void *[]){x, y}, 2) == WEIR_OK);
    CHECK(run_on(d, &(work){&largest, {1, 1, 1}, 0}, (void *[]){x, y}, 2) == WEIR_OK);
  }
  d->api->close(d);
}

static void grids(void) {
  float x[ITEMS] = {0}, y[ITEMS] = {0};
  wr_device *d = emu(0);
  void *args[] = {x, y};
  CHECK(run_on(d, &(work){&neighbours, {1, 0, 1}, 0}, args, 2) == WEIR_OK);
  CHECK_EQ_INT(d->launches, 0);
  CHECK(run_on(d, &(work){&neighbours, {2, 2, 3}, 0}, args, 2) == WEIR_OK);
  CHECK_EQ_INT(d->launches, 1);
  CHECK_EQ_INT(run_on(d, &(work){&neighbours, {1, 65536, 1}, 0}, args, 2), WEIR_EFAIL);
  CHECK_HAS(weir_last_error(), "1 x 65536 x 1 groups");
  CHECK_EQ_INT(run_on(d, &(work){&neighbours, {-1, 1, 1}, 0}, args, 2), WEIR_EFAIL);
  d->api->close(d);
}

static void *many_runs(void *bad) {
  float y[ITEMS];
  for (int i = 0; i < 50; i++) {
    bool ok = run(&neighbours, i % ORDERS, 2, 0, y, ITEMS) == WEIR_OK;
    for (int k = 0; k < ITEMS; k++) ok &= y[k] == (float)(k + 1 + (k + 1) % ITEMS + 1);
    if (!ok) atomic_fetch_add((atomic_int *)bad, 1);
  }
  return NULL;
}

static void two_devices_in_two_threads(void) {
  atomic_int bad = 0;
  pthread_t other;
  wr_device *d = emu(0); /* keeps what the devices have in common */
  REQUIRE(pthread_create(&other, NULL, many_runs, &bad) == 0);
  many_runs(&bad);
  pthread_join(other, NULL);
  d->api->close(d);
  CHECK_EQ_INT(bad, 0);
}

/* ---- in a child process */

/* What it wrote to stderr, and whether it ended badly. */
static bool dies(const wr_dev_kernel *k, int64_t number, char *said, size_t cap) {
  FILE *f = tmpfile();
  int status = 0;
  if (!f) abort();
  const pid_t child = fork();
  if (child == 0) {
    float *y = malloc(ITEMS * sizeof *y);
    dup2(fileno(f), STDERR_FILENO);
    _exit(y && run(k, 0, 1, number, y, ITEMS) == WEIR_OK ? 0 : 99);
  }
  waitpid(child, &status, 0);
  rewind(f);
  said[fread(said, 1, cap - 1, f)] = 0;
  fclose(f);
  CHECK_MSG(!WIFEXITED(status) || WEXITSTATUS(status) != 99, "%s: the run failed: %s", k->name, said);
  return status != 0;
}

static void an_items_own_arrays(void) {
  static char said[1 << 16];
  CHECK(!dies(&neighbours, 0, said, sizeof said));
  CHECK(dies(&planted_large_stack, 0, said, sizeof said));
}

static void address_sanitizer(void) {
  static char said[1 << 16];
  if (!HAS_ASAN) SKIP("this build has no AddressSanitizer (VARIANT=asan)");
  CHECK(!dies(&neighbours, 0, said, sizeof said));
  CHECK(dies(&planted_past_global, 1, said, sizeof said));
  CHECK_HAS(said, "heap-buffer-overflow");
  CHECK_HAS(said, "planted_past_global");
  CHECK(dies(&planted_past_shared_by_pointer, 1, said, sizeof said));
  CHECK_HAS(said, "global-buffer-overflow");
  CHECK_HAS(said, "planted_past_shared_by_pointer");
  CHECK(dies(&planted_past_shared, 1, said, sizeof said));
  CHECK_HAS(said, "index 64 out of bounds for type"); /* UndefinedBehaviorSanitizer comes first */
  CHECK_HAS(said, "emu_dev.h");
}

static void thread_sanitizer(void) {
  static char said[1 << 16];
  if (!HAS_TSAN) SKIP("this build has no ThreadSanitizer (VARIANT=tsan)");
  CHECK(!dies(&neighbours, 0, said, sizeof said));
  CHECK(!strstr(said, "data race"));
  static const wr_dev_kernel *const plants[] = {&planted_missing_barrier, &planted_missing_second_barrier};
  for (size_t i = 0; i < WR_ARRAY_LEN(plants); i++) {
    CHECK(dies(plants[i], 0, said, sizeof said));
    CHECK_HAS(said, "data race");
    CHECK_HAS(said, plants[i]->name);
  }
}

/* ---- tensor cores' twin */

static void products_of_fragments(void) {
  enum { WARPS = MMA_ITEMS / 32, M = 16, N = 8, K = 16 };
  for (int f16 = 0; f16 < 2; f16++) {
    uint16_t a[WARPS][M][K], b[WARPS][N][K];
    float begin[WARPS][M][N], first[WARPS][M][N], d[WARPS][M][N];
    uint32_t seed = 1;
    uint16_t *halves[] = {&a[0][0][0], &b[0][0][0]};
    const int counts[] = {WARPS * M * K, WARPS * N * K};
    for (int h = 0; h < 2; h++)
      for (int i = 0; i < counts[h]; i++) {
        seed = seed * 1664525u + 1013904223u;
        const float x = (float)(int32_t)seed * 0x1p-30f;
        halves[h][i] = f16 ? wr_float_to_f16(x) : f32_bf16(x);
      }
    for (int i = 0; i < WARPS * M * N; i++) (&begin[0][0][0])[i] = (float)(i - 100) * 0.01f;
    for (int order = 0; order < ORDERS; order++) {
      wr_device *device = emu(order);
      memcpy(d, begin, sizeof d);
      CHECK(run_on(device, &(work){&multiply, {1, 1, 1}, f16}, (void *[]){a, b, d}, 3) == WEIR_OK);
      device->api->close(device);
      if (order == 0) memcpy(first, d, sizeof d);
      CHECK(memcmp(first, d, sizeof d) == 0);
    }
    for (int w = 0; w < WARPS; w++)
      for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
          double sum = (double)begin[w][m][n], size = fabs(sum);
          for (int k = 0; k < K; k++) {
            const float x = f16 ? wr_f16_to_float(a[w][m][k]) : bf16_f32(a[w][m][k]);
            const float y = f16 ? wr_f16_to_float(b[w][n][k]) : bf16_f32(b[w][n][k]);
            sum += (double)x * (double)y;
            size += fabs((double)x * (double)y);
          }
          CHECK_NEAR(d[w][m][n], sum, size * 1e-6);
        }
  }
}

TEST_MAIN("emu", TEST(right_kernels_have_one_result), TEST(missing_barrier), TEST(conflict_of_groups), TEST(divergent_barrier),
          TEST(item_that_returns), TEST(unwritten_shared_memory), TEST(most_items), TEST(groups_of_several_sizes), TEST(grids), TEST(two_devices_in_two_threads),
          TEST(an_items_own_arrays), TEST(address_sanitizer), TEST(thread_sanitizer), TEST(products_of_fragments))
