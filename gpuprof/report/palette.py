"""The colours of a page: one source for its charts, its HTML and its timeline. Data only.

Every kind of thing has one colour for light pages and one for dark pages, the same in every view and used for nothing
else. Greens are GPU work by what limits it; blue, crimson, cyan, olive, brown, rose kernels by what they compute;
violets the phases of a step; orange, yellow, vermilion what the CPU does while the GPU waits, hatched where
it waits; slates a step's time and numbered things. The hues around Okabe and Ito's are distinguished under the common
kinds of colour blindness within each set; those that share a hue differ in lightness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import MappingProxyType

from gpuprof.diagnosis.mean_step.budget_model import NAMES
from gpuprof.report import labels
from gpuprof.report.stepbar import PAINTS
from gpuprof.units import Convention, Entries

_GREY = "#c5cad0"
"""Lighter than the hues that may look grey."""

_DARK_GREY = "#7a838e"
"""The same on a dark page."""

LIGHT_PAGE, DARK_PAGE = "#ffffff", "#14171c"
"""The backgrounds that the colours are made for."""


@dataclass(frozen=True, slots=True)
class Paint:
    """How one kind of thing looks on a page: `key` as code names it, `label` as readers do, colours as #rrggbb."""

    key: str
    label: str
    light: str
    dark: str


def _keyed(paints: Iterable[Paint]) -> MappingProxyType[str, Paint]:
    return MappingProxyType({paint.key: paint for paint in paints})


def _of_bar(key: str, label: str, dark: str) -> Paint:
    return Paint(key, label, PAINTS[key].page, dark)


WORK_PAINTS = _keyed(
    (
        _of_bar("compute", labels.PARTS["compute"], "#159b74"),
        _of_bar("communication", labels.PARTS["communication"], "#d993b8"),
        _of_bar("copy", labels.PARTS["copy"], "#4a67bd"),
        _of_bar("idle", labels.PARTS["idle"], "#565d67"),
    )
)
"""What a GPU does: three kinds of work, or nothing."""

CAUSE_PAINTS = _keyed(
    (
        _of_bar("launch", labels.PARTS["launch"], "#e9a820"),
        _of_bar("cpu_compute", labels.PARTS["cpu_compute"], "#858556"),
        _of_bar("slow_call", labels.PARTS["slow_call"], "#a02cf0"),
        _of_bar("python", labels.PARTS["python"], "#f0e442"),
        _of_bar("sync", labels.PARTS["sync"], "#e8702a"),
        _of_bar("input", labels.PARTS["input"], "#56b4e9"),
        _of_bar("transfer", labels.PARTS["transfer"], "#4a67bd"),
        _of_bar("allocator", labels.PARTS["allocator"], "#9a3f9a"),
        Paint("communication", labels.cause("communication"), "#e9bfd8", "#efcbe0"),
        _of_bar("device", labels.PARTS["device"], "#d8c2a2"),
        _of_bar("profiler", labels.PARTS["profiler"], "#a2abb5"),
        _of_bar("unknown", labels.PARTS["unknown"], "#6e5049"),
    )
)
"""Why a GPU waits, in the order in which charts stack it."""

BUDGET_PAINTS = _keyed(
    (
        Paint("usual", "usual step", "#94a3b8", "#7f8ea3"),
        *(
            _of_bar(key, NAMES[key], dark)
            for key, dark in (
                ("input", CAUSE_PAINTS["input"].dark),
                ("worker_starts", "#add5eb"),
                ("save", "#c7603a"),
                ("evaluation", "#276b7a"),
                ("logging", "#cfae45"),
                ("garbage_collection", "#86501a"),
                ("allocator", CAUSE_PAINTS["allocator"].dark),
                ("periodic", "#ff8f7d"),
                ("new_shapes", "#ec4a94"),
                ("compile", "#6a4be0"),
            )
        ),
        Paint("warm_up", NAMES["warm_up"], "#bcd36c", "#b9e07c"),
        _of_bar("pauses", labels.PARTS["pauses"], "#eef7f4"),
        _of_bar("variation", labels.PARTS["variation"], "#454d58"),
    )
)
"""Parts of the mean step; a cause that a GPU waits for within a step has the colour that it has there."""

