"""The space on which costs are measured: six parameters, mixed as in a real search."""

from __future__ import annotations

from suggest.space import Choice, Float, Int, Parameter, Scale, Space

SPACE = Space(
    (
        Parameter("lr", Float(1e-5, 1.0, Scale.LOG)),
        Parameter("momentum", Float(0.0, 1.0)),
        Parameter("dropout", Float(0.0, 0.7)),
        Parameter("layers", Int(1, 12)),
        Parameter("width", Int(16, 1024, Scale.LOG)),
        Parameter("activation", Choice(("relu", "tanh", "gelu"))),
    )
)
