"""What REST says of a job that has lived: the numbers, in Flink's fields."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from cli_kit import attempt, checkpoint, planned_sums, started
from rest_kit import Rest, completed, lived, samples, serving

from tidegate.config import JobConfig
from tidegate.coordinator.hottest import OperatorKey
from tidegate.coordinator.observing import (
    CheckpointChanged,
    CheckpointsDiscarded,
    CheckpointStatus,
    JobLine,
    JobStatus,
    SlotSampled,
    StatusChanged,
)
from tidegate.ids import SlotId
from tidegate.rest.numbers import skew, summary
from tidegate.wire.control import CodeLine, Sampled, SampledStack


@pytest.fixture(scope="module")
def rest() -> Iterator[Rest]:
    ticks = itertools.count()
    # Four slots beat in each of two seconds.
    with serving(clock=lambda: float(next(ticks) // 4)) as rest:
        lived(rest.hands.view)
        yield rest


def by_id(listed: list[dict[str, str]]) -> dict[str, str]:
    return {entry["id"]: entry["value"] for entry in listed}


def test_both_prefixes_answer(rest: Rest) -> None:
    assert rest.get("/jobs") == rest.get("/v1/jobs") == {"jobs": [{"id": rest.job.id, "status": "RUNNING"}]}


def test_the_list_has_every_number_that_flinks_client_insists_on(rest: Rest) -> None:
    (entry,) = rest.get("/v1/jobs/overview")["jobs"]
    assert (entry["jid"], entry["name"], entry["state"], entry["end-time"]) == (rest.job.id, "sums", "RUNNING", -1)
    for field in ("start-time", "end-time", "duration", "last-modification", "pending-operators"):
        assert type(entry[field]) is int
    assert entry["tasks"]["total"] == entry["tasks"]["running"] == 4
    assert re.fullmatch("[0-9a-f]{32}", entry["jid"])


def test_the_details_have_vertices_with_their_records_and_times(rest: Rest) -> None:
    details = rest.get("/jobs/{job}")
    first, second = details["vertices"]
    assert [first["name"], second["name"]] == ["Source: sequence -> map double", "sum 1 -> Sink: print"]
    assert (first["metrics"]["read-records"], first["metrics"]["write-records"]) == (0, 400)
    assert (second["metrics"]["read-records"], second["metrics"]["write-records"]) == (400, 0)
    assert (first["metrics"]["read-bytes"], first["metrics"]["write-bytes"]) == (0, 4000)
    assert (second["metrics"]["read-bytes"], second["metrics"]["write-bytes"]) == (4000, 0)
    assert second["metrics"]["read-bytes-complete"]
    assert second["metrics"]["accumulated-busy-time"] == 800
    assert second["metrics"]["accumulated-backpressured-time"] == 1600
    assert details["status-counts"]["RUNNING"] == 2
    assert details["timestamps"]["RESTARTING"] == 1_010_000
    assert details["timestamps"]["RUNNING"] == 1_012_000
    assert (details["attempt"], details["restarts"]) == ("g1-a2", 1)


def test_the_plan_connects_vertices_by_their_ids(rest: Rest) -> None:
    first, second = rest.get("/jobs/{job}/plan")["plan"]["nodes"]
    assert first["inputs"] == []
    (edge,) = second["inputs"]
    assert (edge["id"], edge["ship_strategy"], edge["exchange"]) == (first["id"], "HASH", "pipelined")
    assert [operator["uid"] for operator in second["operators"]] == ["sums", "printed"]


def test_failures_have_their_cause_and_the_users_line(rest: Rest) -> None:
    answer = rest.get("/jobs/{job}/exceptions")
    (entry,) = answer["exceptionHistory"]["entries"]
    assert entry["exceptionName"] == "UserCodeFailed"
    assert entry["stacktrace"] == "ValueError: bad\n  in map\n\nTraceback"
    assert (entry["taskName"], entry["user-line"], entry["timestamp"]) == ("map - subtask 1", "job.py:7", 1_010_000)
    assert answer["root-exception"] == entry["stacktrace"]
    assert rest.get("/jobs/{job}/exceptions?maxExceptions=0")["exceptionHistory"] == {"entries": [], "truncated": True}


def test_settings_are_shown_and_secrets_are_not() -> None:
    config = JobConfig(
        interval_s=1.0, storage="s3://key:hush@bucket/x?secret=hush", rest_port=0, rest_token="hush-hush", retained=3
    )
    with serving(config) as rest:
        head = {"Authorization": "Bearer hush-hush"}
        answers = [
            rest.text("GET", path, headers=head)
            for path in ("/jobs/{job}/config", "/jobs/{job}/checkpoints/config", "/jobs/{job}", "/metrics")
        ]
        assert [status for status, _ in answers] == [200] * 4
        assert not any("hush" in text for _, text in answers)
        assert '"execution.checkpointing.num-retained":"3"' in answers[0][1]


def test_counters_are_added_up_over_subtasks(rest: Rest) -> None:
    odd = {"name": "odd", "type": "LongCounter", "value": "6"}
    assert rest.get("/jobs/{job}/accumulators")["user-task-accumulators"] == [odd]
    assert rest.get(f"/jobs/{{job}}/vertices/{rest.vertex(0)}/accumulators")["user-accumulators"] == [odd]
    assert rest.get(f"/jobs/{{job}}/vertices/{rest.vertex(1)}/accumulators")["user-accumulators"] == []
    subtasks = rest.get(f"/jobs/{{job}}/vertices/{rest.vertex(0)}/subtasks/accumulators")["subtasks"]
    assert [subtask["user-accumulators"][0]["value"] for subtask in subtasks] == ["2", "4"]


def test_a_vertex_has_the_spread_over_its_subtasks(rest: Rest) -> None:
    """Flink's page of subtasks reads every one of these fields."""
    details = rest.get(f"/jobs/{{job}}/vertices/{rest.vertex(1)}")
    parts = ("min", "max", "avg", "sum", "median", "p25", "p75", "p95")
    aggregated = details["aggregated"]
    assert set(aggregated["metrics"]) == {
        "read-bytes", "write-bytes", "read-records", "write-records", "accumulated-backpressured-time",
        "accumulated-idle-time", "accumulated-busy-time",
    }  # fmt: skip
    states = {"CREATED", "SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING"}
    assert set(aggregated["status-duration"]) == states
    assert all(set(numbers) == set(parts) for part in aggregated.values() for numbers in part.values())
    waited = aggregated["metrics"]["accumulated-backpressured-time"]
    assert [waited[part] for part in parts] == [0, 1600, 800, 1600, 1600, 0, 1600, 1600]
    for subtask in details["subtasks"]:
        assert set(subtask["status-duration"]) == states
        assert subtask["status-duration"]["INITIALIZING"] == 1_012_000, "the attempt began at 0 and ran at 1,012 s"
        assert subtask["status-duration"]["RUNNING"] > 0
    for worker in rest.get(f"/jobs/{{job}}/vertices/{rest.vertex(1)}/taskmanagers")["taskmanagers"]:
        assert worker["aggregated"]["metrics"]["read-records"]["sum"] == 200


