"""Two workers as children of somebody's own program: `started.py METHOD URL`, by that method of multiprocessing."""

from __future__ import annotations

import multiprocessing
import sys

from redis import Redis
from rq.connections import parse_connection
from rq.worker_pool import run_worker

from tokenloom.schemas import MsgpackSerializer
from tokenloom.worker import BatchWorker


def main(method: str, url: str) -> None:
    multiprocessing.set_start_method(method)
    options = {"worker_class": BatchWorker, "serializer": MsgpackSerializer, "burst": True}
    with Redis.from_url(url) as connection:
        link = parse_connection(connection)
    workers = [
        multiprocessing.Process(target=run_worker, args=(f"w{number}", ["steps"], *link), kwargs=options)
        for number in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    sys.exit(max(abs(worker.exitcode or 0) for worker in workers))


if __name__ == "__main__":
    main(*sys.argv[1:])
