"""Convenience API for scripts: a device and a session in one object, and memory plans
(`ignition`)."""

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
