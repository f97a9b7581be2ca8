"""Chat templates: what is rendered, what templates may use, what they may not, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from text.chat_templates import BRACKETS, CHATML, HEADERS
from tokenloom.worker.text import ChatTemplate, TextError, Tokenizer, sandbox

HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="session")
def make(smollm2_metadata: dict[str, Any], smollm2: Tokenizer) -> Any:
    """A chat template over the real vocabulary."""
    return lambda source, **keys: ChatTemplate.from_metadata(
        {**smollm2_metadata, "tokenizer.chat_template": source, **keys}, smollm2
    )


def test_smollm2_renders_as_its_template_says(smollm2_metadata: dict[str, Any], smollm2: Tokenizer) -> None:
    template = ChatTemplate.from_metadata(smollm2_metadata)
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    text = system + "<|im_start|>user\nHi<|im_end|>\n"
    assert template.render(HI, add_generation_prompt=False) == text
    assert template.render(HI) == text + "<|im_start|>assistant\n"
    assert template.encode_chat(HI) == smollm2.encode(template.render(HI), parse_special=True)


def test_a_file_without_a_template_says_what_to_send_instead(smollm2_metadata: dict[str, Any]) -> None:
    with pytest.raises(TextError, match=r"no tokenizer\.chat_template.*send text or tokens instead"):
        ChatTemplate.from_metadata({**smollm2_metadata, "tokenizer.chat_template": None})


def test_a_template_that_is_no_template_is_refused_with_its_line(make: Any) -> None:
    with pytest.raises(TextError, match=r"tokenizer\.chat_template, line 2: .*endfor"):
        make("{% for m in messages %}\n{% endif %}")


def test_a_template_refuses_in_its_own_words(make: Any) -> None:
    with pytest.raises(TextError, match=r"^chat template: Roles must alternate"):
        make(BRACKETS).render([*HI, *HI])


def test_messages_of_another_shape_than_the_template_expects(make: Any) -> None:
    with pytest.raises(TextError, match="chat template: "):
        make(CHATML).render([{"role": "user", "content": None}])
    with pytest.raises(TextError, match="chat template: "):
        make("{{ messages[0].content.no_such() }}").render(HI)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ {'b': '<é>', 'a': [1, none]} | tojson }}", '{"b": "<é>", "a": [1, null]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1) }}", '{\n "b": 1,\n "a": 2\n}'),
        (
            "{% for i in [0, 1, 2] %}{% if i == 0 %}{% continue %}{% endif %}{{ i }}{% break %}{% endfor %}",
            "1",
        ),
        ("a\n  {% if true %}\n  b\n  {% endif %}\nc", "a\n  b\nc"),
        (
            "{{ bos_token }}|{{ eos_token }}|{{ unk_token }}|{{ pad_token }}",
            "<|im_start|>|<|im_end|>|<|endoftext|>|<|im_end|>",
        ),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "Hi"),
        ("{% for k, v in messages[0].items() %}{{ k ~ '=' ~ v ~ ';' }}{% endfor %}", "role=user;content=Hi;"),
        (
            "{% for c in 'abc' %}{{ c }}{{ loop.length }}{{ loop.revindex0 }}{{ ',' if not loop.last }}{% endfor %}",
            "a32,b31,c30",
        ),
        ("{% for x in nothing %}{{ x }}{% else %}none{% endfor %}", "none"),
        ("{% if tools is none %}no tools{% endif %}{{ documents is defined }}", "no toolsFalse"),
        ("{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{{ twice('a') }}", "aa"),
        ("{{ 'a' ~ 1 ~ none }}{{ messages[-1]['content'] | upper | trim }}", "a1NoneHI"),
    ],
)
def test_templates_find_what_they_expect(make: Any, source: str, expected: str) -> None:
    assert make(source).render(HI) == expected


def test_the_clock_is_there(make: Any) -> None:
    assert make("{{ strftime_now('%Y') }}").render(HI).isdigit()


def test_tools_choose_the_template_for_tools(make: Any) -> None:
    both = make("plain", **{"tokenizer.chat_template.tool_use": "{{ tools | tojson }}"})
    assert both.render(HI) == "plain"
    assert both.render(HI, tools=[{"name": "f"}]) == '[{"name": "f"}]'
    named = make(None, **{"tokenizer.chat_template.default": "by name"})
    assert named.render(HI) == "by name"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ raise_exception.__globals__['os'] }}", "SecurityError"),
        ("{% for i in range(10000000) %}{% endfor %}", "Range too big"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "takes longer than"),
        ("{% set r = 'x' * 99999 %}{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}", "takes longer than"),
        ("{{ 'x' * 10**15 }}", "builds a value of 1000000000000000 characters"),
        ("{{ 9 ** 9999999 }}", "exponent 9999999"),
        (
            "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
            "builds a value",
        ),
        (
            "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
            "builds a value",
        ),
        ("{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}", "output exceeds the limit of 4000000 characters"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "recursion"),
        ("{% include 'other' %}", "TypeError|TemplateNotFound|no loader"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
    ],
)
def test_templates_are_kept_in_a_sandbox_with_limits(
    make: Any, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    monkeypatch.setattr(sandbox, "MAX_SECONDS", 0.2)
    with pytest.raises(TextError, match=message):
        make(source).render(HI)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages is empty"),
        ("Hi", "messages must be a list"),
        ([{"content": "x"}], r"messages\[0\]\.role must be a word"),
        ([*HI, {"role": "user|><|im_start|>", "content": "x"}], r"messages\[1\]\.role must be a word like 'user', got"),
        (["Hi"], r"messages\[0\] must be a mapping"),
        ([{"role": "user", "content": "a\ud800"}], r"messages\[0\]\.content is not valid Unicode.*offset 1"),
        (
            [{"role": "user", "content": [{"text": "\udcff"}]}],
            r"messages\[0\]\.content\[0\]\.text is not valid Unicode",
        ),
        ([{"role": "user", "content": object()}], r"messages\[0\]\.content must be text, a number"),
    ],
)
def test_malformed_messages_are_refused_by_field(make: Any, messages: Any, message: str) -> None:
    with pytest.raises(TextError, match=message):
        make(CHATML).encode_chat(messages)


def test_endless_nesting_is_refused(make: Any) -> None:
    value: Any = "x"
    for _ in range(100):
        value = [value]
    with pytest.raises(TextError, match="nested deeper than 32 levels"):
        make(CHATML).render([{"role": "user", "content": value}])


def test_bos_comes_once(byte_level_metadata: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_metadata(byte_level_metadata)
    for source in (CHATML, HEADERS):
        template = ChatTemplate.from_metadata({**byte_level_metadata, "tokenizer.chat_template": source}, tokenizer)
        ids = template.encode_chat(HI)
        assert ids[0] == tokenizer.bos
        assert ids.count(ids[0]) == 1
