"""Orders calls: calls that write the same study run one at a time, and callers share the worker threads fairly.

A call waits without occupying a thread. Writes of one study form a keyed queue; otherwise the calls of one slow study
would soon occupy all threads while they wait for its lock. No caller, and no namespace of a caller, gets all threads: a
caller may start a call while the number of its running calls is at most the number of free threads (so a single caller
gets half of them, and there is always room for the next one), and long calls get at most a quarter of the threads.
Among waiting callers, the one with the lowest cost so far goes first: start-time fair queueing by CPU time and bytes
(Goyal et al. 1996).

The expected cost of a call is the recent cost of similar calls. A queue belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from suggest.errors import StudyBusy, Unavailable
from suggest.workers import thread_cpu_s

MAX_WAITING = 256  # calls for one study; each holds its request
BUSY_PAUSE_S = 0.5  # retry delay of a client that is refused because there are more
LONG_S = 0.1  # CPU time above which a call is a long one
LARGE_REPLY_BYTES = 64 << 10  # a reply of this size waits until the caller has taken earlier ones
_BYTES_A_SECOND = 100e6  # converts the size of a reply to seconds of cost
_MANY = 10_000  # kinds of calls, and callers, whose cost is remembered

_LARGE = "large calls of"  # cannot clash with the name of a study, which contains no blank

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Flow:
    """The caller and the namespace to which a call's cost is charged."""

    caller: str = ""
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class CallKind:
    """Calls whose cost is about proportional to their `units` (trials requested, kilobytes sent).

    `name` identifies the method and the study; `fallback` the method and the caller, for a study with no cost yet.
    """

    name: str = ""
    fallback: str = ""
    units: float = 1.0


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a call: `seconds` of CPU time, and the size of its reply."""

    seconds: float = 0.0
    reply_bytes: float = 0.0


NOBODY, ANY_KIND, NO_COST = Flow(), CallKind(), Cost()


class _Lane(enum.Enum):
    """Separate queues, so that a call does not wait behind one to which a stricter rule applies."""

    QUICK = "quick"
    LONG = "long"
    LARGE_REPLY = "large reply"


@dataclass(slots=True, eq=False)
class _Job:
    """A call that waits for a thread or has one."""

    expected: Cost
    kind: CallKind
    turn: asyncio.Future[None] | None = None  # while it waits
    seconds: float = 0.0

    @property
    def long(self) -> bool:
        return self.expected.seconds > LONG_S

    @property
    def large_reply(self) -> bool:
        return self.expected.reply_bytes > LARGE_REPLY_BYTES

    @property
    def lane(self) -> _Lane:
        return _Lane.LARGE_REPLY if self.large_reply else _Lane.LONG if self.long else _Lane.QUICK


@dataclass(slots=True, eq=False)
class _Share:
    """The running and waiting calls of a caller, or of a caller's namespace, and their cost."""

    running: int = 0
    running_long: int = 0
    queued: int = 0
    spent_s: float = 0.0  # the start tag of the next call
    virtual_s: float = 0.0  # the start tag of the part that was served last
    waiting: dict[_Lane, deque[_Job]] = field(default_factory=lambda: {lane: deque() for lane in _Lane})
    parts: dict[str, _Share] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        return not self.running and not self.queued

    def part(self, name: str) -> _Share:
        """Return a part by name. A part that was idle does not get credit for that time."""
        part = self.parts.get(name)
        if part is None:
            if len(self.parts) >= _MANY:
                self.parts = {name: part for name, part in self.parts.items() if not part.idle}
            part = self.parts[name] = _Share()
        if part.idle:
            part.spent_s = max(part.spent_s, self.virtual_s)
        return part

    def served(self, part: _Share) -> None:
        self.virtual_s = max(self.virtual_s, part.spent_s)

    def waiting_shares(self) -> list[tuple[str, _Share]]:
        """Return the parts with waiting calls, the one with the lowest cost first."""
        return sorted(((n, p) for n, p in self.parts.items() if p.queued), key=lambda item: item[1].spent_s)


class Costs:
    """The recent cost per unit of each kind of call."""

    def __init__(self) -> None:
        self._known: dict[str, Cost] = {}

    def expected(self, kind: CallKind) -> Cost:
        cost = self._known.get(kind.name) or self._known.get(kind.fallback) or NO_COST
        return Cost(cost.seconds * kind.units, cost.reply_bytes * kind.units)

    def learn(self, kind: CallKind, cost: Cost) -> None:
        """Record the cost of a call: a higher cost replaces the known one, a lower one is averaged with it."""
        for name in filter(None, (kind.name, kind.fallback)):
            before = self._known.get(name)
            seconds, reply = cost.seconds / kind.units, cost.reply_bytes / kind.units
            if before is not None:
                seconds = max(seconds, (seconds + before.seconds) / 2)
                reply = max(reply, (reply + before.reply_bytes) / 2)
            elif len(self._known) >= _MANY:
                self._known.clear()
            self._known[name] = Cost(seconds, reply)


