/* A reply: one answer while it grows, whoever feeds the model. What the options ask for is checked here, the prompt becomes ids here, and
 * every drawn token comes here: it ends the answer or becomes text.
 *
 * generate.c runs one reply after the other, batch.c many at once; neither knows what ends an answer. */
#include "infer/infer_i.h"

enum { MAX_STOP = 16, DEFAULT_TOK = 256 };

const char *weir_finish_name(weir_finish f) {
  switch (f) {
  case WEIR_FINISH_STOP: return "stop";
  case WEIR_FINISH_LENGTH: return "length";
  case WEIR_FINISH_STOPPED: return "stopped";
  }
  return "unknown";
}

void weir_result_free(weir_result *r) {
  if (!r) return;
  wr_free(r->text);
  wr_free(r->tokens);
  wr_free(r->prompt_tokens);
  wr_profile_drop(r->profile);
  wr_free(r);
}

/* ------------------------------------------------------------------------------------------------------ the request */

static weir_status check_options(const weir_model *m, const weir_generate_options *o) {
  WR_TRY(weir_sampling_check(&o->sampling));
  if (o->max_tok < -1)
    return wr_fail(WEIR_EUSAGE, "max_tok is %lld, but it must be at least 0, or -1 for 'until the context is full'",
                   (long long)o->max_tok);
  if (o->n_stop > MAX_STOP) return wr_fail(WEIR_EUSAGE, "%zu stop texts are more than %d", o->n_stop, MAX_STOP);
  for (size_t i = 0; i < o->n_stop; i++) {
    if (!o->stop[i].bytes) return wr_fail(WEIR_EUSAGE, "stop text %zu is empty", i);
    if (wr_utf8_valid(o->stop[i].ptr, o->stop[i].bytes) != o->stop[i].bytes)
      return wr_fail(WEIR_EUSAGE, "stop text %zu is not UTF-8", i);
  }
  return wr_token_check(m, o->stop_tokens, o->n_stop_tokens);
}

/* Something has to come first: what the vocabulary begins texts with, or else ends them with. */
static weir_status not_empty(const weir_model *m, wr_ids *ids) {
  const wr_special_ids *special = wr_tokenizer_special(m->tokenizer->t);
  if (ids->len) return WEIR_OK;
  if (special->bos >= 0) return wr_ids_put(ids, special->bos);
  if (special->eos >= 0) return wr_ids_put(ids, special->eos);
  return wr_fail(WEIR_EUSAGE, "the prompt is empty, and the vocabulary has no token to begin a text with");
}

static weir_status encode_prompt(const weir_model *m, const char *prompt, size_t n, const weir_generate_options *o,
                                 wr_ids *ids) {
  const wr_tokenizer *t = m->tokenizer->t;
  if (!o->chat) return wr_encode(t, prompt, n, WR_TEXT_ADD_SPECIAL | (o->parse_special ? WR_TEXT_PARSE_SPECIAL : 0), ids);
  wr_chat_message messages[2];
  size_t count = 0;
  if (o->system) messages[count++] = (wr_chat_message){"system", o->system, strlen("system"), strlen(o->system)};
  messages[count++] = (wr_chat_message){"user", prompt, strlen("user"), n};
  return wr_chat_encode(t, messages, count, true, WR_TEXT_ADD_SPECIAL, ids);
}

static weir_status encode(const weir_model *m, const weir_request *q, const weir_generate_options *o, wr_ids *ids) {
  weir_status status = WEIR_OK;
  if (q->tokens) {
    status = wr_token_check(m, q->tokens, q->n_tokens);
    for (size_t i = 0; i < q->n_tokens && status == WEIR_OK; i++) status = wr_ids_put(ids, q->tokens[i]);
  } else {
    status = encode_prompt(m, q->prompt ? q->prompt : "", q->prompt_bytes, o, ids);
  }
  if (status == WEIR_OK) status = not_empty(m, ids);
  if (status != WEIR_OK) wr_ids_free(ids);
  return status;
}

