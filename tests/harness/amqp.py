"""A pika connection to a server of the tests."""

import pika


def connect(server, **options):
    """`server` has a `uri`; options are attributes of pika's parameters."""
    parameters = pika.URLParameters(server.uri)
    for name, value in options.items():
        setattr(parameters, name, value)
    return pika.BlockingConnection(parameters)
