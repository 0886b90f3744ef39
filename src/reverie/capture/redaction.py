"""Find secrets in a text and replace them; `reverie.capture.privacy` calls this if a text has hints.

Each rule finds a fixed word, and looks at a bounded number of characters around it before it decides. Only
what is replaced is read to its end, and is not read again.
"""

from __future__ import annotations

from reverie.capture.privacy import REDACTED, lowered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Span = tuple[int, int]
    """The first character of a secret, and the first behind it."""

__all__ = ["redact", "redact_value"]

DIGITS = "0123456789"
SMALL = "abcdefghijklmnopqrstuvwxyz"
CAPITAL = SMALL.upper()
LETTERS = SMALL + CAPITAL
ALNUM = LETTERS + DIGITS
URL_SAFE = ALNUM + "_-"
BASE64 = ALNUM + "+/=_-."
IN_NAME = frozenset(ALNUM + "_")
WINDOW = 64
"""How many characters of a candidate decide whether it is a secret."""

PREFIXES = (
    ("sk-", URL_SAFE, 20),  # OpenAI, Anthropic and many that follow them
    ("sk_live_", ALNUM, 16),
    ("sk_test_", ALNUM, 16),
    ("rk_live_", ALNUM, 16),
    ("rk_test_", ALNUM, 16),
    ("whsec_", ALNUM + "+/=", 20),
    ("ghp_", ALNUM, 20),
    ("gho_", ALNUM, 20),
    ("ghu_", ALNUM, 20),
    ("ghs_", ALNUM, 20),
    ("ghr_", ALNUM, 20),
    ("github_pat_", ALNUM + "_", 20),
    ("glpat-", URL_SAFE, 16),
    ("xoxb-", ALNUM + "-", 10),
    ("xoxp-", ALNUM + "-", 10),
    ("xoxa-", ALNUM + "-", 10),
    ("xoxe-", ALNUM + "-", 10),
    ("xoxo-", ALNUM + "-", 10),
    ("xoxr-", ALNUM + "-", 10),
    ("xoxs-", ALNUM + "-", 10),
    ("xoxe.xoxp-", ALNUM + "-", 10),
    ("xapp-", ALNUM + "-", 10),
    ("hooks.slack.com/services/", ALNUM + "/", 20),
    ("AKIA", CAPITAL + DIGITS, 16),
    ("ASIA", CAPITAL + DIGITS, 16),
    ("AIza", URL_SAFE, 30),
    ("ya29.", URL_SAFE, 20),
    ("GOCSPX-", URL_SAFE, 20),
    ("npm_", ALNUM, 30),
    ("pypi-AgE", URL_SAFE, 16),
    ("hf_", ALNUM, 30),
    ("SG.", URL_SAFE + ".", 40),
    ("dop_v1_", ALNUM, 40),
    ("dapi", DIGITS + "abcdef", 32),
    ("dckr_pat_", URL_SAFE, 20),
    ("shpat_", ALNUM, 30),
    ("AGE-SECRET-KEY-1", CAPITAL + DIGITS, 40),
    ("gsk_", ALNUM, 40),
    ("xai-", ALNUM, 40),
    ("r8_", ALNUM, 36),
    ("pplx-", ALNUM, 40),
    ("tvly-", URL_SAFE, 28),
    ("lsv2_pt_", ALNUM + "_", 32),
    ("lsv2_sk_", ALNUM + "_", 32),
    ("lin_api_", ALNUM, 32),
    ("ntn_", ALNUM, 40),
    ("secret_", ALNUM, 43),
    ("figd_", URL_SAFE, 36),
    ("sbp_", DIGITS + "abcdef", 40),
    ("hvs.", URL_SAFE, 24),
    ("dp.pt.", ALNUM, 40),
    ("glsa_", ALNUM + "_", 32),
    ("sntrys_", URL_SAFE + "+/=", 40),
    ("NRAK-", CAPITAL + DIGITS, 27),
    ("rubygems_", DIGITS + "abcdef", 48),
    ("pscale_tkn_", URL_SAFE + ".", 32),
    ("pscale_pw_", URL_SAFE + ".", 32),
    ("pul-", DIGITS + "abcdef", 40),
    ("key-", DIGITS + "abcdef", 32),
    ("HRKU-", URL_SAFE, 36),
    ("ATATT3", URL_SAFE + "=", 100),
    ("sig=", ALNUM + "%", 40),  # the signature in an address of Azure
    ("rv_", URL_SAFE, 56),  # our own keys of the API
)
"""How a key of a known provider begins, what it consists of, and how many characters follow at least."""

