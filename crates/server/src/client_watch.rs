//! Watch over a client's half of a connection, apart from what is read of it.
//!
//! hyper reads a connection only as far as it has room, and sees its end behind what the client
//! has sent besides. The socket's state says so at once.

use std::sync::{Arc, Weak};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::net::TcpStream;

/// A connection's socket, which stays the connection's.
#[derive(Clone, Debug)]
pub(crate) struct ClientWatch {
    stream: Weak<TcpStream>,
}

impl ClientWatch {
    pub(crate) fn new(stream: &Arc<TcpStream>) -> ClientWatch {
        ClientWatch {
            stream: Arc::downgrade(stream),
        }
    }

    /// Whether the connection has ended, or the client has closed its half.
    pub(crate) fn is_gone(&self) -> bool {
        const AT_ONCE: Timespec = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let Some(stream) = self.stream.upgrade() else {
            return true;
        };
        let mut states = [PollFd::new(&*stream, PollFlags::RDHUP)];
        match poll(&mut states, Some(&AT_ONCE)) {
            Ok(count) => count > 0,
            // What cannot be seen is found by writing.
            Err(_) => false,
        }
    }
}
