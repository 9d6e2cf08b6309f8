"""Says which nvidia_resiliency_ext it has."""

import json
import os

import nvidia_resiliency_ext

line = {"event": "whose", "file": nvidia_resiliency_ext.__file__, "version": nvidia_resiliency_ext.__version__}
os.write(1, f"{json.dumps(line)}\n".encode())
