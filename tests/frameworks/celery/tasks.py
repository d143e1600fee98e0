"""A Celery application: the worker runs it by its command line, the producer sends it tasks."""

import json
import os
import sys
import time

from celery import Celery

app = Celery("frameworks", broker=os.environ["FRAMEWORKS_URI"])
app.conf.update(
    task_default_queue=os.environ["FRAMEWORKS_QUEUE"],
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=10,
    # What a task prints is for the harness, not for the log.
    worker_redirect_stdouts=False,
    broker_connection_retry_on_startup=True,
    # As often as it takes: the default gives up after 100 attempts.
    broker_connection_max_retries=None,
)


def report(**what):
    # One write for each line, as processes share the output.
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


@app.task
def record(number):
    while os.path.exists(os.environ["FRAMEWORKS_PAUSE"]):
        time.sleep(0.05)
    report(received=number)
