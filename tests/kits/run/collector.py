"""A collector of OpenTelemetry: what is sent to it, decoded."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2


class CollectorServer:
    """OTLP over HTTP, as a collector takes it."""

    def __init__(self) -> None:
        taken = self.requests = list[tuple[str, str, bytes]]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                taken.append((self.path, self.headers["Content-Type"], body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=lambda: self.server.serve_forever(0.01), daemon=True).start()

    @property
    def port(self) -> int:
        return self.server.server_address[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def spans(self) -> list[trace_pb2.Span]:
        requests = [ExportTraceServiceRequest.FromString(body) for _, _, body in self.requests]
        scopes = (scope for request in requests for of in request.resource_spans for scope in of.scope_spans)
        return [span for scope in scopes for span in scope.spans]
