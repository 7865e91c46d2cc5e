"""A trial's program that misbehaves in the way given by its first argument.

Standard library only.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time


def say(text: str) -> None:
    print(text, flush=True)


def main(kind: str) -> None:
    match kind:
        case "silent":
            pass
        case "chatty":
            say("epoch 1 of 1\nall went well")
        case "nan-last" | "inf-last":
            say(f"score=0.5\nscore={kind[:3]}")
        case "nan-middle":
            say("score=0.5\nscore=nan\nscore=0.25")
        case "exits-3":
            say("score=0.5\nthe data is not there")
            sys.exit(3)
        case "raises":
            raise ValueError("no such column")
        case "infeasible":
            say("score=0.5\nthe batch is larger than the data")
            sys.exit(42)
        case "garbage":
            sys.stdout.buffer.write(
                bytes(range(256)) * 300 + b"\nscore=0.5\n" + b"\xff\x00\xfe" * 30_000
            )
        case "json":
            say(
                json.dumps(
                    {"step": 3, "score": 0.5, "loss": 1, "note": "score=7", "deep": {"score": 9}}
                )
            )
        case "closes":
            say("score=0.5")
            os.close(1)
            os.close(2)
        case "late":
            say("score=0.5")
            time.sleep(60)
        case "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            say("score=0.5")
            time.sleep(60)
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "forks":
            for new_session in (False, True):
                subprocess.Popen(["sleep", "60"], start_new_session=new_session)
            say("score=0.5")
        case "deletes":
            shutil.rmtree(pathlib.Path(os.environ["TUNER_OUTPUT_DIR"]).parent)
            say("score=0.5")


main(sys.argv[1])
