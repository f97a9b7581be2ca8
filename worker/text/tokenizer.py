"""Text to token ids and back, from a model file's own metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from tokenloom.worker.text import metadata
from tokenloom.worker.text.byte_bpe import ByteLevelEncoder
from tokenloom.worker.text.errors import TextError
from tokenloom.worker.text.partition import Partition
from tokenloom.worker.text.pretokenizers import pre_tokenizer
from tokenloom.worker.text.spm import ScoreEncoder
from tokenloom.worker.text.vocabulary import Kind, Vocabulary

_MODEL = metadata.PREFIX + "model"
_PRE = metadata.PREFIX + "pre"
#: Token types whose models strip white space after special tokens, which no key in the file says.
_STRIPPING_NAMES = ("phi-3", "phi3")
_NEVER_STRIPPING = ("<unk>", "<s>", "<|endoftext|>")


class Encoder(Protocol):
    """Text that holds no special tokens, to ids."""

    def encode(self, text: str, *, after_special: bool) -> list[int]: ...


def checked_text(text: object, what: str = "text") -> str:
    """``text``, if it is a string that can be written as UTF-8.

    Raises TextError naming the offset (in characters) of the first lone surrogate, which is what invalid UTF-8
    decodes to under ``surrogateescape`` and what broken UTF-16 leaves behind.
    """
    if not isinstance(text, str):
        raise TextError(f"{what} must be a string, got {type(text).__name__}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TextError(
            f"{what} is not valid Unicode: lone surrogate U+{ord(text[error.start]):04X} "
            f"at offset {error.start} of {len(text)}"
        ) from None
    return text


class Tokenizer:
    """The vocabulary of one model file. Immutable once made; safe to share between threads.

    ``bos``, ``eos``: ids, or None where the file has none. ``add_bos``, ``add_eos``: what the file says belongs
    around a text. ``add_space``: whether a space is put before text at the start and after special tokens
    (SentencePiece). ``stop_tokens``: the ids that end a generation, by llama.cpp's rules: eos, eot, eom, and
    well-known texts like <|im_end|>.
    """

    def __init__(
        self, vocabulary: Vocabulary, encoder: Encoder, meta: Mapping[str, Any], *, add_bos: bool, space: bool
    ):
        """Use ``from_metadata``."""
        self._vocabulary = vocabulary
        self._encoder = encoder
        self._spoken: dict[int, bytes] = {}
        self.bos = vocabulary.bos
        self.eos = vocabulary.eos
        self.unknown = vocabulary.unknown
        self.stop_tokens = vocabulary.stop_tokens
        self.add_bos = metadata.flag(meta, metadata.PREFIX + "add_bos_token", add_bos)
        self.add_eos = metadata.flag(meta, metadata.PREFIX + "add_eos_token", False)
        if self.add_bos and self.bos is None:
            raise TextError(
                f"model file: {metadata.PREFIX}add_bos_token asks for a bos token, "
                f"but {metadata.PREFIX}bos_token_id names none"
            )
        self.add_space = space
        kinds, texts = vocabulary.kinds, vocabulary.texts
        cut_always = {texts[i]: i for i, kind in enumerate(kinds) if kind is Kind.USER_DEFINED}
        cut_special = {texts[i]: i for i in range(len(texts)) if vocabulary.is_special(i)}
        name = (metadata.string(meta, "general.name") or "").lower()
        stripping: frozenset[int] = frozenset()
        if any(part in name for part in _STRIPPING_NAMES):
            marked = (cut_always | cut_special).items()
            stripping = frozenset(i for text, i in marked if text not in _NEVER_STRIPPING)
        self._plain = Partition(cut_always, stripping)
        self._special = Partition(cut_always | cut_special, stripping)
        self._inert = Partition({t: i for t, i in cut_always.items() if i not in vocabulary.guarded}, stripping)

    @classmethod
    def from_metadata(cls, meta: Mapping[str, Any]) -> Tokenizer:
        """Build from GGUF metadata (keys ``tokenizer.ggml.*``).

        Supports the models ``gpt2`` (byte-level BPE) and ``llama`` (SentencePiece-style BPE with byte fallback).
        Raises TextError naming the key if one is missing, malformed, or names something that is not supported.
        """
        model = metadata.string(meta, _MODEL)
        if model is None:
            raise TextError(f"model file: {_MODEL} is missing: the file has no tokenizer")
        if model == "llama":
            vocabulary = Vocabulary(meta, byte_level=False)
            by_score = ScoreEncoder(meta, vocabulary)
            return cls(vocabulary, by_score, meta, add_bos=True, space=by_score.add_space)
        if model == "gpt2":
            pre = pre_tokenizer(metadata.string(meta, _PRE), _PRE)
            vocabulary = Vocabulary(meta, byte_level=True)
            by_rank = ByteLevelEncoder(meta, vocabulary, pre)
            return cls(vocabulary, by_rank, meta, add_bos=pre.add_bos, space=False)
        raise TextError(
            f"model file: {_MODEL} is {model!r}; supported are 'gpt2' (byte-level BPE) and 'llama' (SentencePiece BPE)"
        )

    @property
    def vocab_size(self) -> int:
        """How many tokens there are; ids run from 0 to one less."""
        return len(self._vocabulary)

    def encode(
        self, text: str, *, parse_special: bool = False, add_bos: bool = False, continues: bool = False
    ) -> list[int]:
        """The ids of ``text``, token for token as llama.cpp has them.

        ``parse_special``: the texts of control tokens stand for these tokens; only for text that you wrote yourself.
        User-defined tokens are found either way. ``add_bos``: put the bos token first if the file asks for that
        (``self.add_bos``). ``continues``: the text follows ordinary text, as a step appended to a log does, so it
        gets no space put before it.

        Raises TextError if ``text`` is not a string or holds a lone surrogate.
        """
        partition = self._special if parse_special else self._plain
        ids = self._encode_pieces(partition.cut(checked_text(text)), after_special=not continues)
        if add_bos and self.add_bos and self.bos is not None:
            ids.insert(0, self.bos)
        return ids

    def encode_guarded(self, text: str, guard: str, *, continues: bool = False) -> list[int]:
        """Like ``encode(parse_special=True)`` on ``text`` without the character ``guard``, except that no control
        token is found where ``guard`` stood within its text.
        """
        pieces: list[str | int] = []
        for piece in self._special.cut(checked_text(text)):
            if isinstance(piece, str) and guard in piece:
                pieces += self._inert.cut(piece.replace(guard, ""))
            else:
                pieces.append(piece)
        return self._encode_pieces(pieces, after_special=not continues)

    def _encode_pieces(self, pieces: Iterable[str | int], *, after_special: bool) -> list[int]:
        ids: list[int] = []
        for piece in pieces:
            if isinstance(piece, str):
                # What comes next is a special token or nothing: no two pieces of text are neighbours.
                ids += self._encoder.encode(piece, after_special=after_special)
            else:
                ids.append(piece)
                after_special = True
        return ids

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True, strip_space: bool = False) -> str:
        """The text of ``tokens``: their bytes put together, read as UTF-8, with U+FFFD for what is not UTF-8.

        The tokens are taken as a continuation: the space that begins a SentencePiece word is kept, also the first
        one's. With ``strip_space`` the space that ``encode`` put at the start is taken off again. ``skip_special``
        leaves out control and unknown tokens. Raises TextError for an id outside the vocabulary.
        """
        parts = [self.token_bytes(token) for token in tokens if not (skip_special and self.is_special(token))]
        data = b"".join(parts)
        if strip_space and self.add_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def spoken_bytes(self, token: int) -> bytes:
        """The bytes that the token adds to a reply's text: none, when it is special."""
        spoken = self._spoken.get(token)
        if spoken is None:
            spoken = self._spoken[token] = b"" if self.is_special(token) else self.token_bytes(token)
        return spoken

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token; they need not be whole characters. A special token's are its own text."""
        return self._vocabulary.token_bytes(self._checked(token))

    def is_special(self, token: int) -> bool:
        """Whether the token is a control or the unknown token, which are no part of a reply's text."""
        return self._vocabulary.is_special(self._checked(token))

    def token_id(self, text: str) -> int | None:
        """The id of the token that the file spells ``text``, or None."""
        return self._vocabulary.ids.get(text)

    def guarded_texts(self) -> list[str]:
        """The texts of the tokens that message contents must not turn into."""
        return [self._vocabulary.texts[index] for index in sorted(self._vocabulary.guarded)]

    def _checked(self, token: int) -> int:
        if not 0 <= token < len(self._vocabulary):
            raise TextError(f"token {token} is outside the vocabulary of {len(self._vocabulary)} tokens")
        return token
