"""Certificates for a single test."""

import base64
import datetime
import hashlib
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)


class Pair:
    """The PEM files of a certificate and its key."""

    def __init__(self, directory, name):
        self.certificate = directory / f"{name}.pem"
        self.key = directory / f"{name}.key"

    def __iter__(self):
        return iter((str(self.certificate), str(self.key)))

    @property
    def fingerprint(self):
        """The fingerprint of the public key, in the format of Chromium's switch."""
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        key = x509.load_pem_x509_certificate(self.certificate.read_bytes()).public_key()
        return base64.b64encode(hashlib.sha256(key.public_bytes(serialization.Encoding.DER, form)).digest()).decode()


class TestCa:
    # The name begins with Test, but pytest must not collect this class.
    __test__ = False

    def __init__(self, directory, name="ca", days=3650):
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.subject = subject_of([(NameOID.COMMON_NAME, name)])
        self.key = ec.generate_private_key(ec.SECP256R1())
        basic = x509.BasicConstraints(ca=True, path_length=None)
        builder = started(self.subject, self.subject, self.key, days).add_extension(basic, critical=True)
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def write_key(self):
        """Writes the CA's own key, for a server that presents the CA certificate."""
        return write_key(self.directory / f"{self.file.stem}.key", self.key)

    def issue(self, name, names=("localhost", "127.0.0.1"), subject=None, expired=False, days=1):
        """Issues a certificate for server and client use, in files called `name`, valid for `days`."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = subject_of(subject or [(NameOID.COMMON_NAME, name)])
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = started(subject, self.subject, key, -1 if expired else days).add_extension(usage, critical=False)
        if names:
            alternative = x509.SubjectAlternativeName([general(each) for each in names])
            builder = builder.add_extension(alternative, critical=False)
        pair = Pair(self.directory, name)
        certificate = builder.sign(self.key, hashes.SHA256())
        pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        write_key(pair.key, key)
        return pair


def write_key(file, key):
    form = serialization.PrivateFormat.PKCS8
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return file


def subject_of(attributes):
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in attributes])


def general(name):
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def started(subject, issuer, key, days):
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 2 * DAY)
        .not_valid_after(now + days * DAY)
    )
