"""Private parts and secrets: gone before anything is kept, and ordinary texts stay as they are."""

from __future__ import annotations

import copy
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.capture.privacy import REDACTED, Cleaner, clean, clean_text, has_hints

KEY = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T0"
SECRETS = {
    "OpenAI": f"sk-{KEY}",
    "OpenAI, of a project": f"sk-proj-{KEY}-{KEY}",
    "Anthropic": f"sk-ant-api03-{KEY}_{KEY}",
    "GitHub": f"ghp_{KEY}",
    "GitHub, OAuth": f"gho_{KEY}",
    "GitHub, fine-grained": f"github_pat_{KEY}_{KEY}",
    "GitLab": "glpat-aBcDeFgHiJkLmNoPqRsT",
    "Slack": "xoxb-123456789012-1234567890123-AbCdEfGhIjKl",
    "Slack, web hook": "hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX",
    "AWS": "AKIAIOSFODNN7EXAMPLE",
    "AWS, for a session": "ASIAIOSFODNN7EXAMPLE",
    "Google": "AIzaSyA1234567890abcdefghijklmnopqrstuv",
    "Stripe": "sk_live_" + KEY[:24],
    "npm": f"npm_{KEY[:36]}",
    "PyPI": "pypi-AgEIcHlwaS5vcmcCJDU3" + KEY,
    "Hugging Face": f"hf_{KEY[:34]}",
    "JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
    "Groq": f"gsk_{KEY}{KEY}",
    "xAI": f"xai-{KEY}{KEY}",
    "Replicate": f"r8_{KEY[:37]}",
    "Perplexity": f"pplx-{KEY}{KEY}",
    "Tavily": f"tvly-dev-{KEY}",
    "LangSmith": "lsv2_pt_" + "0123456789abcdef" * 2 + "_0123456789",
    "Linear": f"lin_api_{KEY}",
    "Notion": f"ntn_{KEY}{KEY}",
    "Notion, before": f"secret_{(KEY * 2)[:43]}",
    "Figma": f"figd_{KEY}",
    "Supabase": "sbp_" + "0123456789" * 4,
    "Vault": f"hvs.{KEY}{KEY}",
    "Doppler": f"dp.pt.{KEY}{KEY}",
    "Grafana": f"glsa_{KEY[:32]}_01234567",
    "Sentry": f"sntrys_{KEY}{KEY}",
    "New Relic": "NRAK-0123456789ABCDEFGHIJKLMNOPQ",
    "RubyGems": "rubygems_" + "0123456789abcdef" * 3,
    "PlanetScale": f"pscale_tkn_{KEY}",
    "Pulumi": "pul-" + "0123456789" * 4,
    "Mailgun": "key-" + "0123456789abcdef" * 2,
    "Heroku": f"HRKU-{KEY}",
    "Atlassian": f"ATATT3xFfGF0{KEY * 3}=ABCDEF01",
    "Reverie": "rv_0123456789ab_" + (KEY * 2)[:43],
}
ASSIGNED = [
    ("password=hunter2", "hunter2"),
    ("PASSWORD=summer", "summer"),
    ("db.password = hunter2", "hunter2"),
    ("password: hunter2", "hunter2"),
    ('"password": "hunter2"', "hunter2"),
    ("'passwd': 'summer'", "summer"),
    ('{\\"password\\": \\"hunter2\\"}', "hunter2"),
    ('password: str = "hunter2"', "hunter2"),
    ('os.environ["DB_PASSWORD"] = "hunter2"', "hunter2"),
    ('if password == "hunter2":', "hunter2"),
    ("the password is hunter2", "hunter2"),
    ("mysqldump --password hunter2 shop", "hunter2"),
    ("Server=db;Uid=ann;Pwd=summer;", "summer"),
    ("密码\uff1ahunter22", "hunter22"),
    ("passphrase = 'correct horse battery staple'", "correct horse"),
    ("export TOKEN=abc123def456ghi", "abc123def456ghi"),
    ('"api_key": "abcd1234efgh5678"', "abcd1234efgh5678"),
    ("X-Api-Key: abcd1234efgh5678", "abcd1234efgh5678"),
    ("apiKey: 'abcd1234efgh5678'", "abcd1234efgh5678"),
    ('client_secret = "abc123"', "abc123"),
    ("?access_token=abcdef0123456789&page=2", "abcdef0123456789"),
    ('"token": "550e8400-e29b-41d4-a716-446655440000"', "550e8400"),
    ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI"),
    ("AccountKey=Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5MA==;", "Zm9vYmFy"),
    ("Authorization: Bearer abcdef1234567", "abcdef1234567"),
    ('-H "Authorization: Basic YWRtaW46aHVudGVyMg=="', "YWRtaW46"),
    ('"authorization": "token abcdef1234567"', "abcdef1234567"),
    ("curl -u ann:hunter2 https://example.org", "hunter2"),
    ("postgres://ann:hunter2@db.example.org/shop", "hunter2"),
    ("redis://:hunter2@cache:6379/0", "hunter2"),
    ("postgres://ann:p@ss/word@db/shop", "p@ss/word"),
    ("mongodb+srv://ann:h%40nter@cluster/shop", "h%40nter"),
    ("https://x.blob.core.windows.net/c?sv=2022&sig=" + "aB3" * 14 + "%3D", "aB3aB3"),
    ("machine example.org login ann password hunter2", "hunter2"),
    ("Cookie: theme=dark; sessionid=aB3dE6gH9jK2mN5pQ8", "aB3dE6gH9"),
    ("'Set-Cookie': 'sid=aB3dE6gH9jK2mN5pQ8; Path=/'", "aB3dE6gH9"),
    ("sshpass -p hunter2 ssh example.org", "hunter2"),
    ("mysql -uroot -phunter2 shop", "hunter2"),
    ("docker login -u ann -p hunter2 example.org", "hunter2"),
    (f"https://{KEY}@example.org/ann/app.git", KEY),
]
ORDINARY = [
    "password: see wiki",
    "token count = 5",
    "password = get_password()",
    "password = self.passwords[0]",
    "connect(user=user, password=settings.password)",
    "def login(user: str, password: str, *, token: str | None = None) -> None:",
    "const token = await getToken(request);",
    "self._token = token",
    "password == other_password",
    '"password": "string"',
    '<input type="password" name="password">',
    "password=${DB_PASSWORD}",
    'Authorization: Bearer $TOKEN and "Authorization: Bearer <token>"',
    "api_key=os.environ['API_KEY']",
    "PWD=/home/ann/app",
    "max_tokens: 4096, input_tokens: 123456789012",
    "the secret of success: hard work",
    "tokens: list[str] = []",
    "login ann, then a password prompt: it waits",
    "mysql -p shop < dump.sql && mysql -u root -p",
    "Cookie: theme=dark; lang=en",
    "cookie: string = document.cookie",
    "key-value pairs, a pul-sar, secret_name, the sbp_ prefix, r8_000",
    "sshpass -p $PASS ssh example.org",
    "The tokenizer: it splits words; the keyboard = new",
    "http://localhost:8080/find?mail=ann@example.org",
    "git clone git@github.com:ann/app.git && git clone ssh://git@github.com/ann/app",
    "docker run -u 1000:1000 app",
    ".sk-fading-circle-animation-delay { }",
    "pip install pypi-publish-to-everywhere",
    'if line.startswith("-----BEGIN CERTIFICATE-----"):\n    read()',
    "<privateer> is a ship, </private> closes nothing",
    "e34f9c1d2b7a 550e8400-e29b-41d4-a716-446655440000",
    "Fix the bug in src/parser.py: it reads one token too few.",
    "我昨天修好了解析器。",
]


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
@pytest.mark.parametrize("around", ["{}", "use {} now", '"{}"', "key={}\n", "a({})"])
def test_keys_of_providers_are_redacted(secret: str, around: str) -> None:
    text = around.format(secret)
    assert has_hints(text)
    assert clean_text(text) == around.format(REDACTED)


