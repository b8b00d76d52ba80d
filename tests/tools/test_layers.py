import configparser
import subprocess
import sys

from tools import house


def _contract(name: str) -> list[str]:
    config = configparser.ConfigParser()
    config.read(house.ROOT / ".importlinter")
    return config[f"importlinter:contract:{name}"]["source_modules"].split()


def _import_alone(modules: list[str]) -> str:
    """Import modules in a fresh interpreter; returns which of the heavy packages came along."""
    code = (
        f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
        "print([n for n in ('torch', 'transformers', 'triton') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=house.ROOT)
    return done.stdout.strip()


def test_what_the_contract_names_loads_no_torch():
    modules = _contract("no-torch")
    assert {"minnow.core", "minnow.server", "minnow.engine.scheduler"} <= set(modules)
    assert _import_alone(["minnow", *modules]) == "[]"


def test_the_server_loads_no_torch():
    assert _import_alone(["minnow.server.app"]) == "[]"


def test_contracts_of_operations_load_no_torch():
    operations = sorted(path.parent.name for path in (house.ROOT / "minnow" / "kernels").glob("*/__init__.py"))
    assert len(operations) > 10
    assert _import_alone([f"minnow.kernels.{name}" for name in ["contract", *operations]]) == "[]"
