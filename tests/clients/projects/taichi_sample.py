"""Runs one of Taichi's samples for a few frames without a window, and keeps what it computed.

Usage: taichi_sample.py BACKEND SAMPLE FRAMES RESULT. Its windows are replaced by ones that draw
nothing; after so many frames the sample ends. What its last frames drew is written to RESULT by
numpy.savez; if they drew nothing, the fields and arrays of its module.
"""

import itertools
import random
import sys
import time
from unittest.mock import MagicMock

import numpy as np
import taichi as ti

backend, sample, frames, result = sys.argv[1:]
frames_left = int(frames)
drawn = {}


class Ended(Exception):
    """The sample has shown its frames."""


def array(value):
    """What a field or an array holds; None for anything else."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, (ti.Field, ti.MatrixField)):
        content = value.to_numpy()
        # Fields of structures are dictionaries of arrays.
        return content if isinstance(content, np.ndarray) else None
    return None


def draw(name):
    def drawing(*arguments, **more):
        for place, value in [*enumerate(arguments), *more.items()]:
            content = array(value)
            if content is not None and content.dtype != object:
                drawn[f"{name}.{place}"] = content

    return drawing


def answer(_, value=None, *__, **___):
    """A widget that keeps its value."""
    return value


def show(*_, **__):
    global frames_left
    frames_left -= 1
    if frames_left <= 0:
        raise Ended


def window(*_, **__):
    """Both kinds of window, and their canvases and scenes, which draw the same things."""
    it = MagicMock()
    it.running = True
    it.show = show
    it.is_pressed.return_value = False
    it.get_event.return_value = False
    it.get_events.return_value = []
    it.get_cursor_pos.return_value = (0.4, 0.6)
    it.event = None
    it.res = (512, 512)
    it.frame = 1
    it.get_canvas.return_value = it.get_scene.return_value = it
    for name in ("set_image", "circles", "lines", "triangles", "particles", "mesh", "arrows"):
        setattr(it, name, draw(name))
    it.get_gui.return_value = widgets = MagicMock()
    for name in ("slider_int", "slider_float", "checkbox", "color_edit_3"):
        setattr(widgets, name, answer)
    widgets.button.return_value = False
    widgets.sub_window.return_value.__enter__.return_value = widgets
    it.slider.return_value = MagicMock(value=1.0)
    return it


first_init = ti.init


def init(arch=None, **options):
    """Starts Taichi on the wanted backend, whatever the sample asks for."""
    for memory in ("device_memory_fraction", "device_memory_GB", "print_ir"):
        options.pop(memory, None)
    options |= {"arch": getattr(ti, backend), "random_seed": 7, "offline_cache": False}
    first_init(**options, log_level=ti.WARN, device_memory_GB=1)
    assert ti.lang.impl.current_cfg().arch == getattr(ti, backend), "it started another backend"


ti.init = init
ti.GUI = type(ti.GUI)("GUI", (), {"__new__": lambda *_, **__: window()} | {
    name: getattr(ti.GUI, name) for name in dir(ti.GUI) if name.isupper()
})
ti.ui.Window = window
ti.ui.Scene = window
# Nor are diagrams drawn, and colours are what they are of.
diagrams = ("matplotlib", "matplotlib.cm", "matplotlib.colors", "matplotlib.pyplot")
for name in (*diagrams, "mpl_toolkits", "mpl_toolkits.mplot3d"):
    sys.modules[name] = MagicMock()
colours = sys.modules["matplotlib"].cm = sys.modules["matplotlib.cm"]
colours.plasma = lambda values: np.repeat(values[..., None], 4, axis=-1)
colours.ScalarMappable.return_value.to_rgba = colours.plasma
sys.modules["matplotlib.pyplot"].show = show
# Samples that ask for the time go on by a sixtieth of a second.
ticks = itertools.count()
time.time = time.perf_counter = lambda: next(ticks) / 60
time.time_ns = lambda: next(ticks) * 10**9 // 60
random.seed(7)
np.random.seed(7)
sys.argv = [sample]
module = {"__name__": "__main__", "__file__": sample}
with open(sample) as file:
    code = compile(file.read(), sample, "exec")
try:
    exec(code, module)
except Ended:
    pass
ti.sync()
if not drawn:
    for name, value in module.items():
        content = array(value)
        if content is not None and content.dtype != object:
            drawn[name] = content
np.savez(result, **drawn)
