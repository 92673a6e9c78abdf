/* weir.h: the public API of weir, an engine that trains and runs generative language models.
 * SPDX-License-Identifier: Apache-2.0
 *
 * This header is the manual. In short:
 *
 *   weir_context *ctx;  weir_context_open(NULL, &ctx);                 threads, devices, memory
 *   weir_model *m;      weir_model_open(ctx, "m.gguf", NULL, &m);      weights, mapped and shared read-only
 *   weir_session *s;    weir_session_open(m, NULL, &s);                one sequence: its KV cache
 *   weir_generate(s, "Hello", 5, NULL, print_piece, user, &result);    text out, with how fast and why
 *
 * Rules that hold everywhere
 * - weir_noun_verb; the object comes first, outputs come last and are untouched on failure.
 * - A call that can fail returns a weir_status: 0, or one of the negative codes below. weir_last_error() is the sentence that
 *   says what was wrong, of the last failed call of the calling thread.
 * - In an option struct {0} is the default of every field. NULL for the whole struct means the same.
 * - The library never exits, never prints, never installs a signal handler. weir_hooks replaces its allocator, clock and log, and lets a test make files fail.
 * - Two threads may use two handles. One handle is used by one thread at a time, except weir_stop() and what "batch" names. A model is shared
 *   read-only by any number of sessions; close them before the model, and the models before the context.
 * - Text is bytes with a length. It is UTF-8 where it is text; nothing needs a final NUL unless it says so.
 *
 * Environment: $WEIR_CACHE is where files are kept (see 'cache'), $WEIR_ISA (generic, avx2, avx512, neon) forbids newer instructions,
 * $WEIR_USE forces kernel rows (see weir_model_options.use), $WEIR_TUNE=off ignores the tune file (see 'bench').
 *
 * Caveats
 * - A mapped model file that another process truncates raises SIGBUS in the reader; weir_model_options.no_mmap reads it
 *   instead.
 */
#ifndef WEIR_H
#define WEIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --------------------------------------------------------------------------------------------------------------- status */

/* name, value, exit code of the command line for it, what it means */
#define WEIR_STATUS_MAP(X) \
  X(OK, 0, 0, "done") \
  X(EFAIL, -1, 1, "the work failed") \
  X(EUSAGE, -2, 2, "wrong usage: an argument or option is missing, unknown or out of range") \
  X(EFORMAT, -3, 3, "the input is malformed") \
  X(EUNSUPPORTED, -4, 3, "the input is well-formed but weir does not support it") \
  X(ENOMEM, -5, 4, "not enough memory or disk") \
  X(EDEVICE, -6, 5, "a device failed") \
  X(EIO, -7, 1, "a file could not be opened, read or written") \
  X(ESTOPPED, -8, 130, "stopped by weir_stop() or by a callback")

typedef enum weir_status {
#define X(name, value, exit_code, text) WEIR_##name = value,
  WEIR_STATUS_MAP(X)
#undef X
} weir_status;

const char *weir_status_name(weir_status status);  /* "WEIR_ENOMEM"; "unknown status" for a number that is none of them */
int weir_status_exit_code(weir_status status);     /* what the command line exits with */
const char *weir_last_error(void);                 /* a sentence, never NULL; valid until this thread's next failing call */
const char *weir_version(void);                    /* "0.1.0" */

/* ---------------------------------------------------------------------------------------------------------------- hooks */

typedef enum weir_log_level {
  WEIR_LOG_DEFAULT = 0,
  WEIR_LOG_ERROR,
  WEIR_LOG_WARN,
  WEIR_LOG_INFO,
  WEIR_LOG_DEBUG
} weir_log_level;

/* Process-wide. Set them before the first other call, or while nothing of weir exists. A NULL member keeps the built-in one.
 * allocate/release: every heap allocation of the library goes through them, so a test can make the n-th one fail. */
typedef struct weir_hooks {
  void *(*allocate)(void *user, size_t bytes);              /* aligned as malloc does; NULL: no memory */
  void *(*reallocate)(void *user, void *ptr, size_t bytes); /* as realloc */
  void (*release)(void *user, void *ptr);                   /* as free */
  uint64_t (*clock_ns)(void *user);                         /* monotonic */
  void (*log)(void *user, weir_log_level level, const char *message);
  weir_log_level log_level;                                 /* default: WARN; without a log hook nothing is printed */
  /* Asked before a file is changed: `op` is "create", "write", "fsync", "rename", "mkdir" or "unlink". 0: go on; else the errno that
   * it fails with. */
  int (*file)(void *user, const char *op, const char *path);
  void *user;
} weir_hooks;
void weir_set_hooks(const weir_hooks *hooks); /* NULL: back to the built-in ones */

/* -------------------------------------------------------------------------------------------------------------- context
 * A device and its team of threads. Models are opened in a context and share its team: calls into two sessions of one context
 * from two threads are safe and take turns. */

typedef struct weir_context weir_context;
typedef struct weir_context_options {
  int threads;             /* 0: the physical cores that affinity and cgroup quota leave; at most 1024 */
  bool pin;                /* bind thread i to the i-th usable CPU */
  /* "cpu,opencl:0": up to four that share the layers of a model, in proportion to their speed and as far as they fit; the first one's memory is
   * what memory_bytes and weir_context_memory are about. NULL: "cpu". "opencl": the first OpenCL device that can be used, "opencl:1" the second of weir_device_list. "emu" runs other devices'
   * kernels on the host, for tests. "null" plans without memory: plans only, running gives EUNSUPPORTED */
  const char *device;
  uint64_t memory_bytes;   /* upper limit for everything that models and sessions take; 0: what the machine allows */
  int (*progress)(void *user, const char *what, double done); /* while kernels are compiled; done 0 ... 1; not 0 back: ESTOPPED. May be NULL */
  void *user;
} weir_context_options;
weir_status weir_context_open(const weir_context_options *options, weir_context **out);
void weir_context_close(weir_context *ctx);               /* NULL allowed; after its models */
int weir_context_threads(const weir_context *ctx);
int64_t weir_context_launches(const weir_context *ctx);   /* kernels started on a device other than the CPU since it was opened */
/* The memory that a new model or session could still take: the least of limit, cgroup, address-space limit and free memory. */
uint64_t weir_context_memory(const weir_context *ctx);

/* What this machine has: the processor, each device of each OpenCL driver, a line for a driver that cannot be loaded, or for that there is
 * none. Pointers are good during the call. */
typedef struct weir_device_info {
  const char *name, *text;       /* "cpu", "opencl:0": what weir_context_options.device takes; "the CPU: avx512, 2 threads", or why not */
  const char *driver, *platform; /* its version; "OpenCL 3.0 ...": NULL where there is none */
  uint64_t memory_bytes;         /* of its own, or what it may take of the host's; 0: what the host has */
  bool usable;                   /* can run models here */
} weir_device_info;
weir_status weir_device_list(void (*each)(void *user, const weir_device_info *d), void *user);

/* What the caller was given to keep (it says 'weir_free') goes back here. NULL allowed. */
void weir_free(void *ptr);

/* ------------------------------------------------------------------------------------------------------------ tokenizer
 * Text to token ids and back. Opened by path: a GGUF file (a model, or a vocabulary alone), a tokenizer.json of Hugging Face's
 * tokenizers, a folder with tokenizer.gguf or tokenizer.json in it, a run or a checkpoint; or the name "bytes": 256 byte tokens and <|endoftext|>, id 256.
 * Read-only once open: any number of threads.
 * Ids are 0 … vocab-1. Text is taken byte for byte; input that is not UTF-8 is encoded as bytes where the vocabulary has
 * bytes. */

typedef int32_t weir_token;
typedef struct weir_tokenizer weir_tokenizer;
weir_status weir_tokenizer_open(const char *path, weir_tokenizer **out);
void weir_tokenizer_close(weir_tokenizer *t);             /* NULL allowed; not for the one of a model */

typedef struct weir_tokenizer_info {
  const char *name, *pre;  /* "gpt2/smollm" or "llama"; "smollm", or "" where it has none. Valid as long as the tokenizer */
  int vocab;
  weir_token bos, eos, unk; /* -1: none */
  bool add_bos, add_eos;   /* what the file asks encode to do */
  const char *chat;        /* the format of weir_tokenizer_chat, by the control tokens that there are: "chatml", "gemma"; NULL: none */
} weir_tokenizer_info;
void weir_tokenizer_get_info(const weir_tokenizer *t, weir_tokenizer_info *out);

enum {
  WEIR_TEXT_PARSE_SPECIAL = 1, /* encode: the text of a special token ("<|im_end|>") becomes it. Not for text of strangers */
  WEIR_TEXT_NO_BOS = 2,        /* encode: no beginning- or end-of-sequence token, whatever the file says */
  WEIR_TEXT_SHOW_SPECIAL = 4,  /* decode: special tokens appear as their text; without it they are nothing */
  WEIR_TEXT_CONTINUES = 8,     /* both: goes on from earlier text, so that a vocabulary's space prefix is neither put nor taken away */
};
/* *tokens: weir_free. An empty text is no token (or only BOS). */
weir_status weir_tokenizer_encode(const weir_tokenizer *t, const char *text, size_t n, unsigned flags, weir_token **tokens,
                                  size_t *n_tokens);
/* *text: weir_free; a NUL follows its *bytes bytes. Whatever the bytes are: not proved UTF-8. EUSAGE: an id outside the
 * vocabulary. */
