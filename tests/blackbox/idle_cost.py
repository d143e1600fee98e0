"""An idle connection holds no buffers: a thousand of them stay within 8 MiB."""

import resource

from harness.child import resident_bytes
from harness.instances import leveret
from harness.wire import Wire

CONNECTIONS = 1000
ALLOWED_BYTES = 8 << 20
# Sockets on both sides, and what else a process has open.
DESCRIPTORS = 2 * CONNECTIONS + 256


def test_a_thousand_idle_connections_stay_under_8_mib(tmp_path):
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(DESCRIPTORS, most), most))
    with leveret(tmp_path) as server:
        # What is allocated once, whatever the number of connections, is not an idle connection's cost.
        for _ in range(20):
            with Wire(server.port) as warm_up:
                warm_up.handshake().open_channel()
        before = resident_bytes(server.pid)
        wires = [Wire(server.port).handshake(heartbeat=600) for _ in range(CONNECTIONS)]
        grown = resident_bytes(server.pid) - before
        # They are sessions, not merely sockets.
        wires[0].open_channel()
        wires[-1].open_channel()
        for wire in wires:
            wire.close()
        server.stop()
    print(f"{CONNECTIONS} idle connections: {grown} bytes, {grown // CONNECTIONS} each")
    assert grown < ALLOWED_BYTES
