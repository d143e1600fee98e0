"""An authorization server: keys, tokens signed with them, and a service that publishes the keys."""

import base64
import contextlib
import http.server
import json
import time

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa, utils

from harness.http_service import serving

RESOURCE = "rabbitmq"
ALL = ("configure:*/*", "write:*/*/*", "read:*/*/*")
HASHES = {"256": hashes.SHA256, "384": hashes.SHA384, "512": hashes.SHA512}
CURVES = {"ES256": (ec.SECP256R1, "P-256", 32), "ES384": (ec.SECP384R1, "P-384", 48)}


def text(content):
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def number(value):
    return text(value.to_bytes((value.bit_length() + 7) // 8, "big"))


class Key:
    """A private key for one algorithm (RFC 7518, RFC 8037)."""

    def __init__(self, algorithm="RS256", name="key-1"):
        self.algorithm, self.name = algorithm, name
        if algorithm in CURVES:
            self.private = ec.generate_private_key(CURVES[algorithm][0]())
        elif algorithm == "EdDSA":
            self.private = ed25519.Ed25519PrivateKey.generate()
        else:
            self.private = rsa.generate_private_key(65537, 2048)

    def published(self):
        """The public key as a JSON Web Key."""
        numbers = self.private.public_key()
        if self.algorithm in CURVES:
            _, curve, size = CURVES[self.algorithm]
            point = numbers.public_numbers()
            key = {"kty": "EC", "crv": curve, "x": text(point.x.to_bytes(size, "big")), "y": text(point.y.to_bytes(size, "big"))}
        elif self.algorithm == "EdDSA":
            key = {"kty": "OKP", "crv": "Ed25519", "x": text(numbers.public_bytes_raw())}
        else:
            key = {"kty": "RSA", "n": number(numbers.public_numbers().n), "e": number(numbers.public_numbers().e)}
        return key | {"kid": self.name, "alg": self.algorithm, "use": "sig"}

    def sign(self, claims, **header):
        """A token with these claims."""
        header = {"alg": self.algorithm, "kid": self.name, "typ": "JWT"} | header
        content = ".".join(text(json.dumps(part).encode()) for part in (header, claims)).encode()
        return content.decode() + "." + text(self.signature(content))

    def signature(self, content):
        if self.algorithm == "EdDSA":
            return self.private.sign(content)
        digest = HASHES[self.algorithm[2:]]()
        if self.algorithm in CURVES:
            size = CURVES[self.algorithm][2]
            pair = utils.decode_dss_signature(self.private.sign(content, ec.ECDSA(digest)))
            return b"".join(part.to_bytes(size, "big") for part in pair)
        if self.algorithm.startswith("PS"):
            return self.private.sign(content, padding.PSS(padding.MGF1(digest), digest.digest_size), digest)
        return self.private.sign(content, padding.PKCS1v15(), digest)


def claims(*scopes, user="alice", seconds=3600, **others):
    """Claims of a token with the server's usual scope prefix."""
    scope = " ".join(f"{RESOURCE}.{scope}" for scope in scopes)
    return {"sub": user, "aud": [RESOURCE], "exp": int(time.time()) + seconds, "scope": scope} | others


def key_set(*keys):
    return json.dumps({"keys": [key.published() for key in keys]})


def flags(keys):
    """Flags that make a server accept tokens besides passwords, with the keys at this URL."""
    words = ["--auth-backends", "internal", "--auth-backends", "oauth2"]
    return [*words, "--oauth2-resource-server-id", RESOURCE, "--oauth2-jwks", str(keys)]


class KeyService:
    """Publishes keys over HTTP; `keys` may change at any time."""

    def __init__(self, *keys, tls=None):
        self.keys, self.asked = keys, 0
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                service.asked += 1
                body = key_set(*service.keys).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.server.server_port}/keys"


@contextlib.contextmanager
def key_service(*keys, **options):
    service = KeyService(*keys, **options)
    with serving(service.server):
        yield service
