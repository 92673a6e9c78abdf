/* text: between bytes and token ids. Tokenizers as GGUF files carry them, streams that never cut a character, chats.
 *
 * Kinds, by tokenizer.ggml.model: "gpt2", byte-level BPE with ranked merges over words that a pre-tokenizer cuts
 * (tokenizer.ggml.pre: the rows of pretok.def), and "llama", SentencePiece's BPE with scores and byte fallback. A third, "metaspace",
 * is Hugging Face's form of the second: ranked merges in the place of scores; it is weir's own name, which others refuse. Any other
 * model or pre-tokenizer, or a gpt2 file without one, is refused by name: a near miss would give wrong ids in silence.
 *
 * Text is bytes with a length: NUL is a byte like any other, nothing is normalised, and what was encoded decodes to the same.
 * - Invalid UTF-8 is not an error: each stretch of it is a word of its own, of byte tokens.
 * - A byte that the vocabulary has no token for is an error that names it and its offset, unless WR_TEXT_LOSSY.
 * - One exception: a SentencePiece vocabulary has one token for a space and U+2581, so U+2581 comes back as a space.
 * - Some vocabularies put a space before text that begins or follows a special token. Encoding adds it, decoding takes it away.
 *
 * Text never makes a control token (WR_TOKEN_CONTROL, _UNKNOWN) unless the caller says WR_TEXT_PARSE_SPECIAL, whatever the
 * vocabulary's merges say. Tokens of type USER_DEFINED are part of text, as their makers meant them, and are always found.
 *
 * A tokenizer is immutable: any number of threads may use one. Calls take time and memory linear in the text (n log n for one
 * word of n bytes). On failure the outputs are as they were.
 */
#ifndef WR_TEXT_H
#define WR_TEXT_H

#include "base/base.h"
#include "format/format.h"

#define WR_NO_TOKEN (-1)

/* The numbers are GGUF's, tokenizer.ggml.token_type. */
typedef enum wr_token_type {
  WR_TOKEN_UNDEFINED = 0,
  WR_TOKEN_NORMAL = 1,
  WR_TOKEN_UNKNOWN = 2,
  WR_TOKEN_CONTROL = 3,
  WR_TOKEN_USER_DEFINED = 4,
  WR_TOKEN_UNUSED = 5,
  WR_TOKEN_BYTE = 6
} wr_token_type;

/* ---- what a tokenizer is made from: plain arrays, so that tests and fuzzers need no file.
 * An absent key is -1 (ids, flags) or NULL (arrays, names). */
typedef struct wr_vocab_source {
  wr_gguf_text model, pre;     /* "gpt2", "llama" or "metaspace"; a row of pretok.def */
  wr_gguf_text prefix;         /* "metaspace": where text gets a space in front, a name of wr_prefix */
  const wr_gguf_text *tokens;  /* the bytes must outlive the tokenizer; the arrays themselves need not */
  const float *scores;
  const int32_t *types;        /* wr_token_type */
  const wr_gguf_text *merges;  /* "left right", best first; needed only while opening */
  size_t n_tokens, n_scores, n_types, n_merges;
  int64_t bos_id, eos_id, eot_id, eom_id, unk_id, pad_id;
  int add_bos, add_eos, add_space_prefix, remove_extra_whitespaces;
} wr_vocab_source;
void wr_vocab_source_init(wr_vocab_source *s); /* everything absent */
/* Reads the tokenizer.ggml.* keys. The arrays are freed by wr_vocab_source_free, the token bytes stay those of `g`. */
weir_status wr_vocab_source_read(const wr_gguf *g, wr_vocab_source *out);
void wr_vocab_source_free(wr_vocab_source *s); /* only after wr_vocab_source_read */

/* ---- tokenizer */
typedef struct wr_tokenizer wr_tokenizer;
weir_status wr_tokenizer_open(const wr_vocab_source *source, wr_tokenizer **out);
weir_status wr_tokenizer_open_gguf(const wr_gguf *g, wr_tokenizer **out); /* `g` must outlive it. Errors begin with the path */
void wr_tokenizer_close(wr_tokenizer *t);                                  /* NULL allowed */

