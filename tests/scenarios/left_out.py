"""Scenarios, or parts of them, that a client's API cannot express: (client, scenario) or (client, "scenario.part"), each
with its reason."""

from scenarios.catalogue import DETAILS, REPLIES, RETENTION

LEFT_OUT = {
    ("pika", "header_values.float"): "pika writes no floating point header values",
    ("pika", "header_values.double"): "pika writes no floating point header values",
    ("amqplib", "wrong_vhost.code"): "amqplib keeps the server's reason to itself",
    ("amqplib", "wrong_vhost.text"): "amqplib keeps the server's reason to itself",
    ("amqplib", "properties.cluster_id"): "amqplib does not offer the deprecated property",
    ("amqplib", "immediate"): "amqplib does not offer the flag",
    ("amqplib", "recover_without_requeue"): "amqplib always asks to requeue",
    ("amqplib", "tx_commit"): "amqplib has no transactions",
    ("amqplib", "tx_rollback"): "amqplib has no transactions",
    ("amqplib", "tx_refused"): "amqplib has no transactions",
    ("java", "wrong_password.code"): "the Java client tells of a refused login by an exception without the code",
    ("java", "passive_declare.other_flags"): "the Java client's passive declaration has no flags",
    ("go", "wrong_password.text"): "amqp091-go puts a text of its own in its place",
    ("go", "properties.cluster_id"): "amqp091-go does not offer the deprecated property",
    ("lapin", "connect.capabilities"): "lapin does not show the server's properties",
    ("lapin", "connect.properties"): "lapin does not show the server's properties",
    ("lapin", "pipelined_after_an_error"): "lapin may send behind its close-ok what it was told to send before",
    ("amqplib", "channel_flow"): "amqplib does not offer the method",
    ("pika", "names"): "pika waits for the very name that it has sent",
    ("pika", "cancel_of_an_unknown_tag"): "pika keeps such a request to itself",
    ("pika", "no_wait_errors"): "pika's blocking connection always waits",
    ("pika", "tx_returns"): "pika tells of returns when it is asked for events, after the commit",
    ("amqplib", "headers_matching.of a wrong type"): "amqplib chooses the type of a number itself",
    ("amqplib", "no_wait_errors"): "amqplib always waits",
    ("amqplib", "tx_returns"): "amqplib has no transactions",
    ("java", "cancel_of_an_unknown_tag"): "the Java client keeps such a request to itself",
    ("java", "update_secret"): "the Java client renews secrets on a schedule of its own",
}

# Run with these clients too, because too few of the others can express them.
NEEDED = {
    ("go", "names"),
    ("go", "cancel_of_an_unknown_tag"),
    ("go", "no_wait_errors"),
    ("go", "tx_returns"),
    ("lapin", "cancel_of_an_unknown_tag"),
    ("lapin", "no_wait_errors"),
}

# How a queue handles messages does not depend on the client, so three client libraries are enough.
for client in ["go", "lapin"]:
    for scenario in RETENTION | REPLIES | DETAILS:
        if (client, scenario) not in NEEDED:
            LEFT_OUT[client, scenario] = "covered by the other clients"


def expected_of(client, catalogue):
    """The expected answers, without those that `client` cannot ask for."""
    answers = {}
    for scenario, answer in catalogue.items():
        if (client, scenario) in LEFT_OUT:
            continue
        if isinstance(answer, dict):
            answer = {part: value for part, value in answer.items() if (client, f"{scenario}.{part}") not in LEFT_OUT}
        answers[scenario] = answer
    return answers
