#!/bin/sh
# Builds read_gguf.cpp with clang's libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer, and runs it for so many
# seconds (default 60). What it finds new is kept in build/fuzz/corpus; a file that breaks the reader in build/fuzz.
set -eu
seconds=${1:-60}
clang=${CLANG:-$(command -v clang++ || command -v clang++-14 || true)}
if [ -z "$clang" ]; then
  echo "make fuzz needs clang and its runtime, e.g. apt-get install clang libclang-rt-14-dev" >&2
  exit 1
fi
ggml=$(.venv/bin/python -c 'import libggml; print(list(libggml.__path__)[0])')
library=$(echo "$ggml"/lib*/libggml-base.so*)
folder=$(dirname "${library%% *}")
mkdir -p build/fuzz/corpus
"$clang" -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
  -I native_ext/src -I "$ggml/include" -o build/fuzz/read_gguf tests/fuzz/read_gguf.cpp \
  native_ext/src/gguf/*.cpp native_ext/src/models/description.cpp native_ext/src/models/families.cpp
  native_ext/src/models/key_reader.cpp \
  -L "$folder" -l:libggml-base.so -Wl,-rpath,"$folder"
build/fuzz/read_gguf -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=2048 \
  -artifact_prefix=build/fuzz/ build/fuzz/corpus tests/fuzz/corpus
