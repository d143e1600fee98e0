"""The compose and CI examples: with their variables, the application can log in."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import pika
import yaml

from harness.instances import leveret

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"
PASSWORD = "s3cret"


def example(name):
    text = (PACKAGING / name).read_text()
    return yaml.safe_load(re.sub(r"\$\{BROKER_PASSWORD[^}]*\}", PASSWORD, text))


def gets_in(directory, variables, url):
    """Starts a server with the example's variables, and logs in as its application."""
    at = urlsplit(url)
    # Replaces the example's password by one that can be searched for in the log.
    variables = {name: PASSWORD if "PASS" in name and value == at.password else value for name, value in variables.items()}
    assert PASSWORD in variables.values(), "the application has the password of the broker's user"
    with leveret(directory, env=variables) as server:
        credentials = pika.PlainCredentials(at.username, PASSWORD)
        parameters = pika.ConnectionParameters("127.0.0.1", server.port, credentials=credentials)
        with pika.BlockingConnection(parameters) as connection:
            connection.channel().queue_declare("jobs", durable=True)
        server.stop()
        assert PASSWORD not in server.child.output()


def test_the_broker_of_a_compose_file_lets_its_application_in(tmp_path):
    services = example("compose/broker.yaml")["services"]
    url = services["shop"]["environment"]["AMQP_URL"]
    assert urlsplit(url).hostname == "leveret"
    gets_in(tmp_path, services["leveret"]["environment"], url)


def test_the_compose_pool_accepts_the_credentials_of_its_rabbitmq(tmp_path, targets):
    services = example("compose/pool.yaml")["services"]
    user, password = (services["rabbitmq"]["environment"][f"RABBITMQ_DEFAULT_{key}"] for key in ("USER", "PASS"))
    at = urlsplit(services["shop"]["environment"]["AMQP_URL"])
    assert (at.username, at.password, at.hostname) == (user, password, "leveret")
    assert services["leveret"]["environment"] == {"LEVERET_UPSTREAM": "amqp://rabbitmq:5672"}
    # The shared RabbitMQ has another user and another host name.
    upstream = {"LEVERET_UPSTREAM": f"amqp://127.0.0.1:{targets.upstream.port}"}
    with leveret(tmp_path, env=upstream) as server:
        pika.BlockingConnection(pika.URLParameters(server.uri)).close()
        server.stop()


def test_the_broker_of_a_ci_job_lets_its_tests_in(tmp_path):
    job = example("ci/github-actions.yaml")["jobs"]["test"]
    gets_in(tmp_path / "github", job["services"]["broker"]["env"], job["env"]["AMQP_URL"])
    variables = example("ci/gitlab-ci.yml")["test"]["variables"]
    url = variables.pop("AMQP_URL")
    gets_in(tmp_path / "gitlab", variables, url)
