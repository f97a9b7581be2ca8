"""A producer in another language, which knows docs/protocol.md and nothing else, against a worker process."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tokenloom.producer import Client, StepFailed
from tokenloom.producer.cancelling import _MARK
from tokenloom.schemas import decode_record
from tokenloom.schemas.validate import decode_event
from valkey_server import ValkeyServer
from worker_process import WorkerProcess

HERE = Path(__file__).parent
PROTOCOL = HERE.parents[1] / "docs" / "protocol.md"
SESSION = "chat"
CLONES = [f"{SESSION}.a", f"{SESSION}.b"]

Seen = dict[str, Any]


def play(url: str) -> Seen:
    """What producer.mjs saw."""
    node = shutil.which("node")
    if node is None or not (HERE / "node_modules").is_dir():
        raise RuntimeError("this test needs Node.js 20 and its two packages: run `make test`, which installs those")
    done = subprocess.run(
        [node, HERE / "producer.mjs", url, SESSION], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    seen: Seen = json.loads(done.stdout)
    return seen


@pytest.fixture
def seen(
    request: pytest.FixtureRequest,
    valkey: ValkeyServer,
    redis_url: str,
    make_worker: Callable[..., WorkerProcess],
    model_path: Path,
) -> Seen:
    make_worker(engine=getattr(request, "param", "fake"), model=model_path, fake_seconds=0.01)
    return play(valkey.tcp_url)


@pytest.fixture
def client(redis_url: str) -> Client:
    return Client(redis_url)


def as_json(value: Any) -> Any:
    """Integers that JavaScript has as BigInt are text in what it prints."""
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    return str(value) if type(value) is int and value >= 1 << 32 else value


def shown(model: Any) -> Any:
    return as_json(model.model_dump(exclude_none=True))


@pytest.mark.parametrize("seen", ["fake", "ggml"], indirect=True)
def test_both_languages_see_and_say_the_same(seen: Seen, client: Client) -> None:
    by_job: dict[str, list[Any]] = {}
    for session in (SESSION, *CLONES, f"{SESSION}.missing"):
        entries: Any = client.connection.xrange(client.keys.events(session))
        for id, fields in entries:
            event = decode_event(fields[b"e"], id=id.decode())
            if session == event.session and not (event.type == "opened" and session in CLONES):
                by_job.setdefault(event.job, []).append({"id": event.id, **shown(event)})
    assert seen["events"] == by_job

    assert len(seen["records"]) == 12
    for job, record in seen["records"].items():
        session = seen["events"][job][0]["session"]
        stored: Any = client.connection.hget(client.keys.steps(session), job)
        assert record == shown(decode_record(stored)), job

    for session, log in seen["logs"].items():
        assert log["tokens"] == client.session(session).tokens()


def test_what_it_asked_for_is_what_it_got(seen: Seen, client: Client) -> None:
    events, records = seen["events"], seen["records"]
    kinds = {job: [event["type"] for event in of_job] for job, of_job in events.items()}
    assert kinds["chat-open"] == ["opened"]
    assert events["chat-open"][0]["seed"] == str(0xFEDCBA9876543210), "64 bits arrive whole"
    assert kinds["chat-first"] == ["appended", *["tokens"] * 12, "finished"]
    assert seen["repeated"] is False, "the same id again is not enqueued"

    first = client.step("chat-first").result(10)
    assert "".join(event.get("text", "") for event in events["chat-first"]) == first.text
    assert seen["results"]["first"] == shown(first), "RQ's own result says the same"
    assert 3 not in first.tokens, "a key of logit_bias that JavaScript sends as text counts"

    assert events["chat-clone"][0]["targets"] == CLONES
    assert [as_json(seed) for seed in (5, (1 << 64) - 1)] == records["chat-clone"]["result"]["seeds"]
    inherited = seen["logs"][CLONES[0]]["tokens"][: first.length]
    assert inherited == seen["logs"][CLONES[1]]["tokens"][: first.length]
    assert inherited[-12:] == first.tokens
    assert seen["logs"][CLONES[0]]["tokens"] != seen["logs"][CLONES[1]]["tokens"]

    assert events["chat-rewind"][0]["length"] == 6
    assert events["chat-second"][0]["position"] == 6
    assert all(len(entry["top"]) == 2 for entry in records["chat-second"]["result"]["logprobs"])
    assert seen["cancelled"] is True
    assert seen["cancelledAgain"] is False
    assert events["chat-long"][-1]["reason"] == records["chat-long"]["reason"] == "cancelled"
    assert 0 < records["chat-long"]["generated"] < 400


def test_refusals_say_why_on_the_channel_and_in_the_record(seen: Seen, client: Client) -> None:
    for job, code in (("chat-missing", "no_such_session"), ("chat-invalid", "invalid")):
        (event,) = seen["events"][job]
        assert (event["type"], event["reason"]) == ("finished", "error")
        assert event["error"]["code"] == code
        assert seen["records"][job]["error"] == event["error"]
        with pytest.raises(StepFailed, match=re.escape(event["error"]["message"])):
            client.step(job).result(10)
    assert seen["events"]["chat-invalid"][0]["error"]["field"] == "colour"
    (refused,) = seen["events"]["chat-too-far"]
    assert (refused["type"], refused["error"]["field"]) == ("error", "to")
    assert seen["status"] == "failed"


def test_the_script_that_cancels_is_the_documented_one() -> None:
    documented = re.findall(r"```lua\n(.+?)```", PROTOCOL.read_text(), re.DOTALL)
    assert _MARK.strip() in [script.strip() for script in documented]
    sent = re.search(r"const CANCEL = `(.+?)`;", (HERE / "tokenloom.mjs").read_text(), re.DOTALL)
    assert sent is not None
    assert sent[1].strip() == _MARK.strip()


def test_it_uses_two_packages_and_no_code_of_ours() -> None:
    imported = {
        name
        for file in HERE.glob("*.mjs")
        for name in re.findall(r'from "([^"]+)"', file.read_text())
        if not name.startswith(("node:", "./"))
    }
    assert imported == {"redis", "@msgpack/msgpack"}
    assert imported == set(json.loads((HERE / "package.json").read_text())["dependencies"])
