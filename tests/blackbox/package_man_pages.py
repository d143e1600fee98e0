"""What is shipped with the binary: man pages, completions, the health probe, examples and the dashboard match it."""

import json
import re
import shutil
import subprocess

import pytest
import yaml

from harness.child import clean_environment
from harness.exposition import scrape
from harness.instances import leveret
from harness.leveret import ROOT, run
from harness.patience import PATIENCE
from harness.ports import free_ports

PACKAGING = ROOT / "packaging"


def test_every_command_has_a_man_page_without_mistakes(tmp_path):
    assert run("man", "--output", tmp_path)[:2] == (0, "")
    pages = {page.name for page in tmp_path.iterdir()}
    assert {"leveret.1", "leveret-serve.1", "leveret-ctl.1", "leveret-ctl-list_queues.1", "leveret-config-print.1"} <= pages
    for page in tmp_path.iterdir():
        done = subprocess.run(
            ["man", "--warnings=all", "--local-file", page],
            # Wide enough for unbreakable words, which would cause a warning.
            env=clean_environment(MANWIDTH="300"),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0 and done.stderr == "", page.name
    assert run("man")[1].startswith(".ie")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_are_scripts_of_their_shell(tmp_path, shell):
    code, script, _ = run("completions", shell)
    assert code == 0 and "list_queues" in script
    if shutil.which(shell):
        file = tmp_path / "script"
        file.write_text(script)
        assert subprocess.run([shell, "-n", file], capture_output=True, timeout=PATIENCE).returncode == 0


def test_bash_completes_a_flag_and_a_command(tmp_path):
    file = tmp_path / "script"
    file.write_text(run("completions", "bash")[1])
    for words, expected in {"leveret ser": "serve", "leveret serve --max-mes": "--max-message-size"}.items():
        script = f"source {file}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n"
        script += '_leveret leveret "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"; echo "${COMPREPLY[@]}"'
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=PATIENCE)
        assert done.stdout.split() == [expected], done.stderr


def test_the_probe_answers_by_its_exit_code(tmp_path):
    with leveret(tmp_path) as server:
        address = server.http.removeprefix("http://")
        assert run("health", "--http", address) == (0, "", "")
        assert run("health", "--ready", env={"LEVERET_HTTP": address}) == (0, "", "")
        server.stop()
    code, _, error = run("health", "--http", address)
    assert code == 1 and len(error.splitlines()) == 1
    assert run("health", "--http", "off")[0] == 2


def test_the_probe_tells_a_proxy_without_upstream(tmp_path):
    [nobody] = free_ports(1)
    with leveret(tmp_path, "--upstream", f"amqp://127.0.0.1:{nobody}") as server:
        address = server.http.removeprefix("http://")
        assert run("health", "--http", address)[0] == 0
        code, _, error = run("health", "--ready", "--http", address)
        assert code == 1 and "upstream unreachable" in error
        server.stop()


def test_every_setting_in_the_examples_exists_and_is_right():
    for file in (PACKAGING / "kubernetes").glob("*.yaml"):
        for container in containers(file):
            env = {entry["name"]: entry["value"] for entry in container.get("env", [])}
            settings = {key: value for key, value in env.items() if key.startswith("LEVERET_")}
            if container["image"].startswith("leveret"):
                # The definitions' volume does not exist here.
                checked = {key: value for key, value in settings.items() if key != "LEVERET_DEFINITIONS"}
                told = run("config", "print", env=settings)
                assert told[0] == 0 and run("config", "check", env=checked) == (0, "", ""), (file.name, told)
                named = set(re.findall(r"  # (LEVERET_\w+)$", told[1], re.MULTILINE))
                assert named == set(settings), file.name
    image = dict(re.findall(r"(LEVERET_\w+)=(\S+)", docker_environment()))
    assert image and run("config", "check", env=image) == (0, "", "")
    assert run("config", "check", env=image | {"LEVERET_UPSTREAM": "amqp://rabbitmq"}) == (0, "", "")
    assert run("config", "check", "--config", PACKAGING / "leveret.toml") == (0, "", "")


def test_the_examples_that_are_commented_out_are_right_too(tmp_path):
    text = (PACKAGING / "leveret.toml").read_text()
    for line in re.findall(r"^#(\w+ = .*)$", text, re.MULTILINE):
        file = tmp_path / "leveret.toml"
        file.write_text(line + "\n")
        code, _, error = run("config", "print", "--config", file)
        # The error may be that a setting requires another one; but nothing is unknown or malformed.
        assert code == 0 or "needed" in error or "needs" in error, (line, error)


def test_containers_run_without_rights():
    for file in (PACKAGING / "kubernetes").glob("*.yaml"):
        for container in containers(file):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False and context["readOnlyRootFilesystem"] is True
    dockerfile = (PACKAGING / "Dockerfile").read_text()
    assert re.search(r"^USER 10001:10001$", dockerfile, re.MULTILINE)
    [command] = re.findall(r"^HEALTHCHECK .* CMD (\[.*\])$", dockerfile, re.MULTILINE)
    assert json.loads(command) == ["leveret", "health"]


def test_the_dashboard_reads_metrics_that_there_are(tmp_path):
    """Of a broker or of a pool."""
    dashboard = json.loads((PACKAGING / "grafana" / "leveret.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    wanted = {name for expression in expressions for name in re.findall(r"\b(?:leveret|rabbitmq)_\w+", expression)}
    [nobody] = free_ports(1)
    there = set()
    for flags in ([], ["--upstream", f"amqp://127.0.0.1:{nobody}"]):
        with leveret(tmp_path / str(len(flags)), *flags) as server:
            there |= set(scrape(server.http + "/metrics").families)
            server.stop()
    assert len(wanted) > 40
    assert {name.removesuffix("_bucket") for name in wanted} - there == set()
    boxes = [panel["gridPos"] for panel in dashboard["panels"]]
    cells = [(x, y) for box in boxes for x in range(box["x"], box["x"] + box["w"]) for y in range(box["y"], box["y"] + box["h"])]
    assert len(cells) == len(set(cells)), "panels overlap"


def containers(file):
    for document in yaml.safe_load_all(file.read_text()):
        spec = document["spec"].get("template", {}).get("spec", {})
        yield from spec.get("initContainers", []) + spec.get("containers", [])


def docker_environment():
    [block] = re.findall(r"^ENV ((?:.*\\\n)*.*)", (PACKAGING / "Dockerfile").read_text(), re.MULTILINE)
    return block