@pytest.mark.parametrize(
    ("sample", "percent"), [([5, 5, 5], 0.0), ([0, 0], 0.0), ([404_210, 271_512], 19.64), ([10, 0, 0, 0], 100.0)]
)
def test_skew_is_the_mean_distance_from_the_mean(sample: list[float], percent: float) -> None:
    assert round(skew(sample), 2) == percent


def test_a_job_is_an_application_of_its_own(rest: Rest) -> None:
    (entry,) = rest.get("/applications/overview")["applications"]
    assert (entry["id"], entry["name"], entry["status"], entry["jobs"]) == (
        rest.job.id,
        "sums",
        "RUNNING",
        {"RUNNING": 1},
    )
    details = rest.get("/applications/{job}")
    assert [job["jid"] for job in details["jobs"]] == [rest.job.id]
    assert details["timestamps"]["RUNNING"] == 1_012_000
    (failure,) = rest.get("/applications/{job}/exceptions")["exceptionHistory"]["entries"]
    assert (failure["exceptionName"], failure["jobId"]) == ("UserCodeFailed", rest.job.id)


def test_workers_are_task_managers_with_their_log(rest: Rest) -> None:
    workers = rest.get("/taskmanagers")["taskmanagers"]
    assert [worker["id"] for worker in workers] == ["node:100", "node:101", "node:102", "node:103"]
    assert workers[2]["path"] == "sum 1 -> Sink: print #0"
    assert all(worker["timeSinceLastHeartbeat"] > 0 for worker in workers)
    assert {worker["residentBytes"] for worker in workers} == {100_000_000}
    assert {worker["memoryConfiguration"]["totalProcessMemory"] for worker in workers} == {100_000_000}
    assert all(worker["coresBusy"] > 0 for worker in workers)
    assert rest.get("/overview")["taskmanagers"] == 4
    names = {metric["id"] for metric in rest.get("/taskmanagers/node:102/metrics")}
    assert "sum 1 -> Sink: print.0.busyTimeMsPerSecond" in names
    assert "sum 1 -> Sink: print.0.busyTimeMsPerSecond" not in {
        m["id"] for m in rest.get("/taskmanagers/node:100/metrics")
    }

    rest.hands.view.log(JobLine(1020.0, "WARNING", "mine", "odd", "g1-a2", "1.0", "sum 1", "sums", 0))
    assert rest.text("GET", "/taskmanagers/node:102/log")[1].endswith("WARNING [g1-a2 1.0 sum 1#0] mine: odd\n")
    assert rest.text("GET", "/taskmanagers/node:100/log") == (200, "")
    assert "mine: odd" in rest.text("GET", "/jobmanager/log")[1]
    (log,) = rest.get("/jobmanager/logs")["logs"]
    assert len(rest.text("GET", f"/jobmanager/logs/{log['name']}")[1].encode()) == log["size"]
    assert rest.get("/jobs/{job}/jobmanager/log-url") == {"url": f"/jobmanager/logs/{log['name']}"}
    assert rest.text("GET", "/taskmanagers/node:102/logs/other")[0] == 404
    assert rest.text("GET", "/taskmanagers/node:999")[0] == 404


