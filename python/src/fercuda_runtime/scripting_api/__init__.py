"""What a script needs: a device and a session in one object, and plans of memory (`ignition`)."""

from .ignition import IgnitionPlan, Region, TensorSpec, ignite
from .session import RuntimeConfig, RuntimeSession

__all__ = [
    "IgnitionPlan",
    "Region",
    "RuntimeConfig",
    "RuntimeSession",
    "TensorSpec",
    "ignite",
]
