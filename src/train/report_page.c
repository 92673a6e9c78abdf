/* report_page.c: the page of a training run. See report_i.h.
 *
 * Charts are SVG drawn here, in a box of 1000 × 1000 that the browser stretches to whatever room there is (strokes keep their width);
 * labels are HTML beside it at percentages, so that they stay readable on a telephone. Each chart is drawn twice, over a linear and a
 * logarithmic axis of steps; a checkbox chooses, in CSS. The script only shows the values under the pointer; without it nothing else is
 * missing. Light and dark follow the system. The page's policy forbids every request.
 *
 * Everything from a file is escaped: markup, controls, what is not UTF-8; samples stand in elements that isolate text direction. */
#include "train/report_i.h"

#include <math.h>
#include <stdlib.h>

enum { MAX_TEXT = 4000, MAX_ROWS = 400, MAX_LINES = 8 };

static const char style[] =
    ":root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--dim:#68707c;--line:#e3e6ea;--card:#f6f7f9;"
    "--c0:#2563c9;--c1:#d1670e;--c2:#1a8754;--c3:#8a4fc4;--c4:#c23b5a;--c5:#0e8aa0;--c6:#8b929c;--c7:#a3861a}"
    "@media(prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e4e7eb;--dim:#98a1ad;--line:#2b3037;--card:#1c2026;"
    "--c0:#6ea4ff;--c1:#f2994a;--c2:#4cc38a;--c3:#bb8cf0;--c4:#f0738f;--c5:#4cc5d9;--c6:#8b929c;--c7:#d9bc4f}}"
    "*{box-sizing:border-box}body{margin:0 auto;max-width:1180px;padding:16px;background:var(--bg);color:var(--fg);"
    "font:15px/1.45 system-ui,sans-serif;overflow-wrap:anywhere}"
    "h1{font-size:1.35rem;margin:.2em 0}h2{font-size:1.05rem;margin:2em 0 .6em}p{margin:.3em 0}.dim{color:var(--dim)}"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(132px,1fr));gap:8px;margin:16px 0}"
    ".tile{background:var(--card);border-radius:8px;padding:8px 12px}.tile "
    "b{display:block;font-size:1.15rem;overflow-wrap:normal;"
    "font-variant-numeric:tabular-nums}.tile span{color:var(--dim);font-size:.8rem}"
    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:24px 20px}"
    ".wide{grid-column:1/-1}figure{margin:0;min-width:0}figcaption{font-weight:600;margin-bottom:8px}"
    ".legend{font-weight:400;font-size:.8rem;color:var(--dim);display:inline-flex;flex-wrap:wrap;gap:2px 12px;margin-left:8px}"
    ".legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px}"
    ".plot{position:relative;height:210px;margin:0 10px 26px 54px}.wide .plot{height:270px}"
    ".plot svg{display:block;width:100%;height:100%;overflow:visible}"
    ".plot span{position:absolute;font-size:11px;color:var(--dim);white-space:nowrap;font-variant-numeric:tabular-nums}"
    ".y{right:100%;transform:translateY(-50%);padding-right:7px}.x{top:100%;transform:translateX(-50%);padding-top:5px}"
    "path,polyline,polygon{vector-effect:non-scaling-stroke}.grid{stroke:var(--line);fill:none}"
    "polyline{fill:none;stroke-width:1.6;stroke-linejoin:round}.band{opacity:.22;stroke:none}.area{stroke:none;opacity:.85}"
    ".dots{stroke-width:6;stroke-linecap:round;fill:none}"
    ".event{stroke:var(--c4);stroke-dasharray:3 3;fill:none}"
    ".tip{position:absolute;top:0;pointer-events:none;background:var(--bg);border:1px solid var(--line);border-radius:6px;"
    "padding:4px 8px;font-size:12px;white-space:pre;display:none;z-index:1;font-variant-numeric:tabular-nums}"
    ".cursor{position:absolute;top:0;bottom:0;width:1px;background:var(--dim);display:none;pointer-events:none}"
    ".log{display:none}body:has(#logx:checked) .log{display:inline}body:has(#logx:checked) .lin{display:none}"
    "table{border-collapse:collapse;width:100%;font-size:.88rem}td,th{padding:4px 12px 4px 0;border-bottom:1px solid "
    "var(--line);"
    "text-align:left;vertical-align:top}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}"
    "td:first-child{color:var(--dim)}td.k{white-space:nowrap}.bar{display:block;height:9px;border-radius:2px;background:var(--"
    "c0);min-width:1px}"
    ".bar.m{background:var(--c1);margin-top:2px}td.bars{width:38%;vertical-align:middle}"
    ".sample{background:var(--card);border-radius:8px;padding:10px 14px;margin:8px 0;max-height:22em;overflow:auto}"
    ".sample p{white-space:pre-wrap;unicode-bidi:isolate;margin:0;font:14px/1.5 ui-serif,Georgia,serif}"
    ".sample b{font-weight:600}.sample small{color:var(--dim)}"
    ".two{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:0 28px}.two>div{min-width:0}"
    "label{cursor:pointer;font-size:.88rem;color:var(--dim)}"
    "@media(max-width:560px){body{padding:10px}.plot{margin-left:46px}td.bars{width:28%}}";