PASSWORD_NAMES = ("password", "passwd", "passphrase", "pwd", "_pass", "密码", "口令")
OTHER_NAMES = (
    "secret", "token", "api_key", "apikey", "api-key", "access_key", "accesskey", "access-key", "private_key",
    "privatekey", "private-key", "account_key", "accountkey", "encryption_key", "signing_key", "auth_key",
    "authkey", "credential", "密钥", "令牌",
)  # fmt: skip
SUFFIXES = frozenset(
    {"", "s", "key", "_key", "-key", "value", "_value", "base", "_base", "_key_base", "_b64", "_base64"}
)
"""What may follow the word in the name of a secret: `token_count` is no secret, `secret_key` is one."""
ORDINARY = frozenset(
    {
        "string", "text", "password", "passwd", "passphrase", "secret", "token", "true", "false", "null",
        "none", "undefined", "required", "optional", "empty", "hidden", "bearer", "basic", "number",
        "integer", "boolean", "object", "array", "bytes", "field", "input", "column", "varchar", "unknown",
        "default", "invalid", "incorrect", "wrong", "missing", "expired", "redacted", "your_password",
        "example",
    }
)  # fmt: skip
"""Values that are no secret whatever their name is."""
WITH_PASSWORD = {"sshpass": False, "docker login": False, "mysql": True}
"""Commands that take a password with `-p`, and whether it must follow at once."""
OTHER_WORDS = ("password", "passwd", "secret", "token", "_key", "apikey", "credential")
QUOTES = "\"'`"
SPECIAL = frozenset("!@#$%^&*+=~?|/")


def redact(text: str) -> str:
    """The text with `[redacted]` in place of each secret."""
    lower = lowered(text)
    if "://" in text and "@" in text:
        text = _replaced(text, _in_urls(text))
        lower = lowered(text)
    spans: list[Span] = []
    for prefix, letters, least in PREFIXES:
        if prefix in text:
            spans += _provider_keys(text, prefix, letters, least)
    if "eyJ" in text:
        spans += _web_tokens(text)
    for word in ("authorization", "bearer "):
        spans += _in_headers(text, lower, word)
    spans += _cookies(text, lower)
    spans += _curl_users(text, lower)
    for command, is_tight in WITH_PASSWORD.items():
        spans += _options(text, command, is_tight=is_tight)
    for name in (*PASSWORD_NAMES, *OTHER_NAMES):
        if name in lower:
            spans += _assigned(text, lower, name)
    return _replaced(text, spans) if spans else text


def redact_value(name: str, value: str) -> str | None:
    """The value of an entry of an object, if its name is that of a secret; None if it is no secret."""
    lower = lowered(name)
    if lower.endswith("authorization"):
        prefix = "authorization: "
        cleaned = redact(prefix + value)
        return cleaned[len(prefix) :] if cleaned != prefix + value else None
    word = _word_at_end(lower)
    if word and _is_secret(word, value, is_quoted=True, is_tight=True):
        return REDACTED
    return None


def _replaced(text: str, spans: Iterator[Span] | list[Span]) -> str:
    parts, done = [], 0
    for start, end in sorted(spans):
        if end <= done:
            continue
        if start >= done:
            parts += [text[done:start], REDACTED]
        done = end
    return "".join([*parts, text[done:]])


# -- keys that show by themselves what they are ----------------------------------------------------------


def _provider_keys(text: str, prefix: str, letters: str, least: int) -> Iterator[Span]:
    at = text.find(prefix)
    while at >= 0:
        start = at + len(prefix)
        if at == 0 or text[at - 1] not in IN_NAME:
            end = _run(text, start, letters, max(WINDOW, least))
            if end - start >= least and (prefix != "sk-" or _is_dense(text[start:end])):
                end = _run(text, end, letters)
                yield at, end
                start = end
        at = text.find(prefix, start)


