"""A pika connection to a server under test."""

import pika


def connect(server, **options):
    """Connects to `server.uri`; options set attributes of pika's parameters."""
    parameters = pika.URLParameters(server.uri)
    for name, value in options.items():
        setattr(parameters, name, value)
    return pika.BlockingConnection(parameters)