def test_the_driver_shows_its_threads_and_its_settings(rest: Rest) -> None:
    threads = rest.get("/jobmanager/thread-dump")["threadInfos"]
    servers = [thread for thread in threads if thread["threadName"] == "tidegate-rest"]
    assert any("driver.py" in server["stringifiedThreadInfo"] for server in servers), "the line that it is at"
    assert {"key": "execution.checkpointing.dir", "value": "file:///data"} in rest.get("/jobmanager/config")
    assert by_id(rest.get("/jobmanager/metrics?get=numRunningJobs,taskSlotsTotal")) == {
        "numRunningJobs": "1",
        "taskSlotsTotal": "4",
    }


def test_every_attempt_is_a_rescale_to_flink(rest: Rest) -> None:
    overview = rest.get("/jobs/{job}/rescales/overview")
    assert overview["rescalesCounts"] == {"completed": 2, "failed": 0, "ignored": 0, "inProgress": 0}
    newest, oldest = rest.get("/jobs/{job}/rescales/history")
    assert (oldest["triggerCause"], newest["triggerCause"]) == ("INITIAL_SCHEDULE", "RECOVERABLE_FAILOVER")
    assert overview["latest"]["completed"] == newest
    assert rest.get(f"/jobs/{{job}}/rescales/details/{newest['rescaleUuid']}") == newest
    assert newest["vertices"][rest.vertex(0)]["postRescaleParallelism"] == 2
    assert rest.get("/jobs/{job}/rescales/summary")["completedRescalesDurationStatsInMillis"]["max"] == 901_000