@pytest.mark.parametrize(("text", "secret"), ASSIGNED)
def test_secrets_with_a_name_are_redacted(text: str, secret: str) -> None:
    cleaned = clean_text(f"first line\n{text}\nlast line")
    assert secret not in cleaned
    assert REDACTED in cleaned
    assert cleaned.startswith("first line\n")
    assert cleaned.endswith("\nlast line")


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_texts_stay(text: str) -> None:
    assert clean_text(text) == text
    assert clean({"value": [text]}) == {"value": [text]}


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a <private>b</private> c", "a  c"),
        ("a <PRIVATE>b</Private > c", "a  c"),
        ('a <private reason="x > y">b</private> c', "a  c"),
        ("a <private>b <private>c</private> d</private> e", "a  e"),
        ("a <private>b", "a "),
        ("a <private", "a "),
        ("a <private>b</private", "a "),
        ("a <private/> b", "a  b"),
        ("<private>a</private>b<private>c</private>d", "bd"),
        ("<pri<private></private>vate>b</private>", ""),
        ("İİİ<private>b</private>İ", "İİİİ"),
        ("a <private>\nb\n</private>\nc", "a \nc"),
    ],
)
def test_private_parts_are_removed(text: str, cleaned: str) -> None:
    assert clean_text(text) == cleaned


PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\nZm9v\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        (f"a {PEM} b {PEM}\nc", f"a {REDACTED} b {REDACTED}\nc"),
        (f"a {PEM[:50]}", f"a {REDACTED}"),
        (repr(PEM), f"'{REDACTED}'"),
        (PEM.replace("RSA ", "OPENSSH ").replace("\n", "\\n"), REDACTED),
        ("-----BEGIN CERTIFICATE-----\nMIIE", REDACTED),
    ],
)
def test_pem_blocks_are_redacted(text: str, cleaned: str) -> None:
    assert clean_text(text) == cleaned


@pytest.mark.parametrize("name", ["name", "key"])
def test_a_value_beside_its_name_is_redacted(name: str) -> None:
    given = [{name: "DB_PASSWORD", "value": "hunter2"}, {name: "EDITOR", "value": "hunter2"}]
    assert clean(given) == [{name: "DB_PASSWORD", "value": REDACTED}, given[1]]


def test_values_are_cleaned_with_their_names_and_their_keys() -> None:
    value = {
        "password": "hunter2",
        "headers": {"Authorization": f"Bearer {KEY}", "X-Api-Key": "abcd1234efgh5678", "Accept": "text/html"},
        "arguments": ["--token", "abc123def456ghi", "--verbose"],
        "token": "count",
        f"ghp_{KEY}": [1, 2.5, None, True, "<private>x</private>y"],
        "lines": ["a", "+<private>", "+ secret", "+</private> b", "c"],
        "key lines": ["x", *PEM.splitlines(), "y"],
    }
    before = copy.deepcopy(value)
    assert clean(value) == {
        "password": REDACTED,
        "headers": {"Authorization": f"Bearer {REDACTED}", "X-Api-Key": REDACTED, "Accept": "text/html"},
        "arguments": ["--token", REDACTED, "--verbose"],
        "token": "count",
        REDACTED: [1, 2.5, None, True, "y"],
        "lines": ["a", "+", "", " b", "c"],
        "key lines": ["x", REDACTED, REDACTED, REDACTED, REDACTED, "y"],
    }
    assert value == before


PIECES = [
    "<private>", "</private>", "<private a='b'>", "password", "=", '"', "token: ", "://", "@", "sk-", KEY,
    "eyJ", "-----BEGIN A-----", "-----END A-----", "\n", ".", " is ", "[redacted]", "\\", "'", "Bearer ",
    "--", "İ", "authorization: ", "curl -u ", "密码",
]  # fmt: skip
texts = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8)), max_size=20).map("".join)


