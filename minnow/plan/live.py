"""sessions on their way: which turns fall due when others end, and what their prompts share"""

from collections.abc import Iterator

from minnow.cache.prefix import HashChain, PrefixKey
from minnow.plan.workload import Session, Text, Turn


class LiveSession:
    """A session that has begun and not ended."""

    __slots__ = ("_begun", "_next_by_turn", "_num_awaited", "_num_extending", "_num_left", "_turns")

    def __init__(self, session: Session) -> None:
        self._turns = session.turns
        self._num_left = len(session.turns)
        self._num_awaited = [len(turn.after) for turn in session.turns]
        self._next_by_turn: dict[int, list[int]] = {}
        self._num_extending: dict[int, int] = {}  # later turns that begin as it does
        self._begun: dict[int, tuple[Text, HashChain | None]] = {}  # those that some of these have yet to look at
        for place, turn in enumerate(session.turns):
            for before in turn.after:
                self._next_by_turn.setdefault(before, []).append(place)
            if turn.extends >= 0:
                self._num_extending[turn.extends] = self._num_extending.get(turn.extends, 0) + 1

    @property
    def has_ended(self) -> bool:
        """Whether all of its turns have."""
        return not self._num_left

    def turn(self, place: int) -> Turn:
        """The turn at a place."""
        return self._turns[place]

    def first(self) -> Iterator[tuple[int, Turn]]:
        """Place and turn of each that waits for none."""
        return ((place, turn) for place, turn in enumerate(self._turns) if not turn.after)

    def begin(self, place: int, block_size: int, *, is_routed: bool) -> tuple[Text, HashChain | None]:
        """The prompt of a turn, and the chain of its blocks as far as an earlier turn has worked it out.

        Args:
            block_size: tokens in a block; 0 makes no chain.
            is_routed: somebody will look for its prefix; else there is only a chain that another turn has use for.
        """
        turn = self._turns[place]
        text, chain = Text(turn.pieces), None
        if turn.extends >= 0 and turn.extends in self._begun:
            earlier, earlier_chain = self._begun[turn.extends]
            if earlier_chain is not None:
                chain = earlier_chain.fork(text.num_shared_tokens(earlier) // block_size)
            self._let_go(turn.extends)
        if chain is None and block_size and (is_routed or place in self._num_extending):
            chain = HashChain(PrefixKey(), block_size)
        if place in self._num_extending:
            self._begun[place] = text, chain
        return text, chain

    def end(self, place: int) -> Iterator[tuple[int, Turn]]:
        """Place and turn of each that has waited for this one alone."""
        self._num_left -= 1
        for following in self._next_by_turn.get(place, ()):
            self._num_awaited[following] -= 1
            if not self._num_awaited[following]:
                yield following, self._turns[following]

    def _let_go(self, place: int) -> None:
        self._num_extending[place] -= 1
        if not self._num_extending[place]:
            del self._begun[place]
