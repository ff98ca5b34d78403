"""Work on attention scores that are written to memory: matrices whose two sides are both the sequence length.

Eager attention multiplies queries with keys, adds a mask, takes a softmax, applies dropout, and multiplies with the
values; all of this, and its backward pass, scales with the square of a sample's length. It is recognised by shapes: a
softmax over [batch, heads, sequence, sequence] gives the lengths, and every other op on such a matrix is part of it.
"""

from __future__ import annotations

import msgspec
import numpy as np

from gpuprof.costs.arguments import LONGEST_SIDE
from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.phases import FORWARD
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.remembered import remembered
from gpuprof.tracefile.trace import F64, NO_TEXT, Mask

_SOFTMAX = CATEGORIES.index("softmax")
_MATMULS = ("aten::bmm", "aten::baddbmm", "aten::baddbmm_")
Shape = tuple[int, ...]


@remembered
def on_attention_scores(timeline: Timeline) -> Mask:
    """Mask of the trace's GPU events that work on such matrices. Softmaxes of unknown shape are assumed to."""
    return _on_attention_scores(timeline, _shapes(timeline))


def score_elements(timeline: Timeline) -> F64:
    """Number of scores of each softmax over such a matrix in the window's forward passes."""
    known = _shapes(timeline)
    rows = timeline.members[(timeline.category == _SOFTMAX)[timeline.members]]
    rows = rows[timeline.phase[rows] == FORWARD]
    found = [_scores(known.get(text)) for text in _texts(timeline)[rows].tolist()]
    return np.array([float(np.prod(shape)) for shape in found if shape is not None])


def _on_attention_scores(timeline: Timeline, known: dict[int, list[Shape]]) -> Mask:
    text = _texts(timeline)
    softmax = timeline.category == _SOFTMAX
    named = [_scores(known.get(one)) for one in np.unique(text[softmax]).tolist()]
    scores = [shape for shape in named if shape is not None]
    lengths = {shape[-2] for shape in scores}
    heads = {int(np.prod(shape[:-2])) for shape in scores}
    bare = [one for one, shapes in known.items() if any(_is_square(shape, lengths, heads) for shape in shapes)]
    made = [one for one, shapes in known.items() if _makes_square(shapes, lengths, heads)]
    ops = timeline.trace.ops
    matmul = timeline.trace.rows_named(ops.name, lambda name: name in _MATMULS)
    op = timeline.links.op
    multiplied = (op >= 0) & np.append(matmul, False)[op]
    return np.isin(text, bare) | (multiplied & np.isin(text, made)) | (softmax & (text == NO_TEXT))


def _texts(timeline: Timeline) -> np.ndarray:
    """Per GPU event the id of its op's recorded shapes."""
    return np.append(timeline.trace.ops.dims, NO_TEXT)[timeline.links.op]


def _shapes(timeline: Timeline) -> dict[int, list[Shape]]:
    """Id of a text → shapes with two or more dimensions, for ops that launched GPU work."""
    found = {}
    for text in np.unique(_texts(timeline)).tolist():
        if text != NO_TEXT:
            found[text] = _parsed(timeline.trace.text(text))
    return found


def _parsed(text: str | None) -> list[Shape]:
    try:
        values = msgspec.json.decode(text or "null")
    except (msgspec.DecodeError, RecursionError):
        return []
    if not isinstance(values, list):
        return []
    flat = [one for value in values for one in (value if _is_list(value) else [value])]
    return [tuple(value) for value in flat if _is_shape(value)]


def _is_list(value: object) -> bool:
    """Whether an argument is several tensors."""
    return isinstance(value, list) and any(isinstance(one, list) for one in value)


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and len(value) > 2 and all(type(n) is int and 0 < n < LONGEST_SIDE for n in value)


def _scores(shapes: list[Shape] | None) -> Shape | None:
    """The first shape of a softmax, if it is over scores: square, except for one more column for an attention sink."""
    if not shapes or len(shapes[0]) < 3:
        return None
    *_, rows, columns = shapes[0]
    return shapes[0] if rows > 1 and columns - rows in (0, 1) else None


def _is_square(shape: Shape, lengths: set[int], heads: set[int]) -> bool:
    """Whether it is the shape of scores. With three dimensions the first must be that of scores, too: [batch, sequence,
    width] may be square by chance."""
    *leading, rows, columns = shape
    if rows not in lengths or columns - rows not in (0, 1):
        return False
    return len(leading) > 1 or leading[0] in heads


def _makes_square(shapes: list[Shape], lengths: set[int], heads: set[int]) -> bool:
    """Whether multiplying the last two of these gives such a matrix."""
    if len(shapes) < 2:
        return False
    left, right = shapes[-2:]
    return len(left) == len(right) == 3 and left[0] in heads and left[1] in lengths and left[1] == right[2]
