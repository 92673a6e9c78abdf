# weir: how it is built, tested and installed. `make list` prints the targets. GNU make, gcc >= 12 or clang >= 14.
#
#   make                        release build; leaves ./weir
#   make VARIANT=asan check     the same in another variant: release debug asan tsan fuzz, each in a build folder of its own
#   make CC=clang               another compiler: build/clang-release
#   make CC=aarch64-linux-gnu-gcc SYSROOT=build/arm64      for another machine; tools/sysroot makes such a folder of its libraries
#   make WERROR=0               warnings are errors in a git checkout only; this turns it off there, WERROR=1 on elsewhere
#
# Sources are found, not listed: a new file under src/ or tests/ is picked up, headers are tracked by the compiler (-MMD).
# Files named *_cpu.c are compiled once for each instruction set (below), *_cpu_ISA.c once for that one; *_dev.c are compiled for the
# host, which emulates them, and put into the library as text.

VARIANT ?= release
PREFIX  ?= /usr/local
PYTHON  ?= python3
SOAK_S  ?= 600
SECONDS ?= 60
PROMPT  ?= Why is the sky blue? Answer in two sentences.
WERROR  ?= $(if $(wildcard .git),1,0)
# programs of the tests that say something about threads, or about the work items of device kernels (of kernels: these rows only); only these
# are run under the thread sanitizer
TSAN_TESTS ?= team session batch checkpoint data_text emu kernels

ifeq ($(origin CC),default)
CC := gcc
endif
ifeq ($(VARIANT),fuzz)
CC := clang
endif
MACHINE := $(shell $(CC) -dumpmachine 2>/dev/null)
B := build/$(if $(filter gcc cc,$(notdir $(CC)))$(filter fuzz,$(VARIANT)),,$(notdir $(CC))-)$(VARIANT)
ifeq ($(MAKELEVEL),0)
JOBS := $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc 2>/dev/null || echo 1))
MAKEFLAGS += $(JOBS)
endif

# ------------------------------------------------------------------------------------------------------------------ flags

# -Wno-conversion: gcc sees casts in the code that the sanitizers insert; the plain builds hold the sources to it.
SAN_undefined := -Wno-conversion -fsanitize=undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
VARIANT_release := -O2 -g
VARIANT_debug   := -O0 -g3 -DWR_DEBUG
VARIANT_asan    := -O1 -g -DWR_DEBUG -fsanitize=address $(SAN_undefined)
VARIANT_tsan    := -O1 -g -DWR_DEBUG -fsanitize=thread -fno-omit-frame-pointer
VARIANT_fuzz    := -O1 -g -DWR_DEBUG -fsanitize=fuzzer-no-link,address $(SAN_undefined)
ifndef VARIANT_$(VARIANT)
$(error VARIANT=$(VARIANT) is none of: release debug asan tsan fuzz)
endif

WARN     := -Wall -Wextra -Wshadow -Wconversion -Wmissing-prototypes $(if $(filter 1,$(WERROR)),-Werror)
# Contraction is off: where a fused multiply-add is wanted it is written, so that every instruction set gives the same bits.
CFLAGS_ALL := -std=gnu11 -Iinclude -Isrc -D_GNU_SOURCE $(WARN) -pthread -ffp-contract=off $(VARIANT_$(VARIANT)) $(CPPFLAGS) $(CFLAGS)
ifdef SYSROOT # static, so that an emulator needs nothing of that machine
INCLUDES   := -isystem $(SYSROOT)/usr/include -isystem $(SYSROOT)/usr/include/$(MACHINE)
CFLAGS_ALL += $(INCLUDES)
LDFLAGS    += -static -L$(SYSROOT)/usr/lib/$(MACHINE)
endif
LIBS     := -lpcre2-8 -ljansson -lzstd -lz -ldl -lm -pthread

# An instruction set: its compiler flags, and the level that the sources see (0 generic, 1 avx2 or neon, 2 avx512).
LEVEL_generic := 0
ifneq ($(filter x86_64-%,$(MACHINE)),)
ISAS         := generic avx2 avx512
ISA_generic  := -Wno-psabi
ISA_avx2     := -mavx2 -mfma -mf16c
ISA_avx512   := $(ISA_avx2) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
# gcc's AddressSanitizer puts 64-byte vectors on its fake stack without aligning them (gcc bug 110027): these files do without one.
ISA_avx512   += $(if $(filter asan,$(VARIANT)),$(if $(findstring clang,$(CC)),,--param asan-use-after-return=0))
LEVEL_avx2   := 1
LEVEL_avx512 := 2
else ifneq ($(filter aarch64-%,$(MACHINE)),)
ISAS         := generic neon
ISA_neon     := -march=armv8.2-a+dotprod
LEVEL_neon   := 1
else
ISAS := generic
endif