weir_status weir_tokenizer_decode(const weir_tokenizer *t, const weir_token *tokens, size_t n_tokens, unsigned flags,
                                  char **text, size_t *bytes);

typedef struct weir_message {
  const char *role;        /* "system", "user", "assistant": letters, digits, '_' and '-' only */
  const char *content;     /* bytes; never read as special tokens */
  size_t content_bytes;    /* 0 and content not NULL: strlen(content) */
} weir_message;
/* A conversation in the vocabulary's format, and with `answer` the beginning of the assistant's turn. ChatML takes any roles in any order;
 * Gemma's has user and assistant in turn (EUSAGE else), and puts a system's message, the first, before the user's. EUNSUPPORTED: the
 * vocabulary has the tokens of neither. *tokens: weir_free. */
weir_status weir_tokenizer_chat(const weir_tokenizer *t, const weir_message *messages, size_t n, bool answer,
                                weir_token **tokens, size_t *n_tokens);

/* Byte-level BPE of a text. Ids are those that Hugging Face's ByteLevel BPE trainer gives: 0 is <|endoftext|>, which begins and ends
 * texts, then the 256 bytes in the order of their characters, then a token a merge: the most frequent pair of neighbours within a word,
 * of equally frequent ones that with the lowest ids. The same text gives the same vocabulary, whatever the threads. Inputs are those
 * of weir_data_build (below); all of the different words must fit into memory, about 100 bytes each. */
typedef struct weir_tokenizer_progress {
  double done;             /* 0 … 1; 0: unknown (standard input) */
  double seconds;
  uint64_t bytes;          /* of text, so far */
  int64_t vocab;           /* tokens so far; 0: still reading */
} weir_tokenizer_progress;
typedef struct weir_tokenizer_train_options {
  int64_t vocab;           /* tokens, 257 or more; 0: 8192. Fewer come out when no pair is frequent enough */
  const char *pre;         /* how text is cut into words: "gpt-2", "llama-bpe", "qwen2", "smollm", …; NULL: "gpt-2" */
  uint64_t min_count;      /* a pair that is merged occurs so often; 0: 2 */
  const char *field;       /* of JSONL; NULL: "text" */
  bool jsonl;              /* standard input, and files whose name does not say, are JSONL */
  double val_share;        /* leave out what weir_data_build with this share keeps for validation; 0: nothing */
  bool strict;             /* stop at the first bad record; else they are counted */
  double max_bad;          /* share of bad records that is borne; 0: 0.01; 1: any */
  uint64_t most_bytes;     /* read no further than about so many bytes of text; 0: all */
  int threads;             /* 0: the default number */
  int (*progress)(void *user, const weir_tokenizer_progress *p); /* not 0: ESTOPPED; may be NULL */
  void *user;
} weir_tokenizer_train_options;
typedef struct weir_tokenizer_train_report {
  uint64_t bytes, docs, records, bad; /* of text; documents; records of JSONL, those refused */
  uint64_t words, distinct; /* cut out of the text, and how many different ones */
  uint64_t tokens;         /* that the text becomes */
  int64_t vocab;
  double seconds, mb_s;    /* 10^6 bytes of text a second, reading and training */
  double tokens_per_byte;
} weir_tokenizer_train_report;
/* options and report may be NULL. EFORMAT: bad records; EUSAGE: a vocabulary below 257, an unknown `pre`. */
weir_status weir_tokenizer_train(const char *const *inputs, size_t n_inputs, const weir_tokenizer_train_options *options,
                                 weir_tokenizer_train_report *report, weir_tokenizer **out);
/* Writes a vocabulary as the name ends: .gguf; .json, the tokenizer.json of Hugging Face's tokenizers, which gives equal ids there
 * (byte-level BPE only, else EUNSUPPORTED). */
weir_status weir_tokenizer_save(const weir_tokenizer *t, const char *path);

/* ----------------------------------------------------------------------------------------------------------------- data
 * Text to token shards. A folder of shards holds manifest.json, tokenizer.gguf, and train-00000.bin …, val-00000.bin …: the tokens of
 * documents one after another, each with the vocabulary's end-of-text token after it (and its beginning-of-text token before it, where
 * the vocabulary asks for one), 2 or 4 bytes an id, with counts, checksums and where each document ends.
 *
 * Inputs are files, folders (all their files in byte order of the paths; hidden and binary ones are left out), JSONL by name (.jsonl,
 * .ndjson), gzip and zstd of these by content, and "-", standard input. A text file is one document; so is each record of JSONL.
 * Text is bytes: invalid UTF-8 and NUL pass, and are counted; in JSONL invalid UTF-8 makes a bad record. The ids of a document are those
 * of the whole text, however many threads cut it.
 *
 * Validation: documents by their number, `val_share` of any run of them; when the input is few plain files, the last part of each.
 *
 * A build that was interrupted goes on after its last whole shard when it is started again with the same arguments, and ends with the
 * same bytes. */

typedef struct weir_data_progress {
  double done;             /* 0 … 1, by bytes of input; 0: unknown (standard input) */
  double seconds;
  uint64_t bytes, tokens;  /* of text, so far */
} weir_data_progress;
typedef struct weir_data_build_options {
  const char *field;       /* of JSONL; NULL: "text" */
  bool jsonl;              /* standard input, and files whose name does not say, are JSONL */
  double val_share;        /* 0: 0.01; below 0: no validation split */
  bool strict;             /* stop at the first bad record; else they are counted */
  double max_bad;          /* share of bad records that is borne, judged from 1,000 records on and at the end; 0: 0.01; 1: any */
  int64_t shard_tok;       /* tokens after which a new shard is begun; 0: 64 Mi */
  int threads;             /* 0: the default number */
  int (*progress)(void *user, const weir_data_progress *p); /* not 0: ESTOPPED; may be NULL */
  void *user;
} weir_data_build_options;

typedef struct weir_data_bad {
  char where[200];         /* "file:line:column", escaped for a terminal; the column counts bytes from 1 */
  char rule[88];           /* what is wrong */
} weir_data_bad;
enum { WEIR_DATA_BAD_SHOWN = 16 };
typedef struct weir_data_build_report {
  uint64_t bytes;          /* of text */
  uint64_t docs, val_docs, tokens, val_tokens;
  uint64_t records, bad, empty; /* of JSONL, not blank; of those refused; documents without text, left out */
  uint64_t not_utf8, nul;  /* pieces of plain text that are not all UTF-8; NUL bytes */
  uint64_t binary_files;   /* of folders, left out */
  uint64_t resumed_tokens; /* were there already */
  int shards, token_bytes;
  double seconds, mb_s;    /* 10^6 bytes of text a second */
  double bytes_per_token;
  size_t n_shown;
  weir_data_bad shown[WEIR_DATA_BAD_SHOWN]; /* the first bad records; filled in also when the build fails because of them */
  char note[200];          /* something to know, as an empty validation split; "" mostly */
} weir_data_build_report;
/* options and out may be NULL. EFORMAT: strict and a bad record, or too many; no text. EUSAGE: the folder holds other shards, or an
 * unfinished build of something else. ENOMEM: the disk is full; what is complete stays and the build can go on. */
weir_status weir_data_build(const weir_tokenizer *t, const char *const *inputs, size_t n_inputs, const char *folder,
                            const weir_data_build_options *options, weir_data_build_report *out);

typedef struct weir_data_count { weir_token id; uint64_t count; char text[48]; } weir_data_count; /* text: escaped for a terminal */
enum { WEIR_DATA_LENGTHS = 48, WEIR_DATA_FREQUENT = 32 };
typedef struct weir_data_info {
  char tokenizer[64];      /* "gpt2/smollm" */
  uint64_t tokenizer_hash;
  int vocab, token_bytes, shards;
  uint64_t docs, val_docs, tokens, val_tokens, bytes; /* bytes: of the text that it was made from */
  double bytes_per_token;
  /* by reading every token: weir_data_stats only */
  uint64_t unused;         /* ids of the vocabulary that do not occur */
  uint64_t least_tok, most_tok; /* of a document, with its end token */
  double mean_tok;
  uint64_t lengths[WEIR_DATA_LENGTHS]; /* documents of 2^i … 2^(i+1) - 1 tokens */
  size_t n_frequent;
  weir_data_count frequent[WEIR_DATA_FREQUENT]; /* most frequent first */
} weir_data_info;
/* Reads a folder of shards through: manifest, headers, checksums, ids below the vocabulary, document ends ascending, all counts.
 * EFORMAT names the file and what is wrong. *out (may be NULL) as weir_data_stats without the frequencies. */
weir_status weir_data_check(const char *folder, int (*progress)(void *user, const weir_data_progress *p), void *user, weir_data_info *out);
weir_status weir_data_stats(const char *folder, int (*progress)(void *user, const weir_data_progress *p), void *user, weir_data_info *out);

typedef struct weir_data_bench_row {
  const char *name;        /* static */
  double tok_s;            /* tokens a second that the consumer received; it adds up every one of them. Best of the repeats */
  double copied_per_tok;   /* bytes copied for each */
  uint64_t tokens, sum;    /* of one epoch: targets received; sum of all inputs and all targets, the same in every row */
} weir_data_bench_row;
enum { WEIR_DATA_BENCH_ROWS = 3 };
/* Epochs of a folder's training split in batches of `batch` samples: the loader's views as they are; widened into a training program's
 * tables; and the pipeline that most programs have (read, decode, collate, copy to staging, copy to the device). reps 0: 5. */
