"""MQTT clients in front of a RabbitMQ 4 get the same as from RabbitMQ's own listener, with the listed exceptions."""

import pytest

from blackbox import mqtt_beside_rabbitmq4 as beside
from harness.beside import both, same

# Fixtures of these tests.
__all__ = ["same"]
pytestmark = beside.pytestmark
globals().update({name: test for name, test in vars(beside).items() if name.startswith("test_")})

# Intended differences (docs/compatibility.md).
EXCEPTIONS = {
    "a_publish_is_acknowledged_alike": "it is not told whether a message has a subscriber",
    "topic_aliases_stand_for_topics": "it is not told whether a message has a subscriber",
    "not_kept_by_a_disconnect": "a client is told about its error, and its will is published, as on the embedded broker",
    "amqp_clients_see_an_mqtt_message_alike[long content type]": "what AMQP cannot tell is in a header",
    "amqp_clients_see_an_mqtt_message_alike[RETAIN]": "what AMQP cannot tell, and the log of retained messages needs, is in headers",
    "amqp_clients_see_an_mqtt_message_alike[text]": "what AMQP cannot tell is in a header",
    "amqp_clients_see_an_mqtt_message_alike[bytes]": "what AMQP cannot tell is in a header",
    "amqp_clients_see_an_mqtt_message_alike[user properties]": "what AMQP cannot tell is in a header",
    "mqtt_clients_see_an_amqp_message_alike[headers]": "RabbitMQ sorts the headers of messages for AMQP clients",
    "mqtt_clients_see_an_amqp_message_alike[x- headers]": "RabbitMQ sorts the headers of messages for AMQP clients",
    "queues_of_a_session": "live subscriptions share a queue, and RabbitMQ adds x-queue-type to one that is declared over AMQP",
    "messages_of_both_qualities_wait": "messages of QoS 0 do not wait for a client that is away",
    "lasts_as_long_as_its_client_last_said": "the arguments of a queue cannot be changed over AMQP",
    "clients_of_3_1_1_are_answered_alike": "live subscriptions share a queue",
    "without_permission": "permissions are asked for again after auth_ttl",
}
SOMETIMES = {
    "unacknowledged_messages_come_again": "a message comes again under another packet identifier",
}


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    with both(tmp_path_factory.mktemp("both"), ours="pool") as sides:
        yield sides

