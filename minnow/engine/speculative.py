"""draft, verify, accept; asks model/dspark.py"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from minnow.config.speculative import SpeculativeConfig
from minnow.core.request import SamplingParams
from minnow.core.step import RowResult, RowStep, StepPlan
from minnow.engine import sampler
from minnow.engine.rows import Drafts, Row, RowTable, send
from minnow.engine.sampler import random_uniform
from minnow.model.dspark import Block, Drafter, DraftFunction, Drawn, Draws
from minnow.model.step import StepInputs

# Uses of random numbers beside the sampler's own. A round has numbers of its own: it is known by its sequence's length,
# which grows with every round. With the last round's numbers a draft would know what was refused.
_PROPOSAL, _ACCEPTANCE, _NUM_USES = 1, 2, 4
_GREEDY = SamplingParams(temperature=0.0)
_CPU = torch.device("cpu")
_Settings = tuple[Tensor, Tensor, Tensor, Tensor]


def _uniform(row: Row, use: int, place: int) -> float:
    return random_uniform(row.seed, len(row.token_ids), use + _NUM_USES * place)


class Speculator:
    """Makes drafts after a step, and judges them in the next one."""

    def __init__(self, network: DraftFunction, drafter: Drafter, config: SpeculativeConfig, *, block_size: int) -> None:
        """Make one for a drafter that is loaded and shares the target's embedding and head.

        Args:
            network: runs the drafter.
            config: resolved.
            block_size: tokens of a cache block.
        """
        self._network, self._drafter, self._config = network, drafter.config, config
        self._kernels = drafter.kernels
        self._target_ids = drafter.vocabulary.target_ids
        self._block_size = block_size
        self._spread = torch.empty(0)
        self._greedy_settings: dict[int, tuple[_Settings, Tensor]] = {}
        self.tap_layers = drafter.config.target_layer_ids

    # -- verify -------------------------------------------------------------------------------------------------

    def verify(self, logits: Tensor, steps: Sequence[tuple[RowStep, Row]]) -> list[RowResult]:
        """Keep drafts so that what comes out has the law that sampling alone would give.

        Args:
            logits: f32 [R V], of each step's last token and of its drafts.
            steps: that have drafts, and their rows.

        Returns:
            One RowResult each; a row whose logits are not finite fails alone.
        """
        drafts = [_drafts_of(row)[: step.num_drafts] for step, row in steps]
        places = [(row, own[:i]) for (_, row), own in zip(steps, drafts, strict=True) for i in range(len(own) + 1)]
        drawable = sampler.adjust(logits, places)
        starts = [0]
        for own in drafts:
            starts.append(starts[-1] + len(own) + 1)
        judged: dict[int, tuple[int, int]] = {}
        for judge in (self._judge_greedy, self._judge_sampled, self._judge_synthetic):
            chosen = [s for s, (_, row) in enumerate(steps) if self._judge_of(row) == judge]
            if chosen:
                own_logits = drawable.logits
                if len(chosen) < len(steps):
                    own_logits = torch.cat([drawable.logits[starts[s] : starts[s + 1]] for s in chosen])
                rows = [steps[s][1] for s in chosen]
                judged |= zip(chosen, judge(own_logits, rows, [drafts[s] for s in chosen]), strict=True)
        results = []
        for s, (step, row) in enumerate(steps):
            num_accepted, last = judged[s]
            errors = (drawable.error(r, last) for r in range(starts[s], starts[s + 1]))
            error = next((words for words in errors if words is not None), None)
            if error is not None:
                results.append(RowResult(row=step.row, error=error))
                continue
            ids = [*drafts[s][:num_accepted], last]
            results.append(sampler.answer(step.row, row, logits, ids, first=starts[s]))
        return results

    def _judge_of(self, row: Row) -> Callable[[Tensor, list[Row], list[list[int]]], list[tuple[int, int]]]:
        if self._config.rejection_sample_method == "synthetic":
            return self._judge_synthetic
        return self._judge_greedy if row.sampling.temperature == 0 else self._judge_sampled

    def _judge_greedy(self, logits: Tensor, rows: list[Row], drafts: list[list[int]]) -> list[tuple[int, int]]:
        """A draft is kept where it is the likeliest token; the first other one is replaced by that."""
        settings, numbers = self._greedy(len(logits), logits.device)
        best = self._kernels.sample(logits, *settings, numbers).tolist()
        judged, first = [], 0
        for own in drafts:
            found = best[first : first + len(own) + 1]
            kept = next((i for i, token in enumerate(own) if token != found[i]), len(own))
            judged.append((kept, found[kept]) if min(found) >= 0 else (0, min(found)))
            first += len(own) + 1
        return judged

    def _greedy(self, num_rows: int, device: torch.device) -> tuple[_Settings, Tensor]:
        """Settings of rows that take the likeliest token, and numbers that nothing is drawn with; made once."""
        if num_rows not in self._greedy_settings:
            params = [_GREEDY] * num_rows
            numbers = torch.zeros(num_rows, dtype=torch.float64, device=device)
            self._greedy_settings[num_rows] = (sampler.settings(params, device), numbers)
        return self._greedy_settings[num_rows]

    def _judge_sampled(self, logits: Tensor, rows: list[Row], drafts: list[list[int]]) -> list[tuple[int, int]]:
        device = logits.device
        params = [row.sampling for row, own in zip(rows, drafts, strict=True) for _ in (*own, 0)]
        p = self._kernels.probabilities(logits, *sampler.settings(params, device))
        numbers = [
            _uniform(row, _ACCEPTANCE, i) for row, own in zip(rows, drafts, strict=True) for i in range(len(own) + 1)
        ]
        starts = [0]
        for own in drafts:
            starts.append(starts[-1] + len(own) + 1)
        num_accepted, last = self._kernels.verify(
            p,
            self._proposals(rows, drafts, p.shape[1]),
            send([token for own in drafts for token in own], torch.int64, device),
            send(starts, torch.int64, device),
            send(numbers, torch.float64, device),
            self._config.rejection_sample_method,
        )
        return list(zip(num_accepted.tolist(), last.tolist(), strict=True))

    def _judge_synthetic(self, logits: Tensor, rows: list[Row], drafts: list[list[int]]) -> list[tuple[int, int]]:
        """Drafts are kept whatever they are, as many as was asked for; of least variance, as in vLLM."""
        wanted = self._config.synthetic_acceptance_length - 1
        kept = [
            next((i for i in range(len(own)) if _uniform(row, _ACCEPTANCE, i) >= wanted - i), len(own))
            for row, own in zip(rows, drafts, strict=True)
        ]
        starts = [sum(len(own) + 1 for own in drafts[:s]) for s in range(len(drafts))]
        last = self._kernels.sample(
            logits[[start + num for start, num in zip(starts, kept, strict=True)]],
            *sampler.settings([row.sampling for row in rows], logits.device),
            send([_uniform(row, _ACCEPTANCE, len(own)) for row, own in zip(rows, drafts, strict=True)], torch.float64),
        )
        return list(zip(kept, last.tolist(), strict=True))

    def _proposals(self, rows: list[Row], drafts: list[list[int]], num_tokens: int) -> Tensor | None:
        """f32 [D V], what each draft was drawn from, over the target's vocabulary."""
        own = [
            row.drafts.q[: len(ids)]
            for row, ids in zip(rows, drafts, strict=True)
            if row.drafts and row.drafts.q is not None
        ]
        if not own:
            return None
        q = own[0] if len(own) == 1 else torch.cat(own)
        ids = self._target_ids
        if ids is None:
            return q
        if len(q) > len(self._spread):
            self._spread = q.new_zeros(len(q), num_tokens)  # what no draft can be stays zero
        return self._spread[: len(q)].index_copy_(1, ids, q)

    # -- draft --------------------------------------------------------------------------------------------------

    def advance(
        self, plan: StepPlan, inputs: StepInputs, taps: Sequence[Tensor], results: Sequence[RowResult], table: RowTable
    ) -> tuple[RowResult, ...]:
        """Remember what the step computed and kept, and make the next drafts of the rows that drew a token.

        Args:
            inputs, taps: of the step.
            results: of its rows, which `table` has been told of.

        Returns:
            The same results with the number of drafts that were made.
        """
        self._remember(plan, inputs, taps, results)
        wanting = []
        for step, result in zip(plan.rows, results, strict=True):
            row = table.rows[step.row]
            row.drafts = None
            has_ended = not result.token_ids or not set(row.stop_token_ids).isdisjoint(result.token_ids)
            if step.num_lookahead_slots and not has_ended:
                wanting.append((step.row, row, step.num_lookahead_slots))
        made = self._draft(wanting) if wanting else {}
        return tuple(
            replace(r, num_drafts=made[r.row][0], confidences=made[r.row][1]) if r.row in made else r for r in results
        )

    def _remember(
        self, plan: StepPlan, inputs: StepInputs, taps: Sequence[Tensor], results: Sequence[RowResult]
    ) -> None:
        """Write the context's keys and values; a refused draft leaves none."""
        slots = inputs.slots
        if any(step.num_drafts for step in plan.rows):
            kept, first = slots.tolist(), 0
            for step, result in zip(plan.rows, results, strict=True):
                if step.num_drafts:
                    num_refused = step.num_tokens - len(result.token_ids)
                    kept[first + len(result.token_ids) : first + step.num_tokens] = [-1] * num_refused
                first += step.num_tokens
            slots = send(kept, torch.int64, slots.device)
        self._network.remember(taps, inputs.positions, slots)

    def _draft(self, wanting: list[tuple[int, Row, int]]) -> dict[int, tuple[int, tuple[float, ...]]]:
        """Draft for some rows; of each, how many drafts it got and how likely each is kept."""
        wanting.sort(key=lambda entry: -entry[2])  # those that draft longest come first, so that the others drop off
        rows, counts = [row for _, row, _ in wanting], [count for _, _, count in wanting]
        is_drawn = [self._is_drawn(row) for row in rows]
        numbers = [
            _uniform(row, _PROPOSAL, k) if drawn else 0.0
            for k in range(counts[0])
            for row, drawn in zip(rows, is_drawn, strict=True)
        ]
        settings, _ = self._greedy(len(rows), _CPU)
        if any(is_drawn):
            params = [row.sampling if drawn else _GREEDY for row, drawn in zip(rows, is_drawn, strict=True)]
            settings = sampler.settings(params, _CPU, self._drafter.draft_vocab_size)
        draws = Draws(
            counts=send(counts, torch.int64),
            anchors=send([row.token_ids[-1] for row in rows], torch.int32),
            settings=settings,
            uniform=send(numbers, torch.float64).view(counts[0], len(rows)),
            is_judged=self._config.enable_adaptive_verification,
        )
        drawn = self._network.draft(self._block(wanting), draws)
        ids = drawn.ids.tolist()
        for s, (row, count) in enumerate(zip(rows, counts, strict=True)):
            q = drawn.q[:count, s] if drawn.q is not None and is_drawn[s] else None
            row.drafts = Drafts([ids[k][s] for k in range(count)], q)
        likely = self._confidences(drawn)
        return {
            number: (count, tuple(likely[s][:count]) if likely else ()) for s, (number, _, count) in enumerate(wanting)
        }

    def _confidences(self, drawn: Drawn) -> list[list[float]]:
        """By sequence, how likely each draft is kept if those before it are; empty where nobody asks."""
        if drawn.confidence is None:
            return []
        warmth = torch.tensor(self._drafter.confidence_temperatures or [1.0] * self._drafter.block_size)
        likely: list[list[float]] = torch.sigmoid(drawn.confidence / warmth[: len(drawn.confidence), None]).T.tolist()
        return likely

    def _is_drawn(self, row: Row) -> bool:
        """Whether a row's drafts are drawn, and not the likeliest."""
        return self._config.draft_sample_method == "probabilistic" and row.sampling.temperature > 0

    def _block(self, wanting: list[tuple[int, Row, int]]) -> Block:
        """The blocks of a round; put together as plain numbers, which takes less time than many small tensors do."""
        config, size = self._drafter, self._block_size
        longest = max(len(row.token_ids) - 1 + count for _, row, count in wanting)
        num_blocks = -(-longest // size)
        tables: list[int] = []
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        query_start = [0]
        last_keys: list[int] = []
        for _, row, count in wanting:
            blocks = row.block_ids[:num_blocks]
            tables += blocks + [0] * (num_blocks - len(blocks))
            places = range(len(row.token_ids) - 1, len(row.token_ids) - 1 + count)
            ids += [row.token_ids[-1], *[config.mask_token_id] * (count - 1)]
            positions += places
            slots += [blocks[place // size] * size + place % size for place in places]
            query_start.append(len(ids))
            last_keys += [places[-1]] * count
        window = config.window or longest
        return Block(
            ids=send(ids, torch.int32),
            positions=send(positions, torch.int32),
            slots=send(slots, torch.int64),
            query_start=send(query_start, torch.int32),
            block_table=send(tables, torch.int32).view(len(wanting), num_blocks),
            last_keys=send(last_keys, torch.int32),
            first_keys=send([max(place - window + 1, 0) for place in positions], torch.int32),
        )


def _drafts_of(row: Row) -> list[int]:
    assert row.drafts is not None, "a step verifies drafts of a row that has none"
    return row.drafts.ids
