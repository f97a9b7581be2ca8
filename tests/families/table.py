"""All tiny files, by name. A family's own is called like its architecture; variants add what is special about them."""

from __future__ import annotations

from families.decoder import Decoder
from families.gemma4 import GEMMA4S
from families.llamas import LLAMAS
from families.mixtures import MIXTURES
from families.others import OTHERS

FILES: dict[str, Decoder] = {**LLAMAS, **OTHERS, **MIXTURES, **GEMMA4S}
#: Those that the engine does not open yet. To be emptied.
NOT_YET = set(GEMMA4S)