@settings(max_examples=500)
@given(texts)
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    once = clean_text(text)
    assert clean_text(once) == once


@settings(max_examples=300)
@given(texts, st.sampled_from([" ", "\n", '"', "(", ", "]), st.sampled_from(sorted(SECRETS.values())))
def test_a_key_is_found_wherever_it_is(text: str, before: str, secret: str) -> None:
    assert secret not in clean_text(f"{text}{before}{secret} {text}")


@settings(max_examples=300)
@given(st.text(), st.text(), st.text())
def test_nothing_of_a_private_part_stays(before: str, inside: str, after: str) -> None:
    mark = "only-here-9f3a"
    assert mark not in clean_text(f"{before}<private>{inside}{mark}</private>{after}")


@settings(max_examples=300)
@given(texts, st.integers(0, 60), st.sampled_from(sorted(SECRETS.values())))
def test_a_cut_leaves_no_half_of_a_secret(text: str, most: int, secret: str) -> None:
    cleaner = Cleaner(most)
    cleaned = cleaner.clean(f"{text} {secret} <private>9f3a{text}" * 400)
    assert len(cleaned) <= most
    assert secret[:12] not in cleaned
    assert "9f3a" not in cleaned
    assert cleaner.has_cut


def test_a_large_value_is_cut_in_bounded_time() -> None:
    cleaner = Cleaner(1000)
    rows = [["x" * 100] * 10 for _ in range(200_000)]
    begun = time.process_time()
    cut = cleaner.clean(rows)
    assert time.process_time() - begun < 0.5
    assert sum(len(text) for row in cut for text in row) <= 1000
    deep: list[object] = []
    for _ in range(500):
        deep = [deep]
    cleaner = Cleaner(1000)
    cleaner.clean(deep)
    assert cleaner.has_cut


HOSTILE = [
    "<private ", "<private>", "</private>", "<pri<private></private>vate>", "İ<private", "-----BEGIN ",
    "-----BEGIN A-----", "-----BEGIN A-----\n", "-----END ", "sk-", "sk-a-", "ghp_", "AKIA", "rv_", "SG.",
    "eyJ", "eyJaaaaaaaaa.", "hooks.slack.com/services/", "://", "://a:", "://a:b@", "://@", "password=",
    'secret="', "secret=", "token: ", "password:password", '"password": "', "secret=\\", "token='\"`",
    "api_key=a1", "token:str", "passphrase=\"a 'b ", "bearer ", "authorization: ", "curl -u ", "curl ",
    "--password ", "密码", " ", "a",
]  # fmt: skip


def seconds_for(unit: str, size: int) -> float:
    text = unit * (size // len(unit))
    begun = time.process_time()
    clean_text(text)
    return time.process_time() - begun


@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_texts_take_linear_time(unit: str) -> None:
    small, large = seconds_for(unit, 20_000), seconds_for(unit, 200_000)
    assert large < 40 * small + 0.5, "ten times the text takes about ten times as long"


@pytest.mark.parametrize("unit", ["".join(HOSTILE), "secret=", "sk-"])
def test_a_hostile_megabyte_is_cleaned(unit: str) -> None:
    assert seconds_for(unit, 1_000_000) < 30


def test_a_text_without_hints_costs_next_to_nothing() -> None:
    program = """
import sys, timeit
from reverie.capture.privacy import has_hints
text = "I moved to Lisbon in May, and now work for a small company that builds boats."
assert not has_hints(text)
print(min(timeit.repeat(lambda: has_hints(text), number=2000, repeat=20)) / 2000 * 1e6)
print(sorted({"re", "typing", "reverie.capture.redaction"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    microseconds, imported = done.stdout.splitlines()
    assert float(microseconds) < 10, "about 1 on a machine with nothing else to do"
    assert "redaction" not in imported
