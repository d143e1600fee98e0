"""Message rates rise and fall."""

import pika
import pytest

from harness.management import leveret, path


@pytest.fixture
def management(tmp_path):
    with leveret(tmp_path) as management:
        yield management


def rate(thing, name):
    return thing.get("message_stats", {}).get(f"{name}_details", {}).get("rate", 0)


def test_rates_rise_while_something_goes_through_and_fall_when_nothing_does(management):
    with pika.BlockingConnection(pika.URLParameters(management.server.uri)) as connection:
        channel = connection.channel()
        channel.queue_declare("q")

        def go_through():
            channel.basic_publish("", "q", b"x")
            assert channel.basic_get("q", auto_ack=True)[0]

        things = {
            path("queues", "/", "q"): ("publish", "get_no_ack", "deliver_get"),
            path("exchanges", "/", "amq.default"): ("publish_in", "publish_out"),
            path("vhosts", "/"): ("publish", "get_no_ack"),
        }
        [of_channel] = management.eventually("channels", lambda all: len(all) == 1)
        things[path("channels", of_channel["name"])] = ("publish", "get_no_ack")

        def all_flow(thing, names):
            go_through()
            return all(rate(thing, name) > 0 for name in names)

        for place, names in things.items():
            management.eventually(place, lambda thing, names=names: all_flow(thing, names))
        [of_connection] = management.get("connections")
        of_connection = path("connections", of_connection["name"])

        def bytes_flow(connection):
            go_through()
            return connection["recv_oct_details"]["rate"] > 0 and connection["send_oct_details"]["rate"] > 0

        management.eventually(of_connection, bytes_flow)
        for place, names in things.items():
            management.eventually(place, lambda thing, names=names: not any(rate(thing, name) for name in names))
        management.eventually(of_connection, lambda connection: connection["recv_oct_details"]["rate"] == 0)