weir_status weir_data_bench(const char *folder, int64_t batch, int64_t context_tok, int reps, weir_data_bench_row *rows);

/* ---------------------------------------------------------------------------------------------------------------- model
 * Weights, read-only, shared by any number of sessions. Opening maps the file. On the CPU the matrices are then kept in a
 * packed form (sixteen rows interleaved): a file in the cache folder, made at the first opening (seconds) and mapped from then
 * on; see 'cache'. */

typedef struct weir_model weir_model;
typedef struct weir_model_options {
  bool no_mmap;            /* read the file into memory instead of mapping it */
  bool no_pack;            /* compute in the file's own layout: slower, but nothing is written to the cache folder */
  bool force_pack;         /* pack also above 4 GB or a tenth of the free disk */
  const char *use;         /* forces kernel rows, "op:row,op:row"; NULL: $WEIR_USE */
} weir_model_options;
/* path: a GGUF file, any part of a split one; a run's folder, which stands for its newest checkpoint that is whole (sizes and
 * checksums; newer ones that are not are named in the log); or the folder of a checkpoint.
 * EIO, EFORMAT (malformed or impossible, naming key and value), EUNSUPPORTED (architecture or type, by name), ENOMEM. */
weir_status weir_model_open(weir_context *ctx, const char *path, const weir_model_options *options, weir_model **out);
void weir_model_close(weir_model *m);                     /* NULL allowed; after its sessions */

typedef struct weir_model_info {                          /* strings live as long as the model */
  const char *path, *name, *arch;                         /* name: general.name, escaped for a terminal; may be "" */
  const char *types;       /* types of the matrices, most bytes first: "q4_0, q8_0" */
  const char *layout;      /* "packed: <path>", or why it is not: "plain: no_pack was asked", … */
  const char *devices;     /* which of several devices has which layers, and what a layer takes there; NULL: there is one */
  int layers, width, ff, heads, kv_heads, head_width, vocab;
  int64_t trained_tok;     /* context it was trained with */
  int64_t default_tok;     /* context of a session that asks for none */
  uint64_t parameters;
  uint64_t file_bytes;
  uint64_t weight_bytes;   /* in the form that is computed with */
  uint64_t token_bytes;    /* of which one token's decode reads (weights; KV comes on top) */
  uint64_t kv_token_bytes; /* cache of one token position in F16 */
  double load_seconds;     /* opening, without packing */
  double pack_seconds;     /* 0: the packed file was there, or is not used */
} weir_model_info;
void weir_model_get_info(const weir_model *m, weir_model_info *out);
const weir_tokenizer *weir_model_tokenizer(const weir_model *m);

/* For each kind of instruction of the one-token program the kernel that was chosen and why not the ones before it; or the
 * program itself. As snprintf: at most cap bytes with the NUL, returns the length of the whole text. */
size_t weir_model_why(const weir_model *m, char *out, size_t cap);
size_t weir_model_program(const weir_model *m, char *out, size_t cap);

/* -------------------------------------------------------------------------------------------------------------- session
 * One sequence of tokens and its KV cache: state is always that of a prefix. Pages of 32 positions, touched only when used,
 * shared by forks until one of them writes. Logits of a position have the same bits for any number of threads, however the
 * prompt was cut, whoever ran beside it and whatever prefix was reused (same build, machine, KV type, and weights packed or not). */

typedef struct weir_session weir_session;
/* Types of the cache; the default is F16. Q8_0 and Q4_0 have a scale for 32 elements of a head and position, and need heads that are a
 * multiple of 32 wide. What they cost in quality: doc/notes/0008-attention.md. */
typedef enum weir_kv_type {
  WEIR_KV_DEFAULT = 0,
  WEIR_KV_F16,
  WEIR_KV_F32,
  WEIR_KV_BF16,
  WEIR_KV_Q8_0,
  WEIR_KV_Q4_0
} weir_kv_type;
typedef struct weir_session_options {
  int64_t context_tok;     /* capacity in tokens. 0: the least of trained context, 8192, and what half the memory left holds */
  int64_t pool_tok;        /* positions that the session and its forks can hold together, shared ones once; 0: context_tok */
  weir_kv_type kv;
  int piece_tok;           /* feed at most so many tokens at a time, 1 … 256; 0: 256. Changes speed, never a bit */
} weir_session_options;
/* ENOMEM names the context, its bytes and what to ask for instead. EUSAGE: out of range. */
weir_status weir_session_open(weir_model *m, const weir_session_options *options, weir_session **out);
void weir_session_close(weir_session *s);                 /* NULL allowed */
/* A second session in the same state, from now on independent. Costs no copy of the cache. */
weir_status weir_session_fork(weir_session *s, weir_session **out);

int64_t weir_session_length(const weir_session *s);       /* tokens in the state */
int64_t weir_session_capacity(const weir_session *s);     /* context_tok as it came out */
const weir_token *weir_session_tokens(const weir_session *s); /* [length], valid until the session changes */

/* Make the state equal to tokens[0, n): what it shares with the present state is kept, the rest evaluated. n >= 1. *reused (may
 * be NULL): how many positions were kept. Afterwards weir_session_logits() are those of the last token. EUSAGE: n above the
 * capacity, an id outside the vocabulary; then, and on ESTOPPED, the state is some prefix (see length). */
weir_status weir_session_sync(weir_session *s, const weir_token *tokens, size_t n, size_t *reused);
/* Called for each evaluated position in order, on the calling thread; logits [vocab] are valid during the call. Not 0:
 * ESTOPPED. */
typedef int (*weir_logits_fn)(void *user, int64_t position, const float *logits, int vocab);
/* Append n tokens. fn NULL: only the last position's logits are computed. */
weir_status weir_session_eval(weir_session *s, const weir_token *tokens, size_t n, weir_logits_fn fn, void *user);
/* Forget all but the first `length` tokens. EUSAGE: longer than the state. If any went, the logits
 * are gone until the next eval or sync. */
weir_status weir_session_rewind(weir_session *s, int64_t length);
/* Logits of the last evaluated position, [vocab], owned by the session, valid until it changes. EUSAGE: nothing was
 * evaluated. */
weir_status weir_session_logits(const weir_session *s, const float **logits, int *vocab);
uint64_t weir_logits_hash(const float *logits, size_t n); /* of the bits: equal hashes mean equal logits */

/* Mean negative log-likelihood (natural log) of tokens[first, n), each given all before it; 1 <= first < n. The state becomes
 * tokens[0, n) as by sync. */
weir_status weir_session_score(weir_session *s, const weir_token *tokens, size_t n, size_t first, double *mean_nll);

/* Make the running weir_generate, sync, eval or score of this session end soon with what it has; if none runs, the next one.
 * From any thread or signal handler. */
void weir_stop(weir_session *s);

/* ------------------------------------------------------------------------------------------------------------- sampling
 * Order: repetition penalty, temperature, top-k, top-p, min-p, draw. At temperature 0 the largest logit wins (the lowest id of
 * equal ones) and no random number is used. At least one candidate always survives. A field that is 0 has its default, unless
 * its bit is in `given`.
 *
 * X(field, type, default, minimum, maximum, what it does). A minimum that ends in 1e-6 stands for 'above 0'. */
#define WEIR_SAMPLING_MAP(X) \
  X(temperature, float, 0, 0, 100, "flattens (above 1) or sharpens the distribution; 0: greedy") \
  X(top_k, int32_t, 0, 0, 2147483647, "keep only the k likeliest tokens; 0: all") \
  X(top_p, float, 1, 0, 1, "keep the likeliest tokens that together reach this probability; 1: all") \
  X(min_p, float, 0, 0, 1, "keep tokens at least this share of the likeliest one; 0: all") \
  X(repeat_penalty, float, 1, 1e-6, 100, "divides (or multiplies, if negative) logits of recent tokens; 1: none") \
  X(repeat_last_n, int32_t, 64, 0, 2147483647, "how many of the last tokens count as recent") \
  X(seed, uint64_t, 0, 0, 18446744073709549568.0, "of the random numbers; 0: from the system, the result says which")

enum {
#define X(field, type, def, min, max, text) WEIR_SAMPLING_AT_##field,
  WEIR_SAMPLING_MAP(X)
#undef X
  WEIR_SAMPLING_COUNT
};
typedef struct weir_sampling {
#define X(field, type, def, min, max, text) type field;
  WEIR_SAMPLING_MAP(X)
#undef X
  uint32_t given;          /* bit 1 << WEIR_SAMPLING_AT_<field>: take the field as it is even if it is 0 */
} weir_sampling;
/* Set a field by its name and mark it given. EUSAGE names field, value and range; NaN and infinities are refused. Seeds above
 * 2^53 lose bits here: set the field. */
weir_status weir_sampling_set(weir_sampling *sampling, const char *field, double value);
weir_status weir_sampling_check(const weir_sampling *sampling); /* NULL: the defaults. What every call below does first */

/* Choose how weir_session_sample draws, and start its random numbers. *seed (may be NULL): the one in use. NULL: greedy. */
weir_status weir_session_set_sampling(weir_session *s, const weir_sampling *sampling, uint64_t *seed);
/* Draw from the logits of the last position. Does not append the token: weir_session_eval does. */
weir_status weir_session_sample(weir_session *s, weir_token *token);

/* ------------------------------------------------------------------------------------------------------------- generate */

