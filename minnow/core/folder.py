"""find the members of a folder (the whole plugin mechanism)"""

import importlib
import pkgutil
from types import ModuleType


def names(package: str) -> list[str]:
    """Names of the modules and packages directly inside a package, sorted; private ones left out."""
    root = importlib.import_module(package)
    return sorted(m.name for m in pkgutil.iter_modules(root.__path__) if not m.name.startswith("_"))


def load(package: str, name: str) -> ModuleType:
    """Import one member of a package."""
    return importlib.import_module(f"{package}.{name}")


def members(package: str) -> dict[str, ModuleType]:
    """Import every member of a package, by name."""
    return {name: load(package, name) for name in names(package)}
