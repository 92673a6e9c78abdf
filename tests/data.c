/* data: the order of samples, windows, shards and what is refused of them, building and going on with a build, text that is tokenised as
 * it is read. */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "data/data_i.h"
#include "test.h"

#define CORPORA "../shared/cases/corpora/"

/* ---------------------------------------------------------------------------------------------------------------- helpers */

static char root[64]; /* of this process's files */

static const char *at(const char *name) {
  static char ring[8][512];
  static unsigned turn;
  char *path = ring[turn++ % 8];
  if (!root[0]) {
    snprintf(root, sizeof root, "/tmp/weir-data-XXXXXX");
    if (!mkdtemp(root)) abort();
  }
  snprintf(path, 512, "%s/%s", root, name);
  return path;
}

static void write_file(const char *path, const void *bytes, size_t n) {
  FILE *f = fopen(path, "wb");
  if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) abort();
}

static void remove_tree(const char *path) {
  DIR *dir = opendir(path);
  for (struct dirent *e; dir && (e = readdir(dir));) {
    char inner[1024];
    if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
    snprintf(inner, sizeof inner, "%s/%s", path, e->d_name);
    if (unlink(inner) != 0) remove_tree(inner);
  }
  if (dir) closedir(dir);
  rmdir(path);
}

static bool same_file(const char *a, const char *b) {
  char *x = NULL, *y = NULL;
  size_t n = 0, m = 0;
  const bool same = wr_file_read(a, 1 << 28, &x, &n) == WEIR_OK && wr_file_read(b, 1 << 28, &y, &m) == WEIR_OK && n == m &&
                    memcmp(x, y, n) == 0;
  wr_free(x);
  wr_free(y);
  return same;
}

static bool same_folder(const char *a, const char *b) {
  int n = 0, m = 0;
  bool same = true;
  DIR *dir = opendir(a);
  for (struct dirent *e; dir && (e = readdir(dir));) {
    char x[1024], y[1024];
    if (e->d_name[0] == '.') continue;
    snprintf(x, sizeof x, "%s/%s", a, e->d_name);
    snprintf(y, sizeof y, "%s/%s", b, e->d_name);
    same &= same_file(x, y);
    n++;
  }
  if (dir) closedir(dir);
  dir = opendir(b);
  for (struct dirent *e; dir && (e = readdir(dir));) m += e->d_name[0] != '.';
  if (dir) closedir(dir);
  return same && n == m && n > 0;
}

static wr_tokenizer *bytes_tokenizer(void) {
  static wr_tokenizer *t;
  if (!t && wr_tokenizer_open_path("bytes", &t) != WEIR_OK) abort();
  return t;
}

/* A folder of one shard a row of docs (lengths, 0 ends it), ids counting up modulo vocab. */
static void make_shards(const char *folder, uint64_t vocab, const int *const *shards, int n_shards) {
  wr_shards_manifest m = {.vocab = vocab, .token_bytes = (uint32_t)wr_token_width(vocab), .tokenizer_hash = 7};
  snprintf(m.tokenizer, sizeof m.tokenizer, "test");
  if (wr_mkdir_p(folder) != WEIR_OK) abort();
  int32_t next = 0;
  for (int i = 0; i < n_shards; i++) {
    char file[32];
    wr_shard_writer *w;
    wr_shard s;
    snprintf(file, sizeof file, "train-%05d.bin", i);
    char *path = wr_path_join(folder, file);
    if (wr_shard_writer_open(path, vocab, 7, 0, &w) != WEIR_OK) abort();
    for (const int *doc = shards[i]; *doc; doc++) {
      for (int k = 0; k < *doc; k++, next++)
        if (wr_shard_writer_put(w, &(int32_t){(int32_t)((uint64_t)next % vocab)}, 1) != WEIR_OK) abort();
      wr_shard_writer_end_doc(w);
    }
    if (wr_shard_writer_finish(w, false, 0) != WEIR_OK) abort();
    wr_shard_writer_close(w);
    if (wr_shard_open(path, &s) != WEIR_OK || !wr_shards_manifest_add(&m.split[0], file, s.head)) abort();
    wr_shard_close(&s);
    wr_free(path);
  }
  if (wr_shards_manifest_write(folder, &m) != WEIR_OK) abort();
  wr_shards_manifest_free(&m);
}

static wr_data *open_data(const char *folder, int64_t T, int rank, int ranks) {
  wr_data *d = NULL;
  const wr_data_source source = {folder, 0};
  const wr_data_options o = {.sources = &source, .n_sources = 1, .context_tok = T, .seed = 5, .rank = rank, .ranks = ranks};
  CHECK_MSG(wr_data_open(&o, &d) == WEIR_OK, "%s", weir_last_error());
  return d;
}

static uint32_t token_of(const wr_sample *s, int64_t i) {
  return s->token_bytes == 2 ? ((const uint16_t *)s->tokens)[i] : ((const uint32_t *)s->tokens)[i];
}

/* ------------------------------------------------------------------------------------------------------------------ order */

static void permutation_is_a_bijection(void) {
  static const uint64_t sizes[] = {1, 2, 3, 5, 16, 97, 1000, 4096, 4097, 65537};
  static uint8_t seen[65537];
  for (size_t k = 0; k < WR_ARRAY_LEN(sizes); k++) {
    for (uint64_t epoch = 0; epoch < 2; epoch++) {
      const uint64_t n = sizes[k];
      uint64_t fixed = 0, ascents = 0, before = 0;
      memset(seen, 0, sizeof seen);
      for (uint64_t i = 0; i < n; i++) {
        const uint64_t p = wr_permute(n, 42, epoch, i);
        if (!CHECK_MSG(p < n && !seen[p], "%llu of %llu", (unsigned long long)i, (unsigned long long)n)) return;
        seen[p] = 1;
        fixed += p == i;
        ascents += i && p > before;
        before = p;
      }
      /* it looks like a random one: about one fixed point, half of the steps go up (six sigma) */
      if (n < 97) continue;
      CHECK_MSG(fixed < 12, "%llu fixed points of %llu", (unsigned long long)fixed, (unsigned long long)n);
      CHECK_NEAR((double)ascents / (double)n, 0.5, 6 * sqrt(1.0 / 12 / (double)n));
    }
  }
  CHECK(wr_permute(1ull << 63, 1, 1, 12345) < 1ull << 63);
  int differ = 0;
  for (uint64_t i = 0; i < 100; i++) differ += wr_permute(1000, 1, 0, i) != wr_permute(1000, 2, 0, i);
  CHECK(differ > 90);
}

static const int docs_a[] = {7, 100, 1, 250, 33, 0}, docs_b[] = {64, 64, 1, 0}, docs_c[] = {500, 0};
static const int *const three_shards[] = {docs_a, docs_b, docs_c};

