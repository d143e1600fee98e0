"""Starts and stops what the tests talk to: RabbitMQ, Leveret, the client drivers."""
