"""One table of metrics: what /metrics shows, the docs, the Grafana board and the alert rules all agree with it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from cli_kit import attempt
from rest_kit import SLOTS, completed, heartbeat, lived, samples, serving

import tidegate as tg
from tidegate.connectors.contract import CommitOutcome, ReaderContext, SourceReader
from tidegate.connectors.sequence import NumberSequence
from tidegate.coordinator.measuring import BOUNDS_S, Histogram, JobMeasures
from tidegate.coordinator.moving import ScalingDecided
from tidegate.coordinator.observing import AttemptFailed, CheckpointStatus
from tidegate.process_use import process_use
from tidegate.rest.metric_table import BY_FAMILY, METRICS, Type
from tidegate.task.commit_counts import CommitCounts
from tidegate.testing import run_in_process
from tidegate.testing.ledger_sink import LedgerSink
from tidegate.wire.control import OperatorMetrics, ProcessUse, SnapshotTimings

ROOT = Path(__file__).parents[2]
BOARD = ROOT / "operations" / "grafana" / "tidegate.json"
ALERTS = ROOT / "operations" / "prometheus" / "alerts.yml"
SUFFIXES = ("_bucket", "_sum", "_count")


@pytest.fixture(scope="module")
def page() -> str:
    """Of a job that has lived, with a Kafka source, a sink that commits, RocksDB and failures."""
    with serving() as rest:
        lived(rest.hands.view)
        own = {m.name: 7.0 for m in METRICS if m.help.startswith(("Kafka: ", "sinks: ", "RocksDB: "))}
        beat = heartbeat(SLOTS[0], 1, 1, 1, [OperatorMetrics("numbers", 0, 5, 5, 1000, own=own, counters={"odd": 1})])
        process = ProcessUse(123_000_000, 4_500)
        rest.hands.view.publish(type(beat)(beat.slot, msgspec.structs.replace(beat.heartbeat, process=process)))
        rest.hands.view.publish(completed(5, status=CheckpointStatus.FAILED, failure="expired: after 10 s"))
        rest.hands.view.publish(ScalingDecided({"sums": 3}, "sums: 2 to 3 (95% busy)", 1.0))
        return rest.text("GET", "/metrics")[1]


def family_of(sample: str) -> str:
    if sample in BY_FAMILY:
        return sample
    return next((sample.removesuffix(s) for s in SUFFIXES if sample.removesuffix(s) in BY_FAMILY), sample)


def test_what_is_shown_is_in_the_table_with_its_labels(page: str) -> None:
    users = {"flink_taskmanager_job_task_operator_odd"}
    for sample, labelled in samples(page).items():
        metric = BY_FAMILY.get(family_of(sample))
        if metric is None:
            assert sample in users
            continue
        for labels in labelled:
            more = {"le"} if sample.endswith("_bucket") else set()
            assert {name for name, _ in labels} == {*metric.labels} | more, sample


def test_all_of_the_table_is_shown(page: str) -> None:
    """But for what comes only with a restore that has read files."""
    shown = {family_of(sample) for sample in samples(page)}
    of_restores = {"lastRestoreDuration", "restoredLocalBytes", "restoredStorageBytes", "rejectedLocalCopies"}
    assert {m.family for m in METRICS} - shown == {m.family for m in METRICS if m.name in of_restores}


def test_types_and_help_are_the_tables(page: str) -> None:
    lines = page.splitlines()
    assert "# TYPE flink_taskmanager_job_task_numRecordsIn counter" in lines
    assert "# TYPE flink_taskmanager_job_task_operator_odd counter" in lines
    assert "# TYPE tidegate_job_latency_seconds histogram" in lines
    assert (
        "# HELP flink_jobmanager_job_lastCheckpointDuration milliseconds from its trigger until it was complete"
        in lines
    )


def test_workers_and_the_driver_show_their_memory_and_cpu(page: str) -> None:
    found = samples(page)
    resident = found["tidegate_worker_resident_memory_bytes"]
    by_slot = {dict(labels)["slot"]: (dict(labels)["tm_id"], value) for labels, value in resident.items()}
    assert set(by_slot) == {str(slot) for slot in SLOTS}
    assert by_slot[str(SLOTS[0])] == ("node:100", 123_000_000)
    cpu = {dict(labels)["slot"]: value for labels, value in found["tidegate_worker_cpu_seconds_total"].items()}
    assert cpu[str(SLOTS[0])] == 4.5
    assert found["process_resident_memory_bytes"][frozenset()] > 1_000_000
    assert process_use().cpu_ms > 0


def test_failures_are_counted_by_kind_given_up_checkpoints_by_reason_and_scalings_by_outcome(page: str) -> None:
    found = samples(page)
    ((labels, number),) = found["tidegate_job_failures_total"].items()
    assert (dict(labels)["kind"], number) == ("UserCodeFailed", 1)
    ((labels, number),) = found["tidegate_job_failed_checkpoints_total"].items()
    assert (dict(labels)["reason"], number) == ("expired", 1)
    ((labels, number),) = found["tidegate_job_scaling_decisions_total"].items()
    assert (dict(labels)["outcome"], number) == ("rescaled", 1)


def test_latency_is_taken_from_the_barriers_of_aligned_checkpoints_alone() -> None:
    measures = JobMeasures()
    measures.note(completed(1))
    first = measures.read().latency_s
    assert {layer: sum(histogram.buckets) for layer, histogram in first.items()} == {1: 2}
    assert first[1].sum_s == pytest.approx(2 * (0.010 + 0.020))

    done = completed(2).statistics
    unaligned = {
        slot: type(part)(part.acknowledged_after_s, msgspec.structs.replace(part.timings, unaligned=True))
        for slot, part in done.acknowledged.items()
    }
    measures.note(completed(2, acknowledged=unaligned))
    assert measures.read().latency_s == first
    assert sum(measures.read().checkpoint_s.buckets) == 2
    assert isinstance(done.acknowledged[SLOTS[0]].timings, SnapshotTimings)


def test_a_bound_belongs_to_its_bucket_and_buckets_of_the_page_add_up(page: str) -> None:
    histogram = Histogram()
    for seconds in (0.005, 0.006, 10_000.0):
        histogram.observe(seconds)
    assert (histogram.buckets[0], histogram.buckets[1], histogram.buckets[-1]) == (1, 1, 1)

    buckets = samples(page)["tidegate_job_checkpoint_duration_seconds_bucket"]
    by_bound = {dict(labels)["le"]: number for labels, number in buckets.items()}
    assert list(by_bound) == [*map(str, BOUNDS_S), "+Inf"]
    assert list(by_bound.values()) == sorted(by_bound.values())
    assert by_bound["+Inf"] == 3


def test_failures_without_a_kind_are_counted_too() -> None:
    measures = JobMeasures()
    measures.note(AttemptFailed(attempt(), "gone", None, 1.0))
    assert measures.read().failures == {"unknown": 1}


def test_commits_are_timed_and_their_outcomes_counted() -> None:
    counts = CommitCounts()
    counts.asked(0.25)
    counts.asked(0.5)
    for outcome in (CommitOutcome.DONE, CommitOutcome.RETRY, CommitOutcome.DONE, "nonsense"):
        counts.answered(outcome)

    assert counts.metrics() == {
        "numCommits": 2,
        "accumulateCommitTimeMs": 750,
        "lastCommitDuration": 500,
        "successfulCommittables": 2,
        "alreadyCommittedCommittables": 0,
        "retriedCommittables": 1,
        "failedCommittables": 0,
    }


# -- docs, board, alerts ------------------------------------------------------------------------------------------------


def documented() -> str:
    """The rows of docs/metrics.md, as the table has them."""
    return "\n".join(
        f"| `{m.family}` | {m.type.value} | {m.help} |{''.join(f' `{name}`' for name in m.more_labels)} |"
        for m in METRICS
    )


def test_the_docs_have_a_row_for_each_metric_and_no_other() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = [
        line for line in text.splitlines() if re.match(r"\| `[a-z_]+[a-zA-Z0-9_]*` \| (counter|gauge|histogram) ", line)
    ]
    assert rows == documented().splitlines()


def expressions(value: Any) -> Iterator[str]:
    """Every PromQL expression of the board or the rules."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key in ("expr", "definition") and isinstance(part, str):
                yield part
            else:
                yield from expressions(part)
    elif isinstance(value, list):
        for part in value:
            yield from expressions(part)