class KeyedQueue:
    """Runs calls in the threads of an executor, in fair order.

    `workers` is the number of threads of the executor. `full` returns whether a caller has too many unsent replies to
    get another large one; call `look_again` when this has changed.
    """

    def __init__(self, executor: Executor, *, workers: int, full: Callable[[str], bool] = lambda caller: False) -> None:
        self._executor = executor
        self._workers = workers
        self._long = max(1, workers // 4)
        self._full = full
        self._costs = Costs()
        self._all = _Share()  # the parts are callers, whose parts are namespaces
        self._in_line = 0  # calls that wait for their turn at a study
        self._wanted = 0  # calls whose callers still wait for the reply
        self._idle = asyncio.Event()
        self._idle.set()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by study that a call writes now

    @property
    def wanted(self) -> int:
        """The number of calls with a waiting caller, started or not."""
        return self._wanted

    @property
    def waiting_for_study(self) -> int:
        return self._in_line

    @property
    def waiting_for_worker(self) -> int:
        return self._all.queued

    async def run(
        self,
        study: str,
        work: Callable[[], T],
        *,
        flow: Flow = NOBODY,
        kind: CallKind = ANY_KIND,
        reply_bytes: Callable[[T], int] | None = None,
    ) -> T:
        """Run `work` in a thread, one at a time for each `study`; "" means work that needs no turn.

        If cancelled while waiting, the work is never done. If cancelled later, the work still finishes, and only then
        the next one begins.

        Raises:
            StudyBusy: too many calls wait for the study.
        """
        self._wanted += 1
        self._idle.clear()
        try:
            return await self._run(study, work, flow, kind, reply_bytes)
        finally:
            self._wanted -= 1
            if not self._wanted:
                self._idle.set()

    @asynccontextmanager
    async def one_at_a_time(self, flow: Flow) -> AsyncIterator[None]:
        """Serialize the large calls of a caller, beginning with the parsing of the request. Raises StudyBusy."""
        name = f"{_LARGE} {flow.caller}"
        await self._turn(name)
        try:
            yield
        finally:
            self._pass_on([name])

    async def idle(self) -> None:
        """Wait until there are no calls."""
        await self._idle.wait()

    def close(self) -> None:
        """Let all calls that have not begun raise Unavailable."""
        stopping = Unavailable("this server is stopping; send the request again")
        waiting = [turn for queue in self._waiting.values() for turn in queue]
        for _, caller in self._all.waiting_shares():
            for _, namespace in caller.waiting_shares():
                waiting += [job.turn for queue in namespace.waiting.values() for job in queue if job.turn is not None]
        for turn in waiting:
            if not turn.done():
                turn.set_exception(stopping)

    def look_again(self) -> None:
        """Start waiting calls, because a caller that was `full` may be served now."""
        if self._all.queued:
            self._begin_next()

    async def _run(
        self,
        study: str,
        work: Callable[[], T],
        flow: Flow,
        kind: CallKind,
        reply_bytes: Callable[[T], int] | None,
    ) -> T:
        keys: list[str] = []
        job = _Job(self._costs.expected(kind), kind)

        def timed() -> T:
            began = thread_cpu_s()
            try:
                return work()
            finally:
                job.seconds = thread_cpu_s() - began

        try:
            if study:
                await self._turn(study)
                keys.append(study)
            await self._thread(flow, job)
        except BaseException:
            self._pass_on(keys)
            raise
        try:
            done = self._executor.submit(timed)
        except BaseException:
            self._finished(keys, flow, job, NO_COST)
            raise
        size = 0.0

        def ended() -> None:
            cost = Cost(job.seconds, size)
            self._costs.learn(kind, cost)
            self._finished(keys, flow, job, cost)

        try:
            result = await asyncio.wrap_future(done)
            size = 0.0 if reply_bytes is None else reply_bytes(result)
            return result
        finally:
            if done.done():
                ended()
            else:
                loop = asyncio.get_running_loop()
                done.add_done_callback(lambda _: loop.call_soon_threadsafe(ended))

    # Turns at a study

    async def _turn(self, study: str) -> None:
        waiting = self._waiting.get(study)
        if waiting is None:
            self._waiting[study] = deque()
            return
        if len(waiting) >= MAX_WAITING:
            raise StudyBusy(
                f"{study}: {len(waiting)} calls already wait to write it, one at a time; try again later, or "
                "send fewer at once",
                retry_s=BUSY_PAUSE_S,
            )
        turn = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        self._in_line += 1
        try:
            await turn
        except BaseException:
            if turn in waiting:
                waiting.remove(turn)
            elif not turn.cancelled() and turn.exception() is None:
                self._pass_on([study])  # the turn came at the moment of the cancellation
            raise
        finally:
            self._in_line -= 1

    def _pass_on(self, keys: list[str]) -> None:
        for key in keys:
            waiting = self._waiting[key]
            while waiting and waiting[0].done():
                waiting.popleft()  # this call was cancelled but has not run since
            if waiting:
                waiting.popleft().set_result(None)
            else:
                del self._waiting[key]

    # Threads

    async def _thread(self, flow: Flow, job: _Job) -> None:
        """Wait until the job has a thread."""
        caller = self._all.part(flow.caller)
        namespace = caller.part(flow.namespace)
        shares = (self._all, caller, namespace)
        if not self._all.queued and self._may_begin(flow.caller, caller, namespace, job):
            self._begin(caller, namespace, job)
            return
        job.turn = asyncio.get_running_loop().create_future()
        namespace.waiting[job.lane].append(job)
        for share in shares:
            share.queued += 1
        self._begin_next()  # this job may be allowed to begin although earlier ones have to wait
        try:
            await job.turn
        except BaseException:
            if job in namespace.waiting[job.lane]:
                self._leave_queue(shares, job)
            else:  # the job began at the moment of the cancellation
                self._release(caller, namespace, job, NO_COST)
            raise

    @staticmethod
    def _leave_queue(shares: tuple[_Share, _Share, _Share], job: _Job) -> None:
        shares[-1].waiting[job.lane].remove(job)
        for share in shares:
            share.queued -= 1

    def _may_begin(self, name: str, caller: _Share, namespace: _Share, job: _Job) -> bool:
        free = self._workers - self._all.running
        if free <= 0 or caller.running > free or namespace.running >= max(2, self._workers // 2):
            return False
        if job.long:
            free_long = self._long - self._all.running_long
            if free_long <= 0 or caller.running_long > free_long:
                return False
        return not job.large_reply or not self._full(name)

    def _begin(self, caller: _Share, namespace: _Share, job: _Job) -> None:
        self._all.served(caller)
        caller.served(namespace)
        price = _price(job.expected)
        for share in (self._all, caller, namespace):
            share.running += 1
            share.running_long += job.long
            share.spent_s += price

    def _begin_next(self) -> None:
        """Begin as many waiting jobs as the rules allow, from the caller and namespace with the lowest cost first."""
        while self._all.queued and self._all.running < self._workers:
            next_job = self._next()
            if next_job is None:
                return
            caller, namespace, job = next_job
            self._leave_queue((self._all, caller, namespace), job)
            self._begin(caller, namespace, job)
            assert job.turn is not None
            job.turn.set_result(None)

    def _next(self) -> tuple[_Share, _Share, _Job] | None:
        for name, caller in self._all.waiting_shares():
            for _, namespace in caller.waiting_shares():
                for lane in _Lane:
                    job = self._first(namespace, lane)
                    if job is not None and self._may_begin(name, caller, namespace, job):
                        return caller, namespace, job
        return None

    def _first(self, namespace: _Share, lane: _Lane) -> _Job | None:
        """Return the first call that waits in the lane.

        Calls that came before the first call of their kind had ended could not be assigned to a lane. A burst of them
        would get round the limit on unsent replies, so they are assigned again.
        """
        waiting = namespace.waiting[lane]
        while True:
            # Jobs that were cancelled or refused remove themselves when they run next.
            job = next(
                (candidate for candidate in waiting if candidate.turn is not None and not candidate.turn.done()), None
            )
            if job is None or job.expected != NO_COST:
                return job
            job.expected = self._costs.expected(job.kind)
            if job.lane is lane:
                return job
            waiting.remove(job)
            namespace.waiting[job.lane].append(job)

    def _finished(self, keys: list[str], flow: Flow, job: _Job, cost: Cost) -> None:
        caller = self._all.parts[flow.caller]
        self._release(caller, caller.parts[flow.namespace], job, cost)
        self._pass_on(keys)

    def _release(self, caller: _Share, namespace: _Share, job: _Job, cost: Cost) -> None:
        more_s = _price(cost) - _price(job.expected)
        for share in (self._all, caller, namespace):
            share.running -= 1
            share.running_long -= job.long
            share.spent_s += more_s
        if self._all.queued:
            self._begin_next()


def _price(cost: Cost) -> float:
    return cost.seconds + cost.reply_bytes / _BYTES_A_SECOND
