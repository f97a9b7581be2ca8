"""Byte-level BPE (``tokenizer.ggml.model`` = ``gpt2``), through the ``tokenizers`` library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import Regex
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from tokenloom.worker.text import metadata
from tokenloom.worker.text.errors import TextError
from tokenloom.worker.text.pretokenizers import PreTokenizer
from tokenloom.worker.text.vocabulary import Vocabulary

_MERGES = metadata.PREFIX + "merges"


def _merges(meta: Mapping[str, Any], vocabulary: Vocabulary) -> list[tuple[str, str]]:
    spelled = metadata.strings(meta, _MERGES)
    if spelled is None:
        raise TextError(f"model file: {_MERGES} is missing, and byte-level BPE needs it")
    # A pair may be listed twice: the first counts.
    merges: dict[tuple[str, str], None] = {}
    for index, merge in enumerate(spelled):
        cut = merge.find(" ", 1)
        if cut < 0:
            raise TextError(f"model file: {_MERGES}[{index}] must be two tokens with a space between, got {merge!r}")
        left, right = merge[:cut], merge[cut + 1 :]
        parts = (left, right, left + right)
        if any(vocabulary.ids.get(part) in vocabulary.guarded for part in parts):
            continue  # concerns a control token, which text must not turn into
        for part in parts:
            if part not in vocabulary.plain:
                raise TextError(
                    f"model file: {_MERGES}[{index}] {merge!r} needs the token {part!r}, not in the vocabulary"
                )
        merges.setdefault((left, right))
    return list(merges)


class ByteLevelEncoder:
    """Text without special tokens to ids. Bytes that the vocabulary has no token for are left out, as in llama.cpp."""

    def __init__(self, meta: Mapping[str, Any], vocabulary: Vocabulary, pre: PreTokenizer) -> None:
        """Raises TextError if the merges do not fit the vocabulary."""
        merges = _merges(meta, vocabulary)
        self._backend = Backend(BPE(vocabulary.plain, merges, ignore_merges=pre.whole_words))
        cuts = [Split(Regex(pattern), "isolated") for pattern in pre.patterns]
        self._backend.pre_tokenizer = Sequence([*cuts, ByteLevel(add_prefix_space=False, use_regex=False)])

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """The ids of ``text``. What came before it (``after_special``) makes no difference to byte-level BPE."""
        return list(self._backend.encode(text, add_special_tokens=False).ids)
