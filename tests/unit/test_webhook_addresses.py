"""Where webhooks may be sent: parsing, the check of IP addresses, and the connection to what was checked."""

from __future__ import annotations

import ipaddress
import json
import shutil
import socket
import ssl
import subprocess
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reverie.base import posting
from reverie.base.posting import Posted, post
from reverie.errors import InvalidSelectionError
from reverie.webhooks.addresses import (
    ForbiddenAddressError,
    Target,
    UnknownHostError,
    is_public,
    read_target,
)
from support.receiving import receiver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SPECIAL_4 = [
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.2.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
]
SPECIAL_6 = [
    ipaddress.ip_network(network)
    for network in (
        "::/8",  # unspecified, loopback, IPv4-mapped, IPv4-compatible
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/32",
        "2001:db8::/32",
        "3fff::/20",
        "fc00::/7",
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
    )
]


def members(networks: list) -> st.SearchStrategy[str]:
    return st.sampled_from(networks).flatmap(
        lambda network: st.integers(0, network.num_addresses - 1).map(
            lambda number: str(network.network_address + number)
        )
    )


@given(members(SPECIAL_4))
def test_no_special_address_is_public_in_any_disguise(address: str) -> None:
    number = int(ipaddress.IPv4Address(address))
    assert not is_public(address)
    assert not is_public(f"::ffff:{address}")
    assert not is_public(str(ipaddress.IPv6Address((0x2002 << 112) | (number << 80) | 1)))  # 6to4
    assert not is_public(str(ipaddress.IPv6Address((0x64FF9B << 96) | number)))  # NAT64
    with pytest.raises(InvalidSelectionError, match="is not a public address"):
        read_target(f"https://{address}:8443/x", ["other.example"])
    with pytest.raises(InvalidSelectionError, match="is not a public address"):
        read_target(f"https://[::ffff:{address}]/x", [])
    assert read_target(f"http://{address}:8443/x", [address]).is_allowed


@given(members(SPECIAL_6))
def test_no_special_ipv6_address_is_public(address: str) -> None:
    assert not is_public(address)
    with pytest.raises(InvalidSelectionError):
        read_target(f"https://[{address}]/", [])
    assert read_target(f"https://[{address}]/", [address]).is_allowed


@given(st.ip_addresses())
def test_public_addresses_are_global_unicast(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    special = any(ip in network for network in (SPECIAL_4 if ip.version == 4 else SPECIAL_6))
    if is_public(str(ip)):
        assert ip.is_global
        assert not special
        assert not any((ip.is_multicast, ip.is_loopback, ip.is_private, ip.is_link_local))


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700:4700::1111", "2002:0808:0808::1"])
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(address)


@given(st.text(max_size=60))
def test_whatever_is_no_address_is_not_public_and_refused_in_words(text: str) -> None:
    if is_public(text):
        ipaddress.ip_address(text)
    try:
        target = read_target(f"https://{text}", [])
    except InvalidSelectionError:
        return
    assert target.url.hostname
    assert not target.is_allowed


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://example.org/", "must be https"),
        ("ftp://example.org/", "must be https://host/path"),
        ("https:///path", "must be https://host/path"),
        ("https://ann:secret@example.org/", "must not have a user or a password"),
        ("https://example.org:0/", "must be https://host/path"),
        ("https://example.org:99999/", "Port out of range"),
        ("https://example.org\\@10.0.0.1/", "must be https://host/path"),
        ("https://ex ample.org/", "no spaces"),
        ("https://ex\N{SNOWMAN}mple.org/", "ASCII"),
        ("https://example.org/" + "x" * 2000, "at most 2000"),
        ("https://127.0.0.1/", "127.0.0.1 is not a public address"),
        ("https://[::1]/", "::1 is not a public address"),
        ("https://[fe80::1%25eth0]/", "not a public address"),
        ("https://LocalHost./x", "is not a public address"),
        ("https://shop.localhost/", "is not a public address"),
        ("https://ip6-localhost/", "is not a public address"),
        ("https://2130706433/", "2130706433 is not a public address"),
        ("https://0x7f000001/", "is not a public address"),
        ("https://0x7F.1/", "is not a public address"),
        ("https://0177.0.0.1/", "is not a public address"),
        ("https://127.0.0.1./", "is not a public address"),
        ("https://192.168.257/", "is not a public address"),
        ("https://0/", "is not a public address"),
        ("not an address", "no spaces"),
        ("", "must be https://host/path"),
    ],
)
def test_addresses_that_are_refused(url: str, words: str) -> None:
    with pytest.raises(InvalidSelectionError, match=words.replace("[", r"\[")) as refused:
        read_target(url, [])
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("host", ["example.org", "localhost.example.org", "1.example.org", "134744072"])
def test_names_and_public_addresses_are_taken(host: str) -> None:
    assert not read_target(f"https://{host}/", []).is_allowed


