"""The command line of `gpuprof trace`: secrets are masked, and the quick parser agrees with click."""

from __future__ import annotations

import sys

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.cli import trace, trace_without_click
from gpuprof.record.base.options import DEFAULTS, OPTIONS, Option
from gpuprof.record.base.redact import MASK, redact

SECRETS = st.text("abcdefghijkmnopqrstuvwxyzABCDEF123456789", min_size=12, max_size=40).filter(
    lambda s: not s.isdigit()
)
SECRET_NAMES = st.sampled_from(
    ["token", "hf_token", "hub-token", "api_key", "wandb.api-key", "SECRET", "client_secret", "password", "passwd",
     "PASSWD", "aws_secret_access_key", "credentials", "auth", "use_auth_token", "apikey", "key", "HF_TOKEN"],
)  # fmt: skip
SHAPED = st.one_of(
    SECRETS.map("hf_{}".format), SECRETS.map("sk-ant-{0}{0}".format), SECRETS.map("ghp_{}".format),
    SECRETS.map("github_pat_{}".format), st.text("0123456789abcdef", min_size=40, max_size=40),
)  # fmt: skip


@given(SECRET_NAMES, SECRETS, st.sampled_from(["--{} {}", "--{}={}", "-{}={}", "{}={}", "+model.{}={}", "++{}={}"]))
def test_a_value_named_like_a_secret_is_masked(name: str, secret: str, form: str):
    words = form.format(name, secret).split(" ")
    kept = redact(["train.py", *words, "--lr", "1e-4"])
    assert not any(secret in word for word in kept)
    assert [kept[0], *kept[-2:]] == ["train.py", "--lr", "1e-4"]
    assert len(kept) == len(words) + 3


@given(SHAPED, st.sampled_from(["{}", "--x={}", "x={}", "login('{}')", "a:{}", "https://me:{}@host/path", "/{}/"]))
def test_a_value_shaped_like_a_secret_is_masked(secret: str, form: str):
    (kept,) = redact([form.format(secret)])
    assert secret not in kept and MASK in kept


@given(SECRETS, SECRET_NAMES)
def test_a_secret_inside_code_or_json_is_masked(secret: str, name: str):
    for text in (
        f'{{"{name}": "{secret}", "lr": 1}}',
        f"import os; os.environ['{name}'] = '{secret}'",
        f"{name}='{secret}'",
    ):
        (kept,) = redact([text])
        assert secret not in kept


@given(st.lists(st.text(max_size=30)))
def test_never_a_word_more_or_less(words: list[str]):
    kept = redact(words)
    assert len(kept) == len(words)
    assert redact(kept) == kept


WORDS = st.one_of(
    st.sampled_from(
        ["--settle", "--baseline", "--steps", "--stacks", "--memory", "--modules", "--shapes", "--no-shapes", "--nvtx",
         "--stop", "--ranks", "--out", "-m", "--", "-", "--steps=4", "--stacks=", "--memory=0", "--ranks=1,0",
         "--out=x", "--help", "-h", "--unknown", "-mpkg", "-x", "--step", "--no-shapes=1", "train.py", "0", "1", "2",
         "0,1", "x", "", "1_0", "+1", " 1", "٣", "1e3", "100001", "a b"]
    ),
    st.text(max_size=4),
)  # fmt: skip


def by_click(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple | None:
    """What click makes of a command line, None if it is wrong or asks for help."""
    found = []
    monkeypatch.setattr(trace, "run", lambda request: found.append(request) or 0)
    try:
        trace.command.main(arguments, prog_name="gpuprof trace", standalone_mode=False)
    except click.ClickException:
        return None
    if not found:
        return None
    request = found[0]
    return request.options, request.out, request.module, request.words


@given(st.lists(WORDS, max_size=7))
def test_the_quick_way_agrees_with_click(arguments: list[str]):
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("sys.stdout", sys.stderr)
        expected = by_click(list(arguments), monkeypatch)
    request = trace_without_click.parse(arguments)
    if request is not None:
        assert expected == (request.options, request.out, request.module, request.words)


@given(st.lists(WORDS, max_size=5))
def test_the_targets_words_are_never_touched(words: list[str]):
    for before in (["--steps", "2", "train.py"], ["-m", "train"], ["--stacks", "train.py"], ["--nvtx", "--", "x"]):
        request = trace_without_click.parse([*before, *words])
        assert request is not None and request.words[len(request.words) - len(words) :] == tuple(words)


def test_the_defaults_are_those_of_click():
    with pytest.MonkeyPatch.context() as monkeypatch:
        expected = by_click(["train.py"], monkeypatch)
    request = trace_without_click.parse(["train.py"])
    assert request is not None
    assert expected == (DEFAULTS, None, None, ("train.py",)) == (request.options, None, None, request.words)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_means_the_same_either_way(option: Option, monkeypatch: pytest.MonkeyPatch):
    value = [] if isinstance(option.default, bool) else ["7"]
    flags = [flag for flag in (option.flag, option.opposite) if flag is not None]
    found = []
    for flag in flags:
        words = [flag, *value, "train.py"]
        request = trace_without_click.parse(words)
        assert request is not None and by_click(words, monkeypatch) == (request.options, None, None, ("train.py",))
        found.append(request.options)
    assert [name for name in DEFAULTS if found[-1][name] != DEFAULTS[name]] == [option.name]