def _is_dense(run: str) -> bool:
    """Whether this is no sequence of words: `sk-fading-circle` is the name of a style."""
    words = run[:20].replace("_", "-")
    return "-" not in words or bool(set(run) & set(DIGITS))


def _web_tokens(text: str) -> Iterator[Span]:
    """JSON web tokens: three parts with points between them, of which the first begins with `{"`."""
    at = text.find("eyJ")
    while at >= 0:
        end = at + 3
        if at == 0 or text[at - 1] not in URL_SAFE:
            end = _run(text, at, URL_SAFE)
            if end - at >= 10 and text[end : end + 1] == ".":
                second = _run(text, end + 1, URL_SAFE)
                if second - end > 8:
                    end = _run(text, second + 1, URL_SAFE) if text[second : second + 1] == "." else second
                    yield at, end
        at = text.find("eyJ", end)


def _in_headers(text: str, lower: str, word: str) -> Iterator[Span]:
    """Tokens behind `Authorization:` or behind `Bearer`."""
    at = lower.find(word)
    while at >= 0:
        start = at + len(word)
        if word == "authorization":
            start = _behind_separator(text, _skip(text, start, "\\\"'`] \t", 8), ":=,")
            start = _skip(text, start, "\\\"'` \t", 8)
            scheme = _run(text, start, LETTERS + "-", 24)
            if text[scheme : scheme + 1] in {" ", "\t"}:
                start = _skip(text, scheme, " \t", 8)
        end = _run(text, start, BASE64 + "~", WINDOW)
        token = text[start:end]
        if len(token) >= 8 and (len(token) >= 16 or set(token) & set(DIGITS)):
            end = _run(text, end, BASE64 + "~")
            yield start, end
        at = lower.find(word, max(at + len(word), start))


def _cookies(text: str, lower: str) -> Iterator[Span]:
    """The values of `Cookie:` and `Set-Cookie:` that look as if a machine had made them."""
    at = lower.find("cookie")
    while at >= 0:
        start = end = _skip(text, at + len("cookie"), "\\\"'", 3)
        if text[start : start + 1] == ":":
            start = _skip(text, start + 1, " \\\"'", 8)
            end = _until(text, start, "\r\n\"'`\\", start + 4096)
        while (equals := text.find("=", start, end)) >= 0:
            start = _until(text, equals, "; \t", end)
            if _looks_random(text[equals + 1 : min(start, equals + 1 + WINDOW)]):
                yield equals + 1, start
        at = lower.find("cookie", max(end, at + 1))


# -- passwords in URLs and commands ----------------------------------------------------------------------


def _in_urls(text: str) -> Iterator[Span]:
    """Passwords and tokens before the host of a URL."""
    at = text.find("://")
    while at >= 0:
        start = at + 3
        following = text.find("://", start)
        stop = _until(text, start, " \t\r\n\"'`<>\\", following if following >= 0 else len(text))
        span = _user_info(text[start:stop])
        if span:
            yield start + span[0], start + span[1]
        at = following


def _user_info(rest: str) -> Span | None:
    """The secret in what follows `://`. A password may have a slash, though it should be written as %2F."""
    authority = rest[: _until(rest, 0, "/?#", len(rest))]
    end = authority.rfind("@")
    if end < 0:
        end = rest.rfind("@")
        port = rest.partition(":")[2]
        if end < 0 or not 0 <= rest.find(":") < min(end, len(authority)) or port[:1] in DIGITS:
            return None
    colon = rest.find(":", 0, end)
    secret = rest[colon + 1 : end] if colon >= 0 else rest[:end]
    if not secret or secret == REDACTED or _is_placeholder(secret):
        return None
    if colon < 0 and not _looks_random(secret):
        return None  # a name: git@github.com
    return colon + 1, end


def _curl_users(text: str, lower: str) -> Iterator[Span]:
    """The password in `curl -u name:password`."""
    at = lower.find("curl")
    while at >= 0:
        line = _until(text, at, "\r\n", min(len(text), at + 2048))
        for option in (" -u ", " --user "):
            start = text.find(option, at, line)
            if start >= 0:
                start = _skip(text, start + len(option), " \\\"'", 8)
                end = _until(text, start, " \t\r\n\\\"'", line)
                colon = text.find(":", start, end)
                password = text[colon + 1 : end]
                if colon >= 0 and password and not _is_placeholder(password):
                    yield colon + 1, end
        at = lower.find("curl", line)


