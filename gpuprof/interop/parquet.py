"""Writes the tables of a diagnosis as Parquet files, together with the findings and the whole diagnosis."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.written.diagnosis_json import dumps
from gpuprof.errors import GpuprofError

if TYPE_CHECKING:
    import pandas as pd

TABLES = ("gaps", "kernels", "steps", "ops", "findings")
DIAGNOSIS = "diagnosis.json"
NEEDS = "pip install pyarrow (from a checkout of gpuprof: pip install '.[parquet]')"


def write_parquet(diagnosis: Diagnosis, folder: Path) -> dict[str, int]:
    """Writes a file per table into the existing folder; returns the number of rows of each.
    Raises GpuprofError if nothing was recorded or pyarrow is not installed, and OSError.
    """
    needs_pyarrow()
    tables, rows = diagnosis.tables, {}
    for name in TABLES:
        table = getattr(tables, name)()
        _encodable(table).to_parquet(folder / f"{name}.parquet", engine="pyarrow", compression="zstd")
        rows[name] = len(table)
    (folder / DIAGNOSIS).write_text(dumps(diagnosis) + "\n", encoding="ascii")
    return rows


def needs_pyarrow() -> None:
    """Raises GpuprofError if pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise GpuprofError(f"Parquet files need pyarrow ({error}): {NEEDS}") from None


def _encodable(table: pd.DataFrame) -> pd.DataFrame:
    """The table with texts that UTF-8 can encode: a lone surrogate, which a trace may contain, becomes U+FFFD."""
    import pandas as pd

    for name in table.columns:
        column = table[name]
        # A column without any text would be written with the null type.
        if name == "evidence" or not (column.dtype == object or isinstance(column.dtype, pd.StringDtype)):
            continue
        known: dict[str, str] = {}
        texts = [_text(value, known) for value in column.tolist()]
        table[name] = pd.array(texts, dtype="string")
    return table


def _text(value: object, known: dict[str, str]) -> str | None:
    if not isinstance(value, str):  # None, or what pandas makes of it
        return None
    if value not in known:
        fits = value.isascii()
        known[value] = value if fits else value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return known[value]
