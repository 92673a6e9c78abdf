#!/usr/bin/env bash
# The build's own tools: the include check on planted arrows, the embedding of text, the counts, the refusals of the model fetch.
set -u
cd "$(dirname "$0")/.." || exit 1
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT
passed=0 failed=0
ok() { passed=$((passed + 1)); }
no() { failed=$((failed + 1)); echo "FAIL tools: $*"; }
expect() { # WHAT WANTED_STATUS PART_OF_OUTPUT COMMAND...
  local what=$1 status=$2 part=$3 out rc
  shift 3
  out=$("$@" 2>&1)
  rc=$?
  if [ $rc = "$status" ] && [[ $out == *"$part"* ]]; then ok; else no "$what: exit $rc, not $status, or not '$part' in: $out"; fi
}
plant() { # FILE INCLUDED: an otherwise clean tree with one include in it
  rm -rf "$tmp/src"
  mkdir -p "$tmp/src/$(dirname "$1")"
  printf '#include <stdio.h>\n#include "weir/weir.h"\n#include "%s"\n' "$2" >"$tmp/src/$1"
}
right() { plant "$1" "$2"; expect "$1 may include $2" 0 "" tools/check-includes "$tmp"; }
wrong() { plant "$1" "$2"; expect "$1 must not include $2" 1 "src/$1:3: includes \"$2\"" tools/check-includes "$tmp"; }

expect "the include arrows of this tree" 0 "" tools/check-includes
right core/plan.c memory/memory.h
right core/dtype/codec.c core/core_i.h
right core/rows.c core/ops.def
right ops/rnn/rnn.c ops/ops.h
right ops/rnn/rnn_ref.c ops/rnn/rnn_i.h
right ops/rnn/rnn.c rnn_i.h
right ops/rnn/rnn.c core/dtype/dtype.h
right model/llama.c text/text.h
right serve/http.c infer/infer.h
right cli/main.c cli/cli_i.h
right ops/rnn/rnn_dev.c device/dialect.h
right ops/rnn/rnn_dev.h device/dialect.h
right ops/rnn/rnn_dev.h core/dtype/block_dev.h
wrong ops/rnn/rnn.h core/dtype/block_dev.h
right ops/rnn/rnn_dev.c device/dialect_mma.h
wrong ops/rnn/rnn.c device/dialect.h
wrong base/team.c device/device.h
wrong memory/pages.c comm/comm.h
wrong core/plan.c ops/ops.h
wrong core/plan.c format/format.h
wrong format/gguf.c core/dtype/dtype.h
wrong text/bpe.c data/data.h
wrong ops/rnn/rnn.c text/text.h
wrong model/llama.c infer/infer.h
wrong cli/main.c base/base.h
wrong model/llama.c core/core_i.h
wrong ops/rnn/rnn.c ops/matmul/matmul_i.h
wrong model/llama.c core/plan.h
wrong base/team.c ../core/core.h
wrong odd/x.c base/base.h

# text that is embedded comes back byte for byte
printf 'a "quoted" \\ back\\n slash ??/ 100%%\n\ttab, \303\244\n\n' >"$tmp/t.cases"
if tools/embed "$tmp/t.cases" >"$tmp/c.c" &&
  printf '#include <stdio.h>\nint main(void) { printf("%%s%%s%%d", wr_case_files[0].family, wr_case_files[0].text, wr_case_files_n); }\n' >>"$tmp/c.c" &&
  gcc -Wall -Wextra -Werror -std=gnu11 "$tmp/c.c" -o "$tmp/c" 2>/dev/null || clang -std=gnu11 "$tmp/c.c" -o "$tmp/c"; then
  { printf t; cat "$tmp/t.cases"; printf 1; } >"$tmp/want"
  "$tmp/c" | cmp -s - "$tmp/want" && ok || no "embed: the text differs"
else
  no "embed: the C source does not compile"
fi