def test_the_bottleneck_is_named_while_the_job_runs(rest: Rest) -> None:
    verdict = rest.get("/jobs/{job}/operators")["bottleneck"]
    assert verdict["sentence"] == ("sum 1 -> Sink: print waits 80% of its time, and nothing after it is busy."), (
        "its second subtask does"
    )


# -- checkpoints ------------------------------------------------------------------------------------------------------


def test_checkpoints_are_counted_and_the_interrupted_one_has_failed(rest: Rest) -> None:
    answer = rest.get("/jobs/{job}/checkpoints")
    assert answer["counts"] == {"restored": 1, "total": 4, "in_progress": 0, "completed": 3, "failed": 1}
    assert [(c["id"], c["status"], c["className"]) for c in answer["history"]] == [
        (4, "COMPLETED", "completed"),
        (3, "FAILED", "failed"),
        (2, "COMPLETED", "completed"),
        (1, "COMPLETED", "completed"),
    ]
    assert answer["latest"]["completed"]["id"] == 4
    assert answer["latest"]["completed"]["external_path"].endswith("chk-4/g1-a1/_metadata.json")
    assert answer["latest"]["failed"]["failure_message"] == "the attempt ended"
    assert answer["latest"]["savepoint"] is None
    assert answer["latest"]["restored"]["id"] == 2
    durations = answer["summary"]["end_to_end_duration"]
    assert (durations["min"], durations["max"], durations["avg"], durations["p50"]) == (450, 650, 516, 450.0)
    assert answer["summary"]["state_size"]["max"] == 3400
    assert answer["summary"]["checkpointed_size"]["max"] == 400, "what was stored for it, not the whole state"


def test_one_checkpoint_has_a_row_for_each_vertex_and_subtask(rest: Rest) -> None:
    details = rest.get("/jobs/{job}/checkpoints/details/2")
    assert (details["num_subtasks"], details["num_acknowledged_subtasks"]) == (4, 4)
    assert (details["end_to_end_duration"], details["latest_ack_timestamp"]) == (650, 1_000_400)
    assert details["alignment_buffered"] == 600
    assert details["tasks"][rest.vertex(1)]["state_size"] == 2000
    assert details["tasks"][rest.vertex(1)]["checkpointed_size"] == 200, "what was stored for it"
    assert details["tasks"][rest.vertex(0)]["state_size"] == 0

    of_vertex = rest.get(f"/jobs/{{job}}/checkpoints/details/2/subtasks/{rest.vertex(1)}")
    assert [(s["index"], s["status"], s["end_to_end_duration"]) for s in of_vertex["subtasks"]] == [
        (0, "completed", 300),
        (1, "completed", 400),
    ]
    second = of_vertex["subtasks"][1]
    assert (second["checkpoint"], second["start_delay"]) == ({"sync": 1, "async": 30}, 10)
    assert second["alignment"] == {"buffered": 300, "processed": 0, "persisted": 0, "duration": 20}
    assert of_vertex["summary"]["alignment"]["duration"]["max"] == 20


def test_a_checkpoint_of_before_a_rescale_keeps_its_subtasks() -> None:
    with serving() as rest:
        lived(rest.hands.view)
        rest.hands.plan = planned_sums(parallelism=3)
        rest.hands.view.publish(started(3, restored_from=4))
        rest.hands.view.publish(checkpoint(5, CheckpointStatus.IN_PROGRESS, acknowledged=1, attempt=attempt(3)))

        before, after = (rest.get(f"/jobs/{{job}}/checkpoints/details/{id}") for id in (4, 5))
        assert (before["num_subtasks"], before["tasks"][rest.vertex(1)]["num_subtasks"]) == (4, 2)
        assert (after["num_subtasks"], after["tasks"][rest.vertex(1)]["num_subtasks"]) == (6, 3)
        assert rest.get("/jobs/{job}/checkpoints/details/4/explain")["missing"] == []
        of_vertex = rest.get(f"/jobs/{{job}}/checkpoints/details/4/subtasks/{rest.vertex(1)}")
        assert [subtask["status"] for subtask in of_vertex["subtasks"]] == ["completed"] * 2


