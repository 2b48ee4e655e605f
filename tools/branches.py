"""Branch coverage of the protocol and of the job's log by the tests that drive them directly. Less than all is a failure.

    python tools/branches.py

Only tests that put events in and look at what comes out count: a line that some job happens to run through is not tested by
that. A branch that nothing can reach is deleted, or is an assertion (`assert_never`, which is left out of the count).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
MEASURED = ("src/tidegate/protocol/*", "src/tidegate/storage/log.py")
TESTS = (
    "tests/protocol/test_checkpointing.py",
    "tests/protocol/test_stopping.py",
    "tests/protocol/test_slot_machine.py",
    "tests/protocol/test_job_machine.py",
    "tests/protocol/test_restarts.py",
    "tests/protocol/test_credit.py",
    "tests/protocol/test_owned_state.py",
    "tests/protocol/test_pausing.py",
    "tests/protocol/test_redistribution.py",
    "tests/protocol/test_repeated_mistakes.py",
    "tests/protocol/test_shared_state.py",
    "tests/protocol/test_watermarks.py",
    "tests/protocol/test_alignment.py",
    "tests/protocol/test_autoscaling.py",
    "tests/protocol/test_leaving.py",
    "tests/unit/test_answer_queue.py",
    "tests/unit/test_local_copies.py",
    "tests/unit/test_storage_log.py",
    "tests/unit/test_storage_short_log.py",
    "tests/unit/test_permits.py",
)
#: What these reach by chance or by whole jobs, scripts of events reach too. They run with all other tests, unmeasured.
LEFT_OUT = (
    "in_any_order_of_events",
    "in_any_interleaving",
    "kept_for_whoever_looks",
    "nothing_is_lost_nothing_is_doubled",
    "follows_the_target",
    "only_the_log_makes_a_permit",
    "does_not_grow_with",
    "fast_source_waits",
    "stay_together_over_a_failure",
    "on_random_loads",
)
CONFIGURATION = """\
[run]
branch = true
[report]
exclude_also =
    if TYPE_CHECKING:
    case _:\\s+assert_never
"""


def main() -> int:
    return measure(ROOT, MEASURED, TESTS, LEFT_OUT)


def measure(root: Path, measured: Sequence[str], tests: Sequence[str], left_out: Sequence[str] = ()) -> int:
    """Run the tests and say what they leave open; not 0 when a test fails, or anything is left open."""
    with tempfile.TemporaryDirectory(prefix="tidegate-branches-") as folder:
        configuration = Path(folder, "coveragerc")
        configuration.write_text(CONFIGURATION)
        environment = {**os.environ, "COVERAGE_FILE": str(Path(folder, "data"))}
        coverage = [sys.executable, "-m", "coverage"]
        own = [f"--rcfile={configuration}", f"--include={','.join(str(root / each) for each in measured)}"]
        pytest = ["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
        pytest += ["-k", f"not ({' or '.join(left_out)})"] if left_out else []
        tested = subprocess.run([*coverage, "run", *own, *pytest], cwd=root, env=environment)
        if tested.returncode:
            return tested.returncode
        report = [*coverage, "report", *own, "--show-missing", "--skip-covered", "--fail-under=100", "--precision=2"]
        return subprocess.run(report, cwd=root, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
