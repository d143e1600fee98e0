"""What RabbitMQ 4 answers otherwise than 3.10 (catalogue.py), and what it does not have any more."""

from scenarios.catalogue import EXPECTED, closing_channel, failed, refused, with_headers


def with_last_death(answer):
    """Dead letters tell of their last death, too."""
    if isinstance(answer, list):
        return [with_last_death(each) for each in answer]
    if not isinstance(answer, dict):
        return answer
    last = {f"x-last-death-{part}": answer["x-death"][0][part] for part in ("exchange", "queue", "reason") if "x-death" in answer}
    return {key: with_last_death(value) for key, value in answer.items()} | last


DEAD_LETTERS = ["max_length_rejects", "dead_letters", "dead_letter_cycles"]

COPIES = EXPECTED["dead_letters_and_copies"]
# CC stays, even where a routing key of the queue's own takes the place of all keys.
COPIES_KEPT = COPIES | {"renamed": [COPIES["renamed"][0], with_headers(COPIES["renamed"][1], CC=["copied"])]}

OTHERWISE = {name: with_last_death(EXPECTED[name]) for name in DEAD_LETTERS} | {
    "dead_letters_and_copies": with_last_death(COPIES_KEPT),
    # There are no limits for a whole channel: each consumer has its own.
    "prefetch_global": {"delivered": 6, "ready": 4},
    "unknown_exchange_type": closing_channel(failed("unknown exchange type 'no-such-type'")),
    "quorum_queue": with_last_death(EXPECTED["quorum_queue"]) | {"seen": [[False, None], [True, 1]]},
    "direct_reply_to": EXPECTED["direct_reply_to"]
    | {
        # Who publishes to one is never told that it has gone.
        "returned": False,
        "get": refused(540, "NOT_IMPLEMENTED", "basic.get not supported by volatile queue 'SECRET' in vhost '/'"),
        "bind": closing_channel(refused(403, "ACCESS_REFUSED", "cannot bind or unbind to a volatile (direct reply-to) queue")),
    },
    "direct_reply_to_refused": EXPECTED["direct_reply_to_refused"] | {"declare_secret": {"code": 541, "text": "INTERNAL_ERROR"}},
}

# Who asks for a reply queue that is not there makes something in RabbitMQ 4 crash; the embedded broker says that it is not there.
NOT_FOLLOWED = {"direct_reply_to_refused": EXPECTED["direct_reply_to_refused"]}

NOT_THERE = {"prefetch_raised": "RabbitMQ 4 has no limit for a whole channel, and a consumer's stays as it began"}
# The pool answers in its place.
REFUSED_AT_LOGIN = {"frame_max_4096": "RabbitMQ 4 refuses clients whose largest frame is under 8,192 octets"}
