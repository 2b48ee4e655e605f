"""`tidegate inspect PATH` and `tidegate check job.py --from PATH`: what a snapshot holds, and whether a program can start from
it. Any machine that can read the storage; no Spark, nothing runs, nothing is unpickled.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.client import JobClient
    from tidegate.config import JobConfig
    from tidegate.coordinator.restore_check import Finding
    from tidegate.graph.plan import JobPlan
    from tidegate.savepoints.reading import Savepoint, StateTable

EXIT_DONE, EXIT_REFUSED, EXIT_WRONG = 0, 1, 2
_CHECK_EPILOG = """\
exit codes:
  0    the program can start from it
  1    it would be refused
  2    the program or the arguments are wrong
"""


def add_savepoint_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    inspect = commands.add_parser(
        "inspect",
        help="what a savepoint or checkpoint holds",
        description="Show what a savepoint or checkpoint holds: operators, states, sizes; with --state, rows.",
    )
    inspect.add_argument("path", metavar="PATH", help="its folder: /path, file:///path, s3://bucket/folder ...")
    inspect.add_argument("--operator", metavar="UID", help="one operator")
    inspect.add_argument("--state", metavar="NAME", help="its rows; with --operator")
    inspect.add_argument("--key", metavar="KEY", help="the rows of one key, as it is shown")
    inspect.add_argument("--largest", type=int, metavar="N", help="the keys whose values take the most space")
    inspect.add_argument("--sql", metavar="QUERY", help='over the tables "<operator>.<state>", sources and prepared')
    inspect.add_argument("--limit", type=int, default=20, metavar="N", help="rows to show (20)")
    inspect.set_defaults(run=run_inspect)
    check = commands.add_parser(
        "check",
        help="can a program start from a savepoint or checkpoint?",
        description="Say what would be restored, converted, moved, dropped, new and refused. Nothing runs.",
        epilog=_CHECK_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument("program", metavar="job.py")
    check.add_argument("--from", dest="path", required=True, metavar="PATH")
    check.add_argument("-p", "--parallelism", type=int, metavar="N")
    check.add_argument("--allow-dropped-state", action="store_true", help="as the setting of the same name")
    check.add_argument("arguments", nargs="*", help="of the program")
    check.set_defaults(run=run_check)


# -- inspect ------------------------------------------------------------------------------------------------------


def run_inspect(options: argparse.Namespace) -> int:
    from tidegate.cli.run import say_error
    from tidegate.errors import TidegateError
    from tidegate.savepoints.reading import Savepoint

    try:
        savepoint = Savepoint.load(options.path)
        if options.sql is not None:
            return _sql(savepoint, options.sql)
        if options.state is not None:
            return _rows(savepoint, options)
        _overview(savepoint, options.operator)
    except TidegateError as error:
        say_error(str(error))
        return EXIT_WRONG
    return EXIT_DONE


def _overview(savepoint: Savepoint, only: str | None) -> None:
    from datetime import UTC, datetime

    metadata = savepoint.metadata
    when = datetime.fromtimestamp(metadata.completed_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    kind = "savepoint" if metadata.savepoint else "checkpoint"
    _say(f"{kind} {metadata.checkpoint} of job {metadata.job!r}, {when}, {_bytes(metadata.size_bytes())}")
    _table(
        ["operator", "uid", "parallelism", "max", "keys"],
        [
            [info.name, info.uid, str(info.parallelism), str(info.max_parallelism), info.key_type or ""]
            for info in savepoint.operators()
            if only in (None, info.uid)
        ],
    )
    _table(
        ["uid", "state", "kind", "type", "rows", "size"],
        [
            [state.uid, state.name, state.kind, state.type, f"{state.rows:,}", _bytes(state.size_bytes)]
            for state in savepoint.states()
            if only in (None, state.uid)
        ],
    )
    sources, prepared = savepoint.sources(), savepoint.prepared()
    if sources.num_rows and only is None:
        _table(
            ["source", "split", "position"], [[r["uid"], r["split"], r["position"]] for r in sources.to_pylist()[:20]]
        )
    if prepared.num_rows:
        _say(
            f"{prepared.num_rows} prepared and not committed by sinks: {', '.join(sorted(set(prepared['uid'].to_pylist())))}"
        )


def _rows(savepoint: Savepoint, options: argparse.Namespace) -> int:
    from tidegate.cli.run import say_error

    if options.operator is None:
        say_error("--state needs --operator: a state's name is its operator's own")
        return EXIT_WRONG
    if options.largest is not None:
        largest = savepoint.largest_keys(options.operator, options.state, options.largest)
        _table(["key", "bytes"], [[str(key), f"{size:,}"] for key, size in largest])
        return EXIT_DONE
    table = _find(savepoint, options.operator, options.state)
    shown: list[dict[str, Any]] = []
    for batch in table.batches():
        for row in batch.to_pylist():
            if options.key is None or str(row.get("key")) == options.key:
                shown.append(row)
        if options.key is None and len(shown) >= options.limit:
            break
    _show_rows(shown[: options.limit])
    return EXIT_DONE


def _find(savepoint: Savepoint, uid: str, name: str) -> StateTable:
    operator_state = [
        s for s in savepoint.states() if (s.uid, s.name) == (uid, name) and s.kind.startswith("operator-")
    ]
    return savepoint.operator_state(uid, name) if operator_state else savepoint.keyed_state(uid, name)


def _sql(savepoint: Savepoint, query: str) -> int:
    from tidegate.cli.run import say_error

    try:
        import duckdb
    except ImportError:
        say_error("--sql needs DuckDB: pip install 'tidegate[sql]'")
        return EXIT_WRONG
    connection = duckdb.connect()
    for state in savepoint.states():
        if state.kind != "in-flight":
            connection.register(f"{state.uid}.{state.name}", _find(savepoint, state.uid, state.name).to_arrow())
    connection.register("sources", savepoint.sources())
    connection.register("prepared", savepoint.prepared())
    try:
        found = connection.sql(query)
    except duckdb.Error as error:
        tables = ", ".join(f'"{state.uid}.{state.name}"' for state in savepoint.states())
        say_error(f"{error}\nThe tables are {tables}, sources and prepared.")
        return EXIT_WRONG
    if found is not None:
        _table(found.columns, [[str(cell) for cell in row] for row in found.fetchall()])
    return EXIT_DONE


# -- check --------------------------------------------------------------------------------------------------------


class _Checked(BaseException):
    """The program has come to its execute(); it goes no further."""


class _Checker:
    """Implements Onlooker: stops each job where it would start."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.findings: list[Finding] | None = None

    def launching(self, draft: JobPlan, config: JobConfig) -> None:
        from tidegate.coordinator.restore_check import check_restore
        from tidegate.savepoints.reading import Savepoint

        savepoint = Savepoint.load(self._options.path)
        allowed = self._options.allow_dropped_state or config.allow_dropped_state
        self.findings = check_restore(draft, savepoint.metadata, allowed)
        raise _Checked

    def launched(self, client: JobClient, plan: JobPlan) -> None: ...


