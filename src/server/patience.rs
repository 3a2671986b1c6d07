//! A stream that loses patience: with a head that never ends, with an idle peer, with a peer that does not read.
//!
//! hyper's own head limit runs while a connection idles too, and an idle API server must not be cut off. Here each has its own.
//!
//! Invariant: outside of a request there is always a deadline.
//! Absent on purpose: the time for a body (`webhook`, which can still answer 408) and for the work itself.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::Limits;

/// Where a connection stands: odd while a request is worked on, even between requests; only counts up.
#[derive(Debug, Default)]
pub(super) struct Phase(AtomicU64);

impl Phase {
    /// A head was read to its end.
    pub(super) fn begin(&self) {
        self.0.fetch_or(1, Ordering::Relaxed);
    }

    /// The answer is ready to be written.
    pub(super) fn end(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a request is being worked on.
    pub(super) fn is_busy(&self) -> bool {
        self.now() % 2 == 1
    }

    /// Whether there was a request at all.
    pub(super) fn has_asked(&self) -> bool {
        self.now() > 0
    }

    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A stream with deadlines.
pub(super) struct Patient<S> {
    stream: S,
    phase: Arc<Phase>,
    limits: Limits,
    /// The phase that `reading` was set for.
    seen: u64,
    /// Whether bytes of the next head have come.
    head: bool,
    reading: Pin<Box<Sleep>>,
    writing: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    pub(super) fn new(stream: S, phase: Arc<Phase>, limits: Limits) -> Self {
        let reading = Box::pin(tokio::time::sleep(limits.head));
        Self { stream, seen: phase.now(), phase, limits, head: true, reading, writing: None }
    }

    /// Sets the deadline anew where a request has ended since the last read.
    fn keep_up(&mut self) {
        let now = self.phase.now();
        if now != self.seen {
            self.seen = now;
            self.head = false;
            self.wait(self.limits.idle);
        }
    }

    fn wait(&mut self, time: Duration) {
        self.reading.as_mut().reset(Instant::now() + time);
    }

    fn written(&mut self, cx: &mut Context<'_>, done: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if done.is_ready() {
            self.writing = None;
            return done;
        }
        let limit = self.limits.write;
        let deadline = self.writing.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(deadline.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buffer);
        if this.phase.is_busy() {
            return read;
        }
        this.keep_up();
        if read.is_ready() {
            if !this.head && buffer.filled().len() > before {
                this.head = true;
                this.wait(this.limits.head);
            }
            return read;
        }
        ready!(this.reading.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.written(cx, done)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.written(cx, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_flush(cx).map_ok(|()| 0);
        self.written(cx, done).map_ok(|_| ())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_shutdown(cx).map_ok(|()| 0);
        self.written(cx, done).map_ok(|_| ())
    }
}
