"""`tidegate sinks in-doubt URL`: prepared transactions of the database sinks, listed and settled. Needs no Spark."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.connectors.database.in_doubt import InDoubt, Named
    from tidegate.connectors.database.session import Session

PASSWORD_ENV = "TIDEGATE_DATABASE_PASSWORD"
_EPILOG = f"""\
A running job settles its own: it commits what its checkpoint names, and rolls back the rest before each attempt. This is
for a job that will not come back, and for a look at what holds locks.

The password may stand in the URL; better is the environment variable {PASSWORD_ENV} (or --password-env).

exit codes:
  0    nothing is in doubt, or all that was asked for is done
  1    something is in doubt, or could not be settled
  2    the settings are wrong
"""


def add_sinks(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    what = "look after what sinks have left outside"
    sinks = commands.add_parser("sinks", help=what, description=what[0].upper() + what[1:] + ".")
    inner = sinks.add_subparsers(dest="sinks_command", metavar="command", required=True)
    doubt = inner.add_parser(
        "in-doubt",
        help="list, commit or roll back prepared transactions of a database",
        description="List the prepared transactions of database sinks, and settle them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    doubt.add_argument("url", metavar="URL", help="postgresql://user@host/database or mysql://user@host/database")
    doubt.add_argument("--job", metavar="NAME", help="only those of this job")
    doubt.add_argument(
        "--storage", metavar="URI", help="the job's checkpoint storage: says which of them its newest checkpoint names"
    )
    doubt.add_argument("--password-env", metavar="NAME", help=f"where the password is; default: {PASSWORD_ENV}, if set")
    doubt.add_argument("--json", action="store_true", help="a JSON object in a line for each, listed or settled")
    act = doubt.add_mutually_exclusive_group()
    act.add_argument("--commit", metavar="ID", help="commit this one")
    act.add_argument("--rollback", metavar="ID", help="roll this one back")
    act.add_argument(
        "--settle",
        action="store_true",
        help="commit what the newest checkpoint names, roll back the rest of the job (needs --job and --storage)",
    )


def sinks(options: argparse.Namespace) -> int:
    """Gives the exit code."""
    from tidegate.cli.run import say_error
    from tidegate.errors import ConfigurationError, TidegateError
    from tidegate.telling.exit_codes import EXIT_CONFIGURATION, EXIT_FAILED

    try:
        return _in_doubt(options)
    except ConfigurationError as error:
        say_error(str(error))
        return EXIT_CONFIGURATION
    except TidegateError as error:
        say_error(str(error))
        return EXIT_FAILED


def _in_doubt(options: argparse.Namespace) -> int:
    from tidegate.connectors.database.in_doubt import list_in_doubt, settle
    from tidegate.connectors.database.session import connect
    from tidegate.connectors.database.urls import parse_url
    from tidegate.errors import ConfigurationError

    if (options.settle or options.storage) and not options.job:
        raise ConfigurationError("--storage and --settle are about one job: name it with --job.")
    if options.settle and not options.storage:
        raise ConfigurationError("--settle goes by the job's newest checkpoint: say where it is with --storage.")
    url = parse_url(options.url)
    password_env = options.password_env
    if password_env is None and url.password is None and PASSWORD_ENV in os.environ:
        password_env = PASSWORD_ENV
    if password_env is not None:
        url = parse_url(options.url, password_env)
    named = None if options.storage is None else _named_by_checkpoint(options.storage, options.job)
    session = connect(url, "")
    try:
        if options.commit or options.rollback:
            settle(session, options.commit or options.rollback, commit=bool(options.commit))
            _say_settled(options.commit or options.rollback, bool(options.commit), options.json)
            return 0
        found = list_in_doubt(session, named, options.job)
        return _settle_all(session, found, options.json) if options.settle else _show(found, options.json)
    finally:
        session.close()


def _named_by_checkpoint(storage: str, job: str) -> Named:
    from tidegate.connectors.database.in_doubt import Named
    from tidegate.errors import ConfigurationError
    from tidegate.storage.checkpoints import load_checkpoint
    from tidegate.storage.log import JobLog
    from tidegate.storage.paths import JobPaths
    from tidegate.storage.store import open_store

    store = open_store(storage)
    newest = JobLog(store, JobPaths(job)).read_newest()
    if newest is None:
        raise ConfigurationError(f"there is no job {job!r} in {store.location}")
    if newest.latest is None:
        return Named(job, {})
    metadata = load_checkpoint(store, newest.latest)
    committables = [c for slot in metadata.slots for subtask in slot.subtasks for c in subtask.committables]
    return Named.of(job, [(committable.checkpoint, committable.payload) for committable in committables])


def _settle_all(session: Session, found: list[InDoubt], as_json: bool) -> int:
    from tidegate.connectors.database.in_doubt import Advice, live_sessions, settle
    from tidegate.errors import ConfigurationError

    if alive := live_sessions(session, found):
        raise ConfigurationError(
            f"the job is running ({', '.join(alive)} is connected): it settles its transactions itself. Stop it first."
        )
    for transaction in found:
        commit = transaction.advice is Advice.COMMIT
        settle(session, transaction.id, commit)
        _say_settled(transaction.id, commit, as_json)
    return 0


def _say_settled(id: str, committed: bool, as_json: bool) -> None:
    settled = "committed" if committed else "rolled back"
    print(json.dumps({"id": id, "settled": settled}) if as_json else f"{settled}: {id}")


def _show(found: list[InDoubt], as_json: bool) -> int:
    from tidegate.connectors.database.in_doubt import Advice

    if as_json:
        for entry in found:
            print(json.dumps({**asdict(entry), "advice": entry.advice.value}))
        return 1 if found else 0
    if not found:
        print("nothing is in doubt")
        return 0
    for entry in found:
        checkpoint = "" if entry.checkpoint is None else f", checkpoint {entry.checkpoint}"
        since = f", since {entry.since}" if entry.since else ""
        where = f"job {entry.job}, sink {entry.uid}, table {entry.table}, subtask {entry.subtask}"
        print(f"{entry.id}\n    {where}{checkpoint}{since}")
        print(f"    advice: {entry.advice.value}")
    if any(entry.advice is Advice.UNKNOWN for entry in found):
        print("\nWith --job NAME --storage URI the job's newest checkpoint tells which of its own to commit.")
    sys.stdout.flush()
    return 1
