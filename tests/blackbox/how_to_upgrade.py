"""docs/how-to/upgrade.md: another binary takes over from a pool, and takes the data directory of a broker, as a file, a
package and an image. A downgrade works, or is refused because of an unknown format, without loss."""

import contextlib
import struct
import zlib
from pathlib import Path

import pika
import pytest

from harness.amqp import connect
from harness.how_to import HowTo
from harness.leveret import OPTIONAL_LISTENERS, binary, run
from harness.ports import free_ports
from harness.reader import Reader
from harness.stand_in import Service, StandIn
from harness.upgrading import flags, knocking

DRAIN_SECONDS = 10
# The loader ignores bytes after the end of a program.
NEW = b"another build"
JOURNAL_HEADERS = (0, 2048)
UNKNOWN_VERSION = 99


@pytest.fixture
def page():
    return HowTo("upgrade")


class Host:
    """A machine with the old binary installed and the new one beside it; a broker with a data directory, or a pool if `more`
    settings say so."""

    def __init__(self, reader, more=""):
        self.reader = reader
        self.old = binary().read_bytes()
        self.data, self.program = reader.directory / "data", reader.directory / "programs" / "leveret"
        for directory in (self.program.parent, reader.directory / "backup"):
            directory.mkdir()
        for path in (self.program, reader.directory / "leveret-new"):
            path.write_bytes(self.old + (NEW if path.name.endswith("new") else b""))
            path.chmod(0o755)
        amqp, http = free_ports(2)
        settings = f'http = "127.0.0.1:{http}"\ndata_dir = "{self.data}"\n{more}'
        config = reader.write("etc/leveret.toml", settings)
        reader.variables = {"LEVERET_CONFIG": str(config)}
        self.service = Service(reader.directory, "--config", str(config), *flags(amqp, http))
        self.service.program = self.program

    def here(self, *usual):
        places = {
            "/usr/local/bin": self.program.parent,
            "/var/lib/leveret": self.data,
            "/backup": self.reader.directory / "backup",
            "/etc/leveret": self.reader.directory / "etc",
        }
        return {name: places[name] for name in usual}

    def runs_new(self):
        return Path(f"/proc/{self.service.process}/exe").read_bytes().endswith(NEW)


@contextlib.contextmanager
def serving(tmp_path, more=""):
    with Reader(tmp_path) as reader:
        host = Host(reader, more)
        with host.service, StandIn(reader, "systemctl", host.service):
            yield host


@pytest.fixture
def host(tmp_path):
    with serving(tmp_path) as host:
        yield host


BINARY = ("/usr/local/bin", "/var/lib/leveret", "/backup", "/etc/leveret")


def publish(server, body):
    with connect(server) as connection:
        channel = connection.channel()
        channel.queue_declare("jobs", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "jobs", body, pika.BasicProperties(delivery_mode=2))


def take(server):
    with connect(server) as connection:
        return connection.channel().basic_get("jobs", auto_ack=True)[2]


def test_clients_of_a_pool_notice_nothing(tmp_path, page, targets):
    upstream = f'upstream = "amqp://127.0.0.1:{targets.upstream.port}"\n'
    with serving(tmp_path, upstream) as host, connect(host.service.server) as client:
        channel = client.channel()
        with knocking(host.service.server.port) as callers:
            host.reader.run(page.block("sh", host.here("/usr/local/bin", "/etc/leveret")))
            assert host.runs_new()
            callers.go_on()
        assert callers.troubles == []
        channel.exchange_declare("amq.fanout", passive=True)


def test_the_binary_is_replaced_and_rolled_back_on_the_same_directory(host, page):
    page.block("sh")
    service = host.service
    publish(service.server, b"by the old")
    assert not host.runs_new()
    host.reader.run(page.block("sh", host.here(*BINARY)))
    assert host.runs_new() and take(service.server) == b"by the old"
    publish(service.server, b"by the new")
    host.reader.run(page.block("sh", host.here("/usr/local/bin")))
    assert not host.runs_new() and take(service.server) == b"by the new"
    assert service.starts == 3


