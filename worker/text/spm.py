"""SentencePiece-style BPE with byte fallback (``tokenizer.ggml.model`` = ``llama``).

llama.cpp's rule: begin with single characters; again and again join the two neighbours whose joined text is the token
with the highest score, the leftmost of equals; what is no token in the end is spelled in byte tokens.

The BPE of the ``tokenizers`` library joins by rank of the *pair* instead. The two agree when every way of splitting a
token into two tokens is a merge, ranked by the token's score, as long as no two tokens that can be joined have the
same score, and every character of a token is a token. That holds for what SentencePiece's BPE trainer writes. For
other vocabularies (one that was extended with tokens of score 0, say) ``ScoreMerger`` follows the rule itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from tokenloom.worker.text import metadata
from tokenloom.worker.text.errors import TextError
from tokenloom.worker.text.score_merger import ScoreMerger
from tokenloom.worker.text.vocabulary import SPACE, Kind, Vocabulary

_SCORES = metadata.PREFIX + "scores"


def merges_from_scores(joinable: Mapping[str, int], scores: list[float]) -> list[tuple[str, str]] | None:
    """The merges that make BPE join what the scores say, or None if ranks of pairs cannot say it."""
    longer = sorted((text for text in joinable if len(text) > 1), key=lambda text: -scores[joinable[text]])
    if any(scores[joinable[a]] == scores[joinable[b]] for a, b in itertools.pairwise(longer)):
        return None
    if not {char for text in longer for char in text} <= joinable.keys():
        return None
    return [
        (text[:cut], text[cut:])
        for text in longer
        # These rank differently although they have one score. For that to matter, two ways of making one token would
        # have to compete for a piece between them, and joining by score leaves none (found in no random trial).
        for cut in range(len(text) - 1, 0, -1)
        if text[:cut] in joinable and text[cut:] in joinable
    ]


def _joinable(vocabulary: Vocabulary) -> dict[str, int]:
    """The tokens that characters may be joined to, by text.

    llama.cpp would join "<" and "s>" into the control token <s>; here no text turns into a control or byte token. A
    user-defined token was cut out of the text before, unless its text is spelled with SentencePiece's space.
    """
    kinds = vocabulary.kinds
    return {
        text: index
        for text, index in vocabulary.plain.items()
        if kinds[index] is not Kind.BYTE and (kinds[index] is not Kind.USER_DEFINED or SPACE in text)
    }


class ScoreEncoder:
    """Text without special tokens to ids."""

    def __init__(self, meta: Mapping[str, Any], vocabulary: Vocabulary) -> None:
        """Raises TextError if scores or byte tokens are missing."""
        scores = metadata.floats(meta, _SCORES, len(vocabulary))
        if scores is None:
            raise TextError(f"model file: {_SCORES} is missing, and a vocabulary of the model 'llama' needs it")
        self.add_space = metadata.flag(meta, metadata.PREFIX + "add_space_prefix", True)
        joinable = _joinable(vocabulary)
        fallback = self._fallback(vocabulary)
        merges = merges_from_scores(joinable, scores)
        self._merger = ScoreMerger(joinable, scores, fallback) if merges is None else None
        if merges is not None:
            byte_tokens = {f"<0x{byte:02X}>": index for byte, index in enumerate(fallback)}
            self._backend = Backend(BPE(joinable | byte_tokens, merges, byte_fallback=True))

    @staticmethod
    def _fallback(vocabulary: Vocabulary) -> list[int]:
        found = [vocabulary.ids.get(f"<0x{byte:02X}>") for byte in range(256)]
        missing = [byte for byte, index in enumerate(found) if index is None]
        if missing and vocabulary.unknown is None:
            raise TextError(
                f"model file: {metadata.PREFIX}tokens has no <0x{missing[0]:02X}>, "
                "and there is no unknown token to stand for it"
            )
        return [vocabulary.unknown or 0 if index is None else index for index in found]

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """The ids of ``text``. At the start and after a special token (``after_special``) a space is put before it,
        if the file wants that.
        """
        spelled = (SPACE if self.add_space and after_special else "") + text.replace(" ", SPACE)
        if self._merger is not None:
            return self._merger.encode(spelled)
        return list(self._backend.encode(spelled, add_special_tokens=False).ids)
