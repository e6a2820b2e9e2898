"""A network between an app and its server that can fall silent."""

import selectors
import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit


class Proxy:
    """Forwards connections to a server; while it is silent it accepts them, and forwards nothing."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = parts._replace(netloc=parts.netloc.rpartition("@")[0] + f"@127.0.0.1:{port}").geturl()
        self._flows = threading.Event()
        self._flows.set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._others: dict[socket.socket, socket.socket] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def silence(self) -> None:
        self._flows.clear()

    def resume(self) -> None:
        self._flows.set()

    def close(self) -> None:
        self._closing = True
        self._flows.set()
        self._thread.join()
        for one in [self._listener, *self._others]:
            one.close()

    def _serve(self) -> None:
        while not self._closing:
            self._flows.wait()
            for key, _ in self._selector.select(timeout=0.05):
                if not self._flows.is_set():
                    break
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._others:
                    self._forward(key.fileobj)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(self._target)
        for one, other in ((client, server), (server, client)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._others[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _forward(self, source: socket.socket) -> None:
        try:
            data = source.recv(65_536)
            if data:
                self._others[source].sendall(data)
                return
        except OSError:
            pass
        for one in (source, self._others[source]):
            self._selector.unregister(one)
            del self._others[one]
            with suppress(OSError):
                one.close()
