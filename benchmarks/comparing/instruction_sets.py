"""The instruction sets that multiplication kernels are for: their names, and which of peak.cpp's peaks are theirs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class InstructionSet:
    """``products`` and ``fma`` are keys of peak.cpp's; ``by`` is what the products' peak is measured with.

    Without a peak of its products, ``why`` says why there is none.
    """

    title: str
    products: str = ""
    fma: str = ""
    by: str = ""
    why: str = ""


#: By the names that TOKENLOOM_KERNELS has.
SETS = {
    "vnni": InstructionSet("AVX-512 VNNI", "avx512_vnni", "avx512", "vpdpbusd of 512 bits"),
    "avxvnni": InstructionSet("AVX-VNNI", "avx_vnni", "avx2", "vpdpbusd of 256 bits"),
    "avx2": InstructionSet("AVX2", "avx2", "avx2", "vpmaddubsw, four to a vpmaddwd"),
    "amx": InstructionSet("AMX int8", fma="avx512", why="peak.cpp has no products of tiles"),
    "neon": InstructionSet("NEON dotprod", fma="plain", why="peak.cpp has no products for ARM"),
    "portable": InstructionSet("portable C++", fma="plain", why="portable kernels have no instruction of their own"),
    "ggml": InstructionSet("ggml's own", why="ggml multiplies by more than one instruction"),
}


def set_of(kernels: str) -> InstructionSet:
    """Of the kernels of that name; one that is not known has no peaks."""
    return SETS.get(kernels, InstructionSet(kernels, why=f"no peak is known for kernels {kernels}"))
