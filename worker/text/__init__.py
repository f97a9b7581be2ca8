"""Text to tokens and back: tokenizer, incremental detokenizer, stop strings, chat templates.

Everything is built from a model file's metadata, given as a mapping; nothing here imports native code or opens a file.
"""

from tokenloom.worker.text.chat import ChatTemplate
from tokenloom.worker.text.detokenizer import MOST_HELD, REPLACEMENT, Detokenizer, unfinished
from tokenloom.worker.text.errors import TextError
from tokenloom.worker.text.stopstrings import StopResult, StopStrings
from tokenloom.worker.text.tokenizer import Tokenizer

__all__ = [
    "MOST_HELD",
    "REPLACEMENT",
    "ChatTemplate",
    "Detokenizer",
    "StopResult",
    "StopStrings",
    "TextError",
    "Tokenizer",
    "unfinished",
]