typedef struct weir_text {
  const char *ptr;
  size_t bytes;
} weir_text;

typedef struct weir_generate_options {
  int64_t max_tok;         /* 0: 256; -1: until the context is full. Never more than the context holds */
  weir_sampling sampling;
  const weir_text *stop;   /* [n_stop] texts that end the answer, also across tokens; neither they nor what follows appears */
  size_t n_stop;           /* at most 16; an empty one is EUSAGE */
  const weir_token *stop_tokens; /* [n_stop_tokens] ids that end the answer, besides the vocabulary's own */
  size_t n_stop_tokens;
  bool ignore_eos;         /* the vocabulary's end tokens do not stop */
  bool parse_special;      /* text prompt: special tokens in it count as such */
  bool show_special;       /* text of special tokens appears in the answer */
  bool chat;               /* text prompt: it is the user's message of a conversation */
  const char *system;      /* with chat: the system message; NULL: none */
  bool profile;            /* fill weir_result.profile: times every kernel, costs a few percent. Of forks, one at a time */
  bool no_limit;           /* do not measure the limit (saves a few tens of milliseconds) */
} weir_generate_options;

typedef enum weir_finish { WEIR_FINISH_STOP = 1, WEIR_FINISH_LENGTH, WEIR_FINISH_STOPPED } weir_finish;
const char *weir_finish_name(weir_finish f);              /* "stop" (end token or text), "length", "stopped" (told to) */

/* One line of the op table. Lines add up to the wall time of the decode. */
typedef struct weir_profile_row {
  const char *op;          /* "matmul"; or what is not an op: "sample", "text", "other" */
  const char *kernel;      /* "matmul_q4_0_cpu_avx512"; "" if not an op */
  const char *what;        /* the weights it works on ("ffn_up"), or "" */
  int64_t calls;
  double ms, bytes;        /* over all decode steps; bytes by the op's cost rule */
  double gb_s;             /* bytes / time */
  double share;            /* of the wall time, 0 … 1 */
  double loss_ms;          /* time beyond what its bytes take at the limit's bandwidth; < 0: faster than that, from caches */
} weir_profile_row;
typedef struct weir_profile {
  weir_profile_row *rows;  /* largest loss first */
  size_t n_rows, n_tokens;
  double wall_ms, bytes, limit_gb_s;
} weir_profile;
size_t weir_profile_print(const weir_profile *p, char *out, size_t cap); /* as snprintf; the last line names the largest loss */

typedef struct weir_result {
  char *text;              /* the answer, UTF-8, NUL at the end */
  size_t text_bytes;
  weir_token *tokens, *prompt_tokens; /* ids generated (a stop token included), and ids of the prompt */
  size_t n_tokens, n_prompt_tokens;
  size_t n_reused;         /* prompt positions that were in the cache already */
  weir_finish finish;
  uint64_t seed;           /* in use; 0: greedy, none was */
  int64_t context_tok;
  struct {
    double queue;          /* of a batch: until its first step */
    double load;           /* opening the model, packing included */
    double prefill;        /* prompt to its last logits */
    double decode;         /* from there to the end; the limit's measuring is not in it */
    double limit;          /* that measuring */
  } seconds;
  double prefill_tok_s;    /* evaluated prompt tokens / prefill; 0: none */
  double prefill_share;    /* of the time that the prompt's operations take at this machine's arithmetic peaks (int8 where products are of
                              bytes, else fp32), by what was kept of it when the context first asked; 0: nothing (weir bench machine), no_limit, or
                              a batch's result */
  double decode_tok_s;     /* decode steps (tokens - 1: the first comes from the prompt's logits) / decode; 0: none */
  double bytes_per_token;  /* mean over the decode steps, weights + KV, from the cost rules */
  double weight_bytes_per_token, kv_bytes_per_token;
  double moved_bytes_per_token; /* of decode, between devices, and between the host and devices that are not the CPU */
  double limit_tok_s;      /* limit_gb_s / bytes_per_token; 0: not measured */
  double limit_gb_s;       /* best of limit_runs plain reads of the pages that a token reads, between its tokens */
  double limit_gb_s_worst;
  int limit_runs;
  double limit_bytes;      /* read in each of them: all that a token reads, at most 256 MB */
  const char *limit_mode;  /* "cache" or "memory": does limit_bytes fit the last-level cache? "": not measured */
  double share_of_limit;   /* decode_tok_s / limit_tok_s. Above 1 is a measuring error, and shown as one */
  double huge_share;       /* of the weights' bytes that are mapped in huge pages, where the limit was asked for */
  weir_profile *profile;   /* NULL: not asked for */
} weir_result;
void weir_result_free(weir_result *r);                    /* NULL allowed */

/* Called with the answer as it grows: whole UTF-8 characters, never text that may yet turn out to be a stop text. The pieces
 * put together are result.text. Bytes that cannot be UTF-8 become U+FFFD. Not 0: end here ("stopped"). */
typedef int (*weir_piece_fn)(void *user, const char *piece, size_t bytes);

/* Make the session equal to the prompt (what it shares with the session's state is reused) and go on from there. fn may be
 * NULL. An empty prompt is allowed where the vocabulary has a BOS or EOS token to begin with. */
weir_status weir_generate(weir_session *s, const char *prompt, size_t prompt_bytes, const weir_generate_options *options,
                          weir_piece_fn fn, void *user, weir_result **out);
weir_status weir_generate_tokens(weir_session *s, const weir_token *prompt, size_t n, const weir_generate_options *options,
                                 weir_piece_fn fn, void *user, weir_result **out); /* chat, system, parse_special: not here */

/* ---------------------------------------------------------------------------------------------------------------- batch
 * Many requests at once, for a server or a file of prompts. Each step is one pass over the weights: it takes the next token of every
 * sequence that runs, and beside them a piece of the prompts that are still being read. Sequences join and leave at any step.
 *
 * What a request answers has the same bits as weir_generate gives alone, whoever runs beside it and whenever it came.
 *
 * Order: first come, first served. A request waits while all slots are taken or the KV cache has no room for its prompt. Running
 * sequences that outgrow the cache together make the youngest wait again: it goes on later where it was. So every accepted request ends.
 * What prompts have in common (in whole pages of 32 positions) is evaluated and stored once, also with requests that have ended, as
 * long as nobody needs their pages.
 *
 * Threads: weir_batch_add, _cancel, _stop and _get_report from any thread at any time, from callbacks too (and _stop from signal
 * handlers). _step, _run and _wait by one thread at a time: it is the one that callbacks are called on. */

typedef struct weir_batch weir_batch;
typedef struct weir_batch_options {
  int slots;               /* sequences that run at once, 1 ... 64; 0: 16 */
  int64_t context_tok;     /* longest sequence, prompt and answer; 0: as for a session */
  int64_t pool_tok;        /* positions of the KV cache for all together, shared ones once, at least context_tok; 0: slots * context_tok, as
                              far as half of the memory left holds that */
  weir_kv_type kv;
  int piece_tok;           /* prompt tokens that a step takes beside running sequences, 1 ... 256 - slots; 0: 64. More: answers begin sooner,
                              those that run wait longer for their next token */
  bool no_limit;           /* do not measure the limit */
  bool profile;            /* time every kernel of the steps that take nothing but next tokens: see weir_batch_get_report */
} weir_batch_options;
weir_status weir_batch_open(weir_model *m, const weir_batch_options *options, weir_batch **out);
void weir_batch_close(weir_batch *b);                     /* NULL allowed. What has not ended is dropped, without a callback */

/* A request has ended: the result is the callee's to free; or, status not OK, NULL, and weir_last_error() says why. In
 * result.seconds `queue` is from weir_batch_add to its first step, the rest as always. The limit is the report's, not the result's. */
typedef void (*weir_done_fn)(void *user, uint64_t id, weir_status status, weir_result *result);
typedef struct weir_request {
  const char *prompt;      /* text, prompt_bytes of it, or ... */
  size_t prompt_bytes;
  const weir_token *tokens; /* ... where not NULL, its ids: [n_tokens], and options.chat, .system, .parse_special mean nothing */
  size_t n_tokens;
  const weir_generate_options *options; /* NULL: the defaults. profile and no_limit mean nothing here */
  weir_piece_fn piece;     /* may be NULL */
  weir_done_fn done;       /* may be NULL */
  void *user;
} weir_request;
/* Puts a request into the queue; everything it points to may go. *id (may be NULL): 1, 2, 3, ..., there before any callback. EUSAGE: an
 * option is out of range, or the prompt leaves no room for an answer in context_tok: what is accepted can run. */
weir_status weir_batch_add(weir_batch *b, const weir_request *request, uint64_t *id);
/* Ends a request, or all (id 0), with what is there ("stopped"), in the next step. An id that has ended: nothing happens. */
void weir_batch_cancel(weir_batch *b, uint64_t id);
/* One pass. *left (may be NULL): requests that have not ended; 0: there was nothing to do. A failure of one request is told to its `done`
 * only. On a failure of the step (ENOMEM, EDEVICE) nothing is lost: it may be tried again. */
weir_status weir_batch_step(weir_batch *b, size_t *left);
weir_status weir_batch_run(weir_batch *b);                /* steps until nothing is left. ESTOPPED: weir_batch_stop was called */
void weir_batch_wait(weir_batch *b);                      /* sleeps until there is something to do, or weir_batch_stop was called */
/* Makes the running weir_batch_run or _wait return soon; if none runs, the next one. Requests stay. */
void weir_batch_stop(weir_batch *b);

