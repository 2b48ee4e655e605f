"""Why the executors' Python cannot run the job, in words: from what Spark says when a task of it fails. Driver; pure.

Nothing of ours runs there in these cases, so Spark's own message is all there is. Each is final: a restart would find the
same Python.
"""

from __future__ import annotations

import re

#: What Tidegate itself imports there. The daemon looks for all of it, so that what lacks is said at once.
NEEDED = (
    "pyarrow", "numpy", "pandas", "msgspec", "obstore", "xxhash", "cryptography", "cloudpickle", "typing_extensions", "rich",
)  # fmt: skip
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'(?: \(nor ((?:'\w+',? ?)+)\))?")
_NO_NAME = re.compile(r"ImportError: (.+)")
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"')
_OTHER_VERSION = re.compile(r"PYTHON_VERSION_MISMATCH\]\s*(.+)")

WAYS = (
    "Ship an environment that has it (tidegate run --archives env.tar.gz#env --python ./env/bin/python), or install it where "
    "the executors run; docs/clusters.md tells both"
)


def explain(message: str) -> str | None:
    """None: the failure has another reason."""
    if found := _OTHER_VERSION.search(message):
        return f"the executors have another version of Python than the driver: {found[1].strip()} {WAYS}."
    if (found := _NO_MODULE.search(message)) and found[1].partition(".")[0] == "tidegate":
        return (
            "the executors' Python has no tidegate. `tidegate run` and sessions that StreamEnvironment makes ship it; with a "
            "session of your own, install it where the executors run; docs/clusters.md tells more."
        )
    if found := _NO_MODULE.search(message):
        names = sorted([found[1], *re.findall(r"\w+", found[2] or "")])
        which = f"modules {', '.join(map(repr, names))}" if len(names) > 1 else f"module {found[1]!r}"
        return f"the executors' Python has no {which}{_whose(found[1])}. {WAYS}."
    if found := _NO_PYTHON.search(message):
        return (
            f"the executors have no Python {found[1]!r}. Name one that they have (tidegate run --python), or ship one "
            "(--archives); docs/clusters.md tells how."
        )
    if "ImportError" in message and (found := _NO_NAME.search(message)):
        return f"the executors' Python cannot load what the job needs: {found[1].strip()}. {WAYS}."
    return None


def no_module(name: str, lacking: list[str]) -> str:
    """What an import of `name` says where others lack as well; read again by `explain`."""
    others = ", ".join(repr(other) for other in lacking if other != name)
    return f"No module named {name!r}" + (f" (nor {others})" if others else "")


def _whose(module: str) -> str:
    """Our own dependencies are said to be ours."""
    return ", which Tidegate needs there" if module.partition(".")[0] in NEEDED else ""
