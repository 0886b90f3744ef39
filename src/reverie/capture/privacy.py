"""Remove private parts and secrets from texts, before anything of them is kept.

`<private>…</private>` is replaced by nothing, a secret by `[redacted]`. It is done by plain searches in the
text, without regular expressions: their module alone would double the time that a hook takes, and every rule
here looks at each character a bounded number of times, whatever the text is.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["REDACTED", "Cleaner", "clean", "clean_text", "has_hints"]

REDACTED = "[redacted]"
OPEN, CLOSE = "<private", "</private"
ENDS_NAME = frozenset(" \t\r\n/>")
"""What may follow the name of a tag: `<privateer>` is another tag."""
PEM_BEGIN, PEM_END = "-----BEGIN ", "-----END "
DASHES = "-----"
WITH_UNDERSCORE = (
    "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "_pat_", "_live_", "_test_", "npm_", "hf_", "rv_", "_v1_", "pat_",
    "whsec_", "gsk_", "r8_", "lsv2_", "_api_", "ntn_", "secret_", "figd_", "sbp_", "glsa_", "sntrys_",
    "rubygems_", "pscale_",
)  # fmt: skip
WITH_HYPHEN = (
    "sk-", "glpat-", "xox", "xapp-", "pypi-", "GOCSPX-", "AGE-", "-----BEGIN", "xai-", "pplx-", "tvly-",
    "NRAK-", "pul-", "key-", "HRKU-",
)  # fmt: skip
NAMES = (
    "passw",
    "cookie",
    "sig=",
    "passphrase",
    "pwd",
    "secret",
    "token",
    "key",
    "credential",
    "authorization",
    "_pass",
)
HAN_NAMES = ("密码", "口令", "密钥", "令牌")


def has_hints(text: str) -> bool:  # noqa: PLR0911  each return ends the search early
    """Whether a text may have private parts or secrets; most texts do not."""
    if "<" in text and OPEN in lowered(text):
        return True
    if "_" in text and any([hint in text for hint in WITH_UNDERSCORE]):  # noqa: C419  a list is faster here
        return True
    if "-" in text and any([hint in text for hint in WITH_HYPHEN]):  # noqa: C419
        return True
    if "AKIA" in text or "ASIA" in text or "AIza" in text or "eyJ" in text or "SG." in text:
        return True
    if (
        "ya29." in text
        or "dapi" in text
        or "hvs." in text
        or "dp.pt." in text
        or "ATATT3" in text
        or "sshpass" in text
        or "mysql" in text
        or "docker login" in text
        or "hooks.slack" in text
        or "earer " in text
        or "assw" in text
        or "ASSW" in text
    ):
        return True
    if ":" in text or "=" in text or "--" in text:
        if "://" in text and "@" in text:
            return True
        lower = text.lower()
        if any([name in lower for name in NAMES]) or "curl" in lower:  # noqa: C419
            return True
    return not text.isascii() and _has_han_name(text)


def _may_name_secret(name: str) -> bool:
    lower = name.lower()
    return any(hint in lower for hint in NAMES) or _has_han_name(name)


def _has_han_name(text: str) -> bool:
    return any(name in text for name in HAN_NAMES)


def clean_text(text: str) -> str:
    """The text without private parts and secrets."""
    return _clean(text)[0] if has_hints(text) else text


def clean(value: Any) -> Any:
    """The same value without private parts and secrets in its texts and in the keys of its objects."""
    return Cleaner().clean(value)


class Cleaner:
    """Cleans values of JSON, and cuts what is larger than it may be.

    A text is cleaned before it is cut: `MARGIN` characters behind the cut are cleaned, too, and then dropped,
    so that no half of a secret stays.
    """

    MARGIN = 8192
    DEEPEST = 24
    """Levels that are kept of a value that may be cut, so that the queue takes it as a part of a message."""

    def __init__(self, most: int | None = None) -> None:
        """`most` is how many characters of texts, or entries of lists and objects, are kept of a value."""
        self._left = most
        self.has_cut = False

    def clean(self, value: Any, depth: int = 0) -> Any:
        """The value without private parts and secrets."""
        if isinstance(value, str):
            return self._text(value, "")[0]
        if isinstance(value, dict | list | tuple):
            if self._left is not None and depth >= self.DEEPEST:
                self.has_cut = True
                return None
            return self._object(value, depth) if isinstance(value, dict) else self._list(value, depth)
        self._spend(1)
        return value

    def _object(self, value: dict[Any, Any], depth: int) -> dict[Any, Any]:
        cleaned = {}
        named = value.get("name", value.get("key"))  # such as {"name": "API_KEY", "value": "…"}
        for name, part in value.items():
            if self._is_full():
                break
            key = self._text(name, "")[0] if isinstance(name, str) else name
            if isinstance(part, str) and isinstance(name, str):
                cleaned[key] = self._named(
                    named if name == "value" and isinstance(named, str) else name, part
                )
            else:
                cleaned[key] = self.clean(part, depth + 1)
        return cleaned

    def _list(self, value: list[Any] | tuple[Any, ...], depth: int) -> list[Any]:
        """Clean the entries of a list. Lines of one text may be such entries: an open block goes on."""
        cleaned: list[Any] = []
        begins, option = "", ""
        for part in value:
            if self._is_full():
                break
            if not isinstance(part, str):
                cleaned.append(self.clean(part, depth + 1))
                continue
            text, begins = self._text(part, begins)
            cleaned.append(self._named(option, part) if option and text == part else text)
            option = part if part.startswith("--") and "=" not in part and len(part) < 64 else ""
        return cleaned

    def _named(self, name: str, text: str) -> str:
        """The text that is the value of a name, such as `password`."""
        if len(text) < 4096 and len(name) < 256 and _may_name_secret(name):
            from reverie.capture.redaction import redact_value

            redacted = redact_value(name, text)
            if redacted is not None:
                self._spend(len(redacted))
                return redacted
        return self._text(text, "")[0]

    def _text(self, text: str, begins: str) -> tuple[str, str]:
        """The text, and what must be put before the text that goes on: the begin of an open block."""
        most = self._left
        window = text if most is None or len(text) <= most else text[: most + self.MARGIN]
        begins_after = ""
        if begins or has_hints(window):
            cleaned, begins_after = _clean(begins + window)
        else:
            cleaned = window
        if most is not None and len(text) > most:
            whole = len(window) == len(text)
            cleaned = cleaned[: most if whole else min(most, max(0, len(cleaned) - self.MARGIN))]
            self.has_cut = True
        self._spend(len(cleaned))
        return cleaned, begins_after

    def _spend(self, size: int) -> None:
        if self._left is not None:
            self._left = max(0, self._left - size)

    def _is_full(self) -> bool:
        """Whether nothing more fits; each entry takes a little room, too."""
        if self._left is None:
            return False
        if self._left <= 0:
            self.has_cut = True
            return True
        self._left -= 1
        return False


def lowered(text: str) -> str:
    """The text in small letters, each at the same place as before."""
    return text.replace("İ", "I").lower()  # the only letter that becomes two


def _clean(text: str) -> tuple[str, str]:
    """The text, and the begin of the block that is still open at its end."""
    begins = ""
    if "<" in text:
        text, is_open = _without_private(text)
        if is_open:
            begins = f"{OPEN}>"
    if PEM_BEGIN in text:
        text, is_open = _without_pem(text)
        if is_open and not begins:
            begins = f"{PEM_BEGIN}PRIVATE KEY{DASHES}\n"
    from reverie.capture.redaction import redact

    return redact(text), begins


def _without_private(text: str) -> tuple[str, bool]:
    """The text without private parts, nested ones, too; an open one goes to the end."""
    lower = lowered(text)
    kept, done, depth = [], 0, 0
    opens, closes = _find_tag(lower, OPEN, 0), _find_tag(lower, CLOSE, 0)
    if opens < 0:
        return text, False
    while opens >= 0 or (closes >= 0 and depth):
        if opens >= 0 and (closes < 0 or opens < closes):
            if depth == 0:
                kept.append(text[done:opens])
            end = lower.find(">", opens)
            done = len(text) if end < 0 else end + 1
            if end < 0 or lower[end - 1] != "/":
                depth += 1
            opens = _find_tag(lower, OPEN, done)
            closes = closes if closes >= done or closes < 0 else _find_tag(lower, CLOSE, done)
        else:
            end = lower.find(">", closes)
            if depth:
                depth -= 1
                done = len(text) if end < 0 else end + 1
            closes = _find_tag(lower, CLOSE, len(text) if end < 0 else end + 1)
    if depth == 0:
        kept.append(text[done:])
    left = "".join(kept)
    again = _find_tag(lowered(left), OPEN, 0)  # the rests of two tags can make a third
    return (left, depth > 0) if again < 0 else (left[:again], True)


def _find_tag(lower: str, tag: str, start: int) -> int:
    """The place of the next tag of this name, also of one that the text cuts off; -1 if there is none."""
    while (at := lower.find(tag, start)) >= 0:
        start = at + len(tag)
        if start >= len(lower) or lower[start] in ENDS_NAME:
            return at
    return -1


def _without_pem(text: str) -> tuple[str, bool]:
    """The text without blocks of PEM; an open one goes to the end."""
    kept, done = [], 0
    begin, end = text.find(PEM_BEGIN), text.find(PEM_END)
    while begin >= 0:
        header = text.find(DASHES, begin + len(PEM_BEGIN))
        if header < 0 or header - begin > 80:
            begin = text.find(PEM_BEGIN, begin + len(PEM_BEGIN))
            continue
        if 0 <= end < begin:
            end = text.find(PEM_END, begin)
        if end < 0 and not _goes_on(text, header + len(DASHES)):
            begin = text.find(PEM_BEGIN, header)
            continue
        kept += [text[done:begin], REDACTED]
        closing = -1 if end < 0 else text.find(DASHES, end + len(PEM_END))
        if end < 0 or closing < 0:
            return "".join(kept), end < 0
        done = closing + len(DASHES)
        begin = text.find(PEM_BEGIN, done)
    return "".join([*kept, text[done:]]), False


def _goes_on(text: str, at: int) -> bool:
    """Whether an open block follows its first line. A program that only names that line has a quote there."""
    rest = text[at : at + 16]
    body = rest.lstrip(" \t\r\n\\nr+")
    return not rest or (rest[0] in "\r\n\\ \t" and not body.startswith(("'", '"', "`")))
