"""How `tidegate run` ends, as numbers; docs/configuration.md and `run --help` list them. Driver; pure."""

from __future__ import annotations

from tidegate.errors import ConfigurationError, JobFolderInUse, JobRunning, KeyTypeError, Superseded, TidegateError

EXIT_FINISHED = 0
EXIT_FAILED = 1
EXIT_CONFIGURATION = 2
EXIT_SUPERSEDED = 4  #: 3 is that of commands which find no job
EXIT_RUNNING = 5
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143

#: A supervisor must not start the program again: the job runs elsewhere. Plain programs end with these, too.
NOT_AGAIN = frozenset({EXIT_SUPERSEDED, EXIT_RUNNING})


def exit_code_of(error: TidegateError) -> int:
    """4 and 5 where another driver has the job, 2 where the program or its settings are wrong and nothing has run, else 1."""
    if isinstance(error, Superseded):
        return EXIT_SUPERSEDED
    if isinstance(error, JobRunning):
        return EXIT_RUNNING
    is_configuration = isinstance(error, (ConfigurationError, JobFolderInUse, KeyTypeError))
    return EXIT_CONFIGURATION if is_configuration else EXIT_FAILED
