/* clock.c: where the wall time of a step goes. Every moment belongs to one part: the time since the last lap is given to a part as
 * a whole, or, after a plan ran, divided by the times of its instructions. So the parts add up to the step's wall time.
 *
 * An instruction's time belongs to the part of the list that it stands in, but for the share of moving bytes without computing
 * (wr_cost.copy_bytes; plans.c says what share of the time that is), which is 'copy'. What a replay takes beyond its instructions
 * (waking the team) is 'other'.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "train/train.h"

const char *const wr_part_names[WR_PART_COUNT] = {"data", "copy", "forward", "backward", "optimizer", "checkpoint", "other"};

void wr_clock_start(wr_clock *c) {
  if (!c->mark) c->mark = wr_now_ns();
  c->begin = c->mark;
  memset(c->ns, 0, sizeof c->ns);
  c->n_copied = c->n_spans = 0;
}

/* Without memory a trace has gaps. */
void wr_clock_span(wr_clock *c, const char *name, wr_part part, uint64_t begin, uint64_t end) {
  if (!c->trace || !wr_grow((void **)&c->spans, &c->cap_spans, c->n_spans + 1, sizeof *c->spans)) return;
  c->spans[c->n_spans++] = (weir_span){name, wr_part_names[part], begin, end};
}

void wr_lap(wr_clock *c, wr_part part, const char *name) {
  const uint64_t now = wr_now_ns();
  c->ns[part] += (double)(now - c->mark);
  if (name) wr_clock_span(c, name, part, c->mark, now);
  c->mark = now;
}

void wr_count_copy(wr_clock *c, const char *what, double bytes) {
  size_t i = 0;
  if (!(bytes > 0)) return;
  while (i < c->n_copied && c->copied[i].what != what && !wr_is(c->copied[i].what, what)) i++;
  if (i == WEIR_TRAIN_COPIED) i--; /* more kinds than the report has room for: the last one takes the rest */
  if (i == c->n_copied) c->copied[c->n_copied++] = (weir_train_copied){what, 0};
  c->copied[i].bytes += bytes;
}

weir_status wr_stage_run(weir_trainer *t, wr_stage *s, wr_part before, wr_part after) {
  wr_clock *c = &t->clock;
  const weir_status st = wr_plan_run(&s->plan);
  const uint64_t now = wr_now_ns();
  uint64_t at = c->mark;
  for (int i = 0; st == WEIR_OK && i < s->plan.list.n; i++) {
    const wr_part part = i < s->split ? before : after;
    const double ns = (double)s->plan.list.step_ns[i];
    c->ns[part] += ns * (1 - s->moved[i].share);
    c->ns[WR_PART_COPY] += ns * s->moved[i].share;
    wr_count_copy(c, s->moved[i].what, s->moved[i].bytes);
    wr_clock_span(c, s->plan.list.steps[i].name, part, at, at + s->plan.list.step_ns[i]);
    at += s->plan.list.step_ns[i];
  }
  if (now > at) c->ns[WR_PART_OTHER] += (double)(now - at);
  c->mark = WR_MAX(now, at);
  return st;
}

size_t wr_anonymous_bytes(void) {
  char text[4096];
  const int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return 0;
  text[n] = 0;
  const char *at = strstr(text, "RssAnon:");
  return at ? (size_t)strtoull(at + 8, NULL, 10) * 1024 : 0;
}