typedef struct weir_batch_report {                        /* so far */
  size_t running, waiting; /* requests, now */
  uint64_t done, failed;   /* requests that ended, failed ones not counted in done */
  uint64_t prompt_tok;     /* of prompts, evaluated */
  uint64_t reused_tok;     /* of prompts, there already */
  uint64_t tokens;         /* generated */
  uint64_t preempted;      /* times that a sequence had to wait again */
  uint64_t again_tok;      /* evaluated again because of that */
  uint64_t steps;
  double seconds;          /* in steps, without the limit's measuring */
  double tok_s;            /* tokens / seconds */
  /* Of the steps that took next tokens only: */
  uint64_t decode_steps, decode_tok;
  double decode_seconds, decode_tok_s;
  double bytes_per_step, weight_bytes_per_step, kv_bytes_per_step;
  double limit_tok_s;      /* limit_gb_s / bytes_per_step * tokens a step; 0: not measured */
  double limit_gb_s, limit_gb_s_worst; /* as in weir_result. A limit of reading: with many sequences arithmetic may be the tighter one */
  int limit_runs;
  double limit_bytes;
  const char *limit_mode;
  double share_of_limit;   /* decode_tok_s / limit_tok_s */
  const weir_profile *profile; /* of those with about as many rows as slots; NULL: not asked for, or none. Until the next report or close */
} weir_batch_report;
weir_status weir_batch_get_report(weir_batch *b, weir_batch_report *out);

/* ----------------------------------------------------------------------------------------------------------------- eval
 * Perplexity: how well a model predicts a text. The default is llama-perplexity's scheme: the text is tokenised at once, with BOS in
 * front where the vocabulary asks for it, and cut into chunks of context_tok tokens, each of which is predicted without the others; BOS
 * then takes the place of each chunk's first token; tokens context_tok/2 + 1 and following of each count, what is left over at the end of
 * the text does not. With stride_tok: a window of context_tok tokens every stride_tok tokens, of which the last stride_tok count. */

typedef struct weir_eval_report {                         /* so far, or of all */
  double done;             /* 0 ... 1 */
  uint64_t tokens;         /* that count */
  double nll;              /* their mean negative log-likelihood, natural log */
  double nll_error;        /* its standard error, tokens taken for independent; that of the perplexity is perplexity * nll_error */
  double perplexity;       /* e to the nll */
  double seconds;
  uint64_t text_tok;       /* tokens of the text, its BOS too */
  int64_t windows, context_tok, stride_tok; /* in all; stride_tok 0: llama-perplexity's scheme */
  bool bos;                /* each window begins with BOS */
} weir_eval_report;
typedef struct weir_eval_options {
  int64_t context_tok;     /* 4 or more; 0: 512, or what the model was trained with where that is less */
  int64_t stride_tok;      /* below context_tok; 0: chunks side by side */
  weir_kv_type kv;
  int (*progress)(void *user, const weir_eval_report *so_far); /* after at most 256 tokens; not 0: ESTOPPED. May be NULL */
  void *user;
} weir_eval_options;
/* The result has the same bits for any number of threads. EUSAGE: the text has fewer than two windows of tokens, or a number is out of
 * range; EFAIL: a loss is not finite; ENOMEM. */
weir_status weir_eval(weir_model *m, const char *text, size_t bytes, const weir_eval_options *options, weir_eval_report *out);

/* ---------------------------------------------------------------------------------------------------------------- cache
 * Packed weights, in "$WEIR_CACHE/packed" ("$XDG_CACHE_HOME/weir/packed", "$HOME/.cache/weir/packed"). A file is named by the
 * model file's size, mtime, inode, header hash and the layout's version, so a changed model never meets an old one. */

typedef struct weir_cache_entry {
  char *path, *source;     /* of the packed file; of the model it was made from, as far as it is known */
  uint64_t bytes;
  bool stale;              /* unreadable, of another version, or its model has changed or is gone */
} weir_cache_entry;
typedef struct weir_cache {
  char *folder;
  weir_cache_entry *entries;
  size_t n_entries;
  uint64_t bytes;
} weir_cache;
weir_status weir_cache_list(weir_cache **out);            /* a folder that does not exist is an empty list */
void weir_cache_free(weir_cache *c);                      /* NULL allowed */
/* Remove packed files: all, or only stale ones. Those in use stay usable until closed. */
weir_status weir_cache_clear(bool only_stale, size_t *n_files, uint64_t *bytes);
/* Read a packed file through and compare its checksum. EFORMAT: it differs. */
weir_status weir_cache_verify(const char *path);

/* ----------------------------------------------------------------------------------------------------------------- plan
 * Will it fit, and what will bound it: from the file's header and a table of devices, before a weight is read. */

typedef struct weir_hardware {                            /* a row of the built-in table; 0: unknown */
  const char *vendor, *device;
  const char *source, *unsure, *sure;                     /* where the figures come from; which are doubtful; A (sure) to C */
  double memory_gb, bandwidth_gb_s;                       /* 10^9 */
  double fp32_tflops, fp16_tflops, bf16_tflops, int8_tops;
  double onchip_mib;
} weir_hardware;
int weir_hardware_count(void);
weir_status weir_hardware_at(int i, weir_hardware *out);  /* strings are static; EUSAGE: no such i */
/* The row whose device name is `part`, or the only one that has it at the beginning of a word, or the only one that contains
 * it, whatever the case. EUSAGE names the candidates. */
weir_status weir_hardware_find(const char *part, weir_hardware *out);

typedef struct weir_plan_options {
  const char *on;          /* part of a device name; NULL: this machine, as 'machine' measured it (now if not before) */
  int64_t context_tok;     /* 0: the session's default */
  int batch;               /* sequences decoded together; 0: 1 */
  weir_kv_type kv;
} weir_plan_options;
/* What the kinds of operations of a decode step take at least, by their cost rules: the longer of bytes ÷ bandwidth and FLOPs ÷ peak, call by
 * call. Launches, barriers and caches are not in it. */
typedef struct weir_plan_op {
  const char *op;
  char *what;              /* kind of weight, "ffn_up"; "": none */
  int64_t calls;
  double bytes, flop, us;  /* of all calls of one step of the batch */
  bool bound_by_bytes;     /* of most of the time */
} weir_plan_op;
typedef struct weir_plan {                                /* bytes are what weir would take, by its own planner */
  char *model, *arch, *types, *device, *source;
  double memory_bytes;     /* of the device; 0: unknown */
  double weight_bytes, kv_token_bytes, kv_bytes, work_bytes, total_bytes;
  int64_t context_tok;
  int batch;
  weir_kv_type kv;
  bool fits;
  int64_t max_context_tok; /* that would fit with this batch; 0: not even the weights */
  double bandwidth_gb_s;
  double token_bytes;      /* read for one step of the batch: weights once, half-full KV of each sequence */
  double token_flop;       /* of one sequence's token */
  double bound_tok_s;      /* batch × bandwidth ÷ token_bytes, or the compute bound where that is lower */
  const char *bound_by;    /* "memory bandwidth" or "arithmetic" */
  char *advice;            /* a sentence: what to change */
  weir_plan_op *ops;       /* [n_ops] the longest first */
  size_t n_ops;
} weir_plan;
weir_status weir_plan_model(weir_context *ctx, const char *path, const weir_plan_options *options, weir_plan **out);
void weir_plan_free(weir_plan *p);                        /* NULL allowed */
size_t weir_plan_print(const weir_plan *p, char *out, size_t cap); /* one screen; as snprintf */
size_t weir_plan_print_ops(const weir_plan *p, char *out, size_t cap); /* a table of its ops; as snprintf */

/* -------------------------------------------------------------------------------------------------------------- machine
 * What this machine can do, measured by plain loops that do nothing else: read bandwidth from L1 to memory, arithmetic peaks,
 * the cost of a barrier, the disk. The result is kept in the cache folder ("machine-<hash of the identity>.txt") and used for
 * predictions; the limit of a run is measured in that run. Numbers are the best of several tries: other load makes them too
 * low. */

enum { WEIR_MACHINE_READS = 128, WEIR_MACHINE_PEAKS = 96, WEIR_MACHINE_BARRIERS = 16 };

typedef struct weir_machine_read {
  uint64_t bytes;          /* working set of all threads together, each with its own part, read again and again */
  int threads;
  double gb_s;             /* 10^9 bytes a second, all threads together */
} weir_machine_read;

typedef struct weir_machine_peak {
  char type[8];            /* "fp32", "fp16", "bf16", "int8": of the factors; sums are fp32, fp16, fp32, int32 */
  char how[16];            /* the instruction: "fma 512", "vnni 512", "maddubs 256", … */
  int threads;
  double gop_s;            /* 10^9 operations a second, a multiply and an add being two, all threads together */
} weir_machine_peak;

typedef struct weir_machine_barrier {
  int threads;
  double best_ns, median_ns;
} weir_machine_barrier;

