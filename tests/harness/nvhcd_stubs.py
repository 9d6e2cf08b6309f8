"""Generator of nvrx_core/health/nvhcd_pb2.py, from nvhcd.proto, by the protoc of grpcio-tools.

Regenerate: python -m tests.harness.nvhcd_stubs > nvrx_core/health/nvhcd_pb2.py

protoc adds a check that the installed protobuf is not older than the one of grpcio-tools. It is left out: the code
needs protobuf 4.21 or later, and a job has the one that its other packages ask for.
"""

import pathlib
import re
import tempfile

from grpc_tools import protoc

__all__ = ["stubs"]

HOME = pathlib.Path(__file__).parents[2] / "nvrx_core" / "health"
HEAD = '''\
"""Messages of the node health service, generated from nvhcd.proto by tests/harness/nvhcd_stubs.py."""

'''


def stubs() -> str:
    """The text of the file."""
    with tempfile.TemporaryDirectory() as folder:
        assert protoc.main(["protoc", f"-I{HOME}", f"--python_out={folder}", "nvhcd.proto"]) == 0
        text = pathlib.Path(folder, "nvhcd_pb2.py").read_text(encoding="utf-8")
    text = re.sub(
        r"^_runtime_version\.ValidateProtobufRuntimeVersion\(.*?^\)\n", "", text, flags=re.DOTALL | re.MULTILINE
    )
    lines = [line for line in text.splitlines() if not line.startswith(("#", '"""')) and "runtime_version" not in line]
    return HEAD + "\n".join([*lines, "__all__ = ['HealthCheckRequest', 'HealthCheckResponse']", ""]).lstrip("\n")


if __name__ == "__main__":
    print(stubs(), end="")
