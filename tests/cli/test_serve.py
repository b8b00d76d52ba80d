"""minnow serve: what it refuses before work is lost, and a whole life as a process"""

import contextlib
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import openai
import pytest

from minnow.cli.main import main
from minnow.server import listen
from tests import tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    tiny.write_tiny(directory, family="llama")
    tiny.write_tiny_tokenizer(directory)
    return directory


def test_a_model_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve"]) == 2
    assert capsys.readouterr().err == "minnow: minnow serve needs a model: minnow serve MODEL\n"


def test_an_empty_key_does_not_open_the_server(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "bind", lambda host, port: pytest.fail("it would listen"))
    rest = "the API key is empty; give one, or leave it out to let everyone in\n"
    assert main(["serve", str(model), "--api-key", ""]) == 2
    assert capsys.readouterr().err == f"minnow: flag --api-key: {rest}"
    monkeypatch.setenv("MINNOW_API_KEY", "")
    assert main(["serve", str(model)]) == 2
    assert capsys.readouterr().err == f"minnow: environment MINNOW_API_KEY: {rest}"


def test_metrics_of_several_processes_are_refused(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(listen, "bind", lambda host, port: pytest.fail("it would listen"))
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    assert main(["serve", str(model)]) == 2
    assert "PROMETHEUS_MULTIPROC_DIR is set" in capsys.readouterr().err


def test_a_busy_port_is_said_before_the_model_is_loaded(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(listen.bind("127.0.0.1", 0)) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", str(model), "--port", str(port)]) == 2
        words = f"port {port} on 127.0.0.1 cannot be taken (Address already in use); choose another --port"
        assert capsys.readouterr().err == f"minnow: {words}\n"


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_from_start_to_signal(model: Path, number: signal.Signals) -> None:
    words = ["import sys; from minnow.cli.main import main; sys.exit(main())"]
    flags = ["--port", "0", "--served-model-name", "tiny", "--num-threads", "1", "--num-gpu-blocks-override", "20"]
    process = subprocess.Popen(
        [sys.executable, "-c", *words, "serve", str(model), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(
            r"minnow [\d.]+ serves tiny on (http://127\.0\.0\.1:\d+) \(context [\d,]+ tokens, cache \w+\)\n", line
        )
        assert found is not None, (line, process.communicate(timeout=20)[1] if not line else "")
        assert httpx.get(f"{found[1]}/health").json()["status"] == "ok"
        client = openai.OpenAI(base_url=f"{found[1]}/v1", api_key="none", max_retries=0)
        whole = client.completions.create(model="tiny", prompt=[1, 2, 3], max_tokens=6, temperature=0)
        stream = client.completions.create(model="tiny", prompt=[1, 2, 3], max_tokens=6, temperature=0, stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text
        assert whole.usage is not None and whole.usage.completion_tokens <= 6
        process.send_signal(number)
        rest, errors = process.communicate(timeout=20)
        assert (process.returncode, rest) == (0, ""), errors
        assert "Traceback" not in errors
    finally:
        process.kill()
        process.communicate()
