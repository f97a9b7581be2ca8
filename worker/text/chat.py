"""Chat templates: messages to text and to tokens, from the template in the model file."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateSyntaxError

from tokenloom.worker.text import metadata
from tokenloom.worker.text.errors import TextError
from tokenloom.worker.text.guard import Guard, unused_character
from tokenloom.worker.text.messages import Message, checked_messages, checked_tools
from tokenloom.worker.text.sandbox import ChatEnvironment
from tokenloom.worker.text.tokenizer import Tokenizer

_KEY = "tokenizer.chat_template"
# Stands for what came before: what an assistant said, and what it answered. Plain letters, so no template changes them.
_ANSWER, _QUESTION, _PROBE = "Zxanswerqj", "Zxquestionqj", "Zxprobe{}qj"


class ChatTemplate:
    """The chat template of one model file. Safe to share between threads; renders one conversation at a time."""

    def __init__(self, sources: Mapping[str, str], tokenizer: Tokenizer, special: Mapping[str, str]) -> None:
        """Use ``from_metadata``."""
        self._tokenizer = tokenizer
        self._special = dict(special)
        self._sources = dict(sources)
        self._environment = ChatEnvironment()
        self._lock = threading.Lock()
        self._guard = Guard(tokenizer.guarded_texts())
        self._templates = {}
        for name, source in sources.items():
            try:
                self._templates[name] = self._environment.from_string(source)
            except TemplateSyntaxError as error:
                raise TextError(f"model file: {name}, line {error.lineno}: {error.message}") from error

    @classmethod
    def from_metadata(cls, meta: Mapping[str, Any], tokenizer: Tokenizer | None = None) -> ChatTemplate:
        """The template under ``tokenizer.chat_template``, with the one named ``tool_use`` for conversations with tools
        if there is one. ``tokenizer`` saves building it again.

        Raises TextError if the file has none, or one that is not valid.
        """
        source = metadata.string(meta, _KEY)
        if source is None:
            source = metadata.string(meta, f"{_KEY}.default")
        if source is None:
            raise TextError(f"model file: it has no {_KEY}, so it takes no chat messages; send text or tokens instead")
        sources = {_KEY: source}
        with_tools = metadata.string(meta, f"{_KEY}.tool_use")
        if with_tools is not None:
            sources[f"{_KEY}.tool_use"] = with_tools
        tokenizer = tokenizer or Tokenizer.from_metadata(meta)
        ids = {"bos_token": tokenizer.bos, "eos_token": tokenizer.eos, "unk_token": tokenizer.unknown}
        ids["pad_token"] = metadata.token_id(meta, metadata.PREFIX + "padding_token_id", tokenizer.vocab_size)
        special = {
            name: "" if index is None else tokenizer.token_bytes(index).decode("utf-8", "replace")
            for name, index in ids.items()
        }
        return cls(sources, tokenizer, special)

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, tools: Sequence[Any] | None = None
    ) -> str:
        """The conversation as text, control tokens spelled out. For reading: to encode it, use ``encode_chat``, since
        in this text a control token's text in a message cannot be told from the template's.

        Raises TextError for malformed messages, and with the template's own message where it refuses them.
        """
        return self._run(checked_messages(messages), add_generation_prompt, checked_tools(tools))

    def encode_chat(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, tools: Sequence[Any] | None = None
    ) -> list[int]:
        """The tokens of the conversation, to begin a log with.

        Control tokens come from the template alone: their texts inside messages and tools are encoded as the ordinary
        text they are. A conversation that holds no such text has exactly the tokens of ``encode(render(...),
        parse_special=True)``, with the bos token in front if the file asks for one and the template wrote none. Raises
        TextError like ``render``.
        """
        checked, described = checked_messages(messages), checked_tools(tools)
        mark = self._mark(checked, described)
        text = self._run(self._guarded(checked, mark), add_generation_prompt, self._guard.mark(described, mark))
        ids = self._tokenizer.encode_guarded(text, mark)
        bos = self._tokenizer.bos
        return [bos, *ids] if self._tokenizer.add_bos and bos is not None and ids[:1] != [bos] else ids

    def render_continuation(
        self,
        messages: Sequence[Message],
        log: Sequence[int],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Any] | None = None,
    ) -> str:
        """What to append to ``log``, the tokens of a conversation, so that it goes on with ``messages``.

        Rendering ``messages`` alone would begin a conversation: with bos, and with many templates a system prompt. So
        they are rendered behind a question and an answer that stand for what the log holds, and what the template
        writes behind that answer is the continuation. It begins with what closes the answer's turn, of which the log
        may hold some already. By the log's last tokens (all else in it is not looked at):

        - the log ends with all of what closes a turn (an earlier step appended whole turns): all of it is left out;
        - the log ends with a stop token (the answer ended by itself): a stop token at the beginning of what closes the
          turn is left out, with white space before it, be it the same token or the one that the template would have
          written in its place; what follows, often a newline, is kept;
        - otherwise (the answer ended by length, by a stop string, or was cancelled): all of it is there.

        Raises TextError like ``render``; also if the template does not write the messages behind what came before (one
        that puts every system prompt first, say), because then no continuation of the log says the same.
        """
        checked, described = checked_messages(messages), checked_tools(tools)
        return self._continuation(checked, log, add_generation_prompt, described)

    def encode_continuation(
        self,
        messages: Sequence[Message],
        log: Sequence[int],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Any] | None = None,
    ) -> list[int]:
        """The tokens of ``render_continuation``, guarded like those of ``encode_chat``; bos is never added.

        The log and these tokens together are what ``encode_chat`` gives for the whole conversation, as far as the
        answers' tokens are those that their text encodes to.
        """
        checked, described = checked_messages(messages), checked_tools(tools)
        mark = self._mark(checked, described)
        guarded, tools_guarded = self._guarded(checked, mark), self._guard.mark(described, mark)
        text = self._continuation(guarded, log, add_generation_prompt, tools_guarded)
        continues = bool(log) and not self._tokenizer.is_special(log[-1])
        return self._tokenizer.encode_guarded(text, mark, continues=continues)

    def encode(
        self,
        messages: Sequence[Message],
        log: Sequence[int],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Any] | None = None,
    ) -> list[int]:
        """What a step with ``messages`` appends to ``log``: ``encode_chat`` for an empty one, else
        ``encode_continuation``.
        """
        if not log:
            return self.encode_chat(messages, add_generation_prompt=add_generation_prompt, tools=tools)
        return self.encode_continuation(messages, log, add_generation_prompt=add_generation_prompt, tools=tools)

    def _mark(self, *values: Any) -> str:
        return unused_character(*values, list(self._sources.values()))

    def _guarded(self, messages: list[dict[str, Any]], mark: str) -> list[dict[str, Any]]:
        return [{**self._guard.mark(message, mark), "role": message["role"]} for message in messages]

    def _run(self, messages: list[dict[str, Any]], prompt: bool, tools: list[Any] | None) -> str:
        name = f"{_KEY}.tool_use" if tools and f"{_KEY}.tool_use" in self._templates else _KEY
        variables = {"messages": messages, "tools": tools, "add_generation_prompt": prompt, **self._special}
        with self._lock:
            return self._environment.run(self._templates[name], variables)

    def _continuation(
        self, messages: list[dict[str, Any]], log: Sequence[int], prompt: bool, tools: list[Any] | None
    ) -> str:
        prior = [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _ANSWER}]
        behind = self._behind_answer([*prior, *messages], prompt, tools)
        self._check_kept(prior, messages, prompt, tools)
        closing = self._behind_answer(prior, False, tools)
        # Every token that shows is at least a byte, so as many tokens as bytes are enough.
        size = len(closing.encode("utf-8", "replace"))
        shown = self._tokenizer.decode(log[-size:] if size else [], skip_special=False)
        if closing and behind.startswith(closing) and shown.endswith(closing):
            return behind[len(closing) :]
        if log and log[-1] in self._tokenizer.stop_tokens:
            return self._without_stop(behind)
        return behind

    def _behind_answer(self, messages: list[dict[str, Any]], prompt: bool, tools: list[Any] | None) -> str:
        text = self._run(messages, prompt, tools)
        if _ANSWER not in text:
            raise TextError("chat template: it leaves out earlier answers, so a log cannot be continued with messages")
        return text.rpartition(_ANSWER)[2]

    def _check_kept(
        self, prior: list[dict[str, Any]], messages: list[dict[str, Any]], prompt: bool, tools: list[Any] | None
    ) -> None:
        """Raise TextError if the template puts a message elsewhere than behind the answer, or nowhere."""
        probes = {
            index: _PROBE.format(index)
            for index, message in enumerate(messages)
            if isinstance(message.get("content"), str) and message["content"].strip()
        }
        probed = [{**message, "content": probes.get(i, message.get("content"))} for i, message in enumerate(messages)]
        try:
            behind = self._behind_answer([*prior, *probed], prompt, tools)
        except TextError:
            return  # a template that reads contents, and not these; what it made of the real ones was accepted
        for index, probe in probes.items():
            if probe not in behind:
                raise TextError(
                    f"messages[{index}]: the chat template does not put a message of role "
                    f"{messages[index]['role']!r} after an answer, so it cannot continue this session"
                )

    def _without_stop(self, behind: str) -> str:
        """``behind`` without the stop token it begins with, if it does."""
        rest = behind.lstrip()
        stops = (self._tokenizer.token_bytes(index).decode("utf-8", "replace") for index in self._tokenizer.stop_tokens)
        for stop in sorted(stops, key=len, reverse=True):
            if stop and rest.startswith(stop):
                return rest[len(stop) :]
        return behind
