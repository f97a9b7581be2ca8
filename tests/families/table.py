"""All tiny files, by name. A family's own is called like its architecture; variants add what is special about them."""

from __future__ import annotations

from families.decoder import Decoder
from families.llamas import LLAMAS
from families.mixtures import MIXTURES
from families.others import OTHERS

FILES: dict[str, Decoder] = {**LLAMAS, **OTHERS, **MIXTURES}
