import fcntl
import os
import pty
import select
import signal
import subprocess
import termios
import time
import unittest

from cli_case import BRAID, DEMO, PATIENCE, CliCase

ARGUMENTS = ["run", DEMO, "--chat", "--greedy", "-t", "1"]


class Terminal:
    """A chat on a pseudo-terminal; what it shows is collected in `shown`."""

    def __init__(self, *arguments):
        self.fd, theirs = pty.openpty()
        self.process = subprocess.Popen([BRAID, *ARGUMENTS, *arguments], stdin=theirs, stdout=theirs,
                                        stderr=theirs, start_new_session=True,
                                        preexec_fn=self.take_terminal)
        os.close(theirs)
        self.shown = ""

    @staticmethod
    def take_terminal():
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        # A shell that runs the tests in the background lets them ignore it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def read(self, seconds):
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            piece = os.read(self.fd, 65536)
        except OSError:
            return None
        self.shown += piece.decode(errors="replace")
        return True if piece else None

    def wait_until(self, shown, what):
        """Reads until `shown()`."""
        deadline = time.monotonic() + PATIENCE
        while not shown() and time.monotonic() < deadline:
            if self.read(0.2) is None:
                break
        if not shown():
            raise AssertionError("%s did not show; there is %r" % (what, self.shown))

    def wait_for(self, text):
        """Reads until `text` shows; returns all that showed since the last call."""
        self.wait_until(lambda: text in self.shown, repr(text))
        end = self.shown.index(text) + len(text)
        seen, self.shown = self.shown[:end], self.shown[end:]
        return seen

    def wait_for_editor(self):
        """Keys typed before the line editor has the terminal are the kernel's; Ctrl-D would be lost."""
        deadline = time.monotonic() + PATIENCE
        while termios.tcgetattr(self.fd)[3] & termios.ICANON:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError("no line editor; there is %r" % self.shown)
            time.sleep(0.01)

    def type(self, text):
        os.write(self.fd, text.encode())

    def finish(self):
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self.read(0.2) is not None:
            pass
        return self.process.wait(timeout=PATIENCE)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.fd)


class TerminalChatTest(CliCase):
    def open(self, *arguments):
        terminal = Terminal(*arguments)
        self.addCleanup(terminal.close)
        terminal.wait_for("/help lists the commands")
        terminal.wait_for("> ")
        terminal.wait_for_editor()
        return terminal

    def test_commands_and_exit(self):
        chat = self.open("-n", "4")
        chat.type("/help\n")
        chat.wait_for("Ctrl-C stops a reply")
        chat.wait_for("> ")
        chat.type("/nosuch\n")
        chat.wait_for("unknown command")
        chat.type("/exit\n")
        self.assertEqual(chat.finish(), 0)

    def test_end_of_input_ends_the_session(self):
        chat = self.open("-n", "4")
        chat.type("\x04")
        self.assertEqual(chat.finish(), 0)

    def test_interrupt_at_the_prompt_ends_the_session(self):
        chat = self.open("-n", "4")
        chat.type("half a line")
        chat.wait_for("half a line")
        chat.type("\x03")
        self.assertEqual(chat.finish(), -signal.SIGINT)
        # And leaves the terminal as it was.
        flags = termios.tcgetattr(chat.fd)[3]
        self.assertTrue(flags & termios.ECHO and flags & termios.ICANON)

    def test_interrupt_stops_the_reply_only(self):
        # As much as the context holds: the reply never ends before the key is typed.
        chat = self.open("-n", "100000", "--ignore-eos")
        chat.type("The house\n")
        chat.wait_for("The house")
        before = len(chat.shown)
        chat.wait_until(lambda: len(chat.shown) >= before + 40, "a reply")
        chat.type("\x03")
        chat.wait_for("[stopped]")
        chat.wait_for("> ")
        self.assertIsNone(chat.process.poll())
        chat.type("/exit\n")
        self.assertEqual(chat.finish(), 0)


class PipedChatTest(CliCase):
    def replies(self, text, *arguments):
        result = self.braid(*ARGUMENTS, "-n", "6", *arguments, stdin=text)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.decode(), result.stderr.decode()

    def test_later_questions_see_the_earlier_ones(self):
        chained, messages = self.replies("Alpha\nBeta\n")
        self.assertIn("reused", messages)
        first, _ = self.replies("Alpha\n")
        self.assertTrue(chained.startswith(first))
        # After a reset the second question is the first one.
        alone, _ = self.replies("Beta\n")
        reset, _ = self.replies("Alpha\n/reset\nBeta\n")
        self.assertEqual(reset, first + alone)
        # How many prompt tokens there were shows what the prompts held.
        alpha, beta = self.prompt_tokens("Alpha\n"), self.prompt_tokens("Beta\n")
        self.assertGreater(self.prompt_tokens("Alpha\nBeta\n"), alpha + beta)
        self.assertEqual(self.prompt_tokens("Alpha\n/undo\nBeta\n"), alpha + beta)
        self.assertEqual(self.prompt_tokens("Alpha\n/reset\n\nBeta\n"), alpha + beta)
        self.assertGreater(self.prompt_tokens("/system S\nBeta\n"), beta)

    def prompt_tokens(self, text):
        _, messages = self.replies(text)
        line = [line for line in messages.splitlines() if "tokens/s" in line][-1]
        reused = int(line.split("(")[1].split()[0]) if "reused" in line else 0
        return int(line.split("prompt ")[1].split()[0]) + reused

    def test_errors_of_a_turn_leave_the_session_alive(self):
        out, messages = self.replies("the " * 400 + "\nBeta\n", "-c", "128")
        self.assertIn("error: the prompt has", messages)
        alone, _ = self.replies("Beta\n", "-c", "128")
        self.assertEqual(out, alone)

    def test_no_input_is_no_error(self):
        self.assertEqual(self.replies("")[0], "")
        self.assertEqual(self.replies("\n  \n")[0], "")


if __name__ == "__main__":
    unittest.main()