/* Values under the pointer, read back from the drawn points, so that the numbers are in the page once. */
static const char script[] =
    "'use strict';for(const p of document.querySelectorAll('.plot')){const s=p.firstElementChild,d=s.dataset,"
    "t=p.appendChild(document.createElement('div')),c=p.appendChild(document.createElement('div'));t.className='tip';"
    "c.className='cursor';const off=()=>{t.style.display=c.style.display='none'};"
    "p.onpointerleave=off;p.onpointermove=p.onpointerdown=e=>{const r=s.getBoundingClientRect(),"
    "lx=document.getElementById('logx').checked,q=(e.clientX-r.left)/r.width*1000;if(q<-20||q>1020)return off();"
    "const rows=[];let at=null,below=1000;for(const l of s.querySelectorAll(lx?'.log [data-n]':'.lin [data-n]')){"
    "let a=l.points,n=d.stack?a.numberOfItems/2:a.numberOfItems;if(!n)continue;let b=0,e=n-1;"
    "while(b<e){const m=b+e>>1;a.getItem(m).x<q?b=m+1:e=m}"
    "if(b>0&&q-a.getItem(b-1).x<a.getItem(b).x-q)b--;const v=a.getItem(b);if(at===null)at=v.x;"
    "const f=y=>{y=1-y/1000;return d.ylog?Math.exp(+d.y0+y*(d.y1-d.y0)):+d.y0+y*(d.y1-d.y0)};"
    "let y=f(v.y);if(d.stack){y=f(1000-(below-v.y));below=v.y}rows.push(l.dataset.n+'  '+(+y.toPrecision(4)))}"
    "if(at===null)return off();let x=at/1000;x=lx?Math.exp(+d.l0+x*(d.l1-d.l0)):+d.x0+x*(d.x1-d.x0);"
    "if(d.stack)rows.reverse();t.textContent='step '+Math.round(x).toLocaleString()+'\\n'+rows.join('\\n');"
    "t.style.display=c.style.display='block';c.style.left=at/10+'%';const o=at>500;t.style.left=o?'auto':'calc('+at/10+'% + "
    "8px)';"
    "t.style.right=o?'calc('+(100-at/10)+'% + 8px)':'auto'}}";

/* ---- text */

/* U+202A … U+202E and U+2066 … U+2069: they turn the direction of what stands beside them. */
static bool turns_text(const unsigned char *p, size_t n) {
  return n >= 3 && p[0] == 0xe2 &&
         ((p[1] == 0x80 && p[2] >= 0xaa && p[2] <= 0xae) || (p[1] == 0x81 && p[2] >= 0xa6 && p[2] <= 0xa9));
}

static void put_escaped(wr_str *s, const char *p, size_t n) {
  while (n) {
    const size_t good = wr_utf8_valid(p, n);
    for (size_t i = 0; i < good; i++) {
      const unsigned char c = (unsigned char)p[i];
      if (c == '<')
        wr_str_puts(s, "&lt;");
      else if (c == '&')
        wr_str_puts(s, "&amp;");
      else if (c == '"')
        wr_str_puts(s, "&quot;");
      else if (c == '\'')
        wr_str_puts(s, "&#39;");
      else if ((c < ' ' && c != '\n' && c != '\t') || c == 0x7f)
        wr_str_puts(s, "�"); /* controls; those of two bytes are harmless in HTML */
      else if (turns_text((const unsigned char *)p + i, good - i))
        wr_str_puts(s, "�"), i += 2;
      else
        wr_str_put(s, p + i, 1);
    }
    p += good;
    n -= good;
    if (n == 0) break;
    wr_str_puts(s, "�");
    p++;
    n--;
  }
}

