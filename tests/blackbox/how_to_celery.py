"""docs/how-to/celery.md: tasks run and answer through either server, and after a restart with the same worker."""

from harness.frameworks import CELERY, PYTHON
from harness.how_to import HowTo
from harness.ports import free_ports
from harness.reader import Reader, shop


# Fixtures of these tests.
__all__ = ["shop"]


def test_a_worker_runs_tasks_and_survives_a_restart(tmp_path, shop):
    page = HowTo("celery")
    [port] = free_ports(1)
    line = page.block("sh", shop.changes | {"127.0.0.1:5673": f"127.0.0.1:{port}"})
    with Reader(tmp_path, BROKER_PASSWORD="shop") as reader:
        # As `pip install celery` would leave them.
        reader.command("celery", f'exec {CELERY} "$@"')
        reader.command("python", f'exec {PYTHON} "$@"')
        reader.write("tasks.py", page.file("tasks.py", {":5673": f":{port}"}))
        reader.write("send.py", page.file("send.py"))
        worker, ask = page.block("sh"), page.block("sh")
        page.finish()
        # The worker may start before the server.
        working = reader.start(worker)
        working.wait_line("^Trying again in")
        server = reader.serve(line, **shop.variables)
        working.wait_line(r"ready\.$")
        said = reader.run(ask)
        assert said.startswith("5\n") and "pong" in said
        server.kill()
        server = reader.serve(line, **shop.variables)
        assert reader.run("python send.py") == "5\n"
        working.stop()
        server.stop()
