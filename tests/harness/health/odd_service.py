"""A service that answers as a broken one does: `python odd_service.py SOCKET KIND`; prints a line when it listens."""

import socket
import sys
import threading
from concurrent import futures

KINDS = ("no message", "no text", "an error", "silence", "no gRPC")


def main(path: str, kind: str) -> None:
    """Serve until it is killed."""
    if kind == "no gRPC":
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        print("listens", flush=True)
        while True:
            connection, _ = listener.accept()
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nhealthy\n")
            connection.close()
    import grpc

    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        if kind == "silence":
            threading.Event().wait()
        if kind == "an error":
            context.abort(grpc.StatusCode.INTERNAL, "the daemon is broken")
        return b"\xff\xff\xff" if kind == "no message" else b"\x08\x01\x1a\x02\xff\xfe"

    server = grpc.server(futures.ThreadPoolExecutor(2))
    method = grpc.unary_unary_rpc_method_handler(answer)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("nvhcd.HealthCheckService", {"RunHealthCheck": method}),)
    )
    server.add_insecure_port(f"unix://{path}")
    server.start()
    print("listens", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
