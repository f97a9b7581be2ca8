from __future__ import annotations

import tracemalloc

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenloom.schemas import CodecError, ErrorBody, decode, encode
from tokenloom.schemas.codec import MAX_DEPTH, MAX_MAP

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=20),
        st.dictionaries(st.one_of(st.text(), st.integers(-(1 << 63), (1 << 64) - 1)), inner, max_size=20),
    ),
    max_leaves=60,
)


def depth(value: object) -> int:
    inner = value if isinstance(value, list) else value.values() if isinstance(value, dict) else None
    return 0 if inner is None else 1 + max((depth(one) for one in inner), default=0)


@given(PLAIN)
def test_what_is_written_is_read_back(value: object) -> None:
    if depth(value) > MAX_DEPTH:
        with pytest.raises(CodecError, match="nested deeper than 16"):
            encode(value)
    else:
        assert decode(encode(value)) == value


@given(st.binary(max_size=200))
@settings(max_examples=500)
def test_hostile_bytes_raise_nothing_but_codec_error(data: bytes) -> None:
    try:
        value = decode(data)
    except CodecError:
        return
    assert decode(encode(value)) == value or value != value or has_nan(value)


@given(
    st.binary(min_size=1, max_size=60),
    st.lists(st.sampled_from([0xDC, 0xDD, 0xDE, 0xDF, 0x91, 0x81, 0xDB, 0xC6, 0xC7])),
)
def test_headers_that_lie_raise_nothing_but_codec_error(tail: bytes, heads: list[int]) -> None:
    data = b"".join(bytes([head]) + b"\x00\x00\xff\xff" for head in heads) + tail
    try:
        value = decode(data)
    except CodecError:
        return
    assert decode(encode(value)) == value or has_nan(value)


def has_nan(value: object) -> bool:
    if isinstance(value, float):
        return value != value
    inner = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
    return any(has_nan(one) for one in inner)


@given(PLAIN, st.data())
def test_a_cut_or_longer_message_is_refused(value: object, data: st.DataObject) -> None:
    if depth(value) > MAX_DEPTH:
        return
    whole = encode(value)
    cut = data.draw(st.integers(0, len(whole) - 1))
    for wrong in (whole[:cut], whole + b"\x00"):
        with pytest.raises(CodecError):
            decode(wrong)


def test_a_declared_length_beyond_the_data_allocates_nothing() -> None:
    bombs = [
        b"\xdd\x7f\xff\xff\xff",  # one array of two thousand million
        b"\xdf\x7f\xff\xff\xff",  # a map likewise
        b"\xdd\x00\x0f\x00\x00" * 200_000,  # arrays of a million nested, all of which the size would allow singly
        (b"\xdc\xff\xff" * 15)
        + b"\xc0" * 65_535,  # nested within the depth limit, promises summing up to 15 times the data
        b"\xdb\x7f\xff\xff\xff" + b"a" * 1000,
        b"\xc6\x7f\xff\xff\xff" + b"a" * 1000,
    ]
    for bomb in bombs:
        tracemalloc.start()
        with pytest.raises(CodecError):
            decode(bomb)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2 * len(bomb) + 100_000


def test_memory_is_bounded_by_the_size_of_the_data() -> None:
    data = b"\xdd" + (40_000).to_bytes(4, "big") + b"\x90" * 40_000  # the densest there is: empty lists
    tracemalloc.start()
    decode(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * len(data)


def test_nesting_is_refused_without_a_deep_stack() -> None:
    with pytest.raises(CodecError, match="nested deeper than 16 levels at byte 16"):
        decode(b"\x91" * 1_000_000 + b"\xc0")
    assert decode(b"\x91" * 16 + b"\xc0")
    with pytest.raises(CodecError, match="nested deeper than 3"):
        decode(encode([[[[]]]]), max_depth=3)


def test_too_many_bytes_are_refused_both_ways_with_the_limit() -> None:
    with pytest.raises(CodecError, match="encoded size is 13 bytes; the limit is 12"):
        encode("a" * 12, max_bytes=12)
    with pytest.raises(CodecError, match="encoded size is 13 bytes; the limit is 12"):
        decode(encode("a" * 12), max_bytes=12)
    assert decode(encode("a" * 11), max_bytes=12) == "a" * 11


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (msgpack.packb(msgpack.ExtType(5, b"x")), "extension type"),
        (msgpack.packb(msgpack.Timestamp(1, 0)), "extension type"),
        (b"\xc7\x00\x05", "extension type"),
        (b"\xc1", "unused byte"),
        (b"\xa1\xff", "UTF-8"),
        (b"\xa3\xed\xa0\x80", "UTF-8"),  # a lone surrogate
        (b"\x81\x90\xc0", "a map key is text or an integer, not list"),
        (b"\x81\xc0\xc0", "not NoneType"),
        (b"\x81\xc3\xc0", "not bool"),
        (b"\x81\xc4\x01a\xc0", "not bytes"),
        (b"\x81\xcb" + b"\x00" * 8 + b"\xc0", "not float"),
        (b"\x82\xa1a\x01\xa1a\x02", "'a' comes twice"),
        (b"\x82\x01\x01\xcc\x01\x02", "'1' comes twice"),
        (b"", "cut short"),
        (b"\xde", "cut short|promises"),
        (b"\x01\x02", "1 bytes follow"),
    ],
)
def test_what_is_not_plain_data_is_refused(data: bytes, what: str) -> None:
    with pytest.raises(CodecError, match=what):
        decode(data)


def test_a_map_has_a_limit_of_entries() -> None:
    entries = MAX_MAP + 1
    data = (
        b"\xdf"
        + entries.to_bytes(4, "big")
        + b"".join(b"\xce" + n.to_bytes(4, "big") + b"\xc0" for n in range(entries))
    )
    with pytest.raises(CodecError, match=f"{entries} entries; the limit is {MAX_MAP}"):
        decode(data)


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, 1 << 64, "\ud800", {None: 1}, {(1, 2): 3}, {True: 1}, msgpack.ExtType(1, b"")]
)
def test_what_cannot_travel_is_not_written(value: object) -> None:
    with pytest.raises(CodecError):
        encode(value)


def test_something_that_is_not_bytes_is_a_codec_error() -> None:
    with pytest.raises(CodecError, match="not str"):
        decode("text")  # type: ignore[arg-type]


def test_a_model_becomes_a_map_without_its_empty_fields() -> None:
    body = ErrorBody(code="engine", message="no")
    assert decode(encode(body)) == {"code": "engine", "message": "no"}
    assert decode(encode(["f", None, [], {"body": body}])) == [
        "f",
        None,
        [],
        {"body": {"code": "engine", "message": "no"}},
    ]
