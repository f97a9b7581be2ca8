#!/bin/sh
# The kernels for ARM, built with a cross compiler and run by an emulator: the same bits as the portable ones, there and here.
# On Debian: apt install g++-aarch64-linux-gnu qemu-user
set -eu
python=${1:-.venv/bin/python}
sources=native_ext/src
out=build/elsewhere
cross=${CROSS_CXX:-aarch64-linux-gnu-g++}
emulator=${EMULATOR:-qemu-aarch64}
for tool in "$cross" "$emulator"; do
  command -v "$tool" > /dev/null || { echo "$tool is not there: apt install g++-aarch64-linux-gnu qemu-user" >&2; exit 1; }
done
headers=$($python -c 'import libggml; print(list(libggml.__path__)[0] + "/include")')
mkdir -p $out
# Only types are taken from ggml's headers. Warnings that the ABI of vectors has changed between compilers do not matter here.
flags="-O3 -std=c++20 -Wall -Wextra -Wno-psabi -ffp-contract=off -I$sources -isystem $headers"
common="tests/native/kernels_elsewhere.cpp $sources/kernels/activations.cpp $sources/kernels/portable/row_kernels_portable.cpp $sources/kernels/portable/weigh_portable.cpp $sources/kernels/portable/kernels_portable.cpp
  $sources/kernels/kernel_check.cpp $sources/system/child_check.cpp"
$cross $flags -march=armv8.2-a+dotprod -DTOKENLOOM_NEON_KERNELS -static -o $out/arm $common $sources/kernels/neon/kernels_neon.cpp $sources/system/cpu_features.cpp
${CXX:-g++} $flags -o $out/here $common
there=$("$emulator" $out/arm)
here=$($out/here)
if [ "$there" != "$here" ]; then
  echo "products differ between machines: $there there, $here here" >&2
  exit 1
fi
echo "ARM kernels give the bits of the portable ones, there and here: $here"
