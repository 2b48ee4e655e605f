"""The manifests in operations/kubernetes, as far as they can be tried without a cluster.

The classes with which Spark talks to Kubernetes know every field. The executors' pods are made by Spark, of the settings and
the templates, as its driver makes them; what a gang is said to need is what these pods ask for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from py4j.java_collections import JavaMap

import fetch
from services import had
from tidegate.cli.config_file import read_config_file
from tidegate.cli.main import _split_at_program, make_parser
from tidegate.config import JobConfig
from tidegate.protocol.leaving import NOTICE_S
from tidegate.spark.session import session_settings

FOLDER = Path(__file__).parents[2] / "operations" / "kubernetes"
MANIFESTS = ("job.yaml", "executor.yaml", "executor-volcano.yaml", "executor-yunikorn.yaml", "volcano.yaml")
MASTER = "k8s://https://kubernetes.default.svc"
UNITS = {"Mi": 1 << 20, "Gi": 1 << 30}


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


def one(kind: str) -> dict[str, Any]:
    (found,) = [document for name in MANIFESTS for document in documents(name) if document["kind"] == kind]
    return found


def settings() -> dict[str, str]:
    return {setting.key: setting.value for setting in read_config_file(str(FOLDER / "settings.yaml"))}


# -- without Java -----------------------------------------------------------------------------------------------------


def test_the_drivers_command_is_one_that_the_command_line_takes() -> None:
    (driver,) = one("StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert driver["command"][-1] == "tidegate"
    options, own = _split_at_program(driver["args"])
    parsed = make_parser().parse_args(options)
    assert (parsed.program, parsed.resume, parsed.master, own) == ("/app/job.py", "latest", MASTER, [])
    mounted = driver["volumeMounts"][0]["mountPath"]
    assert parsed.config == f"{mounted}/settings.yaml"
    assert settings()["spark.kubernetes.executor.podTemplateFile"] == f"{mounted}/executor.yaml"


def test_the_driver_has_the_time_for_the_checkpoint_that_sigterm_asks_for() -> None:
    pod = one("StatefulSet")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > JobConfig().on_term_timeout_s


def test_driver_and_executors_are_of_one_image_and_one_user() -> None:
    pod = one("StatefulSet")["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == settings()["spark.kubernetes.container.image"]
    users = {
        pod["securityContext"]["fsGroup"],
        *(t["spec"]["securityContext"]["fsGroup"] for t in templates().values()),
    }
    assert users == {pod["securityContext"]["runAsUser"]}


def templates() -> dict[str, dict[str, Any]]:
    return {name: documents(name)[0] for name in MANIFESTS if name.startswith("executor")}


def test_a_gang_is_all_executors() -> None:
    (group,) = json.loads(
        templates()["executor-yunikorn.yaml"]["metadata"]["annotations"]["yunikorn.apache.org/task-groups"]
    )
    members = {group["minMember"], one("PodGroup")["spec"]["minMember"]}
    assert members == {int(settings()["spark.executor.instances"])}


# -- with Spark's own classes, in a JVM without a Spark -----------------------------------------------------------------


@pytest.fixture(scope="module")
def jvm(no_process_is_left_behind: None) -> Iterator[Any]:
    from pyspark.java_gateway import launch_gateway

    gateway = launch_gateway()
    yield gateway.jvm
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


@pytest.mark.parametrize("name", MANIFESTS)
def test_kubernetes_knows_every_field(jvm: Any, name: str) -> None:
    for document in documents(name):
        assert unknown_fields(jvm, document) == []


def test_a_field_that_kubernetes_does_not_know_is_found(jvm: Any) -> None:
    document = one("StatefulSet")
    document["spec"]["template"]["spec"]["terminationGracePeriod"] = 45
    assert unknown_fields(jvm, document) == ["spec.template.spec.terminationGracePeriod"]
    document = one("PodGroup")
    document["spec"]["minMembers"] = 3
    assert unknown_fields(jvm, document) == ["spec.minMembers"]


def unknown_fields(jvm: Any, document: dict[str, Any]) -> list[str]:
    """A value of another type than the field's raises."""
    serialization = jvm.io.fabric8.kubernetes.client.utils.KubernetesSerialization()
    return list(unknown(serialization.unmarshal(json.dumps(document)), document, ""))


