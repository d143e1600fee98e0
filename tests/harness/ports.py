"""Ports for servers that cannot choose one themselves."""

import collections
import random
import socket

# Below the ephemeral ports, so that no outgoing connection takes one while a server is down.
RANGE = (10_000, 32_000)
# Ports that a process keeps reserved, one file descriptor each: more than the servers that start at one time.
MAX_RESERVED = 24

reservations = collections.deque()


def free_ports(count):
    """Ports that have no listener, and that neither this process nor another test process hands out meanwhile."""
    ports = [free_port() for _ in range(count)]
    while len(reservations) > MAX_RESERVED:
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
    """Binds an abstract Unix socket (unix(7)) that only one process can hold and that is released on exit; `None` if it is
    taken."""
    reservation = socket.socket(socket.AF_UNIX)
    try:
        reservation.bind(f"\0leveret-tests-port-{port}")
    except OSError:
        reservation.close()
        return None
    return reservation


def is_free(port):
    """Whether a server could listen on this port on every address."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family) as probe:
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
