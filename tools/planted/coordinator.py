"""Faults in the driver's loop, in the control connection, and in what is shown of a job."""

from __future__ import annotations

from planted.kinds import Change, Mutant

TEXT = "tests/unit/test_control_text.py"
PIECES = "tests/unit/test_control_pieces.py"
ASKS = "tests/unit/test_asks_are_answered.py"
SHORT_LOG = "tests/unit/test_storage_short_log.py"
AUTOSCALING = "tests/protocol/test_autoscaling.py"
LEAVING = "tests/protocol/test_leaving.py"
SLOT_LOOP = "tests/unit/test_slot_loop.py"
OUTBOX = "tests/unit/test_outbox.py"
HALF_OPEN = "tests/hosts/test_half_open.py"
STORED_PARTS = "tests/unit/test_stored_parts.py"

MUTANTS = (
    Mutant(
        "fewer-at-once",
        "a job that has little to do for a minute is made smaller at once",
        (
            Change(
                "protocol/autoscaling.py",
                "        if now - self._watched_since < self._down_wait_s:\n",
                "        if False:\n",
            ),
        ),
        (AUTOSCALING,),
    ),
    Mutant(
        "more-without-a-window",
        "a vertex is given more subtasks by what it did while it started",
        (Change("protocol/autoscaling.py", "if self._samples[0].at > now - self.policy.window_s:", "if False:"),),
        (AUTOSCALING,),
    ),
    Mutant(
        "more-than-it-can-use",
        "a vertex is given the subtasks that the settings ask for at least, though it has fewer key groups or splits",
        (
            Change(
                "protocol/autoscaling.py",
                "min(most, max(self.policy.least, min(number, vertex.parallelism)))",
                "max(self.policy.least, min(number, vertex.parallelism, most))",
            ),
        ),
        (AUTOSCALING,),
    ),
    Mutant(
        "moves-without-a-pause",
        "a move that is refused is asked for again at once, each time with a warm-up and stopped sources",
        (Change("protocol/leaving.py", "if has_room and now >= self._not_before:", "if has_room:"),),
        (LEAVING,),
    ),
    Mutant(
        "two-moves",
        "a job that is moving away from an executor is asked to move again",
        (Change("protocol/leaving.py", "        if self.state is S.MOVING:\n            return []\n", ""),),
        (LEAVING,),
    ),
    Mutant(
        "key-groups-at-the-end",
        "a slot that is restored is not given a file whose key groups begin before its own",
        (
            Change(
                "coordinator/stored_parts.py",
                "if there.start < groups.stop and groups.start < there.stop",
                "if groups.start <= there.start < groups.stop",
            ),
        ),
        (STORED_PARTS,),
    ),
    Mutant(
        "nobody-looks-again",
        "a record that is created where an old one was deleted is taken for the newest",
        (Change("storage/log.py", "if self._create(record) and self._holds(record):", "if self._create(record):"),),
        (SHORT_LOG,),
    ),
    Mutant(
        "records-of-generations-are-deleted",
        "the number at which an old driver would append is free again",
        (
            Change(
                "storage/short_log.py",
                "            return self._log.read(number).kind is LogKind.GENERATION\n",
                "            return self._log.read(number).kind is LogKind.FINISHED\n",
            ),
        ),
        (SHORT_LOG,),
    ),
    Mutant(
        "odd-text-is-not-sent",
        "a heartbeat with a lone surrogate or a huge number cannot be sent",
        (
            Change(
                "wire/control.py",
                "        if not isinstance(message, SHOWN):\n            raise Unsendable(",
                "        if True:\n            raise Unsendable(",
            ),
        ),
        (TEXT,),
    ),
    Mutant(
        "odd-text-is-changed-where-it-matters",
        "the name of a split arrives as another one",
        (
            Change(
                "wire/control.py",
                "        if not isinstance(message, SHOWN):\n            raise Unsendable(",
                "        if False:\n            raise Unsendable(",
            ),
        ),
        (TEXT,),
    ),
    Mutant(
        "a-slot-waits-for-a-driver-that-is-cut-off",
        "a slot whose driver has gone without a word is at work for a quarter of an hour",
        (Change("task/control_client.py", '    if hasattr(socket, "TCP_USER_TIMEOUT"):\n', "    if False:\n"),),
        (HALF_OPEN,),
    ),
    Mutant(
        "silent-channels-are-not-pulsed",
        "a slot that waits never learns that its connection to another has died",
        (Change("task/main.py", "            if now >= pulse_at:\n", "            if False:\n"),),
        (SLOT_LOOP,),
    ),
    Mutant(
        "only-used-channels-are-pulsed",
        "a channel over which nothing was ever sent is not looked after",
        (Change("task/outbox.py", "if receiver not in self._used:\n", "if receiver in self._unflushed:\n"),),
        (OUTBOX,),
    ),
    Mutant(
        "heartbeats-end-with-an-exception",
        "the heartbeat thread dies when a heartbeat cannot be made",
        (
            Change(
                "task/control_client.py",
                "            except Exception:\n                if not said:\n",
                "            except ZeroDivisionError:\n                if not said:\n",
            ),
        ),
        (TEXT,),
    ),
    Mutant(
        "a-message-that-nobody-handled",
        "the control thread of a slot dies without a word",
        (
            Change(
                "task/control_client.py",
                "        except BaseException as error:\n            on_failure(error)\n",
                "        except BaseException:\n            return\n",
            ),
        ),
        (TEXT,),
    ),
    Mutant(
        "a-mute-error-has-no-last-words",
        "an exception whose text raises is not told",
        (
            Change(
                "shown.py",
                "    try:\n        text = str(error)\n    except Exception as trouble:\n",
                "    try:\n        text = str(error)\n    except ZeroDivisionError as trouble:\n",
            ),
        ),
        (TEXT,),
    ),
    Mutant(
        "pieces-of-two-messages-mixed",
        "pieces are put together whatever message they are of",
        (
            Change(
                "wire/framing.py",
                "        number, is_last = _PIECE.unpack_from(body)\n",
                "        number, is_last = 0, _PIECE.unpack_from(body)[1]\n",
            ),
        ),
        (PIECES,),
    ),
    Mutant(
        "a-message-is-one-piece",
        "what many subtasks had waiting does not fit into a message",
        (Change("wire/framing.py", "MAX_MESSAGE_BYTES = 4 << 30", "MAX_MESSAGE_BYTES = 256 << 20"),),
        (PIECES,),
    ),
    Mutant(
        "a-start-too-large-ends-the-coordinator",
        "a start that cannot be sent is a surprise in the coordinator's thread",
        (
            Change(
                "coordinator/attempt.py",
                "        except Unsendable as error:\n",
                "        except ZeroDivisionError as error:\n",
            ),
        ),
        ("tests/protocol/test_attempt.py",),
    ),
    Mutant(
        "an-acknowledgement-too-large-ends-the-slot",
        "an acknowledgement that cannot be sent says neither whose it is nor the way out",
        (
            Change(
                "task/snapshots.py",
                "        except Unsendable as error:\n",
                "        except ZeroDivisionError as error:\n",
            ),
        ),
        ("tests/protocol/test_uncommitted_bound.py",),
    ),
    Mutant(
        "storing-swallows-surprises",
        "a checkpoint whose storing fails by surprise is under way for ever",
        (
            Change(
                "coordinator/storing.py",
                "                self.on_failure(unforeseen(what, error))\n",
                "                pass\n",
            ),
        ),
        ("tests/protocol/test_attempt.py", ASKS),
    ),
    Mutant(
        "storing-thread-swallows-the-rest",
        "the storing thread is told to leave, and nobody hears of it",
        (
            Change(
                "coordinator/storing.py",
                '                self._on_failure(unforeseen("work on storage", error))\n',
                "                pass\n",
            ),
        ),
        (ASKS,),
    ),
    Mutant(
        "a-rescale-without-an-answer",
        "a rescale whose checkpoint stands is not answered when the job ends",
        (
            Change(
                "coordinator/savepoints.py",
                "            refuse(self.open.pop(number), how, goes_on=False)\n        if self.rescaling is not None:\n",
                "            refuse(self.open.pop(number), how, goes_on=False)\n        if False:\n",
            ),
        ),
        (ASKS,),
    ),
    Mutant(
        "a-rescale-refused-by-a-restart",
        "a rescale whose first attempt fails is never answered though the job runs",
        (
            Change(
                "coordinator/execution.py",
                "                if self._desk.rescaling is not None and attempt.running:\n",
                "                if self._desk.rescaling is not None and attempt.id.number == 2 and attempt.running:\n",
            ),
        ),
        (ASKS,),
    ),
    Mutant(
        "a-checkpoint-forgotten-by-a-rescale",
        "whoever asked for a checkpoint does not hear that the job was restarted",
        (
            Change(
                "coordinator/requested.py",
                "            case StatusChanged(JobStatus.RESTARTING, detail):\n",
                "            case StatusChanged(JobStatus.CREATED, detail):\n",
            ),
        ),
        (ASKS,),
    ),
    Mutant(
        "a-future-that-can-be-taken-back",
        "who cancels the future of a savepoint ends the job",
        (Change("coordinator/savepoints.py", "    future.set_running_or_notify_cancel()\n", ""),),
        (ASKS,),
    ),
    Mutant(
        "a-wait-that-says-nothing",
        "a wait whose time is over looks like one whose job has ended",
        (Change("client.py", "        if not has_ended:\n", "        if False:\n"),),
        (ASKS,),
    ),
    Mutant(
        "a-dead-display-holds-the-job-up",
        "whoever prints waits for a display that has died",
        (
            Change(
                "cli/display.py",
                "            with self._changed:  # nobody draws any more: whoever has text must not wait for it\n"
                "                self._is_live = False\n",
                "            with self._changed:\n",
            ),
        ),
        ("tests/unit/test_console.py",),
    ),
    Mutant(
        "a-closed-pipe-ends-the-job",
        "what cannot be printed raises in the coordinator's thread",
        (
            Change(
                "console.py",
                "    except Exception as error:\n        kind",
                "    except ZeroDivisionError as error:\n        kind",
            ),
        ),
        ("tests/unit/test_console.py",),
    ),
    Mutant(
        "processing-time-goes-back",
        "timers stand still for as long as the wall clock was set back",
        (Change("task/processing_time.py", "        if wall > now + self._offset:\n", "        if True:\n"),),
        ("tests/unit/test_processing_time.py", "tests/protocol/test_event_time_jobs.py"),
    ),
    Mutant(
        "all-of-a-checkpoint-is-new",
        "an incremental checkpoint is shown as if it had stored its whole state",
        (
            Change(
                "task/snapshots.py",
                "            added_bytes=snapshot.added_bytes(checkpoint),\n",
                "            added_bytes=snapshot.size_bytes(),\n",
            ),
        ),
        ("tests/protocol/test_incremental_jobs.py::test_without_failures",),
    ),
    Mutant(
        "a-line-of-a-display-ends-the-job",
        "what cannot be noted for displays is an exception in the coordinator's thread",
        (
            Change(
                "coordinator/observing.py",
                "            except Exception:  # what is only shown ends no job\n",
                "            except ZeroDivisionError:\n",
            ),
        ),
        (ASKS,),
    ),
    Mutant(
        "a-uid-that-cannot-be-stored",
        "a uid that UTF-8 cannot write is accepted, and no checkpoint of the job is ever complete",
        (Change("graph/logical.py", "            if not is_writable(text):\n", "            if False:\n"),),
        (TEXT,),
    ),
)
