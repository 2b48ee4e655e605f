"""`tidegate inspect PATH`: what a savepoint or checkpoint holds. Any machine that can read the storage; unpickles nothing."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from tidegate.cli.run import say_error
from tidegate.cli.showing import show, show_json
from tidegate.cli.tables import table
from tidegate.errors import ConfigurationError, TidegateError
from tidegate.savepoints.reading import Savepoint, StateSummary, StateTable
from tidegate.savepoints.search import load_local
from tidegate.storage.metadata import IN_FLIGHT
from tidegate.wording import counted, how_big

EXIT_DONE, EXIT_NOTHING, EXIT_WRONG = 0, 1, 2


def run_inspect(options: argparse.Namespace) -> int:
    try:
        savepoint = load_local(options.path)
        if options.sql is not None:
            return _sql(savepoint, options)
        if options.largest is not None:
            return _largest(savepoint, options)
        if options.state is not None or options.key is not None:
            return _rows(savepoint, options)
        return _overview(savepoint, options)
    except TidegateError as error:
        say_error(str(error))
        return EXIT_WRONG


# -- the whole ----------------------------------------------------------------------------------------------------


def _overview(savepoint: Savepoint, options: argparse.Namespace) -> int:
    metadata, only = savepoint.metadata, options.operator
    if only is not None:
        savepoint.operator(only)  # refuses one that is not there, and says which are
    operators = [info for info in savepoint.operators() if only in (None, info.uid)]
    states = [state for state in savepoint.states() if only in (None, state.uid)]
    sources = [row for row in savepoint.sources().to_pylist() if only in (None, row["uid"])]
    prepared = [row for row in savepoint.prepared().to_pylist() if only in (None, row["uid"])]
    if options.json:
        show_json(
            {
                "path": savepoint.path,
                "kind": savepoint.kind,
                "format": savepoint.format,
                "job": metadata.job,
                "checkpoint": metadata.checkpoint,
                "completed_at": metadata.completed_at,
                "size_bytes": metadata.size_bytes(),
                "operators": operators,
                "states": [asdict(state) for state in states],
                "sources": sources,
                "prepared": [{name: row[name] for name in ("uid", "subtask", "checkpoint")} for row in prepared],
            }
        )
        return EXIT_DONE
    when = _when(metadata.completed_at)
    head = Text(f"{savepoint.kind} {metadata.checkpoint} of job {metadata.job!r}", style="bold")
    head.append(f"  {when} · {how_big(metadata.size_bytes())} · {savepoint.format}", style="not bold dim")
    of_operators = table("operator", "uid", "parallelism", "max", "keys", numbers=("parallelism", "max"))
    for info in operators:
        of_operators.add_row(
            info.name, info.uid, str(info.parallelism), str(info.max_parallelism), Text(info.key_type or "")
        )
    parts: list[Any] = [head, Text(""), of_operators]
    if states:
        of_states = table("uid", "state", "kind", "type", "rows", "size", numbers=("rows", "size"))
        for state in states:
            of_states.add_row(
                state.uid, Text(state.name), state.kind, Text(state.type), f"{state.rows:,}", how_big(state.size_bytes)
            )
        parts += [Text(""), of_states]
    if sources:
        of_sources = table("source", "split", "position", "")
        for row in sources[: options.limit]:
            finished = "finished" if row["finished"] else ""
            of_sources.add_row(row["uid"], Text(row["split"]), Text(row["position"]), finished)
        parts += [Text(""), of_sources, *_more(len(sources), options.limit, "split")]
    if prepared:
        who = ", ".join(sorted({row["uid"] for row in prepared}))
        parts += [Text(""), Text(f"prepared by sinks, to be committed if it is not yet: {len(prepared):,} ({who})")]
    show(*parts)
    return EXIT_DONE


# -- rows ---------------------------------------------------------------------------------------------------------


def _rows(savepoint: Savepoint, options: argparse.Namespace) -> int:
    states = _chosen(savepoint, options)
    found: list[tuple[StateSummary, list[dict[str, Any]]]] = []
    for state in states:
        rows = list(_matching(_table_of(savepoint, state), options.key, options.limit))
        if rows or options.key is None:
            found.append((state, rows))
    if options.json:
        show_json([{"uid": state.uid, "state": state.name, "rows": rows} for state, rows in found])
    for state, rows in [] if options.json else found:
        if len(states) > 1:
            show(Text(f"{state.uid}.{state.name}", style="bold"))
        show(_table_of_rows(rows))
        if options.key is None:
            show(*_more(state.rows, options.limit, "row"))
    if options.key is not None and not found:
        where = f"state {options.state!r}" if options.state is not None else "no state"
        has = "has no" if options.state is not None else "has a"
        say_error(f"{where} {has} key {options.key!r}; keys are written as they are shown")
        return EXIT_NOTHING
    return EXIT_DONE


def _chosen(savepoint: Savepoint, options: argparse.Namespace) -> list[StateSummary]:
    """The states that are meant. :raises ConfigurationError: when it is not clear, or there is none."""
    if options.operator is not None:
        savepoint.operator(options.operator)
    states = [
        state for state in savepoint.states() if options.operator in (None, state.uid) and state.kind != IN_FLIGHT
    ]
    if options.state is None:
        return [state for state in states if state.key_type and not state.kind.startswith(("operator-", "raw-"))]
    named = [state for state in states if state.name == options.state]
    if not named:
        there = ", ".join(f"{state.uid}.{state.name}" for state in states) or "none"
        raise ConfigurationError(f"no state {options.state!r} has rows there; there are {there}")
    if len(named) > 1 and options.key is None:
        uids = ", ".join(state.uid for state in named)
        raise ConfigurationError(
            f"several operators have a state {options.state!r}: say which with --operator ({uids})"
        )
    return named


def _matching(rows: StateTable, key: str | None, limit: int) -> Iterator[dict[str, Any]]:
    shown = 0
    for batch in rows.batches():
        for row in batch.to_pylist():
            if key is None or str(row.get("key")) == key:
                if shown == limit:
                    return
                shown += 1
                yield row


def _table_of(savepoint: Savepoint, state: StateSummary) -> StateTable:
    return StateTable(savepoint, state.uid, state.name, state.kind)


def _largest(savepoint: Savepoint, options: argparse.Namespace) -> int:
    if options.state is None:
        raise ConfigurationError("--largest needs --state: which state's keys?")
    (state,) = _chosen(savepoint, options)
    largest = savepoint.largest_keys(state.uid, state.name, options.largest)
    if options.json:
        show_json([{"key": key, "size_bytes": size} for key, size in largest])
        return EXIT_DONE
    sizes = table("key", "size", numbers=("size",))
    for key, size in largest:
        sizes.add_row(Text(str(key)), how_big(size))
    show(sizes)
    return EXIT_DONE


def _sql(savepoint: Savepoint, options: argparse.Namespace) -> int:
    try:
        import duckdb
    except ImportError:
        say_error("--sql needs DuckDB: pip install 'tidegate[sql]'")
        return EXIT_WRONG
    connection = duckdb.connect()
    states = [state for state in savepoint.states() if state.kind != IN_FLIGHT]
    for state in states:
        name = f"{state.uid}.{state.name}"
        if name in options.sql:  # the others are not read
            connection.register(name, _table_of(savepoint, state).to_arrow())
    connection.register("sources", savepoint.sources())
    connection.register("prepared", savepoint.prepared())
    try:
        found = connection.sql(options.sql)
        rows = [] if found is None else found.fetchall()
    except duckdb.Error as error:
        tables = ", ".join(f'"{state.uid}.{state.name}"' for state in states)
        say_error(f"{error}\nThe tables are {tables}, sources and prepared.")
        return EXIT_WRONG
    names = [] if found is None else found.columns
    if options.json:
        show_json([dict(zip(names, row, strict=True)) for row in rows])
    elif names:
        answer = table(*names)
        for row in rows:
            answer.add_row(*(Text(str(cell)) for cell in row))
        show(answer)
    return EXIT_DONE


# -- showing ------------------------------------------------------------------------------------------------------


def _table_of_rows(rows: list[dict[str, Any]]) -> Any:
    if not rows:
        return Text("no rows", style="dim")
    hidden = {"key_bytes", "key_group"} | {
        name for name in ("namespace", "expiry") if not any(row.get(name) for row in rows)
    }
    names = [name for name in rows[0] if name not in hidden]
    made = table(*names)
    for row in rows:
        made.add_row(*(Text(_cell(name, row[name])) for name in names))
    return made


def _cell(name: str, value: Any) -> str:
    """`expiry` is stored in milliseconds; people read a time. What never expires has none. A list has one for each element."""
    if name != "expiry":
        return str(value)
    if isinstance(value, list):
        return ", ".join(_cell(name, each) or "never" for each in value)
    return _when(value / 1000) if value else ""


def _when(epoch_s: float) -> str:
    try:
        return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError):  # later than the year 9999
        return str(int(epoch_s * 1000))


def _more(total: int, limit: int, noun: str) -> list[Text]:
    return [] if total <= limit else [Text(f"{counted(total, noun)} in all; --limit shows more", style="dim")]