def unknown(read: Any, written: Any, path: str) -> Iterator[str]:
    """What the model has put aside because it has no such field."""
    if isinstance(written, list):
        for index, item in enumerate(written):
            yield from unknown(read.get(index), item, path)
    elif isinstance(written, dict) and not isinstance(read, JavaMap):
        aside = read.getAdditionalProperties()
        for key, value in written.items():
            if aside.containsKey(key):
                yield f"{path}{key}"
            elif isinstance(value, dict | list):
                yield from unknown(getattr(read, f"get{key[0].upper()}{key[1:]}")(), value, f"{path}{key}.")


@pytest.mark.slow
@pytest.mark.parametrize("release", fetch.KUBERNETES)
def test_the_published_schema_allows_the_manifests_and_what_spark_makes_of_the_templates(
    jvm: Any, release: str
) -> None:
    folder = had("schema of Kubernetes", fetch.NotFetched, lambda: fetch.folder_of("kubernetes"))
    schema = json.loads((folder / f"{release}.json").read_text(encoding="utf-8"))
    checked = [*documents("job.yaml"), *(executor(jvm, name)[0] for name in templates())]
    assert [mistake for document in checked for mistake in mistakes(schema, document)] == []
    checked[-1]["spec"]["terminationGracePeriod"] = 45
    assert len(mistakes(schema, checked[-1])) == 1


def mistakes(schema: dict[str, Any], document: dict[str, Any]) -> list[str]:
    group, _, version = document["apiVersion"].rpartition("/")
    kind = {"group": group, "version": version, "kind": document["kind"]}
    (name,) = [
        name for name, each in schema["$defs"].items() if kind in each.get("x-kubernetes-group-version-kind", [])
    ]
    wanted = {"$schema": schema["$schema"], "$defs": schema["$defs"], "$ref": f"#/$defs/{name}"}
    found = jsonschema_rs.validator_for(wanted).iter_errors(document)
    return [f"{document['kind']}: {mistake.instance_path}: {mistake.message}" for mistake in found]


