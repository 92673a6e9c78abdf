/* fuzz target: a vocabulary and a text out of the input; whatever they are, the tokenizer refuses with a sentence or keeps its
 * promises: text comes back byte for byte, whole and streamed, ids are in range, and text makes no control token.
 *
 * Form of the input: bytes of settings, then records (see `read_records`), then, after a record of kind END, the text. The
 * tokens of the 256 bytes come first unless a setting says otherwise, so that most inputs open.
 */
#include <stdlib.h>

#include "text/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX = 2048 };
typedef struct input {
  const uint8_t *p, *end;
} input;

static uint8_t take(input *in) { return in->p < in->end ? *in->p++ : 0; }

static wr_gguf_text take_text(input *in, size_t n) {
  if (n > (size_t)(in->end - in->p)) n = (size_t)(in->end - in->p);
  wr_gguf_text t = {(const char *)in->p, n};
  in->p += n;
  return t;
}

static wr_gguf_text tokens[MAX], merges[MAX];
static int32_t types[MAX];
static float scores[MAX];
static char alphabet[256][8];

static void add_bytes(wr_vocab_source *s, bool spm) {
  for (int b = 0, extra = 0; b < 256; b++) {
    bool printable = (b >= 33 && b <= 126) || (b >= 161 && b != 173);
    int c = printable ? b : 256 + extra++, n = 0;
    if (spm)
      n = snprintf(alphabet[b], 8, "<0x%02X>", b);
    else if (c < 128)
      alphabet[b][n++] = (char)c;
    else
      alphabet[b][n++] = (char)(0xc0 | c >> 6), alphabet[b][n++] = (char)(0x80 | (c & 63));
    types[s->n_tokens] = spm ? WR_TOKEN_BYTE : WR_TOKEN_NORMAL;
    scores[s->n_tokens] = 0;
    tokens[s->n_tokens++] = (wr_gguf_text){alphabet[b], (size_t)n};
  }
}

/* A record is a byte (kind in the low three bits, a small number above them) and what the kind needs. */
static void read_records(input *in, wr_vocab_source *s) {
  while (in->p < in->end && s->n_tokens + 1 < MAX && s->n_merges + 1 < MAX) {
    uint8_t head = take(in), kind = head & 7, small = head >> 3;
    if (kind == 0) return; /* END */
    if (kind <= 3) {       /* a token: its type, a score, its text */
      static const int32_t kinds[] = {WR_TOKEN_NORMAL, WR_TOKEN_CONTROL, WR_TOKEN_USER_DEFINED};
      types[s->n_tokens] = kind < 3 ? kinds[kind - 1] : (int8_t)take(in);
      scores[s->n_tokens] = (float)(int8_t)take(in) / 4;
      tokens[s->n_tokens++] = take_text(in, small);
    } else if (kind == 4) { /* a merge as text */
      merges[s->n_merges++] = take_text(in, small);
    } else if (kind == 5 && s->n_tokens) { /* a merge of two tokens, and what it makes */
      wr_gguf_text a = tokens[take(in) % s->n_tokens], b = tokens[(take(in) + small * 8u) % s->n_tokens];
      char *pair = malloc(a.len + b.len + 1), *both = malloc(a.len + b.len + 1); /* kept until the end of the run */
      if (!pair || !both) abort();
      if (a.len) memcpy(pair, a.ptr, a.len), memcpy(both, a.ptr, a.len);
      pair[a.len] = ' ';
      if (b.len) memcpy(pair + a.len + 1, b.ptr, b.len), memcpy(both + a.len, b.ptr, b.len);
      merges[s->n_merges++] = (wr_gguf_text){pair, a.len + b.len + 1};
      types[s->n_tokens] = WR_TOKEN_NORMAL;
      scores[s->n_tokens] = -(float)small;
      tokens[s->n_tokens++] = (wr_gguf_text){both, a.len + b.len};
      if (a.len + b.len > 5000) return;
    } else if (kind == 6) { /* a special id */
      int64_t *ids[] = {&s->bos_id, &s->eos_id, &s->eot_id, &s->eom_id, &s->unk_id, &s->pad_id};
      *ids[small % 6] = (int8_t)take(in) * 256 + take(in);
    } else if (kind == 7) { /* a flag, or lengths that do not agree */
      int *flags[] = {&s->add_bos, &s->add_eos, &s->add_space_prefix, &s->remove_extra_whitespaces};
      if (small < 28)
        *flags[small % 4] = small / 4 % 3 - 1;
      else if (small == 28)
        s->types = NULL;
      else if (small == 29)
        s->scores = NULL;
      else if (small == 30)
        s->n_types = take(in);
      else
        s->n_scores = take(in);
    }
  }
}

static void must(bool ok) {
  if (!ok) abort();
}

static bool has_mark(const char *text, size_t n) { /* U+2581: a SentencePiece vocabulary turns it into a space */
  return memmem(text, n, "\xe2\x96\x81", 3) != NULL;
}

