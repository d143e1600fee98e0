"""Queues far longer than their memory limit: messages are paged out, and paged in again in order (B4)."""


import pika
import pytest

from harness.amqp import connect
from harness.child import peak_resident_bytes
from harness.instances import leveret
from harness.metrics import metric, wait_until
from harness.numbered import TRANSIENT, Consumer, Publisher
from harness.patience import PATIENCE
from harness.process import reset_peak_memory

# A few hundred messages exceed it.
WATERMARK = ("--memory-paging-watermark", "100KiB")
MANY = 3000
BODY = 1500
# Messages published before waiting for the disk.
TRANSACTION = 100


def declare(server, queue="q", durable=True, **arguments):
    with connect(server) as connection:
        connection.channel().queue_declare(queue, durable=durable, arguments=arguments)


def body_of(number):
    return f"{number}:".ljust(BODY, "x").encode()


def publish(server, numbers, queue="q", mode=lambda number: 2, **properties):
    """Publishes in transactions: persistent messages are on disk on return."""
    with connect(server) as connection:
        channel = connection.channel()
        channel.tx_select()
        for number in numbers:
            properties_of = pika.BasicProperties(delivery_mode=mode(number), **properties)
            channel.basic_publish("", queue, body_of(number), properties_of)
            if number % TRANSACTION == 0:
                channel.tx_commit()
        channel.tx_commit()


def consume(server, count, queue="q", prefetch=50):
    """Consumes and acknowledges `count` messages: their numbers, and whether they were redelivered."""
    found = []
    with connect(server) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=prefetch)
        for method, _, body in channel.consume(queue, inactivity_timeout=PATIENCE):
            assert method is not None, f"only {len(found)} of {count} came"
            number = int(body.split(b":")[0])
            assert body == body_of(number)
            found.append((number, method.redelivered))
            if len(found) % prefetch == 0 or len(found) == count:
                channel.basic_ack(method.delivery_tag, multiple=True)
            if len(found) == count:
                break
        channel.cancel()
    return found


def ready(server, queue="q"):
    with connect(server) as connection:
        return connection.channel().queue_declare(queue, passive=True).method.message_count


def resident(server):
    return metric(server, "leveret_broker_resident_bytes")


def paged(server):
    return metric(server, "leveret_broker_paged_messages")


