/* data: the order of samples, windows, batches, mixing, and shards: what is refused of them. */
#include <sys/stat.h>

#include "data_i.h"

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

TEST_MAIN("data", TEST(permutation_is_a_bijection), TEST(each_sample_once_for_any_number_of_ranks),
          TEST(windows_cover_every_target_once), TEST(weights_mix_in_their_shares), TEST(batch_rows_restart_at_documents),
          TEST(damaged_shards_are_refused), TEST(width_follows_the_vocabulary), TEST(counts_have_64_bits), TEST(cleans_up))