@pytest.mark.parametrize("name", ["executor.yaml", "executor-volcano.yaml", "executor-yunikorn.yaml"])
def test_spark_makes_the_executors_of_the_template_and_the_settings(jvm: Any, name: str) -> None:
    template, (pod, claims) = templates()[name], executor(jvm, name)
    metadata, spec = pod["metadata"], pod["spec"]

    assert spec.get("schedulerName") == template["spec"].get("schedulerName")
    assert spec["securityContext"] == template["spec"]["securityContext"]
    assert template["metadata"]["labels"].items() <= metadata["labels"].items()
    assert template["metadata"].get("annotations", {}).items() <= metadata.get("annotations", {}).items()
    (claim,) = claims
    (volume,) = [v["name"] for v in spec["volumes"] if "persistentVolumeClaim" in v]
    (container,) = spec["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts[volume] == settings()["state.backend.rocksdb.localdir"]
    assert (claim["spec"]["resources"]["requests"], claim["spec"]["storageClassName"]) == (
        {"storage": "50Gi"},
        "standard",
    )


def test_an_executor_that_is_told_to_go_listens_for_what_sparks_image_sends_and_has_two_minutes(jvm: Any) -> None:
    pod, _ = executor(jvm, "executor.yaml")
    (container,) = pod["spec"]["containers"]
    assert container["lifecycle"]["preStop"]["exec"]["command"] == ["/opt/decom.sh"], "which sends SIGPWR"
    assert session_settings(MASTER, spark_settings())["spark.executor.decommission.signal"] == "PWR"
    assert pod["spec"]["terminationGracePeriodSeconds"] == NOTICE_S


def test_gangs_ask_for_what_their_executors_ask_for(jvm: Any) -> None:
    pod, _ = executor(jvm, "executor.yaml")
    asked = pod["spec"]["containers"][0]["resources"]["requests"]
    cores, size = Decimal(asked["cpu"]), size_bytes(asked["memory"])
    (group,) = json.loads(
        templates()["executor-yunikorn.yaml"]["metadata"]["annotations"]["yunikorn.apache.org/task-groups"]
    )
    each = group["minResource"]
    assert (Decimal(each["cpu"]), size_bytes(each["memory"])) == (cores, size)
    whole, members = one("PodGroup")["spec"]["minResources"], one("PodGroup")["spec"]["minMember"]
    assert (Decimal(whole["cpu"]), size_bytes(whole["memory"])) == (members * cores, members * size)


def test_spark_knows_every_setting(jvm: Any) -> None:
    jvm.org.apache.spark.deploy.k8s.Config.KUBERNETES_NAMESPACE()  # those of Kubernetes are made with the first of them
    volumes = "spark.kubernetes.executor.volumes.persistentVolumeClaim.state."
    parts = ("options.claimName", "options.storageClass", "options.sizeLimit", "mount.path", "mount.readOnly")
    known = jvm.org.apache.spark.internal.config.ConfigEntry.findEntry
    assert known("spark.executor.instance") is None
    unknown = {key for key in spark_settings() if known(key) is None}
    assert unknown == {volumes + part for part in parts}, "those of a volume are found by their prefix"


def test_spark_gives_the_volume_of_an_executor_that_is_gone_to_the_next(jvm: Any) -> None:
    """The defaults on which settings.yaml relies."""
    for name in ("KUBERNETES_DRIVER_OWN_PVC", "KUBERNETES_DRIVER_REUSE_PVC"):
        assert getattr(jvm.org.apache.spark.deploy.k8s.Config, name)().defaultValueString() == "true"


def spark_settings() -> dict[str, str]:
    return {key: value for key, value in settings().items() if key.startswith("spark.")}


def executor(jvm: Any, template: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The pod that Spark's driver would ask Kubernetes for, and its volume claims."""
    conf = jvm.org.apache.spark.SparkConf(False)
    given = {**spark_settings(), "spark.kubernetes.executor.podTemplateFile": str(FOLDER / template)}
    for key, value in {
        **session_settings(MASTER, given),
        "spark.app.name": "orders",
        "spark.driver.host": "10.1.2.3",
    }.items():
        conf.set(key, value)
    nothing = jvm.scala.Option.apply(None)
    config, profiles = (
        getattr(getattr(package, name), "MODULE$")  # an object of Scala's
        for package, name in (
            (jvm.org.apache.spark.internal.config, "package$"),
            (jvm.org.apache.spark.resource, "ResourceProfile$"),
        )
    )
    made = jvm.org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBuilder().buildFromFeatures(
        jvm.org.apache.spark.deploy.k8s.KubernetesConf.createExecutorConf(conf, "1", "spark-orders", nothing, 0),
        jvm.org.apache.spark.SecurityManager(conf, nothing, config.AUTH_SECRET_FILE()),
        jvm.io.fabric8.kubernetes.client.KubernetesClientBuilder().build(),
        profiles.getOrCreateDefaultProfile(conf),
    )
    serialization = jvm.io.fabric8.kubernetes.client.utils.KubernetesSerialization()
    pod = json.loads(serialization.asJson(made.pod().pod()))
    pod["spec"]["containers"] = [json.loads(serialization.asJson(made.pod().container()))]
    others = made.executorKubernetesResources()
    more = [json.loads(serialization.asJson(others.apply(index))) for index in range(others.size())]
    return pod, [resource for resource in more if resource["kind"] == "PersistentVolumeClaim"]


def size_bytes(text: str) -> int:
    return int(text[:-2]) * UNITS[text[-2:]]
