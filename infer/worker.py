"""One replica of a local model. It serves requests on a socket; the file descriptor is the only argument."""

from __future__ import annotations

import socket
import sys

from custom_models.load_model import load_model
from imageevalkit.generate.worker import serve

if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), load_model)
