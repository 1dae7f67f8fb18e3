"""One replica of a local model, asked through the socket whose descriptor is the only argument."""

from __future__ import annotations

import socket
import sys

from custom_models.load_model import load_model
from imageevalkit.generation.worker import serve

if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), load_model)