/* A tokenizer.json; hf_read.c says which. The tokenizer owns what it needs. */
weir_status wr_tokenizer_open_json(const char *path, wr_tokenizer **out);
weir_status wr_tokenizer_open_json_memory(const void *json, size_t n, const char *name, wr_tokenizer **out);
/* By what it is: "bytes" (256 byte tokens and <|endoftext|>), a GGUF model or vocabulary, a tokenizer.json, or a folder with
 * tokenizer.gguf or else tokenizer.json in it. The tokenizer owns what it needs. Errors begin with the path. */
weir_status wr_tokenizer_open_path(const char *path_or_name, wr_tokenizer **out);

size_t wr_tokenizer_size(const wr_tokenizer *t);           /* tokens; ids are 0 … size-1 */
const char *wr_tokenizer_name(const wr_tokenizer *t);      /* "gpt2/smollm", "llama" */

typedef struct wr_special_ids {
  int32_t bos, eos, eot, eom, unk, pad;                    /* WR_NO_TOKEN: none */
  bool add_bos, add_eos;                                   /* what WR_TEXT_ADD_SPECIAL does */
  const int32_t *end;                                      /* all that end a generation (eos, <|im_end|>, …), ascending */
  size_t n_end;
} wr_special_ids;
const wr_special_ids *wr_tokenizer_special(const wr_tokenizer *t);
bool wr_token_is_end(const wr_tokenizer *t, int32_t id);   /* false for ids out of range too */
wr_token_type wr_token_type_of(const wr_tokenizer *t, int32_t id); /* UNDEFINED for ids out of range */
/* As the vocabulary spells it ("Ġthe", "▁the"); {NULL, 0} for ids out of range. */
wr_gguf_text wr_token_text(const wr_tokenizer *t, int32_t id);
int32_t wr_token_find(const wr_tokenizer *t, const char *text, size_t n); /* by spelling, of any type but BYTE; WR_NO_TOKEN */

/* SentencePiece: no token that text can become has its blank after anything but blanks, so no merge crosses the beginning of one. */
bool wr_tokenizer_ends_words_at_blanks(const wr_tokenizer *t);

/* ---- storing. The canonical form is the model, the pre-tokenizer, the tokens with the types that encoding gives them, the
 * merges that can happen (or the scores), special ids and flags: two tokenizers with one hash give the same ids. */
uint64_t wr_tokenizer_hash(const wr_tokenizer *t);
/* All tokenizer.ggml.* keys; opened again, the hash is the same. Nothing else: general.architecture is the caller's. */
weir_status wr_vocab_put_gguf(const wr_tokenizer *t, wr_gguf_writer *w);

/* By the ending of the name: .gguf, a vocabulary alone; .json, Hugging Face's tokenizer.json (hf_write.c says what it cannot say). */
weir_status wr_tokenizer_save(const wr_tokenizer *t, const char *path);

/* ---- encode and decode. Flags: */
#define WR_TEXT_ADD_SPECIAL 1u   /* encode: BOS before and EOS after, where the vocabulary says so */
#define WR_TEXT_PARSE_SPECIAL 2u /* encode: the spelling of a control token is that token */
#define WR_TEXT_LOSSY 4u         /* encode: a byte without a token becomes the unknown token ("llama") or nothing ("gpt2") */
#define WR_TEXT_KEEP_SPECIAL 8u  /* decode: control tokens are spelled out; otherwise they give nothing */
#define WR_TEXT_CONTINUES 16u    /* both: the text goes on from earlier text, so no space prefix at its beginning */

/* Ids that grow. {0} is empty; free with wr_ids_free. */
typedef struct wr_ids { int32_t *ptr; size_t len, cap; } wr_ids;
weir_status wr_ids_put(wr_ids *ids, int32_t id);
void wr_ids_free(wr_ids *ids);

/* Both append. Text up to 1 GiB a call; EUNSUPPORTED for a byte that has no token; EUSAGE for an id outside the vocabulary. */
weir_status wr_encode(const wr_tokenizer *t, const char *text, size_t n, unsigned flags, wr_ids *out);
/* wr_encode for much text in many calls: it keeps its buffers and remembers the ids of short words (a table of 2 MB). The ids are
 * the same. For one thread at a time; `t` must outlive it. */