/* Three epochs over any number of processes, then from the middle with another number: each sample once an epoch. */
static void each_sample_once_for_any_number_of_ranks(void) {
  static const int counts[] = {1, 2, 3, 7};
  const char *folder = at("ranks");
  make_shards(folder, 300, three_shards, 3);
  wr_data *d = open_data(folder, 16, 0, 1);
  REQUIRE(d);
  wr_data_info info;
  wr_data_get_info(d, &info);
  CHECK_EQ_INT(info.tokens, 391 + 129 + 500);
  CHECK_EQ_INT(info.samples, 25 + 8 + 32);
  const uint64_t n = info.samples, three = 3 * n;
  uint64_t want[256];
  wr_sample s;
  int64_t got;
  for (uint64_t i = 0; i < three; i++) {
    CHECK(wr_data_next(d, 1, &s, &got) == WEIR_OK && got == 1);
    want[i] = s.epoch << 32 | s.id;
    CHECK_EQ_INT(s.epoch, i / n);
  }
  wr_data_close(d);
  CHECK(memcmp(want, want + n, 8 * n) != 0);
  for (uint64_t e = 0; e < 3; e++) {
    uint8_t seen[256] = {0};
    for (uint64_t i = 0; i < n; i++) seen[want[e * n + i] & 255]++;
    for (uint64_t i = 0; i < n; i++) CHECK_EQ_INT(seen[i], 1);
  }
  for (size_t a = 0; a < WR_ARRAY_LEN(counts); a++) {
    for (size_t b = 0; b < WR_ARRAY_LEN(counts); b++) {
      const int first = counts[a], then = counts[b];
      const int64_t steps = 20 / first + 1; /* of one sample a rank */
      wr_data_position where = {0};
      for (int r = 0; r < first; r++) {
        d = open_data(folder, 16, r, first);
        for (int64_t i = 0; d && i < steps; i++) {
          CHECK(wr_data_next(d, 1, &s, &got) == WEIR_OK);
          CHECK_EQ_INT(s.epoch << 32 | s.id, want[i * first + r]);
        }
        wr_data_tell(d, &where);
        CHECK_EQ_INT(where.taken, steps * first);
        wr_data_close(d);
      }
      for (int r = 0; r < then; r++) {
        d = open_data(folder, 16, r, then);
        CHECK(wr_data_seek(d, &where) == WEIR_OK);
        for (uint64_t i = where.taken + (uint64_t)r; i < three; i += (uint64_t)then) {
          CHECK(wr_data_next(d, 1, &s, &got) == WEIR_OK);
          CHECK_EQ_INT(s.epoch << 32 | s.id, want[i]);
        }
        wr_data_close(d);
      }
    }
  }
  remove_tree(folder);
}

static void windows_cover_every_target_once(void) {
  const char *folder = at("windows");
  make_shards(folder, 70000, three_shards, 3);
  static const int64_t contexts[] = {1, 2, 7, 16, 128, 390, 499};
  for (size_t k = 0; k < WR_ARRAY_LEN(contexts); k++) {
    wr_data *d = open_data(folder, contexts[k], 0, 1);
    REQUIRE(d);
    wr_data_info info;
    wr_data_get_info(d, &info);
    uint8_t seen[1100] = {0};
    int64_t got = 0;
    for (uint64_t i = 0; i < info.samples; i++) {
      wr_sample s;
      CHECK(wr_data_next(d, 1, &s, &got) == WEIR_OK);
      CHECK(s.n_tok >= 2 && s.n_tok <= contexts[k] + 1);
      CHECK_EQ_INT(s.token_bytes, 4);
      for (int64_t j = 1; j < s.n_tok; j++) {
        CHECK_EQ_INT(token_of(&s, j), token_of(&s, j - 1) + 1);
        seen[token_of(&s, j)]++;
      }
    }
    for (int i = 0; i < 391 + 129 + 500; i++) CHECK_EQ_INT(seen[i], i != 0 && i != 391 && i != 520);
    wr_data_close(d);
  }
  remove_tree(folder);
}

static void weights_mix_in_their_shares(void) {
  static const int big[] = {3000, 0}, small[] = {200, 0};
  make_shards(at("mix-a"), 300, (const int *const[]){big}, 1);
  make_shards(at("mix-b"), 300, (const int *const[]){small}, 1);
  const wr_data_source sources[] = {{at("mix-a"), 0.3}, {at("mix-b"), 0.7}};
  wr_data_options o = {.sources = sources, .n_sources = 2, .context_tok = 10, .seed = 9};
  wr_data *d = NULL, *e = NULL;
  REQUIRE(wr_data_open(&o, &d) == WEIR_OK);
  int64_t got, from[2] = {0};
  int seen[2][300] = {{0}};
  wr_sample s, again;
  for (int i = 0; i < 10000; i++) {
    CHECK(wr_data_next(d, 1, &s, &got) == WEIR_OK);
    from[s.source]++;
    seen[s.source][s.id]++;
  }
  CHECK_NEAR((double)from[0] / 10000, 0.3, 0.01);
  CHECK_NEAR((double)from[1] / 10000, 0.7, 0.01);
  for (int k = 0; k < 2; k++) { /* whole epochs, but for the last: counts differ by one at most */
    const int n = k ? 20 : 300, least = (int)(from[k] / n);
    for (int i = 0; i < n; i++) CHECK_MSG(seen[k][i] == least || seen[k][i] == least + 1, "%d %d: %d", k, i, seen[k][i]);
  }
  /* a position is reached at once */
  REQUIRE(wr_data_open(&o, &e) == WEIR_OK);
  CHECK(wr_data_seek(e, &(wr_data_position){.taken = 10000}) == WEIR_OK);
  for (int i = 0; i < 100; i++) {
    CHECK(wr_data_next(d, 1, &s, &got) == WEIR_OK && wr_data_next(e, 1, &again, &got) == WEIR_OK);
    CHECK(s.source == again.source && s.id == again.id && s.epoch == again.epoch);
  }
  wr_data_close(d);
  wr_data_close(e);
  const wr_data_source one_without[] = {{at("mix-a"), 0.3}, {at("mix-b"), 0}};
  o.sources = one_without;
  CHECK(wr_data_open(&o, &d) == WEIR_EUSAGE);
  remove_tree(at("mix-a"));
  remove_tree(at("mix-b"));
}

/* ---------------------------------------------------------------------------------------------------------------- batches */

static void batch_rows_restart_at_documents(void) {
  const char *folder = at("batch");
  make_shards(folder, 300, three_shards, 3);
  wr_data *d = open_data(folder, 64, 0, 1);
  REQUIRE(d);
  enum { B = 3, T = 64 };
  int32_t tokens[B * T], targets[B * T], pos[B * T], first[B * T];
  uint64_t starts[64], n_starts = 0; /* of documents, in all tokens: each id names its place, as all tokens are below 1020 */
  for (int k = 0, next = 0; k < 3; k++)
    for (const int *doc = three_shards[k]; *doc; next += *doc++) starts[n_starts++] = (uint64_t)next;
  for (int round = 0; round < 6; round++) {
    wr_sample s[2];
    int64_t got;
    CHECK(wr_data_next(d, 2, s, &got) == WEIR_OK && got == 2);
    wr_batch batch = {tokens, targets, pos, first, 0, 0};
    CHECK(wr_batch_fill(s, 2, B, T, 300, true, &batch) == WEIR_OK);
    CHECK_EQ_INT(batch.counted, s[0].n_tok + s[1].n_tok - 2);
    for (int b = 0; b < B; b++) {
      const int64_t n = b < 2 ? s[b].n_tok - 1 : 0;
      const int shard = b < 2 ? (s[b].id >= 7 + 2 ? 2 : s[b].id >= 7 ? 1 : 0) : 0;
      const uint64_t base = (uint64_t[]){0, 391, 520}[shard] + (b < 2 ? s[b].first_tok : 0);
      for (int64_t i = 0; i < T; i++) {
        const int64_t at_row = b * T + i;
        if (i >= n) {
          CHECK(targets[at_row] == -1 && tokens[at_row] == 0 && first[at_row] == i && pos[at_row] == 0);
          continue;
        }
        const uint64_t here = base + (uint64_t)i;
        uint64_t begin = 0;
        for (uint64_t k = 0; k < n_starts; k++)
          if (starts[k] <= here) begin = starts[k];
        const int64_t want = begin > base ? (int64_t)(begin - base) : 0;
        CHECK_EQ_INT(tokens[at_row], here % 300);
        CHECK_EQ_INT(targets[at_row], (here + 1) % 300);
        CHECK_EQ_INT(first[at_row], want);
        CHECK_EQ_INT(pos[at_row], i - want);
      }
    }
    CHECK(wr_batch_fill(s, 2, B, T, 300, false, &batch) == WEIR_OK);
    CHECK(pos[T + 5] == 5 && first[T + 5] == 0);
    CHECK(wr_batch_fill(s, 2, B, T, 10, false, &batch) == WEIR_EFORMAT);
  }
  wr_data_close(d);
  remove_tree(folder);
}

