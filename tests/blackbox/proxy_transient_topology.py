"""After a restart of RabbitMQ the pool restores its clients' transient topology before they continue (P7)."""

import contextlib
import signal

import pika
import pytest
from harness.instances import leveret
from harness.lending import borrow
from harness.patience import PATIENCE

# The names that Celery's worker uses for remote control.
PIDBOX, REPLIES = "celery.pidbox", "reply.celery.pidbox"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_p7_transient_topology_is_restored_before_clients_continue(tmp_path, how):
    broker = borrow()
    try:
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(leveret(tmp_path, "--upstream", broker.uri.replace("guest:guest@", "")))
            worker, control = (
                stack.enter_context(pika.BlockingConnection(pika.URLParameters(server.uri))) for _ in range(2)
            )
            seen = []
            mailbox = worker.channel()
            mailbox.exchange_declare(PIDBOX, "fanout")
            mailbox.queue_declare("worker.celery.pidbox", auto_delete=True, arguments={"x-message-ttl": 300_000})
            mailbox.queue_bind("worker.celery.pidbox", PIDBOX)
            mailbox.basic_consume("worker.celery.pidbox", lambda *message: seen.append(message[3]), auto_ack=True)
            # The other client's exclusive queue, bound by the first, and a transient queue without a consumer yet.
            sender = control.channel()
            sender.exchange_declare(REPLIES, "direct", auto_delete=True)
            sender.queue_declare("replies")
            mailbox.queue_bind("replies", REPLIES, "answer")
            sender.confirm_delivery()

            broker.end(how)
            server.child.wait_line("upstream still unreachable|upstream connection failed", PATIENCE)
            broker.start()
            sender.basic_publish(PIDBOX, "", b"after", mandatory=True)
            sender.basic_publish(REPLIES, "answer", b"answer", mandatory=True)
            while b"after" not in seen:
                worker.process_data_events(time_limit=PATIENCE)
            assert control.channel().basic_get("replies", auto_ack=True)[2] == b"answer"
            assert mailbox.is_open and sender.is_open
            worker.close()
            control.close()
            server.stop()
    finally:
        broker.stop()


def test_p7_a_queue_that_only_the_broker_may_name_ends_its_client_with_320(tmp_path):
    broker = borrow()
    try:
        with leveret(tmp_path, "--upstream", broker.uri.replace("guest:guest@", "")) as server:
            connection = pika.BlockingConnection(pika.URLParameters(server.uri))
            channel = connection.channel()
            queue = channel.queue_declare("").method.queue
            channel.queue_bind(queue, "amq.topic", "key")
            broker.end()
            broker.start()
            with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
                while True:
                    connection.process_data_events(time_limit=PATIENCE)
            assert closed.value.reply_code == 320
            assert f"queue '{queue}' could not be declared again: NOT_FOUND" in closed.value.reply_text
            server.stop()
    finally:
        broker.stop()
