"""chat prompts from templates, topics and passages: deterministic, split by their subject"""

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_HELD_OUT_ONE_IN = 20  # subjects
_PASSAGE_SHARE, _FOLLOW_SHARE, _SYSTEM_SHARE = 0.25, 0.25, 0.1
_ADDED_SHARE, _LOWER_SHARE, _GREETED_SHARE = 0.25, 0.1, 0.1
_GREETINGS = ("Hi!", "Hello,", "Please help me.", "Quick question:")
_LANGUAGES = {"Python": ("function", 50), "bash": ("script", 15), "SQL": ("query", 10), "C": ("function", 10),
              "JavaScript": ("function", 15)}  # fmt: skip
_NAMES = "Anna Tom Maria Ben Lena Sam Priya Omar Julia Chen Nadia Peter Grace Hugo Ines Karl".split()
_GOODS = ("books", "tickets", "chairs", "lamps", "bottles")
_COUNTS = ("three", "five", "ten", "7", "4")

# Kinds of prompts: (templates, how often, {name in the templates: list of what may stand there}).
_KINDS: tuple[tuple[str, int, dict[str, str]], ...] = (
    ("ask", 30, {"topic": "topics"}),
    ("do", 12, {"task": "tasks"}),
    ("compare", 6, {"pair": "pairs"}),
    ("code", 14, {"code": "code"}),
    ("story", 10, {"hero": "heroes", "other": "heroes", "plot": "plots", "place": "places"}),
    ("email", 6, {"person": "people", "reason": "reasons"}),
    ("word", 4, {"term": "terms"}),
    ("list", 8, {"need": "needs", "things": "things", "named": "named"}),
    ("talk", 3, {"feeling": "feelings"}),
    ("sum", 4, {}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a user says.

    Attributes:
        subject: what it is about; the held-out split goes by it, so that no wording of it is on both sides.
        text: of the user's first message.
        system: of the system message; None leaves it to the chat template.
        follow: of a second message, said after the first answer; None ends the talk there.
    """

    subject: str
    text: str
    system: str | None = None
    follow: str | None = None

    @property
    def is_held_out(self) -> bool:
        """Whether it is kept for validation: a stable hash of the subject says so."""
        digest = hashlib.sha256(self.subject.casefold().encode()).digest()
        return int.from_bytes(digest[:4]) % _HELD_OUT_ONE_IN == 0


def prompts(seed: int, passages: Sequence[str] = ()) -> Iterator[Prompt]:
    """Prompts without end, no two texts alike, the same for the same seed and passages.

    Args:
        passages: paragraphs to ask about; without any, no prompt asks about one.
    """
    draw, entries = random.Random(seed), _entries()
    seen: set[str] = set()
    while True:
        if passages and draw.random() < _PASSAGE_SHARE:
            subject = draw.choice(passages)
            text = draw.choice(entries["templates.passage"]).replace("{passage}", subject)
        else:
            subject, text = _about_a_list(draw, entries)
            text = _as_typed(draw, text, entries["templates.suffix"])
        if text not in seen:
            seen.add(text)
            system = draw.choice(entries["templates.system"]) if draw.random() < _SYSTEM_SHARE else None
            follow = draw.choice(entries["templates.follow"]) if draw.random() < _FOLLOW_SHARE else None
            yield Prompt(subject=subject, text=text, system=system, follow=follow)


def _about_a_list(draw: random.Random, entries: Mapping[str, Sequence[str]]) -> tuple[str, str]:
    """The subject and a text about something of the lists; names, numbers and languages are no part of the subject."""
    kind, _, lists = draw.choices(_KINDS, [often for _, often, _ in _KINDS])[0]
    language = draw.choices(list(_LANGUAGES), [often for _, often in _LANGUAGES.values()])[0]
    details = {
        "language": language,
        "unit": _LANGUAGES[language][0],
        "count": draw.choice(_COUNTS),
        "name": draw.choice(_NAMES),
        "thing": draw.choice(_GOODS),
    }
    words = {name: draw.choice(entries[choices]) for name, choices in lists.items()}
    if not lists:
        words = {"a": str(draw.randint(11, 400)), "b": str(draw.randint(2, 60))}
    template = draw.choice(entries[f"templates.{kind}"])
    used = [word for name, word in words.items() if f"{{{name}}}" in template]
    return " ".join(used), template.format(**words, **details)


def _as_typed(draw: random.Random, text: str, suffixes: Sequence[str]) -> str:
    """With what people add to a question, and with their typing."""
    if draw.random() < _ADDED_SHARE:
        text = f"{text} {draw.choice(suffixes)}"
    if draw.random() < _LOWER_SHARE:
        return text.lower().rstrip("?.")
    return f"{draw.choice(_GREETINGS)} {text}" if draw.random() < _GREETED_SHARE else text


def _entries() -> dict[str, list[str]]:
    """The lists of prompts.txt by name."""
    found: dict[str, list[str]] = {}
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            found[line.strip("[]")] = []
        elif line and found:
            found[list(found)[-1]].append(line.replace("\\n", "\n"))
    return found