def assert_mostly_on_disk(server, messages=MANY):
    wait_until(lambda: paged(server) > messages * 2 // 3)
    assert resident(server) < messages * BODY // 3
    assert metric(server, "rabbitmq_alarms_memory_used_watermark") == 0


@pytest.fixture
def start(tmp_path):
    """Starts servers one after the other on the same data directory."""

    def start(*flags):
        directory = tmp_path / f"run{len(list(tmp_path.glob('run*')))}"
        return leveret(directory, "--data-dir", str(tmp_path / "data"), *(flags or WATERMARK))

    return start


def files_of_transient(tmp_path):
    return [path for path in (tmp_path / "data" / "transient").rglob("*") if path.is_file()]


MODES = {"persistent": lambda number: 2, "transient": lambda number: 1, "mixed": lambda number: 1 + number // 3 % 2}


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_a_backlog_beyond_the_watermark_comes_back_whole_and_in_order(start, tmp_path, mode, durable):
    with start() as server:
        declare(server, durable=durable)
        publish(server, range(MANY), mode=MODES[mode])
        assert_mostly_on_disk(server)
        assert ready(server) == MANY
        assert consume(server, MANY) == [(number, False) for number in range(MANY)]
        assert (paged(server), resident(server)) == (0, 0)
        wait_until(lambda: not files_of_transient(tmp_path))
        # The queue is short again, and works.
        publish(server, range(5), mode=MODES[mode])
        assert consume(server, 5) == [(number, False) for number in range(5)]
        server.stop()


def test_publishing_and_consuming_go_on_at_the_same_time(start):
    with start() as server:
        declare(server)
        publish(server, range(MANY), mode=MODES["mixed"])
        for first in range(0, MANY, 1000):
            assert [number for number, _ in consume(server, 1000)] == list(range(first, first + 1000))
            publish(server, range(MANY + first, MANY + first + 1000), mode=MODES["mixed"])
        assert [number for number, _ in consume(server, MANY)] == list(range(MANY, 2 * MANY))
        server.stop()


def test_basic_get_waits_for_a_message_that_is_on_disk(start):
    with start() as server:
        declare(server)
        publish(server, range(MANY), mode=MODES["mixed"])
        with connect(server) as connection:
            channel = connection.channel()
            for number in range(MANY):
                method, _, body = channel.basic_get("q", auto_ack=True)
                assert method is not None and body == body_of(number), "there are more"
                assert method.message_count == MANY - 1 - number
            assert channel.basic_get("q")[0] is None
        server.stop()


def test_a_backlog_outlives_kill_9_in_the_middle_of_being_consumed(start):
    with start() as server:
        declare(server)
        publish(server, range(MANY))
        assert len(consume(server, 700)) == 700
        # Once this is confirmed, it and the acknowledgements before it are on disk.
        declare(server, "after")
        publish(server, [0], queue="after")
        # Delivered, and not acknowledged.
        method, _, _ = connect(server).channel().basic_get("q")
        assert method.message_count == MANY - 701
        server.kill()
    with start() as server:
        assert ready(server) == MANY - 700
        # A queue that is only on disk has nothing in memory until it is used.
        assert paged(server) > MANY // 2
        with connect(server) as connection:
            method, _, body = connection.channel().basic_get("q", auto_ack=True)
            assert (body, method.redelivered) == (body_of(700), True)
        publish(server, range(MANY, MANY + 300))
        rest = consume(server, MANY + 300 - 701)
        assert [number for number, _ in rest] == list(range(701, MANY + 300))
        assert not any(redelivered for number, redelivered in rest[1000:])
        server.stop()
    with start() as server:
        assert ready(server) == 0
        server.stop()


def test_requeued_messages_return_to_their_place_ahead_of_paged_ones(start):
    with start() as server:
        declare(server)
        publish(server, range(MANY), mode=MODES["mixed"])
        with connect(server) as connection:
            channel = connection.channel()
            for _ in range(20):
                method, _, _ = channel.basic_get("q")
            channel.basic_nack(method.delivery_tag, multiple=True, requeue=True)
            found = consume(server, MANY)
        assert [number for number, _ in found] == list(range(MANY))
        assert [redelivered for _, redelivered in found] == [number < 20 for number in range(MANY)]
        server.stop()


def test_a_limit_in_length_drops_the_head_which_is_on_disk(start):
    with start() as server:
        declare(server, **{"x-max-length": MANY // 2})
        publish(server, range(MANY), mode=MODES["mixed"])
        wait_until(lambda: ready(server) == MANY // 2)
        assert [number for number, _ in consume(server, MANY // 2)] == list(range(MANY // 2, MANY))
        server.stop()


def test_messages_on_disk_expire_and_are_dead_lettered(start):
    with start() as server:
        declare(server, "dead")
        declare(server, **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
        publish(server, range(MANY), mode=MODES["mixed"], expiration="1")
        wait_until(lambda: ready(server) == 0 and ready(server, "dead") == MANY)
        assert [number for number, _ in consume(server, MANY, "dead")] == list(range(MANY))
        server.stop()


@pytest.mark.parametrize("how", ["purge", "delete"])
def test_a_purged_or_deleted_backlog_is_gone_from_disk_too(start, tmp_path, how):
    with start() as server:
        declare(server)
        publish(server, range(MANY), mode=MODES["mixed"])
        assert_mostly_on_disk(server)
        assert files_of_transient(tmp_path)
        with connect(server) as connection:
            channel = connection.channel()
            if how == "purge":
                assert channel.queue_purge("q").method.message_count == MANY
            else:
                channel.queue_delete("q")
                channel.queue_declare("q", durable=True)
        assert (ready(server), paged(server), resident(server)) == (0, 0, 0)
        wait_until(lambda: not files_of_transient(tmp_path))
        publish(server, range(3))
        server.kill()
    with start() as server:
        assert consume(server, 3) == [(number, False) for number in range(3)]
        server.stop()


def test_priorities_hold_across_paged_messages(start):
    with start() as server:
        declare(server, **{"x-max-priority": 3})
        for priority in (2, 0, 3):
            publish(server, range(1000 * priority, 1000 * priority + 1000), mode=MODES["mixed"], priority=priority)
        assert_mostly_on_disk(server)
        expected = [*range(3000, 4000), *range(2000, 3000), *range(1000)]
        assert [number for number, _ in consume(server, MANY)] == expected
        server.stop()


def test_a_lazy_queue_leaves_memory_without_a_reason(start):
    with start("--memory-paging-watermark", "off") as server:
        declare(server)
        declare(server, "lazy", **{"x-queue-mode": "lazy"})
        publish(server, range(MANY))
        assert paged(server) == 0
        publish(server, range(MANY), "lazy")
        wait_until(lambda: paged(server) > MANY // 2)
        assert [number for number, _ in consume(server, MANY, "lazy")] == list(range(MANY))
        server.stop()


# Far more than the memory limit of the process.
BACKLOG = 200_000
BACKLOG_WATERMARK = "4MiB"
# Two thirds of the published bytes: far more than the process needs, even on a slow machine.
MAX_MEMORY = BACKLOG * BODY * 2 // 3
BLOCKED_FROM = "256MiB"


def start_small(start):
    return start("--memory-paging-watermark", BACKLOG_WATERMARK, "--memory-high-watermark", BLOCKED_FROM)


def assert_small(server):
    peak = peak_resident_bytes(server.pid)
    assert peak < MAX_MEMORY, f"{peak >> 20} MiB"
    assert metric(server, "rabbitmq_alarms_memory_used_watermark") == 0


def test_a_long_backlog_fits_in_little_memory_and_outlives_kill_9_under_load(start):
    with start_small(start) as server:
        declare(server)
        reset_peak_memory(server)
        with Publisher(server, "q") as publisher, Consumer(server, "q") as consumer:
            taken = consumer.consume(BACKLOG // 10)
            publisher.publish(BACKLOG)
            assert [number for number, _ in taken] == list(range(BACKLOG // 10))
            # Once this is confirmed, the record of those deliveries is in the log.
            publisher.publish(1)
            publisher.finish()
            assert_small(server)
            publisher.publish(BACKLOG // 10)
            server.kill()
    # Unacknowledged messages are requeued, possibly with those whose confirm or ack was in flight.
    with start_small(start) as server:
        assert_small(server)
        back = ready(server)
        assert publisher.confirmed - BACKLOG // 10 <= back <= publisher.published
        assert paged(server) > back // 2
        with Consumer(server, "q") as consumer:
            found = list(consumer.consume(back))
            consumer.finish()
        assert_small(server)
        numbers = [number for number, _ in found]
        first = numbers[0]
        assert first <= BACKLOG // 10 and numbers == list(range(first, first + back))
        assert first + back >= publisher.confirmed
        again = [redelivered for _, redelivered in found]
        # Redelivered messages come first.
        assert again == sorted(again, reverse=True) and not all(again)
        assert again.count(True) >= BACKLOG // 10 - first
        assert ready(server) == 0
        server.stop()


def test_a_fast_publisher_is_slowed_to_the_rate_at_which_memory_is_freed(start):
    with start_small(start) as server:
        declare(server)
        reset_peak_memory(server)
        with Publisher(server, "q", mode=TRANSIENT) as publisher:
            publisher.publish(BACKLOG)
            publisher.finish()
        assert ready(server) == BACKLOG
        assert_small(server)
        with Consumer(server, "q") as consumer:
            assert [number for number, _ in consumer.consume(BACKLOG)] == list(range(BACKLOG))
            consumer.finish()
        assert_small(server)
        server.stop()
