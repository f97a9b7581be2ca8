"""What a producer can ask of a step, through the whole stack on the real model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.seen import QUICK, check_stream
from tokenloom.producer import AsyncClient, Client, ContextFull, InvalidRequest, Session, StepResult
from tokenloom.schemas import FinishedEvent, TokensEvent
from valkey_server import ValkeyServer
from worker_process import WorkerProcess

PROMPT = "The sea was calm that morning. The captain looked at the map and said:"


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    """One server for all of these tests, never emptied."""
    server = ValkeyServer()
    server.start()
    yield server
    server.close()


@pytest.fixture(scope="module")
def served(server: ValkeyServer, model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of that server, with one worker on it."""
    settings = {"model": model_path, "threads": 1, "kv_bytes": "256M", **QUICK}
    worker = WorkerProcess(server.url, tmp_path_factory.mktemp("worker") / "log", name="w", settings=settings)
    worker.start()
    with Client(server.url, patience=5) as client:
        yield client
    worker.kill()


def generate(client: Client, seed: int = 7, **options: Any) -> StepResult:
    """What a new session generates after the prompt."""
    settings: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "ignore_eos": True, **options}
    return client.open(seed=seed).step(PROMPT, **settings).result(60)


@pytest.fixture(scope="module")
def greedy(served: Client) -> StepResult:
    """48 tokens of the greedy continuation."""
    return generate(served, max_tokens=48)


def test_a_seed_decides_and_another_seed_decides_otherwise(served: Client) -> None:
    one = generate(served, seed=1, temperature=1.0)
    assert generate(served, seed=1, temperature=1.0).tokens == one.tokens
    assert generate(served, seed=2, temperature=1.0).tokens != one.tokens


