"""Entries of a definitions file in the format of both brokers."""

import base64
import hashlib

SALT = b"\x90\x8d\xc6\x0a"


def hashed(password, algorithm="sha256"):
    digest = hashlib.new(algorithm, SALT + password.encode()).digest()
    return {
        "password_hash": base64.b64encode(SALT + digest).decode(),
        "hashing_algorithm": f"rabbit_password_hashing_{algorithm}",
    }


def user(name, *tags, algorithm="sha256", limits=None):
    """A user whose password equals the name."""
    return {"name": name, **hashed(name, algorithm), "tags": list(tags), "limits": limits or {}}


def permission(user, vhost="/", configure="", write="", read=""):
    return {"user": user, "vhost": vhost, "configure": configure, "write": write, "read": read}


def topic_permission(user, exchange, write, read):
    return {"user": user, "vhost": "/", "exchange": exchange, "write": write, "read": read}


def policy(name, pattern, definition, apply_to="all", priority=0, vhost="/"):
    values = {"pattern": pattern, "definition": definition, "apply-to": apply_to, "priority": priority}
    return {"name": name, "vhost": vhost, **values}


def operator_policy(name, pattern, definition, priority=0, vhost="/"):
    value = {"pattern": pattern, "definition": definition, "apply-to": "queues", "priority": priority}
    return {"component": "operator_policy", "name": name, "vhost": vhost, "value": value}


def vhost_limits(vhost, **limits):
    value = {f"max-{what}": most for what, most in limits.items()}
    return {"component": "vhost-limits", "name": "limits", "vhost": vhost, "value": value}