typedef struct weir_machine {
  char cpu[64], kernel[80]; /* identity, with isa, cpus, threads, memory_bytes: a result of another machine is not used */
  char isa[16], features[48]; /* "avx512", "fp16 bf16 amx" ("" for none) */
  int cpus, threads;       /* logical CPUs; threads that weir would use */
  uint64_t memory_bytes, l1d_bytes, l2_bytes, l3_bytes; /* caches: one instance each, 0: unknown */
  int64_t date;            /* when it was measured, seconds since 1970 */
  bool quick;              /* by the quick mode: fewer sets and tries */
  bool cached;             /* read from the cache folder, not measured by this call */
  size_t n_reads, n_peaks, n_barriers;
  weir_machine_read reads[WEIR_MACHINE_READS];      /* by threads, then by bytes, ascending */
  weir_machine_peak peaks[WEIR_MACHINE_PEAKS];
  weir_machine_barrier barriers[WEIR_MACHINE_BARRIERS];
  double disk_gb_s;        /* sequential read of a new file in the cache folder; 0: not measured (quick, no folder, tmpfs) */
} weir_machine;

typedef struct weir_machine_options {
  bool quick;              /* about 1 s instead of 5 to 10; a kept full result is as good */
  bool refresh;            /* measure even if a result is kept */
  bool no_cache;           /* neither look for a kept result nor keep this one */
  bool kept;               /* only a kept result, quick or not; EUNSUPPORTED without one */
  int threads;             /* measure 1 … threads; 0: the default number. Another number than that is never kept */
  int (*progress)(void *user, const char *what, double done); /* done: 0 … 1; not 0 back: ESTOPPED. May be NULL */
  void *user;
} weir_machine_options;
/* A kept result of this machine, or a new one. EUSAGE, ENOMEM, ESTOPPED; a cache folder that fails is only logged. *out is
 * large (about 8 KB) and belongs to the caller; nothing in it needs freeing. */
weir_status weir_machine_measure(const weir_machine_options *options, weir_machine *out);
/* GB/s of a read of so many bytes by so many threads: of the nearest measured set that is no smaller (else the largest), and
 * the nearest measured number of threads that is no larger. 0: nothing was measured. */
double weir_machine_gb_s(const weir_machine *m, uint64_t bytes, int threads);
/* The highest peak of a type over all ways to compute it, the number of threads chosen as above; 0: not measured. */
double weir_machine_gop_s(const weir_machine *m, const char *type, int threads);
/* A table for people; as snprintf: at most cap bytes with the NUL, returns the length of the whole text. */
size_t weir_machine_print(const weir_machine *m, char *out, size_t cap);

/* ---------------------------------------------------------------------------------------------------------------- bench
 * Every kernel row over its own test shapes marked for timing, against what this machine allows: the bound of a call is the
 * longer of its bytes at the measured bandwidth for its working set and its operations at the measured peak. */

typedef struct weir_bench_row {
  const char *name, *shape; /* kernel, and the case's keys; valid during the callback */
  double us, bytes, flop;   /* of one call: best of the repeats; bytes and operations by the op's cost rule */
  double gb_s, gflop_s;
  double peak;              /* of the bound that is the nearer: GB/s if bound_by_bytes, else 10^9 operations a second */
  bool bound_by_bytes;
  double share;             /* time at the bound / us. Above 1: faster than a plain read of that size, or a measuring error */
} weir_bench_row;
typedef struct weir_bench_options {
  const char *only;         /* part of "kernel | case"; NULL: all */
  int reps;                 /* 0: 5 */
  double seconds;           /* least time of one repeat; 0: 0.05 */
} weir_bench_options;
typedef int (*weir_bench_fn)(void *user, const weir_bench_row *row); /* not 0: ESTOPPED */
/* `machine` are the peaks to hold the kernels against. On the null device EUNSUPPORTED. */
weir_status weir_bench_ops(weir_context *ctx, const weir_machine *machine, const weir_bench_options *options, weir_bench_fn fn, void *user);

/* The tune file: for kinds of calls (op, type of the weights, number of rows, size of the weights) which kernel was fastest on this
 * machine, among kernels of one numeric class. Contexts opened later on this machine, with as many threads and the same instructions, plan by
 * it ("from the tune file" in 'why'); no bit of a result changes, a training run goes on bit for bit. $WEIR_TUNE=off: as if there were none. */
typedef struct weir_tune_row {
  const char *kind;         /* "matmul q4_0/pack16 rows<=4 weights<=2M", the number of rows rounded up; names are valid during the callback */
  const char *first, *best; /* kernels: first of the table, and what is used from now on; the same where nothing is gained */
  double first_us, best_us; /* of one call */
  double done;              /* 0 … 1 */
} weir_tune_row;
typedef int (*weir_tune_fn)(void *user, const weir_tune_row *row); /* not 0: ESTOPPED, and the file stays as it was */
/* Times the kinds that models use, minutes, and writes the file. On the null device EUNSUPPORTED. */
weir_status weir_tune(weir_context *ctx, weir_tune_fn fn, void *user);
/* One sentence about the tune file of this context: its path and how many choices it has, or why none is used. */
const char *weir_context_tune(const weir_context *ctx);

/* ------------------------------------------------------------------------------------------------------------- training
 * A run trains one model from data, and lives in a folder:
 *
 *   RUN/config.json          every setting           RUN/samples.jsonl        text that the model wrote as it learned
 *   RUN/metrics.jsonl        a line a step           RUN/checkpoints/step-N/  the newest `keep`, and the best by validation loss
 *
 *   weir_train_options o = {.data = &(weir_train_data){.path = "book.txt"}, .n_data = 1, .steps = 500};
 *   weir_trainer *t;  weir_trainer_open(ctx, "run1", &o, &t);          begins, or goes on where the folder's run was
 *   weir_train_report r;
 *   do status = weir_trainer_step(t, &r); while (status == WEIR_OK && !r.done);
 *   weir_trainer_close(t);
 *
 * The same settings, seed, data and number of threads give the same bits, however often the run was interrupted and resumed.
 *
 * Every setting is one row: X(field, kind, default, least, most, resume, choices, what it is)
 *   kind    INT int64_t; FLOAT double; TIME double, in seconds; TEXT const char *; CHOICE const char *, one of `choices`
 *   resume  FIXED: a resumed run must have the same; FREE: may change
 * 0 and NULL are the default, unless the field's bit is in `given` (then 0 is 0). */
#define WEIR_TRAIN_MAP(X) \
  X(arch, CHOICE, "llama", 0, 0, FIXED, "llama|gpt2", "architecture") \
  X(size, TEXT, "1m", 0, 0, FIXED, "1m ... 1b", "preset of the shape, by parameters without the embedding") \
  X(layers, INT, "0", 0, 1000, FIXED, "", "blocks; 0: as the size says") \
  X(width, INT, "0", 0, 65536, FIXED, "", "width of the residual stream; 0: as the size says") \
  X(heads, INT, "0", 0, 1024, FIXED, "", "attention heads; 0: as the size says") \
  X(kv_heads, INT, "0", 0, 1024, FIXED, "", "key and value heads; 0: as the size says, or as many as heads") \
  X(ff, INT, "0", 0, 1048576, FIXED, "", "width within the feed-forward block; 0: as the size says") \
  X(tied, CHOICE, "auto", 0, 0, FIXED, "auto|yes|no", "one table for the embedding and the last product; auto: as the size says") \
  X(vocab, INT, "0", 0, 1048576, FIXED, "", "vocabulary to train from text; 0: one that fits the size. A given tokenizer has its own") \
  X(tokenizer, TEXT, "", 0, 0, FIXED, "FILE|bytes", "for text; without it a vocabulary is trained from the data. Shards have their own") \
  X(ctx, INT, "256", 1, 1048576, FIXED, "", "context: tokens of a sample") \
  X(batch, INT, "16", 1, 65536, FIXED, "", "samples computed together") \
  X(accumulate, INT, "1", 1, 65536, FIXED, "", "batches whose gradients make one step, weighted by their tokens") \
  X(packing, CHOICE, "on", 0, 0, FIXED, "on|off", "attention stays inside a document when a sample holds several") \
  X(shuffle_window, INT, "1024", 1, 16777216, FIXED, "", "text: samples that are shuffled together (a step's at least)") \
  X(workers, INT, "1", 1, 256, FREE, "", "text: threads that tokenise") \
  X(steps, INT, "0", 0, 9007199254740992, FREE, "", "length of the run; 0: by epochs or time, and without those 1000") \
  X(epochs, FLOAT, "0", 0, 1e9, FREE, "", "length of the run in passes over the data") \
  X(time, TIME, "0", 0, 1e9, FREE, "", "length of the run in time") \
  X(optimizer, CHOICE, "adamw", 0, 0, FIXED, "adamw|muon|sgd", "muon: for matrices of hidden layers, adamw for the rest") \
  X(lr, FLOAT, "1e-3", 0, 1e38, FIXED, "", "learning rate at its highest") \
  X(schedule, CHOICE, "cosine", 0, 0, FIXED, "cosine|linear|wsd|constant", "of the learning rate after its warm-up") \
  X(warmup, FLOAT, "0.02", 0, 1e9, FIXED, "", "rising learning rate: steps, or below 1 a share of the run") \
  X(lr_floor, FLOAT, "0.1", 0, 1, FIXED, "", "the last learning rate, as a share of the highest") \
  X(wsd_decay, FLOAT, "0.2", 0, 1, FIXED, "", "wsd: share of the run in which the learning rate falls") \
  X(weight_decay, FLOAT, "0.1", 0, 1e6, FIXED, "", "decoupled from the gradient (sgd: part of it), multiplied by the learning rate") \
  X(decay_kinds, TEXT, "matrix,embedding", 0, 0, FIXED, "KIND,...", "which parameters decay: matrix, embedding, norm, bias, or none") \
  X(beta1, FLOAT, "0.9", 0, 0.9999999, FIXED, "", "adamw: of the mean of gradients") \
  X(beta2, FLOAT, "0.95", 0, 0.9999999, FIXED, "", "adamw: of the mean of their squares") \
  X(eps, FLOAT, "1e-8", 0, 1, FIXED, "", "adamw") \
  X(momentum, FLOAT, "0.95", 0, 0.9999999, FIXED, "", "muon and sgd") \
  X(clip, FLOAT, "1", 0, 1e9, FIXED, "", "gradients are scaled down to this norm over all parameters; 0: never") \
  X(dropout, FLOAT, "0", 0, 0.9, FIXED, "", "share of activations that is dropped") \
  X(seed, INT, "1", 0, 9007199254740992, FIXED, "", "of the first weights, the order of the data, and dropout") \
  X(precision, CHOICE, "fp32", 0, 0, FIXED, "auto|fp32|bf16|fp16", "auto is fp32") \
  X(remat, CHOICE, "auto", 0, 0, FREE, "auto|none|attention|block", "compute activations again instead of keeping them; auto: as memory needs") \
  X(init, TEXT, "", 0, 0, FIXED, "MODEL", "begin with the weights of this model instead of random ones") \
  X(eval_every, INT, "100", 0, 9007199254740992, FREE, "", "steps between validations; 0: never") \
  X(eval_batches, INT, "20", 0, 9007199254740992, FREE, "", "batches of a validation; 0: the whole split") \
  X(every, TEXT, "5min", 0, 0, FREE, "STEPS|TIME", "between checkpoints (the last step has one always); 0: none but that") \
  X(keep, INT, "2", 1, 1000000, FREE, "", "checkpoints kept besides the best one; at least 2 stay") \
  X(on_nan, CHOICE, "stop", 0, 0, FREE, "stop|skip|rollback", "when the loss or a gradient is not finite") \
  X(max_skips, INT, "10", 1, 1000000, FREE, "", "skips or rollbacks in a row before the run stops") \
  X(spike, FLOAT, "3", 0, 1e9, FREE, "", "a loss above so many times its running mean is a spike; 0: none is") \
  X(on_spike, CHOICE, "log", 0, 0, FREE, "log|stop|skip|rollback", "what happens then") \
  X(sample_tok, INT, "64", 0, 65536, FREE, "", "tokens of the text written at each checkpoint; 0: none") \
  X(sample_prompt, TEXT, "", 0, 0, FREE, "TEXT", "what that text begins with") \
  X(log_sample_ids, CHOICE, "off", 0, 0, FREE, "on|off", "the samples of each step, in metrics.jsonl: [source, epoch, number]")

