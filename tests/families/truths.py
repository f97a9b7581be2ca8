"""What llama.cpp makes of the tiny files: tests/data/families, one file each, written by ``make truths``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

FOLDER = Path(__file__).resolve().parent.parent / "data" / "families"
#: Tokens of the prompt behind which a row of logits is kept: within the windows, beyond them, over three pages.
LENGTHS = (9, 40, 150)
#: Tokens generated behind the longest.
GREEDY = 64


@dataclass(frozen=True)
class Truth:
    """``prompt`` (150,) and ``greedy`` (64,) are token ids, ``rows`` (3, vocabulary) float32 logits of the last of
    ``LENGTHS`` tokens; ``digest`` says for which keys and tensors."""

    digest: str
    prompt: npt.NDArray[np.int16]
    rows: npt.NDArray[np.float32]
    greedy: npt.NDArray[np.int16]

    def save(self, name: str) -> Path:
        FOLDER.mkdir(parents=True, exist_ok=True)
        path = FOLDER / f"{name}.npz"
        np.savez_compressed(path, digest=np.array(self.digest), prompt=self.prompt, rows=self.rows, greedy=self.greedy)
        return path

    @staticmethod
    def load(name: str) -> Truth:
        """FileNotFoundError when ``make truths`` was not run for it."""
        with np.load(FOLDER / f"{name}.npz") as arrays:
            return Truth(str(arrays["digest"]), arrays["prompt"], arrays["rows"], arrays["greedy"])


def ratio(row: npt.NDArray[np.float32], true: npt.NDArray[np.float32]) -> float:
    """The largest difference of a logit, of the true row's range."""
    return float(np.abs(row.astype(np.float64) - true).max() / np.ptp(true))
