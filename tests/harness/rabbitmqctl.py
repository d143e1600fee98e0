"""Runs rabbitmqctl commands in a long-lived Erlang VM, one for each node. The code is the tool's own; only the start of the
VM, a second of CPU time for each command from a shell, is saved."""

import base64
import contextlib
import functools
import hashlib
import os
import re
import select
import shutil
import subprocess
import threading
import time
import zipfile

from harness.preload import CACHE

# The tool is a zip file after a line with its interpreter. An Erlang VM cannot load code from it, so it is unpacked.
TOOL = "lib/rabbitmq/lib/rabbitmq_server-*/escript/rabbitmqctl"
# The same as the tool's own script (run_escript in rabbitmq-env), except for the code that it runs.
START = """
set -e -a
. "${0%/*}"/rabbitmq-env
_rmq_env_set_erl_libs
serve=$1
shift
exec erl +B -boot "$CLEAN_BOOT_FILE" -noshell -hidden -pa "$@" $RABBITMQ_CTL_ERL_ARGS \
    -kernel inet_dist_listen_min "$RABBITMQ_CTL_DIST_PORT_MIN" -kernel inet_dist_listen_max "$RABBITMQ_CTL_DIST_PORT_MAX" \
    -eval "$serve" -extra "$ESCRIPT_DIR"/rabbitmqctl
"""
# Each command is a line of Base64 arguments, each after a hyphen. Its output is followed by a line with a byte that no output
# contains, and the exit code. This is the tool's `main` without its last step, which would end the VM.
SERVE = r"""
{ok, _} = application:ensure_all_started(elixir),
ok = application:load(rabbitmqctl),
Print = fun(Output, Command, Options) ->
    Formatter = 'Elixir.RabbitMQ.CLI.Core.Config':get_formatter(Command, Options),
    Printer = 'Elixir.RabbitMQ.CLI.Core.Config':get_printer(Command, Options),
    Formatted = 'Elixir.RabbitMQ.CLI.Core.Output':format_output(Output, Formatter, Options),
    'Elixir.RabbitMQ.CLI.Core.Output':print_output(Formatted, Printer, Options)
end,
Exit = fun
    ({error, Code, nil}) -> Code;
    ({error, Code, Text}) -> ['Elixir.IO':puts(standard_error, Line) || Line <- lists:flatten([Text])], Code;
    ({error, Other}) -> io:format(standard_error, "~p~n", [Other]), 70;
    (_) -> 0
end,
Serve = fun Serve() ->
    case io:get_line("") of
        eof -> halt();
        Line ->
            Words = [base64:decode(Word) || [_ | Word] <- string:lexemes(unicode:characters_to_list(Line), " \n")],
            Run = fun() -> exit({code, Exit('Elixir.RabbitMQCtl':exec_command(Words, Print))}) end,
            {_, Command} = spawn_monitor(Run),
            receive
                {'DOWN', Command, process, _, {code, Code}} -> net_kernel:stop(), io:format("\x{1}~b~n", [Code]);
                {'DOWN', Command, process, _, Reason} -> io:format(standard_error, "~p~n", [Reason]), halt(1)
            end,
            Serve()
    end
end,
Serve().
"""
END = re.compile(rb"\x01(\d+)\n$")


class Rabbitmqctl:
    """The rabbitmqctl of one node, with that node's `release` and `env`; the VM starts with the first command."""

    def __init__(self, directory, script, release, env):
        self.errors = directory / "rabbitmqctl.log"
        self.script, self.release, self.env = script, release, env
        self.process = None
        self.turn = threading.Lock()

    def run(self, arguments, seconds):
        """Returns the exit code, standard output and standard error."""
        with self.turn:
            if self.process is None or self.process.poll() is not None:
                self.start()
            said = self.errors.stat().st_size
            self.process.stdin.write(b" ".join(b"-" + base64.b64encode(word.encode()) for word in arguments) + b"\n")
            try:
                printed = self.read(time.monotonic() + seconds)
            except BaseException:
                self.kill()
                raise
            with self.errors.open("rb") as errors:
                errors.seek(said)
                error = errors.read().decode(errors="replace")
        end = END.search(printed)
        return int(end[1]), printed[: end.start()].decode(), error

    def start(self):
        argv = [*self.release.inside, "/bin/sh", "-c", START, self.script, SERVE, *code(self.release)]
        with self.errors.open("ab") as errors:
            # It exits at the end of its input, so it does not outlive the tests.
            self.process = subprocess.Popen(
                argv, env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0, start_new_session=True
            )

    def read(self, deadline):
        printed = b""
        while not END.search(printed):
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"rabbitmqctl has not ended\n{printed.decode(errors='replace')}"
            more = self.process.stdout.read(1 << 16)
            assert more, f"rabbitmqctl has gone\n{printed.decode(errors='replace')}{self.errors.read_text(errors='replace')}"
            printed += more
        return printed

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


@functools.cache
def code(release):
    """The directories with the code of a release's rabbitmqctl."""
    [tool] = release.usr.glob(TOOL)
    key = hashlib.sha256(tool.read_bytes()).hexdigest()[:16]
    directory = CACHE / f"rabbitmqctl-{key}"
    if not directory.exists():
        # Another process may unpack it at the same time.
        new = directory.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(tool) as archive:
            archive.extractall(new)
        with contextlib.suppress(OSError):
            new.rename(directory)
        shutil.rmtree(new, ignore_errors=True)
    return sorted({str(module.parent) for module in directory.rglob("*.beam")})
