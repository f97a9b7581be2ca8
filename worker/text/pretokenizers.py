r"""Pre-tokenizers: how text is cut into words before byte-level BPE, by the name in ``tokenizer.ggml.pre``.

A pre-tokenizer is a list of patterns. Each cuts every piece that the ones before it left, into its matches and what
lies between them. The patterns are written for the regular expressions of the ``tokenizers`` library (Oniguruma,
where ``\s`` and ``\p{..}`` are Unicode's and ``&&`` intersects character classes).

What a name stands for is what llama.cpp makes of it, tested piece by piece against it. In a few families that differs
from the tokenizer the model was published with: llama.cpp tells upper case from lower case in ASCII letters only
(``tekken``, ``gpt-4o``) or not at all (``youtu``). Names are left out whose meaning depends on the C++ library that
llama.cpp was built with (``tiny_aya``) and those of models that do not generate text. Characters are classed by Unicode
16, where llama.cpp has version 15: letters of the few scripts added since are letters here and symbols there.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenloom.worker.text.errors import TextError

_CONTRACTION = r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_SPACES = r"\s+(?!\S)|\s+"
_LINES = r"\s*[\r\n]+"
_GPT2 = rf"'(?:[stmd]|re|ve|ll)| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"
_PUNCTUATION = r"[\p{P}$+<=>^~|]+"
_HAN = (
    r"\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}\x{2B740}-\x{2B81F}"
    r"\x{2B820}-\x{2CEAF}\x{2CEB0}-\x{2EBEF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}"
)
_CHINESE_JAPANESE = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{30FF}]+"
# Its ranges take in some white space, which llama.cpp does not see as such a character.
_EAST_ASIAN = r"[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}&&[^\s]]+"
# The letters that have case, as Unicode had them when the pattern was made.
_CASED = (
    r"A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}"
    r"\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}"
    r"\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}"
    r"\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}"
    r"\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}"
    r"\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}"
    r"\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}"
    r"\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}"
    r"\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}"
    r"\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}"
    r"\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}"
)
_BLOOM = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{0964}\x{06D4}\x{060C})]+"
_ASCII_PUNCTUATED = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""


def _words(numbers: str, *, word: str = r"\p{L}", contraction: str = _CONTRACTION + "|") -> str:
    """The family that began with GPT-4's cl100k: a word may carry one character before it, newlines close
    punctuation.
    """
    return (
        rf"{contraction}[^\r\n\p{{L}}\p{{N}}]?{word}+|{numbers}| ?[^\s{word.strip('[]')}\p{{N}}]+[\r\n]*"
        rf"|{_LINES}|{_SPACES}"
    )


def _cased(numbers: str, contraction: str) -> str:
    """The family of o200k: words end where a lower case letter is followed by an upper case one (ASCII only)."""
    upper, lower, lead = r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]", r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{lead}{upper}*{lower}+{contraction}|{lead}{upper}+{lower}*{contraction}|{numbers}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES}|{_SPACES}"
    )


def _uncased(numbers: str) -> str:
    """The same family where upper and lower case are not told apart; marks belong to words."""
    return (
        rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+(?:{_CONTRACTION})?|{numbers}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES}|{_SPACES}"
    )


def _deepseek_v3(after_punctuation: str, lines: str) -> str:
    return (
        rf"{_ASCII_PUNCTUATED}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+{after_punctuation}"
        rf"|{lines}|{_SPACES}"
    )


@dataclass(frozen=True)
class PreTokenizer:
    """``patterns`` cut the text, in order. ``whole_words``: a word that is a token is taken as it is, without merging.
    ``add_bos``: whether text begins with the bos token where the file does not say.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False


_DIGIT, _THREE_DIGITS, _NUMBER = r"\p{N}", r"\p{N}{1,3}", r"\p{N}+"
_LLAMA3, _QWEN2 = _words(_THREE_DIGITS), _words(_DIGIT)
_DIGITS_THEN_GPT2 = PreTokenizer((_DIGIT, _GPT2))
_AFMOE_ASIAN = (
    r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF}\x{FF65}-\x{FF9F}"
    r"\x{2F00}-\x{2FDF}\x{0E40}-\x{0E7F}\x{0E80}-\x{0EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}"
    r"\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+"
)

