"""The limit of open files is raised to what it may be: nobody has to set it for very many clients."""

import resource

from harness.instances import leveret
from harness.leveret import binary
from harness.metrics import metric
from harness.process import descriptors
from harness.wire import Wire

# What systems start processes with is often this low, though not quite.
LOW = 128
CLIENTS = 2 * LOW


def test_more_clients_are_served_than_the_limit_it_was_started_with(tmp_path):
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The server's alone: what runs the tests has more files open than this.
    limited = tmp_path / "limited"
    limited.write_text(f'#!/bin/sh\nulimit -S -n {LOW}\nexec "{binary()}" "$@"\n')
    limited.chmod(0o755)
    with leveret(tmp_path / "server", program=limited) as server, descriptors(16 * CLIENTS):
        wires = [Wire(server.port).handshake() for _ in range(CLIENTS)]
        assert metric(server, "rabbitmq_process_open_fds") > CLIENTS
        assert metric(server, "rabbitmq_process_max_fds") == most
        for wire in wires:
            wire.close()
        server.stop()
