"""Requests and replies over STOMP, with /temp-queue/ and /reply-queue/, as in RabbitMQ's adapter; and STOMP replies to
AMQP's direct reply-to."""

import contextlib

import pika
import pytest

from harness.metrics import wait_until
from harness.mqtt_broker import Broker
from harness.patience import PATIENCE
from harness.stomp_client import Client, StompWire


@pytest.fixture(scope="module", params=["leveret", "rabbitmq", "proxy", "proxy4"])
def broker(request, tmp_path_factory):
    broker = Broker(request.param, tmp_path_factory.mktemp(request.param))
    yield broker
    broker.stop()


@pytest.fixture
def clients(broker):
    """Creates clients, and closes them at the end."""
    with contextlib.ExitStack() as stack:

        def make():
            client = Client(broker.stomp)
            stack.callback(client.close)
            return client

        yield make


@pytest.fixture
def name(request):
    """A queue for the test."""
    return "q-" + "".join(character if character.isalnum() else "-" for character in request.node.name)


def ask(client, name, body, reply_to, **headers):
    client.do("send", f"/queue/{name}", body, headers={"reply-to": reply_to, **headers})


def test_each_temporary_queue_is_its_own_and_each_connections(clients, name):
    askers, answerer = [clients(), clients()], clients()
    answerer.subscribe(f"/queue/{name}")
    for number, asker in enumerate(askers):
        for own in ("a", "b"):
            ask(asker, name, f"{number} {own}", f"/temp-queue/{own}")
    questions = [answerer.message() for _ in range(4)]
    assert len({question.headers["reply-to"] for question in questions}) == 4
    for question in questions:
        answerer.send(question.headers["reply-to"], f"to {question.body}", correlation_id="c")
    for number, asker in enumerate(askers):
        answers = [asker.message() for _ in range(2)]
        got = {(answer.headers["subscription"], answer.body) for answer in answers}
        assert got == {(f"/temp-queue/{own}", f"to {number} {own}") for own in ("a", "b")}
        assert {answer.headers["correlation-id"] for answer in answers} == {"c"}
        # No acknowledgement is required.
        assert not any("ack" in answer.headers for answer in answers)


def is_gone(broker, queue):
    """Whether a queue is gone, including another connection's exclusive queue."""
    with broker.channel() as channel:
        try:
            channel.queue_declare(queue, passive=True)
        except pika.exceptions.ChannelClosedByBroker as refused:
            return refused.reply_code == 404
    return False


def test_a_reply_to_a_disconnected_client_is_dropped_silently(broker, clients, name):
    asker, answerer = clients(), clients()
    answerer.subscribe(f"/queue/{name}")
    ask(asker, name, "question", "/temp-queue/x")
    question = answerer.message()
    asker.do("disconnect")
    # Its reply queue is deleted with it; the receipt still arrives. While RabbitMQ 4 deletes the queue, it refuses messages to
    # it.
    wait_until(lambda: is_gone(broker, question.headers["reply-to"].rpartition("/")[2]))
    answerer.send(question.headers["reply-to"], "too late")
    assert answerer.heard("error") == 0


def test_a_request_in_a_transaction_is_sent_when_that_is_committed(clients, name):
    asker, answerer = clients(), clients()
    answerer.subscribe(f"/queue/{name}")
    asker.do("begin", "t")
    # Its receipt would come at the end of the transaction.
    asker.connection.send(f"/queue/{name}", "question", headers={"reply-to": "/temp-queue/x", "transaction": "t"})
    asker.do("commit", "t")
    answerer.send(answerer.message().headers["reply-to"], "answer")
    assert asker.message().body == "answer"


@pytest.mark.parametrize("reply_to", ["/queue/answers", "/topic/answers", "/exchange/amq.direct/k", "/amq/queue/answers"])
def test_a_destination_to_answer_to_is_passed_on_as_it_is(clients, name, reply_to):
    asker, answerer = clients(), clients()
    answerer.subscribe(f"/queue/{name}")
    ask(asker, name, "question", reply_to)
    assert answerer.message().headers["reply-to"] == reply_to


def test_a_request_of_amqps_direct_reply_to_is_answered_by_stomp(broker, clients, name):
    answerer = clients()
    answerer.subscribe(f"/queue/{name}")
    answers = []
    with pika.BlockingConnection(pika.URLParameters(broker.server.uri)) as connection:
        channel = connection.channel()
        channel.basic_consume("amq.rabbitmq.reply-to", lambda *arguments: answers.append(arguments[2:]), auto_ack=True)
        properties = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id="7")
        channel.basic_publish("", name, b"question", properties)
        question = answerer.message()
        assert question.headers["reply-to"].startswith("/reply-queue/amq.rabbitmq.reply-to.")
        answerer.send(question.headers["reply-to"], "answer", correlation_id=question.headers["correlation-id"])
        while not answers:
            connection.process_data_events(time_limit=PATIENCE)
        ((properties, body),) = answers
        assert (body, properties.correlation_id) == (b"answer", "7")


@pytest.mark.parametrize(
    "frame",
    ["SEND\ndestination:/temp-queue/x\n\nx", "SUBSCRIBE\nid:1\ndestination:/temp-queue/x\n\n", "UNSUBSCRIBE\nid:/temp-queue/x\n\n"],
)
def test_temporary_queues_are_for_reply_to_only(broker, frame):
    wire = StompWire(broker.stomp)
    wire.connect()
    wire.send(frame)
    command, headers, _ = wire.frame()
    assert command == "ERROR" and headers["message"] in ("Invalid destination", "Invalid id")
    wire.close()