_SELECTOR = re.compile(r"\b((?:flink|tidegate|process)_[a-zA-Z0-9_]+)(?:\s*\{([^}]*)\})?")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")


@pytest.mark.parametrize("file", [BOARD, ALERTS], ids=lambda file: file.name)
def test_board_and_alerts_name_metrics_and_labels_that_exist(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    found = list(expressions(json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)))
    assert len(found) > 8
    for expression in found:
        names = _SELECTOR.findall(expression)
        assert names, expression
        labels = {"le"}
        for sample, matchers in names:
            metric = BY_FAMILY.get(family_of(sample))
            assert metric is not None, f"{sample} is not a metric: {expression}"
            assert (metric.type is Type.HISTOGRAM) == (family_of(sample) != sample), expression
            assert set(re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)", matchers)) <= set(metric.labels), expression
            labels |= set(metric.labels)
        for group in _GROUPING.findall(expression):
            assert {name.strip() for name in group.split(",")} <= labels, expression
        assert expression.count("(") == expression.count(")"), expression


def test_each_alert_says_what_it_is_and_what_to_do() -> None:
    (group,) = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}, rule["alert"]


# -- what slots know ----------------------------------------------------------------------------------------------------


class Lagging(NumberSequence):
    """A source whose reader says how much there is to read, or fails to."""

    def __init__(self, fails: bool) -> None:
        super().__init__(1, 50, splits=1)
        self.fails = fails

    def reader(self, context: ReaderContext) -> SourceReader:
        reader = super().reader(context)

        def metrics() -> dict[str, float]:
            if self.fails:
                raise RuntimeError("nobody knows")
            return {"pendingRecords": 3, "odd": float("nan")}

        reader.metrics = metrics  # type: ignore[method-assign]
        return reader


