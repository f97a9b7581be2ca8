"""`tokenloom inspect`: what a file is and costs, and why one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from families.table import FILES, NOT_YET
from tokenloom.native_ext.engine import EngineSettings
from tokenloom.native_ext.ggml import load
from tokenloom.native_ext.inspection import Inspection, inspect
from tokenloom.native_ext.native import core
from tokenloom.producer.cli import main


@pytest.mark.parametrize("name", [name for name in FILES if name not in NOT_YET])
def test_every_family_is_read_without_loading_it(name: str, tmp_path: Path) -> None:
    file = FILES[name]
    found = inspect(file.write(tmp_path / "model.gguf"))
    assert isinstance(found, Inspection)
    assert found.architecture == file.architecture
    assert (found.vocabulary, found.embedding, found.context) == (file.vocabulary, file.embedding, file.context)
    assert len(found.layers) == file.layers
    assert (found.experts is None) == all(layer.feed_forward for layer in found.layers)
    assert all(weights.quick for weights in found.types.values())


def test_what_is_told_of_cells_is_what_the_engine_takes(tmp_path: Path) -> None:
    path = FILES["gemma3"].write(tmp_path / "model.gguf")
    engine = load(EngineSettings(model=path, kv_bytes=1 << 25, threads=1))
    try:
        page = engine._open.geometry()["page_bytes"]
    finally:
        engine.close()
    assert inspect(path).cell_bytes["f16"] * 64 == page


def test_every_family_of_the_table_has_a_tiny_file() -> None:
    """Else a row would be without truth."""
    opens = {file.architecture for name, file in FILES.items() if name not in NOT_YET}
    assert {architecture for architecture, _ in core.families()} == opens


def test_the_command_prints_it(tmp_path: Path) -> None:
    path = FILES["gemma2"].write(tmp_path / "model.gguf", "Q8_0")
    result = CliRunner().invoke(main, ["inspect", str(path)])
    assert result.exit_code == 0, result.output
    for part in ("gemma2 (Gemma 2)", "window", "weights q8_0", "packed for our own kernels", "(f16)", "(int8)"):
        assert part in result.output


def test_a_file_that_is_refused_says_why(tmp_path: Path) -> None:
    path = tmp_path / "not.gguf"
    path.write_bytes(b"nothing of the kind")
    result = CliRunner().invoke(main, ["inspect", str(path)])
    assert result.exit_code == 1
    assert "not.gguf" in result.output
