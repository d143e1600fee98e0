"""The Helm chart as rendered by Helm: Kubernetes and Leveret accept the output in each of its uses (make helm)."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from harness import image
from harness.certificates import TestCa
from harness.child import clean_environment
from harness.leveret import ROOT, run
from harness.patience import PATIENCE

if "LEVERET_HELM" not in os.environ:
    pytest.skip("Helm takes minutes to build: make helm", allow_module_level=True)

CHART = ROOT / "packaging" / "helm" / "leveret"
USES = sorted(path.stem for path in (CHART / "ci").glob("*.yaml"))
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
# Without a cluster, Helm assumes version 1.20.
KUBERNETES = ("--kube-version", "1.33.0")
CONFIG = "/etc/leveret/config/leveret.toml"


@pytest.fixture(scope="module")
def helm():
    return os.environ["LEVERET_HELM"]


@pytest.fixture
def render(helm, tmp_path):
    """Renders the chart with values; returns the objects by kind."""

    def objects(values, release="leveret"):
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump(values))
        code, output, error = call(helm, "template", release, CHART, "--values", file, *KUBERNETES)
        assert code == 0, error
        documents = [document for document in yaml.safe_load_all(output) if document]
        assert all(document["metadata"]["name"] == release for document in documents if release == "leveret")
        kinds = {document["kind"]: document for document in documents}
        assert len(kinds) == len(documents)
        return kinds

    return objects


@pytest.mark.parametrize("use", USES)
def test_an_example_passes_helm_lint_and_its_settings_pass_config_check(helm, render, tmp_path, use):
    code, output, error = call(helm, "lint", "--strict", CHART, "--values", CHART / "ci" / f"{use}.yaml")
    assert code == 0, output + error
    objects = render(example(use))
    checked = environment(objects, tmp_path)
    assert run("config", "check", env=checked) == (0, "", "")
    # The program knows every variable.
    shown = run("config", "print", env=checked)[1]
    effective = set(re.findall(r"  # (LEVERET_\w+)$", shown, re.MULTILINE))
    assert effective == {name for name in checked if name.startswith("LEVERET_") and name != "LEVERET_CONFIG"}


@pytest.mark.parametrize("use", USES)
def test_a_pod_has_no_rights_and_is_probed_where_it_listens(render, use):
    objects = render(example(use))
    pod, container = pod_of(objects), container_of(objects)
    assert pod["automountServiceAccountToken"] is False and pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    user = int(image.instruction("USER").partition(":")[0])
    assert {pod["securityContext"][key] for key in ("runAsUser", "runAsGroup", "fsGroup")} == {user}
    context = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert container["securityContext"] == context
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    settings = {entry["name"]: entry["value"] for entry in container["env"]}
    for name in VALUES["listeners"]:
        address = f"0.0.0.0:{ports[name]}" if name in ports else "off"
        assert settings[f"LEVERET_{name.upper()}"] == address
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert all(port["targetPort"] in ports for port in objects["Service"]["spec"]["ports"])


@pytest.mark.parametrize("use", USES)
def test_a_pod_has_the_time_that_its_drain_takes(render, use):
    objects = render(example(use))
    settings = {entry["name"]: entry["value"] for entry in container_of(objects)["env"]}
    steps = [int(settings[f"LEVERET_DRAIN_{step}"].removesuffix("s")) for step in ("DELAY", "SPREAD", "TIMEOUT")]
    margin = pod_of(objects)["terminationGracePeriodSeconds"] - sum(steps)
    assert margin == example(use).get("drain", {}).get("margin", VALUES["drain"]["margin"])
    if example(use).get("upstream"):
        probe = container_of(objects)["readinessProbe"]
        assert steps[0] >= 2 * probe["periodSeconds"], "load balancers are told before clients are"


@pytest.mark.parametrize("use", USES)
def test_selectors_match_the_labels_of_the_pods(render, use):
    objects = render(example(use))
    workload = workload_of(objects)
    labels = workload["spec"]["template"]["metadata"]["labels"]
    selectors = [workload["spec"]["selector"]["matchLabels"], objects["Service"]["spec"]["selector"]]
    for kind in ("PodDisruptionBudget", "ServiceMonitor"):
        if kind in objects:
            selectors.append(objects[kind]["spec"]["selector"]["matchLabels"])
    assert all(selector.items() <= labels.items() for selector in selectors)
    assert all("version" not in key for selector in selectors for key in selector), "an upgrade keeps its pods"


def test_without_an_upstream_it_is_one_broker_with_a_disk(render):
    objects = render({})
    assert objects.keys() == {"StatefulSet", "Service"}
    spec = objects["StatefulSet"]["spec"]
    assert (spec["replicas"], spec["serviceName"]) == (1, objects["Service"]["metadata"]["name"])
    [claim] = spec["volumeClaimTemplates"]
    [mount] = container_of(objects)["volumeMounts"]
    assert mount == {"name": claim["metadata"]["name"], "mountPath": image.instruction("VOLUME")}
    assert {port["name"] for port in objects["Service"]["spec"]["ports"]} == {"amqp", "ws", "http"}
    assert pod_of(objects)["terminationGracePeriodSeconds"] == 20
    assert render({"replicas": 5})["StatefulSet"]["spec"]["replicas"] == 1, "the data belong to one process"


def test_with_an_upstream_it_is_a_pool_of_pods(render):
    objects = render(example("pool"))
    assert objects.keys() == {"Deployment", "Service", "PodDisruptionBudget"}
    assert objects["Deployment"]["spec"]["replicas"] == 2
    assert "volumes" not in pod_of(objects) and "startupProbe" not in container_of(objects)
    settings = {entry["name"]: entry["value"] for entry in container_of(objects)["env"]}
    assert settings["LEVERET_UPSTREAM"] == "amqp://rabbitmq-0.rabbitmq:5672,amqp://rabbitmq-1.rabbitmq:5672"
    assert {port["name"] for port in objects["Service"]["spec"]["ports"]} == {"amqp", "ws"}
    assert pod_of(objects)["terminationGracePeriodSeconds"] == 45


def test_a_pool_that_grows_leaves_the_number_of_pods_to_the_autoscaler(render):
    objects = render(example("pool-that-grows"))
    assert objects.keys() == {"Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler"}
    assert "replicas" not in objects["Deployment"]["spec"]
    scaler = objects["HorizontalPodAutoscaler"]["spec"]
    assert scaler["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "leveret"}
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (3, 30)
    assert scaler["behavior"]["scaleDown"]["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 115}]
    settings = {entry["name"]: entry["value"] for entry in container_of(objects)["env"]}
    assert settings["LEVERET_MAX_CONNECTIONS"] == "1000000", "whole numbers stay whole"
    assert settings["LEVERET_WS_ORIGINS"] == "https://shop.example,https://admin.example"


def test_a_drain_longer_than_an_autoscaler_can_wait_leaves_it_valid(render):
    objects = render(example("pool-that-grows") | {"drain": {"timeout": 7200}})
    assert pod_of(objects)["terminationGracePeriodSeconds"] > 7200
    [policy] = objects["HorizontalPodAutoscaler"]["spec"]["behavior"]["scaleDown"]["policies"]
    assert policy["periodSeconds"] == 1800


def test_a_pool_with_a_spool_has_a_disk_for_each_pod_and_its_file(render):
    objects = render(example("pool-with-spool"))
    assert objects.keys() == {"StatefulSet", "Service", "PodDisruptionBudget", "ConfigMap"}
    assert objects["StatefulSet"]["spec"]["replicas"] == 3
    template = objects["StatefulSet"]["spec"]["template"]
    changed = render(example("pool-with-spool") | {"config": '[[spool]]\nexchange = "^invoices$"\n'})["StatefulSet"]["spec"]["template"]
    key = "checksum/config"
    assert template["metadata"]["annotations"][key] != changed["metadata"]["annotations"][key], "another file makes other pods"


def test_prometheus_finds_the_metrics_by_annotations_or_by_its_operator(render):
    annotations = workload_of(render({}))["spec"]["template"]["metadata"]["annotations"]
    assert annotations == {"prometheus.io/scrape": "true", "prometheus.io/port": "15692"}
    objects = render(example("broker-without-disk"))
    assert not (workload_of(objects)["spec"]["template"]["metadata"]["annotations"] or {})
    [endpoint] = objects["ServiceMonitor"]["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in objects["Service"]["spec"]["ports"]}
    assert objects["ServiceMonitor"]["metadata"]["labels"]["release"] == "prometheus"
    monitor = objects["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
    assert monitor.items() <= objects["Service"]["metadata"]["labels"].items()


def test_two_releases_in_one_namespace_do_not_meet(render):
    one, two = (render({}, release) for release in ("orders-leveret", "invoices"))
    assert one["Service"]["metadata"]["name"] == "orders-leveret"
    assert two["Service"]["metadata"]["name"] == "invoices-leveret"
    assert one["Service"]["spec"]["selector"] != two["Service"]["spec"]["selector"]


@pytest.mark.parametrize(
    "values, verdict",
    [
        ({"listeners": {"http": 0}}, "listeners.http"),
        ({"listeners": {"amqps": 5671}}, "needs tls.existingSecret"),
        ({"settings": {"drain_delay": "5s"}}, "the chart has a value of its own"),
        ({"settings": {"amqp": "0.0.0.0:1"}}, "the chart has a value of its own"),
        ({"autoscaling": {"enabled": True}}, "only for a pool"),
        ({"serviceMonitor": {"enabled": True}, "listeners": {"prometheus": 0}}, "needs listeners.prometheus"),
        ({"upstream": ["rabbitmq:5672"]}, "upstream"),
        ({"drains": {}}, "drains"),
    ],
)
def test_values_that_cannot_work_are_refused(helm, tmp_path, values, verdict):
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    code, _, error = call(helm, "template", "leveret", CHART, "--values", file, *KUBERNETES)
    assert code != 0 and verdict in error


def environment(objects, directory):
    """The environment of the pod's process; files are created for its secrets."""
    container = container_of(objects)
    settings = image.variables() | {entry["name"]: entry["value"] for entry in container["env"]}
    settings["STATE_DIRECTORY"] = str(directory / "state")
    if "LEVERET_DEFINITIONS" in settings:
        (directory / "definitions.json").write_text("{}")
        settings["LEVERET_DEFINITIONS"] = str(directory / "definitions.json")
    if "LEVERET_TLS_CERT" in settings:
        pair = TestCa(directory).issue("leveret")
        settings |= {"LEVERET_TLS_CERT": str(pair.certificate), "LEVERET_TLS_KEY": str(pair.key)}
    if settings.get("LEVERET_CONFIG") == CONFIG:
        (directory / "leveret.toml").write_text(objects["ConfigMap"]["data"]["leveret.toml"])
        settings["LEVERET_CONFIG"] = str(directory / "leveret.toml")
    mounted = {mount["mountPath"] for mount in container.get("volumeMounts", [])}
    for entry in container["env"]:
        if entry["value"].startswith("/"):
            assert str(Path(entry["value"]).parent) in mounted, entry
    return settings


def workload_of(objects):
    [kind] = {"Deployment", "StatefulSet"} & objects.keys()
    return objects[kind]


def pod_of(objects):
    return workload_of(objects)["spec"]["template"]["spec"]


def container_of(objects):
    [container] = pod_of(objects)["containers"]
    return container


def example(use):
    return yaml.safe_load((CHART / "ci" / f"{use}.yaml").read_text())


def call(helm, *arguments):
    done = subprocess.run([helm, *map(str, arguments)], env=clean_environment(), capture_output=True, text=True, timeout=PATIENCE)
    return done.returncode, done.stdout, done.stderr