@pytest.mark.parametrize("host", ["localhost", "LocalHost", "127.0.0.1", "[::1]"])
def test_a_host_is_allowed_by_name(host: str) -> None:
    assert read_target(f"http://{host}:8080/x", ["localhost", "127.0.0.1", "::1"]).is_allowed
    with pytest.raises(InvalidSelectionError):
        read_target(f"http://{host}:8080/x", ["example.org"])


@pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433", "0x7f.0.0.1", "0"])
async def test_a_name_that_leads_inside_is_refused_when_it_is_resolved(host: str) -> None:
    """The system reads some numbers as addresses that are no addresses by the book."""
    target = Target(urlsplit(f"https://{host}/"), is_allowed=False)
    with pytest.raises(
        ForbiddenAddressError, match=r"which is not public: add the host to webhooks\.allowed"
    ):
        await target.resolve()
    assert await target._replace(is_allowed=True).resolve()


async def test_a_name_that_is_unknown() -> None:
    with pytest.raises(UnknownHostError, match="cannot be resolved"):
        await read_target("https://nowhere.invalid/", []).resolve()
    with pytest.raises(UnknownHostError, match="cannot be resolved"):
        await Target(urlsplit(f"https://{'x' * 70}.example/"), is_allowed=False).resolve()


def test_the_connection_goes_to_the_address_that_was_checked() -> None:
    """The name of the host is not resolved a second time, when it could lead elsewhere."""
    with receiver() as server:
        url = urlsplit(f"http://nowhere.invalid:{server.server_address[1]}/hook?a=b")
        posted = post(
            url, b"{}", delivery_id="d", secret="s", timeout_s=10, addresses=["127.0.0.2", "127.0.0.1"]
        )
        assert posted == (None, 200, None)
        path, headers, body = server.next()
    assert (path, json.loads(body)) == ("/hook?a=b", {})
    assert headers["Host"] == f"nowhere.invalid:{server.server_address[1]}"


OPENSSL = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=hooks.test "
    "-addext subjectAltName=DNS:hooks.test"
)


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The certificate of `hooks.test`, which this process trusts; its key is in the same file."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    path = tmp_path / "both.pem"
    subprocess.run(
        [*OPENSSL.split(), "-keyout", path, "-out", tmp_path / "cert.pem"],
        check=True,
        capture_output=True,
    )
    path.write_text(path.read_text() + (tmp_path / "cert.pem").read_text())
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    posting._tls.cache_clear()
    yield path
    posting._tls.cache_clear()


def test_over_tls_the_certificate_must_be_that_of_the_name(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with receiver() as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        port = server.server_address[1]

        def send(host: str) -> Posted:
            url = urlsplit(f"https://{host}:{port}/")
            return post(url, b"{}", delivery_id="d", secret=None, timeout_s=10, addresses=["127.0.0.1"])

        assert send("hooks.test") == (None, 200, None)
        assert "CERTIFICATE_VERIFY_FAILED" in (send("other.test").problem or "")
        assert len(server.all) == 1


def test_a_handshake_that_never_ends_is_cut() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = urlsplit(f"https://hooks.test:{silent.getsockname()[1]}/")
        posted = post(url, b"{}", delivery_id="d", secret=None, timeout_s=0.1, addresses=["127.0.0.1"])
    assert posted == ("no answer within 0.1 s", None, None)
