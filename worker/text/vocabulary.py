"""The token list of a model file: what each token is, what bytes it stands for, and which tokens end a generation.

Kinds and the end-of-generation set follow llama.cpp, which also goes by the texts of well-known tokens, because many
files in circulation name too few of them in their metadata.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from tokenloom.worker.text import metadata
from tokenloom.worker.text.bytelevel import spelled_bytes
from tokenloom.worker.text.errors import TextError

#: What SentencePiece writes for a space.
SPACE = "\u2581"


class Kind(IntEnum):
    """``tokenizer.ggml.token_type``, with the numbers of the GGUF format."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Texts that end a generation wherever they are in a vocabulary. All of them are control tokens, whatever the file says.
_END_TEXTS = frozenset(
    {
        *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>"),
        *("<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "</s>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<eos>"),
        *("<end_of_utterance>", "<turn|>", "<|tool_response>", "[e~[", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
    }
)
# Fill-in-the-middle padding, repository name and file separator: a model that writes one has left the text at hand.
# The key names the token; where it is missing, the texts do.
_FILL_ENDS: dict[str, tuple[str, ...]] = {
    "fim_pad_token_id": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep_token_id": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep_token_id": ("<|file_sep|>",),
}
_FILL_TEXTS: dict[str, tuple[str, ...]] = {
    "fim_pre_token_id": (
        *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<PRE>", "\u2581<PRE>", "<|code_prefix|>", "<|prefix|>"),
        "<\uff5cfim\u2581begin\uff5c>",
    ),
    "fim_suf_token_id": (
        *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<SUF>", "\u2581<SUF>", "<|code_suffix|>", "<|suffix|>"),
        "<\uff5cfim\u2581hole\uff5c>",
    ),
    "fim_mid_token_id": (
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<MID>", "\u2581<MID>", "<|code_middle|>", "<|middle|>"),
        "<\uff5cfim\u2581end\uff5c>",
    ),
}
# Parts of a reply in the harmony format: always text, although files call them control tokens.
_SHOWN_TEXTS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
# How a token that is not UTF-8 is handed over: its odd bytes as lone surrogates, by Python's surrogateescape.
_ESCAPED = re.compile("[\ud800-\udfff]")
_BYTE_TEXT = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _utf8(text: str) -> bytes:
    return _ESCAPED.sub(lambda odd: odd[0] if "\udc80" <= odd[0] <= "\udcff" else "?", text).encode(
        "utf-8", "surrogateescape"
    )


class Vocabulary:
    """Tokens, kinds and bytes by id; ids by text.

    ``texts[id]`` is the token as the file spells it; ``guarded`` holds the ids that message contents must never
    produce (control tokens, by the file's word or by their text);
    ``plain`` the others by text; ``stop_tokens`` the ids that end a
    generation.
    """

    def __init__(self, meta: Mapping[str, Any], *, byte_level: bool) -> None:
        """Raises TextError naming the key at fault."""
        key = metadata.PREFIX + "tokens"
        texts = metadata.strings(meta, key)
        if not texts:
            raise TextError(f"model file: {key} is missing or empty: the file has no vocabulary")
        self.byte_level = byte_level
        # As llama.cpp names them, so that they stay distinct and match no text.
        self.texts = [text or f"[EMPTY_{index}]" for index, text in enumerate(texts)]
        self.ids = {text: index for index, text in enumerate(self.texts)}
        if len(self.ids) != len(self.texts):
            twice = next(index for index, text in enumerate(self.texts) if self.ids[text] != index)
            raise TextError(f"model file: {key}[{twice}] and [{self.ids[self.texts[twice]]}] are both {texts[twice]!r}")
        types = metadata.integers(meta, metadata.PREFIX + "token_type", len(texts))
        self.kinds = [self._kind(number) for number in types] if types else [Kind.NORMAL] * len(texts)
        for index, text in enumerate(texts):
            if not text:
                self.kinds[index] = Kind.UNUSED
        self.bos = self._named(meta, "bos_token_id", None if byte_level else 1)
        self.eos = self._named(meta, "eos_token_id", None if byte_level else 2)
        self.unknown = self._named(meta, "unknown_token_id", None if byte_level else 0)
        self.stop_tokens = self._stop_tokens(meta)
        # Taken before the harmony tokens become plain text: they direct the reply, so contents must not hold them.
        self.guarded = frozenset(i for i, kind in enumerate(self.kinds) if kind in (Kind.CONTROL, Kind.UNKNOWN))
        self._adjust_kinds()
        # What text may turn into: neither control tokens nor tokens that are not text at all.
        self.plain = {
            text: index for text, index in self.ids.items() if index not in self.guarded and not _ESCAPED.search(text)
        }
        self._bytes: list[bytes | None] = [None] * len(texts)

    def __len__(self) -> int:
        return len(self.texts)

    @staticmethod
    def _kind(number: int) -> Kind:
        return Kind(number) if 0 <= number <= Kind.BYTE else Kind.UNDEFINED

    def _named(self, meta: Mapping[str, Any], name: str, default: int | None) -> int | None:
        found = metadata.token_id(meta, metadata.PREFIX + name, len(self.texts))
        if found is None and default is not None and default < len(self.texts):
            return default
        return found

    def _as_control(self, index: int) -> int:
        self.kinds[index] = Kind.CONTROL
        return index

    def _by_text(self, texts: tuple[str, ...]) -> int | None:
        return next((self._as_control(self.ids[text]) for text in texts if text in self.ids), None)

    def _stop_tokens(self, meta: Mapping[str, Any]) -> frozenset[int]:
        stops = {self._as_control(self.ids[text]) for text in _END_TEXTS if text in self.ids}
        for name in ("eot_token_id", "eom_token_id"):
            named = self._named(meta, name, None)
            if named is not None:
                stops.add(named)
        if self.eos is not None:
            stops.add(self.eos)
        for name, texts in (_FILL_ENDS | _FILL_TEXTS).items():
            found = self._named(meta, name, None)
            found = self._by_text(texts) if found is None else found
            if found is not None and name in _FILL_ENDS:
                stops.add(found)
        held = {self.texts[index] for index in stops}
        # Where replies have several parts, <|end|> only ends a part.
        if {"<|return|>", "<|call|>"} <= held or ("<|flush|>" in held and held & {"<|call|>", "<|calls|>"}):
            stops.discard(self.ids.get("<|end|>", -1))
        if "<|tool_response>" in held:
            stops.discard(self.ids.get("</s>", -1))
        return frozenset(stops)

    def _adjust_kinds(self) -> None:
        for text in _SHOWN_TEXTS:
            if text in self.ids:
                self.kinds[self.ids[text]] = Kind.USER_DEFINED
        end = self.ids.get("<|end|>")
        if end is not None and end not in self.stop_tokens:
            self.kinds[end] = Kind.USER_DEFINED
        strike = self.ids.get("</s>")
        if strike is not None and strike not in self.stop_tokens:
            self.kinds[strike] = Kind.NORMAL

    def is_special(self, index: int) -> bool:
        """Whether the token directs the model rather than being text: control and unknown tokens."""
        return self.kinds[index] in (Kind.CONTROL, Kind.UNKNOWN)

    def token_bytes(self, index: int) -> bytes:
        """The bytes the token stands for; a special token's are its own text. Unused tokens stand for nothing."""
        known = self._bytes[index]
        if known is None:
            known = self._bytes[index] = self._spell(index)
        return known

    def _spell(self, index: int) -> bytes:
        text, kind = self.texts[index], self.kinds[index]
        if kind in (Kind.CONTROL, Kind.UNKNOWN, Kind.USER_DEFINED):
            return _utf8(text)
        if kind is Kind.BYTE:
            match = _BYTE_TEXT.fullmatch(text)
            if match is None:
                raise TextError(
                    f"model file: {metadata.PREFIX}tokens[{index}] is a byte token, but reads {text!r}, "
                    "not <0x00>..<0xFF>"
                )
            return bytes([int(match[1], 16)])
        if kind in (Kind.UNUSED, Kind.UNDEFINED):
            return b""
        return spelled_bytes(text) if self.byte_level else _utf8(text.replace(SPACE, " "))
