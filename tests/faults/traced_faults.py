"""The fault tests with real Spark, and each of their jobs compared with the specification.

    sh tools/with_spark.sh .venv/bin/python tests/faults/traced_faults.py [what pytest is to run, and its options]

Drivers and workers write what they do into files, a file for each process, also those that are killed (tests/traces.py). Then
TLC says of each job whether it was a behaviour of spec/Layers.tla. The last line is JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from observed import jobs_of, read_folder  # noqa: E402
from traces import assembled, explained, refused  # noqa: E402


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="tidegate-traces-") as folder:
        environment = {**os.environ, "TIDEGATE_TRACES": folder, "PYTHONPATH": str(TESTS / "faults" / "traced")}
        tests = subprocess.run(
            # The observer has imported what pytest would have rewritten.
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-W",
                "ignore::pytest.PytestAssertRewriteWarning",
                *(arguments or [str(TESTS / "faults"), "-m", "not slow"]),
            ],
            env=environment,
            check=False,
        )
        jobs = {job: assembled(events) for job, events in jobs_of(read_folder(folder)).items() if job}
        if keep := os.environ.get("TIDEGATE_KEEP_TRACES"):
            os.rename(folder, keep)
            os.mkdir(folder)
    names, runs = list(jobs), list(jobs.values())
    invalid = refused(runs)
    for place in invalid:
        print(f"{names[place]}: {explained(runs[place])}", flush=True)
    told = {"jobs": len(runs), "events": sum(map(len, runs)), "invalid": [names[place] for place in invalid]}
    print(json.dumps({**told, "tests": "passed" if tests.returncode == 0 else f"ended with {tests.returncode}"}))
    return 1 if invalid or tests.returncode else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