static void try_text(const wr_tokenizer *t, wr_encoder *e, const char *text, size_t n, unsigned flags, bool spm) {
  wr_ids ids = {0};
  wr_str whole = {0}, stream = {0};
  weir_status st = wr_encode(t, text, n, flags, &ids);
  must(st == WEIR_OK || (st == WEIR_EUNSUPPORTED && !(flags & WR_TEXT_LOSSY) && ids.len == 0 && *weir_last_error()));
  for (int pass = 0; pass < 2; pass++) { /* the second time an encoder knows the words */
    wr_ids again = {0};
    must(wr_encoder_put(e, text, n, flags, &again) == st && again.len == ids.len);
    must(!ids.len || memcmp(again.ptr, ids.ptr, ids.len * sizeof *ids.ptr) == 0);
    wr_ids_free(&again);
  }
  if (st == WEIR_OK) {
    for (size_t i = 0; i < ids.len; i++) {
      must(ids.ptr[i] >= 0 && (size_t)ids.ptr[i] < wr_tokenizer_size(t));
      wr_token_type type = wr_token_type_of(t, ids.ptr[i]);
      bool allowed = flags & (WR_TEXT_PARSE_SPECIAL | WR_TEXT_ADD_SPECIAL | WR_TEXT_LOSSY);
      must(allowed || (type != WR_TOKEN_CONTROL && type != WR_TOKEN_UNKNOWN));
    }
    unsigned back = flags & (WR_TEXT_CONTINUES | WR_TEXT_KEEP_SPECIAL);
    must(wr_decode(t, ids.ptr, ids.len, back, &whole) == WEIR_OK);
    bool exact = !(flags & (WR_TEXT_LOSSY | WR_TEXT_ADD_SPECIAL)) && !(spm && has_mark(text, n));
    if (flags & WR_TEXT_PARSE_SPECIAL && !(flags & WR_TEXT_KEEP_SPECIAL)) exact = false;
    must(!exact || (whole.len == n && (n == 0 || memcmp(whole.ptr, text, n) == 0)));
    wr_text_stream s;
    wr_text_stream_init(&s, t, back);
    for (size_t i = 0; i < ids.len; i++) must(wr_text_stream_put(&s, ids.ptr[i], &stream) == WEIR_OK);
    must(wr_text_stream_flush(&s, &stream) == WEIR_OK);
    must(stream.len == whole.len && (whole.len == 0 || memcmp(stream.ptr, whole.ptr, whole.len) == 0));
  }
  wr_ids_free(&ids);
  wr_str_free(&whole);
  wr_str_free(&stream);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const pres[] = {"gpt-2", "llama-bpe", "smollm", "qwen2", "default", "llama3", "", "nonesuch"};
  input in = {data, data + size};
  wr_vocab_source s;
  wr_vocab_source_init(&s);
  uint8_t mode = take(&in), flags = take(&in);
  bool spm = mode & 1;
  const char *pre = spm ? "" : pres[mode >> 1 & 7];
  s.model = (wr_gguf_text){spm ? "llama" : "gpt2", spm ? 5 : 4};
  s.pre = (wr_gguf_text){pre, strlen(pre)};
  s.tokens = tokens, s.types = types, s.scores = scores, s.merges = merges;
  s.n_types = s.n_scores = SIZE_MAX; /* until a record says otherwise: as many as there are tokens */
  if (!(mode & 16)) add_bytes(&s, spm);
  size_t given = s.n_tokens;
  read_records(&in, &s);
  if (s.n_types == SIZE_MAX) s.n_types = s.n_tokens;
  if (s.n_scores == SIZE_MAX) s.n_scores = s.n_tokens;
  wr_tokenizer *t = NULL;
  weir_status st = wr_tokenizer_open(&s, &t);
  must((st == WEIR_OK) == (t != NULL));
  must(st == WEIR_OK || *weir_last_error());
  if (t) {
    const char *text = (const char *)in.p;
    size_t n = (size_t)(in.end - in.p);
    wr_encoder *e = NULL;
    must(wr_encoder_open(t, &e) == WEIR_OK);
    try_text(t, e, text, n, 0, spm);
    try_text(t, e, text, n, flags, spm);
    try_text(t, e, text, n, WR_TEXT_PARSE_SPECIAL | WR_TEXT_KEEP_SPECIAL, spm);
    for (size_t i = given; i < s.n_tokens && i < given + 8; i++) try_text(t, e, tokens[i].ptr, tokens[i].len, flags, spm);
    wr_chat_message m = {"user", text, 4, n};
    wr_ids ids = {0};
    st = wr_chat_encode(t, &m, 1, flags & 1, flags, &ids);
    must(st == WEIR_OK || st == WEIR_EUNSUPPORTED);
    wr_ids_free(&ids);
    wr_encoder_close(e);
  }
  wr_tokenizer_close(t);
  for (size_t i = 0; i < s.n_merges; i++) /* those of kind 5: their text is not inside the input */
    if (merges[i].ptr < (const char *)data || merges[i].ptr > (const char *)data + size) free((void *)merges[i].ptr);
  for (size_t i = given; i < s.n_tokens; i++)
    if (tokens[i].ptr < (const char *)data || tokens[i].ptr > (const char *)data + size) free((void *)tokens[i].ptr);
  return 0;
}