def run_check(options: argparse.Namespace) -> int:
    import os
    from dataclasses import replace

    from tidegate.api.overrides import overriding, watched_by
    from tidegate.cli.failures import format_program_error
    from tidegate.cli.run import say_error
    from tidegate.errors import TidegateError

    script = os.path.abspath(options.program)
    if not os.path.isfile(script):
        say_error(f"there is no program {options.program}")
        return EXIT_WRONG
    checker = _Checker(options)
    sys.argv = [options.program, *options.arguments]
    sys.path.insert(0, os.path.dirname(script))

    def at_parallelism(config: JobConfig) -> JobConfig:
        return config if options.parallelism is None else replace(config, parallelism=options.parallelism)

    try:
        with overriding(at_parallelism), watched_by(checker):
            runpy.run_path(script, run_name="__main__")
    except _Checked:
        pass
    except TidegateError as error:
        say_error(str(error))
        return EXIT_WRONG
    except Exception as error:
        sys.stderr.write(format_program_error(error, script))
        return EXIT_WRONG
    if checker.findings is None:
        say_error(f"{options.program} ended without starting a job")
        return EXIT_WRONG
    return _show_findings(checker.findings)


def _show_findings(findings: list[Finding]) -> int:
    from tidegate.coordinator.restore_check import Verdict

    _table(
        ["operator", "uid", "state", "", "detail"],
        [[f.operator, f.uid, f.state, f.verdict.value, f.detail] for f in findings],
    )
    refused = sum(finding.verdict is Verdict.REFUSED for finding in findings)
    if refused:
        _say(f"the job would be refused: {refused} of {len(findings)}")
        return EXIT_REFUSED
    _say("the job can start from it")
    return EXIT_DONE


# -- showing ------------------------------------------------------------------------------------------------------


def _show_rows(rows: list[dict[str, Any]]) -> None:
    hidden = {"key_bytes", "key_group"} | {
        name for name in ("namespace", "expiry") if not any(row.get(name) for row in rows)
    }
    names = [name for name in (rows[0] if rows else {}) if name not in hidden]
    _table(names, [[str(row[name]) for name in names] for row in rows])


def _table(names: list[str], rows: list[list[str]]) -> None:
    """Plain text: for people, and for grep."""
    if not rows:
        _say("(nothing)")
        return
    widths = [max(len(name), *(len(row[at]) for row in rows)) for at, name in enumerate(names)]
    for line in [names, *rows]:
        _say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    _say("")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"
