"""A mount whose server has stopped to answer, for a command: `python silent_mount.py FOLDER COMMAND...`.

FUSE is a file system in a process, here one that answers the first request and takes the others without an answer, as a
server of NFS does that is cut off. A process that asks it waits in the kernel and does not end by SIGKILL. The mount is
in a mount namespace of its own; when this process ends, the kernel ends what waits. The exit code is the command's.
"""

import ctypes
import os
import struct
import subprocess
import sys
import threading

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000
HEADER = struct.Struct("=IIQQIIII")  # fuse_in_header
INIT = 26


def main(folder: str, command: list[str]) -> int:
    """Mount, serve, and run the command."""
    libc = ctypes.CDLL(None, use_errno=True)
    fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    for code in (
        libc.unshare(CLONE_NEWNS),
        libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None),
        libc.mount(b"silent", folder.encode(), b"fuse.silent", 0, options),
    ):
        if code:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    threading.Thread(target=serve, args=(fuse,), daemon=True).start()
    return subprocess.run(command, check=False).returncode


def serve(fuse: int) -> None:
    """Answer INIT; take every other request, and keep silent."""
    while True:
        request = os.read(fuse, 1 << 20)
        _, opcode, unique, *_ = HEADER.unpack_from(request)
        if opcode == INIT:
            body = struct.pack("=IIIIHHIIHHI", 7, 31, 1 << 16, 0, 12, 9, 1 << 16, 1, 0, 0, 0) + bytes(24)
            os.write(fuse, struct.pack("=IiQ", 16 + len(body), 0, unique) + body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
