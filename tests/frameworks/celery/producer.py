"""Sends tasks with numbers, each until it is confirmed."""

import itertools
import time

from kombu.exceptions import OperationalError
from tasks import app, record, report

PAUSE = 0.01
RETRY_SECONDS = 0.5

# Of the producer alone: a worker would wait for confirms of its own events, and stop during an alarm.
app.conf.broker_transport_options = {"confirm_publish": True}

for number in itertools.count():
    while True:
        try:
            record.delay(number)
            break
        except OperationalError as error:
            report(lost=number, error=repr(error))
            time.sleep(RETRY_SECONDS)
    report(confirmed=number)
    time.sleep(PAUSE)