def _options(text: str, command: str, *, is_tight: bool) -> Iterator[Span]:
    """The password behind `-p` in the line of a command."""
    at = text.find(command)
    while at >= 0:
        line = _until(text, at, "\r\n", min(len(text), at + 2048))
        start = text.find(" -p", at, line)
        if start >= 0:
            start = _skip(text, start + 3, "\\\"'" if is_tight else " \\\"'", 8)
            end = _until(text, start, " \t\r\n\\\"'", line)
            password = text[start:end]
            if password and password[0] != "-" and not _is_placeholder(password):
                yield start, end
        at = text.find(command, line)


# -- secrets that have a name ----------------------------------------------------------------------------


def _assigned(text: str, lower: str, word: str) -> Iterator[Span]:
    """Secrets in assignments: `password=…`, `"api_key": "…"`, `export TOKEN=…`, `--password …`."""
    at = lower.find(word)
    while at >= 0:
        end = at + len(word)
        span = _value_of(text, lower, word, at)
        if span:
            yield span
            end = span[1]
        at = lower.find(word, end)


def _value_of(text: str, lower: str, word: str, at: int) -> Span | None:
    end = at + len(word)
    after = _run(text, end, URL_SAFE, 16)
    if lower[end:after].rstrip(DIGITS) not in SUFFIXES:
        return None
    if word == "pwd" and at and text[at - 1] in LETTERS:
        return None
    name_end = _skip(text, after, "\\\"'`]*", 5)
    start = _behind_separator(text, _skip(text, name_end, " \t", 8), ":=!>\uff1a")
    is_tight = start == name_end + 1
    if start == _skip(text, name_end, " \t", 8):  # no separator
        start = _behind_word(text, lower, at, after)
        if start < 0:
            return None
    is_typed = text[start - 1] == ":"
    start = _skip(text, start, " \t", 8)
    if is_typed:
        start = _behind_type(text, start)
    opened = _skip(text, start, "\\", 4)
    if text[opened : opened + 1] in {"b", "r", "u"} and text[opened + 1 : opened + 2] in {'"', "'"}:
        opened += 1
    quote = text[opened : opened + 1]
    if quote and quote in QUOTES:
        return _quoted_value(text, word, opened, quote)
    return _bare_value(text, word, start, is_tight=is_tight)


def _quoted_value(text: str, word: str, opened: int, quote: str) -> Span | None:
    start = _run(text, opened, quote, 3)
    end = _until(text, start, quote + "\\\r\n", start + 4 * WINDOW)
    if end - start >= 4 * WINDOW and " " not in text[start:end]:
        end = _until(text, end, quote + "\\\r\n", len(text))
    is_secret = _is_secret(word, text[start:end], is_quoted=True, is_tight=True)
    return (start, end) if is_secret else None


def _bare_value(text: str, word: str, start: int, *, is_tight: bool) -> Span | None:
    stops = " \t\r\n\"'`,;&<>(){}[]\\"
    end = _until(text, start, stops, start + WINDOW)
    following = text[end : end + 1]
    if following and following in "([{":
        return None  # a call, or an entry of a list
    ends_line = not following or following in " \t\r\n&;\"'`\\"
    if not _is_secret(word, text[start:end], is_quoted=False, is_tight=is_tight and ends_line):
        return None
    return start, _until(text, end, stops, len(text))


def _behind_separator(text: str, at: int, separators: str) -> int:
    """The place behind `=`, `:=`, `=>` and the like; `at` if none is there."""
    return _run(text, at, separators, 3)


def _behind_word(text: str, lower: str, at: int, after: int) -> int:
    """The place of the value behind a name without a sign: `password is …`, `--password …`; else -1."""
    for word in (" is ", " was ", "是", "为", "是\uff1a", " 是 "):
        if lower.startswith(word, after):
            return after + len(word)
    before = lower[max(0, at - 160) : at]
    if text[after : after + 1] in {" ", "\t"} and "machine " in before and "login " in before:
        return after + 1  # in .netrc
    start = at
    while start and at - start < 24 and text[start - 1] in URL_SAFE:
        start -= 1
    if text.startswith("--", start) and text[after : after + 1] == " " and text[after + 1 : after + 2] != "-":
        return after + 1
    return -1