def test_a_checkpoint_that_somebody_did_not_answer_says_who(rest: Rest) -> None:
    of_vertex = rest.get(f"/jobs/{{job}}/checkpoints/details/3/subtasks/{rest.vertex(0)}")
    assert [s["className"] for s in of_vertex["subtasks"]] == ["completed", "pending"]
    missing = rest.get("/jobs/{job}/checkpoints/details/3/explain")["missing"]
    assert [(entry["vertex"], entry["subtask"]) for entry in missing] == [
        ("Source: sequence -> map double", 1),
        ("sum 1 -> Sink: print", 0),
        ("sum 1 -> Sink: print", 1),
    ]


def test_explain_says_where_the_time_went(rest: Rest) -> None:
    explained = rest.get("/jobs/{job}/checkpoints/details/2/explain")
    slowest = explained["slowest"]
    assert (slowest["vertexId"], slowest["subtask"], slowest["total"]) == (rest.vertex(1), 1, 400)
    phases = {name: slowest[name] for name in ("startDelay", "alignment", "sync", "upload", "other")}
    assert phases == {"startDelay": 10, "alignment": 20, "sync": 1, "upload": 30, "other": 339}
    assert slowest["pause"] == max(vertex["pause"] for vertex in explained["vertices"]) == 7
    assert explained["storing"] == 250
    assert explained["largestStates"][0] == {"uid": "sums", "subtask": 0, "size": 1000}


def test_explain_has_the_keys_that_were_hot_when_the_checkpoint_ended() -> None:
    with serving() as rest:
        lived(rest.hands.view)
        hot = OperatorKey("sums", 1, "key-1", 0.41237, 1000)
        rest.hands.view.publish(completed(5, hot_keys=(hot,)))
        found = [rest.get(f"/jobs/{{job}}/checkpoints/details/{id}/explain")["hottestKeys"] for id in (2, 5)]
        assert found == [[], [{"uid": "sums", "subtask": 1, "key": "key-1", "share": 0.4124, "records": 1000}]]


def test_a_checkpoint_whose_files_are_gone_is_discarded() -> None:
    with serving() as rest:
        lived(rest.hands.view)
        rest.hands.view.publish(CheckpointsDiscarded((1, 2, 77)))
        answer = rest.get("/jobs/{job}/checkpoints")
        assert {c["id"]: c.get("discarded") for c in answer["history"]} == {4: False, 3: None, 2: True, 1: True}
        assert answer["counts"]["completed"] == 3, "it is still one that was completed"
        assert rest.get("/jobs/{job}/checkpoints/details/2")["discarded"] is True


def test_settings_of_checkpoints_without_an_interval() -> None:
    with serving(JobConfig(rest_port=0, mode="at-least-once", retention="delete")) as rest:
        answer = rest.get("/jobs/{job}/checkpoints/config")
        assert (answer["interval"], answer["mode"]) == (2**63 - 1, "at_least_once")
        assert answer["externalization"] == {"enabled": False, "delete_on_cancellation": True}
        assert rest.get("/jobs/{job}/checkpoints")["history"] == []


# -- load and metrics -------------------------------------------------------------------------------------------------


def test_back_pressure_is_told_for_each_subtask(rest: Rest) -> None:
    answer = rest.get(f"/jobs/{{job}}/vertices/{rest.vertex(1)}/backpressure")
    assert (answer["status"], answer["backpressure-level"]) == ("ok", "high")
    first, second = answer["subtasks"]
    assert (first["backpressure-level"], first["busyRatio"], first["idleRatio"], first["ratio"]) == (
        "ok",
        0.2,
        0.8,
        0.0,
    )
    assert (second["backpressureLevel"], second["ratio"]) == ("high", 0.8)


