"""how many drafts were kept, by position (no torch)"""


class Acceptance:
    """Counts since the start; what each means is vLLM's."""

    def __init__(self, num_speculative_tokens: int) -> None:
        """Begin at zero.

        Args:
            num_speculative_tokens: drafts of a round at most.
        """
        self.num_drafts = 0  # rounds of verification
        self.num_draft_tokens = 0
        self.accepted_per_position = [0] * num_speculative_tokens

    def add(self, num_drafts: int, num_accepted: int) -> None:
        """Count a round; one without drafts is none."""
        if num_drafts:
            self.num_drafts += 1
            self.num_draft_tokens += num_drafts
            for position in range(num_accepted):
                self.accepted_per_position[position] += 1
