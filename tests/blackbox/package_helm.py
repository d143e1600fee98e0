"""The Helm chart, without running Helm: its values, schema and examples match the program. package_helm_rendered.py covers
the rest."""

import re
import tomllib

import jsonschema_rs
import yaml

from harness import image
from harness.leveret import ROOT, run

CHART = ROOT / "packaging" / "helm" / "leveret"
USES = sorted(path.stem for path in (CHART / "ci").glob("*.yaml"))
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


def test_the_chart_has_the_version_of_the_program():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    assert chart["version"] == chart["appVersion"] == version


def test_values_and_examples_keep_to_the_schema():
    schema = jsonschema_rs.validator_for(yaml.safe_load((CHART / "values.schema.json").read_text()))
    schema.validate(VALUES)
    for use in USES:
        schema.validate(example(use))
    assert not schema.is_valid({"upstreams": []}), "a value that is misspelt"
    assert not schema.is_valid({"upstream": ["amqp://user:password@rabbitmq"]}), "a password where everybody reads it"


def test_templates_use_values_that_there_are_and_all_of_them():
    text = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    used = {path.rstrip(".") for path in re.findall(r"\.Values\.([\w.]+)", text)}
    for path in used:
        value = VALUES
        for key in path.split("."):
            assert key in value, path
            value = value[key]
    # A template iterates over a list of these names.
    listed = set(re.findall(r'"(\w+)"', re.search(r"range \$key := list (.*?) }}", text)[1]))
    assert {path.split(".")[0] for path in used} | listed == set(VALUES)


def test_listeners_and_settings_of_the_examples_are_those_of_the_program():
    for use in USES:
        values = example(use)
        names = [*VALUES["listeners"], *values.get("settings", {}), "upstream", "drain_delay", "drain_spread", "drain_timeout"]
        shown = run("config", "print", env=image.variables())[1]
        assert {name for name in names if not re.search(rf"^#? ?{name} = ", shown, re.MULTILINE)} == set(), use


def example(use):
    return yaml.safe_load((CHART / "ci" / f"{use}.yaml").read_text())