/* ----------------------------------------------------------------------------------------------------------------- shards */

static void damaged_shards_are_refused(void) {
  const char *folder = at("damage");
  make_shards(folder, 300, three_shards, 1);
  const char *path = at("damage/train-00000.bin");
  char *bytes;
  size_t n;
  REQUIRE(wr_file_read(path, 1 << 20, &bytes, &n) == WEIR_OK);
  CHECK(weir_data_check(folder, NULL, NULL, NULL) != WEIR_OK); /* no tokenizer beside it */
  wr_shard s;
  for (size_t cut = 0; cut < n; cut += cut < 4200 ? 397 : 113) { /* torn */
    write_file(path, bytes, cut);
    CHECK_MSG(wr_shard_open(path, &s) == WEIR_EFORMAT, "cut to %zu", cut);
    CHECK_HAS(weir_last_error(), "train-00000.bin");
  }
  for (size_t i = 0; i < n; i += i < 200 || i >= 4080 ? 1 : 61) { /* a byte turned over */
    bytes[i] ^= 0x40;
    weir_status status = wr_shard_parse((uint8_t *)bytes, n, path, &s);
    if (status == WEIR_OK) status = wr_shard_check(&s, path, NULL);
    const bool padding =
        i == WR_SHARD_HEADER_BYTES + 391 * 2 || i == WR_SHARD_HEADER_BYTES + 391 * 2 + 1; /* up to the next multiple of 8 */
    CHECK_MSG(padding ? status == WEIR_OK : status == WEIR_EFORMAT || status == WEIR_EUNSUPPORTED, "byte %zu: %d", i, status);
    bytes[i] ^= 0x40;
  }
  write_file(path, bytes, n);
  CHECK(wr_shard_open(path, &s) == WEIR_OK && wr_shard_check(&s, path, NULL) == WEIR_OK);
  wr_shard_close(&s);
  wr_free(bytes);
  /* another whole shard in its place */
  make_shards(at("other"), 300, three_shards + 1, 1);
  CHECK(rename(at("other/train-00000.bin"), path) == 0);
  const wr_data_source source = {folder, 0};
  wr_data *d;
  CHECK(wr_data_open(&(wr_data_options){.sources = &source, .n_sources = 1, .context_tok = 8}, &d) == WEIR_EFORMAT);
  CHECK_HAS(weir_last_error(), "manifest.json names");
  remove_tree(folder);
  remove_tree(at("other"));
}

static void width_follows_the_vocabulary(void) {
  static const uint64_t sizes[] = {65535, 65536, 65537};
  for (int k = 0; k < 3; k++) {
    const uint64_t vocab = sizes[k];
    const char *path = at("width.bin");
    wr_shard_writer *w;
    wr_shard s;
    int32_t ids[70000];
    for (int i = 0; i < 70000; i++) ids[i] = (int32_t)(vocab - 1 - (uint64_t)(i % 3));
    REQUIRE(wr_shard_writer_open(path, vocab, 1, 2, &w) == WEIR_OK);
    CHECK(wr_shard_writer_put(w, ids, 70000) == WEIR_OK);
    CHECK(wr_shard_writer_put(w, &(int32_t){(int32_t)vocab}, 1) == WEIR_EFORMAT);
    CHECK(wr_shard_writer_put(w, &(int32_t){-1}, 1) == WEIR_EFORMAT);
    wr_shard_writer_end_doc(w);
    CHECK(wr_shard_writer_finish(w, false, 0) == WEIR_OK);
    wr_shard_writer_close(w);
    REQUIRE(wr_shard_open(path, &s) == WEIR_OK);
    CHECK_EQ_INT(s.head->token_bytes, k == 2 ? 4 : 2);
    CHECK_EQ_INT(s.head->n_docs, 1);
    CHECK_EQ_INT(s.doc_ends[0], 70000);
    for (int i = 0; i < 70000; i++)
      if (wr_shard_token(&s, (uint64_t)i) != (uint32_t)ids[i]) CHECK_EQ_INT(wr_shard_token(&s, (uint64_t)i), ids[i]);
    CHECK(wr_shard_check(&s, path, NULL) == WEIR_OK);
    wr_shard_close(&s);
    unlink(path);
  }
}

/* A shard of 5 GB that is a hole: its header is made as the writer makes it, its tokens are zeros, the last one is not. */
static void counts_have_64_bits(void) {
  const char *folder = at("sparse"), *path = at("sparse/train-00000.bin");
  const uint64_t n = 2500000001;
  static const int one[] = {3, 0};
  make_shards(folder, 300, (const int *const[]){one}, 1);
  wr_shard_header h;
  FILE *f = fopen(path, "r+b");
  REQUIRE(f && fread(&h, sizeof h, 1, f) == 1);
  h.n_tokens = n;
  h.n_docs = 2;
  h.doc_ends_at = (WR_SHARD_HEADER_BYTES + n * 2 + 7) / 8 * 8;
  h.file_bytes = h.doc_ends_at + 16;
  h.header_hash = wr_hash64(&h, offsetof(wr_shard_header, header_hash), 0);
  const uint64_t ends[2] = {n - 5, n};
  const uint16_t last = 77;
  rewind(f);
  bool written = fwrite(&h, sizeof h, 1, f) == 1 && fseeko(f, (off_t)(WR_SHARD_HEADER_BYTES + (n - 1) * 2), SEEK_SET) == 0 &&
                 fwrite(&last, 2, 1, f) == 1 && fseeko(f, (off_t)h.doc_ends_at, SEEK_SET) == 0 && fwrite(ends, 16, 1, f) == 1;
  written &= fclose(f) == 0;
  if (!written) {
    remove_tree(folder);
    SKIP("no room for a sparse file of 5 GB");
  }
  wr_shards_manifest m = {.vocab = 300, .token_bytes = 2, .tokenizer_hash = 7, .tokenizer = "test"};
  REQUIRE(wr_shards_manifest_add(&m.split[0], "train-00000.bin", &h));
  CHECK(wr_shards_manifest_write(folder, &m) == WEIR_OK);
  wr_shards_manifest_free(&m);
  wr_data *d = open_data(folder, 1000, 0, 1);
  REQUIRE(d);
  wr_data_info info;
  wr_data_get_info(d, &info);
  CHECK(info.tokens == n && info.samples == 2500000 && info.docs == 2 && info.mapped_bytes > 5000000000u);
  wr_sample s;
  int64_t got;
  bool found = false;
  for (int i = 0; i < 40; i++) {
    CHECK(wr_data_next(d, 1, &s, &got) == WEIR_OK);
    CHECK(s.first_tok < n && s.first_tok + (uint64_t)s.n_tok <= n);
    found |= s.first_tok > UINT32_MAX / 2;
  }
  CHECK(found);
  wr_data_close(d);
  wr_shard shard;
  REQUIRE(wr_shard_open(path, &shard) == WEIR_OK);
  int64_t n_docs;
  const uint64_t *end = wr_doc_ends_find(shard.doc_ends, 2, n - 3, n, &n_docs);
  CHECK(n_docs == 1 && *end == n);
  end = wr_doc_ends_find(shard.doc_ends, 2, n - 10, n, &n_docs);
  CHECK(n_docs == 2 && *end == n - 5);
  CHECK_EQ_INT(wr_shard_token(&shard, n - 1), 77);
  CHECK_EQ_INT(wr_shard_token(&shard, n - 2), 0);
  wr_shard_close(&shard);
  remove_tree(folder);
}

