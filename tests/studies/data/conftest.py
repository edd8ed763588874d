"""A server on this machine that has the files of the small set, and a folder whose permissions count."""

import contextlib
import functools
import http.server
import os
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
from small_sets import PACKED


@dataclass(frozen=True)
class Home:
    folder: Path
    url: str
    asked: list[str]
    """What the server was asked for."""


class Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *arguments, asked, **options):
        self.asked = asked
        super().__init__(*arguments, **options)

    def log_message(self, *arguments):
        self.asked.append(self.path)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Everything in a folder is served while the test runs."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    folder, asked = tmp_path / "home", []
    folder.mkdir()
    for name, content in PACKED.items():
        (folder / name).write_bytes(content)
    handler = functools.partial(Handler, directory=folder, asked=asked)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Home(folder, f"http://127.0.0.1:{server.server_port}/", asked)
        server.shutdown()
        thread.join()


class Restricted:
    """A folder that everybody may enter, and a way to be somebody whom permissions bind."""

    def __init__(self, folder):
        self.folder = folder

    @contextlib.contextmanager
    def mode(self, path, mode):
        """While `path` has this mode. Root may read everything, so its rights are given up for as long."""
        before, user = path.stat().st_mode, os.geteuid()
        path.chmod(mode)
        if user == 0:
            os.seteuid(65534)  # nobody
        try:
            yield
        finally:
            if user == 0:
                os.seteuid(0)
            path.chmod(before)


@pytest.fixture
def restricted():
    """Not under pytest's own folder, which is its owner's alone."""
    if not hasattr(os, "seteuid"):
        pytest.skip("needs the permissions of POSIX")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Restricted(Path(folder).resolve())