def own_metrics(fails: bool, tmp_path: Path) -> dict[str, dict[str, float]]:
    """Of each operator of a job that has finished, by uid."""
    env = (
        tg.StreamEnvironment("numbers")
        .state_backend("rocksdb", folder=str(tmp_path))
        .checkpointing(every="10ms", storage=f"file://{tmp_path}/storage")
    )
    numbers = env.from_source(Lagging(fails), uid="numbers").key_by(lambda n: n % 3, key_type=int)
    numbers.count(uid="counts").sink_to(LedgerSink("metrics"), uid="out")
    result = run_in_process(env)
    assert result.status is tg.JobStatus.FINISHED
    return {m.uid: m.own for heartbeat in result.view.heartbeats.values() for m in heartbeat.operators}


def test_sources_state_and_sinks_add_their_own(tmp_path: Path) -> None:
    own = own_metrics(fails=False, tmp_path=tmp_path)

    assert own["numbers"] == {"pendingRecords": 3}
    assert set(own["counts"]) == {m.name for m in METRICS if m.help.startswith("RocksDB: ")}
    assert own["counts"]["rocksdb.block-cache-usage"] > 0
    assert set(own["out"]) == {m.name for m in METRICS if m.help.startswith("sinks: ")}


def test_a_source_that_cannot_say_is_left_out_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert own_metrics(fails=True, tmp_path=tmp_path)["numbers"] == {}
    assert [r.getMessage() for r in caplog.records if "not shown" in r.getMessage()] == [
        "metrics of Lagging are not shown: RuntimeError: nobody knows"
    ]
