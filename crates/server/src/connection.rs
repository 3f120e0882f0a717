//! Connections: how many there are, and how long one may stand still.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::client_watch::ClientWatch;

/// How long a connection may stand still.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionPatience {
    /// While the client does not take what is written.
    pub(crate) write: Duration,
    /// While nothing passes in either direction.
    pub(crate) idle: Duration,
}

/// Longest time of a refusal, and of it until the client has sent something.
const REFUSAL_TIME: Duration = Duration::from_secs(2);
const REFUSAL_WAIT: Duration = Duration::from_millis(500);
/// What connections beyond the limit get.
const REFUSAL: &str = "{\"error\":{\"message\":\"too many connections; try again later\",\
    \"type\":\"server_error\",\"param\":null,\"code\":\"connections\"}}";

/// What a request for the server's health begins with.
const HEALTH: &[u8] = b"GET /health";

/// Status and JSON of the server's health.
pub(crate) struct HealthReply(pub(crate) Box<dyn Fn() -> (u16, String) + Send + Sync>);

impl fmt::Debug for HealthReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HealthReply")
    }
}

/// Whether what a client has sent asks for the server's health.
fn asks_health(request: &[u8]) -> bool {
    let path = request.strip_prefix(HEALTH);
    path.is_some_and(|it| matches!(it.first(), Some(b' ' | b'?')))
}

/// Answers a client that there are too many connections, or how the server is if it asks that. What
/// the client has sent is read, as far as it comes: a connection that is closed with unread bytes
/// is reset, and the refusal lost.
async fn refuse(stream: TcpStream, health: Arc<HealthReply>) -> io::Result<()> {
    let mut bytes = [0; 1024];
    let mut count = 0;
    let first = async {
        while count < HEALTH.len() + 1 {
            stream.readable().await?;
            match stream.try_read(&mut bytes[count..]) {
                Ok(0) => break,
                Ok(more) => count += more,
                // Readable no more.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    };
    // One that sends nothing, or too slowly, asks nothing.
    if let Ok(read) = timeout(REFUSAL_WAIT, first).await {
        read?;
    }
    let (status, text) = match asks_health(&bytes[..count]) {
        true => (health.0)(),
        false => (503, REFUSAL.to_owned()),
    };
    let reason = if status == 200 {
        "OK"
    } else {
        "Service Unavailable"
    };
    let reply = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\nRetry-After: 1\r\n\
         Connection: close\r\nContent-Length: {}\r\n\r\n{text}",
        text.len()
    );
    stream.writable().await?;
    stream.try_write(reply.as_bytes())?;
    shutdown(&stream, Shutdown::Write)?;
    if count == 0 {
        // Nothing is unread, and others wait for the place.
        return Ok(());
    }
    loop {
        stream.readable().await?;
        match stream.try_read(&mut bytes) {
            Ok(0) => return Ok(()),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
    }
}

/// A listener with a limit of connections. Twice as many more are refused at a time, and beyond
/// these connections are closed without a word.
#[derive(Debug)]
pub(crate) struct LimitedListener {
    listener: TcpListener,
    places: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    patience: ConnectionPatience,
    health: Arc<HealthReply>,
}

impl LimitedListener {
    pub(crate) fn new(
        listener: TcpListener,
        connections: usize,
        patience: ConnectionPatience,
        health: HealthReply,
    ) -> LimitedListener {
        let places = connections.min(Semaphore::MAX_PERMITS);
        LimitedListener {
            listener,
            places: Arc::new(Semaphore::new(places)),
            refusals: Arc::new(Semaphore::new(
                places.saturating_mul(2).min(Semaphore::MAX_PERMITS),
            )),
            patience,
            health: Arc::new(health),
        }
    }

    /// The next connection.
    pub(crate) async fn accept(&self) -> WatchedConnection {
        loop {
            let (stream, _) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                // Too many open files, or a connection that is gone already.
                Err(_) => {
                    sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let Ok(permit) = Arc::clone(&self.places).try_acquire_owned() else {
                if let Ok(permit) = Arc::clone(&self.refusals).try_acquire_owned() {
                    let refusal = refuse(stream, Arc::clone(&self.health));
                    tokio::spawn(async move {
                        let _ = timeout(REFUSAL_TIME, refusal).await;
                        drop(permit);
                    });
                }
                continue;
            };
            // Tokens are small, and each goes out at once.
            stream.set_nodelay(true).unwrap_or_default();
            return WatchedConnection {
                stream: Arc::new(stream),
                patience: self.patience,
                timer: Box::pin(sleep(self.patience.idle)),
                stalled: false,
                _permit: permit,
            };
        }
    }
}

/// A connection that fails when it stands still for too long.
#[derive(Debug)]
pub(crate) struct WatchedConnection {
    /// Shared with nothing that lives longer than a look at it.
    stream: Arc<TcpStream>,
    patience: ConnectionPatience,
    timer: Pin<Box<Sleep>>,
    /// Whether the timer is that of a write.
    stalled: bool,
    _permit: OwnedSemaphorePermit,
}

impl WatchedConnection {
    /// What knows whether the client is there.
    pub(crate) fn client(&self) -> ClientWatch {
        ClientWatch::new(&self.stream)
    }

    /// Writes once the socket takes something.
    fn poll_try_write(
        &self,
        context: &mut Context<'_>,
        mut write: impl FnMut(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(context))?;
            match write(&self.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    fn poll_try_read(
        &self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(context))?;
            match self.stream.try_read(buffer.initialize_unfilled()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(count) => {
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }

    /// Begins to wait anew.
    fn has_moved(&mut self) {
        self.stalled = false;
        let until = Instant::now() + self.patience.idle;
        self.timer.as_mut().reset(until);
    }

    /// Fails when the timer has run out.
    fn poll_timer(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        ready!(self.timer.as_mut().poll(context));
        Poll::Ready(io::ErrorKind::TimedOut.into())
    }

    fn after_write(
        &mut self,
        result: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if result.is_ready() {
            self.has_moved();
            return result;
        }
        if !self.stalled {
            self.stalled = true;
            let until = Instant::now() + self.patience.write;
            self.timer.as_mut().reset(until);
        }
        self.poll_timer(context).map(Err)
    }
}

impl AsyncRead for WatchedConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let own = self.get_mut();
        let result = own.poll_try_read(context, buffer);
        if result.is_ready() {
            if !own.stalled {
                own.has_moved();
            }
            return result;
        }
        own.poll_timer(context).map(Err)
    }
}

impl AsyncWrite for WatchedConnection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let own = self.get_mut();
        let result = own.poll_try_write(context, |stream| stream.try_write(bytes));
        own.after_write(result, context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let own = self.get_mut();
        let result = own.poll_try_write(context, |stream| stream.try_write_vectored(parts));
        own.after_write(result, context)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The socket has what was written.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = shutdown(&*self.stream, Shutdown::Write);
        Poll::Ready(shut.map_err(io::Error::from))
    }
}
