# The two commands, `make run` and `make test`, and names for what the presets do.
# Everything is built under build/<preset>; see CMakePresets.json.
.DEFAULT_GOAL := help
.NOTPARALLEL:

JOBS ?= $(shell tools/jobs)
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60
SHAPE ?= 1,12,12,512,512,64
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export CTEST_PARALLEL_LEVEL := $(JOBS)
QKV := build/release/bin/qkv
SOURCES = git ls-files '*.h' '*.cpp' '*.cu' '*.cuh'
# GCC 12's ThreadSanitizer cannot place its memory under the address randomisation of new kernels.
FIXED_ADDRESSES := $(shell setarch -R true 2>/dev/null && echo setarch -R)

# On Arm GCC's search for leaks takes four seconds of every process, hours for all tests: there it is
# done once, for the tests of what owns memory and files. On x86 it is part of every test.
ifeq ($(shell uname -m),aarch64)
export QKV_ASAN_LEAKS := :detect_leaks=0
LEAK_TESTS := build/asan/bin/qkv-tests --gtest_brief=1 \
  --gtest_filter='Tensor*:Tape*:Autograd*:Checkpoint*:Tokenizer*:Generate*:KvCache*:Threads*'
endif

define configure_and_build
cmake --preset $(1)
cmake --build --preset $(1)
endef

.PHONY: help run test deps build bench asan tsan fuzz cuda tidy format format-check docs levels \
        check-install install clean

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

run: build ## install what is missing, build, translate a few sentences and show who attended to whom
	@tools/run-translator $(QKV) build/look.html

test: deps ## install what is missing, build, and run every test
	$(call configure_and_build,dev)
	ctest --preset dev

deps: ## install missing packages (Debian, Ubuntu)
	@tools/install-deps

build: deps ## build release: build/release/bin/qkv
	$(call configure_and_build,release)

bench: build ## time attention against the plain computation; SHAPE=B,H,Hk,Sq,Sk,D
	$(QKV) bench attention --shape $(SHAPE)

asan: deps ## every test under AddressSanitizer and UndefinedBehaviorSanitizer
	$(call configure_and_build,asan)
	$(LEAK_TESTS)
	ctest --preset asan

tsan: deps ## every test under ThreadSanitizer
	$(call configure_and_build,tsan)
	$(FIXED_ADDRESSES) ctest --preset tsan

fuzz: deps deps-ci ## let the fuzzers of tests/fuzz run for FUZZ_SECONDS each, two at a time
	$(call configure_and_build,fuzz)
	FUZZ_SECONDS=$(FUZZ_SECONDS) tools/run-fuzzers

cuda: deps ## compile the library with CUDA (needs nvcc)
	cmake --preset cuda
	cmake --build --preset cuda --target qkv-cuda qkv-cuda-floats qkv-cuda-sm90

tidy: deps-ci ## build through clang-tidy
	$(call configure_and_build,tidy)

format: deps-ci ## rewrite the sources with clang-format
	$(SOURCES) | xargs clang-format -i

format-check: deps-ci ## fail where clang-format would change something
	$(SOURCES) | xargs clang-format --dry-run --Werror

docs: build ## rewrite docs/cli.md from the program's own help
	tools/check-cli-docs --write $(QKV)

levels: ## fail on an #include that points up (docs/architecture.md)
	@tools/check-levels

check-install: deps ## build a program against an installed copy: find_package and pkg-config
	$(call configure_and_build,dev)
	tools/check-install build/dev

install: build ## install into PREFIX (/usr/local)
	cmake --install build/release --prefix $(PREFIX)

clean: ## remove build/
	rm -rf build

.PHONY: deps-ci
deps-ci:
	@tools/install-deps --ci
