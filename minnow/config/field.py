"""Field: what a setting means, beside its type"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Field:
    """Help, unit, range and other names of a setting; sits in `Annotated[type, Field(...)]`.

    Attributes:
        help: a clause for `--help`.
        unit: printed behind values, for example "tokens".
        aliases: other flags for the same setting, for example "-tp".
        at_least, at_most: the range of a number, ends included.
        takes_many: the flag takes several words, and a file a list; blanks join them.
    """

    help: str
    unit: str = ""
    aliases: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float | None = None
    takes_many: bool = False
