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
NO_ELEMENTS = VIEWS | {
    f"aten::{name}"
    for name in (
        *("_reshape_alias", "_unsafe_view", "split_with_sizes", "tensor_split", "unflatten_dense_tensors", "view_as"),
        *("contiguous", "clone", "_to_copy", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
    )
}
"""Those, ops that only allocate, and ops that leave copying to another op within them: their own time goes over no
numbers, however long it is."""