def _behind_type(text: str, at: int) -> int:
    """The place behind the type in `password: str = …`; `at` if there is none."""
    end = _run(text, at, ALNUM + "_.[]|&? ", 48)
    is_type = end > at and text[end : end + 1] == "=" and text[end : end + 2] != "=="
    return _skip(text, end + 1, " ", 8) if is_type and text[at] in LETTERS + "&" else at


def _word_at_end(lower: str) -> str:
    """The word of a secret that this name ends with."""
    for word in (*PASSWORD_NAMES, *OTHER_NAMES):
        at = lower.rfind(word)
        if at >= 0 and lower[at + len(word) :].rstrip(DIGITS) in SUFFIXES:
            return word
    return ""


def _is_secret(word: str, value: str, *, is_quoted: bool, is_tight: bool) -> bool:
    """Whether the value of this name is a secret, and not a word, a path, a name or a piece of a program."""
    value = value.strip()
    if len(value) < 4 or _is_placeholder(value) or value.lower() in ORDINARY:
        return False
    if " " in value:
        return word == "passphrase" and is_quoted
    if word in PASSWORD_NAMES:
        return _is_password(value, is_quoted=is_quoted, is_tight=is_tight)
    has_digit = bool(set(value) & set(DIGITS))
    return not _is_name(value) and (
        _looks_random(value) or (is_quoted and word == "secret" and len(value) >= 6 and has_digit)
    )


def _is_name(value: str) -> bool:
    """Whether a value is a name itself, as in `token = access_token`."""
    return any(word in value.lower() for word in OTHER_WORDS) and len(set(value) & set(DIGITS)) < 4


def _is_password(value: str, *, is_quoted: bool, is_tight: bool) -> bool:
    marks = set(value)
    digits, has_special = marks & set(DIGITS), bool(marks & SPECIAL)
    if _is_name(value):
        return has_special and bool(digits)
    if value.startswith(("/", "./", "~/", "http")):
        return False
    if is_quoted or not (digits or has_special):
        return is_quoted or (is_tight and "." not in value)
    return is_tight or (len(value) >= 6 and not value.replace(".", "").replace(",", "").isdecimal())


def _looks_random(value: str) -> bool:
    """Whether a value looks as if a machine had made it: long, mixed, and not composed of words."""
    if len(value) < 12 or set(value) - set(BASE64 + "~:%"):
        return False
    pieces = value
    for mark in "-_.:/":
        pieces = pieces.replace(mark, " ")
    longest = max(pieces.split(), key=len, default="")
    letters = set(longest)
    if len(value) == 36 and not value.lower().strip(DIGITS + "abcdef-") and value.count("-") == 4:
        return True  # a UUID
    if len(letters) < 5 or len(longest) < 10:
        return False
    mixed = bool(letters & set(DIGITS)) and bool(letters & set(LETTERS))
    return mixed or (len(longest) >= 16 and bool(letters & set(LETTERS)))


def _is_placeholder(value: str) -> bool:
    """Whether a value stands for another: a variable, a mask, a reference."""
    if value.startswith(("${", "$(", "{{", "{", "<", "%(", "%s", "[", "...", "…", "os.", "process.", "env.")):
        return True
    if value[0] == "$" and not value[1:].strip(ALNUM + "_"):
        return True
    return not value.strip("*•xX.#-_?")


# -- small steps in a text -------------------------------------------------------------------------------


def _run(text: str, at: int, letters: str, most: int | None = None) -> int:
    """The end of the run of these letters, at most `most` of them; long runs are read piece by piece."""
    while most is None or most > 0:
        size = WINDOW if most is None else min(most, WINDOW)
        piece = text[at : at + size]
        length = len(piece) - len(piece.lstrip(letters))
        at += length
        if length < size:
            break
        if most is not None:
            most -= size
    return at


_skip: Callable[[str, int, str, int], int] = _run


def _until(text: str, at: int, stops: str, end: int) -> int:
    """The first place of a letter of `stops`, or `end`."""
    end = min(end, len(text))
    while at < end:
        piece = text[at : min(at + WINDOW, end)]
        found = [place for stop in stops if (place := piece.find(stop)) >= 0]
        if found:
            return at + min(found)
        at += len(piece)
    return end
