"""Certificates of an authority of a test's own."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID


class Authority:
    """A certificate authority of a test's own."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        basic = x509.BasicConstraints(ca=True, path_length=None)
        signed = self._builder(self._name, self._key).add_extension(basic, critical=True)
        self.certificate = folder / f"{name}.pem"
        made = signed.sign(self._key, hashes.SHA256())
        self.certificate.write_bytes(made.public_bytes(Encoding.PEM))

    def issue(self, name: str, password: bytes | None = None) -> "Issued":
        """Make a certificate for 127.0.0.1, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._builder(subject, key).add_extension(names, critical=False)
        issued = Issued(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        signed = made.sign(self._key, hashes.SHA256())
        issued.certificate.write_bytes(signed.public_bytes(Encoding.PEM))
        hidden = NoEncryption() if password is None else BestAvailableEncryption(password)
        issued.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden))
        return issued

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(identifier, critical=False)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
        )


class Issued(NamedTuple):
    """The files of a certificate."""

    certificate: Path
    key: Path
