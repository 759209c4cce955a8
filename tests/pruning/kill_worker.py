"""Runs `kprune prune` with the same arguments again and again, and kills it at given moments.

Every run is a fork of this process, which has imported everything once. After each run one line of JSON is printed:
the signal that ended it, and the files that it left.
"""

import json
import os
import signal
import sys
from pathlib import Path

from kprune.cli.main import main
from kprune.pruning import journal
from kprune.pruning.journal import FolderJournal

write, add_result, remove = FolderJournal.write, FolderJournal.add_result, FolderJournal.remove


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(moment: str, entry: str) -> None:
    """Let this process end before, during or after it writes an entry, or around its result."""

    def writing(self, name, tensors, details):
        if name == entry and moment == "before":
            die()
        if name == entry and moment == "during":
            fsync = os.fsync
            journal.os.fsync = lambda file: (os.ftruncate(file, 100), fsync(file), die())
        write(self, name, tensors, details)
        if name == entry:
            die()

    def result_added(self, staged, out):
        add_result(self, staged, out)
        die()

    def removing(self):
        (self.folder / "step-000.safetensors").unlink()
        die()

    FolderJournal.write = writing
    if moment == "result":
        FolderJournal.add_result = result_added
    if moment == "remove":
        FolderJournal.remove = removing


def run(moments: list[list[str]], folder: Path, arguments: list[str]) -> None:
    for moment in moments:
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            kill_at(*moment)
            main(arguments)
        _, status = os.waitpid(child, 0)
        names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        print(json.dumps([os.waitstatus_to_exitcode(status), names]), flush=True)


if __name__ == "__main__":
    run(json.loads(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
