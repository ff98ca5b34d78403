"""Ops that touch no elements: they return a view of a tensor, or memory for a new one."""

from __future__ import annotations

VIEWS = frozenset(
    f"aten::{name}"
    for name in (
        *("alias", "as_strided", "chunk", "detach", "expand", "flatten", "lift_fresh", "narrow", "permute", "reshape"),
        *("select", "slice", "split", "squeeze", "t", "to", "transpose", "unbind", "unflatten", "unsqueeze", "view"),
    )
)
"""Ops that launch nothing if they only return a view of a tensor: a fused op needs them as well."""
COPIES = frozenset({"aten::flatten", "aten::reshape", "aten::to"})
"""Those of them that copy where a view is not enough, maybe without an op of its own for that."""
NO_ELEMENTS = (VIEWS - COPIES) | {
    f"aten::{name}"
    for name in (
        *("_reshape_alias", "_unsafe_view", "split_with_sizes", "tensor_split", "unflatten_dense_tensors", "view_as"),
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
    )
}
"""Ops that never touch an element: views and allocations, however long they take."""
