#!/bin/sh
# Runs Python with the sanitized module of `make sanitize` in place of the installed one: sanitized.sh -m pytest ...
# The sanitizers' libraries have to be there before anything else, and libstdc++ so that they see exceptions pass.
set -eu
python=.venv/bin/python
compiler=${CXX:-g++}
ggml=$($python -c 'import glob, libggml; print(glob.glob(list(libggml.__path__)[0] + "/lib*")[0])')
LD_PRELOAD="$($compiler -print-file-name=libasan.so) $($compiler -print-file-name=libubsan.so) $($compiler -print-file-name=libstdc++.so)"
# Python keeps what it has until the end, which is no leak of ours; its own allocator would hide overruns.
export LD_PRELOAD LD_LIBRARY_PATH="$ggml" PYTHONPATH="$PWD/build/sanitize/site" PYTHONMALLOC=malloc
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
exec $python "$@"
