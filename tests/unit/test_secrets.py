"""Secrets are removed in every form that they take in commands and messages; each line below is a form, S marks the
secret."""

from __future__ import annotations

import re
import shlex

import pytest

from gpuprof.record.base.redact import MASK, redact, redact_text
from gpuprof.trial import starter

S = "Zq9vTr4LmW8xKp2Yd7Hs"
HEX = "9f8e7d6c5b4a39281706f5e4d3c2b1a09f8e7d6c"

COMMANDS = r"""
train.py --token S
train.py --hf-token=S
train.py --tokens S S2
train.py --api_keys S S2 --lr 1
train.py --wandb_api_key S
train.py wandb.api_key=S
train.py +logger.api_key=S
train.py ++model.auth.token=S
train.py --set wandb.api_key S
train.py --override hub.token S
train.py -o hub_token S
train.py --config secrets.password S
train.py --opts MODEL.X 1 --set hub/token S
train.py password=S,with;commas
train.py --password S
train.py --db-pwd S
train.py -p S
train.py -t S
train.py -t=S
train.py --use_auth_token S
train.py --signature S
train.py --client-secret S
train.py --aws_secret_access_key=S
train.py --cookie S
train.py --dsn S
train.py --webhook S
train.py --connection-string S
train.py --jwt S
train.py --otp S
train.py --sas S
env HF_TOKEN=S python train.py
curl -u me:S https://host/x
curl --user me:S https://host/x
curl --proxy-user me:S https://host/x
curl -H "Authorization: Bearer S" https://host
curl -H "Authorization: S" https://host
curl -H "Authorization: ApiKey S" https://host
curl -H "Authorization: Basic S" https://host
curl -H "Authorization: token S" https://host
curl -H "X-Api-Key: S" https://host
curl -H "X-Auth-Token: S" https://host
curl -H "X-Vault-Token: S" https://host
curl -H "PRIVATE-TOKEN: S" https://host
curl -H "Cookie: session=S; other=1" https://host
curl -H "Proxy-Authorization: Basic S" https://host
bash -c "python train.py --token S --lr 1"
bash -c "python train.py --token=S"
bash -c "python train.py --token 'S S2' --lr 1"
bash -c "HF_TOKEN=S python train.py"
bash -c "export WANDB_API_KEY=S; python train.py"
bash -c "curl -u me:S https://host"
bash -c "huggingface-cli login --token S && python train.py"
bash -c "mysql -p S db"
sh -c "echo password S | login"
python -c "import wandb; wandb.login(key='S')"
python -c "login(token=\"S\")"
python -c "os.environ['HF_TOKEN'] = 'S'"
python -c "os.environ.setdefault('HF_TOKEN', 'S')"
python -c "monkey.setenv(\"WANDB_API_KEY\", \"S\")"
python -c "client = Client(api_key = 'S S2')"
train.py --extra '{"api_key": "S"}'
train.py --extra '{"api_key": "S with blanks S2"}'
train.py --extra '{"auth": {"password": "S"}}'
train.py --extra '{"tokens": ["S", "S2"]}'
train.py --extra '{\"api_key\": \"S\"}'
train.py --extra "{'token': 'S'}"
train.py --extra '{"Authorization": "Bearer S"}'
train.py --yaml 'api_key: S'
train.py --yaml 'hub: {token: S, name: x}'
train.py --yaml 'token: "S S2"'
train.py --yaml 'tokens: [S, S2]'
https://u:S@host/path
https://u:p@S@host/path
https://u:p/S@host/path
https://S@host/path
postgresql://me:S@db:5432/x
mongodb+srv://me:S@cluster.example.net/x
redis://:S@cache:6379
git+https://x-access-token:S@github.com/a/b
me:S@proxy.example.com:3128
https://b/x?X-Amz-Signature=S&se=1
https://b/x?access_token=S
https://b/x?sv=1&sig=S
https://b/x?api_key=S#top
s3://bucket?aws_secret_access_key=S
AccountName=x;AccountKey=S;EndpointSuffix=core.windows.net
https://hooks.slack.com/services/T000/B000/S
https://discord.com/api/webhooks/123456/S
https://discordapp.com/api/webhooks/123456/S
https://x.webhook.office.com/webhookb2/S
https://api.telegram.org/bot123456:S/sendMessage
""".strip().splitlines()