/* -------------------------------------------------------------------------------------------------------- the answer */

weir_status wr_reply_begin(wr_reply *p, const weir_model *m, const weir_request *q, const weir_generate_options *o,
                           int64_t context_tok) {
  wr_ids ids = {0};
  *p = (wr_reply){.model = m, .o = o, .piece = q->piece, .user = q->user};
  WR_TRY(check_options(m, o));
  WR_TRY(encode(m, q, o, &ids));
  const size_t room = (size_t)context_tok;
  if (ids.len >= room) {
    const size_t n = ids.len;
    wr_ids_free(&ids);
    return wr_fail(WEIR_EUSAGE,
                   "the prompt has %zu tokens, which leaves no room for an answer in the context of %zu (context_tok, --ctx)",
                   n, room);
  }
  p->r = wr_calloc(1, sizeof *p->r);
  if (!p->r) {
    wr_ids_free(&ids);
    return wr_fail_nomem(sizeof *p->r, "a result");
  }
  const uint64_t wanted = o->max_tok ? (uint64_t)o->max_tok : DEFAULT_TOK; /* -1 is more than any context */
  p->max_tok = (size_t)WR_MIN(wanted, (uint64_t)(room - ids.len));
  p->r->prompt_tokens = ids.ptr;
  p->r->n_prompt_tokens = ids.len;
  p->r->context_tok = context_tok;
  p->r->limit_mode = "";
  wr_answer_init(&p->answer, m->tokenizer->t, o->show_special ? WR_TEXT_KEEP_SPECIAL : 0, o->stop, o->n_stop);
  return WEIR_OK;
}

static bool ends_answer(const wr_reply *p, int32_t token) {
  if (!p->o->ignore_eos && wr_token_is_end(p->model->tokenizer->t, token)) return true;
  for (size_t i = 0; i < p->o->n_stop_tokens; i++)
    if (p->o->stop_tokens[i] == token) return true;
  return false;
}

/* Hands out what can be handed out. true: the callback wants no more. */
static bool hand_out(wr_reply *p) {
  const char *piece;
  const size_t n = wr_answer_take(&p->answer, &piece);
  return n && p->piece && p->piece(p->user, piece, n);
}

weir_status wr_reply_put(wr_reply *p, int32_t token) {
  weir_result *r = p->r;
  if (!wr_grow((void **)&r->tokens, &p->cap_tokens, r->n_tokens + 1, sizeof *r->tokens))
    return wr_fail_nomem((r->n_tokens + 1) * sizeof *r->tokens, "the answer's tokens");
  r->tokens[r->n_tokens++] = token;
  if (ends_answer(p, token)) {
    r->finish = WEIR_FINISH_STOP;
  } else {
    WR_TRY(wr_answer_put(&p->answer, token));
    if (p->answer.stopped) r->finish = WEIR_FINISH_STOP;
    if (hand_out(p)) r->finish = WEIR_FINISH_STOPPED;
  }
  if (!r->finish && r->n_tokens >= p->max_tok) r->finish = WEIR_FINISH_LENGTH;
  return WEIR_OK;
}

weir_status wr_reply_end(wr_reply *p, weir_result **out) {
  WR_TRY(wr_answer_end(&p->answer));
  (void)hand_out(p);
  wr_str *text = &p->answer.text;
  if (!text->ptr) wr_str_put(text, "", 0);
  if (!text->ptr) return wr_fail_nomem(1, "the answer");
  p->r->text = text->ptr;
  p->r->text_bytes = text->len;
  *text = (wr_str){0};
  *out = p->r;
  p->r = NULL;
  return WEIR_OK;
}

void wr_reply_free(wr_reply *p) {
  wr_answer_free(&p->answer);
  weir_result_free(p->r);
  p->r = NULL;
}
