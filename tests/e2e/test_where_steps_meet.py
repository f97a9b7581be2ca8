"""Characters that several steps generate, through producer, queue and workers that die in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from characters import cut
from e2e.seen import QUICK
from tokenloom.producer import AsyncClient, Client, Session, Step
from worker_process import WorkerProcess

#: An emoji of three code points between two letters.
TEXT = "x\U0001f469\u200d\U0001f4bbz"


def say(session: Session, byte: int, text: str | None = None) -> Step:
    """A step of one token, which for the engine fake is this byte."""
    return session.step(text, max_tokens=1, temperature=0, logit_bias={byte: 100})


def test_bytes_of_one_step_each_are_whole_characters_whoever_runs_them(
    client: Client, make_worker: Callable[..., WorkerProcess]
) -> None:
    make = {"engine": "fake", **QUICK}
    worker = make_worker(name="w0", **make)
    session = client.open()
    session.step("begin", max_tokens=0).result(20)
    said, streamed = [], ""
    for number, byte in enumerate(TEXT.encode()):
        if number % 4 == 3:
            worker.kill()
            worker = make_worker(name=f"w{number}", **make)
        step = say(session, byte)
        streamed += "".join(step.stream_text(timeout=20))
        said.append(step.result(20))
        assert (said[-1].pending or 0) == len(cut(TEXT.encode()[: number + 1])[1])
    assert "".join(result.text for result in said) == streamed == TEXT

    first, second = say(session, 0xC3).result(20), say(session, ord("a"), "and").result(20)
    assert (first.text, first.pending) == ("", 1)
    assert (second.before, second.text, second.pending) == ("\ufffd", "a", None)
    appended = [event for event in client.step(second.step, session.id) if event.type == "appended"]
    assert [event.before for event in appended] == ["\ufffd"]


def test_asyncio_is_told_the_same(client: Client, redis_url: str, make_worker: Callable[..., WorkerProcess]) -> None:
    make_worker(name="w", engine="fake", **QUICK)

    async def speak() -> list[tuple[str, int | None]]:
        async with AsyncClient(redis_url) as asking:
            session = await asking.open()
            said = []
            for number, byte in enumerate("aé".encode()):
                options = {"max_tokens": 1, "temperature": 0, "logit_bias": {byte: 100}}
                step = await session.step(None if number else "begin", **options)
                result = await step.result(20)
                assert "".join([piece async for piece in step.stream_text()]) == result.text == await step.text()
                said.append((result.text, result.pending))
            return said

    assert asyncio.run(speak()) == [("a", None), ("", 1), ("é", None)]
