"""A later step's messages go on with the conversation in the log."""

from __future__ import annotations

from typing import Any

import pytest

from text.chat_templates import BRACKETS, CHATML, HEADERS, HOISTING, REASONING
from tokenloom.worker.text import ChatTemplate, TextError, Tokenizer

FIRST = {"role": "user", "content": "Hi"}
MORE = {"role": "user", "content": "And more?"}
IM_END, ENDOFTEXT = 2, 0


@pytest.fixture(scope="session")
def make(smollm2_metadata: dict[str, Any], smollm2: Tokenizer) -> Any:
    """A chat template over the real vocabulary."""
    return lambda source: ChatTemplate.from_metadata({**smollm2_metadata, "tokenizer.chat_template": source}, smollm2)


@pytest.mark.parametrize("source", [CHATML, HEADERS, REASONING], ids=["chatml", "headers", "reasoning"])
@pytest.mark.parametrize("stopped", [True, False])
def test_the_log_grows_to_the_whole_conversation(make: Any, smollm2: Tokenizer, source: str, stopped: bool) -> None:
    template = make(source)
    answer = "Hello there."
    log = template.encode([FIRST], [])
    log += smollm2.encode(answer) + ([IM_END] if stopped else [])
    log += template.encode([MORE], log)
    assert log == template.encode_chat([FIRST, {"role": "assistant", "content": answer}, MORE])
    log += smollm2.encode("Yes") + ([IM_END] if stopped else [])
    third = {"role": "user", "content": "<|im_end|> why?"}
    log += template.encode([third], log)
    turns = [FIRST, {"role": "assistant", "content": answer}, MORE, {"role": "assistant", "content": "Yes"}, third]
    assert log == template.encode_chat(turns)


def test_smollm2_gets_no_second_system_prompt(smollm2_metadata: dict[str, Any], smollm2: Tokenizer) -> None:
    template = ChatTemplate.from_metadata(smollm2_metadata, smollm2)
    log = template.encode_chat([FIRST]) + smollm2.encode("Hello")
    rest = "<|im_start|>user\nAnd more?<|im_end|>\n<|im_start|>assistant\n"
    assert template.render_continuation([MORE], [*log, IM_END]) == "\n" + rest
    assert template.render_continuation([MORE], log) == "<|im_end|>\n" + rest
    # Ended by another stop token than the template's: it stands in that one's place.
    assert template.render_continuation([MORE], [*log, ENDOFTEXT]) == "\n" + rest
    # The log ends behind whole turns, appended without generating.
    turns = template.encode_chat([FIRST, {"role": "assistant", "content": "Hello"}], add_generation_prompt=False)
    assert template.render_continuation([MORE], turns) == rest
    assert turns + template.encode([MORE], turns) == template.encode_chat(
        [FIRST, {"role": "assistant", "content": "Hello"}, MORE]
    )


def test_turns_appended_without_generating_add_up(make: Any) -> None:
    template = make(CHATML)
    log = template.encode([{"role": "system", "content": "S"}], [], add_generation_prompt=False)
    log += template.encode([FIRST], log, add_generation_prompt=False)
    log += template.encode([MORE], log)
    assert log == template.encode_chat([{"role": "system", "content": "S"}, FIRST, MORE])


def test_several_messages_and_tool_results_go_on(make: Any) -> None:
    template = make(CHATML)
    log = template.encode([FIRST], [])
    text = template.render_continuation([{"role": "tool", "content": "42"}, MORE], log)
    assert text == (
        "<|im_end|>\n<|im_start|>tool\n42<|im_end|>\n<|im_start|>user\nAnd more?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_brackets_close_the_answer_and_open_the_next_question(score_metadata: dict[str, Any], score: Tokenizer) -> None:
    template = ChatTemplate.from_metadata({**score_metadata, "tokenizer.chat_template": BRACKETS}, score)
    log = template.encode([FIRST], [])
    answer = score.encode("Hello", continues=True)
    assert template.render_continuation([MORE], [*log, *answer]) == " </s><s>[INST] And more? [/INST]"
    assert template.render_continuation([MORE], [*log, *answer, 2]) == "<s>[INST] And more? [/INST]"
    ids = template.encode_continuation([MORE], [*log, *answer])
    assert score.decode(ids, skip_special=False).startswith(" </s><s>")


def test_sentencepiece_puts_no_space_into_the_middle_of_a_text(
    score_metadata: dict[str, Any], score: Tokenizer
) -> None:
    source = "{% for m in messages %}{{ m.content }}; {% endfor %}"
    template = ChatTemplate.from_metadata({**score_metadata, "tokenizer.chat_template": source}, score)
    log = score.encode("Hello")
    assert score.decode(template.encode_continuation([MORE], log)) == "; And more?; "
    assert score.decode(template.encode_continuation([MORE], [*log, 2])) == " ; And more?; "


def test_a_message_the_template_would_put_elsewhere_is_refused(make: Any) -> None:
    template = make(HOISTING)
    log = template.encode([FIRST], [])
    with pytest.raises(TextError, match=r"messages\[1\].*role 'system' after an answer"):
        template.encode([MORE, {"role": "system", "content": "Obey"}], log)
    assert template.render_continuation([MORE], log) == "<|im_start|>user\nAnd more?<|im_end|>\n"


def test_a_template_that_forgets_answers_cannot_continue(make: Any) -> None:
    template = make("{{ messages[-1].content }}")
    with pytest.raises(TextError, match="leaves out earlier answers"):
        template.encode([MORE], [100])


def test_a_refusal_of_the_template_is_passed_on(make: Any) -> None:
    with pytest.raises(TextError, match="Roles must alternate"):
        make(BRACKETS).encode([{"role": "assistant", "content": "x"}], [100])
