#!/usr/bin/env python3
"""A temporary PostgreSQL: a cluster in a directory of its own, on a Unix socket only, gone afterwards.

As a module: `with Cluster() as cluster: cluster.url("name")`. As a program, for tests that are none of Python's:
    postgres_cluster.py COMMAND [ARGUMENT…]
runs the command with SPACE_TEST_POSTGRES set to the URL of a fresh database, and passes on its exit status. Without
PostgreSQL it fails, loudly.

The database compares text by ICU's English rules, so that a test notices when bytewise order is not asked for.
"""

import ctypes
import os
import pathlib
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse

PR_SET_PDEATHSIG = 1
START_TIMEOUT_S = 60


def program(name):
    """Debian keeps the server's programs out of PATH."""
    places = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name))
    for place in reversed(places):
        if (place / name).exists():
            return str(place / name)
    found = shutil.which(name)
    if not found:
        raise FileNotFoundError(f"PostgreSQL is not installed (no {name}): NOT TESTED. `make setup-test` installs it")
    return found


class Cluster:
    """start(), stop() and kill() may be repeated; the data stays until close()."""

    def __init__(self):
        self.initdb, self.postgres, self.psql = program("initdb"), program("postgres"), program("psql")
        # not /tmp, which the server may see as a private one
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="space-postgres-", dir="/var/tmp"))
        self.user = None  # of the processes: PostgreSQL refuses to be root
        self.process = None
        try:
            if os.geteuid() == 0:
                self.user = pwd.getpwnam("postgres").pw_name if self._has_user("postgres") else "nobody"
                shutil.chown(self.directory, self.user)
            os.chmod(self.directory, 0o711)  # the socket is reached by tests of another uid
            self._run(self.initdb, "-D", self.data, "-U", "space", "--auth=trust", "--encoding=UTF8", "--no-sync",
                      "--no-instructions", "--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=en")
            self.start()
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _has_user(name):
        try:
            return bool(pwd.getpwnam(name))
        except KeyError:
            return False

    @property
    def data(self):
        return str(self.directory / "data")

    def _dies_with_us(self):
        # SIGQUIT is PostgreSQL's immediate shutdown, which also takes away its shared memory.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)

    def _identity(self):
        return {"user": self.user, "group": pwd.getpwnam(self.user).pw_gid, "extra_groups": []} if self.user else {}

    def _run(self, *command):
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.directory,
                              env={"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]}, **self._identity())
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]}: {done.stdout}{done.stderr}")
        return done.stdout

    def start(self):
        options = {"listen_addresses": "", "unix_socket_directories": str(self.directory), "fsync": "off",
                   "full_page_writes": "off", "max_connections": "80", "shared_buffers": "16MB",
                   "autovacuum": "off", "max_wal_size": "64MB"}
        arguments = [argument for name, value in options.items() for argument in ("-c", f"{name}={value}")]
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen([self.postgres, "-D", self.data, *arguments], stdout=log, stderr=log,
                                            stdin=subprocess.DEVNULL, cwd=self.directory,
                                            env={"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]},
                                            preexec_fn=self._dies_with_us, **self._identity())
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                self.sql("SELECT 1")
                return
            except RuntimeError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("PostgreSQL does not start: "
                                       + (self.directory / "log").read_text(errors="replace")) from None
            time.sleep(0.05)

    def end(self, how):
        """how: SIGINT ends all sessions and stops, SIGQUIT is a crash."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def stop(self):
        self.end(signal.SIGINT)

    def crash(self):
        self.end(signal.SIGQUIT)

    def sql(self, text, database="postgres"):
        """Rows as psql prints them: one a line, columns joined by '|'."""
        return self._run(self.psql, "-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", "-h", str(self.directory), "-U", "space",
                         "-d", database, "-c", text).strip()

    def url(self, database="postgres"):
        return f"postgresql://space@/{database}?host={urllib.parse.quote(str(self.directory), safe='')}"

    def make(self, database):
        """A fresh database; its URL."""
        self.sql(f'CREATE DATABASE "{database}"')
        return self.url(database)

    def close(self):
        self.end(signal.SIGQUIT)
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds
    try:
        with Cluster() as cluster:
            environment = {**os.environ, "SPACE_TEST_POSTGRES": cluster.url()}
            child = subprocess.Popen(sys.argv[1:], env=environment)
            try:
                status = child.wait()
                return status if status >= 0 else 128 - status
            finally:
                if child.poll() is None:
                    child.kill()
                    child.wait()
    except (FileNotFoundError, RuntimeError) as error:
        print(f"Bail out! {str(error).replace(chr(10), ' ')}")  # TAP: a failure with a reason
        return 1


if __name__ == "__main__":
    sys.exit(main())
