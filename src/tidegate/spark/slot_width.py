"""How much of a core a slot takes: Spark's `spark.task.cpus`, which may be a fraction. Driver; pure.

All layers of a job run at once, and a slot mostly waits for those before and after it. Where the user has not said how wide a
slot is, the slots of one subtask in every layer share a core, so a job needs as many cores as it is parallel, however many
layers it has. Spark counts cores and holds nobody to them: what a slot really takes is for the operating system to share out.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_DOWN, Decimal, InvalidOperation
from math import ceil

from tidegate.errors import SparkSettingsError

TASK_CPUS = "spark.task.cpus"
#: Python's part of what a slot needs beside Spark's own: 60 to 150 MB were measured, without the state that it holds.
SLOT_MEMORY_MB = 256
#: What Spark sets aside for an executor's own needs.
EXECUTOR_OVERHEAD_MB = 384

_STEP = Decimal("0.001")


def narrow(cores: int, slots: int) -> str:
    """As much of a core as lets that many slots run on so many cores; a whole one if there are enough."""
    return _text(min(Decimal(1), Decimal(cores) / slots))


def shared_by(layers: int) -> str:
    """A core for one slot of each layer."""
    return narrow(1, layers)


def slots_of(cores: int, width: str) -> int:
    """
    :raises SparkSettingsError: when the width is not a number above 0.
    """
    return int(cores / parse_width(width))


def parse_width(text: str) -> Decimal:
    """:raises SparkSettingsError:"""
    try:
        width = Decimal(text.strip())
    except InvalidOperation:
        width = Decimal(0)
    if not (width.is_finite() and width > 0):
        raise SparkSettingsError(
            f"{TASK_CPUS} is how many cores a slot takes, a number above 0 such as 0.25 or 1; it is {text!r}"
        )
    return width


def local_width(cores: int, slots: int, given: Mapping[str, str]) -> dict[str, str]:
    """Settings for a master that names a number of cores: `slots` run on them."""
    if TASK_CPUS in given or slots <= cores:
        return {}
    return {TASK_CPUS: narrow(cores, slots)}


def cluster_settings(master: str, slots: int, layers: int, given: Mapping[str, str]) -> dict[str, str]:
    """Settings for the executors of a cluster. YARN and Kubernetes start two executors unless they are told, and end one that
    takes more memory than it asked for."""
    width = given.get(TASK_CPUS) or shared_by(layers)
    settings = {} if TASK_CPUS in given or layers == 1 else {TASK_CPUS: width}
    if not master.startswith(("yarn", "k8s://")):
        return settings
    in_each = max(1, slots_of(int(given.get("spark.executor.cores", "1")), width))
    if "spark.executor.instances" not in given:
        settings["spark.executor.instances"] = str(ceil(slots / in_each))
    if not {"spark.executor.memoryOverhead", "spark.executor.memoryOverheadFactor"} & set(given):
        overhead_mb = EXECUTOR_OVERHEAD_MB + SLOT_MEMORY_MB * min(in_each, slots)
        settings["spark.executor.memoryOverhead"] = f"{overhead_mb}m"
    return settings


def narrower(there: int, needed: int, width: str) -> str:
    """What `spark.task.cpus` would have to be for so many slots on the cores that are there. Empty: there are none."""
    fitting = (there * parse_width(width) / needed).quantize(_STEP, ROUND_DOWN)
    return _text(fitting) if fitting > 0 else ""


def _text(width: Decimal) -> str:
    """Rounded down: a little less of a core is one slot more, and not one too few."""
    return format(max(_STEP, width.quantize(_STEP, ROUND_DOWN)).normalize(), "f")
