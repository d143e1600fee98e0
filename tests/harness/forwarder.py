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
        # New connections are accepted but never answered, and are in `unanswered`.
        self.is_closed = False
        self.unanswered = []
        # Locked to change these, so that `cut` and `reopen` concern every connection that was accepted before.
        self.turn = threading.Lock()
        # While this is cleared, new connections wait before they are forwarded.
        self.passes_new = threading.Event()
        self.passes_new.set()
        self.silenced = threading.Event()
        # New connections are reset, as by a host with no listener on the port.
        self.refuses = False
        # While this is cleared, data waits in both directions.
        self.flows = threading.Event()
        self.flows.set()
        # Data for the broker is discarded. A connection that has lost some passes nothing any more.
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
                with self.turn:
                    is_forwarded = self._admit(client)
                if not is_forwarded:
                    continue
                if self.passes_new.is_set():
                    self._pass(client)
                else:
                    threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _admit(self, client):
        """Decides what becomes of a new connection; returns whether it is forwarded."""
        if self.refuses:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            client.close()
        elif self.is_closed:
            self.unanswered.append(client)
            self.silenced.set()
        else:
            self.sockets.append(client)
            return True
        return False

    def _pass(self, client):
        self.passes_new.wait()
        with contextlib.suppress(OSError):
            server = socket.create_connection(("127.0.0.1", self.port_behind))
            with self.turn:
                if client not in self.sockets:
                    # It was cut meanwhile.
                    server.close()
                    return
                self.sockets.append(server)
            for arguments in [(client, server, True), (server, client, False)]:
                threading.Thread(target=self._copy, args=arguments, daemon=True).start()

    def _copy(self, source, sink, may_swallow):
        has_lost = False
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.flows.wait()
                has_lost = has_lost or (may_swallow and self.swallows)
                if has_lost:
                    self.swallowed += len(data)
                else:
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def cut(self):
        """Closes all connections; data of later ones is not swallowed."""
        with self.turn:
            cut, self.sockets, self.unanswered = self.sockets + self.unanswered, [], []
            self.swallows = False
        end(cut)

    def close(self):
        """Cuts the broker off: connections are closed, and new ones are never answered."""
        with self.turn:
            self.is_closed = True
        self.cut()

    def reopen(self):
        """Ends `close`. Closes the connections that were not answered, and none of those that are forwarded from now on."""
        with self.turn:
            self.is_closed = False
            silent, self.unanswered = self.unanswered, []
        end(silent)

    def stop(self):
        self.listener.close()
        self.passes_new.set()
        self.flows.set()
        self.cut()


def end(sockets):
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
