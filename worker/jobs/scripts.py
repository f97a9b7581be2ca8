"""The Lua scripts of this folder as calls. What each does and answers is said at the top of its file."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from redis import Redis
from redis.client import Pipeline
from rq.defaults import RQ_KEY_PREFIX

from tokenloom.schemas.keys import Keys

if TYPE_CHECKING:
    from redis.commands.core import Script

NAMES = ("claim", "annotate", "register", "heartbeat", "refresh", "reap", "retire", "recall", "stop", "watch")


def key_templates(keys: Keys) -> dict[str, str]:
    """What the scripts call each key, with %s for each id in it."""
    rq = RQ_KEY_PREFIX
    return {
        "session": keys.session("%s"),
        "log": keys.log("%s"),
        "steps": keys.steps("%s"),
        "finished": keys.finished("%s"),
        "events": keys.events("%s"),
        "worker": keys.worker("%s"),
        "workers": keys.workers,
        "jobs": keys.worker_jobs("%s"),
        "inbox": keys.worker_inbox("%s"),
        "sequences": keys.worker_sequences("%s"),
        "suspect": suspect_key(keys, "%s"),
        "job": f"{rq}:job:%s",
        "execution": f"{rq}:execution:%s:%s",
        "executions": f"{rq}:executions:%s",
        "wip": f"{rq}:wip:%s",
        "queue": f"{rq}:queue:%s",
        "suspended": f"{rq}:suspended",
        "rq_worker": f"{rq}:worker:%s",
        "rq_executions": f"{rq}:worker:%s:executions",
        "rq_workers": f"{rq}:workers",
        "rq_workers_of": f"{rq}:workers:%s",
    }


def suspect_key(keys: Keys, worker: str) -> str:
    """String: id of the job that is to be blamed, alone, should the worker die now. Outlives the worker's hash."""
    return f"{keys.worker(worker)}:suspect"


def script_text(name: str, keys: Keys) -> str:
    """A script's whole text: the key names, what all scripts share, and its own file."""
    folder = files(__package__).joinpath("lua")
    names = "".join(f"  {kind} = '{template}',\n" for kind, template in key_templates(keys).items())
    shared, own = (folder.joinpath(f"{part}.lua").read_text(encoding="utf-8") for part in ("common", name))
    return f"local names = {{\n{names}}}\n{shared}\n{own}"


class Scripts:
    """The scripts under one namespace, sent by hash and loaded when Redis does not know them (any more)."""

    def __init__(self, connection: Redis, keys: Keys) -> None:
        self._scripts: dict[str, Script] = {name: connection.register_script(script_text(name, keys)) for name in NAMES}

    def __call__(self, name: str, arguments: Sequence[str | bytes | int | float], pipe: Pipeline | None = None) -> Any:
        """Run a script, or queue it on a pipeline. Its keys depend on what it finds, so none are declared."""
        return self._scripts[name](keys=[], args=list(arguments), client=pipe)
