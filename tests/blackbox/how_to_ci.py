"""docs/how-to/ci.md: the broker of a CI job is ready when its health check succeeds, and has the job's user and queues."""

import shlex
import sys

import yaml

from harness import image
from harness.how_to import HowTo
from harness.leveret import binary
from harness.ports import free_ports
from harness.reader import Reader

# Stands in for `make test`: logs in with AMQP_URL, and expects the queue of the definitions.
TESTS = """
import os, pika
with pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"])) as connection:
    connection.channel().queue_declare("orders", passive=True)
print("tested")
"""


class Job(Reader):
    """A job's directory with the definitions, and a broker for it on free ports."""

    def __init__(self, directory, page):
        super().__init__(directory)
        self.write("definitions.json", page.file("definitions.json"))
        self.write("Makefile", "test:\n\t@check\n")
        self.write("tests.py", TESTS)
        self.command("check", f"exec {sys.executable} {directory}/tests.py")
        self.port, self.http = free_ports(2)

    def service(self, variables):
        """The service container, with its own variables and those of the image."""
        return image.variables() | variables | self.places() | {"LEVERET_WS": "off", "STATE_DIRECTORY": f"{self.directory}/state"}

    def places(self):
        return {"LEVERET_AMQP": f"0.0.0.0:{self.port}", "LEVERET_HTTP": f"0.0.0.0:{self.http}"}

    def here(self, text, host):
        """Replaces the job's ports by the test's."""
        return text.replace(f"{host}:15672", f"127.0.0.1:{self.http}").replace(f"{host}:5672", f"127.0.0.1:{self.port}")


def test_a_job_has_a_broker(tmp_path):
    page = HowTo("ci")
    with Job(tmp_path / "github", page) as job:
        on_github(job, page.file(".github/workflows/test.yaml"))
    again = HowTo("ci")
    with Job(tmp_path / "gitlab", again) as job:
        on_gitlab(job, page.file(".gitlab-ci.yml"))
    with Job(tmp_path / "process", again) as job:
        without_containers(job, page.block("sh", {"127.0.0.1:5672": f"127.0.0.1:{job.port}"}))
    page.finish()


def on_github(job, text):
    test = yaml.safe_load(text)["jobs"]["test"]
    broker = test["services"]["broker"]
    # Its port is the one that the tests connect to.
    inside = [f"{image.variables()[name].rpartition(':')[2]}" for name in ("LEVERET_AMQP", "LEVERET_HTTP")]
    assert broker["ports"] == [f"{port}:{port}" for port in inside]
    options = dict(zip(*[iter(shlex.split(broker["options"]))] * 2, strict=True))
    check = options.pop("--health-cmd")
    assert options == {"--health-interval": "1s"}
    variables = job.service(broker["env"])
    job.run(check, code=1, **variables)
    server = job.serve(image.command_line(), **variables)
    job.run(check, **variables)
    url = job.here(test["env"]["AMQP_URL"], "127.0.0.1")
    checkout, *steps = test["steps"]
    assert checkout["uses"].startswith("actions/checkout@")
    for step in steps:
        said = job.run(job.here(step["run"], "127.0.0.1"), AMQP_URL=url)
    assert said == "tested\n"
    server.stop()


def on_gitlab(job, text):
    test = yaml.safe_load(text)["test"]
    [service] = test["services"]
    assert service["alias"] == "broker"
    variables = test["variables"]
    # The service receives all of them.
    server = job.serve(image.command_line(), **job.service(variables))
    url = job.here(variables["AMQP_URL"], "broker")
    for line in test["script"]:
        said = job.run(job.here(line, "broker"), AMQP_URL=url)
    assert said == "tested\n"
    server.stop()


def without_containers(job, script):
    # It ends together with its shell.
    job.command("leveret", f'exec setpriv --pdeathsig KILL -- {shlex.quote(str(binary().resolve()))} "$@"')
    quiet = {f"LEVERET_{name}": "off" for name in ("WS", "MQTT", "STOMP", "WEB_MQTT", "WEB_STOMP")}
    said = job.run(script, **quiet, **job.places())
    assert said.splitlines()[-1] == "tested"