PHASE_PAINTS = _keyed(
    (
        Paint("data", "data", "#56b4e9", "#56b4e9"),
        Paint("forward", "forward", "#cabdf0", "#cdc5f7"),
        Paint("backward", "backward", "#5540a8", "#7058cc"),
        Paint("recompute", "recompute", "#8270c8", "#9482e2"),
        Paint("optimizer", "optimizer", "#35246b", "#54409c"),
        Paint("communication", "communication", "#cc79a7", "#d993b8"),
        Paint("other", "other", _GREY, _DARK_GREY),
        Paint("generation", "generation", "#c98a00", "#e3b23c"),
    )
)
"""Parts of a training step: shades of violet; data and communication as everywhere."""

OWNER_PAINTS = _keyed(
    (
        Paint("weights", "weights", "#144f83", "#385996"),
        Paint("adapters", "adapters", "#079ff2", "#5ca2fc"),
        Paint("optimizer_state", "optimizer state", "#764235", "#7e4a38"),
        Paint("gradients", "gradients", "#ef6077", "#f5788a"),
        Paint("activations", "activations", "#c6cb79", "#cfdc96"),
        Paint("logits", "logits and loss", "#d7793d", "#d4975a"),
        Paint("kv_cache", "KV cache", "#6f5775", "#977ab2"),
        Paint("inputs", "inputs", PHASE_PAINTS["data"].light, PHASE_PAINTS["data"].dark),
        Paint("backward_temporaries", "backward temporaries", "#e5b847", "#eed46b"),
        Paint("communication", "communication buffers", "#cc79a7", "#d993b8"),
        Paint("workspace", "workspace", "#a04804", "#a6470c"),
        Paint("awaiting_free", "freed, still in use by a stream", "#0569cb", "#0c7ce5"),
        Paint("before_history", "allocated before the history", "#98a8bf", "#4a6180"),
        Paint("other", "other", _GREY, _DARK_GREY),
        Paint("unused", "unused (fragmentation, cache)", "#cfc4b0", "#524940"),
    )
)
"""What holds GPU memory, in the order in which a chart stacks it, from the bottom; inputs and communication as
everywhere."""

CATEGORY_PAINTS = _keyed(
    (
        Paint("tensor", "matrix multiplications", "#0072b2", "#2f8fd6"),
        Paint("attention", "attention", "#b01e4c", "#e0436f"),
        Paint("norm", "norms and reductions", "#6fdbe8", "#7fdfea"),
        Paint("elementwise", "elementwise and casts", "#94a012", "#b4c02c"),
        Paint("gather", "gather, embedding", "#7a5230", "#a97a50"),
        Paint("quantized", "dequantize", "#e8879b", "#f0a3b3"),
        Paint("communication", "communication", "#cc79a7", "#d993b8"),
        Paint("other", "optimizer, memory, other", _GREY, _DARK_GREY),
    )
)
"""What kernels do, in as many groups as there are hues; `category_group` says which group a category is in."""

_GROUPS = MappingProxyType(
    {
        "gemm": "tensor",
        "grouped_gemm": "tensor",
        "attention": "attention",
        "norm": "norm",
        "softmax": "norm",
        "reduction": "norm",
        "loss": "norm",
        "elementwise": "elementwise",
        "cast/copy": "elementwise",
        "rope": "elementwise",
        "dropout": "elementwise",
        "triton_fused": "elementwise",
        "gather/scatter/index": "gather",
        "embedding": "gather",
        "dequantize": "quantized",
        "communication": "communication",
        "optimizer": "other",
        "memcpy": "other",
        "memset": "other",
        "other": "other",
    }
)


def category_group(category: str) -> str:
    """Key into CATEGORY_PAINTS of a kernel's category; one that is not known is `other`."""
    return _GROUPS.get(category, "other")


