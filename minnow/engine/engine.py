"""Engine: the plain step(); in-process use and tests"""

from minnow.config.model import ModelConfig
from minnow.core.errors import RequestError
from minnow.core.request import Request
from minnow.core.step import Control, ControlReply, EngineStats, TokenOutput
from minnow.engine.record import Recorder
from minnow.engine.runner import Runner
from minnow.engine.scheduler import Scheduler


class Engine:
    """A scheduler and a runner. Requests in, tokens out, one step at a time."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        *,
        model: ModelConfig,
        max_model_len: int,
        max_logprobs: int,
        recorder: Recorder | None = None,
    ) -> None:
        self.model = model
        self.max_model_len = max_model_len
        self._max_logprobs = max_logprobs
        self._scheduler = scheduler
        self._runner = runner
        self._recorder = recorder

    @property
    def runner(self) -> Runner:
        """What runs the plans, for a replay of recorded ones."""
        return self._runner

    @property
    def is_idle(self) -> bool:
        """Whether a step would find nothing to do."""
        return self._scheduler.is_idle

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            RequestError: its values are out of range, or it can never fit.
        """
        request.sampling.check(self.model.vocab_size, self._max_logprobs)
        if not request.token_ids:
            raise RequestError("the prompt is empty; send at least one token", param="prompt")
        for token_id in request.token_ids:
            if not 0 <= token_id < self.model.vocab_size:
                raise RequestError(
                    f"the prompt holds token id {token_id}; ids are 0 to {self.model.vocab_size - 1}", param="prompt"
                )
        for field, value in (("media", request.media), ("adapter", request.adapter)):
            if value:
                raise RequestError(f"{field} is set, but this engine serves text without adapters", param=field)
        self._scheduler.add(request)

    def abort(self, request_id: str) -> TokenOutput | None:
        """End a request now and free what it holds; None when it is not here (any more)."""
        return self._scheduler.abort(request_id)

    def step(self) -> list[TokenOutput]:
        """Plan, run and commit one step."""
        plan = self._scheduler.plan()
        if plan is None:
            return []
        result = None
        try:
            result = self._runner.launch(plan).result()
        finally:
            if self._recorder is not None:
                self._recorder.write(plan, result)  # also the plan that failed: it is the one to replay
        return self._scheduler.commit(plan, result)

    def control(self, message: Control) -> ControlReply:
        """Apply a named operation between steps."""
        if message.name == "reset_prefix_cache":
            self._scheduler.reset_prefix_cache()
            return ControlReply(control_id=message.control_id)
        return ControlReply(control_id=message.control_id, error=f"no control is called {message.name!r}")

    def stats(self) -> EngineStats:
        """Gauges and counters."""
        return self._scheduler.stats()

    def check(self) -> None:
        """Assert that every block and row is owned exactly once (tests)."""
        self._scheduler.check()

    def close(self) -> None:
        """End the record, if there is one."""
        if self._recorder is not None:
            self._recorder.close()