/* ------------------------------------------------------------------------------------------------------------------- text */

typedef struct gathered {
  wr_str text;
  int pieces, docs, validation;
  uint64_t last_doc;
} gathered;
static weir_status gather(void *user, const wr_text_piece *p) {
  gathered *g = user;
  wr_str_put(&g->text, p->text, p->n);
  g->pieces++;
  if (p->first) g->docs++;
  if (p->first) wr_str_puts(&g->text, "|");
  g->validation += p->validation;
  g->last_doc = p->doc;
  return WEIR_OK;
}

static weir_status read_text(const wr_text_input_options *o, gathered *g, wr_text_counts *counts) {
  wr_text_input *in;
  wr_text_block b = {0};
  *g = (gathered){0};
  WR_TRY(wr_text_input_open(o, &in));
  weir_status s;
  while ((s = wr_text_input_read(in, &b)) == WEIR_OK && b.n) {
    s = wr_text_block_each(in, &b, gather, g);
    if (s == WEIR_OK) s = wr_text_input_settle(in, &b);
    if (s != WEIR_OK) break;
  }
  if (s == WEIR_OK) s = wr_text_input_end(in);
  if (counts) wr_text_input_counts(in, counts);
  wr_text_block_free(&b);
  wr_text_input_close(in);
  return s;
}

static wr_str some_text(size_t n) {
  wr_str t = {0};
  wr_rng r;
  wr_rng_seed(&r, 3);
  while (t.len < n) {
    const uint64_t x = wr_rng_u64(&r);
    wr_str_printf(&t, "%.*s%s", (int)(x % 7 + 1), "waterfall",
                  x % 97 < 3   ? ".\n"
                  : x % 97 < 5 ? "\xc3\xa9t\xc3\xa9 "
                  : x % 97 < 7 ? "  42"
                               : " ");
  }
  return t;
}

static void streams_of_members(void) {
  wr_str text = some_text(300000);
  const size_t half = text.len / 2;
  gzFile z = gzopen(at("t.gz"), "wb");
  REQUIRE(z && gzwrite(z, text.ptr, (unsigned)half) > 0 && gzclose(z) == Z_OK);
  z = gzopen(at("t.gz"), "ab"); /* a second member */
  REQUIRE(z && gzwrite(z, text.ptr + half, (unsigned)(text.len - half)) > 0 && gzclose(z) == Z_OK);
  char *packed = malloc(2 * ZSTD_compressBound(text.len));
  REQUIRE(packed);
  size_t n = ZSTD_compress(packed, ZSTD_compressBound(text.len), text.ptr, half, 1);
  n += ZSTD_compress(packed + n, ZSTD_compressBound(text.len), text.ptr + half, text.len - half, 1);
  write_file(at("t.zst"), packed, n);
  write_file(at("cut.zst"), packed, n - 10);
  char *gz;
  size_t gz_n;
  REQUIRE(wr_file_read(at("t.gz"), 1 << 20, &gz, &gz_n) == WEIR_OK);
  write_file(at("cut.gz"), gz, gz_n - 10);
  gz[gz_n / 3] ^= 1;
  write_file(at("bad.gz"), gz, gz_n);
  static const struct {
    const char *name;
    weir_status want;
    const char *says;
  } rows[] = {{"t.gz", WEIR_OK, ""},
              {"t.zst", WEIR_OK, ""},
              {"cut.gz", WEIR_EFORMAT, "ends in the middle"},
              {"cut.zst", WEIR_EFORMAT, "ends in the middle"},
              {"bad.gz", WEIR_EFORMAT, "damaged"}};
  for (size_t i = 0; i < WR_ARRAY_LEN(rows); i++) {
    const char *path = at(rows[i].name);
    gathered g;
    const weir_status s = read_text(&(wr_text_input_options){.paths = &path, .n_paths = 1, .block_bytes = 10000}, &g, NULL);
    CHECK_MSG(s == rows[i].want, "%s: %d", rows[i].name, s);
    if (s != WEIR_OK) CHECK_HAS(weir_last_error(), rows[i].says);
    if (s == WEIR_OK)
      CHECK(g.text.len == text.len + 1 && memcmp(g.text.ptr + g.text.len - half, text.ptr + text.len - half, half) == 0 &&
            g.docs == 1 && g.pieces > 20);
    wr_str_free(&g.text);
    unlink(path);
  }
  free(packed);
  wr_free(gz);
  wr_str_free(&text);
}

/* mixed_bad.jsonl against corpora/manifest.json, as far as it decides; the rest is data.h's word. */
static void bad_records_by_line(void) {
  static const int bad[] = {2, 3, 4, 5, 6, 7, 11, 12, 14, 15, 17};
  const char *path = CORPORA "mixed_bad.jsonl";
  if (access(path, R_OK) != 0) SKIP("no ../shared/cases");
  gathered g;
  wr_text_counts c;
  wr_text_input_options o = {.paths = &path, .n_paths = 1, .max_bad = 1};
  CHECK(read_text(&o, &g, &c) == WEIR_OK);
  CHECK_EQ_INT(c.bad, WR_ARRAY_LEN(bad));
  CHECK_EQ_INT(c.records, 19);
  CHECK_EQ_INT(c.empty, 1);
  CHECK_EQ_INT(c.docs, 7);
  CHECK(g.text.ptr && memcmp(g.text.ptr, "first good|   |nul \0 inside|xxxx", 31) == 0);
  wr_str_free(&g.text);
  wr_text_input *in;
  wr_text_block b = {0};
  const wr_text_bad *shown;
  REQUIRE(wr_text_input_open(&o, &in) == WEIR_OK);
  while (wr_text_input_read(in, &b) == WEIR_OK && b.n) {
    CHECK(wr_text_block_each(in, &b, gather, &g) == WEIR_OK);
    CHECK(wr_text_input_settle(in, &b) == WEIR_OK);
  }
  CHECK_EQ_INT(wr_text_input_bad(in, &shown), WR_ARRAY_LEN(bad));
  for (size_t i = 0; i < WR_ARRAY_LEN(bad); i++) {
    char want[64];
    snprintf(want, sizeof want, "mixed_bad.jsonl:%d:", bad[i]);
    CHECK_HAS(shown[i].where, want);
  }
  wr_text_block_free(&b);
  wr_text_input_close(in);
  wr_str_free(&g.text);
  o.max_bad = 0.5;
  CHECK(read_text(&o, &g, &c) == WEIR_EFORMAT);
  CHECK_HAS(weir_last_error(), "11 of 19");
  wr_str_free(&g.text);
  o.strict = true;
  CHECK(read_text(&o, &g, &c) == WEIR_EFORMAT);
  CHECK_HAS(weir_last_error(), "mixed_bad.jsonl:2:13: ");
  wr_str_free(&g.text);
}

