"""Sends a mail with `plimsoll notify test`, and one with a picture with the crate's example, to a real SMTP server with TLS and
AUTH, and checks what arrives.

    pip install aiosmtpd cryptography
    python scripts/check_mail.py --plimsoll target/debug/plimsoll --example target/debug/examples/status_mail

aiosmtpd is the server, Python's `email` parses the mails, and `zlib` the picture; none shares code with Plimsoll.
"""

import argparse
import datetime
import ipaddress
import logging
import os
import socket
import ssl
import struct
import subprocess
import tempfile
import warnings
import zlib
from email import message_from_bytes, policy
from pathlib import Path

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

USER, PASSWORD = "canary-user", "CANARY-password-§"


class Inbox:
    def __init__(self):
        self.mails = []

    async def handle_DATA(self, server, session, envelope):
        self.mails.append((envelope, session.authenticated, server.transport.get_extra_info("ssl_object") is not None))
        return "250 taken"


def authenticate(server, session, envelope, mechanism, data):
    good = (data.login, data.password) == (USER.encode(), PASSWORD.encode())
    return AuthResult(success=good, handled=good)


def certificate(folder):
    """A key and a certificate for localhost, as files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.timezone.utc)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    built = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(1))
        .not_valid_after(now + datetime.timedelta(1)).add_extension(names, critical=False).sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(private)
    (folder / "ca.pem").write_bytes(built.public_bytes(serialization.Encoding.PEM))
    return folder / "ca.pem", folder / "key.pem"


def pixels(png):
    """Rows of palette indices of an 8-bit PNG; verifies every checksum."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n", png[:8]
    place, chunks = 8, []
    while place < len(png):
        (length,) = struct.unpack(">I", png[place : place + 4])
        kind, data = png[place + 4 : place + 8], png[place + 8 : place + 8 + length]
        (crc,) = struct.unpack(">I", png[place + 8 + length : place + 12 + length])
        assert zlib.crc32(kind + data) == crc, kind
        chunks.append((kind, data))
        place += 12 + length
    assert chunks[-1][0] == b"IEND"
    width, height, depth, color, *_ = struct.unpack(">IIBBBBB", chunks[0][1])
    assert (depth, color) == (8, 3), (depth, color)
    raw = zlib.decompress(b"".join(data for kind, data in chunks if kind == b"IDAT"))
    assert len(raw) == height * (width + 1), len(raw)
    return width, height


def run(command, secrets, expected):
    environment = {**os.environ, "PLIMSOLL_SMTP_USER": secrets[0], "PLIMSOLL_SMTP_PASSWORD": secrets[1]}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    shown = said.stdout + said.stderr
    assert said.returncode == expected, shown
    assert "CANARY" not in shown, shown
    return shown


def check(folder, encryption, plimsoll, example):
    authority, key = certificate(folder)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority, key)
    inbox = Inbox()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    usual = dict(hostname="127.0.0.1", port=port, authenticator=authenticate, auth_required=True)
    if encryption == "tls":
        controller = Controller(inbox, ssl_context=context, auth_require_tls=False, **usual)
    else:
        controller = Controller(inbox, tls_context=context, require_starttls=True, **usual)
    controller.start()
    try:
        flags = ["--mail-to", "me@example.com,you@example.com", "--mail-from", "Plimsoll <p@example.com>"]
        flags += ["--smtp", f"localhost:{port}", "--smtp-encryption", encryption, "--smtp-ca", str(authority)]
        command = [plimsoll, "notify", "test", "--notify", "mail", *flags]
        assert run(command, (USER, PASSWORD), 0) == "mail      sent\n"
        refused = run(command, (USER, "CANARY-wrong"), 5)
        assert "535" in refused, refused
        # Without the certificate authority the certificate is not trusted.
        untrusted = run(command[:-2], (USER, PASSWORD), 5)
        assert "certificate" in untrusted, untrusted
        run([example, f"localhost:{port}", encryption, str(authority)], (USER, PASSWORD), 0)
    finally:
        controller.stop()
    assert len(inbox.mails) == 2, len(inbox.mails)
    for envelope, authenticated, encrypted in inbox.mails:
        assert authenticated and encrypted
        assert envelope.rcpt_tos == ["me@example.com", "you@example.com"], envelope.rcpt_tos
    test, status = (message_from_bytes(envelope.content, policy=policy.default) for envelope, *_ in inbox.mails)
    assert test["subject"] == "plimsoll: test message" and "arrive here" in test.get_content()
    assert status["subject"] == "nano-1: step 120 of 500" and not status.defects, status.defects
    text = status.get_body(("plain",)).get_content()
    for line in ["step: 120 of 500", "loss: ", "time left: ", "RTX 3090: 71 °C, memory 84 °C, 310 W, 98 % busy, "]:
        assert line in text, text
    page = status.get_body(("html",)).get_content()
    (picture,) = [part for part in status.walk() if part.get_content_type() == "image/png"]
    assert picture.get_content_disposition() == "inline"
    assert f'src="cid:{picture["content-id"].strip("<>")}"' in page, page
    print(f"{encryption}: 2 mails, a picture of {pixels(picture.get_content())} pixels, wrong password and authority refused")


def main():
    # aiosmtpd warns about implicit TLS, which it does not recognize, and logs clients that do not trust it.
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser()
    parser.add_argument("--plimsoll", required=True)
    parser.add_argument("--example", required=True)
    arguments = parser.parse_args()
    for encryption in ["tls", "starttls"]:
        with tempfile.TemporaryDirectory() as folder:
            check(Path(folder), encryption, arguments.plimsoll, arguments.example)


if __name__ == "__main__":
    main()
