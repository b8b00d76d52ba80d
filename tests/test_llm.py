"""prompts in, texts out"""

from pathlib import Path

import pytest

from minnow.core.errors import ConfigError, RequestError
from minnow.core.request import Request, SamplingParams
from minnow.core.step import TokenLogprobs, TokenOutput
from minnow.engine import build
from minnow.llm import LLM
from tests.tiny import EOS_TOKEN_ID, write_tiny, write_tiny_tokenizer


class Scripted:
    """An engine that says what it is told, so many tokens a step.

    Args:
        script: the answer to every prompt, as bytes; then the end-of-sequence token.
    """

    def __init__(self, script: bytes, tokens_per_step: int = 1) -> None:
        self.aborted: list[str] = []
        self.requests: list[Request] = []
        self._script = [*script, EOS_TOKEN_ID]
        self._tokens_per_step = tokens_per_step
        self._done: dict[str, int] = {}

    def add(self, request: Request) -> None:
        if not request.token_ids:
            raise RequestError("the prompt is empty; send at least one token", param="prompt")
        self.requests.append(request)
        self._done[request.request_id] = 0

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        self._done.pop(request_id)

    def step(self) -> list[TokenOutput]:
        outputs = []
        for request in self.requests:
            if request.request_id not in self._done:
                continue
            start = self._done[request.request_id]
            limit = min(len(self._script), request.sampling.max_tokens or 10**9)
            ids = tuple(self._script[start : min(start + self._tokens_per_step, limit)])
            self._done[request.request_id] += len(ids)
            is_stop = ids[-1:] == (EOS_TOKEN_ID,)
            is_end = self._done[request.request_id] >= limit
            outputs.append(
                TokenOutput(
                    request_id=request.request_id,
                    token_ids=ids,
                    logprobs=tuple(TokenLogprobs(logprob=-float(i), rank=1) for i in ids),
                    finish_reason="stop" if is_stop else "length" if is_end else None,
                    stop_token_id=EOS_TOKEN_ID if is_stop else None,
                    num_cached_tokens=3,
                )
            )
            if is_end:
                del self._done[request.request_id]
        return outputs


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    write_tiny_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text("{}")  # a model directory has one; the scripted engine reads none
    return tmp_path


def _scripted(monkeypatch: pytest.MonkeyPatch, directory: Path, script: bytes, tokens_per_step: int = 1) -> LLM:
    monkeypatch.setattr(build, "build", lambda config, directory, record: Scripted(script, tokens_per_step))
    return LLM(str(directory))


def test_text_ids_and_reason(monkeypatch: pytest.MonkeyPatch, tokens: Path) -> None:
    llm = _scripted(monkeypatch, tokens, "Gr\u00fc\u00dfe".encode())
    (output,) = llm.generate("Hi")
    assert (output.prompt, output.prompt_token_ids, output.num_cached_tokens) == ("Hi", (72, 105), 3)
    (completion,) = output.outputs
    assert completion.text == "Gr\u00fc\u00dfe"
    assert completion.token_ids == (*"Gr\u00fc\u00dfe".encode(), EOS_TOKEN_ID)
    assert (completion.finish_reason, completion.stop_reason, completion.logprobs) == ("stop", None, None)


def test_length_and_logprobs(monkeypatch: pytest.MonkeyPatch, tokens: Path) -> None:
    llm = _scripted(monkeypatch, tokens, b"abcdef", tokens_per_step=2)
    (output,) = llm.generate([[1, 2]], SamplingParams(max_tokens=3, logprobs=0))
    assert output.prompt is None
    completion = output.outputs[0]
    assert (completion.text, completion.finish_reason) == ("abc", "length")
    assert completion.logprobs is not None
    assert [entry.logprob for entry in completion.logprobs] == [-97.0, -98.0, -99.0]


@pytest.mark.parametrize("tokens_per_step", [1, 2, 3, 8, 16])
@pytest.mark.parametrize("is_included", [False, True])
def test_stop_string_at_any_split(
    monkeypatch: pytest.MonkeyPatch, tokens: Path, tokens_per_step: int, is_included: bool
) -> None:
    llm = _scripted(monkeypatch, tokens, b"ABC DEF GHI JKL", tokens_per_step)
    (output,) = llm.generate("x", stop=["DEF GHI"], include_stop_str_in_output=is_included)
    completion = output.outputs[0]
    assert completion.text == ("ABC DEF GHI" if is_included else "ABC ")
    assert (completion.finish_reason, completion.stop_reason) == ("stop", "DEF GHI")
    assert bytes(completion.token_ids) == b"ABC DEF GHI"
    assert isinstance(llm.engine, Scripted)
    assert llm.engine.aborted == ([] if tokens_per_step >= 8 else ["llm-0"])  # else it ended by itself in that step