typedef struct wr_encoder wr_encoder;
weir_status wr_encoder_open(const wr_tokenizer *t, wr_encoder **out);
weir_status wr_encoder_put(wr_encoder *e, const char *text, size_t n, unsigned flags, wr_ids *out);
void wr_encoder_close(wr_encoder *e); /* NULL allowed */

weir_status wr_decode(const wr_tokenizer *t, const int32_t *ids, size_t n, unsigned flags, wr_str *out);

/* ---- stream: ids come one at a time, whole characters go out. What put and flush append, together, is what wr_decode gives
 * for all the ids. Up to three bytes that begin a UTF-8 sequence are held back until it is complete or broken; invalid bytes
 * pass unchanged. Text that continues a prompt: put the prompt's ids first and forget what they give. */
typedef struct wr_text_stream {
  const wr_tokenizer *tokenizer;
  unsigned flags;              /* WR_TEXT_KEEP_SPECIAL, WR_TEXT_CONTINUES */
  bool at_start;               /* the next text loses its space prefix */
  uint8_t n_held;
  char held[4];
} wr_text_stream;
void wr_text_stream_init(wr_text_stream *s, const wr_tokenizer *t, unsigned flags);
weir_status wr_text_stream_put(wr_text_stream *s, int32_t id, wr_str *out);
weir_status wr_text_stream_flush(wr_text_stream *s, wr_str *out); /* what is held, complete or not; the stream can go on */

/* ---- training byte-level BPE: bpe_train.c. Ids as Hugging Face's ByteLevel BPE trainer gives them: 0 is <|endoftext|>, then the 256
 * bytes in the order of their characters, then a token a merge, the most frequent pair first, of equal ones that with the lowest
 * ids. The result depends on the texts alone, not on threads or on the order in which the texts came. */
typedef struct wr_bpe_options {
  int64_t vocab;       /* tokens, WR_BPE_MIN_VOCAB or more; fewer come out when no pair is left that is frequent enough */
  const char *pre;     /* a row of pretok.def; NULL: "gpt-2" */
  uint64_t min_count;  /* a pair must be there so often; 0: 2, as in Hugging Face's ByteLevelBPETokenizer */
  int threads;         /* 0: all */
} wr_bpe_options;
#define WR_BPE_MIN_VOCAB 257
typedef struct wr_bpe_report {
  uint64_t bytes, words, distinct; /* of text, counted so far; words of one byte and more */
  uint64_t tokens;                 /* of that text, once trained */
  int64_t vocab;
} wr_bpe_report;
typedef int wr_bpe_progress(void *user, int64_t vocab, int64_t wanted); /* not 0: stop, ESTOPPED */

typedef struct wr_bpe_trainer wr_bpe_trainer;
weir_status wr_bpe_trainer_open(const wr_bpe_options *options, wr_bpe_trainer **out);
/* One text; no word goes on from it to the next. Copied. Words longer than 256 bytes are counted in pieces. */
weir_status wr_bpe_trainer_add(wr_bpe_trainer *b, const char *text, size_t n);
weir_status wr_bpe_trainer_finish(wr_bpe_trainer *b, wr_bpe_progress *progress, void *user, wr_tokenizer **out); /* once */
void wr_bpe_trainer_get_report(const wr_bpe_trainer *b, wr_bpe_report *out);
void wr_bpe_trainer_close(wr_bpe_trainer *b); /* NULL allowed */

/* ---- chat: ChatML or Gemma's format, by the control tokens that the vocabulary has; chat.c says what they are. The scaffolding is
 * control tokens; role and content are text, whatever they spell. EUNSUPPORTED when the vocabulary has neither's; EUSAGE for a role that
 * is not 1 to 32 of [A-Za-z0-9_-], and for an order of roles that the format does not have. */
typedef struct wr_chat_message {
  const char *role, *content;
  size_t role_len, content_len;
} wr_chat_message;
const char *wr_chat_format(const wr_tokenizer *t); /* "chatml", "gemma"; NULL: neither */
/* generate: ends where the assistant's answer begins. flags: WR_TEXT_ADD_SPECIAL (BOS only), WR_TEXT_LOSSY. Appends. */
weir_status wr_chat_encode(const wr_tokenizer *t, const wr_chat_message *messages, size_t n, bool generate, unsigned flags,
                           wr_ids *out);

#endif