static void put_text(wr_str *s, const char *z) { put_escaped(s, z, strlen(z)); }

/* A string of a JSON object, at most MAX_TEXT bytes of it. */
static void put_json_text(wr_str *s, const json_t *object, const char *key) {
  const json_t *v = json_object_get(object, key);
  if (!json_is_string(v)) return;
  const char *text = json_string_value(v);
  size_t n = json_string_length(v);
  const bool cut = n > MAX_TEXT;
  if (cut) n = MAX_TEXT - wr_utf8_partial(text, MAX_TEXT);
  put_escaped(s, text, n);
  if (cut) wr_str_puts(s, " …");
}

/* 1234567 as 1,234,567; numbers that are not whole with four digits. */
static void put_number(wr_str *s, double x) {
  if (!isfinite(x)) {
    wr_str_puts(s, "–");
    return;
  }
  if (x != floor(x) || fabs(x) >= 1e15) {
    wr_str_printf(s, fabs(x) >= 1e4 && fabs(x) < 1e15 ? "%.0f" : "%.4g", x);
    return;
  }
  char digits[32];
  const int n = snprintf(digits, sizeof digits, "%.0f", fabs(x));
  if (x < 0) wr_str_puts(s, "−");
  for (int i = 0; i < n; i++) {
    if (i && (n - i) % 3 == 0) wr_str_puts(s, ",");
    wr_str_put(s, digits + i, 1);
  }
}

static void put_size(wr_str *s, double bytes) {
  char text[16];
  wr_size_text(text, bytes > 0 && bytes < 1.8e19 ? (uint64_t)bytes : 0);
  wr_str_puts(s, text);
}

static void put_time(wr_str *s, double seconds) {
  if (seconds < 100)
    wr_str_printf(s, "%.1f s", seconds);
  else if (seconds < 5400)
    wr_str_printf(s, "%.0f min %02.0f s", floor(seconds / 60), floor(fmod(seconds, 60)));
  else
    wr_str_printf(s, "%.0f h %02.0f min", floor(seconds / 3600), floor(fmod(seconds, 3600) / 60));
}

/* ---- charts */

typedef struct chart_line {
  enum wr_report_series series;
  const char *name;
  int colour;
} chart_line;
typedef struct chart {
  const char *title, *unit;
  bool wide, stacked, log_y, from_zero;
  double scale; /* values are multiplied by it */
  int n_lines;
  chart_line lines[MAX_LINES];
} chart;

static const chart charts[] = {
    {"Loss",
     "nats a token",
     true,
     false,
     false,
     false,
     1,
     2,
     {{WR_SERIES_LOSS, "training", 0}, {WR_SERIES_VAL_LOSS, "validation", 1}}},
    {"Learning rate", "", false, false, false, true, 1, 1, {{WR_SERIES_LR, "learning rate", 2}}},
    {"Gradient norm", "before clipping", false, false, true, false, 1, 1, {{WR_SERIES_GRAD_NORM, "gradient norm", 3}}},
    {"Throughput", "tokens a second", false, false, false, true, 1, 1, {{WR_SERIES_TOK_S, "tokens/s", 5}}},
    {"Model FLOP/s", "% of the measured peak", false, false, false, true, 100, 1, {{WR_SERIES_MFU, "MFU", 7}}},
    {"Where a step's time goes",
     "ms, what is far above the median cut off",
     true,
     true,
     false,
     true,
     1000,
     7,
     {{WR_SERIES_FORWARD_S, "forward", 0},
      {WR_SERIES_BACKWARD_S, "backward", 3},
      {WR_SERIES_OPTIMIZER_S, "optimiser", 2},
      {WR_SERIES_DATA_S, "data wait", 1},
      {WR_SERIES_COPY_S, "copy", 4},
      {WR_SERIES_CHECKPOINT_S, "checkpoint", 5},
      {WR_SERIES_OTHER_S, "other", 6}}},
};

typedef struct axis {
  double low, high;
  bool log;
} axis;

static double place(const axis *a, double v) { /* 0 … 1 */
  if (!a->log) return (v - a->low) / (a->high - a->low);
  return log(fmax(v, a->low) / a->low) / log(a->high / a->low);
}

/* 1, 2 or 5 times a power of ten, so that `span` has at most n steps of it. */
static double nice_step(double span, int n) {
  const double raw = span / n, power = pow(10, floor(log10(raw)));
  return power * (raw <= power ? 1 : raw <= 2 * power ? 2 : raw <= 5 * power ? 5 : 10);
}

