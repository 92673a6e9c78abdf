/* stream.c: owns the bytes of one file as text: as they are, or out of gzip or zstd, which the first bytes tell.
 *
 * Members and frames that follow one another are one stream, as gzip -d and zstd -d have it. Data that ends inside a member is an error,
 * and so is anything but zeros behind the last one (padding of tapes). References: RFC 1952, RFC 8878. */
#include "data/data_i.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#define IN_BYTES ((size_t)128 << 10)

typedef enum kind { PLAIN, GZIP, ZSTD } kind;

struct wr_stream {
  char *name;
  int fd;
  bool own_fd, eof, inside; /* inside: a member has begun and not ended */
  kind kind;
  uint8_t *in;
  size_t at, n; /* in[at, n) is not consumed */
  uint64_t disk;
  z_stream z;
  bool z_open;
  ZSTD_DStream *zs;
};

static void *z_alloc(void *user, unsigned items, unsigned size) {
  (void)user;
  return wr_calloc(items, size);
}
static void z_free(void *user, void *ptr) {
  (void)user;
  wr_free(ptr);
}

static weir_status read_some(wr_stream *s, uint8_t *to, size_t n, size_t *got) {
  for (;;) {
    const ssize_t r = read(s->fd, to, n);
    if (r < 0 && errno == EINTR) continue;
    if (r < 0) return wr_fail_errno(WEIR_EIO, s->name, "read");
    s->eof = r == 0;
    s->disk += (uint64_t)r;
    *got = (size_t)r;
    return WEIR_OK;
  }
}

/* More compressed bytes behind those that are left. */
static weir_status refill(wr_stream *s, size_t least) {
  while (s->n - s->at < least && !s->eof) {
    if (s->at) memmove(s->in, s->in + s->at, s->n - s->at);
    s->n -= s->at;
    s->at = 0;
    size_t got;
    WR_TRY(read_some(s, s->in + s->n, IN_BYTES - s->n, &got));
    s->n += got;
  }
  return WEIR_OK;
}

static kind kind_of(const uint8_t *p, size_t n) {
  static const uint8_t zstd[4] = {0x28, 0xb5, 0x2f, 0xfd}, skippable[3] = {0x2a, 0x4d, 0x18};
  if (n >= 3 && p[0] == 0x1f && p[1] == 0x8b && p[2] == 8) return GZIP;
  if (n >= 4 && memcmp(p, zstd, 4) == 0) return ZSTD;
  if (n >= 4 && (p[0] & 0xf0) == 0x50 && memcmp(p + 1, skippable, 3) == 0) return ZSTD;
  return PLAIN;
}

weir_status wr_stream_open(const char *path, wr_stream **out) {
  wr_stream *s = wr_calloc(1, sizeof *s);
  if (!s) return wr_fail_nomem(sizeof *s, "reading a file");
  const bool standard = strcmp(path, "-") == 0;
  s->name = wr_strdup(standard ? "standard input" : path);
  s->in = wr_malloc(IN_BYTES);
  s->own_fd = !standard;
  s->fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
  weir_status status = WEIR_OK;
  if (!s->name || !s->in)
    status = wr_fail_nomem(IN_BYTES, "reading a file");
  else if (s->fd < 0)
    status = wr_fail_errno(WEIR_EIO, path, "open");
  else
    status = refill(s, 4);
  if (status == WEIR_OK) {
    s->kind = kind_of(s->in, s->n);
    if (s->kind == GZIP) {
      s->z.zalloc = z_alloc;
      s->z.zfree = z_free;
      s->z_open = inflateInit2(&s->z, 15 + 16) == Z_OK;
      if (!s->z_open) status = wr_fail_nomem(sizeof s->z, "gzip");
    } else if (s->kind == ZSTD) {
      s->zs = ZSTD_createDStream(); /* its memory is its own: allocators can be given to the static library only */
      if (!s->zs) status = wr_fail_nomem(IN_BYTES, "zstd");
    }
  }
  if (status != WEIR_OK) {
    wr_stream_close(s);
    return status;
  }
  *out = s;
  return WEIR_OK;
}

void wr_stream_close(wr_stream *s) {
  if (!s) return;
  if (s->z_open) inflateEnd(&s->z);
  ZSTD_freeDStream(s->zs);
  if (s->own_fd && s->fd >= 0) close(s->fd);
  wr_free(s->name);
  wr_free(s->in);
  wr_free(s);
}

static weir_status damaged(const wr_stream *s, const char *what) {
  return wr_fail(WEIR_EFORMAT, "%s: the compressed data is damaged near byte %llu: %s", wr_escape(s->name, strlen(s->name)),
                 (unsigned long long)(s->disk - (s->n - s->at)), what);
}

