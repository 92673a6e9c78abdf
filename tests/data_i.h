/* What the tests of data share: files of this process, a tokenizer, comparing folders. */
#ifndef TESTS_DATA_I_H
#define TESTS_DATA_I_H

#include <dirent.h>
#include <unistd.h>

#include "data/data_i.h"
#include "test.h"

#define CORPORA "../shared/cases/corpora/"

static char root[64]; /* of this process's files */

WR_UNUSED static const char *at(const char *name) {
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

WR_UNUSED static void write_file(const char *path, const void *bytes, size_t n) {
  FILE *f = fopen(path, "wb");
  if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) abort();
}

WR_UNUSED static void remove_tree(const char *path) {
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

WR_UNUSED static bool same_file(const char *a, const char *b) {
  char *x = NULL, *y = NULL;
  size_t n = 0, m = 0;
  const bool same = wr_file_read(a, 1 << 28, &x, &n) == WEIR_OK && wr_file_read(b, 1 << 28, &y, &m) == WEIR_OK && n == m &&
                    memcmp(x, y, n) == 0;
  wr_free(x);
  wr_free(y);
  return same;
}

WR_UNUSED static bool same_folder(const char *a, const char *b) {
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

WR_UNUSED static wr_tokenizer *bytes_tokenizer(void) {
  static wr_tokenizer *t;
  if (!t && wr_tokenizer_open_path("bytes", &t) != WEIR_OK) abort();
  return t;
}

WR_UNUSED static uint32_t token_of(const wr_sample *s, int64_t i) {
  return s->token_bytes == 2 ? ((const uint16_t *)s->tokens)[i] : ((const uint32_t *)s->tokens)[i];
}

WR_UNUSED static void cleans_up(void) { remove_tree(root); }

#endif
