"""Files of a filesystem in device memory, mapped where they are. Needs /dev/fuse and root, as what
mounts it does."""

import gc
import os
import signal
import subprocess
import time

import numpy as np
import pytest
from conftest import SCALE

from fercuda_runtime import RuntimeSession, errors

CHUNK = 128 << 10


class Mounted:
    def __init__(self, at, *words):
        at.mkdir()
        self.at = at
        self.daemon = subprocess.Popen(
            ["fercuda", "vram", "mount", "--foreground", "--size=16MiB", *words, str(at)], stdout=subprocess.PIPE, text=True
        )
        said = self.daemon.stdout.readline()
        assert said.startswith("mounted at"), said

    def random(self, name, count, rng):
        values = rng.integers(0, 256, count, dtype=np.uint8)
        (self.at / name).write_bytes(values.tobytes())
        return values

    def exported(self):
        figures = os.getxattr(self.at, "fercuda.figures").decode()
        return int(dict(line.split(" ", 1) for line in figures.splitlines())["exported_files"])

    def settles(self):
        """Waits until nothing is exported: the last buffer may be released only after the work on
        it."""
        end = time.monotonic() + 60
        while self.exported():
            gc.collect()
            assert time.monotonic() < end
            time.sleep(0.01)


@pytest.fixture(params=["rs", "off"])
def mounted(request, tmp_path):
    it = Mounted(tmp_path / "vram", f"--ecc={request.param}")
    it.ecc = request.param
    yield it
    it.daemon.send_signal(signal.SIGTERM)
    assert it.daemon.wait(60) == 0


def values_of(buffer):
    return np.frombuffer(buffer.copy().download(), np.uint8)


def test_a_file_is_read_where_it_is(session, mounted, rng):
    path = mounted.at / "file"
    values = mounted.random("file", 4 * CHUNK, rng)
    with session.map_vram(path) as file:
        assert (file.size, file.is_writable, file.is_closed) == (4 * CHUNK, False, False)
        assert file.stride_bytes >= CHUNK
        assert "4 segments" in repr(file) or mounted.ecc == "off"
        rows = file.rows()
        assert rows.shape == (4, CHUNK)
        assert rows.strides == (file.stride_bytes, 1)
        assert (values_of(rows) == values).all()
        assert rows.export_device_ptr() == file.chunks[0] == file.segments[0][2]
        part = file.buffer(CHUNK + 77, 1000)
        assert (values_of(part) == values[CHUNK + 77 :][:1000]).all()
        assert file.buffer(CHUNK, 0).size == 0
        if mounted.ecc == "off":
            assert (values_of(file.buffer()) == values).all()
        else:
            with pytest.raises(errors.LayoutError, match="rows()"):
                file.buffer()
        with pytest.raises(OSError, match="busy"):
            path.write_bytes(b"x")
        assert path.read_bytes() == values.tobytes()
        with pytest.raises(errors.VramError, match="another process"):
            session.map_vram(path, writable=True)
        assert mounted.exported() == 1
    # A buffer keeps the file mapped.
    assert file.is_closed
    assert mounted.exported() == 1
    assert (values_of(rows) == values).all()
    with pytest.raises(errors.VramError, match="was closed"):
        file.rows()
    file.close()
    del rows, part, file
    gc.collect()
    mounted.settles()
    path.write_bytes(b"x")


def test_a_kernel_writes_a_file(session, mounted, rng):
    path = mounted.at / "file"
    values = rng.standard_normal(2 * CHUNK // 4, dtype=np.float32)
    path.write_bytes(values.tobytes())
    scale = session.load(SCALE).function("scale")
    with session.map_vram(path, writable=True) as file:
        assert file.is_writable
        for offset in range(0, file.size, CHUNK):
            with file.buffer(offset, CHUNK).view("f32", (CHUNK // 4,)) as part:
                session.launch_async(scale, CHUNK // 4 // 256, 256, [part, 2.0, CHUNK // 4, 0]).wait()
        with pytest.raises(OSError, match="busy"):
            path.read_bytes()
    gc.collect()
    mounted.settles()
    assert (np.frombuffer(path.read_bytes(), np.float32) == values * 2).all()
    if mounted.ecc == "rs":
        subprocess.run(["fercuda", "vram", "inject", "--kind=row", "--count=1", str(path)], check=True)
        assert (np.frombuffer(path.read_bytes(), np.float32) == values * 2).all()


def test_what_cannot_be_mapped_is_an_error_that_says_why(session, mounted, tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"x")
    with pytest.raises(errors.VramError, match="not where such a filesystem is mounted"):
        session.map_vram(tmp_path / "elsewhere")
    with pytest.raises(errors.VramError, match="No such file"):
        session.map_vram(str(mounted.at / "none"))
    (mounted.at / "small").write_bytes(b"x")
    with pytest.raises(errors.VramError, match="try: fallocate"):
        session.map_vram(mounted.at / "small", writable=True)
    with session.map_vram(mounted.at / "small") as file, pytest.raises(errors.LayoutError, match="array of rows"):
        file.rows()


def test_a_forgotten_file_is_given_back(mounted):
    (mounted.at / "file").write_bytes(bytes(CHUNK))
    with RuntimeSession("lends") as session:
        file = session.map_vram(mounted.at / "file")
        buffer = file.rows()
        assert mounted.exported() == 1
        del file
        gc.collect()
        assert mounted.exported() == 1
        assert values_of(buffer).sum() == 0
    del buffer
    gc.collect()
    mounted.settles()
