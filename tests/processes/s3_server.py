"""An S3 server whose answers fail as a test asks, for tests of object stores."""

import contextlib
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import Request, urlopen

import pytest

from bert_tf.files import storage


class Faults(BaseHTTPRequestHandler):
    """Passes requests on to a server; the first ones fail as `faults` says."""

    protocol_version = "HTTP/1.1"
    target = ""
    faults: list[str] = []  # noqa: RUF012

    def _pass(self):
        fault = ""
        with contextlib.suppress(IndexError):  # requests are answered in threads
            fault = self.faults.pop(0)
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else None
        if self.headers["Transfer-Encoding"] == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        if fault in ("503", "denied"):
            denied = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
            status, body = (503, b"") if fault == "503" else (403, denied)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else body)
            return
        if fault == "slow":
            time.sleep(1)
        for name in ("Expect", "Transfer-Encoding"):
            del self.headers[name]
        # By default, urllib would send the body as a form.
        headers = {"Content-Type": "application/octet-stream", **self.headers}
        request = Request(self.target + self.path, body, headers, method=self.command)
        try:
            answer = urlopen(request)
        except Exception as error:
            answer = error
        content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        size = answer.headers.get("Content-Length", len(content))
        self.send_header("Content-Length", str(size if self.command == "HEAD" else len(content)))
        self.end_headers()
        if fault == "cut":
            self.wfile.write(content[: len(content) // 2])
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass

    def log_message(self, *arguments):
        pass


def put(*keys):
    for key in keys:
        storage._file_system("s3").pipe_file(f"bucket/{key}", b"")


@contextlib.contextmanager
def bucket():
    """The URL of a bucket; requests go through `Faults`."""
    files = pytest.importorskip("s3fs").S3FileSystem
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", port=0)
    with contextlib.ExitStack() as stack:  # whatever fails
        stack.callback(storage._file_system.cache_clear)
        server.start()
        stack.callback(server.stop)
        host, port = server.get_host_and_port()
        Faults.target = f"http://{host}:{port}"
        urlopen(Request(f"{Faults.target}/moto-api/reset", method="POST")).close()
        proxy = ThreadingHTTPServer(("127.0.0.1", 0), Faults)
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        stack.callback(proxy.shutdown)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.server_port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        files.clear_instance_cache()  # what another module's server held is gone, too
        storage._file_system.cache_clear()
        storage._file_system("s3").mkdir("bucket")
        yield "s3://bucket"