static weir_status cut_short(const wr_stream *s) {
  return wr_fail(WEIR_EFORMAT, "%s: ends in the middle of its compressed data, at byte %llu: the file is not whole",
                 wr_escape(s->name, strlen(s->name)), (unsigned long long)s->disk);
}

/* Between members: is there another one? Zeros behind the last are padding. */
static weir_status next_member(wr_stream *s, bool *more) {
  *more = false;
  for (;;) {
    WR_TRY(refill(s, 4));
    if (s->n == s->at) return WEIR_OK;
    if (kind_of(s->in + s->at, s->n - s->at) == s->kind) break;
    if (s->in[s->at] != 0) return damaged(s, "bytes behind the end that are not compressed data");
    while (s->at < s->n && s->in[s->at] == 0) s->at++;
    if (s->at < s->n) return damaged(s, "bytes behind the end that are not compressed data");
  }
  *more = true;
  if (s->kind == GZIP) inflateReset(&s->z);
  return WEIR_OK;
}

/* One step of decompression: *got bytes, and s->inside as it is afterwards. */
static weir_status inflate_some(wr_stream *s, char *to, size_t n, size_t *got) {
  s->z.next_in = s->in + s->at;
  s->z.avail_in = (unsigned)(s->n - s->at);
  s->z.next_out = (uint8_t *)to;
  s->z.avail_out = (unsigned)WR_MIN(n, (size_t)1 << 30);
  const unsigned room = s->z.avail_out;
  const int r = inflate(&s->z, Z_NO_FLUSH);
  s->at = s->n - s->z.avail_in;
  *got = room - s->z.avail_out;
  if (r == Z_STREAM_END) s->inside = false;
  if (r == Z_OK || r == Z_STREAM_END || r == Z_BUF_ERROR) return WEIR_OK;
  return r == Z_MEM_ERROR ? wr_fail_nomem(1 << 15, "gzip") : damaged(s, s->z.msg ? s->z.msg : "gzip does not understand it");
}

static weir_status unzstd_some(wr_stream *s, char *to, size_t n, size_t *got) {
  ZSTD_inBuffer in = {s->in, s->n, s->at};
  ZSTD_outBuffer out = {to, n, 0};
  const size_t r = ZSTD_decompressStream(s->zs, &out, &in);
  s->at = in.pos;
  *got = out.pos;
  if (ZSTD_isError(r)) return damaged(s, ZSTD_getErrorName(r));
  if (r == 0) s->inside = false;
  return WEIR_OK;
}

static weir_status read_packed(wr_stream *s, char *to, size_t n, size_t *got) {
  for (;;) {
    if (!s->inside) {
      bool more;
      WR_TRY(next_member(s, &more));
      if (!more) return WEIR_OK;
      s->inside = true;
    }
    WR_TRY(refill(s, 1));
    const bool dry = s->at == s->n;
    WR_TRY(s->kind == GZIP ? inflate_some(s, to, n, got) : unzstd_some(s, to, n, got));
    if (*got) return WEIR_OK;
    if (dry && s->inside) return cut_short(s);
  }
}

weir_status wr_stream_read(wr_stream *s, char *to, size_t n, size_t *got) {
  *got = 0;
  if (!n) return WEIR_OK;
  if (s->kind != PLAIN) return read_packed(s, to, n, got);
  if (s->at < s->n) { /* what was read to see what it is */
    *got = WR_MIN(n, s->n - s->at);
    memcpy(to, s->in + s->at, *got);
    s->at += *got;
    return WEIR_OK;
  }
  return s->eof ? WEIR_OK : read_some(s, (uint8_t *)to, n, got);
}

uint64_t wr_stream_disk_bytes(const wr_stream *s) { return s->disk; }

bool wr_stream_compressed(const wr_stream *s) { return s->kind != PLAIN; }

weir_status wr_stream_skip(wr_stream *s, uint64_t n) {
  if (s->kind == PLAIN) {
    const uint64_t here = WR_MIN(n, s->n - s->at);
    s->at += (size_t)here;
    n -= here;
    if (n && lseek(s->fd, (off_t)n, SEEK_CUR) >= 0) {
      s->disk += n;
      return WEIR_OK;
    }
  }
  char waste[16384];
  while (n) {
    size_t got;
    WR_TRY(wr_stream_read(s, waste, (size_t)WR_MIN(n, sizeof waste), &got));
    if (!got)
      return wr_fail(WEIR_EFORMAT, "%s: is shorter than it was; the run cannot go on where it stopped",
                     wr_escape(s->name, strlen(s->name)));
    n -= got;
  }
  return WEIR_OK;
}
