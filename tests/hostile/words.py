"""What errors say over and over."""

from __future__ import annotations

STEP = "[invalid] StepRequest of a job: "
STEP_VERSION = "[unknown_version] StepRequest of a job: "
CLONE = "[invalid] CloneRequest of a job: "
FIELDS = "the fields are: v, session, tenant, tokens, text, messages, generation, deadline, at_length"
SETTINGS = (
    "the fields are: max_tokens, temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, "
    "frequency_penalty, penalty_window, logit_bias, stop, stop_tokens, ignore_eos, logprobs"
)
IDS = "1-128 characters: letters, digits and . _ : @ ~ -, the first a letter or digit"
SERVED = "is not a job of this queue; served are: " + ", ".join(
    f"tokenloom.schemas.jobs.{name}" for name in ("open", "step", "clone", "rewind", "close")
)
MSGPACK = "[invalid] the job's data is not acceptable msgpack"
ENQUEUE = "; enqueue with MsgpackSerializer"
UNREADABLE = "[invalid] the job's hash has a field RQ cannot read: "
LARGE = "[invalid] the job's hash is too large: "
LARGEST = "at most 256 fields of 262144 bytes are accepted"
CALLBACKS_ALLOWED = " is not among the callbacks this worker allows (TOKENLOOM_CALLBACKS): none"
HOSTS_CALLED = " is not among those this worker calls (TOKENLOOM_WEBHOOK_HOSTS): none"
INTEGERS = "; an integer from -1 to 2147483647"


def long(letter: str) -> str:
    """A long text as errors show it."""
    return repr(letter * 79 + "…")
