"""WebSocket sessions through the pool close and apply backpressure as at the broker: drains, silent peers, slow consumers."""

import signal
import struct

import pytest

from harness.instances import leveret
from harness.metrics import metric, wait_until
from harness.websocket import WebSocketWire
from harness.wire import CHANNEL_CLOSE, CONNECTION_CLOSE, CONNECTION_CLOSE_OK, Wire, close_of, publish_frames, queue_declare

BASIC_QOS, BASIC_QOS_OK = (60, 10), (60, 11)
PASSIVE, EXCLUSIVE = 1, 4


@pytest.fixture
def pooled(tmp_path, targets):
    """Starts pools in front of one RabbitMQ."""

    def start(*flags):
        upstream = f"amqp://127.0.0.1:{targets.upstream.port}"
        return leveret(tmp_path, "--ws", "127.0.0.1:0", "--upstream", upstream, *flags)

    return start


def test_a_drain_ends_with_1001(pooled):
    with pooled() as server:
        opened, idle = WebSocketWire(server.ws_port).handshake(), WebSocketWire(server.ws_port).handshake()
        opened.open_channel()
        opened.declare("drained", EXCLUSIVE)
        server.child.send(signal.SIGTERM)
        for wire in (opened, idle):
            assert close_of(wire.expect(CONNECTION_CLOSE))[0] == 320
            wire.send_method(0, CONNECTION_CLOSE_OK)
            code, reason = wire.expect_close()
            assert code == 1001 and "shutdown" in reason
        assert server.child.wait() == 0


def test_a_wrong_password_is_a_matter_of_policy(pooled):
    with pooled() as server, WebSocketWire(server.ws_port) as wire:
        wire.start("guest:wrong")
        assert wire.expect_close()[0] == 1008


def test_a_silent_peer_is_closed_and_its_exclusive_queue_is_deleted(pooled, targets):
    with pooled("--ws-ping-interval", "5s") as server:
        with WebSocketWire(server.ws_port, deaf=True) as dead:
            dead.handshake().open_channel()
            dead.declare("of-the-dead", EXCLUSIVE)
            assert dead.expect_end() == 0
            assert dead.pings >= 1
        # 404: it was deleted with its owner; 405 would mean that it still exists.
        wait_until(lambda: passive_code(targets.upstream.port, "of-the-dead") == 404)
        server.stop()


def passive_code(port, queue):
    """The code with which RabbitMQ itself refuses a passive declaration."""
    with Wire(port) as wire:
        wire.handshake().open_channel()
        wire.send(queue_declare(queue, PASSIVE))
        return close_of(wire.expect(CHANNEL_CLOSE))[0]


@pytest.mark.parametrize("no_ack", [True, False])
def test_a_slow_consumer_holds_up_nobody_and_loses_nothing(pooled, no_ack):
    padding, count = bytes(100_000), 600
    with pooled() as server:

        def unread():
            return metric(server, "leveret_upstream_unread_bytes")

        slow, quick, publisher = [WebSocketWire(server.ws_port).handshake() for _ in range(3)]
        for wire in (slow, quick, publisher):
            wire.open_channel()
        # RabbitMQ 4 deletes an earlier test's queues some time after it has answered the close.
        of_slow, of_quick = f"slow-{no_ack}", f"quick-{no_ack}"
        for wire, queue in ((slow, of_slow), (quick, of_quick)):
            wire.declare(queue, EXCLUSIVE)
            if not no_ack:
                wire.send_method(1, BASIC_QOS, struct.pack(">IHB", 0, count, 0))
                wire.expect(BASIC_QOS_OK)
            wire.consume(queue, no_ack)
        for n in range(count):
            publisher.send(publish_frames(of_slow, b"%d " % n + padding))
        # The slow client reads none of its sixty megabytes. The kernel buffers some of them, the pool a few, and the rest stays
        # in the queue.
        wait_until(lambda: unread() > 0)
        for n in range(100):
            publisher.send(publish_frames(of_quick, b"%d" % n))
            assert quick.delivered_body() == b"%d" % n
            assert unread() < count * len(padding) / 4
        for n in range(count):
            assert slow.delivered_body() == b"%d " % n + padding
        server.stop()
