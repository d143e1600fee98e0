"""Dead-lettering and kill -9: an expired message is afterwards in its queue or in the dead-letter queue, never in both."""

from collections import Counter

import pika
import pytest

from harness.amqp import connect
from harness.instances import restartable
from harness.metrics import wait_until
from harness.patience import PATIENCE

MESSAGES = 20_000
PERSISTENT = pika.BasicProperties(delivery_mode=2)
# Milliseconds, enough to publish most of the messages unless the machine is very busy.
TIME_TO_LIVE = 4_000


def count(channel, queue):
    return channel.queue_declare(queue, passive=True).method.message_count


@pytest.mark.parametrize("letters_before", [3_000, 12_000])
def test_a_letter_is_in_one_queue_after_a_kill(tmp_path, letters_before):
    with restartable(tmp_path) as server:
        channel = connect(server).channel()
        arguments = {
            "x-message-ttl": TIME_TO_LIVE,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead",
        }
        channel.queue_declare("q", durable=True, arguments=arguments)
        channel.queue_declare("dead", durable=True)
        for number in range(MESSAGES):
            channel.basic_publish("", "q", b"%d" % number, PERSISTENT)
        # Everything is on disk when the answer to a durable declaration is there.
        channel.queue_declare("last", durable=True)
        wait_until(lambda: count(channel, "dead") >= letters_before, PATIENCE)
        server.kill()
    with restartable(tmp_path) as server:
        channel = connect(server).channel()
        found = Counter()

        def all_are_there():
            while (got := channel.basic_get("dead", auto_ack=True))[0] is not None:
                found[int(got[2])] += 1
            return len(found) == MESSAGES and count(channel, "q") == 0

        # Messages that were not dead-lettered before the kill expire at the latest after their full TTL.
        wait_until(all_are_there, PATIENCE)
        all_are_there()
        twice = [number for number, times in found.items() if times > 1]
        assert not twice, f"{len(twice)} of {len(found)} stand twice"
