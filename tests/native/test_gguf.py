"""GGUF files are read faithfully, and whatever is wrong with one becomes a ModelError that names it."""

from __future__ import annotations

import contextlib
import random
import struct
from pathlib import Path
from typing import Any

import gguf
import pytest

from native.tiny_llama import TinyLlama
from tokenloom.native_ext.engine import EngineError, EngineSettings, Entry, ModelError
from tokenloom.native_ext.ggml import load
from tokenloom.native_ext.gguf import read_metadata

TINY = TinyLlama(layers=1, embedding=32, feed_forward=32, heads=2, kv_heads=1, vocabulary=11)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return TINY.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf").read_bytes()


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def file_of(values: bytes, count: int, tensors: bytes = b"", tensor_count: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensor_count, count) + values + tensors


def tensor(name: str = "t", shape: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def array_of(kind: int, count: int, elements: bytes = b"") -> bytes:
    """Type 9, then what an array is."""
    return struct.pack("<IIQ", 9, kind, count) + elements


def test_values_of_every_type_come_back(tmp_path: Path) -> None:
    path = tmp_path / "values.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    values: dict[str, tuple[str, Any]] = {
        "a.u8": ("uint8", 255),
        "a.i8": ("int8", -128),
        "a.u16": ("uint16", 65535),
        "a.i16": ("int16", -32768),
        "a.u32": ("uint32", 2**32 - 1),
        "a.i32": ("int32", -(2**31)),
        "a.u64": ("uint64", 2**64 - 1),
        "a.i64": ("int64", -(2**63)),
        "a.f32": ("float32", 0.5),
        "a.f64": ("float64", 1e300),
        "a.true": ("bool", True),
        "a.false": ("bool", False),
        "a.text": ("string", "naïve 字 😀"),
        "a.numbers": ("array", [1, 2, 3]),
        "a.floats": ("array", [1.5, -2.25]),
        "a.flags": ("array", [True, False]),
        "a.strings": ("array", ["", "b", "字"]),
        "a.nested": ("array", [[1, 2], [3]]),
    }
    for name, (kind, value) in values.items():
        getattr(writer, f"add_{kind}")(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()

    read = read_metadata(path)
    assert read.pop("general.architecture") == "llama"
    assert read == {name: value for name, (_, value) in values.items()}
    assert [type(read[name]) for name in values] == [type(value) for _, value in values.values()]


def test_the_real_model_reads_as_the_gguf_package_reads_it(model_path: Path) -> None:
    fields = gguf.GGUFReader(model_path).fields
    expected = {name: field.contents() for name, field in fields.items() if not name.startswith("GGUF.")}
    assert read_metadata(str(model_path)) == expected


def test_strings_that_are_not_utf8_lose_no_byte(tmp_path: Path) -> None:
    path = tmp_path / "bytes.gguf"
    path.write_bytes(file_of(string("k") + struct.pack("<I", 8) + string(b"ab\xff\xe2\x96"), 1))
    assert read_metadata(path)["k"].encode("utf-8", "surrogateescape") == b"ab\xff\xe2\x96"


def test_version_2_is_read(tmp_path: Path) -> None:
    path = tmp_path / "two.gguf"
    path.write_bytes(file_of(string("k") + struct.pack("<II", 4, 7), 1, version=2))
    assert read_metadata(path) == {"k": 7}


NO_VALUE = struct.pack("<I", 4)
KEY = string("k")
DEEP = b"".join(struct.pack("<IQ", 9, 1) for _ in range(1000))
WRONG = {
    "empty": (b"", "is empty"),
    "magic": (b"GGML" + bytes(100), "does not start with"),
    "shorter than its magic": (b"GG", "does not start with"),
    "text": (b"hello world, this is no model", "does not start with"),
    "version 1": (file_of(b"", 0, version=1), "version 1 .* supported are 2 and 3"),
    "version 4": (file_of(b"", 0, version=4), "version 4"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "header only half there": (b"GGUF" + struct.pack("<IQ", 3, 0), "truncated: the header"),
    "more tensors than any model": (file_of(b"", 0, tensor_count=2**63), "tensors, the limit"),
    "more keys than any model": (file_of(b"", 2**64 - 1), "key-values, the limit"),
    "more keys than there are": (file_of(KEY + struct.pack("<II", 4, 7), 2), "truncated: key 2 of 2"),
    "a key twice": (file_of((KEY + struct.pack("<II", 4, 7)) * 2, 2), "'k' occurs twice"),
    "an empty key": (file_of(string("") + struct.pack("<II", 4, 7), 1), "key 1 of 1 is empty"),
    "a key of 2^64 - 1 bytes": (file_of(struct.pack("<Q", 2**64 - 1) + b"k" * 50, 1), "string of 18446744073709551615"),
    "a key beyond 65535": (file_of(string(b"k" * 65536) + struct.pack("<II", 4, 7), 1), "the limit is 65535"),
    "an unknown type": (file_of(KEY + struct.pack("<II", 13, 7), 1), "'k'.*unknown value type 13"),
    "a bool of 2": (file_of(KEY + struct.pack("<IB", 7, 2), 1), "'k'.*bool of value 2"),
    "a bool of 2 in an array": (file_of(KEY + array_of(7, 2, b"\x01\x02"), 1), "'k'.*bool of value 2"),
    "a string beyond the file": (file_of(KEY + struct.pack("<IQ", 8, 2**60) + b"x", 1), "'k'.*a string of"),
    "an array beyond the file": (file_of(KEY + array_of(4, 1000, b"abcd"), 1), "truncated: key 'k'"),
    "an array whose size overflows": (file_of(KEY + array_of(10, 2**61 + 1), 1), "'k'.*2305843009213693953 elements"),
    "an array of too many": (file_of(KEY + array_of(0, 2**24 + 1), 1), "'k'.*16777217 elements"),
    "an array of an unknown type": (file_of(KEY + array_of(99, 1), 1), "unknown value type 99"),
    "arrays in arrays without end": (file_of(KEY + struct.pack("<I", 9) + DEEP, 1), "nested deeper than 4"),
    "arrays of many arrays": (
        file_of(KEY + array_of(9, 2**20, struct.pack("<IQ", 0, 2**24 - 1) + bytes(2**10)), 1),
        "'k'.*elements",
    ),
    "alignment 0": (file_of(string("general.alignment") + struct.pack("<II", 4, 0), 1), "alignment is 0"),
    "alignment 48": (file_of(string("general.alignment") + struct.pack("<II", 4, 48), 1), "alignment is 48"),
    "alignment of text": (file_of(string("general.alignment") + struct.pack("<I", 8) + string("x"), 1), "integer"),
    "a tensor of no dimensions": (file_of(b"", 0, tensor(shape=()), 1), "'t' has 0 dimensions"),
    "a tensor of 5 dimensions": (file_of(b"", 0, tensor(shape=(1,) * 5), 1), "'t' has 5 dimensions"),
    "a dimension of 0": (file_of(b"", 0, tensor(shape=(4, 0)), 1), "dimension 1 is 0"),
    "dimensions that overflow": (file_of(b"", 0, tensor(shape=(2**32, 2**32)), 1), "dimension 1 is 4294967296"),
    "bytes that overflow": (file_of(b"", 0, tensor(shape=(2**62,)), 1), "more than 2.63 bytes"),
    "a type beyond all": (file_of(b"", 0, tensor(kind=4000), 1), "type 4000"),
    "a type that was removed": (file_of(b"", 0, tensor(kind=4, shape=(32,)), 1), "type 4, which"),
    "half a block": (file_of(b"", 0, tensor(kind=2, shape=(33,)), 1), "no whole blocks of 32"),
    "a tensor twice": (file_of(b"", 0, tensor() * 2 + bytes(99), 2), "'t' occurs twice"),
    "a tensor name of 64": (file_of(b"", 0, tensor(name="t" * 64), 1), "the limit is 63"),
    "a tensor off its alignment": (file_of(b"", 0, tensor(offset=8) + bytes(99), 1), "no multiple of the alignment 32"),
    "a tensor outside the file": (file_of(b"", 0, tensor(offset=96) + bytes(99), 1), "truncated: tensor 't'"),
    "a tensor beyond 2^64": (file_of(b"", 0, tensor(offset=2**64 - 32) + bytes(99), 1), "truncated: tensor 't'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name: str, tmp_path: Path) -> None:
    raw, message = WRONG[name]
    path = tmp_path / "wrong.gguf"
    path.write_bytes(raw)
    with pytest.raises(ModelError, match=message) as raised:
        read_metadata(path)
    assert str(raised.value).startswith(str(path) + ": ")
    with pytest.raises(ModelError, match=message):
        load(EngineSettings(model=path))


def test_what_is_no_file(tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "missing.gguf", "cannot open the model file: No such file"),
        (tmp_path, "not a regular file"),
        (Path("/dev/null"), "not a regular file"),
        (tmp_path / ("n" * 300), "cannot open"),
        (tmp_path / "näme", "näme: cannot open"),
        (tmp_path / "not \udcff utf8", r"not \? utf8: cannot open"),
    ):
        with pytest.raises(ModelError, match=message):
            read_metadata(path)
        with pytest.raises(ModelError, match=message):
            load(EngineSettings(model=path))


def try_to_use(path: Path) -> bool:
    """Whether the file loads; if so it must also run. Nothing but the errors of the contract may come out."""
    with contextlib.suppress(ModelError):
        read_metadata(path)
    try:
        engine = load(EngineSettings(model=path, kv_bytes=1 << 24, threads=1))
    except ModelError:
        return False
    with contextlib.suppress(EngineError):
        engine.forward([Entry(engine.new(), [1, 2, 3], logits="last")])
    return True


def test_cut_anywhere_it_is_an_error(tiny: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    for size in [*range(0, 1600, 7), *range(1600, len(tiny), 401), len(tiny) - 33]:
        path.write_bytes(tiny[:size])
        assert not try_to_use(path), f"{size} of {len(tiny)} bytes were taken for a model"
    path.write_bytes(tiny)
    assert try_to_use(path)


def test_no_mutation_brings_the_process_down(tiny: bytes, tmp_path: Path) -> None:
    """Three thousand files with random damage, most of it in the header. A crash would end this process."""
    header = tiny.index(b"token_embd.weight") + 1000
    rng = random.Random(20)
    path = tmp_path / "mutated.gguf"
    interesting = [0, 1, 2, 0x7F, 0x80, 0xFF]
    lengths = [0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, len(tiny)]
    taken = 0
    for _ in range(3000):
        raw = bytearray(tiny)
        for _ in range(rng.choice((1, 1, 2, 4, 16))):
            at = rng.randrange(header)
            match rng.randrange(4):
                case 0:
                    raw[at] = rng.choice(interesting)
                case 1:
                    raw[at] ^= 1 << rng.randrange(8)
                case 2:  # a whole length or offset
                    raw[at : at + 8] = struct.pack("<Q", rng.choice(lengths))
                case _:  # a piece moved elsewhere
                    size, to = rng.randrange(1, 40), rng.randrange(header)
                    raw[to : to + size] = raw[at : at + size]
        path.write_bytes(raw)
        taken += try_to_use(path)
    assert 0 < taken < 2500  # some damage does not matter, most does