/* One line of JSON against what it should give; NULL: bad. */
static void json_lines(void) {
  static const struct {
    const char *line, *text, *rule;
  } rows[] = {
      {"{\"text\": \"a\\n\\\"\\u00e9\\ud83d\\ude00\\/\"}", "a\n\"\xc3\xa9\xf0\x9f\x98\x80/", NULL},
      {"{\"a\": [1, {\"text\": \"no\"}, -0.5e+3, true, null], \"text\" : \"yes\" , \"z\": {}}", "yes", NULL},
      {"{\"te\\u0078t\": \"named with an escape\"}", "named with an escape", NULL},
      {"{}", NULL, "missing"},
      {"{\"text\": \"a\",}", NULL, "key"},
      {"{\"text\": \"a\" \"b\"}", NULL, "','"},
      {"{\"text\": \"a\", \"n\": 01}", NULL, "','"},
      {"{\"text\": \"a\", \"n\": 1.}", NULL, "number"},
      {"{\"text\": \"a\", \"n\": NaN}", NULL, "not JSON"},
      {"{\"text\": \"a\", \"n\": [}", NULL, "not JSON"},
      {"{\"text\": \"tab\t\"}", NULL, "control"},
      {"{\"text\": \"\\x\"}", NULL, "escaped"},
      {"{\"text\": \"\\u12\"}", NULL, "hexadecimal"},
      {"{\"text\": \"\\udc00\"}", NULL, "surrogate"},
      {"{\"text\": \"\\ud800\\u0041\"}", NULL, "surrogate"},
      {"{\"text\": {\"text\": \"a\"}}", NULL, "string"},
      {"{\"text\": [], \"text\": \"a\"}", NULL, "twice"},
      {"{\"text\"", NULL, "ends"},
      {"{\"text\":", NULL, "ends"},
      {"{", NULL, "ends"},
      {"\"text\"", NULL, "object"},
  };
  char *scratch = NULL;
  size_t cap = 0;
  for (size_t i = 0; i < WR_ARRAY_LEN(rows); i++) {
    const char *text = NULL, *rule = NULL;
    size_t n = 0, column = 0;
    const wr_record r = wr_jsonl_field(rows[i].line, strlen(rows[i].line), "text", &scratch, &cap, &text, &n, &column, &rule);
    CHECK_MSG((r == WR_RECORD_OK) == (rows[i].text != NULL), "%s: %s", rows[i].line, rule ? rule : "good");
    if (r == WR_RECORD_OK && rows[i].text)
      CHECK_MSG(n == strlen(rows[i].text) && memcmp(text, rows[i].text, n) == 0, "%s: %.*s", rows[i].line, (int)n, text);
    if (r == WR_RECORD_BAD && rows[i].rule) CHECK_HAS(rule, rows[i].rule);
    if (r == WR_RECORD_BAD) CHECK(column >= 1 && column <= strlen(rows[i].line) + 1);
  }
  wr_free(scratch);
}

/* Text cut at every place that cut.c allows gives the ids of the whole, with each vocabulary that is there. */
static void cuts_change_no_id(void) {
  static const char *const names[] = {"bytes",
                                      "../shared/data/vocab/ggml-vocab-gpt-2.gguf",
                                      "../shared/data/vocab/ggml-vocab-llama-bpe.gguf",
                                      "../shared/data/vocab/ggml-vocab-qwen2.gguf",
                                      "../shared/data/vocab/ggml-vocab-llama-spm.gguf",
                                      "../shared/data/vocab/ggml-vocab-phi-3.gguf"};
  static const char *const bits[] = {"don't",
                                     " ",
                                     "  ",
                                     "\n",
                                     "\n\n",
                                     "\r\n",
                                     " we'll ",
                                     "Hello",
                                     "x1",
                                     "12345",
                                     "...",
                                     " \xe4\xb8\xad\xe6\x96\x87",
                                     "\xc3\xa9",
                                     "\xe2\x80\x83",
                                     "a b",
                                     "\ta",
                                     "<|endoftext|>",
                                     "</s>",
                                     "\xff",
                                     "'s",
                                     "\n a",
                                     "_x ",
                                     "\xe3\x80\x80"};
  int tried = 0;
  for (size_t k = 0; k < WR_ARRAY_LEN(names); k++) {
    wr_tokenizer *t;
    if (wr_tokenizer_open_path(names[k], &t) != WEIR_OK) continue;
    const wr_cutter c = wr_cutter_make(t);
    wr_rng r;
    wr_rng_seed(&r, k);
    size_t cuts = 0;
    for (int round = 0; round < 300; round++) {
      wr_str text = {0};
      for (int i = 0; i < 40; i++) wr_str_puts(&text, bits[wr_rng_u64(&r) % WR_ARRAY_LEN(bits)]);
      wr_ids whole = {0}, parts = {0};
      CHECK(wr_encode(t, text.ptr, text.len, 0, &whole) == WEIR_OK);
      for (size_t from = 0, to; from < text.len; from = to) {
        to = text.len; /* the first place after `from` */
        for (size_t i = from + 1; i < text.len; i++) {
          const size_t cut = wr_cut_last(&c, text.ptr, i, i + 2 < text.len ? i + 2 : text.len);
          if (cut > from && cut < to) {
            to = cut;
            break;
          }
        }
        cuts += to < text.len;
        CHECK(wr_encode(t, text.ptr + from, to - from, from ? WR_TEXT_CONTINUES : 0, &parts) == WEIR_OK);
      }
      const bool same = whole.len == parts.len && memcmp(whole.ptr, parts.ptr, whole.len * 4) == 0;
      if (!CHECK_MSG(same, "%s: '%s'", names[k], wr_escape(text.ptr, text.len))) round = 300;
      wr_ids_free(&whole);
      wr_ids_free(&parts);
      wr_str_free(&text);
    }
    CHECK_MSG(cuts > 100 || strstr(names[k], "spm") || strstr(names[k], "phi"), "%s: %zu cuts", names[k], cuts);
    tried++;
    wr_tokenizer_close(t);
  }
  CHECK(tried >= 1);
}

/* ------------------------------------------------------------------------------------------------------------------ build */

static void build(const char *folder, const char *input, const weir_data_build_options *o, weir_data_build_report *r) {
  const weir_status s = wr_data_build(bytes_tokenizer(), &input, 1, folder, o, r);
  CHECK_MSG(s == WEIR_OK, "%s", weir_last_error());
}

/* What the shards hold, documents in order with a '|' for each end: for the tokenizer of bytes. */
static void unpack(const char *folder, int split, wr_str *out) {
  wr_shards_manifest m = {0};
  if (!CHECK_MSG(wr_shards_manifest_read(folder, &m) == WEIR_OK, "%s", weir_last_error())) return;
  for (size_t i = 0; i < m.split[split].n; i++) {
    wr_shard s;
    if (!CHECK(wr_shards_manifest_open_shard(folder, &m, split, i, &s) == WEIR_OK)) break;
    CHECK(wr_shard_check(&s, folder, NULL) == WEIR_OK);
    for (uint64_t k = 0, d = 0; k < s.head->n_tokens; k++) {
      const uint32_t id = wr_shard_token(&s, k);
      if (id < 256) wr_str_put(out, &(char){(char)id}, 1);
      const bool end = k + 1 == s.doc_ends[d];
      if (end) d++;
      CHECK_EQ_INT(id == 256, end && !(d == s.head->n_docs && s.head->continues)); /* exactly one EOS, and at the end */
      if (id == 256) wr_str_puts(out, "|");
    }
    wr_shard_close(&s);
  }
  wr_shards_manifest_free(&m);
}

