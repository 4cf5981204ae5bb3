"""Imports the libraries that the daemon needs, reports that it has, and does nothing more."""

import os
import signal

import grpc.aio
import pydantic.main
import pynvml
import structlog

LIBRARIES = (grpc.aio, pydantic.main, pynvml, structlog)

if __name__ == "__main__":
    os.write(1, b"imported\n")
    signal.pause()
