"""finds the chromium that the browser tests drive, or installs Debian's where that is possible

    python -m tools.browser

prints what `make test` adds to pytest's marks: nothing, or what leaves these tests out.
"""

import os
import shutil
import subprocess
import sys

_NAMES = ("chromium", "chromium-browser", "google-chrome")


def find() -> str | None:
    """Path of a browser."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


def install() -> str | None:
    """Install Debian's package, which takes root's rights.

    Returns:
        Why it could not be done; None when it was.
    """
    if shutil.which("apt-get") is None:
        return "there is no apt-get here"
    as_root = [] if os.geteuid() == 0 else ["sudo", "--non-interactive"]
    if as_root and shutil.which("sudo") is None:
        return "installing it takes root's rights"
    for words in (["update"], ["install", "--yes", "--no-install-recommends", "chromium"]):
        command = [*as_root, "apt-get", *words]
        if subprocess.run(command, stdout=sys.stderr, stdin=subprocess.DEVNULL, check=False).returncode != 0:
            return f"`{' '.join(command)}` failed"
    return None


def main() -> int:
    """Print what is to be added to the marks; on stderr, why tests are left out."""
    if find() is None and (reason := install()) is not None:
        print(f"no chromium, and {reason}: the browser tests are left out", file=sys.stderr)
        print(" and not browser")
    return 0


if __name__ == "__main__":
    sys.exit(main())
