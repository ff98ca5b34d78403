"""What secrets look like: the prefixes and forms that services document for their keys and tokens.
One per line, from the services' own documentation; `redact` masks every match, whatever precedes it.
"""

from __future__ import annotations

import re

_PREFIXED = (
    r"hf_[A-Za-z0-9]{10,}|api_org_[A-Za-z0-9]{10,}",  # Hugging Face
    r"sk-[\w-]{16,}|gsk_\w{16,}|pplx-\w{16,}|xai-[\w-]{16,}|tvly-[\w-]{10,}|fw_\w{16,}|tgp_v1_[\w-]{10,}|jina_\w{16,}",
    r"lsv2_(?:pt|sk)_\w{10,}|ls__\w{16,}|r8_\w{20,}|nvapi-[\w-]{10,}|wandb_v1_\w{10,}|AIza[\w-]{30,}",  # model services
    r"gh[pousr]_[A-Za-z0-9]{10,}|github_pat_\w{10,}",  # GitHub
    r"gl(?:pat|dt|rt|cbt|ptt|soat|agent|ft|oas|imt|ffct)-[\w.-]{10,}",  # GitLab
    r"xox[a-z](?:\.xox[a-z])?-[\w-]{10,}|xapp-[\w-]{10,}",  # Slack
    r"(?:sk|rk|pk)_(?:live|test|prod)_\w{8,}|whsec_[\w+/=]{8,}",  # Stripe
    r"npm_\w{10,}|pypi-[\w-]{10,}|rubygems_\w{10,}|oy2[a-z0-9]{40,}|CLOJARS_\w{10,}|dckr_(?:pat|oat)_[\w-]{10,}",
    r"ya29\.[\w-]{8,}|1//0[\w-]{20,}|GOCSPX-[\w-]{10,}",  # Google OAuth
    r"SG\.[\w-]{8,}(?:\.[\w-]{8,})?|key-[0-9a-z]{32}|(?:AC|SK)[0-9a-f]{32}|xkeysib-[\w-]{10,}|[0-9a-f]{32}-us\d{1,2}",
    r"dapi[0-9a-f]{16,}(?:-\d)?|dp\.(?:pt|st|ct|sa|scim|audit)\.\w{10,}|pul-[0-9a-f]{20,}|hv[sbr]\.[\w-]{10,}",
    r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}|LTAI[A-Za-z0-9]{12,}|AKID[A-Za-z0-9]{12,}|amzn\.mws\.[\w-]{10,}|bce-v3/[\w/-]{10,}",
    r"do[opr]_v1_\w{10,}|fo1_[\w-]{10,}|fm2_[\w+/=-]{10,}|tskey-[\w-]{10,}|sbp_\w{10,}|sb_secret_[\w-]{10,}|HRKU-[\w-]{10,}",
    r"shp(?:at|ss|ca|pa)_\w{10,}|sq0(?:atp|csp|idp)-[\w-]{10,}|EAA[A-Za-z0-9]{20,}|ATATT3x[\w=-]{10,}|AKCp\w{10,}",
    r"sntry[su]_[\w+/=]{10,}|glsa_\w{10,}|glc_[\w+/=]{10,}|NRAK-\w{10,}|PMAK-[\w-]{10,}|lin_api_\w{10,}|ntn_\w{10,}",
    r"figd_[\w-]{10,}|rdme_\w{10,}|\w{14}\.atlasv1\.[\w-]{10,}|AGE-SECRET-KEY-1\w{10,}|secret_[A-Za-z0-9]{30,}",
    r"eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?",  # JSON Web Token
    r"\d{8,10}:AA[\w-]{30,}|[MNO][\w-]{23,25}\.[\w-]{6}\.[\w-]{27,}",  # Telegram, Discord
    r"[0-9a-fA-F]{40}",  # W&B's API keys, among others
)  # fmt: skip
SHAPE = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_PREFIXED)})(?![A-Za-z0-9])")
"""One secret, without the text around it."""

HOOK = re.compile(
    r"(?P<place>\bhttps?://(?:hooks\.slack\.com/(?:services|workflows|triggers)/|(?:\w+\.)?discord(?:app)?\.com/api/webhooks/"
    r"|[\w.-]+\.webhook\.office\.com/webhookb2/|chat\.googleapis\.com/v1/spaces/|api\.telegram\.org/bot"
    r"|open\.feishu\.cn/open-apis/bot/v2/hook/|oapi\.dingtalk\.com/robot/send\?))[^\s\"'<>]+",
    re.IGNORECASE,
)
"""Addresses whose path is the secret; `place`: what may be kept."""

PRIVATE_KEY = re.compile(r"-----BEGIN[ A-Z0-9]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END[ A-Z0-9]*-----|\Z)", re.DOTALL)
"""A key in PEM form, to its end or to that of the text."""
