"""What a tokenizer promises beyond the ids: refusals, special tokens, bytes, and back to text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tokenloom.worker.text import Detokenizer, TextError, Tokenizer

TEXTS = json.loads((Path(__file__).parent.parent / "data" / "text" / "texts.json").read_text())


def test_lone_surrogates_are_refused_with_their_offset(smollm2: Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"lone surrogate U\+D83D at offset 3 of 5"):
        smollm2.encode("abc\ud83dx")
    # Invalid UTF-8, as bytes.decode(errors="surrogateescape") hands it on.
    with pytest.raises(TextError, match=r"U\+DCFF at offset 0"):
        smollm2.encode(b"\xff".decode("utf-8", "surrogateescape"))


@pytest.mark.parametrize("value", [b"bytes", None, 7, ["a"]])
def test_only_strings_are_encoded(smollm2: Tokenizer, value: Any) -> None:
    with pytest.raises(ValueError, match="text must be a string, got"):
        smollm2.encode(value)


@pytest.mark.parametrize("token", [-1, 49152, 1 << 40])
def test_tokens_outside_the_vocabulary_are_refused(smollm2: Tokenizer, token: int) -> None:
    for use in (smollm2.token_bytes, smollm2.is_special, lambda t: smollm2.decode([t])):
        with pytest.raises(TextError, match=f"token {token} is outside the vocabulary of 49152"):
            use(token)


@pytest.mark.parametrize("text", TEXTS["plain"])
def test_decoding_gives_the_text_back(smollm2: Tokenizer, score: Tokenizer, text: str) -> None:
    ids = smollm2.encode(text)
    if smollm2.decode(ids) != text:
        # The vocabulary has no token for a few bytes that only rare characters use; llama.cpp drops them too.
        known = {smollm2.token_bytes(token) for token in range(smollm2.vocab_size)}
        assert any(bytes([byte]) not in known for byte in text.encode())
    if "\u2581" not in text:  # SentencePiece spells a space so, and cannot tell them apart
        assert score.decode(score.encode(text), strip_space=True) == text


def test_bytes_of_tokens_add_up_to_the_text(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("naïve 👩‍💻\n")
    assert b"".join(map(smollm2.token_bytes, ids)) == "naïve 👩‍💻\n".encode()


def test_special_tokens_of_smollm2(smollm2: Tokenizer) -> None:
    assert (smollm2.bos, smollm2.eos, smollm2.vocab_size, smollm2.add_bos) == (1, 2, 49152, False)
    assert smollm2.token_id("<|im_end|>") == 2
    assert {0, 2} <= smollm2.stop_tokens
    assert [smollm2.is_special(token) for token in (0, 1, 2, 16, 17, 1000)] == [True, True, True, True, False, False]
    ids = smollm2.encode("<|im_start|>hi<|im_end|>", parse_special=True)
    assert (ids[0], ids[-1]) == (1, 2)
    assert smollm2.decode(ids) == "hi"
    assert smollm2.decode(ids, skip_special=False) == "<|im_start|>hi<|im_end|>"
    assert not {1, 2} & set(smollm2.encode("<|im_start|>hi<|im_end|>"))


def test_bos_is_added_where_the_file_asks_for_it(score: Tokenizer, byte_level_metadata: dict[str, Any]) -> None:
    assert score.encode("a", add_bos=True)[0] == 1
    assert 1 not in score.encode("a")
    llama3 = Tokenizer.from_metadata(byte_level_metadata)  # this pre-tokenizer's files want bos by themselves
    assert llama3.encode("a", add_bos=True)[0] == llama3.bos
    without = Tokenizer.from_metadata({**byte_level_metadata, "tokenizer.ggml.add_bos_token": False})
    assert without.encode("a", add_bos=True) == without.encode("a")


def test_a_space_goes_before_text_at_the_start_and_after_special_tokens(score: Tokenizer) -> None:
    assert score.decode(score.encode("Hello")) == " Hello"
    assert score.decode(score.encode("Hello", continues=True)) == "Hello"
    ids = score.encode("Hello<|im_start|>Hello", parse_special=True)
    assert score.decode(ids, skip_special=False) == " Hello<|im_start|> Hello"


def test_a_continuation_keeps_its_leading_space(score: Tokenizer) -> None:
    # Generated text of a step begins in the middle of a log: " world" after "Hello".
    words = [i for i in range(score.vocab_size) if score.token_bytes(i).startswith(b" ") and not score.is_special(i)]
    assert len(words) > 50
    for token in words:
        assert score.decode([token]) == score.token_bytes(token).decode()
        assert Detokenizer(score).push(token) == score.token_bytes(token).decode()


def test_white_space_after_special_tokens_is_dropped_in_phi_3_files(score_metadata: dict[str, Any]) -> None:
    plain = Tokenizer.from_metadata(score_metadata)
    phi = Tokenizer.from_metadata({**score_metadata, "general.name": "Phi-3 Mini"})
    assert phi.encode("<|im_end|> \n x", parse_special=True) == plain.encode("<|im_end|>x", parse_special=True)
    assert phi.encode("<s> x", parse_special=True) == plain.encode("<s> x", parse_special=True)


def test_texts_of_well_known_tokens_end_a_generation(byte_level_metadata: dict[str, Any]) -> None:
    extra = ["<|return|>", "<|call|>", "<|end|>", "<|eot_id|>", "<|fim_pad|>", "<|message|>"]
    tokens = [*byte_level_metadata["tokenizer.ggml.tokens"], *extra]
    types = [*byte_level_metadata["tokenizer.ggml.token_type"], *[3] * len(extra)]
    meta = {**byte_level_metadata, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    tokenizer = Tokenizer.from_metadata(meta)
    ids = {text: len(tokens) - len(extra) + n for n, text in enumerate(extra)}
    assert {ids["<|return|>"], ids["<|call|>"], ids["<|eot_id|>"], ids["<|fim_pad|>"]} <= tokenizer.stop_tokens
    assert ids["<|end|>"] not in tokenizer.stop_tokens  # ends only a part of the reply where there is <|return|>
    assert not tokenizer.is_special(ids["<|message|>"])


def byte_level(tokens: list[str], merges: list[str], types: list[int] | None = None) -> Tokenizer:
    return Tokenizer.from_metadata(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": types or [1] * len(tokens),
            "tokenizer.ggml.merges": merges,
        }
    )


def test_of_a_merge_listed_twice_the_first_counts() -> None:
    tokenizer = byte_level(["a", "b", "c", "ab", "bc"], ["a b", "b c", "a b"])
    assert tokenizer.encode("abc") == [3, 2]


def test_merges_do_not_make_control_tokens() -> None:
    tokenizer = byte_level(["e", "n", "d", "en", "end"], ["e n", "en d"], [1, 1, 1, 1, 3])
    assert tokenizer.encode("end") == [3, 2]
    assert tokenizer.encode("end", parse_special=True) == [4]


def test_whole_words_do_not_make_control_tokens() -> None:
    # This pre-tokenizer looks words up before merging, and a control token may read like a word.
    meta = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.bos_token_id": 3}
    lists = {"tokens": ["e", "n", "d", "end"], "token_type": [1, 1, 1, 3], "merges": []}
    tokenizer = Tokenizer.from_metadata({**meta, **{f"tokenizer.ggml.{key}": value for key, value in lists.items()}})
    assert tokenizer.encode("end") == [0, 1, 2]


BAD_METADATA: dict[str, dict[str, Any]] = {
    "tokenizer.ggml.model is missing": {"tokenizer.ggml.model": None},
    "tokenizer.ggml.model is 't5'; supported are 'gpt2'": {"tokenizer.ggml.model": "t5"},
    "tokenizer.ggml.model must be a string, got int 3": {"tokenizer.ggml.model": 3},
    "tokenizer.ggml.pre names the pre-tokenizer 'martian'.*supported are.*llama-bpe.*smollm": {
        "tokenizer.ggml.pre": "martian"
    },
    "tokenizer.ggml.tokens is missing or empty": {"tokenizer.ggml.tokens": None},
    r"tokenizer.ggml.tokens\[1\] must be a string": {"tokenizer.ggml.tokens": ["a", 2]},
    r"tokenizer.ggml.tokens\[0\] and \[1\] are both 'a'": {"tokenizer.ggml.tokens": ["a", "a"]},
    "tokenizer.ggml.token_type has 1 entries, the vocabulary has": {"tokenizer.ggml.token_type": [1]},
    "tokenizer.ggml.merges is missing": {"tokenizer.ggml.merges": None},
    r"tokenizer.ggml.merges\[0\] must be two tokens with a space between, got 'ab'": {"tokenizer.ggml.merges": ["ab"]},
    r"tokenizer.ggml.merges\[0\] 'zq qz' needs the token 'zq'": {"tokenizer.ggml.merges": ["zq qz"]},
    "tokenizer.ggml.bos_token_id must be a token id, got str 'x'": {"tokenizer.ggml.bos_token_id": "x"},
    "add_bos_token must be true or false, got str 'yes'": {"tokenizer.ggml.add_bos_token": "yes"},
    "add_bos_token asks for a bos token, but tokenizer.ggml.bos_token_id names none": {
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.bos_token_id": 0xFFFFFFFF,
    },
}


@pytest.mark.parametrize("message", BAD_METADATA)
def test_metadata_that_cannot_be_used_is_refused_by_key(byte_level_metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(TextError, match=message):
        Tokenizer.from_metadata({**byte_level_metadata, **BAD_METADATA[message]})


def test_scores_are_needed_by_sentencepiece(score_metadata: dict[str, Any]) -> None:
    with pytest.raises(TextError, match=r"tokenizer\.ggml\.scores is missing"):
        Tokenizer.from_metadata({**score_metadata, "tokenizer.ggml.scores": None})
    scores = [0.0, 0.0, float("nan"), *score_metadata["tokenizer.ggml.scores"][3:]]
    with pytest.raises(TextError, match=r"tokenizer\.ggml\.scores\[2\] must be a number that can be compared"):
        Tokenizer.from_metadata({**score_metadata, "tokenizer.ggml.scores": scores})


def test_a_token_that_is_not_utf8_keeps_its_bytes(score_metadata: dict[str, Any]) -> None:
    tokens = list(score_metadata["tokenizer.ggml.tokens"])
    tokens[-1] = b"\xff\xfe".decode("utf-8", "surrogateescape")  # as read_metadata gives it
    tokenizer = Tokenizer.from_metadata({**score_metadata, "tokenizer.ggml.tokens": tokens})
    assert tokenizer.token_bytes(len(tokens) - 1) == b"\xff\xfe"


def test_text_needs_no_native_code() -> None:
    code = "import sys, tokenloom.worker.text; print([m for m in sys.modules if 'native_ext' in m or m == 'numpy'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