static void build_holds_the_text(void) {
  wr_str text = some_text(2000000), got = {0};
  write_file(at("book.txt"), text.ptr, text.len);
  weir_data_build_report r;
  weir_data_build_options o = {.shard_tok = 300000, .threads = 1};
  build(at("one"), at("book.txt"), &o, &r);
  CHECK_EQ_INT(r.tokens + r.val_tokens, text.len + 2);
  CHECK(r.val_tokens > text.len / 100 - 300 && r.val_tokens < text.len / 100 + 300);
  CHECK_EQ_INT(r.docs, 1);
  CHECK(r.shards > 3);
  CHECK(weir_data_check(at("one"), NULL, NULL, NULL) == WEIR_OK);
  unpack(at("one"), WR_SPLIT_TRAIN, &got);
  unpack(at("one"), WR_SPLIT_VAL, &got);
  wr_str want = {0};
  wr_str_put(&want, text.ptr, (size_t)r.tokens - 1);
  wr_str_puts(&want, "|");
  wr_str_put(&want, text.ptr + r.tokens - 1, text.len - (size_t)r.tokens + 1);
  wr_str_puts(&want, "|");
  CHECK(got.len == want.len && memcmp(got.ptr, want.ptr, want.len) == 0);
  for (int threads = 2; threads <= 5; threads += 3) { /* any number of threads: the same files */
    o.threads = threads;
    build(at("more"), at("book.txt"), &o, NULL);
    CHECK(same_folder(at("one"), at("more")));
    remove_tree(at("more"));
  }
  build(at("one"), at("book.txt"), &o, &r); /* nothing to do */
  CHECK_EQ_INT(r.resumed_tokens, r.tokens + r.val_tokens);
  o.val_share = 0.5;
  const char *book = at("book.txt");
  CHECK(wr_data_build(bytes_tokenizer(), &book, 1, at("one"), &o, NULL) == WEIR_EUSAGE);
  remove_tree(at("one"));
  wr_str_free(&text);
  wr_str_free(&got);
  wr_str_free(&want);
}

static void jsonl_documents_and_validation(void) {
  wr_str lines = {0};
  for (int i = 0; i < 5000; i++) wr_str_printf(&lines, "{\"id\": %d, \"body\": \"doc %d\"}\n", i, i);
  write_file(at("docs.jsonl"), lines.ptr, lines.len);
  weir_data_build_report r;
  build(at("docs"), at("docs.jsonl"), &(weir_data_build_options){.field = "body", .val_share = 0.05, .threads = 3}, &r);
  CHECK_EQ_INT(r.docs + r.val_docs, 5000);
  CHECK(r.val_docs > 245 && r.val_docs < 255);
  wr_str got[2] = {{0}, {0}};
  for (int k = 0; k < 2; k++) unpack(at("docs"), k, &got[k]);
  int seen[2] = {0}, before = -1, wrong = 0;
  for (int k = 0; k < 2; k++, before = -1)
    for (const char *p = got[k].ptr; p && *p; p = strchr(p, '|') + 1, seen[k]++) {
      const int i = atoi(p + 4);
      wrong += i <= before;
      before = i;
    }
  CHECK_EQ_INT(wrong, 0); /* in the order of the input */
  CHECK_EQ_INT(seen[0], r.docs);
  CHECK_EQ_INT(seen[1], r.val_docs);
  remove_tree(at("docs"));
  build(at("none"), at("docs.jsonl"), &(weir_data_build_options){.field = "body", .val_share = -1}, &r);
  CHECK(r.val_docs == 0 && !r.note[0]);
  build(at("tiny"), at("docs.jsonl"), &(weir_data_build_options){.field = "body", .val_share = 1e-9}, &r);
  CHECK_HAS(r.note, "validation split is empty");
  const wr_data_source source = {at("tiny"), 0};
  wr_data *d;
  CHECK(wr_data_open(&(wr_data_options){.sources = &source, .n_sources = 1, .context_tok = 8, .validation = true}, &d) ==
        WEIR_EUSAGE);
  CHECK_HAS(weir_last_error(), "validation split is empty");
  CHECK(wr_data_open(&(wr_data_options){.sources = &source, .n_sources = 1, .context_tok = 100000}, &d) == WEIR_EUSAGE);
  CHECK_HAS(weir_last_error(), "need at least context + 1 = 100001");
  remove_tree(at("none"));
  remove_tree(at("tiny"));
  for (int k = 0; k < 2; k++) wr_str_free(&got[k]);
  wr_str_free(&lines);
}

/* Killed at any moment and started again, a build ends with the same bytes. */
static void killed_builds_go_on(void) {
  wr_str text = some_text(3000000);
  write_file(at("kill.txt"), text.ptr, text.len);
  const weir_data_build_options o = {.shard_tok = 200000, .threads = 2};
  weir_data_build_report r = {0};
  build(at("whole"), at("kill.txt"), &o, &r);
  const double seconds = r.seconds;
  int killed = 0;
  uint64_t resumed = 0;
  for (int round = 0; round < 10; round++) {
    remove_tree(at("killed"));
    const pid_t child = fork();
    if (child == 0) {
      const char *input = at("kill.txt");
      wr_tokenizer *t;
      _exit(wr_tokenizer_open_path("bytes", &t) != WEIR_OK || wr_data_build(t, &input, 1, at("killed"), &o, NULL) != WEIR_OK);
    }
    usleep((useconds_t)(seconds * 1e6 * 0.09 * round) + 2000);
    kill(child, SIGKILL);
    int status;
    waitpid(child, &status, 0);
    killed += WIFSIGNALED(status);
    build(at("killed"), at("kill.txt"), &o, &r);
    resumed += r.resumed_tokens;
    CHECK(same_folder(at("whole"), at("killed")));
  }
  CHECK_MSG(killed >= 2 && resumed > 0, "%d killed, %llu tokens resumed", killed, (unsigned long long)resumed);
  remove_tree(at("whole"));
  remove_tree(at("killed"));
  wr_str_free(&text);
}

static int stop_at_once(void *user, const weir_data_progress *p) {
  (void)user, (void)p;
  return 1;
}

static void builds_can_be_stopped_and_fail_whole(void) {
  wr_str text = some_text(8000000);
  write_file(at("stop.txt"), text.ptr, text.len);
  const char *input = at("stop.txt");
  const weir_status s =
      wr_data_build(bytes_tokenizer(), &input, 1, at("stopped"), &(weir_data_build_options){.progress = stop_at_once}, NULL);
  CHECK(s == WEIR_ESTOPPED || s == WEIR_OK); /* a fast machine is done before it is asked */
  if (s == WEIR_ESTOPPED) CHECK(access(at("stopped/manifest.json"), F_OK) != 0);
  const wr_data_source source = {at("stopped"), 0};
  wr_data *d;
  if (s == WEIR_ESTOPPED) {
    CHECK(wr_data_open(&(wr_data_options){.sources = &source, .n_sources = 1, .context_tok = 8}, &d) == WEIR_EFORMAT);
    CHECK_HAS(weir_last_error(), "not finished");
  }
  static const char *const empties[] = {"empty.jsonl", "newlines.jsonl"};
  for (int i = 0; i < 2; i++) {
    char path[128];
    snprintf(path, sizeof path, CORPORA "%s", empties[i]);
    input = path;
    if (access(path, R_OK) != 0) continue;
    CHECK(wr_data_build(bytes_tokenizer(), &input, 1, at("empty"), NULL, NULL) == WEIR_EFORMAT);
    CHECK_HAS(weir_last_error(), "no text");
  }
  remove_tree(at("stopped"));
  remove_tree(at("empty"));
  wr_str_free(&text);
}

