"""A TCP forwarder to a broker that can stall, freeze, drop what is sent, refuse connections, and cut all of them."""

import contextlib
import socket
import struct
import threading

# SO_LINGER: close() resets the connection.
RESET = struct.pack("ii", 1, 0)


class Forwarder:
    """Forwards connections to a port of this machine."""

    def __init__(self, port):
        self.port_behind = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.sockets = []
        # New connections are accepted but never answered.
        self.is_closed = False
        # While this is cleared, new connections wait before they are forwarded.
        self.passes_new = threading.Event()
        self.passes_new.set()
        self.silenced = threading.Event()
        # New connections are reset, as by a host with no listener on the port.
        self.refuses = False
        # While this is cleared, data waits in both directions.
        self.flows = threading.Event()
        self.flows.set()
        # Data for the broker is discarded.
        self.swallows = False
        self.swallowed = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self):
        return f"amqp://127.0.0.1:{self.port}"

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                if self.refuses:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    client.close()
                    continue
                self.sockets.append(client)
                if self.is_closed:
                    self.silenced.set()
                    continue
                if self.passes_new.is_set():
                    self._pass(client)
                else:
                    threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client):
        self.passes_new.wait()
        with contextlib.suppress(OSError):
            server = socket.create_connection(("127.0.0.1", self.port_behind))
            self.sockets.append(server)
            for arguments in [(client, server, True), (server, client, False)]:
                threading.Thread(target=self._copy, args=arguments, daemon=True).start()

    def _copy(self, source, sink, may_swallow):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.flows.wait()
                if may_swallow and self.swallows:
                    self.swallowed += len(data)
                else:
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def cut(self):
        """Closes all connections; later ones are forwarded normally."""
        cut, self.sockets = self.sockets, []
        for each in cut:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self.swallows = False

    def stop(self):
        self.listener.close()
        self.passes_new.set()
        self.flows.set()
        self.cut()
