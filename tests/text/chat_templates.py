"""Chat templates of the common shapes, written for the tests."""

from __future__ import annotations

#: As SmolLM2's: a default system prompt where the first message is none.
CHATML = (
    "{% for m in messages %}"
    "{% if loop.first and m.role != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: As Llama 3's: bos in front, contents trimmed, no newline after a turn.
HEADERS = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|im_start|>' ~ m['role'] ~ '<|sep|>\n' ~ m['content'] | trim ~ '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant<|sep|>\n' }}{% endif %}"
)
#: As Llama 2's and Mistral's: no roles but brackets, strict alternation, the system prompt inside the first question.
BRACKETS = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set turns = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set turns = messages %}{% endif %}"
    "{% for m in turns %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if m.role == 'user' %}{{ bos_token + '[INST] ' }}{% if loop.first and system %}{{ system + '\n\n' }}{% endif %}"
    "{{ m.content.strip() + ' [/INST]' }}{% else %}{{ ' ' + m.content.strip() + ' ' + eos_token }}"
    "{% endif %}{% endfor %}"
)
#: As Qwen 3's: the reasoning is shown in the last answer only, so an earlier answer is written differently.
REASONING = (
    "{%- set ns = namespace(last=-1) %}{%- for m in messages %}"
    "{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}"
    "{%- endif %}{%- endfor %}{%- for m in messages %}{%- set content = m.content.split('</think>')[-1].lstrip('\n') %}"
    "{{- '<|im_start|>' + m.role + '\n' }}{%- if m.role == 'assistant' and loop.index0 > ns.last %}"
    "{{- '<think>\n\n</think>\n\n' }}{%- endif %}{{- content + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
#: Every system prompt goes to the top, wherever it was said.
HOISTING = (
    "{% for m in messages if m.role == 'system' %}<|im_start|>system\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)