/* --------------------------------------------------------------------------------------------------- text read directly */

static wr_data *open_text(const char *path, int64_t T, int64_t window, int workers, int rank, int ranks, bool validation) {
  const wr_data_source source = {path, 0};
  const wr_data_options o = {.sources = &source,
                             .n_sources = 1,
                             .context_tok = T,
                             .seed = 11,
                             .tokenizer = bytes_tokenizer(),
                             .workers = workers,
                             .shuffle_window = window,
                             .rank = rank,
                             .ranks = ranks,
                             .validation = validation};
  wr_data *d = NULL;
  CHECK_MSG(wr_data_open(&o, &d) == WEIR_OK, "%s", weir_last_error());
  return d;
}

/* Text of `n` bytes where each 4-byte word names its place: sample contents tell which window they are. */
static uint64_t hash_sample(const wr_sample *s) {
  return wr_hash64(s->tokens, (size_t)s->n_tok * (size_t)s->token_bytes, (uint64_t)s->n_tok);
}

static size_t find_window(const wr_str *text, const wr_sample *s) {
  for (size_t at_byte = text->len - text->len / 50; at_byte < text->len; at_byte++) {
    int64_t i = 0;
    while (i < s->n_tok && at_byte + (size_t)i < text->len && token_of(s, i) == (uint8_t)text->ptr[at_byte + (size_t)i]) i++;
    if (i == s->n_tok) return at_byte;
  }
  return text->len;
}

static void ring_gives_the_shards_windows(void) {
  enum { T = 32 };
  wr_str text = some_text(900000);
  write_file(at("ring.txt"), text.ptr, text.len);
  static const int64_t windows[] = {64, 1 << 20}; /* many groups; all in one */
  for (int k = 0; k < 2; k++) {
    for (int validation = 0; validation < 2; validation++) {
      wr_data *d = open_text(at("ring.txt"), T, windows[k], 3, 0, 1, validation);
      REQUIRE(d);
      uint8_t *seen = calloc(text.len, 1);
      uint64_t n = 0, targets = 0;
      wr_sample s;
      int64_t got = 0;
      const size_t tail = (size_t)((double)text.len * 0.01);
      size_t begin = 0;
      for (; seen; n++) { /* one epoch: a window's place is its id */
        CHECK(wr_data_next(d, 1, &s, &got) == WEIR_OK);
        if (!got || s.epoch) break;
        if (validation && !n) begin = find_window(&text, &s);
        for (int64_t i = 0; i < s.n_tok; i++) {
          const uint64_t place = begin + s.id * T + (uint64_t)i;
          if (token_of(&s, i) == 256) continue;
          if (place >= text.len || token_of(&s, i) != (uint8_t)text.ptr[place]) {
            CHECK_MSG(false, "sample %llu, token %lld", (unsigned long long)s.id, (long long)i);
            break;
          }
          if (i) seen[place]++;
        }
        targets += (uint64_t)s.n_tok - 1;
      }
      uint64_t once = 0;
      for (size_t i = 0; seen && i < text.len; i++) once += seen[i] == 1;
      CHECK_EQ_INT(once + 1, targets); /* each target once, and the end token */
      if (validation)
        CHECK(targets > tail - 10 && targets < tail + 300);
      else
        CHECK(targets > text.len - tail - 300);
      free(seen);
      wr_data_close(d);
    }
  }
  wr_str_free(&text);
}

/* Any position, other workers, other ranks: the samples of the undisturbed run. */
static void ring_goes_on_where_it_stopped(void) {
  enum { T = 32, N = 3000, S = 256 };
  static uint64_t want[N];
  wr_sample s;
  int64_t got;
  static const int64_t sizes[] = {60000, 40000}; /* some 8 groups an epoch; all in one */
  for (int k = 0; k < 2; k++) {
    wr_str text = some_text((size_t)sizes[k]);
    write_file(at("resume.txt"), text.ptr, text.len);
    const int64_t window = k ? 4096 : S;
    wr_data *d = open_text(at("resume.txt"), T, window, 1, 0, 1, false);
    REQUIRE(d);
    uint64_t samples = 0;
    for (int i = 0; i < N; i++) {
      CHECK(wr_data_next(d, 1, &s, &got) == WEIR_OK && got == 1);
      want[i] = hash_sample(&s) ^ s.id << 1 ^ s.epoch << 40;
      if (s.epoch == 0) samples++;
    }
    CHECK_MSG(samples < N, "%llu samples an epoch", (unsigned long long)samples);
    wr_data_close(d);
    static const int stops[] = {0, 1, 7, 255, 256, 257, 600, 1200, 1300, 2400, 2900};
    for (size_t i = 0; i < WR_ARRAY_LEN(stops); i++) {
      const int first = 1 + (int)i % 3, then = 1 + (int)(i / 2) % 3, stop = stops[i] / first * first;
      wr_data_position where = {0};
      for (int r = 0; r < first; r++) {
        d = open_text(at("resume.txt"), T, window, 2, r, first, false);
        REQUIRE(d);
        for (int p = r; p < stop; p += first) {
          CHECK(wr_data_next(d, 1, &s, &got) == WEIR_OK && got == 1);
          CHECK_EQ_INT(hash_sample(&s) ^ s.id << 1 ^ s.epoch << 40, want[p]);
        }
        wr_data_tell(d, &where);
        CHECK_EQ_INT(where.taken, stop);
        wr_data_close(d);
      }
      for (int r = 0; r < then; r++) {
        d = open_text(at("resume.txt"), T, window, 3, r, then, false);
        REQUIRE(d);
        CHECK_MSG(wr_data_seek(d, &where) == WEIR_OK, "%s", weir_last_error());
        for (int p = stop + r; p < N && p < stop + 400; p += then) {
          CHECK(wr_data_next(d, 1, &s, &got) == WEIR_OK && got == 1);
          CHECK_EQ_INT(hash_sample(&s) ^ s.id << 1 ^ s.epoch << 40, want[p]);
        }
        wr_data_close(d);
      }
    }
    wr_str_free(&text);
  }
}

static int shm_files(void) {
  int n = 0;
  DIR *dir = opendir("/dev/shm");
  while (dir && readdir(dir)) n++;
  if (dir) closedir(dir);
  return n;
}

/* kill -9 leaves nothing; a limit on file sizes is no signal; memory that is not there is a sentence. */
static void ring_leaves_nothing(void) {
  wr_str text = some_text(200000);
  write_file(at("left.txt"), text.ptr, text.len);
  const int before = shm_files();
  const pid_t child = fork();
  if (child == 0) {
    wr_data *d = open_text(at("left.txt"), 32, 64, 4, 0, 1, false);
    wr_sample s[64];
    int64_t got;
    for (;;)
      if (!d || wr_data_next(d, 64, s, &got) != WEIR_OK) _exit(1);
  }
  usleep(200000);
  kill(child, SIGKILL);
  int status;
  waitpid(child, &status, 0);
  CHECK(WIFSIGNALED(status));
  CHECK_EQ_INT(shm_files(), before);
  const pid_t limited = fork();
  if (limited == 0) {
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){4096, 4096});
    wr_data *d = open_text(at("left.txt"), 32, 1024, 2, 0, 1, false);
    wr_sample s[64];
    int64_t got;
    _exit(!d || wr_data_next(d, 64, s, &got) != WEIR_OK || got != 64);
  }
  waitpid(limited, &status, 0);
  CHECK_EQ_INT(status, 0);
  const wr_data_source source = {at("left.txt"), 0};
  wr_data *d;
  wr_data_options o = {
      .sources = &source, .n_sources = 1, .context_tok = 1 << 20, .tokenizer = bytes_tokenizer(), .shuffle_window = 1 << 30};
  CHECK(wr_data_open(&o, &d) == WEIR_ENOMEM);
  CHECK_HAS(weir_last_error(), "smaller shuffle window");
  o.context_tok = 300000;
  o.shuffle_window = 1;
  CHECK(wr_data_open(&o, &d) == WEIR_EUSAGE);
  CHECK_HAS(weir_last_error(), "need at least context + 1 = 300001");
  wr_str_free(&text);
}

