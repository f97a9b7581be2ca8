#!/bin/sh
# The kernels for AMX as built for it, on a CPU with AVX-512 VNNI and no AMX: its instructions trap, and are emulated one by one.
set -eu
python=${1:-.venv/bin/python}
sources=native_ext/src
out=build/trapped
headers=$($python -c 'import libggml; print(list(libggml.__path__)[0] + "/include")')
mkdir -p $out
avx512="-mavx512f -mavx512bw -mavx512vl -mavx512vnni -mfma -mf16c -Wno-uninitialized -Wno-maybe-uninitialized"
build() {  # SOURCE [FLAG...]
  source=$1; shift
  ${CXX:-g++} -O3 -std=c++20 -Wall -Wextra -Wno-psabi -ffp-contract=off -fPIE -DTOKENLOOM_X86_KERNELS -DTOKENLOOM_AMX_KERNELS \
    -I$sources -isystem "$headers" "$@" -c "$source" -o "$out/$(basename "$source" .cpp).o"
}
build $sources/kernels/amx/kernels_amx.cpp $avx512 -mamx-tile -mamx-int8
build $sources/kernels/avx512/kernels_avx512.cpp $avx512
build $sources/kernels/avx512/row_kernels_avx512.cpp $avx512
build $sources/kernels/avx512/weigh_avx512.cpp $avx512
build $sources/kernels/avx2/row_kernels_avx2.cpp -mavx2 -mfma -mf16c
build $sources/kernels/portable/row_kernels_portable.cpp -mavx2 -mfma -mf16c
build $sources/kernels/portable/weigh_portable.cpp -mavx2 -mfma -mf16c
build $sources/kernels/portable/kernels_portable.cpp -mavx2 -mfma -mf16c
for source in kernels/activations system/cpu_features system/child_check kernels/amx/tile_emulation; do
  build $sources/$source.cpp
done
build tests/native/kernels_trapped.cpp
${CXX:-g++} -o $out/trapped $out/*.o
$out/trapped
echo "AMX kernels give the bits of the portable ones"