def test_metrics_are_listed_and_asked_for_by_name(rest: Rest) -> None:
    names = [entry["id"] for entry in rest.get("/jobs/{job}/metrics")]
    assert {"lastCheckpointDuration", "numberOfFailedCheckpoints", "numRestarts"} <= set(names)
    asked = by_id(rest.get("/jobs/{job}/metrics?get=lastCheckpointDuration,numRestarts,nonsense"))
    assert asked == {"lastCheckpointDuration": "450", "numRestarts": "1"}

    of_vertex = f"/jobs/{{job}}/vertices/{rest.vertex(1)}"
    asked = by_id(rest.get(f"{of_vertex}/metrics?get=0.numRecordsIn,1.busyTimeMsPerSecond,1.sums.stateSize"))
    assert asked == {"0.numRecordsIn": "200", "1.busyTimeMsPerSecond": "200", "1.sums.stateSize": "1000"}
    (rate,) = rest.get(f"{of_vertex}/subtasks/metrics?get=numRecordsInPerSecond&agg=sum,max")
    assert rate == {"id": "numRecordsInPerSecond", "sum": 200.0, "max": 100.0}
    (rate,) = rest.get(f"{of_vertex}/subtasks/metrics?get=numBytesInPerSecond&agg=sum")
    assert rate == {"id": "numBytesInPerSecond", "sum": 2000.0}
    assert by_id(rest.get(f"{of_vertex}/metrics?get=0.numBytesIn,0.numBytesOut,1.sums.numBytesIn")) == {
        "0.numBytesIn": "2000",
        "0.numBytesOut": "0",
        "1.sums.numBytesIn": "2000",
    }
    one = by_id(rest.get(f"{of_vertex}/subtasks/1/metrics?get=isBackPressured,currentInputWatermark"))
    assert one == {"isBackPressured": "1", "currentInputWatermark": "4001"}
    assert rest.get(f"{of_vertex}/watermarks") == [
        {"id": "0.currentInputWatermark", "value": "4000"},
        {"id": "1.currentInputWatermark", "value": "4001"},
    ]
    (restarts,) = rest.get("/jobs/metrics?get=numRestarts")
    assert restarts == {"id": "numRestarts", "min": 1, "max": 1, "avg": 1.0, "sum": 1, "skew": 0.0}


def test_prometheus_has_flinks_names(rest: Rest) -> None:
    status, text = rest.text("GET", "/metrics")
    assert status == 200
    found = samples(text)
    ((labels, duration),) = found["flink_jobmanager_job_lastCheckpointDuration"].items()
    assert dict(labels) == {"job_id": rest.job.id, "job_name": "sums"}
    assert duration == 450
    busy = {
        (dict(labels)["task_name"], dict(labels)["subtask_index"]): value
        for labels, value in found["flink_taskmanager_job_task_busyTimeMsPerSecond"].items()
    }
    assert busy["Source: sequence -> map double", "0"] == 600
    records = found["flink_taskmanager_job_task_operator_numRecordsIn"]
    assert sum(value for labels, value in records.items() if dict(labels)["operator_id"] == "sums") == 400
    odd = found["flink_taskmanager_job_task_operator_odd"]
    assert sorted(odd.values()) == [2, 4]
    assert all(dict(labels)["host"] == "node" for labels in odd)


def test_prometheus_survives_any_name_of_a_counter_or_job() -> None:
    from rest_kit import heartbeat

    from tidegate.ids import SlotId
    from tidegate.wire.control import OperatorMetrics

    with serving() as rest:
        lived(rest.hands.view)
        counters = {'we"ird\\\n{}': 7, "numRecordsIn": 9}
        rest.hands.view.publish(
            heartbeat(SlotId(0, 0), 1, 1, 1, [OperatorMetrics("numbers~map double", 0, 5, 5, counters=counters)])
        )
        found = samples(rest.text("GET", "/metrics")[1])
        assert 7 in found["flink_taskmanager_job_task_operator_we_ird____"].values()
        assert 9 in found["flink_taskmanager_job_task_operator_numRecordsIn_user"].values()


