"""Ports for servers that cannot be asked to choose one themselves."""

import collections
import random
import socket

# Below those that the system gives to connections, so that none of them is taken while a server is down.
RANGE = (10_000, 32_000)
# How many a process keeps from the others, each with a file descriptor: more than servers take that start at one time.
KEPT = 24

reservations = collections.deque()


def free_ports(count):
    """Ports that nobody listens on, and that nobody else is given meanwhile: neither this process nor another one that
    runs tests."""
    ports = [free_port() for _ in range(count)]
    while len(reservations) > KEPT:
        reservations.popleft().close()
    return ports


def free_port():
    while True:
        port = random.randrange(*RANGE)
        if (reservation := reserve(port)) is None:
            continue
        if is_free(port):
            reservations.append(reservation)
            return port
        reservation.close()


def reserve(port):
    """A name that one process at a time can have, and loses when it ends (unix(7), abstract sockets); `None` if it is taken."""
    reservation = socket.socket(socket.AF_UNIX)
    try:
        reservation.bind(f"\0leveret-tests-port-{port}")
    except OSError:
        reservation.close()
        return None
    return reservation


def is_free(port):
    """Whether a server could listen there on every address."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family) as probe:
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
