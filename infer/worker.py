"""One worker of a model, in its environment. It serves a socket, whose descriptor is the only argument."""

from __future__ import annotations

import socket
import sys

from custom_models.load_model import load_model
from imageevalkit.generate.worker import serve

if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), load_model)
