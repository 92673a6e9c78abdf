/* input.c: owns text as it comes: which files there are, how they are cut into blocks, which documents are in a block.
 *
 * A block of a plain file is the longest part of its next block_bytes bytes that ends where text may be cut (cut.c), of JSONL the longest
 * that ends with a line; if there is no such place, of twice as many bytes, and so on. So the blocks follow from the bytes alone, and
 * a reader that starts at the beginning of one gets the same ones from there on. What was read too far is kept for the next block.
 *
 * Where each file's last part is validation (data.h), a cut lies at the last good place before it; the two parts are documents of their
 * own. That needs the length of the text: a compressed file is read through once to learn it, standard input is kept in a nameless
 * file.
 */
#include "data/data_i.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK_BYTES ((int64_t)256 << 10)
#define BLOCK_MOST ((size_t)1 << 30) /* what one call of wr_encode takes */
#define SNIFF_BYTES 4096u            /* a NUL in so many bytes of a file in a folder: it is binary */
#define MAX_DEPTH 64
#define BAD_FEW 1000u /* records before their share is judged */

typedef struct text_file {
  char *path;
  uint64_t bytes, mtime_ns; /* on disk */
  bool jsonl, regular;
} text_file;

struct wr_text_input {
  wr_text_input_options o;
  char *field;
  double max_bad;
  size_t block_bytes;
  wr_cutter cutter;
  text_file *files;
  size_t n_files, cap_files;
  bool tails; /* each file's last part is validation */
  uint64_t disk_total, disk_done;
  int spool_fd;

  wr_stream *stream; /* of files[at_file] */
  size_t at_file;
  bool fresh, in_tail;
  uint64_t file_base, file_pos, line; /* text before this file; of this file's next block */
  uint64_t tail_at;                   /* where its last part begins, about */
  char *carry;                        /* read, but not yet in a block */
  size_t n_carry, cap_carry;
  uint64_t number, doc;
  atomic_uint_fast64_t empty_files;
  uint64_t binary_files; /* counted by whoever reads */

  wr_text_counts counts; /* by whoever settles */
  wr_text_bad bad[WR_TEXT_BAD_SHOWN];
  size_t n_bad;
};

/* ------------------------------------------------------------------------------------------------------------- the files */

static bool is_jsonl(const char *path) {
  static const char *const ends[] = {".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz", ".jsonl.zst", ".ndjson.zst"};
  for (size_t i = 0; i < WR_ARRAY_LEN(ends); i++)
    if (wr_ends_with(path, ends[i])) return true;
  return false;
}