_FAMILIES: dict[str, PreTokenizer] = {
    "default": PreTokenizer((_PUNCTUATION, _GPT2, _NUMBER, "[0-9][0-9][0-9]")),
    "gpt-2 phi-2 gigachat a.x-4.0 mellum exaone4 mpt olmo jais trillion granite-docling": PreTokenizer((_GPT2,)),
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": _DIGITS_THEN_GPT2,
    "falcon": PreTokenizer((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2": PreTokenizer((_LLAMA3,), True, True),
    "smaug-bpe dbrx chatglm-bpe": PreTokenizer((_LLAMA3,)),
    "glm4 glm5": PreTokenizer((_LLAMA3,), whole_words=True),
    "qwen2 deepseek-r1-qwen kormo megrez stablelm2 hunyuan solar-open grok-2": PreTokenizer((_QWEN2,)),
    "qwen35": PreTokenizer((_words(_DIGIT, word=r"[\p{L}\p{M}]"),)),
    "tekken": PreTokenizer((_cased(_DIGIT, ""),), True, True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": PreTokenizer((_cased(_THREE_DIGITS, f"(?:{_CONTRACTION})?"),)),
    "deepseek-llm": PreTokenizer(
        (
            *(r"[\r\n]", rf"\s?[{_CASED}]+"),
            # The ideographic space U+3000 lies in the last range of the pattern, but counts as white space.
            r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3001}\x{3002}]+",
            *(r"\s+\z", _EAST_ASIAN, _NUMBER),
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, _DIGIT)),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": PreTokenizer(
        (_THREE_DIGITS, _CHINESE_JAPANESE, _deepseek_v3(r"[\r\n]*", _LINES))
    ),
    "spark2_5": PreTokenizer((_THREE_DIGITS, _CHINESE_JAPANESE, _deepseek_v3("", r"[\r\n]"), _DIGIT)),
    "youtu": PreTokenizer(
        (
            r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+"
            r"|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}\x{3001}-\x{303F}"
            r"\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+|" + _CHINESE_JAPANESE,
            _uncased(_DIGIT),
        ),
        whole_words=True,
    ),
    "bloom gpt3-finnish poro-chat": PreTokenizer((_BLOOM,)),
    "viking": PreTokenizer((_BLOOM, _DIGIT)),
    "chameleon": PreTokenizer(
        (*("<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", r"[\t\n]|    |  ", _DIGIT, r"[\p{P}!-/:-@\[-`{-~]", _GPT2),),
        add_bos=True,
    ),
    "superbpe": PreTokenizer((_NUMBER, r"(?=([0-9]{3})+(?![0-9]))")),
    "bailingmoe bailingmoe2 llada-moe": PreTokenizer(
        (rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|{_SPACES}",)
    ),
    "seed-coder": PreTokenizer(
        (rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES}|{_SPACES}",)
    ),
    "ufakzeka": PreTokenizer((_words(_DIGIT, contraction=""),)),
    "exaone-moe": PreTokenizer(
        (
            _CONTRACTION
            + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
            + rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|{_SPACES}",
        )
    ),
    "laguna": PreTokenizer((r"[^\n]+|\n+", _QWEN2)),
    "minicpm5": PreTokenizer((_THREE_DIGITS, _words(_NUMBER)), whole_words=True),
    "jais-2": PreTokenizer(
        (
            _LLAMA3.removesuffix(_SPACES)
            + "|".join(rf"\s{{{n}}}(?!\S)" for n in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2"))
            + r"|\s",
        )
    ),
    "afmoe": PreTokenizer(
        (
            # Digits in groups of three from the right; llama.cpp leaves the text before a number in its first group.
            r"[^\p{N}]*\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
            *(_AFMOE_ASIAN, _deepseek_v3(r"[\r\n]*", _LINES)),
        )
    ),
    "kimi-k2": PreTokenizer(
        (
            rf"[{_HAN}]+|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^{_HAN}]]+(?:{_CONTRACTION})?|"
            + _words(_THREE_DIGITS).partition(r"\p{L}+|")[2],
        )
    ),
}
_BY_NAME = {name: family for names, family in _FAMILIES.items() for name in names.split()}
SUPPORTED = tuple(sorted(_BY_NAME))


def pre_tokenizer(name: str | None, key: str) -> PreTokenizer:
    """The pre-tokenizer of that name; a file that names none gets ``default``, as in llama.cpp.

    Raises TextError, listing the names there are, for any other.
    """
    family = _BY_NAME.get(name or "default")
    if family is None:
        raise TextError(
            f"model file: {key} names the pre-tokenizer {name!r}, which is not supported; "
            f"supported are {', '.join(SUPPORTED)}"
        )
    return family
