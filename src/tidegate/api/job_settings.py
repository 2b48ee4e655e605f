"""What a program says of its job: a method for each group of settings. Driver.

Every keyword is a setting of config.py, which knows what it means, where else it may be said and how wrong values are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Self, TypeVar

from tidegate.api.user_line import calling_line
from tidegate.config import SETTINGS, JobConfig
from tidegate.durations import Duration
from tidegate.settings.choices import ClaimMode, Retention
from tidegate.settings.declaring import Origin, SetBy, Told
from tidegate.sizes import Size
from tidegate.storage.store import DRIVER_MEMORY

T = TypeVar("T")


class JobSettings:
    """See the module."""

    _config: JobConfig

    def checkpointing(
        self,
        *,
        every: Duration | None = None,
        storage: str | None = None,
        mode: str | None = None,
        unaligned: bool | None = None,
        aligned_timeout: Duration | None = None,
        timeout: Duration | None = None,
        min_pause: Duration | None = None,
        max_concurrent: int | None = None,
        tolerable_failures: int | None = None,
        retained: int | None = None,
        resume: str | None = None,
        allow_dropped_state: bool | None = None,
        claim: bool | None = None,
        savepoints: str | None = None,
        delete_on_cancel: bool | None = None,
    ) -> Self:
        """Checkpoint the job every so often into `storage` (file:///..., s3://..., gs://..., az://...).

        What is not named stays as it is: as an earlier call has said it, or as docs/configuration.md lists it.

        `resume="latest"` continues where the last run left off, if there was one; a path or "chk-17" continues from that
        checkpoint or savepoint, wherever it is. Without it, a folder in which the job has run before is refused.
        `claim=True`: what it continues from becomes the job's own, which deletes it once newer checkpoints replace it.

        `savepoints` is where savepoints go that name no place. `delete_on_cancel=True`: a canceled job keeps no checkpoints.

        `unaligned=True`: barriers overtake records, which become part of the checkpoint; for jobs under back-pressure. With
        `aligned_timeout` a checkpoint starts aligned and overtakes only when it takes longer. `mode="at-least-once"`
        never holds records back: some may be counted twice after a failure.

            >>> env = tg.StreamEnvironment("orders").checkpointing(every="10s", storage="file:///tmp/orders", retained=3)
        """
        return self._tell(
            "checkpointing",
            every=every,
            storage=storage,
            mode=mode,
            unaligned=unaligned,
            aligned_timeout=aligned_timeout,
            timeout=timeout,
            min_pause=min_pause,
            max_concurrent=max_concurrent,
            tolerable_failures=tolerable_failures,
            retained=retained,
            resume=resume,
            allow_dropped_state=allow_dropped_state,
            claim=_one_of(claim, ClaimMode.CLAIM, ClaimMode.NO_CLAIM),
            savepoints=savepoints,
            delete_on_cancel=_one_of(delete_on_cancel, Retention.DELETE, Retention.RETAIN),
        )

    def enable_checkpointing(self, interval: int, mode: str = "exactly-once") -> Self:
        """As PyFlink says it: every so many milliseconds. Where `checkpointing(storage=...)` has named no storage they are kept
        in the driver's memory, as Flink does: enough for restarts, gone with the driver.

            >>> env = env.enable_checkpointing(1000)
        """
        every = timedelta(milliseconds=interval)
        return self.checkpointing(every=every, mode=mode, storage=self._config.storage or DRIVER_MEMORY)

    def state_backend(
        self,
        kind: str | None = None,
        *,
        incremental: bool | None = None,
        memory: Size | None = None,
        folder: str | None = None,
        local_recovery: bool | None = None,
    ) -> Self:
        """Where keyed state lives: "hashmap" or "heap", the workers' memory (the default), or "rocksdb", their local disks.

        `incremental`: checkpoints store only what has changed since the last one; by default RocksDB's do. `memory` is what
        RocksDB and the values in use may take in a slot, "256mb" unless told otherwise, `folder` where its files are, on each
        executor's local disk.

        `local_recovery`: checkpoints are kept in `folder` too, and after a failure a slot reads from there what is there and
        intact. It saves the way to storage, and costs disk space: links for RocksDB, up to twice the state for the heap.

            >>> env = env.state_backend("rocksdb", memory="512mb", local_recovery=True)
        """
        return self._tell(
            "state_backend",
            kind=kind,
            incremental=incremental,
            memory=memory,
            folder=folder,
            local_recovery=local_recovery,
        )

    def restart_strategy(
        self,
        kind: str,
        *,
        attempts: int | None = None,
        delay: Duration | None = None,
        max_delay: Duration | None = None,
        max_failures: int | None = None,
        interval: Duration | None = None,
        reset_after: Duration | None = None,
    ) -> Self:
        """ "exponential-delay" (the default with checkpoints; the first restart waits 0), "fixed-delay", "failure-rate" or
        "none". What is not named is as docs/configuration.md lists it for that strategy.

            >>> env = env.restart_strategy("fixed-delay", attempts=3, delay="5s")
        """
        return self._tell(
            "restart_strategy",
            kind=kind,
            attempts=attempts,
            delay=delay,
            max_delay=max_delay,
            max_failures=max_failures,
            interval=interval,
            reset_after=reset_after,
        )

    def buffer_timeout(self, timeout: Duration) -> Self:
        """How long a record may wait for others to share its frame. Lower: quicker; higher: more throughput.

        >>> env = env.buffer_timeout("100ms")
        """
        return self._tell("buffer_timeout", timeout=timeout)

    def object_reuse(self, reuse: bool = True) -> Self:
        """Functions hand records on as they are, not as copies, as in Flink. Right where no function changes a record that
        another one, or it itself, still holds; what it saves is in docs/guarantees.md.

            >>> env = env.object_reuse()
        """
        return self._tell("object_reuse", reuse=reuse)

    def autoscaling(
        self, enabled: bool = True, *, target: float | None = None, min_parallelism: int | None = None,
        max_parallelism: int | None = None, stabilization: Duration | None = None, window: Duration | None = None,
        scale_down: Duration | None = None, catch_up: Duration | None = None, exclude: Iterable[str] | None = None,
    ) -> Self:  # fmt: skip
        """The job is rescaled as its load asks for it, so that the busiest subtask of each vertex works `target` of its time,
        0.7 unless told otherwise. Each decision is in the job's log, with its reason. Off by default.

        After a start it is left alone for `stabilization`, then measured over a `window`. A vertex gets fewer subtasks when it
        has needed no more for as long as `scale_down`. A backlog is to be read within `catch_up`. `exclude`: uids of operators
        that keep their parallelism.

            >>> env = env.autoscaling(max_parallelism=8, scale_down="15min")
        """
        return self._tell(
            "autoscaling",
            enabled=enabled,
            target=target,
            min_parallelism=min_parallelism,
            max_parallelism=max_parallelism,
            stabilization=stabilization,
            window=window,
            scale_down=scale_down,
            catch_up=catch_up,
            exclude=exclude,
        )

    def on_term(self, how: str, *, timeout: Duration | None = None) -> Self:
        """What SIGTERM, as supervisors send it, ends the job with: a "checkpoint" (the default), a "savepoint", or "cancel":
        neither. After `timeout`, 25 seconds unless told otherwise, the program ends in any case.

            >>> env = env.on_term("savepoint", timeout="1min")
        """
        return self._tell("on_term", how=how, timeout=timeout)

    def encryption(
        self,
        *,
        network: bool | None = None,
        rest: bool | None = None,
        certificate: str | None = None,
        key: str | None = None,
    ) -> Self:
        """`network=True`: records between slots are encrypted, and so is all that slots and driver say to each other. On a
        cluster this needs Spark's own encryption beside it (SECURITY.md), which a session that Tidegate makes turns on.

        `rest=True`: REST and the dashboard by https. Certificates are made, unless `certificate` and its `key` are given, as
        PEM files on the driver.

            >>> env = env.encryption(network=True, rest=True)
        """
        return self._tell("encryption", network=network, rest=rest, certificate=certificate, key=key)

    def type_checks(self, rows: str) -> Self:
        """Which rows are held against the type that their stream declares, where they leave their function: the "first"
        thousand of each output of each subtask (the default, at no cost after them), "all", or "none".

            >>> env = env.type_checks("all")
        """
        return self._tell("type_checks", rows=rows)

    def executor_python(
        self,
        *,
        files: Iterable[str] | None = None,
        archives: Iterable[str] | None = None,
        executable: str | None = None,
    ) -> Self:
        """What the executors of a cluster need beside Tidegate and the program's own modules, which are shipped in any case.

        `files`: modules, packages, folders, wheels, zips. `archives`: "env.tar.gz#env", unpacked in each executor's working
        folder. `executable`: their Python, like "./env/bin/python". For sessions that Tidegate makes.

            >>> env = env.executor_python(files=["lib/"], archives=["env.tar.gz#env"], executable="./env/bin/python")
        """
        return self._tell("executor_python", files=files, archives=archives, executable=executable)

    def in_flight_target(self, target: Duration | None) -> Self:
        """How long what is in flight through the job may take, from a source to the last slot, where a slot cannot keep up;
        "1s" unless told otherwise. An aligned checkpoint under back-pressure takes about so long. None: no target, and
        the buffers alone decide.

            >>> env = env.in_flight_target("500ms")
        """
        self._config = self._config.told({"debloat": Told(target is not None, by_program())})
        return self._tell("in_flight_target", target=target)

    def _tell(self, method: str, **said: Any) -> Self:
        """What the program says by a method's keywords; None: nothing. :raises ConfigurationError: at the user's line."""
        told = {}
        for keyword, value in said.items():
            if value is not None:
                setting = _SAID_BY[f"{method}({keyword})"]
                told[setting.name] = Told(setting.kind.from_program(value, f"{method}({keyword}=...)"), by_program())
        config = self._config.told(told)
        config.validate()
        self._config = config
        return self


def by_program() -> Origin:
    return Origin(SetBy.PROGRAM, str(calling_line()))


def _one_of(said: bool | None, yes: T, no: T) -> T | None:
    """A setting of two words that a program says with a flag."""
    return None if said is None else yes if said else no


_SAID_BY = {setting.said_by: setting for setting in SETTINGS.values() if setting.said_by}
