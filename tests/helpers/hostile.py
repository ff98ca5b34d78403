"""Names from a trace that try to be markup or script."""

from __future__ import annotations

SCRIPT = "</script><script>window.hacked=1</script>"


IMAGE = "<img src=x onerror=window.hacked=1>"


PAYLOADS = (
    SCRIPT,
    IMAGE,
    '"><svg onload=window.hacked=1>',
    "' onmouseover='window.hacked=1' x='",
    "</style><style>*{display:none}",
    "</noscript></table></main><h1>gone",
    "<!-- <script>",
    "]]>&lt;b&gt;&#60;i&#62;",
    "{{7*7}}{% raw %}{{ policy }}",
    "${7*7}`${window.hacked=1}`",
    "\\u003cimg\\ \\'\\\"",
    "javascript:window.hacked=1",
    "__proto__",
    "constructor",
    "\u202eevil\u202c\u2067back\u2069",
    "zero\u200bwidth\ufeff\u00ad",
    "nul\x00bell\x07escape\x1b[31m",
    "line\nbreak\r\ttab\u2028\u2029",
    "half\ud800a\udfffletter",
    "pile" + "\u0301\u0488" * 60,
    "long" + "W" * 100_000,
    "wide" + "\U0001f600漢" * 300,
    "",
)
