//! Connections: how many there are, and how long one may stand still.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep, timeout};

/// How long a connection may stand still.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionPatience {
    /// While the client does not take what is written.
    pub(crate) write: Duration,
    /// While nothing passes in either direction.
    pub(crate) idle: Duration,
}

/// Longest time of a refusal.
const REFUSAL_TIME: Duration = Duration::from_secs(2);
/// What connections beyond the limit get.
const REFUSAL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n\
    Retry-After: 1\r\nConnection: close\r\nContent-Length: 117\r\n\r\n\
    {\"error\":{\"message\":\"too many connections; try again later\",\
    \"type\":\"server_error\",\"param\":null,\"code\":\"connections\"}}";

/// Answers a client that there are too many connections. What the client has sent is read first, as
/// far as it comes: a connection that is closed with unread bytes is reset, and the refusal lost.
async fn refuse(stream: TcpStream) -> io::Result<()> {
    stream.writable().await?;
    stream.try_write(REFUSAL)?;
    let mut stream = stream;
    poll_fn(|context| Pin::new(&mut stream).poll_shutdown(context)).await?;
    let mut bytes = [0; 1024];
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
}

impl LimitedListener {
    pub(crate) fn new(
        listener: TcpListener,
        connections: usize,
        patience: ConnectionPatience,
    ) -> LimitedListener {
        let places = connections.min(Semaphore::MAX_PERMITS);
        LimitedListener {
            listener,
            places: Arc::new(Semaphore::new(places)),
            refusals: Arc::new(Semaphore::new(
                places.saturating_mul(2).min(Semaphore::MAX_PERMITS),
            )),
            patience,
        }
    }
}

impl Listener for LimitedListener {
    type Io = WatchedConnection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (WatchedConnection, SocketAddr) {
        loop {
            let (stream, address) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                // Too many open files, or a connection that is gone already.
                Err(_) => {
                    sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let Ok(permit) = Arc::clone(&self.places).try_acquire_owned() else {
                if let Ok(permit) = Arc::clone(&self.refusals).try_acquire_owned() {
                    tokio::spawn(async move {
                        let _ = timeout(REFUSAL_TIME, refuse(stream)).await;
                        drop(permit);
                    });
                }
                continue;
            };
            // Tokens are small, and each goes out at once.
            stream.set_nodelay(true).unwrap_or_default();
            let connection = WatchedConnection {
                stream,
                patience: self.patience,
                timer: Box::pin(sleep(self.patience.idle)),
                stalled: false,
                _permit: permit,
            };
            return (connection, address);
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that fails when it stands still for too long.
#[derive(Debug)]
pub(crate) struct WatchedConnection {
    stream: TcpStream,
    patience: ConnectionPatience,
    timer: Pin<Box<Sleep>>,
    /// Whether the timer is that of a write.
    stalled: bool,
    _permit: OwnedSemaphorePermit,
}

impl WatchedConnection {
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
        let result = Pin::new(&mut own.stream).poll_read(context, buffer);
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
        let result = Pin::new(&mut own.stream).poll_write(context, bytes);
        own.after_write(result, context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let own = self.get_mut();
        let result = Pin::new(&mut own.stream).poll_write_vectored(context, parts);
        own.after_write(result, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
