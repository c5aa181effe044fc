"""One `clattn bench --lines` process that answers question after question, so that measurements of other
programs on the same device can come between them. Used by gpu_bench.py."""
import json
import queue
import subprocess
import tempfile
import threading


class Refused(Exception):
    """The command measured nothing; the text says why."""


class Clattn:
    def __init__(self, command, more=(), timeout=120, environment=None):
        self.command = [command, "bench", "--lines", *more]
        self.timeout, self.environment = timeout, environment
        self.process = None

    def start(self):
        # pylint: disable=consider-using-with  # both live as long as this object wants
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                        text=True, env=self.environment)
        self.lines = queue.Queue()
        threading.Thread(target=self.read, args=(self.process.stdout, self.lines), daemon=True).start()

    @staticmethod
    def read(stream, lines):
        for line in stream:
            lines.put(line)
        lines.put(None)

    def last_error(self, begin):
        self.errors.seek(begin)
        lines = [line.strip() for line in self.errors.read().splitlines() if line.strip()]
        return lines[-1][:300] if lines else "no reason given"

    def close(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.errors.close()
        self.process = None

    def measure(self, words):
        """The results of one line of options; raises Refused. A process that dies or hangs is started anew for the
        next question."""
        if not self.process or self.process.poll() is not None:
            self.close()
            self.start()
        begin = self.errors.seek(0, 2)
        try:
            self.process.stdin.write(" ".join(words) + "\n")
            self.process.stdin.flush()
            while True:
                line = self.lines.get(timeout=self.timeout)
                if line is None:
                    self.process.wait()
                    reason = self.last_error(begin)
                    raise Refused(f"clattn ended with status {self.process.returncode}: {reason}")
                if line.startswith("{"):
                    break
        except queue.Empty:
            self.close()
            raise Refused(f"no answer within {self.timeout} s") from None
        except OSError:
            reason = self.last_error(begin)
            self.close()
            raise Refused(f"clattn does not run: {reason}") from None
        answer = json.loads(line)
        if answer["status"] != 0:
            reason = self.last_error(begin)
            if answer["status"] == 1:  # a device that failed once may go on failing in this process
                self.close()
            raise Refused(reason)
        if not answer["results"]:
            raise Refused("does not fit")
        return answer["results"]