MESSAGES = [
    "-----BEGIN RSA PRIVATE KEY-----\nS\nS2\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nS",
    "-----BEGIN PRIVATE KEY-----\\nS\\n-----END PRIVATE KEY-----",
    "-----BEGIN PGP PRIVATE KEY BLOCK-----\nS\n-----END PGP PRIVATE KEY BLOCK-----",
    "machine api.example.com login me password S",
    "ValueError: Incorrect API key provided: S. You can find your key elsewhere",
    "HTTPError: 401 for https://host/x?token=S",
    "RuntimeError: login failed, password is S",
    "KeyError: {'api_key': 'S'}",
    "api_key: |\n  S\n  S2\n",
    "tokens:\n  - S\n  - S2\n",
    "secret = S",
    "Authorization: S",
    "request headers: {'authorization': 'Bearer S'}",
    "proxy me:S@proxy.example.com refused",
]

SHAPES = [
    f"hf_{S}", f"sk-{S}", f"sk-ant-api03-{S}", f"sk-proj-{S}", f"sk_live_{S}", f"rk_live_{S}", f"sk_test_{S}",
    f"whsec_{S}", f"npm_{S}", f"pypi-AgEIcHlwaS5vcmc{S}", f"ya29.a0{S}", f"SG.{S}.{S}", f"dapi{HEX[:32]}",
    f"ghp_{S}", f"gho_{S}", f"github_pat_{S}", f"glpat-{S}", f"glrt-{S}", f"xoxb-1-{S}", f"xapp-1-{S}", f"gsk_{S}",
    f"AIzaSy{S}{S}", "AKIAZQ9VTR4LMW8XKP2Y", f"GOCSPX-{S}", f"1//0{S}", f"eyJ{S}.eyJ{S}.{S}", f"eyJ{S}.eyJ{S}",
    f"nvapi-{S}", f"r8_{S}", f"dckr_pat_{S}", f"glsa_{S}", f"hvs.{S}", f"shpat_{S}", f"figd_{S}", f"lin_api_{S}",
    f"lsv2_pt_{S}", f"tskey-auth-{S}", f"sbp_{S}", f"dop_v1_{S}", f"fo1_{S}", f"PMAK-{S}", f"NRAK-{S}", f"ATATT3x{S}",
    f"123456789:AA{S}{S}", f"MTIzNDU2Nzg5MDEyMzQ1Njc4.GaBcDe.{S}{S}", HEX, f"AC{HEX[:32]}", f"key-{HEX[:32]}",
    f"{HEX[:32]}-us12", f"xkeysib-{S}", f"AGE-SECRET-KEY-1{S}", f"ntn_{S}", f"sntrys_{S}", f"rubygems_{S}",
]  # fmt: skip


def filled(form: str) -> str:
    """The form with a secret in place of each separate S and S2."""
    return re.sub(r"(?<![A-Za-z])S(2?)(?![A-Za-z])", lambda m: f"{S}{m[1]}", form)


def test_no_secret_of_a_command_is_kept():
    for form in COMMANDS:
        as_is = form.startswith("train.py --extra '{\\")
        words = filled(form).split(" ", 2) if as_is else shlex.split(filled(form))
        kept = redact(words)
        assert len(kept) == len(words)
        assert S not in " ".join(kept) and MASK in " ".join(kept)
        assert redact(kept) == kept


def test_no_secret_of_a_message_is_kept():
    for form in (*MESSAGES, *(form for form in COMMANDS if " " not in form)):
        kept = redact_text(filled(form))
        assert S not in kept and MASK in kept
        assert redact_text(kept) == kept


def test_a_secret_is_known_by_its_shape():
    for secret in SHAPES:
        for around in ("{}", "x={}", "login('{}') failed", "see {}, please", "/{}/"):
            assert secret not in redact_text(around.format(secret))


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: The size of tensor a (5) must match the size of tensor b (3) at non-singleton dimension 1",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has 79.1 GiB",
        "Token indices sequence length is longer than the maximum (600 > 512)",
        "KeyError: 'input_ids'", "train.py --per_device_train_batch_size 4 --model_name_or_path Qwen/Qwen2-0.5B",
        "accelerate launch --num_processes 2 --mixed_precision bf16 train.py", "bash -c 'python train.py --lr 1e-4'",
        "https://example.com/docs/page?x=1", "git@github.com:pytorch/pytorch.git", "step 3: loss 2.5, lr 1e-4",
        "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py:1751",
    ],
)  # fmt: skip
def test_what_is_no_secret_stays(text: str):
    assert redact_text(text) == text


def test_there_are_127_forms():
    assert len(COMMANDS) + len(MESSAGES) + len(SHAPES) >= 127


def test_errors_and_blocked_lines_of_a_trial_are_masked(tmp_path):
    (tmp_path / "output.log").write_text(f"ValueError: Incorrect API key provided: {S}\n")
    assert S not in starter._why(tmp_path, 1) and S not in starter._explained(f"RuntimeError: token={S}")