# ---------------------------------------------------------------------------------------------------------------- sources

SRC      := $(sort $(wildcard src/*/*.c src/*/*/*.c))
CLI_SRC  := $(filter src/cli/%,$(SRC))
LIB_SRC  := $(filter-out src/cli/%,$(SRC))
CPU_SRC  := $(filter %_cpu.c,$(LIB_SRC))
ONE_SRC  := $(foreach i,$(ISAS),$(filter %_cpu_$(i).c,$(LIB_SRC)))
ANY_SRC  := $(foreach s,$(LIB_SRC),$(if $(findstring _cpu_,$(notdir $(s))),,$(filter-out %_cpu.c,$(s))))
CASES    := $(sort $(wildcard src/ops/*/*.cases))
DEV_SRC  := $(sort $(wildcard src/ops/*/*_dev.c))

LIB_OBJ  := $(ANY_SRC:%.c=$(B)/%.o) $(foreach i,$(ISAS),$(CPU_SRC:%.c=$(B)/%.$(i).o)) $(ONE_SRC:%.c=$(B)/%.o) $(B)/gen/cases.o $(B)/gen/kernels.o
CLI_OBJ  := $(CLI_SRC:%.c=$(B)/%.o)
LIB      := $(B)/libweir.a
PROGRAM  := $(if $(CLI_SRC),$(B)/weir)
TESTS    := $(patsubst %.c,$(B)/%,$(sort $(wildcard tests/*.c)))
EXAMPLES := $(patsubst %.c,$(B)/%,$(sort $(wildcard examples/*.c)))
FUZZERS  := $(patsubst %.c,$(B)/%,$(filter-out tests/fuzz/replay.c,$(sort $(wildcard tests/fuzz/*.c))))

# ---------------------------------------------------------------------------------------------------------------- targets

.DEFAULT_GOAL := all
.PHONY: all run deps check test soak fuzz bench install fmt list clean programs fuzzers FORCE
.DELETE_ON_ERROR:
.SECONDARY:

## all: build the library and ./weir (VARIANT=, CC=, WERROR=0)
all: $(LIB) $(PROGRAM)
ifeq ($(VARIANT),release)
	@$(if $(PROGRAM),cmp -s $(PROGRAM) weir || install -m 755 $(PROGRAM) weir)
endif

## run: install what is missing, build, train a model for a minute (DATA=file), ask a fetched one (MODEL=file.gguf PROMPT='...')
run:
	@tools/deps
	@$(MAKE) --no-print-directory all
	@tools/run-model "$(MODEL)" "$(DATA)" "$(PROMPT)"

## deps: install with apt what building and testing need and this machine lacks (elsewhere: say what it is)
deps:
	@tools/deps

programs: all fuzzers $(TESTS) $(EXAMPLES)
fuzzers: $(FUZZERS)

## check: build and run every test once, under 3 minutes (ONLY=pattern for some of them)
check: programs
	@tools/run-tests $(B)

## test: check's tests with sanitizers, with clang, for each instruction set forced, and for aarch64 under qemu
test:
	+@tools/run-variants "$(TSAN_TESTS)"

## soak: 200 kills of training, each failure of a save, then every fuzz target for SOAK_S seconds (600)
soak: all $(B)/tests/checkpoint
	@WEIR_SOAK_KILLS=1000 $(B)/tests/checkpoint
	@WEIR_SOAK=1 WEIR=$(B)/weir $(PYTHON) tests/crash.py
	@$(MAKE) --no-print-directory VARIANT=fuzz fuzzers
	@tools/run-fuzz $(SOAK_S)

## fuzz: one fuzz target, make fuzz TARGET=gguf SECONDS=60
fuzz:
	@$(MAKE) --no-print-directory VARIANT=fuzz fuzzers
	@tools/run-fuzz $(SECONDS) $(TARGET)

## bench: time this machine, kernels, inference and training (beside llama.cpp, PyTorch: bench/peers), draw bench/report.html (QUICK=1)
bench: all
	@bench/run

## fmt: clang-format the .c files (headers are set by hand, comments aligned)
fmt:
	clang-format -i $(shell git ls-files '*.c')

## install: program, library, headers, manual page and completions under PREFIX=/usr/local (DESTDIR=)
install: all
	install -Dm 755 weir $(DESTDIR)$(PREFIX)/bin/weir
	install -Dm 644 $(LIB) $(DESTDIR)$(PREFIX)/lib/libweir.a
	install -Dm 644 -t $(DESTDIR)$(PREFIX)/include/weir include/weir/*.h
	$(call from_weir,man,man/man1/weir.1)
	$(call from_weir,bash,bash-completion/completions/weir)
	$(call from_weir,zsh,zsh/site-functions/_weir)
	$(call from_weir,fish,fish/vendor_completions.d/weir.fish)
from_weir = mkdir -p $(dir $(DESTDIR)$(PREFIX)/share/$(2)) && ./weir completion $(1) >$(DESTDIR)$(PREFIX)/share/$(2)

## clean: remove what was built
clean:
	rm -rf build weir

## list: print the targets
list:
	@sed -n 's/^## \([a-z]*\): /  make \1\t/p' Makefile | expand -t 16

# ------------------------------------------------------------------------------------------------------------------ rules

# Two small files that change only when their content does: the compile command, and which objects make the library.
$(B)/command: FORCE
	@mkdir -p $(@D) && echo '$(CC) $(CFLAGS_ALL) $(foreach i,$(ISAS),$(ISA_$(i)))' >$@.new
	@cmp -s $@.new $@ && rm $@.new || { tools/deps --check $(CC) $(INCLUDES) && mv $@.new $@; }
$(B)/objects: FORCE
	@mkdir -p $(@D) && echo '$(LIB_OBJ) $(CASES) $(DEV_SRC)' >$@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
FORCE:

# Kernels get -O3 in the release build only: elsewhere it costs minutes of compiling and finds nothing more. Never -O0: intrinsics are
# then macros full of conversions.
compile = @mkdir -p $(@D) && echo "  CC $@" && $(CC) $(CFLAGS_ALL) $(1) -MMD -MP -c $< -o $@
isa_flags = $(if $(filter release,$(VARIANT)),-O3,-O1) $(ISA_$(1)) -DWR_ISA=$(1) -DWR_ISA_LEVEL=$(LEVEL_$(1))

$(B)/%.o: %.c $(B)/command
	$(call compile,)
$(B)/gen/%.o: $(B)/gen/%.c $(B)/command
	$(call compile,)
# for each ISA: foo_cpu.c -> foo_cpu.ISA.o, and foo_cpu_ISA.c -> foo_cpu_ISA.o
define isa_rules
$(B)/%.$(1).o: %.c $(B)/command
	$$(call compile,$$(call isa_flags,$(1)))
$(B)/%_cpu_$(1).o: %_cpu_$(1).c $(B)/command
	$$(call compile,$$(call isa_flags,$(1)))
endef
$(foreach i,$(ISAS),$(eval $(call isa_rules,$(i))))

$(B)/gen/cases.c: $(CASES) $(B)/objects tools/embed
	@mkdir -p $(@D) && tools/embed $(CASES) >$@

# kernels of the dialect as text, for the devices that compile them when weir runs
$(B)/gen/kernels.c: $(DEV_SRC) $(wildcard src/device/dialect*.h src/ops/*_dev.h src/ops/*/*_dev.h src/core/*.def src/core/dtype/*_dev.h) $(B)/objects tools/embed-kernels
	@mkdir -p $(@D) && tools/embed-kernels $(DEV_SRC) >$@

$(LIB): $(LIB_OBJ) $(B)/objects
	@echo "  AR $@" && rm -f $@ && ar rcs $@ $(LIB_OBJ)

link = @mkdir -p $(@D) && echo "  LD $@" && $(CC) $(CFLAGS_ALL) $(LDFLAGS) $(1) -o $@ $(filter %.o,$^) $(LIB) $(LIBS)
$(B)/weir: $(CLI_OBJ) $(LIB)
	$(call link,)
$(B)/tests/fuzz/%: $(B)/tests/fuzz/%.o $(if $(filter fuzz,$(VARIANT)),,$(B)/tests/fuzz/replay.o) $(LIB)
	$(call link,$(if $(filter fuzz,$(VARIANT)),-fsanitize=fuzzer))
$(B)/tests/%: $(B)/tests/%.o $(LIB)
	$(call link,)
$(B)/examples/%: $(B)/examples/%.o $(LIB)
	$(call link,)

-include $(shell find $(B) -name '*.d' 2>/dev/null)
