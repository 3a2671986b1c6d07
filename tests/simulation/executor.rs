//! The executor: virtual time, and the tasks of every simulated process.
//!
//! The product's code runs here unchanged: it spawns, sleeps and draws jitter through [`SimClock`], and time moves only when nothing is runnable.
//!
//! Invariant: one thread, one queue in order of waking, so the same world runs the same way each time.
//! Invariant: no lock is held while a task is polled or dropped.
//! Absent on purpose: real clocks, real randomness, a runtime of another crate.

mod clock;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

pub(crate) use clock::{Random, SimClock, Sleep};

/// More polls than this in one instant mean that the product never comes to rest.
const POLLS_IN_AN_INSTANT: u64 = 5_000_000;
/// More looks at the clock than this in one instant mean that one task never returns.
const LOOKS_IN_AN_INSTANT: u64 = 1_000_000;
/// Where the wall clock starts: an ordinary day.
const WALL_START_SECONDS: i64 = 1_790_000_000;

/// Number of a process in its world; a restarted replica is a new process.
pub(crate) type ProcessId = usize;
/// A task.
pub(crate) type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Locks, also after a panic of the code under test.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What clocks, wakers and the executor share.
pub(crate) struct Exec {
    now: AtomicU64,
    jump: AtomicI64,
    /// Looks at the clock in this instant.
    looks: AtomicU64,
    /// How long each process was paused; only a deliberate fault asks.
    pauses: Mutex<BTreeMap<ProcessId, Duration>>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    ready: VecDeque<Arc<TaskWaker>>,
    born: Vec<(ProcessId, BoxFuture)>,
    doomed: Vec<ProcessId>,
    timers: BinaryHeap<std::cmp::Reverse<(Duration, u64, usize)>>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    sequence: u64,
}

#[derive(Default)]
struct Slot {
    sequence: u64,
    waker: Option<Waker>,
}

struct TaskWaker {
    exec: Arc<Exec>,
    task: usize,
    life: u64,
    queued: AtomicBool,
}

struct Task {
    process: ProcessId,
    life: u64,
    future: BoxFuture,
    handle: Arc<TaskWaker>,
    waker: Waker,
}