def test_a_package_and_an_image_take_over_as_well(host, page):
    for _ in range(3):
        page.block("sh")
    service = host.service
    publish(service.server, b"before")

    def apt(*words):
        assert words == ("install", "./leveret_1_amd64.deb")
        (host.reader.directory / "leveret-new").replace(host.program)
        service("reload", "leveret")

    host.reader.write("leveret_1_amd64.deb", "")
    with StandIn(host.reader, "apt", apt):
        host.reader.run(page.block("sh"))
    assert host.runs_new()

    def docker(*words):
        match words:
            case ("stop", "--time", seconds, "leveret"):
                assert int(seconds) > DRAIN_SECONDS
                service("stop", "leveret")
            case ("rename", "leveret", "leveret-old"):
                # The image brings its own binary; the directory stays.
                service.program = host.program
            case ("run", "--detach", "--name", "leveret", "--publish", _, "--volume", _, "leveret:new"):
                service("start", "leveret")
            case ("exec", "leveret", *command):
                host.reader.run(" ".join(command))
            case _:
                raise AssertionError(words)

    with StandIn(host.reader, "docker", docker):
        host.reader.run(page.block("sh"))
    assert take(service.server) == b"before" and service.starts == 2


def test_a_directory_of_a_later_format_is_refused_unharmed_and_the_copy_brings_the_old_binary_back(host, page):
    page.block("sh")
    service = host.service
    publish(service.server, b"before the upgrade")
    host.reader.run(page.block("sh", host.here(*BINARY)))
    publish(service.server, b"of the meantime")
    service("stop", "leveret")
    journal = host.data / "journal"
    segments = {segment: data for segment in journal.iterdir() if (data := segment.read_bytes()).startswith(b"lvrtjrnl")}
    for segment, data in segments.items():
        segment.write_bytes(of_a_later_version(data))
    code, _, error = run("serve", "--data-dir", host.data, "--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0", *(word for name in OPTIONAL_LISTENERS for word in (name, "off")))
    assert code == 1 and f"version {UNKNOWN_VERSION}" in error and ".segment" in error, error
    assert {segment: segment.read_bytes() for segment in segments} == {
        segment: of_a_later_version(data) for segment, data in segments.items()
    }
    for _ in range(3):
        page.block("sh")
    host.reader.run(page.block("sh", host.here("/var/lib/leveret", "/backup", "/usr/local/bin")))
    page.finish()
    assert not host.runs_new()
    assert [take(service.server), take(service.server)] == [b"before the upgrade", None]
    # The new version finds all data where the old one was refused.
    service("stop", "leveret")
    [aside] = host.data.parent.glob(f"{host.data.name}.new-*")
    for segment, data in segments.items():
        (aside / segment.relative_to(host.data)).write_bytes(data)
    host.data.rename(host.data.with_suffix(".old"))
    aside.rename(host.data)
    service("start", "leveret")
    assert [take(service.server), take(service.server)] == [b"before the upgrade", b"of the meantime"]


def of_a_later_version(segment):
    """A journal segment with an unknown version (docs/disk-formats.md, Segment header)."""
    data = bytearray(segment)
    for at in JOURNAL_HEADERS:
        header = data[at : at + 56]
        header[8:12] = struct.pack("<I", UNKNOWN_VERSION)
        header[12:16] = struct.pack("<I", zlib.crc32(header[:12] + header[16:]))
        data[at : at + 56] = header
    return bytes(data)


def test_a_settings_file_that_the_new_version_does_not_know_stops_nothing(host, page):
    """The check fails before the upgrade, so the old version continues."""
    page.block("sh")
    config = host.reader.directory / "etc" / "leveret.toml"
    config.write_text(config.read_text() + 'gone = "setting"\n')
    host.reader.run(page.block("sh", host.here(*BINARY)), code=2)
    assert host.service.server.child.running() and host.service.starts == 1
