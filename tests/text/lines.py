"""varied lines of text, the same in every run, for comparing tokenizers"""

import random
import sys
from pydoc_data import topics
from unicodedata import ucd_3_2_0

_CONTRACTIONS = ("I'm", "can't", "you'll", "we've", "they're", "he'd", "it's", "DON'T", "I'LL", "y'all'd", "''s")
_EMOJI = (
    "\U0001f600",
    "\U0001f44d\U0001f3fd",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467",
    "\U0001f1eb\U0001f1f7",
    "\u2764\ufe0f",
    "1\ufe0f\u20e3",
)
_WORDS = (
    "na\xefve caf\xe9",
    "\xdcbergr\xf6\xdfe",
    "\u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440",
    "\u4f60\u597d\uff0c\u4e16\u754c",
    "\u65e5\u672c\u8a9e\u30c6\u30ad\u30b9\u30c8",
    "\ud55c\uad6d\uc5b4",
    "\u0939\u093f\u0928\u094d\u0926\u0940",
    "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22",
    "\u05e2\u05b4\u05d1\u05e8\u05b4\u05d9\u05ea",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u0661\u0662\u0663",
    "\ufb01ligree e\u0301",
    "\u2177 \xbd \xb3 \xbc",
    "\u200b\u00a0\u3000\u2028",
    "\U0001d7d8\U0001d7d9\U0001d7da",
    "\U00012000\U00013000",
    "\ufeff",
    "\x00\x1c\x85",
)
_CODE = (
    "def f(x: int) -> int:",
    "    return x**2  # 100%",
    "\tif (a[i] != NULL && b->c == 0x1F) {",
    "}\r\n",
    "<div class='a'>",
    "SELECT * FROM t WHERE id=12345;",
    "#include <stdio.h>\n\n",
    "x = {'a': 1, 'b': [2, 3]}",
    "https://example.org/a?b=c&d=%20",
    '$ ls -la | grep "foo" > /dev/null 2>&1',
    "a+++b--;",
    "\u03bbx.x",
    'printf("%08.3f\\n", 3.14159e-10);',
)


def varied(count: int, seed: int = 0) -> list[str]:
    """That many lines: prose, code, digits after runs of blanks, scripts, emoji, tabs, CR LF, lone characters."""
    chance = random.Random(seed)
    prose = [line for text in topics.topics.values() for line in text.splitlines()]
    # an old table of characters: which letters are letters depends on the Unicode version of each tokenizer
    characters = [chr(c) for c in range(sys.maxunicode + 1) if ucd_3_2_0.category(chr(c)) not in ("Cs", "Cn", "Co")]
    makers = (
        lambda: chance.choice(prose),
        lambda: "\n".join(chance.choices(prose, k=3)),
        lambda: _blanks(chance) + _digits(chance) + _blanks(chance) + chance.choice(("", "x", "%", "!", "th")),
        lambda: _blanks(chance).join(_digits(chance) for _ in range(chance.randint(2, 5))),
        lambda: chance.choice((" ", "", "-", "\n")).join(chance.choices(_CONTRACTIONS, k=3)),
        lambda: chance.choice(_CODE) + _blanks(chance) + chance.choice(_CODE),
        lambda: chance.choice(_WORDS) + _blanks(chance) + chance.choice(_EMOJI) + chance.choice(_WORDS),
        lambda: "".join(chance.choices(characters, k=chance.randint(1, 12))),
        lambda: "".join(chance.choices(" \t\r\n'.,;:-_()[]0123456789aAbBsStT", k=chance.randint(1, 40))),
        lambda: chance.choice(prose).upper() + chance.choice(("\r\n", "\n\n\n", "  \n", "\t\t")),
    )
    return [chance.choice(makers)() for _ in range(count)]


def _blanks(chance: random.Random) -> str:
    blank = chance.choice((" ", "\t", "\n", "\r\n", "\u00a0", "\u3000"))
    return blank * chance.choice((0, 1, 1, 2, 3, 4, 7, 8, 16, 33))


def _digits(chance: random.Random) -> str:
    return str(chance.randrange(10 ** chance.choice((1, 2, 3, 4, 7, 12, 30))))
