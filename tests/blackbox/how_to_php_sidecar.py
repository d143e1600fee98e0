"""docs/how-to/php-sidecar.md: PHP publishes with confirms through a pool that is a service of its host, or its container's
neighbour."""

import configparser
import os
import re
import subprocess

import pytest
import yaml

from harness import image
from harness.amqp import connect
from harness.child import clean_environment
from harness.ctl import Ctl
from harness.health import wait_for_status
from harness.how_to import HowTo
from harness.leveret import ROOT, run
from harness.patience import PATIENCE
from harness.ports import free_ports
from harness.reader import FIRST_USER, FULL, Reader, Shop

UNIT = "leveret.service"
SETTINGS = "/etc/leveret/leveret.toml"
DROP_IN = "/etc/systemd/system/php8.2-fpm.service.d/leveret.conf"
PHP_UNIT = "[Unit]\nDescription=PHP\n[Service]\nExecStart=/bin/true\n"


@pytest.fixture
def reader(tmp_path):
    with Reader(tmp_path, BROKER_PASSWORD="shop") as reader:
        yield reader


@pytest.fixture
def shop(targets):
    with Shop(targets, "pool") as shop:
        yield shop


def test_php_publishes_through_a_pool_of_its_host_or_of_its_container(reader, shop):
    page = HowTo("php-sidecar")
    [port] = free_ports(1)
    settings = reader.write(SETTINGS.lstrip("/"), page.file(SETTINGS, shop.changes))
    assert 'amqp = "127.0.0.1:5673" ' in printed(settings)
    unit = (ROOT / "packaging" / UNIT).read_text().replace("/usr/bin/leveret", str(reader.bin / "leveret"))
    server = reader.serve(command_of(unit).replace(SETTINGS, str(settings)), **shop.variables, LEVERET_AMQP=f"127.0.0.1:{port}")

    units_are_sound(reader, unit, page.file(DROP_IN))
    # A container has no systemd: the service was started above with the unit's command.
    reader.command("sudo", 'exec "$@"')
    reader.command("systemctl", f'echo "$@" >>{reader.directory}/systemctl')
    wait_for_status(server.http + "/readyz", 200)
    here = {"LEVERET_HTTP": server.http.removeprefix("http://")}
    reader.run(page.block("sh", {SETTINGS: settings}), **here)
    assert (reader.directory / "systemctl").read_text() == "daemon-reload\nrestart leveret\n"

    reader.write("publish.php", page.file("publish.php", {"5673": port}))
    said = reader.run(page.block("sh"), LEVERET_CTL_URL=server.http)
    assert said.startswith("confirmed\n") and re.search(r"^mode +pool$", said, re.MULTILINE)
    server.stop()

    [http] = free_ports(1)
    ports = {"127.0.0.1:5673": f"127.0.0.1:{port}", "127.0.0.1:15673": f"127.0.0.1:{http}"}
    in_containers(reader, page.file("compose.yaml", shop.changes | ports))
    with connect(shop.upstream) as connection:
        assert connection.channel().queue_declare("orders", passive=True).method.message_count == 2
    page.finish()


def test_a_message_that_is_refused_is_an_exception(reader):
    server = reader.serve("leveret serve --amqp 127.0.0.1:0 --http 127.0.0.1:0", **FIRST_USER)
    Ctl(server.http, "shop", "shop")("set_policy", "full", "^orders$", FULL)
    reader.write("publish.php", HowTo("php-sidecar").file("publish.php", {"5673": server.port}))
    assert "not stored: order 1" in reader.run("php publish.php 2>&1", code=255)
    server.stop()


def test_a_pool_is_not_ready_without_its_rabbitmq(reader):
    [nobody] = free_ports(1)
    server = reader.serve(f"leveret serve --upstream amqp://127.0.0.1:{nobody} --amqp 127.0.0.1:0 --http 127.0.0.1:0")
    wait_for_status(server.http + "/readyz", 503)
    reader.run("leveret health --ready", code=1, LEVERET_HTTP=server.http.removeprefix("http://"))
    server.stop()


def printed(settings):
    """The effective settings with a file."""
    code, out, error = run("config", "print", "--config", settings)
    assert code == 0, error
    return out


def command_of(unit):
    """The command line of the package's service."""
    return re.search("^ExecStart=(.*)$", unit, re.MULTILINE)[1]


def units_are_sound(reader, unit, drop_in):
    """systemd accepts PHP's service and its drop-in, which refer to the package's service."""
    for name, text in {UNIT: unit, "php8.2-fpm.service": PHP_UNIT, "php8.2-fpm.service.d/leveret.conf": drop_in}.items():
        reader.write(f"units/{name}", text)
    argv = ["systemd-analyze", "verify", "--man=no", "php8.2-fpm.service"]
    environment = clean_environment(SYSTEMD_UNIT_PATH=f"{reader.directory}/units:")
    done = subprocess.run(argv, env=environment, cwd=os.sep, capture_output=True, text=True, timeout=PATIENCE)
    # It also complains about other units of this machine.
    faults = [line for line in done.stderr.splitlines() if "php8.2" in line or str(reader.directory) in line]
    assert (done.returncode, faults) == (0, []), done.stderr
    parsed = configparser.ConfigParser()
    parsed.optionxform = str
    parsed.read_string(drop_in)
    assert dict(parsed["Unit"]) == {"Wants": UNIT, "After": UNIT}


def in_containers(reader, text):
    """The commands of both containers, with the variables of the image and the file."""
    services = yaml.safe_load(text.replace("${BROKER_PASSWORD:?the password of the user shop}", "shop"))["services"]
    conventional = yaml.safe_load((ROOT / "packaging" / "compose" / "pool.yaml").read_text())["services"]
    assert {name: service["image"] for name, service in services.items()} == {"leveret": "leveret:latest", "shop": "shop:latest"}
    assert services["shop"]["depends_on"] == conventional["shop"]["depends_on"]
    assert services["leveret"]["environment"].keys() >= conventional["leveret"]["environment"].keys()
    assert services["shop"]["network_mode"] == "service:leveret", "they share a network, and with it 127.0.0.1"
    own = services["leveret"]["environment"]
    variables = image.variables() | own | {"STATE_DIRECTORY": f"{reader.directory}/container"}
    server = reader.serve(image.command_line(), **variables)
    # Only reachable from the pod, although the image's own listeners accept all addresses.
    for name in image.variables().keys() - {"STATE_DIRECTORY"}:
        assert own[name] == "off" or own[name].startswith("127.0.0.1:"), name
    reader.run(image.health_check(), **variables)
    reader.run("php publish.php", **services["shop"]["environment"])
    server.stop()
