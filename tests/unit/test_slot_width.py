"""How much of a core a slot takes. Pure: what Spark makes of it is in tests/spark/test_narrow_slots.py."""

from __future__ import annotations

import pytest

from tidegate.errors import SparkSettingsError
from tidegate.spark.session import local_cores
from tidegate.spark.slot_width import cluster_settings, local_width, narrow, narrower, parse_width, slots_of


@pytest.mark.parametrize("cores", [1, 2, 3, 7, 16, 96])
def test_so_many_slots_fit_as_were_asked_for(cores: int) -> None:
    for slots in (1, 2, 3, 7, 16, 33, 64, 128, 256, 999):
        assert slots_of(cores, narrow(cores, slots)) >= min(slots, 1000 * cores)
        assert parse_width(narrow(cores, slots)) <= 1


def test_a_local_master_with_few_cores_gets_narrow_slots() -> None:
    assert local_width(2, 34, {}) == {"spark.task.cpus": "0.058"}
    assert local_width(34, 34, {}) == {}
    assert local_width(2, 34, {"spark.task.cpus": "1"}) == {}, "what the user says holds"
    assert [local_cores(master) for master in ("local[2]", "local[12,3]")] == [2, 12]


@pytest.mark.parametrize(
    ("master", "layers", "given", "expected"),
    [
        ("spark://host:7077", 1, {}, {}),
        ("spark://host:7077", 4, {}, {"spark.task.cpus": "0.25"}),
        ("spark://host:7077", 3, {}, {"spark.task.cpus": "0.333"}),
        ("spark://host:7077", 4, {"spark.task.cpus": "1"}, {}),
        ("yarn", 1, {}, {"spark.executor.instances": "7", "spark.executor.memoryOverhead": "640m"}),
        (
            "yarn",
            3,
            {"spark.executor.cores": "2"},
            {"spark.task.cpus": "0.333", "spark.executor.instances": "2", "spark.executor.memoryOverhead": "1920m"},
        ),
        ("k8s://https://host", 1, {"spark.executor.instances": "3", "spark.executor.memoryOverhead": "6g"}, {}),
        (
            "k8s://https://host",
            2,
            {"spark.executor.cores": "4", "spark.task.cpus": "2", "spark.executor.memoryOverheadFactor": "0.5"},
            {"spark.executor.instances": "4"},
        ),
        (
            "k8s://https://host",
            2,
            {"spark.executor.cores": "1", "spark.task.cpus": "0.25", "spark.executor.memoryOverheadFactor": "0.5"},
            {"spark.executor.instances": "2"},
        ),
    ],
)
def test_a_cluster_has_a_core_for_one_slot_of_each_layer(
    master: str, layers: int, given: dict[str, str], expected: dict[str, str]
) -> None:
    assert cluster_settings(master, 7, layers, given) == expected


@pytest.mark.parametrize("text", ["0", "-1", "many", "", "NaN", "inf"])
def test_a_width_that_is_not_one_is_named(text: str) -> None:
    with pytest.raises(SparkSettingsError, match=r"spark\.task\.cpus is how many cores a slot takes"):
        parse_width(text)


def test_how_narrow_slots_would_have_to_be_is_said() -> None:
    assert narrower(there=4, needed=16, width="1") == "0.25"
    assert narrower(there=8, needed=33, width="0.5") == "0.121"
    assert narrower(there=0, needed=16, width="1") == ""
