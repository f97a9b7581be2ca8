"""The vocabulary of the engine ``fake``, as a model file would describe it.

Ids 0..255 are the bytes, spelled as byte-level BPE does; 256 is " t", 257 "he"; 258, 259 and 260 are <|endoftext|>,
<|im_start|> and <|im_end|>, of which the last ends a reply.
"""

from __future__ import annotations

from typing import Any

_NORMAL, _CONTROL = 1, 3
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def _byte_texts() -> list[str]:
    """GPT-2's spelling of the bytes: themselves where printable, otherwise the next unused character from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


TOKENS: tuple[str, ...] = (*_byte_texts(), "Ġt", "he", *_SPECIAL)
BEGIN, END = TOKENS.index("<|endoftext|>"), TOKENS.index("<|im_end|>")

#: What the engine is likely to say: a..z, space, newline, full stop, comma, " t", "he".
SPOKEN: tuple[int, ...] = (*range(ord("a"), ord("z") + 1), *b" \n.,", 256, 257)


def metadata(context: int) -> dict[str, Any]:
    """Under GGUF names, for a sequence of at most ``context`` tokens."""
    return {
        "general.architecture": "fake",
        "general.name": "fake",
        "fake.context_length": context,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": list(TOKENS),
        "tokenizer.ggml.token_type": [_CONTROL if token in _SPECIAL else _NORMAL for token in TOKENS],
        "tokenizer.ggml.merges": ["Ġ t", "h e"],
        "tokenizer.ggml.bos_token_id": BEGIN,
        "tokenizer.ggml.eos_token_id": END,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": _TEMPLATE,
    }