static _Atomic bool busy;
static void *spin(void *arg) {
  volatile uint64_t *x = arg;
  while (busy) ++*x;
  return NULL;
}

/* Workers start while other threads are busy, again and again: none hangs, as nothing is forked. */
static void workers_start_beside_busy_threads(void) {
  enum { THREADS = 16, RUNS = 20 };
  pthread_t threads[THREADS];
  static uint64_t counts[THREADS];
  wr_str text = some_text(20000);
  write_file(at("busy.txt"), text.ptr, text.len);
  busy = true;
  for (int i = 0; i < THREADS; i++) REQUIRE(pthread_create(&threads[i], NULL, spin, &counts[i]) == 0);
  uint64_t slowest = 0;
  for (int i = 0; i < RUNS; i++) {
    const uint64_t begin = wr_now_ns();
    wr_data *d = open_text(at("busy.txt"), 32, 64, 4, 0, 1, false);
    wr_sample s[32];
    int64_t got = 0;
    CHECK(d && wr_data_next(d, 32, s, &got) == WEIR_OK && got == 32);
    wr_data_close(d);
    slowest = WR_MAX(slowest, wr_now_ns() - begin);
  }
  busy = false;
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  CHECK_MSG(slowest < 10000000000u, "the slowest took %.1f s", (double)slowest * 1e-9);
  wr_str_free(&text);
}

/* ---------------------------------------------------------------------------------------------------------- what runs out */

static _Atomic long calls, fail_at, live;

static void *take(void *user, size_t bytes) {
  (void)user;
  if (++calls == fail_at) return NULL;
  void *p = malloc(bytes);
  if (p) live++;
  return p;
}

static void *retake(void *user, void *ptr, size_t bytes) {
  (void)user;
  if (++calls == fail_at) return NULL;
  void *p = realloc(ptr, bytes);
  if (p && !ptr) live++;
  return p;
}

static void release(void *user, void *ptr) {
  (void)user;
  if (ptr) live--;
  free(ptr);
}

static int refuse(void *user, const char *op, const char *path) {
  (void)user, (void)op;
  return strstr(path, root) && ++calls == fail_at ? ENOSPC : 0;
}

static weir_status build_and_read(const wr_tokenizer *t, const char *folder) {
  const char *input = at("runs.jsonl");
  WR_TRY(
      wr_data_build(t, &input, 1, folder, &(weir_data_build_options){.threads = 1, .shard_tok = 1000, .val_share = 0.2}, NULL));
  WR_TRY(weir_data_check(folder, NULL, NULL, NULL));
  const wr_data_source sources[] = {{folder, 0}, {input, 0}};
  for (int i = 0; i < 2; i++) {
    wr_data *d;
    wr_sample s[4];
    int64_t got;
    WR_TRY(wr_data_open(
        &(wr_data_options){.sources = &sources[i], .n_sources = 1, .context_tok = 16, .tokenizer = t, .shuffle_window = 16},
        &d));
    weir_status status = WEIR_OK;
    for (int k = 0; k < 40 && status == WEIR_OK; k++) status = wr_data_next(d, 4, s, &got);
    wr_data_close(d);
    WR_TRY(status);
  }
  return WEIR_OK;
}

static void write_runs(void) {
  FILE *f = fopen(at("runs.jsonl"), "wb");
  for (int i = 0; f && i < 60; i++) fprintf(f, "{\"text\": \"line\\n %d of some more\"}\n", i);
  if (f) fclose(f);
}

/* The n-th allocation fails: ENOMEM, and nothing is left over. Some n are skipped: the sum of the steps is what it is. */
static void allocations_may_fail(void) {
  write_runs();
  bool done = false;
  for (long n = 1; !done; n += 1 + n / 40) {
    wr_tokenizer *t;
    remove_tree(at("oom"));
    REQUIRE(wr_tokenizer_open_path("bytes", &t) == WEIR_OK);
    calls = live = 0;
    fail_at = n;
    weir_set_hooks(&(weir_hooks){.allocate = take, .reallocate = retake, .release = release});
    const weir_status s = build_and_read(t, at("oom"));
    done = s == WEIR_OK && calls < fail_at;
    CHECK_MSG(s == WEIR_ENOMEM || s == WEIR_OK, "allocation %ld: %d, %s", n, s, weir_last_error());
    CHECK_MSG(live == 0, "allocation %ld: %ld are left", n, (long)live);
    weir_set_hooks(NULL);
    wr_tokenizer_close(t);
    if (live) break;
  }
  remove_tree(at("oom"));
}

/* The n-th change of a file fails for want of room: said so, and the same build again ends with the same bytes. */
static void disks_may_be_full(void) {
  write_runs();
  wr_tokenizer *t = bytes_tokenizer();
  remove_tree(at("full"));
  REQUIRE(build_and_read(t, at("room")) == WEIR_OK);
  bool done = false;
  for (long n = 1; !done; n++) {
    remove_tree(at("full"));
    calls = 0;
    fail_at = n;
    weir_set_hooks(&(weir_hooks){.file = refuse});
    const weir_status s = build_and_read(t, at("full"));
    weir_set_hooks(NULL);
    done = calls < n;
    CHECK_MSG(s == WEIR_OK ? done || access(at("full/manifest.json"), F_OK) == 0 : s == WEIR_ENOMEM, "change %ld: %d, %s", n, s,
              weir_last_error());
    CHECK(build_and_read(t, at("full")) == WEIR_OK);
    CHECK_MSG(same_folder(at("room"), at("full")), "change %ld", n);
  }
  CHECK(calls > 20);
  remove_tree(at("full"));
  remove_tree(at("room"));
}

static void cleans_up(void) { remove_tree(root); }

TEST_MAIN("data", TEST(permutation_is_a_bijection), TEST(each_sample_once_for_any_number_of_ranks),
          TEST(windows_cover_every_target_once), TEST(weights_mix_in_their_shares), TEST(batch_rows_restart_at_documents),
          TEST(damaged_shards_are_refused), TEST(width_follows_the_vocabulary), TEST(counts_have_64_bits),
          TEST(streams_of_members), TEST(bad_records_by_line), TEST(json_lines), TEST(cuts_change_no_id),
          TEST(build_holds_the_text), TEST(jsonl_documents_and_validation), TEST(killed_builds_go_on),
          TEST(builds_can_be_stopped_and_fail_whole), TEST(ring_gives_the_shards_windows), TEST(ring_goes_on_where_it_stopped),
          TEST(ring_leaves_nothing), TEST(workers_start_beside_busy_threads), TEST(allocations_may_fail),
          TEST(disks_may_be_full), TEST(cleans_up))