BOUND_PAINTS = _keyed(
    (
        Paint("compute", "compute-bound", "#00563f", "#0b7053"),
        Paint("memory", "memory-bound", "#00a97b", "#22c496"),
        Paint("latency", "latency-bound", "#79cfae", "#8fe3c4"),
    )
)
"""What keeps a kernel from being faster: shades of the green of all GPU work, paler where less of the GPU is used."""

MARK_PAINTS = _keyed((Paint("finding", "finding", "#4a5568", "#b4bdc9"),))
"""gpuprof's own marks on a stretch of time: the colour of text, since hues stand for recorded things."""

MIXED = Paint("mixed", "several kinds", "#e3e7ec", "#323a45")
"""Almost the page's colour: for a node with several kinds, each coloured below it."""


def _as_cause(key: str, label: str, cause: str) -> Paint:
    return Paint(key, label, CAUSE_PAINTS[cause].light, CAUSE_PAINTS[cause].dark)


HOST_PAINTS = _keyed(
    (
        _as_cause("launch", "launch", "launch"),
        _as_cause("sync", labels.PARTS["sync"], "sync"),
        _as_cause("copy", labels.PARTS["copy"], "transfer"),
        _as_cause("allocator", labels.PARTS["allocator"], "allocator"),
        Paint("range", "range", _GREY, _DARK_GREY),
        _as_cause("python", "Python", "python"),
    )
)
"""What a CPU thread does except ops, which have the colour of their phase: CUDA runtime calls in the colour of the
wait that they cause on the GPU, ranges, Python frames."""


def _between(first: str, last: str, share: float) -> str:
    """The colour at this share of the way from one to another."""
    ends = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in (first, last)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(*ends, strict=True))


GAIN_STEPS: Convention[Entries] = 5
GAIN_SHADES = tuple(
    Paint(
        f"gain{i}",
        f"the GPU waits {100 * i // GAIN_STEPS}–{100 * (i + 1) // GAIN_STEPS} % of the time",
        *(
            _between(getattr(HOST_PAINTS["range"], theme), getattr(HOST_PAINTS["python"], theme), i / (GAIN_STEPS - 1))
            for theme in ("light", "dark")
        ),
    )
    for i in range(GAIN_STEPS)
)
"""Python functions, by how much of their time a faster CPU would gain: from grey, where the GPU works meanwhile, to the
yellow of waiting for Python. A scale, so neighbours need not be distinct."""

SERIES_PAINTS = tuple(
    Paint(str(i), "", light, dark)
    for i, (light, dark) in enumerate(
        (
            ("#24364f", "#dfe8f5"),
            ("#6d88b3", "#8fa9d1"),
            ("#46608a", "#b5c7e3"),
            ("#9db1d2", "#6b84ab"),
            ("#34496a", "#cbd8ec"),
            ("#b5c5df", "#566e94"),
            ("#5a749e", "#a2b8da"),
            ("#86a0c8", "#7c96be"),
        )
    )
)
"""Things of one kind, distinguished by number: GPUs, ranks, lines of one chart. Shades of one slate, since hues say
what kind of thing something is; neighbours differ in lightness."""


def themed(properties: Callable[[str], str]) -> str:
    """CSS that sets custom properties on every page: `properties("light")` at first, `properties("dark")` where the
    reader or else the system wants it dark."""
    light, dark = properties("light"), properties("dark")
    return (
        f":root{{{light}}}:root[data-theme=dark]{{{dark}}}"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme]){{{dark}}}}}"
    )


def text_on(fill: str) -> str:
    """Black or white, whichever reads better on a fill (#rrggbb)."""
    return "#000000" if contrast(fill, "#000000") >= contrast(fill, "#ffffff") else "#ffffff"


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours (#rrggbb) as accessibility guidelines define it, 1 to 21."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    """Relative luminance of an sRGB colour (#rrggbb), 0 (black) to 1 (white)."""
    red, green, blue = (_linear(int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