printf '3 0 1\n4 0 0\n' >"$tmp/tally"
expect "tally" 0 "7 passed, 0 failed, 1 skipped" tools/tally "$tmp/tally"
printf '3 1 0\n' >"$tmp/tally"
expect "tally of a failure" 1 "3 passed, 1 failed" tools/tally "$tmp/tally"
expect "no model and no network" 1 "MODEL=file.gguf" env WEIR_CACHE="$tmp/none" WEIR_OFFLINE=1 tools/fetch-model
expect "nowhere to keep a model" 1 "HOME" env -u HOME -u WEIR_CACHE -u XDG_CACHE_HOME tools/fetch-model
expect "a MODEL that is not there" 1 "there is no such file" tools/run-model "$tmp/none.gguf" "" hello
expect "a DATA that is not there" 1 "there is no such file" tools/run-model "" "$tmp/none.txt" hello
expect "nowhere to keep a text" 1 "HOME" env -u HOME -u WEIR_CACHE -u XDG_CACHE_HOME tools/fetch-text
mkdir -p "$tmp/bin" && for program in bash env mkdir mktemp rm; do ln -sf "$(command -v $program)" "$tmp/bin/"; done
expect "no text, no apt" 1 "DATA=file" env -i PATH="$tmp/bin" WEIR_CACHE="$tmp/none" bash tools/fetch-text
expect "no text and no network" 1 "DATA=file" env -i PATH="$tmp/bin" WEIR_CACHE="$tmp/none" WEIR_OFFLINE=1 bash tools/fetch-text
mkdir -p "$tmp/cache/models" && echo garbage >"$tmp/cache/models/smollm2-135m-instruct-q4_1.gguf"
expect "a model that is damaged is not used" 1 "no model" env WEIR_CACHE="$tmp/cache" WEIR_OFFLINE=1 tools/fetch-model

# the page of the benches: drawn from this tree's records and from hostile ones, the same bytes again, nothing let through as markup
mkdir -p "$tmp/records"
head -n 1 bench/records/*.csv | grep -m 1 ^date, >"$tmp/records/a<b>.csv"
echo "2026-12-01 00:00,\"<script>\",m,\"decode <b>'x\"\"y, 1 thread\",tok/s,2,nan,zero,,,,1e999,-1,PASS,1,,<i>,<u>: &" >>"$tmp/records/a<b>.csv"
expect "the page of the benches" 0 "KB" bench/report.py --out "$tmp/one.html"
expect "a page of hostile records" 0 "KB" bench/report.py --records "$tmp/records" --out "$tmp/two.html"
bench/report.py --records "$tmp/records" --out "$tmp/again.html" >/dev/null
cmp -s "$tmp/two.html" "$tmp/again.html" && ok || no "bench/report.py: other bytes for the same records"
! grep -qE '<script|<b>.x|<i>|a<b>' "$tmp/two.html" && ok || no "bench/report.py lets markup through"
expect "no records" 0 "KB" bench/report.py --records "$tmp/none" --out "$tmp/three.html"

while read -r lines file; do
  [ "$file" = total ] || [ "$lines" -le 1200 ] || no "$file has $lines lines; 1,200 is the limit"
done < <(find src include tests examples -name '*.[ch]' -print0 2>/dev/null | xargs -0 wc -l)
ok

# an installation: the program runs from it, and a program of a stranger builds with it
if [ "${WEIR_VARIANT:-release}" = release ] && [ -z "${WEIR_ISA:-}" ]; then
  make -s install PREFIX=/usr DESTDIR="$tmp/root" >/dev/null 2>"$tmp/log" && ok || no "make install: $(cat "$tmp/log")"
  for f in bin/weir lib/libweir.a include/weir/weir.h share/man/man1/weir.1 share/bash-completion/completions/weir; do
    [ -s "$tmp/root/usr/$f" ] && ok || no "make install left no $f"
  done
  expect "the installed program" 0 "generate" "$tmp/root/usr/bin/weir" --help
  expect "a program built with what was installed" 0 "" gcc -I"$tmp/root/usr/include" -L"$tmp/root/usr/lib" \
    -o "$tmp/stranger" examples/tokens.c -lweir -lpcre2-8 -ljansson -lzstd -lz -ldl -lm -pthread
fi

echo "tools: $passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