@pytest.mark.parametrize("narrowing", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
def test_filters_that_leave_one_token_are_greedy(served: Client, greedy: StepResult, narrowing: dict[str, Any]) -> None:
    assert generate(served, temperature=1.5, **narrowing).tokens == greedy.tokens[:12]


def test_logit_bias_forces_and_forbids_tokens(served: Client, greedy: StepResult) -> None:
    assert generate(served, logit_bias={1234: 1e6}, max_tokens=3).tokens == [1234] * 3
    first = greedy.tokens[0]
    assert first not in generate(served, logit_bias={first: -1e6}).tokens


def test_a_large_presence_penalty_lets_no_token_come_twice(served: Client, greedy: StepResult) -> None:
    assert len(set(greedy.tokens)) < 48, "the prompt no longer shows anything"
    tokens = generate(served, presence_penalty=100, penalty_window=-1, max_tokens=48).tokens
    assert len(set(tokens)) == 48


def test_a_repetition_penalty_changes_what_repeats(served: Client, greedy: StepResult) -> None:
    tokens = generate(served, repetition_penalty=1.5, max_tokens=48).tokens
    assert tokens != greedy.tokens
    assert len(set(tokens)) > len(set(greedy.tokens))


def test_a_stop_string_ends_the_step_and_is_never_emitted(served: Client, greedy: StepResult) -> None:
    stop = greedy.text[30:37]
    expected = greedy.text[: greedy.text.index(stop)]
    session = served.open(seed=7)
    step = session.step(PROMPT, max_tokens=48, temperature=0, stop=stop)
    pieces = list(step.stream_text(timeout=60))
    result = step.result(10)
    assert (result.reason, result.text) == ("stop", expected)
    assert "".join(pieces) == expected
    assert greedy.tokens[: len(result.tokens)] == result.tokens
    assert len(result.tokens) < 48
    again = session.step(max_tokens=48 - len(result.tokens), temperature=0, ignore_eos=True).result(60)
    assert result.tokens + again.tokens == greedy.tokens, "the stop string's tokens stay in the log"


def test_a_stop_token_ends_the_step_and_stays_in_the_log(served: Client, greedy: StepResult) -> None:
    stop = greedy.tokens[5]
    end = greedy.tokens.index(stop) + 1
    result = generate(served, stop_tokens=[stop])
    assert (result.reason, result.tokens) == ("stop", greedy.tokens[:end])


def test_logprobs_come_with_the_tokens_and_in_the_result(served: Client, greedy: StepResult) -> None:
    step = served.open(seed=7).step(PROMPT, max_tokens=8, temperature=0, logprobs=3)
    events = [event for event in step.events(timeout=60) if isinstance(event, TokensEvent)]
    result = step.result(10)
    assert result.tokens == greedy.tokens[:8]
    assert result.logprobs is not None
    assert [lp for event in events for lp in event.logprobs or []] == result.logprobs
    for token, logprob in zip(result.tokens, result.logprobs, strict=True):
        values = [value for _, value in logprob.top]
        assert values == sorted(values, reverse=True)
        assert logprob.top[0] == (token, logprob.chosen)
        assert len(values) == 3
        assert all(value <= 0 for value in values)
    assert generate(served, max_tokens=2).logprobs is None


def test_prefill_alone_then_generating_is_the_same_as_both_at_once(served: Client, greedy: StepResult) -> None:
    session = served.open(seed=7)
    filled = session.step(PROMPT, max_tokens=0).result(60)
    assert (filled.reason, filled.tokens) == ("length", [])
    assert session.step(max_tokens=12, temperature=0, ignore_eos=True).result(60).tokens == greedy.tokens[:12]


def test_a_sessions_defaults_hold_unless_the_step_says_otherwise(served: Client, greedy: StepResult) -> None:
    session = served.open(seed=7, defaults={"max_tokens": 5, "temperature": 0, "ignore_eos": True})
    assert session.step(PROMPT).result(60).tokens == greedy.tokens[:5]
    assert session.step(max_tokens=2).result(60).tokens == greedy.tokens[5:7]


def test_clones_differ_by_seed_and_a_rewound_session_repeats_itself(served: Client) -> None:
    session = served.open(seed=7)
    length = session.step(PROMPT, max_tokens=0).result(60).length
    clones = session.clone(3)
    steps = [clone.step(max_tokens=8, temperature=1.0, ignore_eos=True) for clone in clones]
    tokens = [step.result(60).tokens for step in steps]
    assert len({tuple(one) for one in tokens}) == 3
    assert clones[1].rewind(length).length == length
    assert clones[1].step(max_tokens=8, temperature=1.0, ignore_eos=True).result(60).tokens == tokens[1]


def test_chat_goes_on_over_two_turns(served: Client) -> None:
    session = served.open(seed=7, defaults={"temperature": 0, "max_tokens": 40})
    first = say(session, "What is the capital of France? Answer in one short sentence.")
    assert "Paris" in first.text
    assert first.reason == "stop"
    second = say(session, "And the capital of Italy?")
    assert "Rome" in second.text
    assert second.usage.cached >= first.length - 1, "the first turn was computed once"
    whole = served.open(seed=7).step(
        messages=[
            {"role": "user", "content": "What is the capital of France? Answer in one short sentence."},
            {"role": "assistant", "content": first.text},
            {"role": "user", "content": "And the capital of Italy?"},
        ],
        max_tokens=0,
    )
    assert whole.result(60).length == second.length - second.usage.generated, "turn by turn as in one go"
    assert session.tokens()[: whole.result(1).length] == served.session(whole.session).tokens()
    check_stream(served.connection, session.id)


def say(session: Session, text: str) -> StepResult:
    return session.step(messages=[{"role": "user", "content": text}]).result(60)


def test_the_async_client_streams_many_steps_at_once(served: Client, server: ValkeyServer, greedy: StepResult) -> None:
    async def read(client: AsyncClient) -> tuple[list[int], str]:
        session = await client.open(seed=7)
        step = await session.step(PROMPT, max_tokens=8, temperature=0, ignore_eos=True)
        tokens: list[int] = []
        text = ""
        async for event in step:
            if isinstance(event, TokensEvent):
                tokens += event.tokens
            if isinstance(event, (TokensEvent, FinishedEvent)):
                text += event.text
        return tokens, text

    async def read_all() -> list[tuple[list[int], str]]:
        async with AsyncClient(server.url) as client:
            return await asyncio.gather(*(read(client) for _ in range(4)))

    for tokens, text in asyncio.run(read_all()):
        assert tokens == greedy.tokens[:8]
        assert greedy.text.startswith(text)


def test_what_cannot_be_is_refused_with_the_numbers(served: Client) -> None:
    session = served.open(seed=7)
    with pytest.raises(ContextFull, match=r"8193 appended are 8193; the model's context is 8192"):
        session.step(tokens=[5] * 8193, max_tokens=1).result(60)
    with pytest.raises(InvalidRequest, match="token 49152 is outside the model's vocabulary of 49152"):
        session.step(tokens=[49152], max_tokens=1).result(60)
    with pytest.raises(InvalidRequest, match="is empty and the step appends nothing"):
        session.step(max_tokens=1).result(60)
    assert session.length() == 0