thread_local! {
    /// Whether code under test runs on this thread.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
    /// Its last panic, with the place.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps a panic of the code under test for the failure of its world; any other is printed.
pub(crate) fn note_panic(info: &std::panic::PanicHookInfo<'_>) {
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let text = format!("panic at {place}: {}", words(info.payload()));
    if GUARDED.get() {
        PANIC.set(Some(text));
    } else {
        crate::complain(&text);
    }
}

/// Runs the tasks of one world.
pub(crate) struct Executor {
    exec: Arc<Exec>,
    tasks: Vec<Option<Task>>,
    free: Vec<usize>,
    lives: u64,
    paused: Vec<bool>,
    deferred: Vec<Arc<TaskWaker>>,
    polls: u64,
}

/// Why an instant did not come to its end.
pub(crate) enum Broken {
    /// The code under test panicked.
    Panic(String),
    /// It never came to rest.
    Restless,
}

impl Exec {
    /// Time zero.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            now: AtomicU64::new(0),
            jump: AtomicI64::new(0),
            looks: AtomicU64::new(0),
            pauses: Mutex::default(),
            inner: Mutex::default(),
        })
    }

    /// Virtual time.
    pub(crate) fn now(&self) -> Duration {
        Duration::from_nanos(self.now.load(Ordering::Relaxed))
    }

    /// The wall clock.
    pub(crate) fn wall(&self) -> jiff::Timestamp {
        let jump = self.jump.load(Ordering::Relaxed);
        let nanos =
            i128::from(WALL_START_SECONDS) * 1_000_000_000 + i128::from(self.now.load(Ordering::Relaxed)) + i128::from(jump) * 1_000_000;
        jiff::Timestamp::from_nanosecond(nanos).expect("a simulated wall clock stays near its start")
    }

    /// Moves the wall clock by milliseconds.
    pub(crate) fn jump(&self, milliseconds: i64) {
        self.jump.fetch_add(milliseconds, Ordering::Relaxed);
    }

    /// Notes that a process was paused for so long.
    pub(crate) fn note_pause(&self, process: ProcessId, lasted: Duration) {
        *lock(&self.pauses).entry(process).or_default() += lasted;
    }

    /// Guards against a loop that never even returns to the executor.
    fn look(&self) {
        let looks = self.looks.fetch_add(1, Ordering::Relaxed);
        assert!(
            looks < LOOKS_IN_AN_INSTANT,
            "more than {LOOKS_IN_AN_INSTANT} looks at the clock in one instant: the product does not come to rest"
        );
    }

    /// Ends a process as soon as the task that runs now has returned.
    pub(crate) fn doom(&self, process: ProcessId) {
        lock(&self.inner).doomed.push(process);
    }

    /// Runs `task` as part of `process`.
    pub(crate) fn spawn(&self, process: ProcessId, task: BoxFuture) {
        lock(&self.inner).born.push((process, task));
    }

    /// When the next sleeper wants to wake.
    fn next_timer(&self) -> Option<Duration> {
        let mut inner = lock(&self.inner);
        while let Some(&std::cmp::Reverse((at, sequence, slot))) = inner.timers.peek() {
            if inner.slots[slot].sequence == sequence {
                return Some(at);
            }
            inner.timers.pop();
        }
        None
    }

    /// Wakes the sleepers whose time has come; whether there was one.
    fn fire(&self) -> bool {
        let now = self.now();
        let mut fired = false;
        while self.next_timer().is_some_and(|at| at <= now) {
            let waker = {
                let mut inner = lock(&self.inner);
                let Some(std::cmp::Reverse((_, _, slot))) = inner.timers.pop() else { break };
                inner.slots[slot].sequence = 0;
                inner.slots[slot].waker.take()
            };
            fired = true;
            if let Some(waker) = waker {
                waker.wake();
            }
        }
        fired
    }

    fn arm(&self, at: Duration, waker: &Waker, slot: Option<(usize, u64)>) -> (usize, u64) {
        let mut inner = lock(&self.inner);
        if let Some((slot, sequence)) = slot
            && inner.slots[slot].sequence == sequence
        {
            if !inner.slots[slot].waker.as_ref().is_some_and(|old| old.will_wake(waker)) {
                inner.slots[slot].waker = Some(waker.clone());
            }
            return (slot, sequence);
        }
        inner.sequence += 1;
        let sequence = inner.sequence;
        let index = match slot.map(|(slot, _)| slot).or_else(|| inner.free.pop()) {
            Some(index) => index,
            None => {
                inner.slots.push(Slot::default());
                inner.slots.len() - 1
            }
        };
        inner.slots[index] = Slot { sequence, waker: Some(waker.clone()) };
        inner.timers.push(std::cmp::Reverse((at, sequence, index)));
        (index, sequence)
    }

    fn disarm(&self, slot: usize) {
        let mut inner = lock(&self.inner);
        inner.slots[slot] = Slot::default();
        inner.free.push(slot);
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            let exec = self.exec.clone();
            lock(&exec.inner).ready.push_back(self);
        }
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            lock(&self.exec.inner).ready.push_back(self.clone());
        }
    }
}

impl Executor {
    /// No tasks yet.
    pub(crate) fn new(exec: Arc<Exec>) -> Self {
        Self { exec, tasks: Vec::new(), free: Vec::new(), lives: 0, paused: Vec::new(), deferred: Vec::new(), polls: 0 }
    }

    /// How many polls there were since the start.
    pub(crate) fn polls(&self) -> u64 {
        self.polls
    }

    /// When the next sleeper wants to wake.
    pub(crate) fn next_timer(&self) -> Option<Duration> {
        self.exec.next_timer()
    }