static weir_status add_file(wr_text_input *in, const char *path, const struct stat *st) {
  if (!wr_grow((void **)&in->files, &in->cap_files, in->n_files + 1, sizeof *in->files))
    return wr_fail_nomem(in->n_files * sizeof *in->files, "the list of files");
  text_file *f = &in->files[in->n_files];
  *f = (text_file){.path = wr_strdup(path), .jsonl = is_jsonl(path) || in->o.jsonl};
  if (!f->path) return wr_fail_nomem(strlen(path), "the list of files");
  in->n_files++;
  if (st && S_ISREG(st->st_mode)) {
    f->regular = true;
    f->bytes = (uint64_t)st->st_size;
    f->mtime_ns = (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec;
    in->disk_total += f->bytes;
  }
  return WEIR_OK;
}

/* Something that only happens to lie among the texts: it has a NUL near its beginning. */
static weir_status is_binary(const char *path, bool *out) {
  char head[SNIFF_BYTES];
  wr_stream *s;
  size_t n = 0, got = 1;
  WR_TRY(wr_stream_open(path, &s));
  weir_status status = WEIR_OK;
  for (; status == WEIR_OK && got && n < sizeof head; n += got) status = wr_stream_read(s, head + n, sizeof head - n, &got);
  wr_stream_close(s);
  *out = status == WEIR_OK && memchr(head, 0, n);
  return status;
}

static weir_status add_found(wr_text_input *in, const char *path, const struct stat *st) {
  bool binary = false;
  if (!is_jsonl(path) && !in->o.jsonl) WR_TRY(is_binary(path, &binary));
  in->binary_files += binary;
  return binary ? WEIR_OK : add_file(in, path, st);
}

static weir_status add_folder(wr_text_input *in, const char *path, int depth) {
  if (depth == MAX_DEPTH)
    return wr_fail(WEIR_EUSAGE, "%s: folders in folders, more than %d deep", wr_escape(path, strlen(path)), MAX_DEPTH);
  DIR *dir = opendir(path);
  if (!dir) return wr_fail_errno(WEIR_EIO, path, "open");
  weir_status s = WEIR_OK;
  for (struct dirent *e; s == WEIR_OK && (e = readdir(dir));) {
    struct stat st;
    if (e->d_name[0] == '.') continue;
    char *file = wr_path_join(path, e->d_name);
    if (!file)
      s = wr_fail_nomem(strlen(path), "a path");
    else if (lstat(file, &st) == 0 && S_ISDIR(st.st_mode))
      s = wr_data_is_shards(file) ? WEIR_OK : add_folder(in, file, depth + 1); /* shards are perhaps the ones being built */
    else if (stat(file, &st) == 0 && S_ISREG(st.st_mode)) /* a link to a file counts, one to a folder could go in circles */
      s = add_found(in, file, &st);
    wr_free(file);
  }
  closedir(dir);
  return s;
}

static int by_path(const void *a, const void *b) { return strcmp(((const text_file *)a)->path, ((const text_file *)b)->path); }

static weir_status add_path(wr_text_input *in, const char *path) {
  struct stat st;
  if (strcmp(path, "-") == 0) return add_file(in, path, NULL);
  if (stat(path, &st) != 0) return wr_fail_errno(WEIR_EIO, path, "open");
  if (!S_ISDIR(st.st_mode)) return add_file(in, path, &st);
  const size_t before = in->n_files;
  WR_TRY(add_folder(in, path, 0));
  if (in->n_files == before)
    return wr_fail(WEIR_EUSAGE, "%s: there is no text file in this folder (%llu binary ones)", wr_escape(path, strlen(path)),
                   (unsigned long long)in->binary_files);
  qsort(in->files + before, in->n_files - before, sizeof *in->files, by_path);
  return WEIR_OK;
}

static weir_status add_paths(wr_text_input *in) {
  int n_standard = 0;
  for (int i = 0; i < in->o.n_paths; i++) {
    n_standard += strcmp(in->o.paths[i], "-") == 0;
    if (n_standard > 1) return wr_fail(WEIR_EUSAGE, "standard input was named twice; it can be read once");
    WR_TRY(add_path(in, in->o.paths[i]));
  }
  return WEIR_OK;
}

weir_status wr_text_input_open(const wr_text_input_options *options, wr_text_input **out) {
  if (options->n_paths < 1) return wr_fail(WEIR_EUSAGE, "no text was named");
  if (!(options->val_share < 1))
    return wr_fail(WEIR_EUSAGE, "a validation share of %g; it must be below 1", options->val_share);
  if (!(options->max_bad >= 0 && options->max_bad <= 1))
    return wr_fail(WEIR_EUSAGE, "a share of bad records of %g; 0 to 1 are possible", options->max_bad);
  wr_text_input *in = wr_calloc(1, sizeof *in);
  if (!in) return wr_fail_nomem(sizeof *in, "reading text");
  in->o = *options;
  in->spool_fd = -1;
  in->max_bad = options->max_bad > 0 ? options->max_bad : 0.01;
  in->block_bytes = (size_t)(options->block_bytes > 0 ? options->block_bytes : BLOCK_BYTES);
  in->field = wr_strdup(options->field ? options->field : "text");
  in->cutter = wr_cutter_make(options->tokenizer);
  weir_status s = in->field ? add_paths(in) : wr_fail_nomem(8, "reading text");
  if (s != WEIR_OK) {
    wr_text_input_close(in);
    return s;
  }
  in->tails = options->val_share > 0 && (double)in->n_files * options->val_share < 2;
  for (size_t i = 0; i < in->n_files; i++) in->tails &= !in->files[i].jsonl;
  *out = in;
  return WEIR_OK;
}

void wr_text_input_close(wr_text_input *in) {
  if (!in) return;
  wr_stream_close(in->stream);
  if (in->spool_fd >= 0) close(in->spool_fd);
  for (size_t i = 0; i < in->n_files; i++) wr_free(in->files[i].path);
  wr_free(in->files);
  wr_free(in->carry);
  wr_free(in->field);
  wr_free(in);
}

uint64_t wr_text_input_id(const wr_text_input *in) {
  uint64_t h = wr_hash64(in->field, strlen(in->field), in->n_files);
  for (size_t i = 0; i < in->n_files; i++) {
    const text_file *f = &in->files[i];
    const uint64_t facts[3] = {f->bytes, f->mtime_ns, f->jsonl};
    h = wr_hash64(facts, sizeof facts, wr_hash64(f->path, strlen(f->path), h));
  }
  return h;
}

/* ---------------------------------------------------------------------------------------------------- lengths, for the tails */

static weir_status spool(wr_text_input *in, wr_stream *from, uint64_t *bytes) {
  const char *folder = getenv("TMPDIR");
  if (!folder || !*folder) folder = "/tmp";
  in->spool_fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (in->spool_fd < 0) return wr_fail_errno(WEIR_EIO, folder, "keep standard input in");
  char buf[65536];
  for (*bytes = 0;;) {
    size_t got;
    WR_TRY(wr_stream_read(from, buf, sizeof buf, &got));
    if (!got) break;
    for (size_t done = 0; done < got;) {
      const ssize_t w = write(in->spool_fd, buf + done, got - done);
      if (w < 0 && errno == EINTR) continue;
      if (w < 0) return wr_fail_errno(wr_write_status(errno), folder, "keep standard input in");
      done += (size_t)w;
    }
    *bytes += got;
  }
  return WEIR_OK;
}

static weir_status count_text(wr_stream *from, uint64_t *bytes) {
  char waste[16384];
  for (*bytes = 0;;) {
    size_t got;
    WR_TRY(wr_stream_read(from, waste, sizeof waste, &got));
    if (!got) return WEIR_OK;
    *bytes += got;
  }
}

/* The stream of a file whose text is *bytes long. */
static weir_status open_measured(wr_text_input *in, const text_file *f, wr_stream **out, uint64_t *bytes) {
  wr_stream *s;
  WR_TRY(wr_stream_open(f->path, &s));
  if (f->regular && !wr_stream_compressed(s)) {
    *bytes = f->bytes;
    *out = s;
    return WEIR_OK;
  }
  const weir_status status = f->regular ? count_text(s, bytes) : spool(in, s, bytes);
  wr_stream_close(s);
  WR_TRY(status);
  if (f->regular) return wr_stream_open(f->path, out);
  char path[32];
  snprintf(path, sizeof path, "/proc/self/fd/%d", in->spool_fd);
  return wr_stream_open(path, out); /* opened anew, so it begins at the beginning */
}

/* ------------------------------------------------------------------------------------------------------------------ blocks */

static weir_status open_file(wr_text_input *in) {
  const text_file *f = &in->files[in->at_file];
  uint64_t bytes = 0;
  if (in->tails)
    WR_TRY(open_measured(in, f, &in->stream, &bytes));
  else
    WR_TRY(wr_stream_open(f->path, &in->stream));
  in->fresh = true;
  in->in_tail = false;
  in->file_pos = 0;
  in->line = 1;
  in->tail_at = bytes - WR_MIN(bytes, (uint64_t)((double)bytes * in->o.val_share));
  return WEIR_OK;
}

static void close_file(wr_text_input *in) {
  wr_stream_close(in->stream);
  in->stream = NULL;
  in->file_base += in->file_pos;
  in->disk_done += in->files[in->at_file].bytes;
  in->at_file++;
  in->n_carry = 0;
}

static weir_status need_room(wr_text_block *b, size_t n) {
  return wr_grow((void **)&b->text, &b->cap, n, 1) ? WEIR_OK : wr_fail_nomem(n, "a block of text");
}

/* Until b holds n bytes or the file ends. */
static weir_status fill(wr_text_input *in, wr_text_block *b, size_t n) {
  WR_TRY(need_room(b, n));
  while (b->n < n) {
    size_t got;
    WR_TRY(wr_stream_read(in->stream, b->text + b->n, n - b->n, &got));
    if (!got) break;
    b->n += got;
  }
  return WEIR_OK;
}

static size_t utf8_start(const char *text, size_t at) { /* of the character that byte `at` is in; at most three bytes back */
  for (size_t back = 0; back < 4 && back < at; back++)
    if (((uint8_t)text[at - back] & 0xc0) != 0x80) return at - back;
  return at;
}

/* Where the block ends; 0: more must be read. *done: the document ends there too. */
static size_t end_of_block(const wr_text_input *in, const wr_text_block *b, size_t looked, bool whole, bool *done) {
  const bool tail = in->tails && !in->in_tail;
  const uint64_t left = tail ? in->tail_at - in->file_pos : UINT64_MAX;
  *done = true;
  if (left < b->n) { /* the head of the file ends in this block */
    const size_t cut = wr_cut_last(&in->cutter, b->text, 1, (size_t)left + 1);
    return cut ? cut : left ? utf8_start(b->text, (size_t)left) : 0;
  }
  if (whole) return b->n;
  *done = false;
  if (!b->jsonl) return wr_cut_last(&in->cutter, b->text, looked, b->n);
  const char *line = b->n > looked ? memrchr(b->text + looked, '\n', b->n - looked) : NULL;
  return line ? (size_t)(line - b->text) + 1 : 0;
}

static weir_status read_block(wr_text_input *in, wr_text_block *b) {
  const text_file *f = &in->files[in->at_file];
  b->n = 0;
  WR_TRY(need_room(b, WR_MAX(in->n_carry, (size_t)1)));
  memcpy(b->text, in->carry ? in->carry : "", in->n_carry);
  b->n = in->n_carry;
  b->jsonl = f->jsonl;
  size_t want = in->block_bytes, looked = 0, end = 0;
  bool done = false;
  while (!end) {
    while (want < b->n) want *= 2;
    WR_TRY(fill(in, b, want));
    if (!b->n) return WEIR_OK;
    if (in->tails && !in->in_tail && in->tail_at == in->file_pos) in->in_tail = true; /* the head is empty */
    end = end_of_block(in, b, looked, b->n < want, &done);
    looked = b->n - 1;
    if (!end && want >= BLOCK_MOST)
      return wr_fail(WEIR_EUNSUPPORTED, "%s: more than 1 GiB without %s, from byte %llu on",
                     wr_escape(f->path, strlen(f->path)), b->jsonl ? "the end of a line" : "a place between two words",
                     (unsigned long long)in->file_pos);
    want *= 2;
  }
  const size_t over = b->n - end;
  if (!wr_grow((void **)&in->carry, &in->cap_carry, over, 1)) return wr_fail_nomem(over, "a block of text");
  if (over) memcpy(in->carry, b->text + end, over);
  in->n_carry = over;
  b->n = end;
  b->last = done;
  return WEIR_OK;
}

static uint64_t count_lines(const char *text, size_t n) {
  uint64_t lines = 0;
  const char *end = text + n;
  for (const char *p = text; p < end; lines++) {
    const char *stop = memchr(p, '\n', (size_t)(end - p));
    p = stop ? stop + 1 : end;
  }
  return lines;
}

weir_status wr_text_input_read(wr_text_input *in, wr_text_block *b) {
  for (;;) {
    if (!in->stream) {
      if (in->at_file == in->n_files) {
        b->n = 0;
        return WEIR_OK;
      }
      WR_TRY(open_file(in));
    }
    WR_TRY(read_block(in, b));
    if (b->n) break;
    if (!in->files[in->at_file].jsonl) {
      in->empty_files += in->file_pos == 0;
      in->doc++;
    }
    close_file(in);
  }
  b->number = in->number++;
  b->byte = in->file_base + in->file_pos;
  b->doc = in->doc;
  b->path = strcmp(in->files[in->at_file].path, "-") == 0 ? "standard input" : in->files[in->at_file].path;
  b->line = in->line;
  b->first = in->fresh;
  b->validation = in->tails && in->in_tail;
  in->file_pos += b->n;
  in->fresh = b->last;
  if (b->jsonl) {
    const uint64_t lines = count_lines(b->text, b->n);
    in->line += lines;
    in->doc += lines;
  } else if (b->last) {
    in->in_tail = in->tails;
  }
  return WEIR_OK;
}

/* Over `n` bytes of the open file; the lines are counted where lines have numbers. *skipped < n: the file ended. */
static weir_status skip(wr_text_input *in, uint64_t n, uint64_t *skipped) {
  char buf[65536];
  *skipped = 0;
  while (*skipped < n) {
    size_t got;
    WR_TRY(wr_stream_read(in->stream, buf, (size_t)WR_MIN(n - *skipped, sizeof buf), &got));
    if (!got) break;
    for (const char *p = buf; (p = memchr(p, '\n', (size_t)(buf + got - p))) != NULL; p++) in->line++;
    *skipped += got;
  }
  return WEIR_OK;
}

weir_status wr_text_input_seek(wr_text_input *in, uint64_t byte, uint64_t number, uint64_t doc) {
  wr_stream_close(in->stream);
  in->stream = NULL;
  in->at_file = 0;
  in->file_base = in->disk_done = 0;
  in->n_carry = 0;
  for (; in->at_file < in->n_files; close_file(in)) {
    const text_file *f = &in->files[in->at_file];
    if (byte == in->file_base) break;
    WR_TRY(open_file(in));
    const uint64_t left = byte - in->file_base;
    uint64_t skipped = left;
    if (f->regular && !f->jsonl && !wr_stream_compressed(in->stream)) {
      skipped = WR_MIN(left, f->bytes);
      if (left < f->bytes) WR_TRY(wr_stream_skip(in->stream, left));
    } else {
      WR_TRY(skip(in, left, &skipped));
    }
    in->file_pos = skipped;
    in->fresh = false;
    if (skipped == left && (left < f->bytes || !f->regular || wr_stream_compressed(in->stream))) break;
  }
  if (in->file_base + (in->stream ? in->file_pos : 0) != byte)
    return wr_fail(WEIR_EUSAGE,
                   "the text is shorter than it was: byte %llu of it does not exist; a run goes on with the same text only",
                   (unsigned long long)byte);
  in->number = number;
  in->doc = doc;
  return WEIR_OK;
}

/* --------------------------------------------------------------------------------------------------------------- documents */

/* Fibonacci hashing: multiples of the golden ratio are spread evenly, so any run of documents has its share. */
static bool is_validation(const wr_text_input *in, uint64_t doc) {
  return in->o.val_share > 0 && (double)((doc + 1) * 0x9E3779B97F4A7C15u) < in->o.val_share * 0x1p64;
}

static void note_bad(wr_text_block *b, uint64_t line, size_t column, const char *rule) {
  if (b->counts.bad < WR_TEXT_BAD_SHOWN) {
    wr_text_bad *bad = &b->bad[b->counts.bad];
    snprintf(bad->where, sizeof bad->where, "%s:%llu:%zu", wr_escape(b->path, strlen(b->path)), (unsigned long long)line,
             column);
    snprintf(bad->rule, sizeof bad->rule, "%s", rule);
  }
  b->counts.bad++;
}

static weir_status each_line(const wr_text_input *in, wr_text_block *b, wr_text_fn fn, void *user) {
  uint64_t line = b->line;
  const char *p = b->text, *end = b->text + b->n;
  if (line == 1 && b->n >= 3 && memcmp(p, "\xef\xbb\xbf", 3) == 0) p += 3; /* a byte order mark */
  for (; p < end; line++) {
    const char *stop = memchr(p, '\n', (size_t)(end - p)), *text = NULL, *rule = NULL;
    const size_t n = (size_t)((stop ? stop : end) - p);
    size_t blank = 0, len = 0, column = 0;
    while (blank < n && (p[blank] == ' ' || p[blank] == '\t' || p[blank] == '\r')) blank++;
    if (blank < n) {
      b->counts.records++;
      const wr_record r = wr_jsonl_field(p, n, in->field, &b->scratch, &b->scratch_cap, &text, &len, &column, &rule);
      if (r == WR_RECORD_NOMEM) return wr_fail_nomem(n, "a record");
      if (r == WR_RECORD_BAD) {
        note_bad(b, line, column, rule);
      } else if (!len) {
        b->counts.empty++;
      } else {
        const uint64_t doc = b->doc + (line - b->line);
        b->counts.docs++;
        b->counts.bytes += len;
        WR_TRY(fn(user, &(wr_text_piece){text, len, doc, true, true, is_validation(in, doc)}));
      }
    }
    p += n + 1;
  }
  return WEIR_OK;
}

weir_status wr_text_block_each(const wr_text_input *in, wr_text_block *b, wr_text_fn fn, void *user) {
  b->counts = (wr_text_counts){0};
  if (b->jsonl) return each_line(in, b, fn, user);
  b->counts.bytes = b->n;
  b->counts.docs = b->first && !b->validation;
  b->counts.not_utf8 = wr_utf8_valid(b->text, b->n) != b->n;
  for (const char *p = b->text, *end = p + b->n; (p = memchr(p, 0, (size_t)(end - p))) != NULL; p++) b->counts.nul++;
  const bool validation = in->tails ? b->validation : is_validation(in, b->doc);
  return fn(user, &(wr_text_piece){b->text, b->n, b->doc, b->first, b->last, validation});
}

/* ---------------------------------------------------------------------------------------------------------------- accounts */

static weir_status too_many(const wr_text_input *in) {
  return wr_fail(
      WEIR_EFORMAT, "%llu of %llu records are bad (%.1f %%), more than the %.3g %% that are borne; the first: %s: %s",
      (unsigned long long)in->counts.bad, (unsigned long long)in->counts.records,
      100.0 * (double)in->counts.bad / (double)in->counts.records, 100 * in->max_bad, in->bad[0].where, in->bad[0].rule);
}

weir_status wr_text_input_settle(wr_text_input *in, const wr_text_block *b) {
  const wr_text_counts *c = &b->counts;
  for (uint64_t i = 0; i < c->bad && i < WR_TEXT_BAD_SHOWN && in->n_bad < WR_TEXT_BAD_SHOWN; i++)
    in->bad[in->n_bad++] = b->bad[i];
  in->counts.bytes += c->bytes;
  in->counts.docs += c->docs;
  in->counts.records += c->records;
  in->counts.bad += c->bad;
  in->counts.empty += c->empty;
  in->counts.not_utf8 += c->not_utf8;
  in->counts.nul += c->nul;
  if (in->o.strict && in->n_bad) return wr_fail(WEIR_EFORMAT, "%s: %s", in->bad[0].where, in->bad[0].rule);
  const bool many = (double)in->counts.bad > in->max_bad * (double)in->counts.records;
  return many && in->counts.records >= BAD_FEW ? too_many(in) : WEIR_OK;
}

weir_status wr_text_input_end(const wr_text_input *in) {
  if ((double)in->counts.bad > in->max_bad * (double)in->counts.records) return too_many(in);
  if (in->counts.docs) return WEIR_OK;
  const char *path = in->files[0].path;
  return wr_fail(WEIR_EFORMAT, "%s%s: there is no text in it: no document that is not empty", wr_escape(path, strlen(path)),
                 in->n_files > 1 ? " and the others" : "");
}

void wr_text_block_free(wr_text_block *b) {
  wr_free(b->text);
  wr_free(b->scratch);
  *b = (wr_text_block){0};
}

void wr_text_input_counts(const wr_text_input *in, wr_text_counts *out) {
  *out = in->counts;
  out->empty += in->empty_files;
  out->binary_files = in->binary_files;
}

size_t wr_text_input_bad(const wr_text_input *in, const wr_text_bad **out) {
  *out = in->bad;
  return in->n_bad;
}

double wr_text_input_done(const wr_text_input *in) {
  if (!in->disk_total) return 0;
  const uint64_t here = in->stream ? WR_MIN(wr_stream_disk_bytes(in->stream), in->files[in->at_file].bytes) : 0;
  return (double)(in->disk_done + here) / (double)in->disk_total;
}