def test_operators_at_a_glance(rest: Rest) -> None:
    found = {entry["uid"]: entry for entry in rest.get("/jobs/{job}/operators")["operators"]}
    sums = found["sums"]
    assert (sums["recordsIn"], sums["inPerSecond"], sums["parallelism"], sums["isHead"]) == (400, 200.0, 2, True)
    assert (sums["watermark"], sums["stateSize"], sums["backPressured"]) == (4000, 2000, 0.4)
    assert found["numbers~map double"]["counters"] == {"odd": 6}
    assert found["printed"]["watermark"] is None
    assert (sums["bytesIn"], sums["bytesOut"], found["numbers~map double"]["bytesOut"]) == (4000, 0, 4000)
    assert sums["hotKeys"] == [
        {"uid": "sums", "subtask": 1, "key": "key-1", "share": 0.25, "records": 100},
        {"uid": "sums", "subtask": 0, "key": "key-0", "share": 0.125, "records": 50},
    ]
    assert found["numbers"]["hotKeys"] == []


def test_the_log_is_read_on_from_where_one_was(rest: Rest) -> None:
    first = rest.get("/jobs/{job}/logs")
    messages = [line["message"] for line in first["lines"]]
    assert messages[0] == "INITIALIZING"
    assert "ValueError: bad\n  in map" in messages
    errors = rest.get("/jobs/{job}/logs?level=ERROR")["lines"]
    assert [(line["uid"], line["subtask"], line["attempt"]) for line in errors] == [("numbers~map double", 1, "g1-a1")]
    rest.hands.view.log(JobLine(1.0, "INFO", "l", "one more"))
    second = rest.get(f"/jobs/{{job}}/logs?from={first['next']}")
    assert [line["message"] for line in second["lines"]] == ["one more"]
    assert rest.get(f"/jobs/{{job}}/logs?from={second['next']}")["lines"] == []


def test_while_a_job_restarts_nothing_is_told_of_what_flowed_before() -> None:
    ticks = itertools.count()
    with serving(clock=lambda: float(next(ticks) // 4)) as rest:
        lived(rest.hands.view)

        def told() -> set[bool]:
            found = rest.get("/jobs/{job}/operators")["operators"]
            return {operator[what] is None for operator in found for what in ("outPerSecond", "busy")}

        assert told() == {False}
        rest.hands.view.publish(StatusChanged(JobStatus.RESTARTING, "in 50.0 s: ValueError: bad", 1020.0))
        assert told() == {True}


def test_after_a_savepoint_the_size_of_the_state_is_that_of_the_checkpoint_before() -> None:
    with serving() as rest:
        lived(rest.hands.view)

        def sizes() -> dict[str, int]:
            return {o["uid"]: o["stateSize"] for o in rest.get("/jobs/{job}/operators")["operators"] if o["stateSize"]}

        assert sizes() == {"sums": 2000}
        tables = checkpoint(9).statistics  # as it is noted: parts without a size for each operator
        rest.hands.view.publish(CheckpointChanged(replace(tables, purpose="savepoint")))
        assert sizes() == {"sums": 2000}


def test_a_job_before_its_first_attempt_and_after_its_end_is_shown() -> None:
    with serving() as rest:
        paths = ["", "/plan", "/checkpoints", "/exceptions", "/operators", "/logs", "/accumulators", "/metrics"]
        paths += [
            f"/vertices/{rest.vertex(0)}{more}" for more in ("", "/backpressure", "/subtasktimes", "/taskmanagers")
        ]
        for path in paths:
            rest.get(f"/jobs/{{job}}{path}")
        assert rest.get("/jobs/{job}")["state"] == "CREATED"
        lived(rest.hands.view)
        rest.hands.view.publish(StatusChanged(JobStatus.FINISHED, "", rest.job.started_at + 5))
        for path in paths:
            rest.get(f"/jobs/{{job}}{path}")
        (entry,) = rest.get("/jobs/overview")["jobs"]
        assert (entry["state"], entry["duration"]) == ("FINISHED", 5000)
        shown = set(samples(rest.text("GET", "/metrics")[1]))
        assert shown == {"process_resident_memory_bytes", "process_cpu_seconds_total"}, (
            "what has ended is no longer measured"
        )
        told = rest.get("/jobs/{job}/operators")["operators"]
        assert {operator[what] for operator in told for what in ("outPerSecond", "watermarkLag")} == {None}
        assert rest.get("/overview")["jobs-finished"] == 1


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        ([], {"min": 0, "max": 0, "avg": 0, "p50": 0.0, "p999": 0.0}),
        ([7], {"min": 7, "max": 7, "avg": 7, "p50": 7.0, "p999": 7.0}),
        (list(range(1000, 0, -1)), {"min": 1, "max": 1000, "avg": 500, "p50": 501.0, "p90": 901.0, "p99": 991.0}),
    ],
)
def test_summary(sample: list[float], expected: dict[str, Any]) -> None:
    found = summary(sample)
    assert {key: found[key] for key in expected} == expected