typedef enum weir_setting_kind {
  WEIR_SETTING_INT,
  WEIR_SETTING_FLOAT,
  WEIR_SETTING_TIME,
  WEIR_SETTING_TEXT,
  WEIR_SETTING_CHOICE
} weir_setting_kind;
enum {
#define X(field, kind, def, least, most, resume, choices, text) WEIR_TRAIN_AT_##field,
  WEIR_TRAIN_MAP(X)
#undef X
  WEIR_TRAIN_SETTINGS /* how many; at most 64 */
};

typedef struct weir_train_data {
  const char *path;        /* a folder of shards, or text: a file, a folder, JSONL */
  double weight;           /* share of the samples; 0: by its tokens */
} weir_train_data;

typedef struct weir_train_options {
#define WEIR_SETTING_TYPE_INT int64_t
#define WEIR_SETTING_TYPE_FLOAT double
#define WEIR_SETTING_TYPE_TIME double
#define WEIR_SETTING_TYPE_TEXT const char *
#define WEIR_SETTING_TYPE_CHOICE const char *
#define X(field, kind, def, least, most, resume, choices, text) WEIR_SETTING_TYPE_##kind field;
  WEIR_TRAIN_MAP(X)
#undef X
  uint64_t given;          /* bit 1 << WEIR_TRAIN_AT_<field>: take the field as it is even if it is 0 */
  const weir_train_data *data; /* [n_data]. A resumed run may leave it out */
  size_t n_data;
  const char *config;      /* JSON with settings by name, for fields that are not set here; NULL: none. A run's config.json is one */
  bool trace;              /* keep what weir_trainer_spans gives */
  bool no_machine;         /* do not measure this machine's peak (about 1 s once): mfu is then 0 */
  const char *use;         /* forces kernel rows, "op:row,op:row"; NULL: $WEIR_USE */
  int (*progress)(void *user, const char *what, double done); /* of what opening does; done 0 ... 1; not 0 back: ESTOPPED */
  void *user;
} weir_train_options;

typedef struct weir_setting {
  const char *name;        /* as in weir_train_options, config.json and, with '-' for '_', on the command line */
  weir_setting_kind kind;
  const char *def;         /* as text */
  double least, most;      /* INT, FLOAT, TIME */
  bool fixed;              /* a resumed run must have the same */
  const char *choices;     /* CHOICE: "a|b|c"; TEXT: what to write for it in help */
  const char *help;
} weir_setting;
/* Row i of the table; EUSAGE: no such i. And the row of this name ('-' counts as '_'), or -1. */
weir_status weir_train_setting_at(int i, weir_setting *out);
int weir_train_setting_find(const char *name);
/* Set a field from text ("1e-3", "64k", "1min", "adamw"), mark it given. The text must live until the trainer is open. EUSAGE
 * names setting, value and what is allowed. */
weir_status weir_train_set(weir_train_options *o, const char *name, const char *value);
/* The value of a setting as text, the default where it is not set. As snprintf; 0: no such setting. */
size_t weir_train_get(const weir_train_options *o, const char *name, char *out, size_t cap);

typedef struct weir_train_seconds {                       /* they add up to total */
  double total;            /* wall time from the end of the step before */
  double data;             /* waiting for samples */
  double copy;             /* widening tokens into the batch, and the share of kernels' bytes that are only moved */
  double forward, backward, optimizer;
  double checkpoint;       /* what saving takes from the training thread */
  double other;            /* validation, text samples, metrics, the caller between two steps */
} weir_train_seconds;
typedef struct weir_train_copied {
  const char *what;        /* static: "widen", "gather", "cast", "pack", "transpose", "checkpoint", ... */
  double bytes;            /* read and written */
} weir_train_copied;
enum { WEIR_TRAIN_COPIED = 12 };

typedef struct weir_train_report {                        /* of one step */
  int64_t step;            /* from 1 */
  double loss;             /* mean over the step's tokens, nats */
  double val_loss;         /* NaN: not evaluated after this step */
  double lr, grad_norm;    /* before clipping */
  int64_t step_tok;        /* targets of this step */
  uint64_t tokens;         /* of the run so far */
  double epoch;            /* passes over the data so far; 0: not known */
  double tok_s, mfu;       /* of this step; mfu: share of the measured FP32 peak, 0: not measured */
  double loss_scale;       /* 1 */
  int64_t skipped;         /* steps of the run that changed nothing */
  bool spike;
  const char *event;       /* what happened: "gradient of blk.3.ffn_up.weight is not finite: step skipped"; "" nothing. Until the next step */
  weir_train_seconds seconds;
  uint64_t payload_copied; /* bytes of samples that were copied before they were widened: 0 with shards */
  double bytes_copied;     /* sum of copied[] */
  weir_train_copied copied[WEIR_TRAIN_COPIED];
  size_t n_copied;
  double progress;         /* 0 ... 1 of the run */
  double eta_seconds;
  bool saved;              /* a checkpoint of this step is being written */
  bool done;               /* the run has its length: the last checkpoint is on disk */
} weir_train_report;

typedef struct weir_trainer weir_trainer;
/* Begin a run in `folder` (made if missing), or go on with the one that is there, from its newest checkpoint that verifies.
 * folder NULL: nothing is written, nothing can be saved. EUSAGE: a setting is out of range, or a fixed one differs from the
 * folder's config.json (named). EFORMAT, EUNSUPPORTED: the data, or a tokenizer that does not fit the model. ENOMEM: the ledger. */
weir_status weir_trainer_open(weir_context *ctx, const char *folder, const weir_train_options *options, weir_trainer **out);
void weir_trainer_close(weir_trainer *t);                 /* NULL allowed. Waits for a save; does not begin one */

/* One step; after it, where due, a validation, a checkpoint and a text sample; and a line of metrics. EFAIL: not finite, and
 * on_nan is stop (the last checkpoint is kept); ESTOPPED: weir_trainer_stop was called: the state is on disk (folder given);
 * ENOMEM, EIO: the last checkpoint could not be written. One before that fails is an event: the run goes on, and the next one
 * is tried. A run that has its length makes no step: done. */
weir_status weir_trainer_step(weir_trainer *t, weir_train_report *out);
/* Mean loss over the validation split (eval_batches of it): the sum of the losses of its tokens / their number, whatever the
 * batch. EUSAGE: there is no validation data. */
weir_status weir_trainer_eval(weir_trainer *t, double *loss);
weir_status weir_trainer_save(weir_trainer *t);           /* begin to write a checkpoint of the present step, beside training */
weir_status weir_trainer_wait(weir_trainer *t);           /* until it is on disk; its failure is told here, or is the next step's event */
/* The running step ends as usual, or between two of its batches (accumulate) is given up and undone; it or the next one saves and is ESTOPPED. From any thread or signal handler. */
void weir_trainer_stop(weir_trainer *t);

