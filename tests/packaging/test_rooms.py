"""The check of which folder of the native sources includes which."""

from pathlib import Path

from native_rooms import ROOMS, SOURCES, violations


def test_arrows_point_one_way() -> None:
    assert list(violations(SOURCES)) == []


def test_rooms_know_only_rooms_before_them() -> None:
    before: list[str] = []
    for room, known in ROOMS.items():
        assert set(known.split()) <= set(before), room
        before.append(room)


def test_an_include_against_the_arrows_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    text = '#include <ggml.h>\n#include "system/errors.h"\n#include "graph/forward.h"\n'
    (tmp_path / "cache" / "cells.h").write_text(text)
    (tmp_path / "stray.cpp").write_text("")
    assert list(violations(tmp_path)) == [
        "cache/cells.h includes graph/forward.h: cache may include system kernels",
        "stray.cpp: not in a room; rooms are " + ", ".join(ROOMS),
    ]