def test_stream_is_the_text_in_pieces_and_never_a_part_of_the_stop(
    monkeypatch: pytest.MonkeyPatch, tokens: Path
) -> None:
    llm = _scripted(monkeypatch, tokens, b"say </end> more")
    pieces = list(llm.stream("x", stop=["</end>"]))
    assert "".join(piece.text for piece in pieces) == "say "
    assert [piece.output is not None for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def test_what_was_held_back_comes_at_the_end(monkeypatch: pytest.MonkeyPatch, tokens: Path) -> None:
    llm = _scripted(monkeypatch, tokens, b"say </en")
    assert llm.generate("x", stop=["</end>"])[0].outputs[0].text == "say </en"


def test_an_asked_for_stop_token_is_named(monkeypatch: pytest.MonkeyPatch, tokens: Path) -> None:
    llm = _scripted(monkeypatch, tokens, b"a")
    (output,) = llm.generate("x", SamplingParams(stop_token_ids=(EOS_TOKEN_ID,)))
    assert output.outputs[0].stop_reason == EOS_TOKEN_ID


def test_leaving_the_stream_aborts_the_rest(monkeypatch: pytest.MonkeyPatch, tokens: Path) -> None:
    llm = _scripted(monkeypatch, tokens, b"abc")
    stream = llm.stream(["x", "y"])
    next(stream)
    stream.close()
    assert isinstance(llm.engine, Scripted)
    assert llm.engine.aborted == ["llm-0", "llm-1"]


def test_open_streams_share_the_steps_and_lose_nothing(monkeypatch: pytest.MonkeyPatch, tokens: Path) -> None:
    llm = _scripted(monkeypatch, tokens, b"abcdef")
    first, second = llm.stream(["x", "y"]), llm.stream("z", stop=["d"])
    texts = {"x": "", "y": "", "z": ""}
    while True:
        pieces = [(stream, next(stream, None)) for stream in (first, second)]
        for stream, piece in pieces:
            if piece is not None:
                texts["z" if stream is second else "xy"[piece.index]] += piece.text
        if all(piece is None for _, piece in pieces):
            break
    assert texts == {"x": "abcdef", "y": "abcdef", "z": "abc"}
    assert isinstance(llm.engine, Scripted)
    assert llm.engine.aborted == ["llm-2"]


def test_generate_while_a_stream_is_open(monkeypatch: pytest.MonkeyPatch, tokens: Path) -> None:
    llm = _scripted(monkeypatch, tokens, b"abcdef")
    stream = llm.stream("x")
    begin = next(stream).text
    assert llm.generate("y")[0].outputs[0].text == "abcdef"
    pieces = list(stream)
    assert begin + "".join(piece.text for piece in pieces) == "abcdef"
    assert pieces[-1].output is not None
    assert pieces[-1].output.outputs[0].text == "abcdef"


def test_a_stream_that_was_left_does_not_disturb_another(monkeypatch: pytest.MonkeyPatch, tokens: Path) -> None:
    llm = _scripted(monkeypatch, tokens, b"abcdef")
    left, kept = llm.stream("x"), llm.stream("y")
    next(left), next(kept)
    left.close()
    assert [piece.text for piece in kept] == [*"bcdef", ""]


def test_no_stop_string_counts_before_min_tokens(monkeypatch: pytest.MonkeyPatch, tokens: Path) -> None:
    llm = _scripted(monkeypatch, tokens, b"a.b.c.d.e.")
    completion = llm.generate("x", SamplingParams(min_tokens=5), stop=["."])[0].outputs[0]
    assert (completion.text, completion.stop_reason) == ("a.b.c", ".")


def test_ids_beyond_the_tokenizer_are_silent(monkeypatch: pytest.MonkeyPatch, tokens: Path) -> None:
    llm = _scripted(monkeypatch, tokens, b"ab")
    assert isinstance(llm.engine, Scripted)
    llm.engine._script[1:1] = [300, 299]
    completion = llm.generate([[120, 300]])[0].outputs[0]
    assert completion.text == "ab"
    assert completion.token_ids == (97, 300, 299, 98, EOS_TOKEN_ID)


def test_a_bad_prompt_stops_all_before_any_work(monkeypatch: pytest.MonkeyPatch, tokens: Path) -> None:
    llm = _scripted(monkeypatch, tokens, b"abc")
    with pytest.raises(RequestError, match="empty"):
        llm.generate([[1], []])
    assert isinstance(llm.engine, Scripted)
    assert llm.engine.aborted == ["llm-0"]
    with pytest.raises(RequestError, match="2 entries for 1 prompts"):
        llm.generate("x", [SamplingParams(), SamplingParams()])


def test_chat_renders_the_template(monkeypatch: pytest.MonkeyPatch, tokens: Path) -> None:
    llm = _scripted(monkeypatch, tokens, b"Paris")
    output = llm.chat([{"role": "user", "content": "Where?"}])
    assert output.outputs[0].text == "Paris"
    rendered = llm.tokenizer.decode(output.prompt_token_ids, skip_special_tokens=False)
    assert rendered == "<|im_start|>user\nWhere?<|im_end|>\n<|im_start|>assistant\n"


def test_control_tokens_that_a_user_types_are_text(monkeypatch: pytest.MonkeyPatch, tokens: Path) -> None:
    llm = _scripted(monkeypatch, tokens, b"Paris")
    output = llm.chat([{"role": "user", "content": "<|im_end|>"}])
    assert list(output.prompt_token_ids).count(EOS_TOKEN_ID) == 1
    rendered = llm.tokenizer.decode(output.prompt_token_ids, skip_special_tokens=False)
    assert rendered == "<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n"


def test_wrong_model_or_setting_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no-such-model does not exist"):
        LLM("no-such-model")
    with pytest.raises(ConfigError, match=r"did you mean max_num_seqs\?"):
        LLM(str(tmp_path), max_seqs=3)


def test_a_real_engine_gives_the_same_text_alone_and_together(tmp_path: Path) -> None:
    write_tiny(tmp_path, vocab_size=261)
    write_tiny_tokenizer(tmp_path)
    llm = LLM(str(tmp_path), kv_cache_memory_bytes="4MiB", max_model_len=128, num_threads=1)
    greedy = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    prompts = ["Once upon", "a time", "there was"]
    together = llm.generate(prompts, greedy)
    assert [output.prompt for output in together] == prompts
    assert all(len(output.outputs[0].token_ids) == 8 for output in together)
    for prompt, output in zip(prompts, together, strict=True):
        assert llm.generate(prompt, greedy)[0].outputs[0].token_ids == output.outputs[0].token_ids
    with pytest.raises(RequestError, match="128"):
        llm.generate("x" * 200, greedy)
    assert llm.engine.is_idle


def test_log_probabilities_of_prompts(tmp_path: Path) -> None:
    """Those of a prompt are those that its tokens had when they were drawn."""
    write_tiny(tmp_path, vocab_size=261, dtype="float32")
    write_tiny_tokenizer(tmp_path)
    llm = LLM(str(tmp_path), kv_cache_memory_bytes="4MiB", max_model_len=128, num_threads=1, kv_cache_dtype="float32")
    drawing = SamplingParams(temperature=0.7, seed=1, max_tokens=20, ignore_eos=True, logprobs=2)
    (drawn,) = llm.generate("Once upon", drawing)
    assert drawn.prompt_logprobs is None
    ids = [*drawn.prompt_token_ids, *drawn.outputs[0].token_ids]
    scored, single = llm.generate([ids, ids[:1]], SamplingParams(max_tokens=0, prompt_logprobs=2))
    assert (scored.outputs[0].token_ids, scored.outputs[0].finish_reason) == ((), "length")
    assert single.prompt_logprobs == (None,)
    assert scored.prompt_logprobs is not None and scored.prompt_logprobs[0] is None
    assert len(scored.prompt_logprobs) == len(ids)
    expected = drawn.outputs[0].logprobs
    assert expected is not None and len(expected) == 20
    for found, then in zip(scored.prompt_logprobs[-20:], expected, strict=True):
        assert found is not None and found.rank == then.rank
        assert found.logprob == pytest.approx(then.logprob, abs=1e-4)
        assert dict(found.top) == pytest.approx(dict(then.top), abs=1e-4)
