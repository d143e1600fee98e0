"""Where the answers of RabbitMQ 4 differ from those of 3.10 (catalogue.py), and what it no longer supports."""

from scenarios.catalogue import EXPECTED, closing_channel, failed, refused, with_headers


def with_last_death(answer):
    """Dead letters also carry the x-last-death headers."""
    if isinstance(answer, list):
        return [with_last_death(each) for each in answer]
    if not isinstance(answer, dict):
        return answer
    last = {f"x-last-death-{part}": answer["x-death"][0][part] for part in ("exchange", "queue", "reason") if "x-death" in answer}
    return {key: with_last_death(value) for key, value in answer.items()} | last


DEAD_LETTERS = ["max_length_rejects", "dead_letters", "dead_letter_cycles"]

COPIES = EXPECTED["dead_letters_and_copies"]
# CC stays even if a dead-letter routing key replaces all routing keys.
COPIES_WITH_CC = COPIES | {"renamed": [COPIES["renamed"][0], with_headers(COPIES["renamed"][1], CC=["copied"])]}

OTHERWISE = {name: with_last_death(EXPECTED[name]) for name in DEAD_LETTERS} | {
    "dead_letters_and_copies": with_last_death(COPIES_WITH_CC),
    # There is no limit for the whole channel: each consumer has its own.
    "prefetch_global": {"delivered": 6, "ready": 4},
    "unknown_exchange_type": closing_channel(failed("unknown exchange type 'no-such-type'")),
    "quorum_queue": with_last_death(EXPECTED["quorum_queue"]) | {"seen": [[False, None], [True, 1]]},
    "direct_reply_to": EXPECTED["direct_reply_to"]
    | {
        # The publisher is not informed that the reply queue is gone.
        "returned": False,
        "get": refused(540, "NOT_IMPLEMENTED", "basic.get not supported by volatile queue 'SECRET' in vhost '/'"),
        "bind": closing_channel(refused(403, "ACCESS_REFUSED", "cannot bind or unbind to a volatile (direct reply-to) queue")),
    },
    "direct_reply_to_refused": EXPECTED["direct_reply_to_refused"] | {"declare_secret": {"code": 541, "text": "INTERNAL_ERROR"}},
}

# Declaring a missing reply queue crashes a process of RabbitMQ 4; the embedded broker answers that it does not exist.
NOT_FOLLOWED = {"direct_reply_to_refused": EXPECTED["direct_reply_to_refused"]}

UNSUPPORTED = {"prefetch_raised": "RabbitMQ 4 has no limit for a whole channel, and a consumer's stays as it began"}
# The pool answers instead.
REFUSED_AT_LOGIN = {"frame_max_4096": "RabbitMQ 4 refuses clients whose largest frame is under 8,192 octets"}