    /// Moves virtual time.
    pub(crate) fn advance(&self, to: Duration) {
        self.exec.now.store(u64::try_from(to.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.exec.looks.store(0, Ordering::Relaxed);
    }

    /// Stops or lets go on a process.
    pub(crate) fn pause(&mut self, process: ProcessId, paused: bool) {
        if self.paused.len() <= process {
            self.paused.resize(process + 1, false);
        }
        self.paused[process] = paused;
        if !paused {
            let deferred = std::mem::take(&mut self.deferred);
            lock(&self.exec.inner).ready.extend(deferred);
        }
    }

    /// Ends a process: every task of it is dropped where it stands.
    pub(crate) fn kill(&mut self, process: ProcessId) {
        lock(&self.exec.inner).born.retain(|(of, _)| *of != process);
        let mut dropped = Vec::new();
        for (index, slot) in self.tasks.iter_mut().enumerate() {
            if slot.as_ref().is_some_and(|task| task.process == process) {
                dropped.extend(slot.take());
                self.free.push(index);
            }
        }
        for task in dropped {
            // A destructor of the code under test may panic as well; the process is dead either way.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(task)));
        }
    }

    /// Runs until nothing is runnable without moving the clock.
    pub(crate) fn run(&mut self) -> Result<(), Broken> {
        let limit = self.polls + POLLS_IN_AN_INSTANT;
        loop {
            self.bury();
            self.take_born();
            let next = lock(&self.exec.inner).ready.pop_front();
            let Some(handle) = next else {
                if self.exec.fire() || self.unborn() {
                    continue;
                }
                return Ok(());
            };
            self.poll(handle)?;
            if self.polls > limit {
                return Err(Broken::Restless);
            }
        }
    }

    fn unborn(&self) -> bool {
        let inner = lock(&self.exec.inner);
        !inner.born.is_empty() || !inner.doomed.is_empty()
    }

    fn bury(&mut self) {
        loop {
            let doomed = std::mem::take(&mut lock(&self.exec.inner).doomed);
            if doomed.is_empty() {
                return;
            }
            for process in doomed {
                self.kill(process);
            }
        }
    }

    fn take_born(&mut self) {
        let born = std::mem::take(&mut lock(&self.exec.inner).born);
        for (process, future) in born {
            self.lives += 1;
            let life = self.lives;
            let index = self.free.pop().unwrap_or_else(|| {
                self.tasks.push(None);
                self.tasks.len() - 1
            });
            let handle = Arc::new(TaskWaker { exec: self.exec.clone(), task: index, life, queued: AtomicBool::new(true) });
            let waker = Waker::from(handle.clone());
            self.tasks[index] = Some(Task { process, life, future, handle: handle.clone(), waker });
            lock(&self.exec.inner).ready.push_back(handle);
        }
    }

    fn poll(&mut self, handle: Arc<TaskWaker>) -> Result<(), Broken> {
        let index = handle.task;
        let Some(task) = self.tasks[index].as_mut().filter(|task| task.life == handle.life) else { return Ok(()) };
        if self.paused.get(task.process).copied().unwrap_or(false) {
            self.deferred.push(handle);
            return Ok(());
        }
        task.handle.queued.store(false, Ordering::Relaxed);
        self.polls += 1;
        let waker = task.waker.clone();
        let future = &mut task.future;
        GUARDED.set(true);
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut Context::from_waker(&waker))));
        GUARDED.set(false);
        match polled {
            Ok(Poll::Pending) => Ok(()),
            Ok(Poll::Ready(())) => {
                let done = self.tasks[index].take();
                self.free.push(index);
                drop(done);
                Ok(())
            }
            Err(payload) => Err(Broken::Panic(PANIC.take().unwrap_or_else(|| words(&*payload)))),
        }
    }
}

/// Text of a panic.
fn words(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str).or_else(|| payload.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without words").to_owned()
}