/* Where the ticks stand; at most `most`. whole: not between whole numbers. */
static int ticks(const axis *a, int want, bool whole, double *out, int most) {
  int n = 0;
  if (a->log && a->high / a->low >= 8) {
    const int decades = (int)ceil(log10(a->high / a->low)), each = decades > want ? (decades + want - 1) / want : 1;
    for (int e = (int)ceil(log10(a->low) - 1e-9); n < most && pow(10, e) <= a->high * (1 + 1e-9); e += each)
      for (int k = 0; k < (decades <= 2 ? 3 : 1); k++) {
        const double v = pow(10, e) * (double[]){1, 2, 5}[k];
        if (v <= a->high * (1 + 1e-9) && n < most) out[n++] = v;
      }
    return n;
  }
  const double step = fmax(nice_step(a->high - a->low, want), whole ? 1 : 0);
  for (double v = ceil(a->low / step - 1e-9) * step; n < most && v <= a->high + step * 1e-9; v += step)
    out[n++] = fabs(v) < step * 1e-9 ? 0 : v;
  return n;
}

static void put_tick(wr_str *s, double v) {
  if (v == 0)
    wr_str_puts(s, "0");
  else if (fabs(v) >= 1e6)
    wr_str_printf(s, "%.4gM", v / 1e6);
  else if (fabs(v) >= 1e4)
    wr_str_printf(s, "%.4gk", v / 1e3);
  else if (fabs(v) < 1e-3)
    wr_str_printf(s, "%.3g", v);
  else
    wr_str_printf(s, "%.5g", v);
}

static double mean(const wr_report_value *v) { return v->sum / (double)v->n; }

static double stack_of(const wr_report_bin *b, const chart *c, int lines) {
  double sum = 0;
  for (int k = 0; k < lines; k++)
    if (b->v[c->lines[k].series].n) sum += mean(&b->v[c->lines[k].series]);
  return sum * c->scale;
}