/* A copy in memory of all that decides the next step (weights, moments, counters, position in the data). */
typedef struct weir_snapshot weir_snapshot;
weir_status weir_trainer_snapshot(weir_trainer *t, weir_snapshot **out);
weir_status weir_trainer_restore(weir_trainer *t, const weir_snapshot *s); /* of this trainer; usable any number of times */
void weir_snapshot_free(weir_snapshot *s);                /* NULL allowed */

typedef struct weir_train_bytes {
  const char *what;        /* "weights", "gradients", "moments", "activations", ... */
  uint64_t bytes;
} weir_train_bytes;
typedef struct weir_train_param {
  const char *name, *kind; /* "blk.0.attn_q.weight"; "matrix", "embedding", "norm", "bias" */
  const char *optimizer;   /* "adamw", "muon", "sgd" */
  uint64_t elements;
  bool decays;
} weir_train_param;
typedef struct weir_trainer_info {                        /* everything lives as long as the trainer */
  const char *folder, *arch, *tokenizer, *remat, *precision; /* folder NULL: none; remat: as chosen */
  int64_t layers, width, heads, kv_heads, ff, vocab, ctx, batch, accumulate;
  bool tied;
  uint64_t parameters;     /* tied tables once */
  double flop_tok;         /* forward and backward, a token */
  int64_t step;            /* steps done */
  int64_t steps;           /* of the run; 0: not known (by time, or text whose length is not known yet) */
  bool resumed;            /* went on from a checkpoint */
  const char *resumed_note; /* "" or what differs: "another machine or build: goes on within tolerance, not bit for bit" */
  uint64_t data_tokens, data_docs, data_samples; /* of an epoch; 0: not known yet */
  uint64_t val_tokens;
  double peak_gflop_s;     /* measured FP32 peak of the threads in use; 0: not measured */
  double predicted_step_s; /* by the cost rules and the measured machine; 0: not measured */
  const weir_train_bytes *memory; /* [n_memory] what was planned, by class */
  size_t n_memory;
  uint64_t planned_bytes;  /* their sum */
  uint64_t aside_bytes;    /* besides, at most, while a checkpoint is being written: copies of what changes before it was written */
  uint64_t measured_bytes; /* most anonymous memory that the process was seen to hold so far, without copies aside */
  const weir_train_param *params; /* [n_params] */
  size_t n_params;
  weir_train_seconds seconds; /* of all steps since opening */
  uint64_t tokens;         /* of those */
  double bytes_copied;
} weir_trainer_info;
void weir_trainer_get_info(const weir_trainer *t, weir_trainer_info *out);
/* For each kind of instruction of a step the kernel chosen, and why not the ones before it. As snprintf. */
size_t weir_trainer_why(const weir_trainer *t, char *out, size_t cap);

/* When things of the last step happened, for traces: in order of time. */
typedef struct weir_span {
  const char *name;        /* the kernel's name, or "data", "widen", "checkpoint", ... */
  const char *stage;       /* a field of weir_train_seconds */
  uint64_t begin_ns, end_ns; /* of weir_hooks.clock_ns */
} weir_span;
const weir_span *weir_trainer_spans(const weir_trainer *t, size_t *n); /* valid until the next step */

/* Write RUN/report.html, one page that needs no network, from the run's metrics.jsonl, config.json and samples.jsonl; a trainer does it
 * too, after validations and at the end. EIO: no metrics.jsonl there, or the page cannot be written. */
weir_status weir_report_write(const char *run);

/* --------------------------------------------------------------------------------------------------------------- files
 * What a model file holds, from its header alone: no weight is read, no architecture is checked. GGUF, versions 2 and 3; a
 * split model is opened by any of its parts. What is text in here comes from strangers: bytes, not escaped and not proved UTF-8
 * unless said so. */

typedef struct weir_file weir_file;
typedef struct weir_file_options {
  bool no_mmap;            /* read the file into memory instead of mapping it */
} weir_file_options;
/* path: as for weir_model_open. EIO: cannot be opened; EFORMAT: malformed, shorter than its header says, or a part is missing;
 * EUNSUPPORTED: a folder that is neither a run nor a checkpoint, big-endian, another version, a tensor type that does not exist. */
weir_status weir_file_open(const char *path, const weir_file_options *options, weir_file **out);
void weir_file_close(weir_file *f);                       /* NULL allowed. Everything got from the file ends with it */

typedef struct weir_file_info {
  const char *path;        /* of the first part */
  const char *format;      /* "gguf" */
  int version, parts;
  size_t n_tensors, n_meta;
  uint64_t file_bytes, tensor_bytes;
  uint64_t parameters;     /* elements of all tensors */
  weir_text arch, name;    /* general.architecture, general.name; bytes 0: not there, or not a string */
  /* What the file claims; -1: it does not say. Nothing of it is checked. */
  int64_t layers, width, ff, heads, kv_heads, trained_tok, vocab;
} weir_file_info;
void weir_file_get_info(const weir_file *f, weir_file_info *out);

typedef struct weir_file_tensor {
  const char *name;        /* UTF-8, ends with NUL; may hold control characters */
  const char *type;        /* "Q4_0" */
  bool supported;          /* weir computes with this type */
  int n_dims;              /* 1 … 4 */
  uint64_t dim[4];         /* in the file's order: in GGUF dim[0] is the length of a row, whose elements are contiguous */
  uint64_t elements, bytes;
  uint64_t offset;         /* of the data in the file of its part */
  int part;                /* 0 … parts-1 */
} weir_file_tensor;
weir_status weir_file_tensor_at(const weir_file *f, size_t i, weir_file_tensor *out); /* in the file's order; EUSAGE: no such i */

typedef struct weir_file_meta {
  weir_text key;           /* UTF-8 without NUL; may hold other control characters */
  const char *type;        /* of the value, or of an array's elements: "uint32", "float32", "bool", "string", … */
  bool array;
  uint64_t count;          /* of an array's elements; else 1 */
} weir_file_meta;
weir_status weir_file_meta_at(const weir_file *f, size_t i, weir_file_meta *out);     /* in the file's order; EUSAGE: no such i */

typedef enum weir_value_kind {
  WEIR_VALUE_INT = 1,
  WEIR_VALUE_UINT,
  WEIR_VALUE_FLOAT,
  WEIR_VALUE_BOOL,
  WEIR_VALUE_TEXT
} weir_value_kind;
typedef struct weir_value {
  weir_value_kind kind;
  int digits;              /* FLOAT: significant decimal digits that give back its bits, 9 or 17 */
  union {
    int64_t i;
    uint64_t u;
    double f;              /* may be NaN or infinite */
    bool b;
    weir_text text;
  };
} weir_value;
/* The value of entry i, or one element of its array; 0 if it is none. Walking an array of strings forwards takes O(1) a step.
 * EUSAGE: no such entry or element. */
weir_status weir_file_value_at(weir_file *f, size_t i, uint64_t element, weir_value *out);
/* The value of entry i as one line for a terminal: escaped, long text and arrays cut. As snprintf; 0: no such entry. */
size_t weir_file_meta_print(weir_file *f, size_t i, char *out, size_t cap);

/* Writes a model (a GGUF file, all parts of a split one, a run or a checkpoint) as one GGUF file, its matrices in another type: by several
 * threads, a few MB at a time, the same bytes for any number of threads. `out` appears when it is whole.
 * EUSAGE: `out` exists; the matrices are quantised already. EUNSUPPORTED: a folder of safetensors, a value that the type cannot hold, NaN or
 * infinity where the type is quantised. ENOMEM: no room on the disk. */
typedef struct weir_convert_tensor {
  const char *name;             /* valid during the call */
  const char *from, *to;        /* types in GGUF's spelling, "Q4_K"; static */
  const char *instead_of;       /* static: the type that was wanted and whose blocks its rows are not; NULL: `to` was wanted */
  uint64_t elements, bytes_before, bytes_after;
  double square, error_square;  /* sums over the elements of x^2 and of (x - as written)^2; both 0 where nothing was changed */
  double max_error;             /* of |x - as written| */
} weir_convert_tensor;
typedef struct weir_convert_options {
  const char *type; /* f32 f16 bf16 q8_0 q4_0 q4_1 q5_0 q5_1 q4_k_m q5_k_m q6_k (q4_k, q5_k: the same as with _m). The output matrix, and in the
                     * _m mixes some others, get more bits as in llama.cpp; vectors and positions are F32. NULL: all as they are */
  bool pure;        /* every matrix in the one type */
  bool requantize;  /* from one quantised type to another, which adds the errors of both */
  bool force;       /* replace `out` */
  int threads;      /* 0: all cores */
  int (*progress)(void *user, double done); /* done: 0 ... 1; not 0 back: ESTOPPED, nothing is written. May be NULL */
  void (*tensor)(void *user, const weir_convert_tensor *t); /* each tensor when it is done, in the order of the file. May be NULL */
  void *user;
} weir_convert_options;
typedef struct weir_convert_result {
  uint64_t bytes_before, bytes, parameters; /* bytes: of the files */
  size_t tensors;
  double seconds;
} weir_convert_result;
weir_status weir_convert(const char *in, const char *out, const weir_convert_options *options, weir_convert_result *result); /* result may be NULL */

/* Bytes of strangers for a terminal: controls, and what is not UTF-8, as \xNN. As snprintf. */
size_t weir_escape(const char *bytes, size_t n, char *out, size_t cap);

#ifdef __cplusplus
}
#endif
#endif
