"""Certificates: one made on the spot, or one that was given; and how the other side knows it. Driver.

Nobody signs a certificate that is made, so there is no authority to ask: whoever calls is told its fingerprint beforehand, with
the attempt or in the registry folder, and speaks to no other. A given one is known by its fingerprint too where Tidegate calls.
"""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tidegate.errors import ConfigurationError

VALID_DAYS = 365
_BACKDATED = datetime.timedelta(days=1)  #: clocks differ


@dataclass(frozen=True, slots=True)
class Certificate:
    """With its private key."""

    pem: bytes = field(repr=False)  #: the certificate, those that it was signed with, the key
    fingerprint: str  #: SHA-256 of the certificate, in hexadecimal

    @classmethod
    def of(cls, pem: bytes) -> Certificate:
        """:raises ValueError: when there is no certificate in it, or no key."""
        first = x509.load_pem_x509_certificate(pem)
        serialization.load_pem_private_key(pem, None)
        return cls(pem, first.fingerprint(hashes.SHA256()).hex())

    @property
    def ends(self) -> datetime.datetime:
        return x509.load_pem_x509_certificate(self.pem).not_valid_after_utc

    @property
    def names(self) -> set[str]:
        """The hosts' names and addresses that it is for."""
        extension = x509.load_pem_x509_certificate(self.pem).extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
        return {str(name.value) for name in extension.value}

    def server_context(self, least: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
        """:raises ssl.SSLError: when the key is another certificate's."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = least
        with tempfile.NamedTemporaryFile(prefix="tidegate-", suffix=".pem") as file:  # Python reads it from files alone
            file.write(self.pem)
            file.flush()
            context.load_cert_chain(file.name)
        return context


def made_certificate(names: Iterable[str], now: datetime.datetime | None = None) -> Certificate:
    """Signed with its own key, for these host names and addresses."""
    now = now or datetime.datetime.now(datetime.UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tidegate")])
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Certificate.of(signed.public_bytes(serialization.Encoding.PEM) + private)


def given_certificate(certificate: str, key: str) -> Certificate:
    """From PEM files. :raises ConfigurationError: naming the file that cannot be used, and nothing of what is in it."""
    parts = []
    for setting, name in (("certificate", certificate), ("key", key)):
        try:
            parts.append(Path(name).read_bytes())
        except OSError as error:
            raise ConfigurationError(f"tidegate.ssl.{setting}: {name} cannot be read: {error.strerror}") from None
    try:
        found = Certificate.of(b"\n".join(parts))
        found.server_context()
    except (ValueError, TypeError, ssl.SSLError):  # their words may quote the key
        raise ConfigurationError(
            f"tidegate.ssl.certificate: {certificate} and {key} are not a certificate and its private key, in PEM files and "
            "without a passphrase"
        ) from None
    return found


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
