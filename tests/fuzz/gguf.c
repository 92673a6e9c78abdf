/* Fuzz target: the bytes are a GGUF file. Opened in memory and through the public API; whatever opens is read in full, so that
 * a range that lies outside the bytes is seen by the address sanitizer. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "format/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink;

static void touch(const void *bytes, size_t n) {
  const uint8_t *p = bytes;
  uint64_t sum = 0;
  for (size_t i = 0; i < n; i++) sum += p[i];
  sink += sum;
}

static void require(bool ok) {
  if (!ok) abort();
}

static void read_array(const wr_gguf_array *a) {
  touch(a->ptr, a->bytes);
  if (a->type == WR_GGUF_VALUE_STRING) {
    wr_gguf_text *texts;
    if (wr_gguf_array_texts(a, &texts) != WEIR_OK) return;
    for (uint64_t i = 0; i < a->count; i++) touch(texts[i].ptr, texts[i].len);
    wr_free(texts);
  } else {
    for (uint64_t i = 0; i < a->count; i++) sink += (uint64_t)wr_gguf_array_int(a, i) + (wr_gguf_array_float(a, i) > 0);
  }
}

static void read_handle(const wr_gguf *g) {
  char key[256];
  for (size_t i = 0; i < wr_gguf_n_meta(g); i++) {
    const wr_gguf_meta *m = wr_gguf_meta_at(g, i);
    int64_t v = 0;
    double f = 0;
    if (m->type == WR_GGUF_VALUE_STRING) touch(m->v.text.ptr, m->v.text.len);
    if (m->type == WR_GGUF_VALUE_ARRAY) read_array(&m->v.array);
    if (m->key.len >= sizeof key) continue;
    memcpy(key, m->key.ptr, m->key.len);
    key[m->key.len] = '\0';
    require(wr_gguf_find(g, key) == m);
    if (wr_gguf_get_int(g, key, true, 1, 1000, &v) == WEIR_OK) require(v >= 1 && v <= 1000);
    if (wr_gguf_get_float(g, key, true, &f) != WEIR_OK) require(strlen(weir_last_error()) > 0);
  }
  for (size_t i = 0; i < wr_gguf_n_tensors(g); i++) {
    const wr_gguf_tensor *t = wr_gguf_tensor_at(g, i);
    require(wr_gguf_tensor_find(g, t->name) == t && t->n_elems > 0 && t->bytes > 0);
    touch(t->data, 1);
    touch(t->data + t->bytes - 1, 1);
  }
}

static void read_file(const char *path) {
  weir_file *f;
  weir_file_info info;
  weir_file_meta m;
  weir_file_tensor t;
  weir_value v;
  char text[512];
  if (weir_file_open(path, NULL, &f) != WEIR_OK) return;
  weir_file_get_info(f, &info);
  for (size_t i = 0; weir_file_meta_at(f, i, &m) == WEIR_OK; i++) {
    weir_file_meta_print(f, i, text, sizeof text);
    for (uint64_t e = 0; e < m.count && weir_file_value_at(f, i, e, &v) == WEIR_OK; e++)
      if (v.kind == WEIR_VALUE_TEXT) touch(v.text.ptr, v.text.bytes);
    if (m.count > 1) require(weir_file_value_at(f, i, m.count / 2, &v) == WEIR_OK);
    require(weir_file_value_at(f, i, m.count, &v) == WEIR_EUSAGE);
  }
  for (size_t i = 0; weir_file_tensor_at(f, i, &t) == WEIR_OK; i++) touch(t.name, strlen(t.name));
  weir_file_close(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  wr_gguf *g;
  if (wr_gguf_open_memory(data, size, "fuzz", &g) == WEIR_OK) {
    read_handle(g);
    wr_gguf_close(g);
  }
  int fd = memfd_create("fuzz.gguf", MFD_CLOEXEC);
  if (fd < 0) return 0;
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  if (write(fd, data, size) == (ssize_t)size) read_file(path);
  close(fd);
  return 0;
}
