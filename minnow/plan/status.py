"""what a number rests on: the words for it, from the best to the weakest, and what each one means"""

from minnow.plan import claims

# Words of claims, of sheets, of what a plan was asked for, and of recipes.
MEANING: dict[str, str] = {
    "config": claims.MEANING_BY_STATUS["config"],
    "nominal": "the definition of the thing",
    "setting": "asked for, or left at its default; not a finding",
    "given": "asked for in this plan",
    "measured": "read on this machine",
    "stated": "the public serving recipe has every word of it",
    "forward": claims.MEANING_BY_STATUS["forward"],
    "approx": claims.MEANING_BY_STATUS["approx"],
    "identity": claims.MEANING_BY_STATUS["identity"],
    "official": "the vendor's own page",
    "reported": "a tool on the device told it",
    "collected": "a public project's table",
    "unofficial": "a page of somebody else",
    "inferred": "follows from the public recipe by a rule; nobody has published it",
    "from memory": "nothing was looked up",
    "convention": "what plans take where nothing else is asked for; chosen, not derived",
    "fitted": claims.MEANING_BY_STATUS["fitted"],
    "extrapolated": "was fitted elsewhere and is used here: no evidence that it holds",
}


def weakest(*words: str) -> str:
    """The status of a number that rests on numbers of these; words that are empty do not count."""
    order = list(MEANING)
    return max((word for word in words if word), key=order.index, default="")
