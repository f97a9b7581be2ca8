"""Settings mean what they say, to the engine as well, and what is out of range is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from native.tiny_llama import TinyLlama
from tokenloom.native_ext.ggml import GgmlEngine
from tokenloom.worker.engines import load_engine
from tokenloom.worker.settings import SettingsError, load_settings
from tokenloom.worker.sizes import parse_bytes

TINY = TinyLlama(embedding=32, feed_forward=32, heads=2, kv_heads=1, vocabulary=11)


def test_kernels_for_tests_are_not_for_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENLOOM_KERNELS", "amx-emulated")
    with pytest.raises(SettingsError, match="TOKENLOOM_KERNELS"):
        load_settings()


@pytest.mark.parametrize("name", ["TOKENLOOM_KERNELS", "tokenloom_kernels"])
def test_the_engine_takes_the_kernels_of_the_settings(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENLOOM_KERNELS", "auto")  # so that it is undone afterwards
    monkeypatch.delenv("TOKENLOOM_KERNELS")
    monkeypatch.setenv("TOKENLOOM_MODEL", str(TINY.write(tmp_path / "m.gguf")))
    monkeypatch.setenv(name, "portable")
    engine = load_engine(load_settings())
    assert isinstance(engine, GgmlEngine)
    assert engine._core is not None
    assert engine._core.weights()[0] == "portable"
    engine.close()


@pytest.mark.parametrize("size", ["9" * 400, "9" * 5000, str(1 << 63), "1000T", "1023K"])
def test_sizes_out_of_range_are_refused_by_name(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENLOOM_ENGINE", "fake")
    monkeypatch.setenv("TOKENLOOM_KV_BYTES", size)
    with pytest.raises(SettingsError, match=r"^TOKENLOOM_KV_BYTES="):
        load_settings()


def test_sizes_are_exact() -> None:
    assert parse_bytes(str((1 << 53) + 1)) == (1 << 53) + 1
    assert parse_bytes("1.5G") == 3 << 29
    assert parse_bytes("0.3k") == 307