static int by_size(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Up to the greatest sum, but at most four times the median: one slow step must not flatten all others. */
static bool stack_axis(const wr_report *r, const chart *c, axis *out) {
  double *sums = wr_malloc((size_t)r->n_bins * sizeof *sums);
  if (!sums) return false;
  for (int i = 0; i < r->n_bins; i++) sums[i] = stack_of(&r->bins[i], c, c->n_lines);
  qsort(sums, (size_t)r->n_bins, sizeof *sums, by_size);
  *out = (axis){0, fmin(sums[r->n_bins - 1] * 1.05, sums[r->n_bins / 2] * 4), false};
  wr_free(sums);
  return out->high > 0;
}

/* The range of what the chart shows. false: nothing. */
static bool value_axis(const wr_report *r, const chart *c, axis *out) {
  double low = INFINITY, high = -INFINITY;
  if (c->stacked) return stack_axis(r, c, out);
  for (int i = 0; i < r->n_bins; i++)
    for (int k = 0; k < c->n_lines; k++) {
      const wr_report_value *v = &r->bins[i].v[c->lines[k].series];
      if (!v->n) continue;
      low = fmin(low, (double)v->min);
      high = fmax(high, (double)v->max);
    }
  if (!(low <= high)) return false;
  low *= c->scale;
  high *= c->scale;
  if (c->log_y && low > 0 && high / low > 20) {
    *out = (axis){low / 1.1, high * 1.1, true};
    return true;
  }
  if (c->from_zero) low = fmin(low, 0);
  if (high == low) high = low + (low != 0 ? fabs(low) * 0.5 : 1);
  const double room = (high - low) * 0.05;
  *out = (axis){c->from_zero && low == 0 ? 0 : low - room, high + room, false};
  return true;
}

static axis step_axis(const wr_report *r, bool log) {
  const double first = r->bins[0].first, last = r->bins[r->n_bins - 1].last;
  axis a = {log ? fmax(first, 1) : first, fmax(last, first), log};
  if (a.high <= a.low) a.high = a.low + 1;
  return a;
}

static void put_point(wr_str *s, double x, double y) { wr_str_printf(s, "%.1f,%.1f ", x * 1000, 1000 - y * 1000); }

static double middle(const wr_report_bin *b) { return (b->first + b->last) / 2; }

static void put_line(wr_str *s, const wr_report *r, const chart *c, const chart_line *l, const axis *x, const axis *y) {
  if (r->width > 1) { /* from least to greatest: a bin's mean hides its spikes */
    wr_str_printf(s, "<polygon class=band fill=\"var(--c%d)\" points=\"", l->colour);
    for (int pass = 0; pass < 2; pass++)
      for (int k = 0; k < r->n_bins; k++) {
        const wr_report_bin *b = &r->bins[pass ? r->n_bins - 1 - k : k];
        const wr_report_value *v = &b->v[l->series];
        if (v->n) put_point(s, place(x, middle(b)), place(y, (double)(pass ? v->min : v->max) * c->scale));
      }
    wr_str_puts(s, "\"/>");
  }
  int n = 0;
  for (int i = 0; i < r->n_bins; i++) n += r->bins[i].v[l->series].n != 0;
  if (n < r->n_bins && n <= 60) { /* few and far between: dots, which are lines without length and with round ends */
    wr_str_printf(s, "<path class=dots stroke=\"var(--c%d)\" d=\"", l->colour);
    for (int i = 0; i < r->n_bins; i++) {
      const wr_report_value *v = &r->bins[i].v[l->series];
      if (v->n)
        wr_str_printf(s, "M%.1f %.1fh0", place(x, middle(&r->bins[i])) * 1000, 1000 - place(y, mean(v) * c->scale) * 1000);
    }
    wr_str_puts(s, "\"/>");
  }
  wr_str_printf(s, "<polyline data-n=\"%s\" stroke=\"var(--c%d)\" points=\"", l->name, l->colour);
  for (int i = 0; i < r->n_bins; i++) {
    const wr_report_value *v = &r->bins[i].v[l->series];
    if (v->n) put_point(s, place(x, middle(&r->bins[i])), place(y, mean(v) * c->scale));
  }
  wr_str_puts(s, "\"/>");
}

/* Line k of a stack: from the sum of those before it to that and its own. */
static void put_area(wr_str *s, const wr_report *r, const chart *c, int k, const axis *x, const axis *y) {
  wr_str_printf(s, "<polygon class=area data-n=\"%s\" fill=\"var(--c%d)\" points=\"", c->lines[k].name, c->lines[k].colour);
  for (int pass = 0; pass < 2; pass++)
    for (int j = 0; j < r->n_bins; j++) {
      const wr_report_bin *b = &r->bins[pass ? r->n_bins - 1 - j : j];
      const double sum = fmin(stack_of(b, c, pass ? k : k + 1), y->high);
      put_point(s, place(x, middle(b)), place(y, sum));
    }
  wr_str_puts(s, "\"/>");
}

static double event_step(const json_t *e) {
  const json_t *v = json_object_get(e, "step");
  return json_is_number(v) ? json_number_value(v) : NAN;
}

static void put_scale(wr_str *s, const wr_report *r, const chart *c, bool log, const axis *y) {
  const axis x = step_axis(r, log);
  double at[24];
  const int n = ticks(&x, c->wide ? 8 : 5, true, at, 24);
  wr_str_printf(s, "<g class=%s><path class=grid d=\"", log ? "log" : "lin");
  for (int i = 0; i < n; i++) wr_str_printf(s, "M%.1f 0V1000", place(&x, at[i]) * 1000);
  wr_str_puts(s, "\"/>");
  for (int k = 0; k < c->n_lines; k++) {
    if (c->stacked)
      put_area(s, r, c, k, &x, y);
    else
      put_line(s, r, c, &c->lines[k], &x, y);
  }
  if (r->n_events) {
    wr_str_puts(s, "<path class=event d=\"");
    for (int i = 0; i < r->n_events; i++) {
      const double step = event_step(r->events[i]);
      if (step >= x.low && step <= x.high) wr_str_printf(s, "M%.1f 0V1000", place(&x, step) * 1000);
    }
    wr_str_puts(s, "\"/>");
  }
  wr_str_puts(s, "</g>");
}

static void put_chart(wr_str *s, const wr_report *r, const chart *c) {
  axis y;
  if (r->n_bins == 0 || !value_axis(r, c, &y)) return;
  const axis x = step_axis(r, false), lx = step_axis(r, true);
  wr_str_printf(s, "<figure%s><figcaption>%s<span class=legend>", c->wide ? " class=wide" : "", c->title);
  if (c->unit[0]) wr_str_printf(s, "<span>%s</span>", c->unit);
  for (int k = 0; c->n_lines > 1 && k < c->n_lines; k++)
    wr_str_printf(s, "<span><i style=\"background:var(--c%d)\"></i>%s</span>", c->lines[k].colour, c->lines[k].name);
  wr_str_printf(s,
                "</span></figcaption><div class=plot><svg role=img aria-label=\"%s by step\" viewBox=\"0 0 1000 1000\" "
                "preserveAspectRatio=none data-x0=%.9g data-x1=%.9g data-l0=%.9g data-l1=%.9g data-y0=%.9g data-y1=%.9g%s%s>",
                c->title, x.low, x.high, log(lx.low), log(lx.high), y.log ? log(y.low) : y.low, y.log ? log(y.high) : y.high,
                y.log ? " data-ylog=1" : "", c->stacked ? " data-stack=1" : "");
  double at[24];
  int n = ticks(&y, 5, false, at, 24);
  wr_str_puts(s, "<path class=grid d=\"");
  for (int i = 0; i < n; i++) wr_str_printf(s, "M0 %.1fH1000", 1000 - place(&y, at[i]) * 1000);
  wr_str_puts(s, "\"/>");
  put_scale(s, r, c, false, &y);
  put_scale(s, r, c, true, &y);
  wr_str_puts(s, "</svg>");
  for (int i = 0; i < n; i++) {
    wr_str_printf(s, "<span class=y style=\"top:%.2f%%\">", 100 - place(&y, at[i]) * 100);
    put_tick(s, at[i]);
    wr_str_puts(s, "</span>");
  }
  for (int log = 0; log < 2; log++) {
    n = ticks(log ? &lx : &x, c->wide ? 8 : 5, true, at, 24);
    for (int i = 0; i < n; i++) {
      wr_str_printf(s, "<span class=\"x %s\" style=\"left:%.2f%%\">", log ? "log" : "lin", place(log ? &lx : &x, at[i]) * 100);
      put_tick(s, at[i]);
      wr_str_puts(s, "</span>");
    }
  }
  wr_str_puts(s, "</div></figure>\n");
}

/* ---- the other parts */

static void tile(wr_str *s, const char *name, double v, void (*put)(wr_str *, double), const char *unit) {
  if (!isfinite(v)) return;
  wr_str_puts(s, "<div class=tile><b>");
  put(s, v);
  wr_str_printf(s, "%s</b><span>%s</span></div>\n", unit, name);
}

static void put_rounded(wr_str *s, double v) { put_number(s, round(v)); }
static void put_loss(wr_str *s, double v) { wr_str_printf(s, "%.3f", v); }
static void put_percent(wr_str *s, double share) { wr_str_printf(s, share < 0.1 ? "%.2f %%" : "%.1f %%", share * 100); }

static double copied_bytes(const wr_report *r) {
  double sum = 0;
  for (int i = 0; i < r->n_classes; i++) sum += r->classes[i].bytes;
  return sum;
}

static void put_tiles(wr_str *s, const wr_report *r) {
  const double wall = r->total[WR_SERIES_TOTAL_S], nothing = NAN;
  wr_str_puts(s, "<div class=tiles>");
  tile(s, "step", r->n_bins ? r->bins[r->n_bins - 1].last : nothing, put_number, "");
  tile(s, "loss", r->last[WR_SERIES_LOSS], put_loss, "");
  tile(s, "validation loss", r->last[WR_SERIES_VAL_LOSS], put_loss, "");
  if (r->best_val < r->last[WR_SERIES_VAL_LOSS]) tile(s, "best validation loss", r->best_val, put_loss, "");
  tile(s, "tokens", r->tokens > 0 ? r->tokens : nothing, put_number, "");
  tile(s, "tokens a second", wall > 0 ? r->tokens / wall : nothing, put_rounded, "");
  tile(s, "of the measured peak (MFU)", wall > 0 && r->mfu_seconds > 0 ? r->mfu_seconds / wall : nothing, put_percent, "");
  tile(s, "time of the steps", wall > 0 ? wall : nothing, put_time, "");
  tile(s, "copying", wall > 0 ? r->total[WR_SERIES_COPY_S] / wall : nothing, put_percent, "");
  tile(s, "waiting for data", wall > 0 ? r->total[WR_SERIES_DATA_S] / wall : nothing, put_percent, "");
  tile(s, "copied a token", r->tokens > 0 && r->n_classes ? copied_bytes(r) / r->tokens : nothing, put_number, " B");
  tile(s, "samples copied", r->steps ? r->total[WR_SERIES_PAYLOAD_COPIED] : nothing, put_size, "");
  tile(s, "skipped steps", r->last[WR_SERIES_SKIPPED] > 0 ? r->last[WR_SERIES_SKIPPED] : nothing, put_number, "");
  wr_str_puts(s, "</div>\n");
}

static void put_bars(wr_str *s, double planned, double measured, double most) {
  wr_str_printf(s, "<td class=bars><span class=bar style=\"width:%.2f%%\"></span>", 100 * planned / most);
  if (measured >= 0) wr_str_printf(s, "<span class=\"bar m\" style=\"width:%.2f%%\"></span>", 100 * measured / most);
  wr_str_puts(s, "</td></tr>\n");
}

static double bytes_at(const json_t *row, const char *key) {
  const json_t *v = json_object_get(row, key);
  const double x = json_is_number(v) ? json_number_value(v) : -1;
  return x >= 0 && x < 1e18 ? x : -1;
}

static void put_memory(wr_str *s, const wr_report *r) {
  const size_t n = WR_MIN(json_array_size(r->memory), (size_t)MAX_ROWS);
  double most = 0;
  bool any_measured = false;
  for (size_t i = 0; i < n; i++) {
    const json_t *row = json_array_get(r->memory, i);
    most = fmax(most, fmax(bytes_at(row, "planned"), bytes_at(row, "measured")));
    any_measured |= bytes_at(row, "measured") >= 0;
  }
  if (!(most > 0)) return;
  wr_str_printf(s, "<div><h2>Memory</h2><table><tr><th></th><th class=n>planned</th>%s<th></th></tr>\n",
                any_measured ? "<th class=n>measured</th>" : "");
  for (size_t i = 0; i < n; i++) {
    const json_t *row = json_array_get(r->memory, i);
    const double planned = bytes_at(row, "planned"), measured = bytes_at(row, "measured");
    wr_str_puts(s, "<tr><td>");
    put_json_text(s, row, "what");
    for (int k = 0; k < (any_measured ? 2 : 1); k++) {
      const double bytes = k ? measured : planned;
      wr_str_puts(s, "</td><td class=n>");
      if (bytes >= 0) put_size(s, bytes);
    }
    wr_str_puts(s, "</td>");
    put_bars(s, fmax(planned, 0), measured, most);
  }
  wr_str_puts(s, "</table></div>\n");
}

static void put_copies(wr_str *s, const wr_report *r) {
  double most = 0;
  for (int i = 0; i < r->n_classes; i++) most = fmax(most, r->classes[i].bytes);
  if (r->n_classes == 0) return;
  wr_str_puts(
      s, "<div><h2>What was copied</h2><table><tr><th></th><th class=n>bytes</th><th class=n>a token</th><th></th></tr>\n");
  for (int i = 0; i < r->n_classes; i++) {
    wr_str_puts(s, "<tr><td>");
    put_text(s, r->classes[i].name);
    wr_str_puts(s, "</td><td class=n>");
    put_size(s, r->classes[i].bytes);
    wr_str_puts(s, "</td><td class=n>");
    put_number(s, r->tokens > 0 ? r->classes[i].bytes / r->tokens : NAN);
    wr_str_puts(s, "</td>");
    put_bars(s, r->classes[i].bytes, -1, most > 0 ? most : 1);
  }
  wr_str_puts(s, "</table></div>\n");
}

static void put_events(wr_str *s, const wr_report *r) {
  if (r->n_events == 0) return;
  wr_str_puts(s, "<h2>Events</h2><table>\n");
  for (int i = 0; i < r->n_events; i++) {
    wr_str_puts(s, "<tr><td class=n>");
    if (i == WR_REPORT_EVENTS / 2 && r->events_seen > WR_REPORT_EVENTS) {
      put_number(s, (double)(r->events_seen - WR_REPORT_EVENTS));
      wr_str_puts(s, "</td><td></td><td>more are not shown</td></tr>\n<tr><td class=n>");
    }
    if (isfinite(event_step(r->events[i]))) put_number(s, event_step(r->events[i]));
    wr_str_puts(s, "</td><td class=k>");
    put_json_text(s, r->events[i], "event");
    wr_str_puts(s, "</td><td>");
    put_json_text(s, r->events[i], "text");
    wr_str_puts(s, "</td></tr>\n");
  }
  wr_str_puts(s, "</table>\n");
}

static void put_sample(wr_str *s, const json_t *sample) {
  wr_str_puts(s, "<div class=sample><small>");
  if (isfinite(event_step(sample))) {
    wr_str_puts(s, "step ");
    put_number(s, event_step(sample));
  }
  wr_str_puts(s, "</small><p><b>");
  put_json_text(s, sample, "prompt");
  wr_str_puts(s, "</b>");
  put_json_text(s, sample, "text");
  wr_str_puts(s, "</p></div>\n");
}

static void put_samples(wr_str *s, const wr_report *r) {
  if (r->n_samples == 0) return;
  wr_str_puts(s, "<h2>Text as the run went on</h2>\n");
  for (int i = 0; i < r->n_samples; i++) put_sample(s, r->samples[i]);
  if (r->newest != r->samples[r->n_samples - 1]) put_sample(s, r->newest);
}

/* An object as rows; what is nested gets names with dots. */
static void put_rows(wr_str *s, const json_t *object, const char *prefix, int depth, int *left) {
  const char *name;
  json_t *v;
  json_object_foreach((json_t *)(uintptr_t)object, name, v) {
    if (strcmp(name, "memory") == 0 || *left == 0) continue; /* has a part of its own */
    char path[256];
    snprintf(path, sizeof path, "%s%s%s", prefix, prefix[0] ? "." : "", name);
    if (json_is_object(v) && depth < 4) {
      put_rows(s, v, path, depth + 1, left);
      continue;
    }
    (*left)--;
    wr_str_puts(s, "<tr><td>");
    put_text(s, path);
    wr_str_puts(s, "</td><td>");
    char *text = json_is_string(v) ? NULL : json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
    if (json_is_string(v))
      put_json_text(s, object, name);
    else if (json_is_integer(v))
      put_number(s, json_number_value(v));
    else if (text)
      put_escaped(s, text, WR_MIN(strlen(text), (size_t)MAX_TEXT));
    json_free_t release;
    json_get_alloc_funcs(NULL, &release);
    release(text);
    wr_str_puts(s, "</td></tr>\n");
  }
}

static void put_table(wr_str *s, const char *title, const json_t *object) {
  int left = MAX_ROWS;
  if (json_object_size(object) == 0) return;
  wr_str_printf(s, "<div><h2>%s</h2><table>\n", title);
  put_rows(s, object, "", 0, &left);
  wr_str_puts(s, "</table></div>\n");
}

static const char *base_name(const char *path, size_t *n) {
  size_t end = strlen(path);
  while (end > 1 && path[end - 1] == '/') end--;
  size_t begin = end;
  while (begin > 0 && path[begin - 1] != '/') begin--;
  *n = end - begin;
  return path + begin;
}

void wr_report_page(const wr_report *r, wr_str *s) {
  size_t n;
  const char *name = base_name(r->run, &n);
  wr_str_puts(s, "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
                 "<meta http-equiv=Content-Security-Policy content=\"default-src 'none';style-src 'unsafe-inline';script-src "
                 "'unsafe-inline'\">"
                 "<meta name=viewport content=\"width=device-width,initial-scale=1\"><title>");
  put_escaped(s, name, n);
  wr_str_printf(s, " – weir</title><style>%s</style></head><body>\n<h1>", style);
  put_escaped(s, name, n);
  wr_str_puts(s, "</h1>\n");
  put_tiles(s, r);
  if (r->n_bins > 1) {
    wr_str_puts(s, "<p><label><input type=checkbox id=logx> logarithmic axis of steps</label>");
    if (r->width > 1) {
      wr_str_puts(s, " <span class=dim>each point: the mean of ");
      put_number(s, (double)r->width);
      wr_str_puts(s, " steps; the pale band goes from their least to their greatest value</span>");
    }
    wr_str_puts(s, "</p>\n<div class=charts>\n");
    for (size_t i = 0; i < WR_ARRAY_LEN(charts); i++) put_chart(s, r, &charts[i]);
    wr_str_puts(s, "</div>\n");
  }
  put_events(s, r);
  wr_str_puts(s, "<div class=two>\n");
  put_memory(s, r);
  put_copies(s, r);
  wr_str_puts(s, "</div>\n");
  put_samples(s, r);
  wr_str_puts(s, "<div class=two>\n");
  put_table(s, "Configuration", r->config);
  put_table(s, "Machine and run", r->machine);
  wr_str_puts(s, "</div>\n");
  if (r->bad_lines) wr_str_printf(s, "<p class=dim>%llu lines could not be read.</p>\n", (unsigned long long)r->bad_lines);
  wr_str_printf(s, "<p class=dim>Written by weir %s.</p>\n<script>%s</script></body></html>\n", weir_version(), script);
}
