"""A launch-bound program of many small layers."""

from __future__ import annotations

from gpuprof.diagnosis.analysis import Analysis
from helpers.program import US, Program

LAYERS, CHAIN, PAUSE = 60, 4, 20 * US


def eager(tmp_path, *, steps=3, within=None, begin=None, end=None) -> Analysis:
    """Layers of one matmul and a chain of elementwise ops, with pauses for Python; tiny kernels, so launch-bound.
    within, begin, end: additional work of a step in its forward pass, before it, and after the backward pass.
    """
    program = Program()

    def layer():
        program.small_mm()
        program.python(PAUSE)
        for _ in range(CHAIN):
            program.elementwise()
            program.python(PAUSE)

    def body():
        if begin:
            begin(program)
        for i in range(LAYERS):
            layer()
            if within:
                within(program, i)
        program.backward(layer, LAYERS)
        if end:
            end(program)

    for _ in range(steps):
        program.step(body)
    return program.case(tmp_path)
