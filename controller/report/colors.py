"""The colors of states, in figures and pages: the one place that has them. Pure.

Colors of succeeded, pruned and failed trials differ for people who do not tell red from green, too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Color:
    # On a light page, and where a figure is drawn without one.
    light: str
    dark: str


_GRAY = Color("#8a8f98", "#a0a6b0")
_PALE = Color("#b9bec6", "#7d8694")

# The states of trials, attempts and experiments, in the order of legends.
STATES = {
    "succeeded": Color("#2f6db5", "#6ba4ea"),
    "pruned": Color("#e08a2c", "#f0a95a"),
    "infeasible": Color("#8a6fb0", "#b59adb"),
    "failed": Color("#c8453c", "#f0776e"),
    "cancelled": _GRAY,
    "stopped": _GRAY,
    "stopping": _GRAY,
    "running": Color("#3a9a63", "#5cc489"),
    "created": _PALE,
    "queued": _PALE,
    "paused": Color("#5b8ff9", "#86acff"),
}
BEST_SO_FAR = "#12a594"  # on both pages; no state has it
BAR = STATES["succeeded"]
SPREAD = STATES["pruned"]
FRONT = STATES["failed"]
DOMINATED = Color("#7f9cc0", "#90b4e2")
FORBIDDEN = Color("#c3c7cd", "#6d7583")

# What replaces the light colors of a figure on a dark page.
ON_DARK = {color.light: color.dark for color in (*STATES.values(), DOMINATED, FORBIDDEN)}


def stylesheet() -> str:
    """Return each state's color, as `--state` of the elements with the state as their class."""
    light, dark = "", ""
    for state, color in STATES.items():
        light += f".{state} {{ --state: {color.light}; }}\n"
        dark += f"  .{state} {{ --state: {color.dark}; }}\n"
    return f"{light}@media (prefers-color-scheme: dark) {{\n{dark}}}\n"
