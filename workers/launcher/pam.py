"""The library of PAM (pluggable authentication modules) and its dialogues. Standard library only.

It is loaded only if root names a service of PAM, and its modules run in guards only, never in the launcher.
"""

from __future__ import annotations

import ctypes
import os
import re
from itertools import count, takewhile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Where the file of a service is. Without a file, PAM would use that of the service ``other``.
DIRECTORY = "/etc/pam.d"
LIBRARY = "libpam.so.0"
#: What functions of PAM return: done, and that a question has no answer.
SUCCESS, NO_ANSWER = 0, 19
#: The kinds of messages that need no answer.
ERROR, INFORMATION = 3, 4
#: Most characters of a module's message in a reason.
MOST_CHARACTERS = 200
#: PAM turns other letters into these.
_NAME = re.compile(r"[a-z0-9_][a-z0-9_.-]*")


class Message(ctypes.Structure):
    """A message of a module (``struct pam_message``)."""

    _fields_ = (("kind", ctypes.c_int), ("text", ctypes.c_char_p))


class Answer(ctypes.Structure):
    """The answer to a message (``struct pam_response``)."""

    _fields_ = (("text", ctypes.c_char_p), ("unused", ctypes.c_int))


#: What PAM calls with the messages of modules.
LISTENER = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_int,
    ctypes.POINTER(ctypes.POINTER(Message)),
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)


class Conversation(ctypes.Structure):
    """A function for messages, and a value for it (``struct pam_conv``)."""

    _fields_ = (("function", LISTENER), ("value", ctypes.c_void_p))


class Service:
    """A service of PAM: a name, and a file in DIRECTORY that says which modules it uses."""

    def __init__(self, name: str) -> None:
        """Load the library.

        Raises:
            OSError: the library or the file is missing, or the name is none of a service; the message says which.

        """
        if not _NAME.fullmatch(name):
            raise OSError(None, f"{name} is no name of a service: use lower-case letters, digits, _ and -")
        self.name = name
        self.path = os.path.join(DIRECTORY, name)
        if not os.path.isfile(self.path):
            raise OSError(None, f"there is no file {self.path}")
        self.library: Any = ctypes.CDLL(LIBRARY)
        self.library.pam_strerror.restype = ctypes.c_char_p
        self.library.pam_getenvlist.restype = ctypes.POINTER(ctypes.c_char_p)
        self.allocate = ctypes.CDLL(None).calloc
        self.allocate.restype = ctypes.c_void_p
        self.allocate.argtypes = [ctypes.c_size_t, ctypes.c_size_t]


class Dialogue:
    """The calls of PAM about one account. Modules keep state in it from the first to the last one."""

    def __init__(self, service: Service, user: str) -> None:
        self._service = service
        self._pam = service.library
        self._message = ""
        self._handle = ctypes.c_void_p()
        self._conversation = Conversation(LISTENER(self._hear), None)  # PAM keeps its address
        name, about = service.name.encode(), user.encode(errors="surrogateescape")
        self._status = self._pam.pam_start(name, about, ctypes.byref(self._conversation), ctypes.byref(self._handle))

    def call(self, function: str, flags: int = 0) -> str:
        """Call a function of PAM that takes *flags*, and return why it failed; empty if it did not."""
        if self._handle.value is not None:  # otherwise pam_start has failed
            self._message = ""
            self._status = getattr(self._pam, function)(self._handle, flags)
        if self._status == SUCCESS:
            return ""
        reason: str = self._pam.pam_strerror(self._handle, self._status).decode(errors="replace")
        return f"{reason}: {self._message}" if self._message else reason

    def environment(self) -> dict[str, str]:
        """Return the variables that modules have set."""
        entries = self._pam.pam_getenvlist(self._handle)  # never freed: it is called once
        texts = takewhile(lambda text: text is not None, (entries[each] for each in count())) if entries else ()
        return {name: value for name, _, value in (os.fsdecode(text).partition("=") for text in texts)}

    def end(self) -> None:
        """Free what PAM and the modules hold. Nothing can be called afterwards."""
        if self._handle.value is not None:
            self._pam.pam_end(self._handle, self._status)
            self._handle = ctypes.c_void_p()

    def _hear(self, number: int, messages: Any, answers: Any, _value: Any) -> int:
        """Keep the last error of a module. There is nobody to answer a question."""
        for index in range(number):
            message = messages[index].contents
            if message.kind not in {ERROR, INFORMATION}:
                return NO_ANSWER
            if message.kind == ERROR and message.text:
                self._message = " ".join(message.text.decode(errors="replace").split())[:MOST_CHARACTERS]
        answers[0] = self._service.allocate(number, ctypes.sizeof(Answer))  # the module frees it
        return SUCCESS if answers[0] else NO_ANSWER