# -- the flame graph --------------------------------------------------------------------------------------------------


def test_the_flame_graph_is_sampled_when_asked_for_and_has_flinks_shape() -> None:
    with serving(clock=lambda: 100.0) as rest:
        lived(rest.hands.view)
        path = f"/jobs/{{job}}/vertices/{rest.vertex(1)}/flamegraph"
        assert rest.get(f"{path}?type=on_cpu") == {"endTimestamp": -3}  # Flink's word for "wait"
        assert rest.get(path) == {"endTimestamp": -3}
        assert rest.hands.sampled == [[SlotId(1, 0), SlotId(1, 1)]]  # told once: the order is still new

        ours = CodeLine("Slot.turn", "/lib/tidegate/task/slot.py", 12, "tidegate")
        users = CodeLine("Sums.process_element", "/home/me/jobs/sums.py", 7, "user")
        stacks = [SampledStack("sums", [0, 1], 30, 10), SampledStack("", [0], 5, 0), SampledStack("other", [0], 9, 9)]
        rest.hands.view.publish(SlotSampled(SlotId(1, 1), Sampled([ours, users], stacks)))

        full = rest.get(path)
        assert full["endTimestamp"] > 0
        assert full["data"]["name"] == "root"
        assert full["data"]["value"] == 35
        (turn,) = full["data"]["children"]
        assert (turn["name"], turn["value"]) == ("[tidegate] Slot.turn (task/slot.py:12)", 35)
        (line,) = turn["children"]
        assert line == {
            "name": "Sums.process_element (jobs/sums.py:7)",
            "value": 30,
            "children": [],
            "owner": "user",
            "line": "/home/me/jobs/sums.py:7",
        }
        assert rest.get(f"{path}?type=ON_CPU")["data"]["value"] == 10
        assert rest.get(f"{path}?type=off_cpu")["data"]["value"] == 25
        assert rest.get(f"{path}?operator=printed")["data"]["value"] == 0
        assert rest.get(f"{path}?subtaskindex=0") == {"endTimestamp": -3}
        assert rest.get(f"{path}?subtaskindex=1")["data"]["value"] == 35

        dump = "/taskmanagers/node:103/thread-dump"
        innermost = rest.get(dump)["threadInfos"][0]["stringifiedThreadInfo"]
        assert innermost == (
            '"task" in operator "sums": 30 of 44 samples of the last 10 s, 10 of them on CPU\n'
            "\tat Sums.process_element (jobs/sums.py:7)\n\tat [tidegate] Slot.turn (task/slot.py:12)\n"
        )
        (other,) = rest.get(dump.replace("103", "102"))["threadInfos"]
        assert "ask again in a few seconds" in other["stringifiedThreadInfo"]

        for wrong in ("type=sideways", "subtaskindex=x", "operator=nobody", "seconds=-1"):
            assert rest("GET", f"{path}?{wrong}")[0] == 400
        assert rest("GET", f"{path}?subtaskindex=2")[0] == 404
        rest.hands.view.publish(started(3))
        assert rest.get(path) == {"endTimestamp": -3}  # other processes, of which nothing is known
        rest.hands.view.publish(StatusChanged(JobStatus.FINISHED, "", 2000.0))
        assert rest.get(path) == {"endTimestamp": -1}
