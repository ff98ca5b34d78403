"""Code that is too long for the terminal is broken where a reader would break it."""

from __future__ import annotations

import re

from rich.cells import cell_len

from gpuprof.report.code_lines import parts, wrapped

CODE = (
    "TrainingArguments(per_device_train_batch_size=16, gradient_accumulation_steps=1)",
    'TrainingArguments(torch_compile=True, torch_compile_mode="reduce-overhead")  # keep shapes fixed',
    "layer.set_modules_to_forward_prefetch([next]),layer.set_modules_to_backward_prefetch([previous])",
    "DataLoader(..., batch_size=8 * batch_size)  # if memory allows: its use was not recorded",
)


def test_no_identifier_is_broken():
    for line in CODE:
        for width in (24, 40, 44, 60, 80):
            lines = wrapped(line, width)
            words = {word for text in lines for word in re.findall(r"\w+", text)}
            assert words <= set(re.findall(r"\w+", line))
            longest = max(map(len, re.findall(r"\w+|\"[^\"]*\"", line)))
            assert all(cell_len(text) <= max(width, longest + 3) for text in lines)
            assert "".join(lines).replace(" ", "").replace("#", "") == line.replace(" ", "").replace("#", "")


def test_a_comment_goes_on_as_one():
    lines = wrapped(CODE[3], 44)
    code = [text.partition("#")[0].strip() for text in lines]
    assert lines[1].startswith("# ") and "".join(code) == "DataLoader(..., batch_size=8 * batch_size)"


def test_no_line_ends_with_the_mark_of_a_comment():
    for width in range(24, 80):
        assert not any(text.endswith("#") for line in CODE for text in wrapped(line, width))


def test_what_fits_is_left_alone():
    assert wrapped("  indented = 1", 60) == ["  indented = 1"]
    assert wrapped("", 60) == [""]


STRINGS = (
    """vllm serve ... --speculative-config '{"method": "ngram", "num_speculative_tokens": 4}'  # or eagle3""",
    'SFTConfig(packing=True, max_length=418, model_init_kwargs={"attn_implementation": "flash_attention_2"})',
    'DataLoader(..., name="a string with blanks, commas = and /")  # the reader\'s own',
)


def test_no_string_is_broken():
    for line in STRINGS:
        for width in range(20, 90, 5):
            literals = re.findall(r"'[^']*'|\"[^\"]*\"", line.split("  #")[0])
            assert all(any(one in text for text in wrapped(line, width)) for one in literals)
            pieces = parts(line)
            assert "".join(pieces) == line
            assert all(any(one in piece for piece in pieces) for one in literals)
