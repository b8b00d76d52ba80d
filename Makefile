# Each target works alone on a fresh clone: it creates .venv and installs what it needs, once.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt
# One whose making was broken off has no pip: it is made anew.
VENV = $(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
DEMO := smollm2-135m
BUILT_FROM := pyproject.toml constraints.txt CMakeLists.txt minnow/__init__.py \
	$(wildcard minnow/kernels/native/*.* minnow/kernels/*/cpu.cpp)
# The tests compare tokenizers with llama.cpp's, which PyPI has as source only: no more of it is built than they need.
LLAMA_FLAGS := -DCMAKE_PROJECT_INCLUDE=$(CURDIR)/tools/llama_cpp_vocabulary.cmake -DCMAKE_C_FLAGS_RELEASE=-O0 \
	-DCMAKE_CXX_FLAGS_RELEASE=-O0 -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF -DGGML_CPU_REPACK=OFF -DGGML_LLAMAFILE=OFF \
	-DLLAVA_BUILD=OFF

.PHONY: setup serve test quick check fix eval soak bench sanitize clean

setup: .venv/installed-all

serve: .venv/installed-base
	$(BIN)/minnow serve $(DEMO)

test: .venv/installed-all
	$(BIN)/minnow pull $(DEMO)
	$(BIN)/python -m pytest -m "not gpu and not slow$$($(BIN)/python -m tools.browser)"

quick: .venv/installed-all
	$(BIN)/python -m pytest -m "not gpu and not slow and not system and not ranks"

check: .venv/installed-all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tools.house
	$(BIN)/python -m tools.reference --check
	$(BIN)/python -m tools.docs

fix: .venv/installed-all
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python -m tools.reference

# What the demo's learned parts are worth, each beside its bar; fails on a miss. QUICK=1 takes ten minutes. EVAL_FLAGS
# are those of tools/eval. By cache format, against transformers: python -m tools.parity.
eval: .venv/installed-all
	$(BIN)/minnow pull $(DEMO)
	$(BIN)/python -m tools.eval $(if $(QUICK),--quick) $(EVAL_FLAGS)

# 32 streams at once for ten minutes, with clients that leave; fails when anything is left.
soak: .venv/installed-all
	$(BIN)/python -m tools.soak --model tiny

# The kernel tests under AddressSanitizer, UBSan and ThreadSanitizer.
sanitize: .venv/installed-all
	$(BIN)/python -m tools.sanitize

# Minnow beside its peers, installed and tuned first; BENCH_FLAGS=--quick takes them as tuned before. Fails on a miss.
bench: .venv/installed-base
	$(BIN)/minnow bench compare --suite cpu $(BENCH_FLAGS); status=$$?; $(BIN)/python -m tools.benchmarks; exit $$status

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

# A stamp has the time at which its install began: what changes meanwhile is installed the next time.
.venv/installed-base: $(BUILT_FROM)
	$(VENV)
	touch .venv/begun
	$(PIP) "$$(grep '^torch==' constraints.txt)"
	$(PIP) --editable .
	mv .venv/begun $@

.venv/installed-all: $(BUILT_FROM)
	$(VENV)
	touch .venv/begun
	$(PIP) "$$(grep '^torch==' constraints.txt)"
	CMAKE_ARGS="$(LLAMA_FLAGS)" $(PIP) llama-cpp-python
	$(PIP) --editable ".[check,test]"
	cp -p .venv/begun .venv/installed-base
	mv .venv/begun $@
