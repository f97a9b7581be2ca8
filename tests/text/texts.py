"""The texts that tokenizers are compared on: a few hundred, of every kind that cuts a tokenizer's rules open."""

from __future__ import annotations

import random

ENGLISH = [
    "",
    " ",
    "a",
    "Hello, world!",
    "Hello world",
    " Hello world",
    "  Hello  world  ",
    "The quick brown fox jumps over the lazy dog.",
    "I'm sure they've said we'll go; he'd, she's, it's, don't, you're.",
    "I'M SURE THEY'VE SAID WE'LL GO; HE'D, SHE'S, DON'T, YOU'RE.",
    "rock 'n' roll's 'tis 'twas o'clock ''quoted'' 'S 'T 'Re 'Ll 'x '",
    "camelCaseWords, PascalCaseWords, SCREAMING_SNAKE, snake_case, kebab-case, HTTPServer2Go, iPhone, McDonald's",
    "naïve café résumé façade Über ÉCOLE éÉ ÀÉaé Straße İstanbul ıI ǅ ǈungla",
    "e\u0301 a\u0308 n\u0303 c\u0327\u0301 o\u0302\u0323 combining marks, precomposed é ä ñ",
    "ﬁnance ﬂow ﬀ ﬃ ﬄ ligatures; ₂ ² ³ ½ ¼ Ⅷ ⅷ ① ⑩ ㊿ 㐀",
    "This is a sentence. This is another one! Is it? Yes... no; maybe: (perhaps) [or] {not} <so>.",
    "Visit https://example.com/path?query=1&other=two#fragment or mail someone+tag@example.co.uk now!",
    "$100.00 + 20% = £120, €5, ¥7, #1 & @you * 3^2 ~ `tick` | pipe \\ back / slash",
    "--- *** === ___ !!! ??? ... ,,, ;;; ::: ((( ))) [[[ ]]] {{{ }}} <<< >>>",
    "—–-‐‑‒―“quotes”‘single’„low‟«guillemets»‹›…•·¶§†‡",
    "←→↑↓↔⇒∀∃∈∉∑∏√∞≈≠≤≥⊂⊃∪∩ ∫f(x)dx",
    "© ® ™ ° ± × ÷ µ ¬ ª º ¿ ¡",
    "tokenloom untrained loom's tokenlooms tokenloom",
    "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore et dolore.",
    "A\tB\tC\n1\t2\t3\n",
    "word " * 20,
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "ababababababababa abababab aabaabaab xyxyxyxyxy",
    "supercalifragilisticexpialidocious pneumonoultramicroscopicsilicovolcanoconiosis",
]
CODE = [
    "def f(x):\n    return x + 1\n",
    'for (int i = 0; i < 10; ++i) {\n\tprintf("%d\\n", i);\n}\n',
    "if __name__ == '__main__':\n    main(*args, **kwargs)\n",
    "class A:\n    def __init__(self):\n        self.x = {'a': [1, 2, 3], 'b': None}\n\n\n    # comment\n",
    '<!DOCTYPE html>\n<html>\n  <body class="x">\n    <p>Hi &amp; bye</p>\n  </body>\n</html>\n',
    '{"key": "value", "list": [1, 2.5, -3e10, true, false, null], "nested": {"a": {}}}',
    "SELECT * FROM t WHERE a >= 10 AND b <> 'x' ORDER BY c DESC LIMIT 5;",
    '#!/bin/sh\nset -eu\nfor f in *.txt; do echo "$f" | tr a-z A-Z >> out.log 2>&1; done\n',
    "fn main() -> Result<(), Box<dyn Error>> {\n    let v: Vec<u8> = vec![0x00, 0xff];\n    Ok(())\n}\n",
    "x = [i**2 for i in range(10) if i % 2 == 0]  # squares\r\ny = lambda a, b=1: a // b\r\n",
    "    indented\n        more\n            most\n    back\n",
    "\tone\n\t\ttwo\n\t\t\tthree\n",
    "a+=b; c-=d; e*=f; g/=h; i%=j; k&&l; m||n; !o; p!=q; r==s; t===u; v=>w; x->y; z::a",
    "/* block\n * comment\n */\n// line comment\n",
    "import os, sys\nfrom typing import Any\n\n\n\n@decorator\nasync def g(*, a: int = 1) -> None: ...\n",
    "\\begin{equation}\n  E = mc^2 \\quad \\frac{a}{b}\n\\end{equation}",
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n# Title\n\n- item\n  - sub\n1. one\n",
    "0xDEADBEEF 0b1010 0o777 1_000_000 1e-9 .5 5. 3.14f 10L",
]
SPACES = [
    *(" " * n for n in (2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 100)),
    *("\n" * n for n in (1, 2, 3, 4, 5, 8, 13)),
    *("\t" * n for n in (1, 2, 3, 4, 9)),
    *("x" + " " * n + "y" for n in (1, 2, 3, 4, 5, 6, 7, 8, 12, 20)),
    *("x" + "\n" * n + "y" for n in (1, 2, 3, 5)),
    *(" " * n + "x" for n in (1, 2, 3, 4)),
    *("x" + " " * n for n in (1, 2, 3, 4)),
    *("1" + " " * n + "2" for n in (1, 2, 3)),
    *("." + " " * n + "!" for n in (1, 2, 3)),
    " \n ",
    "\n \n",
    " \n\n  \n   \n",
    "a \nb",
    "a\n b",
    "a  \n  b",
    "a \r\n b\r\nc\r\r\nd\n\re",
    "\r\n\r\n",
    "\r",
    "\t \t \t",
    " \t\n \t\n",
    "a\u00a0b\u00a0\u00a0c \u00a0 d",
    "a\u2003b\u2009c\u200ad\u202fe\u205ff\u3000g",
    "\u3000\u3000全角　空白\u3000",
    "a\u2028b\u2029c\u0085d",
    "a\u200bb\u200cc\u200dd\ufeffe\u2060f",
    "x\u1680y\u180ez",
    "a\x0bb\x0cc \x0b\x0c d",
    "end with newline\n",
    "end with spaces   ",
    "end with space and newline \n",
]
DIGITS = [
    *("1234567890"[:n] for n in range(1, 11)),
    "12345678901234567890123456789012345678901234567890",
    "1 22 333 4444 55555 666666 7777777",
    "3.14159 2,718,281.83 -42 +7 1/2 50% 1e10 192.168.0.1 2026-11-30T12:34:56.789Z",
    "a1b22c333d4444e55555 x86_64 utf8 4ever 1st 2nd 3rd",
    "٠١٢٣٤٥٦٧٨٩ ۱۲۳۴ १२३४५ ๑๒๓ ０１２３４５ 𝟎𝟏𝟐𝟑 12٣456 1234٣",
    "²³¹ ½⅓ ⅠⅡⅢⅣ ①②③④⑤ 〇一二三 ㈠",
    "  123  4567 89 \n1000\n 20000\t300000",
    "+1 (555) 010-9999 #42 No.7 v1.2.3-rc.4",
]
SCRIPTS = [
    "你好，世界！今天天气很好。我们去公园吧？",
    "中文English混合text测试123数字。",
    "一二三四五六七八九十百千万億兆京",
    "日本語のテキスト、ひらがなとカタカナと漢字。ﾊﾝｶｸｶﾅ ー々〆〤",
    "안녕하세요 세계! 한국어 텍스트입니다. ㄱㄴㄷ ㅏㅑㅓ",
    "ㄅㄆㄇㄈ ㄚㄛㄜ 注音；「引號」『書名』《名》〈單〉【方】",
    "𠀀𠀁𪛖𫜴𫠝 㐀㐁䶵 豈更車 extension ideographs",
    "مرحبا بالعالم! كيف حالك؟ اللُّغَةُ العَرَبِيَّة، ٤٢؛",
    "שלום עולם! מה שלומך? עִבְרִית מְנֻקֶּדֶת, ״ציטוט״",
    "नमस्ते दुनिया! हिन्दी में पाठ। क्षत्रिय ज्ञान श्रृंखला",
    "สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง ๑๒๓ น้ำ",
    "Привет, мир! Как дела? Ёжик в тумане. ПРИВЕТ Мир",
    "Γειά σου Κόσμε! Ἀρχὴ σοφίας ὀνομάτων ἐπίσκεψις ΑΒΓ",
    "Xin chào thế giới! Tiếng Việt có dấu: ắ ằ ẳ ẵ ặ",
    "বাংলা ভাষা তামிழ் தமிழ் తెలుగు ಕನ್ನಡ മലയാളം ગુજરાતી ਪੰਜਾਬੀ",
    "Հայերեն ქართული ᲥᲐᲠᲗᲣᲚᲘ አማርኛ ᏣᎳᎩ ꮳꮃꭹ ខ្មែរ ລາວ မြန်မာ བོད་",
    "Zażółć gęślą jaźń; Příliš žluťoučký kůň; Árvíztűrő tükörfúrógép; Çok güzel, değil mi? Türkiye'nin",
    "ᚠᚢᚦ 𐌰𐌱𐌲 𐐀𐐨 𝒜𝓑𝕮 𝟘𝟙 ⴰⴱⴲ ꙀꙂ ⱠⱡⱢ ꜢꜣꝹ",
    "Ⓐⓑ ⅐ ↉ ♔♕ ☀☁☂ ♠♥ ⚀⚁ ✓✗ ➀➁ ⠁⠂ ▁▂▃ █░▒▓ ┌─┐",
    "▁literal ▁ lower ▁▁ block",
    "ſharp K kelvin Å angstrom Ω ohm, don'ſ",
    "ʰʱʲ ˈstress ˌlow ˑ ː modifier ªº ᵃᵇᶜ ⁿ ₐₑ",
    "فارسی می‌خواهم (with a zero-width non-joiner) اردو",
    "แก้ม 🇹🇭 ก็ ่้๊๋",
]
EMOJI = [
    "😀😃😄😁😆",
    "Hello 👋 world 🌍!",
    "👨‍👩‍👧‍👦 family, 👩‍💻 coder, 🏳️‍🌈 flag, 🏴‍☠️ pirate, 🧑🏽‍🚀",
    "👍🏻👍🏼👍🏽👍🏾👍🏿 ✌️ ☺️ ❤️‍🔥 #️⃣ *️⃣ 1️⃣",
    "🇫🇷🇩🇪🇯🇵🇺🇸🇬🇧🏴󠁧󠁢󠁳󠁣󠁴󠁿",
    "text🙂text 🙂 text🙂\n🙂🙂 🙂1🙂2",
    "🀄🃏🎴 🅰️🆎 ㊗️㊙️ 🈁 🈚",
]
CONTROL = [
    "\x00",
    "a\x00b\x00\x00c",
    "\x01\x02\x03\x04\x05\x06\x07\x08\x0e\x0f\x10\x1b\x1c\x1d\x1e\x1f\x7f",
    "bell\x07 esc\x1b[31mred\x1b[0m del\x7f",
    "\x80\x81\x85\x90\x9f\xa0\xad",
    "soft\u00adhyphen \u2066isolate\u2069 \u202ertl\u202c \ufff9anno\ufffa\ufffb",
    "\ufffd replacement \ufffe\uffff noncharacters \ue000\uf8ff private \U000f0000\U0010fffd",
    "\u0378\u0379 unassigned \U0001fbff \U000e0001",
]
SPECIAL = [
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>",
    "<|im_end|><|im_end|>",
    "text<|endoftext|>text",
    " <|im_start|> spaced <|im_end|> ",
    "<|im_start|>  two spaces\n\n<|im_end|>\n\n",
    "<|im_start|<|im_start|>|>",
    "<|im_sta rt|> <|im_end|",
    "<s>[INST] hello [/INST] world</s>",
    "<s> </s><unk><pad>",
    "<think>reasoning</think>answer <think> spaced </think>",
    "<|a|><|b|><|a|> <|b|><|a|><|b|>",
    "<repo_name>x<file_sep>y<jupyter_code>z",
    "<0x0A><0xFF>",
    "\u2581<s>\u2581",
    "a<|im_end|>1<|im_end|>,<|im_end|>你<|im_end|>\n<|im_end|> ",
]


def _mixes(count: int, seed: int) -> list[str]:
    """Fragments of every kind, thrown together."""
    dice = random.Random(seed)
    words = [word for text in ENGLISH + SCRIPTS + CODE for word in text.split() if word]
    fragments = [
        *(" ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", " \n", "\u00a0", "\u3000", "'s", "'LL", "'", "/", "...")
    ]
    fragments += [
        *(" 1", "23", "456", "7890", " (", ")", "!?", "。", "，", "é", "É", "\u0301", "А", "я", "한", "ㄅ", "🙂")
    ]
    fragments += [
        *("_", "-", "$", "`", "|", "~", "^", "+", "\x1f", "\u200d", "\u200c", "٣", "Ⅷ", "²", "A", "z", "ZZ", "aB")
    ]
    fragments += [*("🇫🇷", "'re", "Ab")]

    def piece() -> str:
        return dice.choice(words) if dice.random() < 0.35 else dice.choice(fragments)

    return ["".join(piece() for _ in range(dice.randint(3, 28))) for _ in range(count)]


TEXTS = [*ENGLISH, *CODE, *SPACES, *DIGITS, *SCRIPTS, *EMOJI, *CONTROL, *_mixes(120, seed=1)]
